use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};

use crate::config::Config;

/// `SO_NETNS_COOKIE` of include/uapi/asm-generic/socket.h (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;

/// A place that the agent was sent to and must not work in.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{key} {} cannot be looked at: {source}; {mend}", path.display())]
    Unreachable {
        key: &'static str,
        path: PathBuf,
        mend: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "bpf-root {} is not a bpf file system; mount one there (mount -t bpf bpf {}), or set bpf-root to where one is",
        path.display(), path.display()
    )]
    NotBpfFs { path: PathBuf },
    #[error(
        "cgroup-root {} is not a cgroup v2 directory; set cgroup-root to one, such as a directory below /sys/fs/cgroup \
         where that is mounted as cgroup2",
        path.display()
    )]
    NotCgroup2 { path: PathBuf },
    #[error(
        "cgroup-root {} is the root of the cgroup hierarchy: every process of this machine would be served; set \
         cgroup-root to a cgroup below it, or allow-root-cgroup=true if that is meant",
        path.display()
    )]
    RootCgroup { path: PathBuf },
    #[error("cannot tell the network namespace's cookie: {0}; Portway needs Linux 6.1 or newer")]
    Cookie(#[source] io::Error),
}

/// Every place that will not do, one a line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct UnfitPlaces(pub Vec<PlaceError>);

/// Checks `bpf-root` and `cgroup-root`. Nothing is changed and nothing is mounted.
///
/// # Errors
/// Each of the two that will not do.
pub fn check_place(config: &Config) -> Result<(), UnfitPlaces> {
    let unfit: Vec<_> =
        [check_bpf_root(config), check_cgroup_root(config)].into_iter().filter_map(Result::err).collect();
    if unfit.is_empty() { Ok(()) } else { Err(UnfitPlaces(unfit)) }
}

fn check_bpf_root(config: &Config) -> Result<(), PlaceError> {
    let path = config.bpf_root.clone();
    let mend = "create the directory and mount a bpf file system there (mount -t bpf bpf DIR)";
    if file_system(&path, "bpf-root", mend)? == BPF_FS_MAGIC {
        Ok(())
    } else {
        Err(PlaceError::NotBpfFs { path })
    }
}

fn check_cgroup_root(config: &Config) -> Result<(), PlaceError> {
    let path = config.cgroup_root.clone();
    if file_system(&path, "cgroup-root", "create the cgroup (mkdir), or name another one")?
        != CGROUP2_SUPER_MAGIC
    {
        return Err(PlaceError::NotCgroup2 { path });
    }
    if !config.allow_root_cgroup && is_cgroup_root(&path) {
        return Err(PlaceError::RootCgroup { path });
    }
    Ok(())
}

fn file_system(path: &Path, key: &'static str, mend: &'static str) -> Result<FsType, PlaceError> {
    let error = |source| PlaceError::Unreachable { key, path: path.to_owned(), mend, source };
    // An open tells a missing right more clearly than statfs does.
    File::open(path).map_err(error)?;
    Ok(statfs(path).map_err(|errno| error(errno.into()))?.filesystem_type())
}

/// Only the root of a hierarchy lacks this file (Documentation/admin-guide/cgroup-v2.rst, `cgroup.events`).
fn is_cgroup_root(path: &Path) -> bool {
    !path.join("cgroup.events").exists()
}

/// The cookie of the network namespace that the calling thread is in.
///
/// # Errors
/// The kernel does not know the question.
pub fn netns_cookie() -> Result<u64, PlaceError> {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("::1", 0)));
    let socket = socket.or_else(|_| UdpSocket::bind(("0.0.0.0", 0))).map_err(PlaceError::Cookie)?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    #[expect(unsafe_code, reason = "the standard library does not know this option")]
    // SAFETY: the descriptor is open; `cookie` and `length` outlive the call and `length` is the size of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(PlaceError::Cookie(io::Error::last_os_error())) }
}

/// `uname -r`, or "" where /proc is missing.
pub fn kernel_release() -> String {
    first_line("/proc/sys/kernel/osrelease")
}

/// The machine's name, or "" where /proc is missing.
pub fn host_name() -> String {
    first_line("/proc/sys/kernel/hostname")
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Invocation};

    #[test]
    fn every_place_that_will_not_do_is_named() {
        let plain = tempfile::tempdir().unwrap();
        let flag = |key: &str| format!("--{key}={}", plain.path().display());
        let arguments = ["source-dir", "bpf-root", "cgroup-root"].map(|key| flag(key).into()).to_vec();
        let config = config::load(Invocation { arguments, ..Invocation::default() }).unwrap().config;
        let UnfitPlaces(unfit) = check_place(&config).unwrap_err();
        assert!(
            matches!(unfit[..], [PlaceError::NotBpfFs { .. }, PlaceError::NotCgroup2 { .. }]),
            "{unfit:?}"
        );
    }
}

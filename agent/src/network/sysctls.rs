//! Settings of the node's namespace that the pod network needs. What was there before is noted in the state directory, and
//! [`Sysctls::restore`] puts back what nobody has changed since.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::tunnel;
use crate::endpoints::is_link_name;

const PROC_SYS: &str = "/proc/sys";
const NOTE: &str = "changed-sysctls";
const FORWARD_V4: &str = "net/ipv4/ip_forward";
const FORWARD_V6: &str = "net/ipv6/conf/all/forwarding";

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct SysctlError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The kernel's files and the note of what was changed.
#[derive(Clone, Debug)]
pub(super) struct Sysctls {
    root: PathBuf,
    note: PathBuf,
}

/// What was there, and what we wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changed {
    before: String,
    set: String,
}

impl Sysctls {
    /// Of the network namespace that the calling thread is in.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { root: PROC_SYS.into(), note: state_dir.join(NOTE) }
    }

    /// Packets of pods are forwarded. `links` are the interfaces but those of the agent: one that learns its routes from
    /// routers goes on to do so (with `forwarding` it would not, Documentation/networking/ip-sysctl.rst, `accept_ra`). What was
    /// changed, as `name=value`.
    ///
    /// # Errors
    /// A file cannot be read or written; nothing was changed that is not noted.
    pub(super) fn forward<'d>(
        &self,
        ipv4: bool,
        ipv6: bool,
        links: impl Iterator<Item = &'d str>,
    ) -> Result<Vec<String>, SysctlError> {
        let mut changed = Vec::new();
        if ipv4 {
            changed.extend(self.set(FORWARD_V4, "1", |_| true)?);
        }
        // A kernel without IPv6 has none of these.
        if ipv6 && self.root.join("net/ipv6").exists() {
            for link in links {
                let accepts = format!("net/ipv6/conf/{link}/accept_ra");
                changed.extend(self.set(&accepts, "2", |now| now == "1")?);
            }
            changed.extend(self.set(FORWARD_V6, "1", |_| true)?);
        }
        Ok(changed)
    }

    /// Puts back what was changed and is still as we set it, also what the kernel changed along. What was put back, as
    /// `name=value`.
    ///
    /// # Errors
    /// A file cannot be read or written; the note stays.
    pub(super) fn restore(&self) -> Result<Vec<String>, SysctlError> {
        let mut to_restore = Vec::new();
        for (name, Changed { before, set }) in self.noted()? {
            let path = self.root.join(&name);
            if read_if_there(&path)?.is_some_and(|now| now == set) {
                to_restore.push((name, path, before));
            }
        }
        // Those first that change others.
        to_restore.sort_by_key(|(name, ..)| ![FORWARD_V4, FORWARD_V6].contains(&name.as_str()));
        let mut restored = Vec::new();
        for (name, path, before) in to_restore {
            if read_if_there(&path)?.is_some_and(|now| now != before) {
                std::fs::write(&path, &before).map_err(file("write", &path))?;
                restored.push(format!("{}={before}", name.replace('/', ".")));
            }
        }
        match std::fs::remove_file(&self.note) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(file("remove", &self.note)(source))
            }
            Ok(()) | Err(_) => Ok(restored),
        }
    }

    /// Writes `value` where another one is that `may_go`. What was changed.
    fn set(
        &self,
        name: &str,
        value: &str,
        may_go: impl Fn(&str) -> bool,
    ) -> Result<Option<String>, SysctlError> {
        let path = self.root.join(name);
        let Some(before) = read_if_there(&path)? else { return Ok(None) };
        if before == value || !may_go(&before) {
            return Ok(None);
        }
        // The note comes first: after a crash between the two, what is noted as set is not what is there.
        let mut noted = self.noted()?;
        for (name, changed) in self.changed_along(name)? {
            noted.entry(name).or_insert(changed);
        }
        let set = value.to_owned();
        noted
            .entry(name.to_owned())
            .and_modify(|changed| changed.set.clone_from(&set))
            .or_insert(Changed { before, set });
        let text: String =
            noted.iter().map(|(name, Changed { before, set })| format!("{name} {before} {set}\n")).collect();
        if let Some(dir) = self.note.parent() {
            std::fs::create_dir_all(dir).map_err(file("make", dir))?;
        }
        std::fs::write(&self.note, text).map_err(file("write", &self.note))?;
        std::fs::write(&path, value).map_err(file("write", &path))?;
        Ok(Some(format!("{}={value}", name.replace('/', "."))))
    }

    /// What the kernel changes when forwarding is switched on, as it is before (net/ipv4/devinet.c, `inet_forward_change`;
    /// net/ipv6/addrconf.c, `addrconf_fixup_forwarding`): it does not remember. Links of the agent's own go anyway.
    fn changed_along(&self, with: &str) -> Result<Vec<(String, Changed)>, SysctlError> {
        let conf = match with {
            FORWARD_V4 => "net/ipv4/conf",
            FORWARD_V6 => "net/ipv6/conf",
            _ => return Ok(Vec::new()),
        };
        let dir = self.root.join(conf);
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(file("read", &dir)(source)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let link = entry.map_err(file("read", &dir))?.file_name();
            let Some(link) = link.to_str().filter(|link| !is_link_name(link) && *link != tunnel::NAME) else {
                continue;
            };
            all.push((format!("{conf}/{link}/forwarding"), "1"));
        }
        if with == FORWARD_V4 {
            all.push(("net/ipv4/conf/all/accept_redirects".to_owned(), "0"));
        }
        let mut changed = Vec::new();
        for (name, set) in all {
            if let Some(before) = read_if_there(&self.root.join(&name))? {
                changed.push((name, Changed { before, set: set.to_owned() }));
            }
        }
        Ok(changed)
    }

    fn noted(&self) -> Result<BTreeMap<String, Changed>, SysctlError> {
        let text = match std::fs::read_to_string(&self.note) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(source) => return Err(file("read", &self.note)(source)),
        };
        let line = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let (name, before, set) = (words.next()?, words.next()?, words.next()?);
            // Nothing but what we write ourselves: a note must not lead elsewhere.
            let is_ours =
                name.starts_with("net/") && !name.split('/').any(|part| part == ".." || part.is_empty());
            is_ours.then_some((name, Changed { before, set }))
        };
        Ok(text.lines().filter_map(line).collect())
    }
}

/// `None` for what the kernel does not have, or of a device that is gone.
fn read_if_there(path: &Path) -> Result<Option<String>, SysctlError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file("read", path)(source)),
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SysctlError {
    let path = path.to_owned();
    move |source| SysctlError { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new(values: &[(&str, &str)]) -> Self {
            let files = Self(tempfile::tempdir().unwrap());
            values.iter().for_each(|(name, value)| files.write(name, value));
            files
        }

        fn write(&self, name: &str, value: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }

        fn read(&self, name: &str) -> String {
            std::fs::read_to_string(self.0.path().join(name)).unwrap().trim().to_owned()
        }

        fn sysctls(&self) -> Sysctls {
            Sysctls { root: self.0.path().to_owned(), note: self.0.path().join("state").join(NOTE) }
        }
    }

    const V4: &str = "net/ipv4/ip_forward";
    const V6: &str = "net/ipv6/conf/all/forwarding";
    const RA: &str = "net/ipv6/conf/eth0/accept_ra";

    #[test]
    fn what_was_changed_is_put_back_and_nothing_else() {
        let files = Files::new(&[(V4, "0"), (V6, "1"), (RA, "1"), ("net/ipv6/conf/eth1/accept_ra", "0")]);
        let changed = files.sysctls().forward(true, true, ["eth0", "eth1", "eth2"].into_iter()).unwrap();
        assert_eq!(changed, ["net.ipv4.ip_forward=1", "net.ipv6.conf.eth0.accept_ra=2"]);
        assert_eq!([V4, V6, RA].map(|name| files.read(name)), ["1", "1", "2"]);
        // A second start changes nothing and forgets nothing.
        assert!(files.sysctls().forward(true, true, ["eth0"].into_iter()).unwrap().is_empty());
        let restored = files.sysctls().restore().unwrap();
        assert_eq!(restored, ["net.ipv4.ip_forward=0", "net.ipv6.conf.eth0.accept_ra=1"]);
        assert_eq!([V4, V6, RA].map(|name| files.read(name)), ["0", "1", "1"]);
        assert!(files.sysctls().restore().unwrap().is_empty());
    }

    #[test]
    fn what_somebody_changed_since_stays() {
        let files = Files::new(&[(V4, "0"), (RA, "1")]);
        files.sysctls().forward(true, true, ["eth0"].into_iter()).unwrap();
        files.write(RA, "0");
        std::fs::remove_file(files.0.path().join(V4)).unwrap();
        assert!(files.sysctls().restore().unwrap().is_empty());
        assert_eq!(files.read(RA), "0");
    }

    #[test]
    fn a_family_that_is_off_or_not_there_is_left_alone() {
        let files = Files::new(&[(V4, "0")]);
        assert!(files.sysctls().forward(false, true, ["eth0"].into_iter()).unwrap().is_empty());
        assert_eq!(files.read(V4), "0");
    }

    #[test]
    fn a_note_leads_nowhere_else() {
        let files = Files::new(&[("victim", "1"), ("net/x", "1")]);
        files.write(&format!("state/{NOTE}"), "net/../victim 0 1\nvictim 0 1\nnet/x 0 1");
        assert_eq!(files.sysctls().restore().unwrap(), ["net.x=0"]);
        assert_eq!(files.read("victim"), "1");
    }
}

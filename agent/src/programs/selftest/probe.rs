//! The child's side.

#![expect(unsafe_code, reason = "unshare(2) and getsockopt(2) of SO_NETNS_COOKIE have no safe wrapper here")]

use std::io::{self, BufRead as _, Write};
use std::os::fd::AsRawFd as _;
use std::process::ExitCode;

use super::check::Check;

/// Makes the checks that [`super::run`] asks for, over standard input and output. What the hidden subcommand of the
/// agent calls, before it starts any thread.
pub fn probe_main() -> ExitCode {
    match probe(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent reports that the pipe ended early; this line says why.
            let _ = writeln!(io::stderr(), "self-test: {error}");
            ExitCode::FAILURE
        }
    }
}

fn probe(out: &mut impl Write) -> io::Result<()> {
    // SAFETY: takes no pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    writeln!(out, "namespace {}", netns_cookie()?)?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if answer != "go\n" {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the agent went away"));
    }
    for check in Check::all() {
        writeln!(out, "{check} {}", check.make()?)?;
    }
    out.flush()
}

/// The cookie of this thread's network namespace.
fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the option is a u64, which `cookie` has room for.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

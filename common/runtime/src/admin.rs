//! HTTP for people, probes and Prometheus, on a unix socket or a TCP address.
//!
//! | path | answer |
//! |---|---|
//! | `GET /readyz` ([`health`]) | 200 `ok`, or 503 and what the process waits for, one a line |
//! | `GET /healthz` ([`health`]) | the same, and always 200 |
//! | `GET /metrics` ([`metrics`]) | the registry in Prometheus' text format |

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use prometheus::Registry;
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::readiness::Readiness;
use crate::shutdown::Drain;

/// A server that could not begin.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("cannot listen on {address}: {source}; is another process there?")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot listen on the socket {}: {source}", path.display())]
    Socket {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a process answers on the socket {}: stop it, or choose another socket-path", path.display())]
    SocketInUse { path: PathBuf },
    #[error("{} is not a socket: choose another socket-path", path.display())]
    NotASocket { path: PathBuf },
}

/// `/healthz` for liveness, and `/readyz`.
///
/// A process that waits for something that is not its own lives: to end it would not bring that about.
pub fn health(readiness: Readiness) -> Router {
    let answer = move |unready| {
        let waiting_for = readiness.waiting_for();
        async move {
            if waiting_for.is_empty() {
                (StatusCode::OK, "ok\n".to_owned())
            } else {
                (unready, format!("waiting for\n{}\n", waiting_for.join("\n")))
            }
        }
    };
    let live = answer.clone();
    Router::new()
        .route("/healthz", get(move || live(StatusCode::OK)))
        .route("/readyz", get(move || answer(StatusCode::SERVICE_UNAVAILABLE)))
}

/// `/metrics`.
pub fn metrics(registry: Registry) -> Router {
    let answer = move || {
        let text = crate::metrics::render(&registry);
        async move {
            match text {
                Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
            }
        }
    };
    Router::new().route("/metrics", get(answer))
}

/// Listens on a TCP address; port 0 takes a free one. Returns the address that was taken. Every address (`[::]`) is every
/// one of IPv4 where the kernel has no IPv6.
///
/// # Errors
/// [`AdminError::Listen`].
pub async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), AdminError> {
    let failed = |source| AdminError::Listen { address, source };
    let listener = match TcpListener::bind(address).await {
        Err(error) => match without_ipv6(address, &error) {
            Some(address) => TcpListener::bind(address).await,
            None => Err(error),
        },
        Ok(listener) => Ok(listener),
    };
    let listener = listener.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// What to listen on instead, where an address cannot be had because there is no IPv6 (`ipv6.disable=1`).
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let has_none = matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL));
    let is_every = address.ip() == Ipv6Addr::UNSPECIFIED;
    (has_none && is_every).then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

/// Listens on a unix socket that only its owner may use, in place of one that a dead process left.
///
/// # Errors
/// Another process answers there, or the socket cannot be made.
pub async fn listen_on_socket(path: &Path) -> Result<UnixListener, AdminError> {
    let failed = |source| AdminError::Socket { path: path.to_owned(), source };
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(AdminError::NotASocket { path: path.to_owned() });
        }
        if UnixStream::connect(path).await.is_ok() {
            return Err(AdminError::SocketInUse { path: path.to_owned() });
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Serves until the drain begins, then finishes what is under way.
///
/// # Errors
/// The listener broke.
pub async fn serve<L>(listener: L, router: Router, mut drain: Drain) -> io::Result<()>
where
    L: axum::serve::Listener,
    L::Addr: std::fmt::Debug,
{
    // The clone keeps the process until the last answer is out.
    let held = drain.clone();
    let result =
        axum::serve(listener, router).with_graceful_shutdown(async move { drain.begun().await }).await;
    drop(held);
    result
}

#[cfg(test)]
mod tests;

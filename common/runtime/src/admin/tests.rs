use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use prometheus::IntCounter;
use tokio::io::{AsyncRead, AsyncWrite};

use super::*;
use crate::shutdown::Shutdown;

async fn ask<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, path: &str) -> (u16, String) {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get(path).header("host", "agent").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn health_names_what_is_missing_until_the_process_is_ready() {
    let (readiness, shutdown) = (Readiness::new(), Shutdown::new());
    let guard = readiness.task("first sync of /manifests");
    let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let server = tokio::spawn(serve(listener, health(readiness), shutdown.drain().unwrap()));
    let connect = || tokio::net::TcpStream::connect(address);

    let waits = "waiting for\nfirst sync of /manifests\n".to_owned();
    assert_eq!(ask(connect().await.unwrap(), "/readyz").await, (503, waits.clone()));
    // To end a process that waits for somebody else mends nothing.
    assert_eq!(ask(connect().await.unwrap(), "/healthz").await, (200, waits));
    drop(guard);
    for path in ["/readyz", "/healthz"] {
        assert_eq!(ask(connect().await.unwrap(), path).await, (200, "ok\n".to_owned()));
    }
    assert_eq!(ask(connect().await.unwrap(), "/other").await.0, 404);
    assert!(shutdown.finish(Duration::from_secs(5)).await);
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn metrics_are_served_on_a_socket_that_a_dead_process_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/agent.sock");
    drop(listen_on_socket(&path).await.unwrap());
    let listener = listen_on_socket(&path).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let registry = Registry::new();
    crate::metrics::register(&registry, IntCounter::new("portway_x_total", "x").unwrap()).unwrap().inc();
    let shutdown = Shutdown::new();
    tokio::spawn(serve(listener, metrics(registry), shutdown.drain().unwrap()));
    let (status, body) = ask(UnixStream::connect(&path).await.unwrap(), "/metrics").await;
    assert!(status == 200 && body.contains("portway_x_total 1"), "{status} {body}");
    assert!(matches!(listen_on_socket(&path).await.unwrap_err(), AdminError::SocketInUse { .. }));
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    assert!(matches!(listen_on_socket(&path).await.unwrap_err(), AdminError::NotASocket { .. }));
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[test]
fn every_address_is_every_one_of_ipv4_where_there_is_no_ipv6() {
    let instead = |address: &str, code| {
        let error = io::Error::from_raw_os_error(code);
        without_ipv6(address.parse().unwrap(), &error).map(|address| address.to_string())
    };
    for code in [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL] {
        assert_eq!(instead("[::]:9963", code).as_deref(), Some("0.0.0.0:9963"));
        assert_eq!(instead("[::1]:9963", code), None, "somebody said which");
    }
    assert_eq!(instead("[::]:9963", libc::EADDRINUSE), None);
}

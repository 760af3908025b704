//! `GET /hello`, asked and answered: what nodes see each other by. Cilium's agents answer and ask the same.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::ProbeError;

/// A SYN that is lost is sent again after 1 s.
const PATIENCE: Duration = Duration::from_secs(3);
/// Who has not asked by then is let go.
const ASKING: Duration = Duration::from_secs(5);
/// Anyone can connect: more at a time wait in the listener's queue.
const AT_ONCE: usize = 128;
const LONGEST_REQUEST: usize = 2048;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// How long `address` takes to say 200, connecting included.
///
/// # Errors
/// It said something else, or nothing within 3 s.
pub(super) async fn ask(address: SocketAddr) -> Result<Duration, ProbeError> {
    let began = Instant::now();
    match timeout(PATIENCE, status_line(address)).await {
        Ok(Ok(line)) => match line.split(' ').nth(1) {
            Some("200") => Ok(began.elapsed()),
            Some(_) | None => Err(ProbeError::Answer { line }),
        },
        Ok(Err(error)) => Err(ProbeError::Socket(error)),
        Err(_) => Err(ProbeError::NoAnswer { within: PATIENCE }),
    }
}

async fn status_line(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /hello HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // `HTTP/1.1 200`: the reason after it does not matter, but is shown where it is another number.
    let mut answer = vec![0; 64];
    let mut length = 0;
    while let Some(rest @ [_, ..]) = answer.get_mut(length..) {
        let read = stream.read(rest).await?;
        length += read;
        if read == 0 || answer.get(..length).is_some_and(|answer| answer.contains(&b'\r')) {
            break;
        }
    }
    answer.truncate(length);
    let text = String::from_utf8_lossy(&answer);
    Ok(text.lines().next().unwrap_or_default().escape_debug().to_string())
}

/// Answers until the future is dropped.
pub(super) async fn answer(listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(async move {
                    // Who asked is told nothing more where the connection broke.
                    if let Ok(Err(error)) = timeout(ASKING, answer_one(stream)).await {
                        tracing::trace!(%error, "a health probe broke off");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                // Of one connection, or no file descriptor is left: those come back.
                tracing::debug!(%error, "a health probe could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer_one(mut stream: TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        if request.len() >= LONGEST_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let is_hello =
        [b"GET /hello HTTP/".as_slice(), b"HEAD /hello HTTP/"].iter().any(|start| request.starts_with(start));
    stream.write_all(if is_hello { OK } else { NOT_FOUND }.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn listening(ip: &str) -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn hello_is_answered_in_both_families() {
        for ip in ["127.0.0.1", "::1"] {
            let (listener, address) = listening(ip).await;
            let answering = tokio::spawn(answer(listener));
            ask(address).await.unwrap();
            answering.abort();
        }
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_nobody_else_waiting() {
        let (listener, address) = listening("127.0.0.1").await;
        let answering = tokio::spawn(answer(listener));
        let mut silent = Vec::new();
        for _ in 0..AT_ONCE - 1 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        ask(address).await.unwrap();
        // One more, and the next waits until the first are let go.
        silent.push(TcpStream::connect(address).await.unwrap());
        let began = Instant::now();
        assert!(matches!(ask(address).await, Err(ProbeError::NoAnswer { .. })));
        assert!(timeout(2 * ASKING, async { while ask(address).await.is_err() {} }).await.is_ok());
        assert!(began.elapsed() < 2 * ASKING);
        answering.abort();
    }

    #[tokio::test]
    async fn another_answer_is_not_an_answer() {
        for (said, shown) in [
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP/1.1 503 Service Unavailable"),
            ("SSH-2.0-x\r\n", "SSH-2.0-x"),
            ("", ""),
        ] {
            let (listener, address) = listening("127.0.0.1").await;
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await.unwrap();
                stream.write_all(said.as_bytes()).await.unwrap();
            });
            match ask(address).await {
                Err(ProbeError::Answer { line }) => assert_eq!(line, shown),
                other => panic!("{said}: {other:?}"),
            }
        }
        let (listener, address) = listening("127.0.0.1").await;
        drop(listener);
        let refused = ask(address).await.unwrap_err().to_string();
        assert!(refused.contains("refused"), "{refused}");
    }

    #[tokio::test]
    async fn any_other_path_is_not_found() {
        let (listener, address) = listening("127.0.0.1").await;
        let answering = tokio::spawn(answer(listener));
        for (request, status) in
            [("GET /hello HTTP/1.0", "200"), ("GET / HTTP/1.1", "404"), ("POST /hello HTTP/1.1", "404")]
        {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("{request}\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer.split(' ').nth(1), Some(status), "{request}: {answer}");
        }
        answering.abort();
    }
}

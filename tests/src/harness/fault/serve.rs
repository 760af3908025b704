//! Connections and requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::rustls::pki_types::ServerName;

use super::script::{Asked, RequestFault, status};
use super::{Reach, Seen, Shared, events, lock};

pub(super) type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))
}

/// Takes connections while it may.
pub(super) async fn accept(shared: Arc<Shared>, address: SocketAddr, first: TcpListener) {
    let mut state = shared.state.subscribe();
    let mut listener = Some(first);
    loop {
        let reach = state.borrow_and_update().reach;
        if reach == Reach::Refused {
            listener = None;
            if state.changed().await.is_err() {
                return;
            }
            continue;
        }
        let listening = match listener.take() {
            Some(listening) => listening,
            None => match listen(address).await {
                Ok(listening) => listening,
                Err(error) => {
                    crate::harness::complain(&format!("{error:#}"));
                    return;
                }
            },
        };
        tokio::select! {
            accepted = listening.accept() => {
                if let Ok((tcp, _)) = accepted {
                    tokio::spawn(connection(Arc::clone(&shared), tcp));
                }
            }
            changed = state.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        listener = Some(listening);
    }
}

/// One connection to its end, or until all are cut.
async fn connection(shared: Arc<Shared>, tcp: TcpStream) {
    let mut state = shared.state.subscribe();
    let now = *state.borrow_and_update();
    let served = async {
        match now.reach {
            Reach::Up => {}
            // It came before the listener was closed.
            Reach::Refused => return,
            Reach::Silent => return std::future::pending::<()>().await,
        }
        // Small events are to come at once.
        let _ = tcp.set_nodelay(true);
        let Ok(tls) = shared.acceptor.accept(tcp).await else { return };
        let shared = Arc::clone(&shared);
        let service = service_fn(move |request| answer(Arc::clone(&shared), request));
        // An end that was a fault, or the agent's, is none of ours.
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tls), service).await;
    };
    tokio::select! {
        () = served => {}
        _ = state.wait_for(|state| state.cuts != now.cuts) => {}
    }
}

/// An error ends the connection.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>> {
    let asked = Asked::of(&request);
    lock(&shared.seen).push(Seen { at: Instant::now(), asked: asked.clone() });
    let fault = (lock(&shared.on_request))(&asked);
    match fault {
        RequestFault::Status(code, retry_after) => return own_answer(code, retry_after),
        RequestFault::Refuse => bail!("a fault of the test"),
        RequestFault::Hang => std::future::pending().await,
        RequestFault::Delay(delay) => tokio::time::sleep(delay).await,
        RequestFault::None
        | RequestFault::Hold
        | RequestFault::Half
        | RequestFault::HalfInChunks
        | RequestFault::HalfJson => {}
    }
    let request = whole(&shared, request).await?;
    let answer = if fault == RequestFault::Hold {
        late(&shared, request).await
    } else {
        forward(&shared, request).await
    };
    let Ok(answer) = answer else {
        // The API server is not there: what a load balancer before it says.
        return own_answer(503, None);
    };
    let (mut head, body) = answer.into_parts();
    head.headers.remove(header::CONNECTION);
    if asked.is_watch() && head.status.is_success() {
        head.headers.remove(header::CONTENT_LENGTH);
        head.headers.remove(header::TRANSFER_ENCODING);
        return Ok(Response::from_parts(head, events::pass(shared, asked, body)));
    }
    let whole = body.collect().await.context("read the API server's answer")?.to_bytes();
    let half = whole.slice(..whole.len() / 2);
    let length = HeaderValue::from(whole.len());
    head.headers.remove(header::TRANSFER_ENCODING);
    head.headers.insert(header::CONTENT_LENGTH, length);
    let body = match fault {
        RequestFault::Half => cut_after(half),
        RequestFault::HalfInChunks => {
            head.headers.remove(header::CONTENT_LENGTH);
            cut_after(half)
        }
        RequestFault::HalfJson => {
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(half.len()));
            full(half)
        }
        RequestFault::None
        | RequestFault::Hold
        | RequestFault::Delay(_)
        | RequestFault::Status(..)
        | RequestFault::Refuse
        | RequestFault::Hang => full(whole),
    };
    Ok(Response::from_parts(head, body))
}

fn own_answer(code: u16, retry_after: Option<u32>) -> Result<Response<Body>> {
    let mut answer = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        answer = answer.header(header::RETRY_AFTER, seconds);
    }
    Ok(answer.body(full(status(code).into()))?)
}

/// The request as it goes on to the API server.
async fn whole(shared: &Shared, request: Request<Incoming>) -> Result<Request<Full<Bytes>>> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await.context("read the request")?.to_bytes();
    // Compressed events could not be told apart.
    head.headers.remove(header::ACCEPT_ENCODING);
    head.headers.remove(header::CONNECTION);
    head.headers.insert(header::HOST, HeaderValue::from_str(&shared.upstream.to_string())?);
    if let Some(from) = shared.from {
        head.headers.insert("x-forwarded-for", HeaderValue::from_str(&from.to_string())?);
    }
    Ok(Request::from_parts(head, Full::new(body)))
}

/// On a connection of its own, so that no fault of one request is another's.
async fn forward(shared: &Shared, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
    let tcp = TcpStream::connect(shared.upstream).await.context("connect to the API server")?;
    tcp.set_nodelay(true)?;
    let name = ServerName::IpAddress(shared.upstream.ip().into());
    let tls = shared.connector.connect(name, tcp).await.context("shake hands with the API server")?;
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
    // Ends with the answer; its error is the answer's, too.
    tokio::spawn(connection);
    Ok(send.send_request(request).await?)
}

/// Forwards a request once it is released, be it that nobody waits for its answer any more.
async fn late(shared: &Arc<Shared>, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
    let (to, answer) = oneshot::channel();
    let mut state = shared.state.subscribe();
    let releases = state.borrow_and_update().releases;
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if state.wait_for(|state| state.releases != releases).await.is_ok() {
            // Who asked may be gone.
            drop(to.send(forward(&shared, request).await));
        }
    });
    answer.await.context("the proxy ends")?
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// These bytes, then the end of the connection.
fn cut_after(bytes: Bytes) -> Body {
    let frames = [Ok(Frame::data(bytes)), Err(anyhow::anyhow!("a fault of the test"))];
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

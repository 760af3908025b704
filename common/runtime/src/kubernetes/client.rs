mod asking;
mod content;
mod deletion;
mod files;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::connection::Connection;
use super::error::{ClientError, RequestError, chain};
use super::fence::Fence;
use super::ledger::{ClientStatus, Ledger};
use super::servers::Servers;
use super::status::Status;
use super::term::Term;
use super::throttle::Throttle;
use asking::Asking;
pub use content::PatchType;
use content::{Content, JSON};
pub use deletion::Deletion;
use files::Checked;

/// A server that says nothing for so long, before its answer or within it, has failed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// An answer that is not whole by then has failed, however steadily it comes.
const WHOLE_ANSWER_PATIENCE: Duration = Duration::from_secs(120);
/// More than 500 objects of the size that etcd takes (1.5 MiB) do not have; in practice a page is a hundredth.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// How to reach the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// `None`: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// URLs of the cluster's API servers, tried in turn; empty: the kubeconfig's, or the one in the pod's environment.
    pub servers: Vec<String>,
    /// Requests a second, over everything.
    pub qps: u32,
    /// Requests that may be sent at once after a quiet while.
    pub burst: u32,
    /// A connection that is quiet for so long is probed by TCP; data that is not acknowledged for so long ends it. Zero:
    /// TCP's own limits, which are hours.
    pub heartbeat: Duration,
    pub user_agent: String,
}

/// A client of one cluster's API servers. Cheap to clone; clones share connections, rate limit and status.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// Asked before each request that is no GET.
    fence: Option<Fence>,
    /// Of which term its writes are.
    term: Option<Term>,
}

struct Inner {
    options: ClientOptions,
    connection: RwLock<Connection>,
    /// When files were last looked at.
    checked: Mutex<Checked>,
    servers: Servers,
    throttle: Throttle,
    ledger: Ledger,
    /// Counts how often a server answered after none had.
    returns: watch::Sender<u64>,
    /// Requests under way whose whole answer is waited for.
    asking: AtomicUsize,
}

/// The beginning of an answer.
pub(super) struct Answer {
    /// Which server gave it.
    pub(super) server: usize,
    pub(super) url: String,
    pub(super) response: Response<Body>,
}

impl Client {
    /// Reads configuration and credentials. Makes no request: an API server that is down is no error. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// A file or a URL that cannot be used; it is named.
    pub async fn new(options: ClientOptions) -> Result<Self, ClientError> {
        // Before a file is read: every problem of a URL is the configuration's.
        let given = Servers::new(&options.servers)?;
        let connection = Connection::load(&options).await?;
        let servers =
            if given.len() == 0 { Servers::new(std::slice::from_ref(&connection.server))? } else { given };
        Ok(Self::over(options, connection, servers))
    }

    pub(super) fn over(options: ClientOptions, connection: Connection, servers: Servers) -> Self {
        let throttle = Throttle::new(options.qps, options.burst);
        let inner = Inner {
            options,
            connection: RwLock::new(connection),
            checked: Mutex::new(Checked { any: Instant::now(), refused: None }),
            servers,
            throttle,
            ledger: Ledger::default(),
            returns: watch::Sender::new(0),
            asking: AtomicUsize::new(0),
        };
        Self { inner: Arc::new(inner), fence: None, term: None }
    }

    /// The same client, whose every request but GETs is refused unless `fence` lets it through, and given up after the
    /// fence's limit: the wait for the rate limit, for connections and for other servers is part of it.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// The same client, whose every write says that it is of `term` in what admission is told of it: creates and patches by
    /// their field manager, deletions by their grace period (see [`Deletion`]).
    #[must_use]
    pub fn in_term(&self, term: Term) -> Self {
        Self { term: Some(term), ..self.clone() }
    }

    /// The whole answer to a GET of `path` (with its query).
    ///
    /// # Errors
    /// No server answered, or the answer is an error.
    pub async fn get(&self, path: &str) -> Result<Bytes, RequestError> {
        self.fetch(Method::GET, path, JSON, Bytes::new()).await
    }

    /// The whole answer to any request. `body` is JSON, of a PATCH a JSON merge patch; it may be empty.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, RequestError> {
        self.fetch(method, path, JSON, body.into()).await
    }

    /// The whole answer to a patch of any type.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn patch(&self, path: &str, patch: PatchType, body: Vec<u8>) -> Result<Bytes, RequestError> {
        let content = Content { content_type: patch.content_type(), body: body.into(), is_paced: true };
        self.fetch_within_fence(Method::PATCH, path, JSON, content).await
    }

    /// The whole answer to a DELETE of `path`.
    ///
    /// # Errors
    /// As [`Client::get`]; 409 where a precondition does not hold.
    pub async fn delete(&self, path: &str, deletion: Deletion<'_>) -> Result<Bytes, RequestError> {
        let options = deletion.options(self.term);
        self.fetch(Method::DELETE, path, JSON, options.to_string().into_bytes().into()).await
    }

    pub fn status(&self) -> ClientStatus {
        let throttled_seconds = self.inner.throttle.waited().as_secs_f64();
        let server = self.inner.servers.current().1.to_owned();
        ClientStatus { server, throttled_seconds, ..self.inner.ledger.status() }
    }

    /// Whether the whole answer to a request is waited for; watches never end and do not count.
    pub fn is_asking(&self) -> bool {
        self.inner.asking.load(Ordering::Relaxed) > 0
    }

    async fn fetch(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Bytes, RequestError> {
        let content_type = if method == Method::PATCH { PatchType::Merge.content_type() } else { JSON };
        self.fetch_within_fence(method, path, accept, Content { content_type, body, is_paced: true }).await
    }

    /// A page of a list. The first one waits for the rate limit; the others, one after the other, are of the same question:
    /// 75,000 endpoints are 150 pages, which at ten a second would keep a node from its start for a quarter of a minute.
    pub(super) async fn page(
        &self,
        path: &str,
        accept: &'static str,
        is_first: bool,
    ) -> Result<Bytes, RequestError> {
        self.fetch_whole(Method::GET, path, accept, Content::none(is_first)).await
    }

    async fn fetch_within_fence(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        content: Content,
    ) -> Result<Bytes, RequestError> {
        if method == Method::GET {
            return self.fetch_whole(method, path, accept, content).await;
        }
        let path = match &self.term {
            Some(term) if method != Method::DELETE => {
                let sign = if path.contains('?') { '&' } else { '?' };
                Cow::Owned(format!("{path}{sign}fieldManager={term}"))
            }
            Some(_) | None => Cow::Borrowed(path),
        };
        let whole = self.fetch_whole(method, &path, accept, content);
        let result = match &self.fence {
            None => whole.await,
            Some(fence) => {
                let _under_way = fence.enter();
                let late = |_| RequestError::Timeout { url: self.shown(&path), after: fence.limit() };
                timeout(fence.limit(), whole).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
            }
        };
        result.map_err(|error| match &self.term {
            Some(term) => term.judge(error),
            None => error,
        })
    }

    async fn fetch_whole(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        content: Content,
    ) -> Result<Bytes, RequestError> {
        let _asking = Asking::new(&self.inner.asking);
        let answer = self.open_with(method, path, accept, content).await?;
        let (server, url) = (answer.server, answer.url);
        let whole = collect(answer.response.into_body(), &url).await;
        if let Err(error) = &whole {
            self.note_failure(server, error);
        }
        whole
    }

    /// Sends a GET and returns once the head of a good answer is there.
    pub(super) async fn open(&self, path: &str, accept: &'static str) -> Result<Answer, RequestError> {
        self.open_with(Method::GET, path, accept, Content::none(true)).await
    }

    /// A URL without the query, which differs from watch to watch and has the tokens of pages.
    fn shown(&self, path: &str) -> String {
        format!("{}{}", self.inner.servers.current().1, path.split('?').next().unwrap_or_default())
    }

    /// Sends a request and returns once the head of a good answer is there.
    async fn open_with(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        Content { content_type, body, is_paced }: Content,
    ) -> Result<Answer, RequestError> {
        self.look_at_files(false).await;
        let fence = self.fence.as_ref().filter(|_| method != Method::GET);
        let mut left = self.inner.servers.len();
        let mut may_renew = true;
        loop {
            match fence.filter(|_| is_paced) {
                Some(fence) => tokio::select! {
                    () = fence.ended() => {}
                    () = self.inner.throttle.take() => {}
                },
                None if is_paced => self.inner.throttle.take().await,
                None => {}
            }
            // Last of all: whatever was waited for has taken its time.
            if fence.is_some_and(|fence| !fence.pass()) {
                return Err(RequestError::Fenced { url: self.shown(path) });
            }
            let (server, base) = self.inner.servers.current();
            let url = Servers::url(base, path)?;
            let request = Request::builder().method(method.clone()).uri(&url).header(ACCEPT, accept);
            let request = if body.is_empty() { request } else { request.header(CONTENT_TYPE, content_type) };
            let request = request
                .body(Body::from(body.clone()))
                .map_err(|error| RequestError::Path { path: path.to_owned(), problem: error.to_string() })?;
            let url = format!("{base}{}", path.split('?').next().unwrap_or_default());
            let error = match self.attempt(request, url.clone()).await {
                Ok(response) => {
                    self.note_answer(server, response.status().as_u16());
                    return Ok(Answer { server, url, response });
                }
                Err(error) => error,
            };
            self.note_failure(server, &error);
            if error.code() == Some(401) && may_renew {
                may_renew = false;
                if self.look_at_files(true).await {
                    continue;
                }
            }
            left = left.saturating_sub(1);
            // A write may have happened though its answer was lost.
            let may_repeat = method == Method::GET || !matches!(error, RequestError::Timeout { .. });
            if !error.blames_server() || !may_repeat || left == 0 {
                return Err(error);
            }
        }
    }

    async fn attempt(&self, request: Request<Body>, url: String) -> Result<Response<Body>, RequestError> {
        let service = self.inner.connection.read().unwrap_or_else(PoisonError::into_inner).service.clone();
        self.inner.ledger.sent();
        let response = match timeout(ANSWER_PATIENCE, service.send(request)).await {
            Ok(Ok(response)) => response,
            // kube's own word for an error of the connection says nothing.
            Ok(Err(kube::Error::Service(error))) => {
                return Err(RequestError::Unreachable { url, problem: chain(&*error) });
            }
            Ok(Err(error)) => return Err(RequestError::Unreachable { url, problem: chain(&error) }),
            Err(_) => return Err(RequestError::Timeout { url, after: ANSWER_PATIENCE }),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        // A body that breaks off says no less than its status.
        let text = collect(body, &url).await.unwrap_or_default();
        let retry_after =
            head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Err(Status::read(&text).into_error(url, head.status, retry_after.map(Duration::from_secs)))
    }

    fn note_answer(&self, server: usize, code: u16) {
        let is_return = self.inner.ledger.answered(code);
        self.note_life(server, is_return);
    }

    /// A request failed, or a watch in its middle.
    pub(super) fn note_failure(&self, server: usize, error: &RequestError) {
        let is_return = self.inner.ledger.failed(error);
        if error.blames_server() {
            self.inner.throttle.set_failing(true);
            self.inner.servers.leave(server, error);
        } else if error.code().is_some() {
            self.note_life(server, is_return);
        }
    }

    /// A watch told something. Who waits for the server's return is not woken: a server that fails requests may go on with
    /// its watches.
    pub(super) fn note_event(&self) {
        self.inner.ledger.lived();
    }

    fn note_life(&self, server: usize, is_return: bool) {
        self.inner.servers.answered(server);
        self.inner.throttle.set_failing(false);
        if is_return {
            self.inner.returns.send_modify(|returns| *returns += 1);
        }
    }

    /// Changes when a server answers after none had: who waits need not wait longer.
    pub(super) fn returns(&self) -> watch::Receiver<u64> {
        self.inner.returns.subscribe()
    }

    /// Whether a request would keep nobody waiting.
    pub(super) fn has_spare_token(&self) -> bool {
        self.inner.throttle.has_spare()
    }

    pub(super) fn options(&self) -> &ClientOptions {
        &self.inner.options
    }
}

/// Reads a body to its end.
async fn collect(mut body: Body, url: &str) -> Result<Bytes, RequestError> {
    let broken = |problem: String| RequestError::Answer { url: url.to_owned(), problem };
    let began = Instant::now();
    let mut whole = BytesMut::new();
    while let Some(frame) = timeout(ANSWER_PATIENCE, body.frame())
        .await
        .map_err(|_| RequestError::Timeout { url: url.to_owned(), after: ANSWER_PATIENCE })?
    {
        let frame = frame.map_err(|error| broken(format!("broke off: {}", chain(&error))))?;
        if let Ok(data) = frame.into_data() {
            whole.extend_from_slice(&data);
        }
        if whole.len() > MAX_ANSWER_BYTES {
            return Err(broken(format!("is longer than {MAX_ANSWER_BYTES} bytes")));
        }
        if began.elapsed() > WHOLE_ANSWER_PATIENCE {
            return Err(RequestError::Timeout { url: url.to_owned(), after: WHOLE_ANSWER_PATIENCE });
        }
    }
    Ok(whole.freeze())
}

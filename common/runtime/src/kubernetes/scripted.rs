//! An API server whose every answer a test gives by hand, without sockets: time may be paused.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tower::BoxError;

use super::client::{Client, ClientOptions};
use super::connection::Connection;
use super::servers::Servers;

type Answer = Result<Response<axum::body::Body>, BoxError>;

pub(super) struct Server {
    asked: mpsc::UnboundedReceiver<Asked>,
}

/// A request that waits for its answer.
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) method: Method,
    pub(super) host: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) headers: http::HeaderMap,
    pub(super) body: Bytes,
    answer: oneshot::Sender<Answer>,
}

/// The answer to a watch, as it is written.
pub(super) struct Stream(mpsc::UnboundedSender<Result<Bytes, BoxError>>);

pub(super) fn options(servers: &[&str]) -> ClientOptions {
    ClientOptions {
        kubeconfig: None,
        servers: servers.iter().map(|url| (*url).to_owned()).collect(),
        qps: 10,
        burst: 20,
        heartbeat: Duration::from_secs(30),
        user_agent: "portway-test".to_owned(),
    }
}

/// A client of scripted servers at these URLs.
pub(super) fn scripted(servers: &[&str]) -> (Client, Server) {
    let (ask, asked) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let ask = ask.clone();
        async move {
            let (head, body) = request.into_parts();
            let (answer, answered) = oneshot::channel();
            let pairs =
                head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
            let asked = Asked {
                at: Instant::now(),
                method: head.method,
                host: head.uri.host().unwrap_or_default().to_owned(),
                path: head.uri.path().to_owned(),
                query: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
                headers: head.headers,
                body: body.collect().await?.to_bytes(),
                answer,
            };
            ask.send(asked).map_err(|_| "the test is over")?;
            answered.await?
        }
    });
    let options = options(servers);
    let servers = Servers::new(&options.servers).unwrap();
    let client = Client::over(options, Connection::of(kube::Client::new(service, "default")), servers);
    (client, Server { asked })
}

impl Server {
    /// The next request, within an hour of test time.
    pub(super) async fn next(&mut self) -> Asked {
        timeout(Duration::from_secs(3600), self.asked.recv()).await.expect("a request").expect("a client")
    }

    /// No request for a while.
    pub(super) async fn stays_quiet(&mut self, length: Duration) {
        if let Ok(asked) = timeout(length, self.asked.recv()).await {
            panic!("a request: {:?}", asked.map(|asked| (asked.method, asked.path, asked.query)));
        }
    }
}

impl Asked {
    pub(super) fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }

    /// The version that a watch begins at.
    pub(super) fn from(&self) -> &str {
        assert!(self.is_watch(), "not a watch: {:?}", self.query);
        &self.query["resourceVersion"]
    }

    pub(super) fn json(self, code: u16, body: &Value) {
        self.answer(code, &[], axum::body::Body::from(body.to_string()));
    }

    pub(super) fn status(self, code: u16, headers: &[(&str, &str)]) {
        let status =
            serde_json::json!({"kind": "Status", "code": code, "reason": "Scripted", "message": "so it is"});
        self.answer(code, headers, axum::body::Body::from(status.to_string()));
    }

    /// Answers as a server that is not there.
    pub(super) fn refuse(self) {
        self.send(Err("connection refused".into()));
    }

    /// The head of an answer; the rest is written by and by.
    pub(super) fn stream(self) -> Stream {
        let (write, written) = mpsc::unbounded_channel();
        let body = stream::unfold(written, |mut written| async { Some((written.recv().await?, written)) });
        self.answer(200, &[], axum::body::Body::from_stream(body));
        Stream(write)
    }

    fn answer(self, code: u16, headers: &[(&str, &str)], body: axum::body::Body) {
        let mut response = Response::builder().status(code);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        self.send(Ok(response.body(body).unwrap()));
    }

    fn send(self, answer: Answer) {
        // A client that does not wait any more is what some tests are about.
        drop(self.answer.send(answer));
    }
}

impl Stream {
    pub(super) fn write(&self, text: &str) {
        // As above.
        drop(self.0.send(Ok(Bytes::copy_from_slice(text.as_bytes()))));
    }

    pub(super) fn event(&self, kind: &str, object: &Value) {
        self.write(&format!("{}\n", serde_json::json!({"type": kind, "object": object})));
    }

    /// Breaks the connection.
    pub(super) fn cut(self) {
        drop(self.0.send(Err("connection reset by peer".into())));
    }

    /// Waits until the client has closed its end.
    pub(super) async fn closed(&self) {
        timeout(Duration::from_secs(3600), self.0.closed()).await.expect("the client closes its end");
    }
}

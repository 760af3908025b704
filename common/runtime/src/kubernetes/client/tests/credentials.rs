use std::fs;
use std::path::Path;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use futures_util::FutureExt as _;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::files::FILES_CHECK;
use super::*;
use crate::kubernetes::scripted::options;

/// The token that a server on loopback takes.
type Taken = Arc<Mutex<&'static str>>;

async fn server(taken: &Taken) -> String {
    async fn answer(State(taken): State<Taken>, headers: HeaderMap) -> (StatusCode, String) {
        let given = headers.get("authorization").map_or("none", |value| value.to_str().unwrap());
        let agent = headers["user-agent"].to_str().unwrap();
        let code = if given == format!("Bearer {}", taken.lock().unwrap()) { 200 } else { 401 };
        (StatusCode::from_u16(code).unwrap(), format!("{given} {agent}"))
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(Taken::clone(taken));
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    url
}

fn kubeconfig(dir: &TempDir, server: &str, user: &str) -> ClientOptions {
    let path = dir.path().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}],
          clusters: [{{name: k, cluster: {{server: '{server}'}}}}], users: [{{name: u, user: {{{user}}}}}]}}"
    );
    fs::write(&path, text).unwrap();
    ClientOptions { kubeconfig: Some(path), ..options(&[]) }
}

/// As a mounted volume does it: another file under the same name.
fn replace(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::rename(beside, path).unwrap();
}

async fn problem(options: ClientOptions) -> String {
    Client::new(options).await.map(|_| ()).unwrap_err().to_string()
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_read_again_at_once() {
    let (dir, taken) = (tempfile::tempdir().unwrap(), Taken::new("first".into()));
    let token = dir.path().join("token");
    // An editor ends the file with a newline, which is not of the token.
    fs::write(&token, "first\n").unwrap();
    let client = Client::new(kubeconfig(&dir, &server(&taken).await, "tokenFile: token")).await.unwrap();
    assert_eq!(client.get("/x").await.unwrap(), "Bearer first portway-test");
    replace(&token, "second");
    *taken.lock().unwrap() = "second";
    assert_eq!(client.get("/x").await.unwrap(), "Bearer second portway-test");
    assert_eq!((client.status().reloads, client.status().answers[&401]), (1, 1));
    // A server that refuses everything is not a reason to read files all the time.
    *taken.lock().unwrap() = "third";
    assert_eq!(client.get("/x").await.unwrap_err().code(), Some(401));
    assert_eq!(client.status().reloads, 1);
}

#[tokio::test]
async fn a_token_file_that_changed_is_read_before_the_server_minds() {
    let (dir, taken) = (tempfile::tempdir().unwrap(), Taken::new("first".into()));
    let token = dir.path().join("token");
    fs::write(&token, "first").unwrap();
    let client = Client::new(kubeconfig(&dir, &server(&taken).await, "tokenFile: token")).await.unwrap();
    client.get("/x").await.unwrap();
    replace(&token, "second");
    *taken.lock().unwrap() = "second";
    tokio::time::pause();
    tokio::time::advance(FILES_CHECK).await;
    tokio::time::resume();
    client.get("/x").await.unwrap();
    assert!(!client.status().answers.contains_key(&401));
}

#[tokio::test]
async fn a_request_that_is_not_polled_while_it_reads_files_holds_up_no_other() {
    let (dir, taken) = (tempfile::tempdir().unwrap(), Taken::new("same".into()));
    let token = dir.path().join("token");
    fs::write(&token, "same").unwrap();
    let client = Client::new(kubeconfig(&dir, &server(&taken).await, "tokenFile: token")).await.unwrap();
    replace(&token, "same");
    tokio::time::pause();
    tokio::time::advance(FILES_CHECK).await;
    tokio::time::resume();
    let mut first = Box::pin(client.get("/x"));
    assert!((&mut first).now_or_never().is_none());
    timeout(Duration::from_secs(5), client.get("/y")).await.expect("an answer").unwrap();
    first.await.unwrap();
    assert_eq!(client.status().reloads, 1);
}

#[tokio::test]
async fn a_kubeconfig_that_is_half_written_leaves_the_client_as_it_was() {
    let (dir, taken) = (tempfile::tempdir().unwrap(), Taken::new("t".into()));
    let options = kubeconfig(&dir, &server(&taken).await, "token: t");
    let path = options.kubeconfig.clone().unwrap();
    let client = Client::new(options).await.unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    let pass = async || {
        tokio::time::pause();
        tokio::time::advance(FILES_CHECK).await;
        tokio::time::resume();
        client.get("/x").await.unwrap();
    };
    replace(&path, &whole[..whole.len() / 2]);
    pass().await;
    let error = client.status().reload_error.unwrap();
    assert!(error.contains(&path.display().to_string()), "{error}");
    replace(&path, &whole);
    pass().await;
    assert_eq!((client.status().reload_error, client.status().reloads), (None, 1));
}

#[tokio::test]
async fn servers_that_are_given_stand_before_the_kubeconfigs() {
    let (dir, taken) = (tempfile::tempdir().unwrap(), Taken::new("t".into()));
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut options = kubeconfig(&dir, "https://not-this-one.invalid", "token: t");
    options.servers = vec![format!("http://{nobody}/"), format!("{}/prefix/", server(&taken).await)];
    let client = Client::new(options.clone()).await.unwrap();
    assert_eq!(client.get("/x").await.unwrap(), "Bearer t portway-test");
    assert!(client.status().server.ends_with("/prefix"));
    let error = client.status().last_error.unwrap();
    assert!(error.contains(&format!("http://{nobody}/x")) && error.contains("refused"), "{error}");

    // One that names none is enough then.
    let path = options.kubeconfig.clone().unwrap();
    let text = fs::read_to_string(&path).unwrap().replace("server: 'https://not-this-one.invalid'", "");
    replace(&path, &text);
    let client = Client::new(options).await.unwrap();
    assert_eq!(client.get("/x").await.unwrap(), "Bearer t portway-test");
}

#[tokio::test]
async fn a_server_that_is_down_is_no_error_of_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let client = Client::new(kubeconfig(&dir, "https://127.0.0.1:1", "token: t")).await.unwrap();
    let status = client.status();
    assert_eq!((status.requests, status.reachable), (0, None));
    let error = client.get("x").await.unwrap_err().to_string();
    assert_eq!(error, "\"x\" is not the path of a request: it does not begin with /");
}

#[tokio::test]
async fn what_cannot_be_used_is_named_with_its_file_and_field() {
    let dir = tempfile::tempdir().unwrap();
    let of = |server: &str, user: &str| kubeconfig(&dir, server, user);
    let path = dir.path().display().to_string();

    let error = problem(of("https://a", "tokenFile: none")).await;
    assert!(error.starts_with(&format!("token file {path}/none: No such file")), "{error}");
    let error = problem(of("https://a", "client-certificate: none, client-key: none")).await;
    assert!(error.contains("kubeconfig") && error.contains(&format!("{path}/none")), "{error}");
    let error = problem(of("a b", "token: t")).await;
    assert!(error.contains("/kubeconfig: failed to parse cluster url"), "{error}");
    let error = problem(of("https://a', proxy-url: 'http://p:3128", "token: t")).await;
    assert!(error.contains("proxy-url is set, which is not supported") && !error.contains("3128"), "{error}");
    fs::write(dir.path().join("kubeconfig"), "kind: [").unwrap();
    let given = ClientOptions { kubeconfig: Some(dir.path().join("kubeconfig")), ..options(&[]) };
    let error = problem(given.clone()).await;
    assert!(error.contains("/kubeconfig: failed to parse kubeconfig YAML"), "{error}");
    let error = problem(ClientOptions { servers: vec!["10.0.0.1:6443".to_owned()], ..given }).await;
    assert!(error.starts_with("API server \"10.0.0.1:6443\": it has no scheme"), "{error}");
    let error = problem(options(&[])).await;
    assert!(error.contains("this is not a pod") && error.contains("give a kubeconfig"), "{error}");
}

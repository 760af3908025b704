use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use tower::{BoxError, ServiceExt as _};

use super::client::ClientOptions;
use super::error::{ClientError, chain};

/// Where a pod finds its credentials: <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A TCP connection that is not up by then is given up.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// An idle connection may be dead without a word, so it is not kept for long.
const IDLE_PATIENCE: Duration = Duration::from_secs(15);

/// Connections to the servers, with the credentials as they were read.
pub(super) struct Connection {
    pub(super) service: kube::Client,
    /// The server that the configuration names.
    pub(super) server: String,
    /// The files that were read, and which version of each.
    files: Vec<File>,
}

/// Two versions of a file differ in it; `None`: it is not there.
type FileIdentity = Option<(u64, u64, i64, i64)>;

impl Connection {
    /// Reads the configuration and its files; no request is made.
    pub(super) async fn load(options: &ClientOptions) -> Result<Self, ClientError> {
        let (config, files, origin) = match &options.kubeconfig {
            Some(path) => from_kubeconfig(path, options).await?,
            None => in_cluster(options)?,
        };
        let server = config.cluster_url.to_string();
        Ok(Self { service: service(config, options, origin).await?, server, files })
    }

    /// A connection that a test answers.
    #[cfg(test)]
    pub(super) fn of(service: kube::Client) -> Self {
        Self { service, server: "http://test".to_owned(), files: Vec::new() }
    }

    /// Whether a file is not the one that was read.
    pub(super) fn is_outdated(&self) -> bool {
        self.files.iter().any(|(path, read)| identity(path) != *read)
    }

    /// Whether reading again may give other credentials than these.
    pub(super) fn is_from_files(&self) -> bool {
        !self.files.is_empty()
    }
}

type File = (PathBuf, FileIdentity);
type Loaded = (kube::Config, Vec<File>, String);

async fn from_kubeconfig(path: &Path, options: &ClientOptions) -> Result<Loaded, ClientError> {
    let bad = |source| ClientError::Kubeconfig { path: path.to_owned(), source };
    // Which version a file is of is asked before it is read: one that changes meanwhile is read again.
    let mut files = vec![file(path)];
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(bad)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        if cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty()) {
            return Err(ClientError::Proxy { path: path.to_owned() });
        }
        // A value here keeps kube from asking the environment for a proxy; it is dropped below.
        cluster.proxy_url = Some("http://none.invalid".to_owned());
        if let Some(first) = options.servers.first() {
            cluster.server = Some(first.clone());
        }
        files.extend(cluster.certificate_authority.iter().map(file));
    }
    for user in kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()) {
        files.extend(
            [&user.client_certificate, &user.client_key, &user.token_file].into_iter().flatten().map(file),
        );
    }
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(bad)?;
    config.proxy_url = None;
    Ok((config, files, format!("kubeconfig {}", path.display())))
}

fn in_cluster(options: &ClientOptions) -> Result<Loaded, ClientError> {
    let (authority, token) =
        (Path::new(SERVICE_ACCOUNT).join("ca.crt"), Path::new(SERVICE_ACCOUNT).join("token"));
    let files = vec![file(&authority), file(&token)];
    let config = match options.servers.first() {
        // kube asks the environment for the address, which is for pods that are told none.
        None => kube::Config::incluster().map_err(ClientError::NotInCluster)?,
        Some(url) => {
            let bad = |problem: String| ClientError::Server { url: url.clone(), problem };
            let parsed: http::Uri =
                url.parse().map_err(|error: http::uri::InvalidUri| bad(error.to_string()))?;
            let mut config = kube::Config::new(parsed);
            // A server of plain HTTP asks for no credentials.
            if config.cluster_url.scheme() != Some(&http::uri::Scheme::HTTP) || token.exists() {
                config.root_cert_file = Some(authority.clone());
                config.auth_info =
                    AuthInfo { token_file: Some(token.display().to_string()), ..AuthInfo::default() };
            }
            config
        }
    };
    Ok((config, files, format!("service account in {SERVICE_ACCOUNT}")))
}

/// The HTTP client with credentials and TLS.
async fn service(
    mut config: kube::Config,
    options: &ClientOptions,
    origin: String,
) -> Result<kube::Client, ClientError> {
    // kube reads a token file each minute and keeps its last newline, which no header may have. It is read here
    // instead, and again when it changes or the server refuses it.
    if let (None, Some(path)) = (&config.auth_info.token, config.auth_info.token_file.take()) {
        let path = PathBuf::from(path);
        let token = fs::read_to_string(&path).map_err(|source| ClientError::TokenFile { path, source })?;
        config.auth_info.token = Some(token.trim().to_owned().into());
    }
    let is_plain = |url: &str| url.starts_with("http://");
    let is_all_plain =
        is_plain(&config.cluster_url.to_string()) && options.servers.iter().all(|url| is_plain(url));
    if is_all_plain && config.root_cert.is_none() {
        // No certificate will be looked at; without this the system's must be there.
        config.root_cert = Some(Vec::new());
        config.root_cert_file = None;
    }
    let agent = options
        .user_agent
        .parse()
        .map_err(|_| ClientError::UserAgent { value: options.user_agent.clone() })?;
    config.headers.push((http::header::USER_AGENT, agent));
    let heartbeat = options.heartbeat;
    // A plug-in for credentials is a process that runs for seconds.
    let built = tokio::task::spawn_blocking(move || build(&config, heartbeat)).await;
    let bad = |problem| ClientError::Credentials { origin, problem };
    match built {
        Ok(Ok(service)) => Ok(service),
        Ok(Err(error)) => Err(bad(chain(&error))),
        Err(error) => Err(bad(error.to_string())),
    }
}

fn build(config: &kube::Config, heartbeat: Duration) -> kube::Result<kube::Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_PATIENCE));
    // The kernel asks after each quiet `heartbeat`, thrice, and gives up data that nobody acknowledges as long.
    let heartbeat = Some(heartbeat).filter(|heartbeat| !heartbeat.is_zero());
    tcp.set_keepalive(heartbeat);
    tcp.set_keepalive_interval(heartbeat.map(|heartbeat| (heartbeat / 3).max(Duration::from_secs(1))));
    tcp.set_keepalive_retries(heartbeat.map(|_| 3));
    tcp.set_tcp_user_timeout(heartbeat);
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let client: HyperClient<_, Body> = HyperClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_PATIENCE)
        .build(tls);
    let builder = ClientBuilder::new(client.map_err(BoxError::from), config.default_namespace.clone())
        .with_layer(&config.extra_headers_layer()?);
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).build(),
        None => builder.build(),
    })
}

fn file(path: impl AsRef<Path>) -> File {
    (path.as_ref().to_owned(), identity(path.as_ref()))
}

/// A mounted file is a link whose target is replaced: device and inode tell that, too.
fn identity(path: &Path) -> FileIdentity {
    fs::metadata(path).ok().map(|found| (found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

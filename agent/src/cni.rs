//! What container runtimes ask for pods, by the plugin `portway-cni` on the socket beside `socket-path`.
//!
//! The socket is there before an earlier agent's endpoints are restored, so that a plugin which reaches nobody can rely on its
//! note being read; requests are taken after that. Each is answered on a thread of its own; requests for one attachment are
//! answered one after the other.

pub(crate) mod conf;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portway_cni::failure::{Failure, code};
use portway_cni::protocol::{self, Request, Response, SOCKET};
use portway_cni::result::Attached;
use portway_model::node::ClusterView;
use portway_runtime::admin;
use portway_runtime::readiness::Guard;
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::config::{Chaining, Config, PodNetwork};
use crate::endpoints::{Endpoints, NodeKernel, Restored, Settings};
use crate::node::netns_cookie;

/// How long the plugin may take to say what it wants, and to take the answer.
const CONVERSATION: Duration = Duration::from_secs(5);
/// How often it is looked whether the CNI configuration can be written, and once it is, whether it still is.
const LOOK: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// The endpoints of this node, restored, and the socket on which runtimes ask for more.
pub(crate) struct Pods {
    endpoints: Endpoints,
    listener: UnixListener,
    socket: PathBuf,
    /// Where the CNI configuration goes, and the state directory that remembers it.
    conf: Option<(PathBuf, PathBuf)>,
}

/// The plugin's socket.
pub(crate) fn socket(config: &Config) -> PathBuf {
    config.socket_path.with_file_name(SOCKET)
}

impl Pods {
    /// Listens, and takes over what an earlier agent left. No program is attached yet.
    ///
    /// # Errors
    /// The socket is somebody else's, the state directory cannot be used, or the kernel refuses.
    pub(crate) async fn start(
        config: &Config,
        network: &PodNetwork,
        kernel: NodeKernel,
    ) -> anyhow::Result<Self> {
        let socket = socket(config);
        let listener = admin::listen_on_socket(&socket).await?;
        let settings = Settings::new(config, network, netns_cookie()?);
        let endpoints = Endpoints::open(&config.state_dir, settings, Box::new(kernel))?;
        let (restoring, notes) = (endpoints.clone(), portway_cni::deletions::directory(&socket));
        let restored = tokio::task::spawn_blocking(move || restoring.restore(&notes)).await?;
        let restored = restored.context("restoring the endpoints of an earlier agent")?;
        if restored != Restored::default() {
            tracing::info!(
                endpoints = restored.endpoints,
                ended = restored.ended.join(", "),
                swept = restored.swept.join(", "),
                "endpoints of an earlier agent"
            );
        }
        let conf = network.cni_conf.clone().map(|conf| (conf, config.state_dir.clone()));
        let is_chained = network.chaining == Chaining::GenericVeth;
        if let Some((path, _)) = conf.as_ref().filter(|_| is_chained) {
            // A list of this plugin alone would take the place of the one that makes the interfaces.
            tracing::warn!(
                path = %path.display(),
                "write-cni-conf-when-ready has no effect with cni-chaining-mode=generic-veth: put {{\"type\": \
                 \"portway-cni\"}} behind the plugin that makes interfaces, in that plugin's conflist"
            );
        }
        let conf = conf.filter(|_| !is_chained);
        Ok(Self { endpoints, listener, socket, conf })
    }

    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Answers requests and follows the cluster, until an error that no retry mends. `starting` ends once pods are served.
    ///
    /// # Errors
    /// As said.
    pub(crate) async fn run(
        self,
        cluster: watch::Receiver<Arc<ClusterView>>,
        serves: watch::Receiver<bool>,
        starting: Guard,
    ) -> anyhow::Result<()> {
        let Self { endpoints, listener, socket, conf } = self;
        let watching = async { endpoints.watch_links().await.context("watching the pods' links") };
        let writing = write_conf(&endpoints, conf, &socket);
        tokio::try_join!(
            answer_all(&endpoints, &listener),
            follow(&endpoints, cluster),
            serve(&endpoints, serves, starting),
            watching,
            writing,
        )?;
        Ok(())
    }
}

async fn answer_all(endpoints: &Endpoints, listener: &UnixListener) -> anyhow::Result<()> {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: the plugin asks again.
                tracing::warn!(%error, "cannot take a request of the CNI plugin");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let endpoints = endpoints.clone();
        tokio::task::spawn_blocking(move || {
            // One that does not speak or has gone is the runtime's matter; what it asked for can be asked again.
            if let Err(error) = stream.into_std().and_then(|stream| answer(&endpoints, stream)) {
                tracing::debug!(%error, "a request of the CNI plugin came to nothing");
            }
        });
    }
}

fn answer(endpoints: &Endpoints, mut stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CONVERSATION))?;
    stream.set_write_timeout(Some(CONVERSATION))?;
    let (request, netns) = protocol::receive::<Request>(&mut stream)?;
    let response = match handle(endpoints, &request, netns.as_ref()) {
        Ok(Some(attached)) => Response::Attached(attached),
        Ok(None) => Response::Done,
        Err(failure) => {
            tracing::warn!(?request, %failure, "a request of the CNI plugin failed");
            Response::Failed(failure)
        }
    };
    protocol::send(&mut stream, &response, None)
}

fn handle(
    endpoints: &Endpoints,
    request: &Request,
    netns: Option<&OwnedFd>,
) -> Result<Option<Attached>, Failure> {
    let netns = || {
        netns.ok_or_else(|| {
            let msg = "the request came without a descriptor of the pod's network namespace";
            Failure::new(code::DECODING, msg, "install the plugin of the agent's version")
        })
    };
    match request {
        Request::Add(attachment) => endpoints.add(attachment, netns()?).map(Some),
        Request::Del { id } => endpoints.delete(id).map(|()| None),
        Request::Check(attachment) => endpoints.check(attachment, netns()?).map(|()| None),
        Request::Status => endpoints.status().map(|()| None),
        Request::Gc { network, valid } => endpoints.collect(network, valid).map(|()| None),
    }
}

async fn follow(endpoints: &Endpoints, mut cluster: watch::Receiver<Arc<ClusterView>>) -> anyhow::Result<()> {
    loop {
        let view = Arc::clone(&cluster.borrow_and_update());
        endpoints.follow(view);
        if cluster.changed().await.is_err() {
            // The owner ended, and with it the agent.
            return std::future::pending().await;
        }
    }
}

async fn serve(
    endpoints: &Endpoints,
    mut serves: watch::Receiver<bool>,
    starting: Guard,
) -> anyhow::Result<()> {
    if serves.wait_for(|serves| *serves).await.is_ok() {
        let endpoints = endpoints.clone();
        tokio::task::spawn_blocking(move || endpoints.serve()).await?;
        drop(starting);
    }
    std::future::pending().await
}

/// A runtime takes the file as the word that pods can start, so it comes when they can. It stays when they cannot for a
/// while: STATUS says that.
async fn write_conf(
    endpoints: &Endpoints,
    conf: Option<(PathBuf, PathBuf)>,
    socket: &Path,
) -> anyhow::Result<()> {
    let Some((path, state_dir)) = conf else { return std::future::pending().await };
    let [unwritten, written] = LOOK;
    let mut failed = false;
    loop {
        if !endpoints.is_ready() {
            tokio::time::sleep(unwritten).await;
            continue;
        }
        match conf::write(&path, socket, &state_dir) {
            Ok(conf::Written::Made) => {
                tracing::info!(path = %path.display(), "the CNI configuration is written")
            }
            Ok(conf::Written::Unchanged) => {}
            Err(error) if failed => tracing::debug!(%error, "the CNI configuration cannot be written"),
            Err(error) => {
                tracing::warn!(%error, "the CNI configuration cannot be written; it is tried again");
                failed = true;
            }
        }
        tokio::time::sleep(written).await;
    }
}

//! The health endpoint: who answers it has come all the way that packets to pods come.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use portway_datapath::{Addr, Family};
use portway_model::node::ClusterView;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::namespace::Namespace;
use super::record::{Board, Problem};
use super::targets::{Probed, endpoint_addresses};
use super::{hello, listen};

/// Between two attempts to make one.
const RETRY: Duration = Duration::from_secs(5);

/// Asks whoever gives pods their links for one of the health endpoint, in place of the one before.
#[derive(Debug)]
pub struct LinkRequest {
    pub netns: OwnedFd,
    /// One of each family that is in use.
    pub addresses: Vec<Addr>,
    /// The error is for people.
    pub answer: oneshot::Sender<Result<(), String>>,
}

/// Why there is no health endpoint.
#[derive(Debug, thiserror::Error)]
enum EndpointError {
    #[error("cannot make its network namespace: {0}")]
    Namespace(#[source] io::Error),
    #[error("cannot listen in its network namespace: {0}")]
    Listen(#[source] io::Error),
    #[error("{0}")]
    Link(String),
    #[error("the pod network has ended")]
    Ended,
}

/// What is there; goes with this value.
struct Endpoint {
    addresses: Vec<Addr>,
    _namespace: Namespace,
    _answering: JoinSet<()>,
}

/// Keeps the endpoint at the addresses that this node has for it.
pub(super) async fn keep(
    port: u16,
    probed: Probed,
    mut cluster: watch::Receiver<Arc<ClusterView>>,
    links: mpsc::Sender<LinkRequest>,
    board: Board,
) {
    let mut endpoint: Option<Endpoint> = None;
    loop {
        let wanted = wanted(&cluster.borrow_and_update(), probed);
        let is_there = endpoint.as_ref().map_or(wanted.is_empty(), |endpoint| endpoint.addresses == wanted);
        if is_there {
            if cluster.changed().await.is_err() {
                return;
            }
            continue;
        }
        // The old one first: a pod's addresses are given once.
        drop(endpoint.take());
        if wanted.is_empty() {
            board.set_problem(Problem::Endpoint, None);
            continue;
        }
        match make(port, wanted, &links).await {
            Ok(made) => {
                tracing::info!(addresses = ?made.addresses, "the health endpoint answers");
                board.set_problem(Problem::Endpoint, None);
                endpoint = Some(made);
            }
            Err(error) => {
                let problem = format!("this node has no health endpoint: {error}; it is tried again");
                board.set_problem(Problem::Endpoint, Some(problem));
                sleep(RETRY).await;
            }
        }
    }
}

/// Nothing until the node is known and has addresses for pods.
fn wanted(view: &ClusterView, probed: Probed) -> Vec<Addr> {
    view.this.iter().flat_map(|node| endpoint_addresses(node, probed)).collect()
}

async fn make(
    port: u16,
    addresses: Vec<Addr>,
    links: &mpsc::Sender<LinkRequest>,
) -> Result<Endpoint, EndpointError> {
    let namespace = Namespace::new().map_err(EndpointError::Namespace)?;
    let mut answering = JoinSet::new();
    for wildcard in listen::wildcards(port) {
        let family = if wildcard.is_ipv4() { Family::V4 } else { Family::V6 };
        if addresses.iter().any(|addr| addr.family() == family) {
            let listener = namespace.listen(wildcard).and_then(TcpListener::from_std);
            answering.spawn(hello::answer(listener.map_err(EndpointError::Listen)?));
        }
    }
    let netns = namespace.as_fd().try_clone_to_owned().map_err(EndpointError::Namespace)?;
    let (answer, answered) = oneshot::channel();
    let request = LinkRequest { netns, addresses: addresses.clone(), answer };
    links.send(request).await.map_err(|_| EndpointError::Ended)?;
    answered.await.map_err(|_| EndpointError::Ended)?.map_err(EndpointError::Link)?;
    Ok(Endpoint { addresses, _namespace: namespace, _answering: answering })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{IpAddr, SocketAddr};

    use nix::sched::{CloneFlags, setns};
    use portway_model::node::{ClusterNode, Prefix};
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    const ALL: Probed = Probed { ipv4: true, ipv6: true, endpoint: true };

    fn cluster(cidrs: &[&str]) -> Arc<ClusterView> {
        let this = ClusterNode {
            name: "me".into(),
            created: None,
            addresses: Box::default(),
            pod_cidrs: cidrs.iter().map(|text| Prefix::parse(text).unwrap()).collect(),
            health: Box::default(),
        };
        Arc::new(ClusterView { this: Some(Arc::new(this)), ..ClusterView::default() })
    }

    async fn next(links: &mut mpsc::Receiver<LinkRequest>) -> (Vec<IpAddr>, LinkRequest) {
        let request = timeout(LIMIT, links.recv()).await.unwrap().unwrap();
        (request.addresses.iter().copied().map(IpAddr::from).collect(), request)
    }

    /// Whether something listens on the port inside, by trying to take it.
    fn is_taken(netns: &OwnedFd, address: SocketAddr) -> bool {
        let netns = File::from(netns.try_clone().unwrap());
        std::thread::spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
            listen::listen(address).is_err()
        })
        .join()
        .unwrap()
    }

    #[tokio::test]
    async fn it_follows_the_addresses_of_its_node_and_is_tried_again() {
        let board = Board::default();
        let (view, told) = watch::channel(Arc::new(ClusterView::default()));
        let (asking, mut asked) = mpsc::channel(1);
        let keeping = tokio::spawn(keep(4240, ALL, told, asking, board.clone()));
        let [v4, v6] = listen::wildcards(4240);

        view.send_replace(cluster(&["10.0.1.0/24"]));
        let (addresses, request) = next(&mut asked).await;
        assert_eq!(addresses, ["10.0.1.1".parse::<IpAddr>().unwrap()]);
        assert!(is_taken(&request.netns, v4) && !is_taken(&request.netns, v6));
        request.answer.send(Err("no link today".to_owned())).unwrap();
        let warned = async {
            while board.show(std::time::Instant::now()).warnings.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, warned).await.unwrap();

        // Of what it wants meanwhile.
        view.send_replace(cluster(&["10.0.2.0/24", "fd00:2::/64"]));
        let (addresses, request) = next(&mut asked).await;
        assert_eq!(addresses, ["10.0.2.1", "fd00:2::1"].map(|text| text.parse::<IpAddr>().unwrap()));
        assert!(is_taken(&request.netns, v4) && is_taken(&request.netns, v6));
        let netns = request.netns;
        request.answer.send(Ok(())).unwrap();
        let calm = async {
            while !board.show(std::time::Instant::now()).warnings.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, calm).await.unwrap();

        // The node is given other addresses: the old endpoint's listeners are gone before the new one is asked for.
        view.send_replace(cluster(&["10.0.3.0/24"]));
        let (_, request) = next(&mut asked).await;
        assert!(!is_taken(&netns, v4) && is_taken(&request.netns, v4));
        keeping.abort();
    }
}

//! The health endpoint: who answers it has come all the way that packets to pods come.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portway_datapath::{Addr, Family};
use portway_model::node::ClusterView;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::namespace::Namespace;
use super::record::{Board, Problem, State};
use super::targets::{Probed, endpoint_addresses};
use super::{hello, listen};

/// Between two attempts to make one.
const RETRY: Duration = Duration::from_secs(5);
/// Between two looks at what is waited for, and at whether the endpoint answers this node itself.
const LOOK: Duration = Duration::from_secs(1);
/// One that does not answer this node itself for so long is made anew, and then after twice the time.
const SILENCE: Duration = Duration::from_secs(30);
/// The node may have another trouble: no more often than that.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// Gives a namespace its link with these addresses, one of each family, in place of the health endpoint's one before.
/// Blocks.
pub type Connect = Arc<dyn Fn(&OwnedFd, &[Addr]) -> Result<(), ConnectError> + Send + Sync>;

/// Why the health endpoint has no link.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing to be told.
    #[error("the pod network is starting")]
    NotYet,
    /// In words.
    #[error("{0}")]
    Refused(String),
}

/// Why there is no health endpoint.
#[derive(Debug, thiserror::Error)]
enum EndpointError {
    #[error("cannot make its network namespace: {0}")]
    Namespace(#[source] io::Error),
    #[error("cannot listen in its network namespace: {0}")]
    Listen(#[source] io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// What is there; goes with this value.
struct Endpoint {
    addresses: Vec<Addr>,
    made: Instant,
    _namespace: Namespace,
    _answering: JoinSet<()>,
}

/// Keeps the endpoint at the addresses that this node has for it.
pub(super) async fn keep(
    port: u16,
    probed: Probed,
    mut cluster: watch::Receiver<Arc<ClusterView>>,
    connect: Connect,
    board: Board,
) {
    let mut endpoint: Option<Endpoint> = None;
    let mut silence = SILENCE;
    loop {
        let wanted = wanted(&cluster.borrow_and_update(), probed);
        let is_there = endpoint.as_ref().map_or(wanted.is_empty(), |endpoint| endpoint.addresses == wanted);
        let is_silent = endpoint.as_ref().is_some_and(|endpoint| endpoint.made.elapsed() > silence)
            && board.own_endpoint() == State::Unreachable;
        if is_there && !is_silent {
            tokio::select! {
                changed = cluster.changed() => if changed.is_err() { return },
                () = sleep(LOOK), if endpoint.is_some() => {}
            }
            continue;
        }
        silence = if is_silent { (silence * 2).min(LONGEST_SILENCE) } else { SILENCE };
        // The old one first: a pod's addresses are given once.
        drop(endpoint.take());
        if wanted.is_empty() {
            board.set_problem(Problem::Endpoint, None);
            continue;
        }
        match make(port, wanted, Arc::clone(&connect)).await {
            Ok(made) => {
                tracing::info!(addresses = ?made.addresses, "the health endpoint answers");
                board.set_problem(Problem::Endpoint, None);
                endpoint = Some(made);
            }
            Err(EndpointError::Connect(ConnectError::NotYet)) => sleep(LOOK).await,
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

async fn make(port: u16, addresses: Vec<Addr>, connect: Connect) -> Result<Endpoint, EndpointError> {
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
    let wanted = addresses.clone();
    tokio::task::spawn_blocking(move || connect(&netns, &wanted)).await??;
    Ok(Endpoint { addresses, made: Instant::now(), _namespace: namespace, _answering: answering })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{IpAddr, SocketAddr};
    use std::sync::{Mutex, mpsc};

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
            other_addresses: Box::default(),
            pod_cidrs: cidrs.iter().map(|text| Prefix::parse(text).unwrap()).collect(),
            health: Box::default(),
        };
        Arc::new(ClusterView { this: Some(Arc::new(this)), ..ClusterView::default() })
    }

    struct Asked {
        netns: OwnedFd,
        addresses: Vec<IpAddr>,
        answer: mpsc::Sender<Result<(), ConnectError>>,
    }

    /// Whoever is asked for links, as a channel.
    fn asked() -> (Connect, mpsc::Receiver<Asked>) {
        let (asking, asked) = mpsc::channel();
        let asking = Mutex::new(asking);
        let connect = move |netns: &OwnedFd, addresses: &[Addr]| {
            let (answer, answered) = mpsc::channel();
            let addresses = addresses.iter().copied().map(IpAddr::from).collect();
            let netns = netns.try_clone().unwrap();
            asking.lock().unwrap().send(Asked { netns, addresses, answer }).unwrap();
            answered.recv_timeout(LIMIT).unwrap()
        };
        (Arc::new(connect), asked)
    }

    async fn next(links: &mut mpsc::Receiver<Asked>) -> Asked {
        let asked = async {
            loop {
                match links.try_recv() {
                    Ok(asked) => break asked,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        timeout(LIMIT, asked).await.unwrap()
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

    async fn until_warned(board: &Board, is_warned: bool) {
        let told = async {
            while board.show(Instant::now()).warnings.is_empty() == is_warned {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, told).await.unwrap();
    }

    #[tokio::test]
    async fn it_follows_the_addresses_of_its_node_and_is_tried_again() {
        let board = Board::default();
        let (view, told) = watch::channel(Arc::new(ClusterView::default()));
        let (connect, mut asked) = asked();
        let keeping = tokio::spawn(keep(4240, ALL, told, connect, board.clone()));
        let [v4, v6] = listen::wildcards(4240);

        view.send_replace(cluster(&["10.0.1.0/24"]));
        let first = next(&mut asked).await;
        assert_eq!(first.addresses, ["10.0.1.1".parse::<IpAddr>().unwrap()]);
        assert!(is_taken(&first.netns, v4) && !is_taken(&first.netns, v6));
        first.answer.send(Err(ConnectError::NotYet)).unwrap();
        let second = next(&mut asked).await;
        assert!(board.show(Instant::now()).warnings.is_empty());
        second.answer.send(Err(ConnectError::Refused("no link today".to_owned()))).unwrap();
        until_warned(&board, true).await;

        // Of what it wants meanwhile.
        view.send_replace(cluster(&["10.0.2.0/24", "fd00:2::/64"]));
        let third = next(&mut asked).await;
        assert_eq!(third.addresses, ["10.0.2.1", "fd00:2::1"].map(|text| text.parse::<IpAddr>().unwrap()));
        assert!(is_taken(&third.netns, v4) && is_taken(&third.netns, v6));
        third.answer.send(Ok(())).unwrap();
        until_warned(&board, false).await;

        // The node is given other addresses: the old endpoint's listeners are gone before the new one is asked for.
        view.send_replace(cluster(&["10.0.3.0/24"]));
        let fourth = next(&mut asked).await;
        assert!(!is_taken(&third.netns, v4) && is_taken(&fourth.netns, v4));
        fourth.answer.send(Ok(())).unwrap();
        keeping.abort();
    }
}

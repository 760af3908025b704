mod annotations;
mod ends;
mod fake;
mod health;
mod restart;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use portway_cni::deletions;
use portway_cni::protocol::{Attachment, PodName};
use portway_cni::result::{Attached, Interface, Ip};
use portway_model::node::{ClusterNode, ClusterPod, Prefix};
use tempfile::TempDir;

use super::*;
use fake::{FakeKernel, STEPS};

const NODE_NETNS: u64 = 1;

/// A node with its state directory, over the agents that run on it one after the other.
struct Node {
    dir: TempDir,
    kernel: FakeKernel,
    view: ClusterView,
    settings: Settings,
}

impl Node {
    fn new(prefixes: &[&str]) -> Self {
        let this = ClusterNode {
            name: "node-1".into(),
            created: None,
            addresses: [].into(),
            other_addresses: Box::default(),
            pod_cidrs: prefixes.iter().map(|text| Prefix::parse(text).unwrap()).collect(),
            health: [].into(),
        };
        let kernel = FakeKernel::default();
        kernel.with(|state| state.cookie = 7);
        let settings = Settings {
            node_name: "node-1".to_owned(),
            is_chained: false,
            ipv4: true,
            ipv6: true,
            prefix_source: "spec.podCIDRs of the Node",
            pods_are_watched: true,
            node_netns: NODE_NETNS,
            patience: Duration::from_millis(100),
        };
        let view = ClusterView { this: Some(this.into()), ..ClusterView::default() };
        Self { dir: tempfile::tempdir().unwrap(), kernel, view, settings }
    }

    fn with_pod(mut self, uid: &str, socket_lb: Option<&str>) -> Self {
        self.view = with_pod(&self.view, uid, socket_lb);
        self
    }

    fn notes(&self) -> PathBuf {
        self.dir.path().join("notes")
    }

    /// An agent that has restored and not begun to serve.
    fn start(&self) -> (Endpoints, Restored) {
        let kernel = Box::new(self.kernel.clone());
        let endpoints = Endpoints::open(self.dir.path(), self.settings.clone(), kernel).unwrap();
        let restored = endpoints.restore(&self.notes()).unwrap();
        identify(&endpoints);
        endpoints.follow(Arc::new(self.view.clone()));
        (endpoints, restored)
    }

    fn serving(&self) -> Endpoints {
        let (endpoints, _) = self.start();
        endpoints.serve();
        endpoints
    }
}

/// Says of every pod who it is, as the thread of identities does.
fn identify(endpoints: &Endpoints) {
    let (endpoints, mut changes) = (endpoints.clone(), endpoints.changes());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let identity = EndpointIdentity { id: 1000, labels: vec!["k8s:app=a".to_owned()] };
        loop {
            for endpoint in endpoints.list().into_iter().filter(|endpoint| endpoint.identity.is_none()) {
                if endpoints.set_identity(&endpoint, &identity, "it has come").is_ok_and(|is_set| is_set) {
                    endpoints.set_announced(&endpoint);
                }
            }
            runtime.block_on(changes.changed()).unwrap();
        }
    });
}

/// Endpoint 7 of a pod that runs, over a kernel in memory, for tests of who says who the pods are.
pub(crate) fn of_one_pod(pod: PodName, identity: Option<EndpointIdentity>) -> (TempDir, Endpoints) {
    let Node { dir, kernel, settings, .. } = Node::new(&["10.0.0.0/24"]);
    let endpoints = Endpoints::open(dir.path(), settings, Box::new(kernel)).unwrap();
    let mac = Mac::default();
    let endpoint = Endpoint {
        id: 7,
        attachment: id("c7"),
        network: "portway".to_owned(),
        pod,
        netns: "/run/netns/c7".to_owned(),
        netns_cookie: 7,
        link: Link {
            name: "lxc7".to_owned(),
            ifindex: 70,
            node_mac: mac,
            pod_mac: mac,
            mtu: 1500,
            is_chained: false,
        },
        addresses: vec!["10.0.0.7".parse().unwrap()],
        socket_lb: true,
        identity,
        created: 1000,
        state: State::Ready,
        log: std::collections::VecDeque::new(),
    };
    endpoints.known().by_id.insert(7, endpoint);
    (dir, endpoints)
}

/// The runtime has ended the pod.
pub(crate) fn end_the_one_pod(endpoints: &Endpoints) {
    endpoints.known().by_id.clear();
}

/// Whether its pod's start waits for nobody else to be told.
pub(crate) fn is_announced(endpoints: &Endpoints) -> bool {
    endpoints.known().announced.contains(&7)
}

fn with_pod(view: &ClusterView, uid: &str, socket_lb: Option<&str>) -> ClusterView {
    let annotations = socket_lb.iter().map(|value| (SOCKET_LB_ANNOTATION.into(), (*value).into())).collect();
    let pod = ClusterPod { uid: uid.into(), namespace: "default".into(), name: uid.into(), annotations };
    let mut view = view.clone();
    view.pods.insert(uid.into(), pod.into());
    view
}

fn id(container: &str) -> AttachmentId {
    AttachmentId { container: container.to_owned(), interface: "eth0".to_owned() }
}

fn request(container: &str) -> Attachment {
    Attachment {
        id: id(container),
        network: "portway".to_owned(),
        netns: "/run/netns/a".to_owned(),
        pod: PodName::default(),
        previous: None,
    }
}

fn of_pod(container: &str, uid: &str) -> Attachment {
    let pod = PodName { namespace: "default".to_owned(), name: uid.to_owned(), uid: uid.to_owned() };
    Attachment { pod, ..request(container) }
}

fn netns() -> OwnedFd {
    tempfile::tempfile().unwrap().into()
}

fn addresses(attached: &Attached) -> Vec<IpAddr> {
    attached.ips.iter().filter_map(Ip::ip).collect()
}

fn used(endpoints: &Endpoints) -> usize {
    endpoints.pools().iter().map(|pool| pool.used).sum()
}

#[test]
fn a_pod_comes_with_an_address_of_each_family_and_goes_without_a_trace() {
    let node = Node::new(&["10.0.0.0/24", "fd00::/64"]);
    let endpoints = node.serving();
    let attached = endpoints.add(&request("a"), &netns()).unwrap();
    assert_eq!(addresses(&attached), ["10.0.0.2", "fd00::2"].map(|addr| addr.parse::<IpAddr>().unwrap()));
    assert_eq!((attached.ips[0].address.as_str(), attached.routes[1].dst.as_str()), ("10.0.0.2/32", "::/0"));
    assert_eq!(attached.interfaces[1].sandbox, "/run/netns/a");
    assert_eq!(node.kernel.traces(), (1, 2, 0, 1));
    let endpoint = endpoints.list().remove(0);
    let states: Vec<_> = endpoint.log.iter().map(|change| change.state).collect();
    // It may be known who the pod is before its link is there.
    let rest = states.iter().filter(|state| **state != State::WaitingForIdentity).collect::<Vec<_>>();
    assert_eq!(rest, [&State::Creating, &State::Regenerating, &State::Ready], "{states:?}");
    assert_eq!(
        node.kernel.with(|state| state.identities.values().map(|id| id.get()).collect::<Vec<_>>()),
        [1000]
    );
    endpoints.check(&request("a"), &netns()).unwrap();

    endpoints.delete(&id("a")).unwrap();
    endpoints.delete(&id("a")).unwrap();
    assert_eq!(node.kernel.traces(), (0, 0, 0, 0));
    assert_eq!((used(&endpoints), endpoints.list().len()), (0, 0));
    assert_eq!(endpoints.check(&request("a"), &netns()).unwrap_err().code, code::UNKNOWN_CONTAINER);
}

#[test]
fn what_fails_at_any_step_leaves_nothing_and_may_be_repeated() {
    for step in STEPS {
        let node = Node::new(&["10.0.0.0/24", "fd00::/64"]).with_pod("u", Some("false"));
        let endpoints = node.serving();
        node.kernel.with(|state| state.refuses = Some(step));
        let failure = endpoints.add(&of_pod("a", "u"), &netns()).unwrap_err();
        assert_eq!(failure.code, code::KERNEL, "{step}: {failure}");
        assert!(failure.msg.contains(step), "{failure}");
        node.kernel.with(|state| state.refuses = None);
        // Where the step is a part of removing too, the next request does that.
        let left = endpoints.list().len();
        assert!(left == 0 || step == "set_netns", "{step} left {left}");
        endpoints.add(&of_pod("a", "u"), &netns()).unwrap();
        assert_eq!(node.kernel.traces(), (1, 2, 1, 1), "{step}");
        assert_eq!(used(&endpoints), 2, "{step}");
        endpoints.delete(&id("a")).unwrap();
        assert_eq!((node.kernel.traces(), used(&endpoints)), ((0, 0, 0, 0), 0), "{step}");
    }
}

#[test]
fn a_removal_that_fails_is_gone_on_with() {
    for step in ["delete_endpoint", "detach", "delete_link"] {
        let node = Node::new(&["10.0.0.0/24"]);
        let endpoints = node.serving();
        endpoints.add(&request("a"), &netns()).unwrap();
        node.kernel.with(|state| state.refuses = Some(step));
        assert!(endpoints.delete(&id("a")).is_err(), "{step}");
        // Its address is not given away while any of it is left.
        assert_eq!((used(&endpoints), endpoints.list()[0].state), (1, State::Disconnecting), "{step}");
        node.kernel.with(|state| state.refuses = None);
        endpoints.delete(&id("a")).unwrap();
        assert_eq!((node.kernel.traces(), used(&endpoints)), ((0, 0, 0, 0), 0), "{step}");
    }
}

#[test]
fn a_second_add_of_one_attachment_begins_anew() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    let first = endpoints.add(&request("a"), &netns()).unwrap();
    let second = endpoints.add(&request("a"), &netns()).unwrap();
    assert_ne!(addresses(&first), addresses(&second));
    assert_eq!((node.kernel.traces(), used(&endpoints)), ((1, 1, 0, 1), 1));
}

#[test]
fn a_pod_without_a_prefix_or_an_address_is_told_why() {
    let mut node = Node::new(&[]);
    let endpoints = node.serving();
    let failure = endpoints.add(&request("a"), &netns()).unwrap_err();
    assert!(failure.msg.contains("spec.podCIDRs of the Node node-1"), "{failure}");
    assert_eq!((failure.code, endpoints.is_ready()), (code::TRY_AGAIN, false));

    // IPv4 is given back where IPv6 has none left.
    node.view = Node::new(&["10.0.0.0/24", "fd00::/126"]).view;
    endpoints.follow(Arc::new(node.view.clone()));
    for container in ["a", "b"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    let failure = endpoints.add(&request("c"), &netns()).unwrap_err();
    assert_eq!(failure.code, code::NO_ADDRESS);
    assert!(failure.msg.contains("fd00::/126 has 2") && failure.details.contains("maxPods"), "{failure}");
    assert_eq!((used(&endpoints), endpoints.list().len()), (4, 2));
}

#[test]
fn a_family_without_a_prefix_is_left_out() {
    let node = Node::new(&["fd00::/64"]);
    let endpoints = node.serving();
    let attached = endpoints.add(&request("a"), &netns()).unwrap();
    assert_eq!(addresses(&attached), ["fd00::2".parse::<IpAddr>().unwrap()]);
}

#[test]
fn a_node_with_prefixes_of_a_family_that_is_off_alone_is_not_ready() {
    for (prefix, ipv4) in [("10.0.0.0/24", false), ("fd00::/64", true)] {
        let mut node = Node::new(&[prefix]);
        (node.settings.ipv4, node.settings.ipv6) = (ipv4, !ipv4);
        let endpoints = node.serving();
        let failure = endpoints.status().unwrap_err();
        assert_eq!((failure.code, endpoints.is_ready()), (code::NOT_AVAILABLE, false), "{prefix}");
        assert!(failure.msg.contains("none of a family that is enabled"), "{failure}");
    }
}

#[test]
fn the_nodes_own_namespace_is_no_pods() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    node.kernel.with(|state| state.cookie = NODE_NETNS);
    assert_eq!(endpoints.add(&request("a"), &netns()).unwrap_err().code, code::INVALID_ENVIRONMENT);
    assert_eq!((node.kernel.traces(), used(&endpoints)), ((0, 0, 0, 0), 0));
}

#[test]
fn a_pod_that_opts_out_has_done_so_before_it_starts_also_where_its_object_comes_late() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    let adding = {
        let endpoints = endpoints.clone();
        std::thread::spawn(move || endpoints.add(&of_pod("a", "u"), &netns()))
    };
    let waits = |endpoint: &Endpoint| endpoint.state == State::WaitingForIdentity;
    let began = Instant::now();
    while !endpoints.list().iter().any(waits) {
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "it does not wait for its Pod: {:?}",
            endpoints.list()
        );
        std::thread::yield_now();
    }
    let view = with_pod(&node.view, "u", Some("false"));
    endpoints.follow(Arc::new(view));
    adding.join().unwrap().unwrap();
    assert_eq!(node.kernel.with(|state| state.netns.get(&7).copied()), Some(NetnsOptions::new(false)));

    // And in again, and out.
    endpoints.follow(Arc::new(with_pod(&node.view, "u", None)));
    assert_eq!(node.kernel.traces().2, 0);
    endpoints.follow(Arc::new(with_pod(&node.view, "u", Some("false"))));
    assert_eq!((node.kernel.traces().2, endpoints.netns_table().len()), (1, 1));
    // A pod that is gone from the API says nothing of it.
    endpoints.follow(Arc::new(node.view.clone()));
    assert_eq!(node.kernel.traces().2, 1);
    endpoints.delete(&id("a")).unwrap();
    assert_eq!(node.kernel.traces().2, 0);
}

#[test]
fn a_pod_of_the_same_name_and_another_uid_is_another_pod() {
    let node = Node::new(&["10.0.0.0/24"]).with_pod("old", Some("false"));
    let endpoints = node.serving();
    let view = with_pod(&node.view, "new", None);
    endpoints.follow(Arc::new(view));
    let mut request = of_pod("a", "new");
    request.pod.name = "old".to_owned();
    endpoints.add(&request, &netns()).unwrap();
    assert!(endpoints.list()[0].socket_lb);
}

#[test]
fn an_endpoint_goes_with_its_interface() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    for container in ["a", "b"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    assert_eq!(endpoints.remove_gone().unwrap(), 0);
    node.kernel.with(|state| state.links.remove(&record::link_name(&id("a"))));
    assert_eq!(endpoints.remove_gone().unwrap(), 1);
    assert_eq!((node.kernel.traces(), used(&endpoints)), ((1, 1, 0, 1), 1));
}

#[test]
fn a_link_that_the_kernel_leaves_out_of_its_list_is_not_gone() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    endpoints.add(&request("a"), &netns()).unwrap();
    node.kernel.with(|state| state.skipped.insert(record::link_name(&id("a"))));
    assert_eq!((endpoints.remove_gone().unwrap(), node.kernel.traces()), (0, (1, 1, 0, 1)));
    let (_, restored) = node.start();
    assert_eq!((restored.endpoints, node.kernel.traces()), (1, (1, 1, 0, 1)));
}

#[test]
fn what_somebody_else_took_away_of_an_endpoint_comes_back() {
    let node = Node::new(&["10.0.0.0/24", "fd00::/64"]);
    let endpoints = node.serving();
    for container in ["a", "b"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    assert_eq!(endpoints.put_right().unwrap(), 0);
    let whole = node.kernel.with(|state| state.clone());
    node.kernel.with(|state| {
        state.attached.pop_first();
        state.endpoints.pop_last();
    });
    assert!(endpoints.put_right().unwrap() > 0);
    assert_eq!(node.kernel.with(|state| state.clone()), whole);
    // What cannot be put right is tried again.
    node.kernel.with(|state| {
        state.attached.clear();
        state.refuses = Some("attach");
    });
    assert_eq!(endpoints.put_right().unwrap(), 2);
    node.kernel.with(|state| state.refuses = None);
    assert_eq!((endpoints.put_right().unwrap(), endpoints.put_right().unwrap()), (2, 0));
}

#[test]
fn links_settle_while_nobody_asks_for_anything() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    for container in ["a", "b"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    assert_eq!(endpoints.settle(), 0, "a moment ago somebody asked");
    let long_ago = Instant::now().checked_sub(Duration::from_secs(60));
    endpoints.known().asked = long_ago;
    node.kernel.with(|state| state.refuses = Some("settle"));
    assert_eq!(endpoints.settle(), 0);
    node.kernel.with(|state| state.refuses = None);
    assert_eq!((endpoints.settle(), endpoints.settle()), (2, 0));
    endpoints.add(&request("c"), &netns()).unwrap();
    assert_eq!(endpoints.settle(), 0);
    endpoints.known().asked = long_ago;
    assert_eq!(endpoints.settle(), 1);
}

#[test]
fn gc_removes_what_is_not_valid_of_its_own_network_alone() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    for container in ["a", "b"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    let other = Attachment { network: "other".to_owned(), ..request("c") };
    endpoints.add(&other, &netns()).unwrap();
    endpoints.collect("portway", &[id("b")]).unwrap();
    let left: Vec<_> = endpoints.list().into_iter().map(|endpoint| endpoint.attachment.container).collect();
    assert_eq!(left, ["b", "c"]);
}

#[test]
fn gc_goes_on_past_an_attachment_that_is_worked_at_and_says_so() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    for container in ["a", "b"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    let claim = endpoints.try_claim(&id("a"));
    let failure = endpoints.collect("portway", &[]).unwrap_err();
    assert_eq!((failure.code, endpoints.list().len()), (code::TRY_AGAIN, 1), "{failure}");
    assert!(failure.msg.ends_with("work at them: a"), "{failure}");
    drop(claim);
    endpoints.collect("portway", &[]).unwrap();
    assert_eq!((endpoints.list().len(), node.kernel.traces()), (0, (0, 0, 0, 0)));
}

#[test]
fn a_chained_pod_keeps_the_addresses_and_the_link_of_the_plugin_before() {
    let mut node = Node::new(&[]);
    node.settings.is_chained = true;
    let endpoints = node.serving();
    assert_eq!(endpoints.add(&request("a"), &netns()).unwrap_err().code, code::INVALID_CONFIG);
    let ip = Ip { address: "192.0.2.7/24".to_owned(), gateway: None, interface: Some(0) };
    let of_another = Ip { address: "192.0.2.8/24".to_owned(), gateway: None, interface: Some(1) };
    let interfaces = ["eth0", "net1"].map(|name| Interface {
        name: name.to_owned(),
        sandbox: "/run/netns/a".to_owned(),
        ..Interface::default()
    });
    let previous =
        Attached { interfaces: interfaces.into(), ips: vec![ip, of_another], ..Attached::default() };
    let chained = Attachment { previous: Some(previous.clone()), ..request("a") };
    assert_eq!(endpoints.add(&chained, &netns()).unwrap(), previous);
    assert_eq!(node.kernel.traces(), (0, 1, 0, 1));
    assert!(node.kernel.with(|state| state.attached.contains("veth1") && state.configured.is_empty()));
    endpoints.delete(&id("a")).unwrap();
    assert_eq!(node.kernel.traces(), (0, 0, 0, 0));
}

#[test]
fn many_pods_at_once_have_an_address_each_and_one_attachment_is_made_by_one_at_a_time() {
    let mut node = Node::new(&["10.0.0.0/24"]);
    // Two of them wait for one another, however slow the machine is.
    node.settings.patience = Duration::from_secs(30);
    let endpoints = node.serving();
    std::thread::scope(|scope| {
        for number in 0..110 {
            let endpoints = &endpoints;
            scope.spawn(move || endpoints.add(&request(&format!("c{}", number % 55)), &netns()).unwrap());
        }
    });
    assert_eq!((node.kernel.traces(), used(&endpoints)), ((55, 55, 0, 55), 55));
    let ids: BTreeSet<_> = endpoints.list().into_iter().map(|endpoint| endpoint.id).collect();
    assert_eq!(ids.len(), 55);
}

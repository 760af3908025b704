//! What a service of ten thousand endpoints costs while all of them go, in bytes. Alone in its process: it counts
//! every allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use portway_datapath::layout::Sizes;
use portway_model::k8s::ObjectKind::{EndpointSlice, Service};
use portway_model::k8s::{Manifests, ObjectKind, Watched};
use portway_model::loadbalancer::{Config, LoadBalancer};
use portway_model::plan::{Options, Planner};
use portway_model::tables::{TableOp, TableWriter};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator and counts sizes beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller's promise is the one that the system's asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maps that keep nothing: the kernel's are not this process's memory.
struct Kernel;

impl TableWriter for Kernel {
    type Error = Infallible;

    fn write(&mut self, _: &TableOp) -> Result<(), Infallible> {
        Ok(())
    }
}

struct Node {
    manifests: Manifests,
    balancer: LoadBalancer,
    planner: Planner,
}

impl Node {
    /// Takes one event to the maps; how much memory that needed for a while.
    fn take(&mut self, kind: ObjectKind, event: Watched<'_>) -> usize {
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        let change = self.manifests.watched(kind, event);
        change.events.into_iter().for_each(|event| self.balancer.apply(event));
        let mut dirty = self.balancer.take_dirty();
        while !self.planner.reconcile(&self.balancer, &mut dirty, &mut Kernel).is_settled() {
            self.reclaim();
        }
        self.reclaim();
        PEAK.load(Relaxed) - before
    }

    fn reclaim(&mut self) {
        while let Some(retired) = self.planner.take_retired() {
            self.planner.reclaim(retired);
        }
    }
}

const SLICES: usize = 100;
const ENDPOINTS: usize = 100;

fn slice(n: usize) -> String {
    let endpoints: Vec<_> = (0..ENDPOINTS)
        .map(|m| {
            format!(
                r#"{{"addresses": ["10.{}.{}.{}"], "nodeName": "node-{}", "targetRef": {{"kind": "Pod",
                    "name": "web-{n}-{m}", "uid": "3e1d6ab2-90c4-4d57-8f6b-0a1b2c3d4e5f"}},
                    "conditions": {{"ready": true, "serving": true, "terminating": false}}}}"#,
                1 + n / 100,
                n % 100,
                1 + m,
                m % 50
            )
        })
        .collect();
    format!(
        r#"{{"metadata": {{"namespace": "ns", "name": "web-{n}", "resourceVersion": "{}",
            "labels": {{"kubernetes.io/service-name": "web"}}}}, "addressType": "IPv4",
            "ports": [{{"port": 8080}}], "endpoints": [{}]}}"#,
        n + 2,
        endpoints.join(", ")
    )
}

#[test]
fn pain_80_ten_thousand_endpoints_that_go_one_slice_at_a_time_need_the_memory_of_one_change() {
    let sizes = Sizes { runs: 1 << 16, ..Sizes::DEFAULT };
    let mut node = Node {
        manifests: Manifests::new(),
        balancer: LoadBalancer::new(Config::new("node-a")),
        planner: Planner::new(Options { sizes, maglev: None }),
    };
    let service = r#"{"metadata": {"namespace": "ns", "name": "web", "resourceVersion": "1"},
        "spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]}}"#;
    node.take(Service, Watched::Applied(service));
    let slices: Vec<String> = (0..SLICES).map(slice).collect();
    let text: usize = slices.iter().map(String::len).sum();
    let empty = LIVE.load(Relaxed);
    for slice in &slices {
        node.take(EndpointSlice, Watched::Applied(slice));
    }
    assert_eq!(node.planner.usage().backends as usize, SLICES * ENDPOINTS);
    let held = LIVE.load(Relaxed) - empty;
    let peaks: Vec<usize> =
        slices.iter().map(|slice| node.take(EndpointSlice, Watched::Deleted(slice))).collect();
    let left = LIVE.load(Relaxed).saturating_sub(empty);
    let most = *peaks.iter().max().unwrap();
    println!("text {text}, held {held}, at most {most} more for a change, {left} left");
    assert_eq!(node.planner.usage().backends, 0);
    // The text is not kept: an endpoint and its backend are about 80 bytes.
    assert!(held < SLICES * ENDPOINTS * 120, "{held} bytes are held");
    // A change builds the service's version anew, once: nothing is queued, and nothing adds up.
    assert!(most < 2 * held, "{most} bytes for one change of {held}");
    assert!(peaks[SLICES - 1] < most / 10, "the last changes need {} bytes", peaks[SLICES - 1]);
    // The numbers of free slots stay.
    assert!(left < SLICES * ENDPOINTS * 16, "{left} bytes are left");
}

//! Manifests in; what is refused and what the maps hold out. One text file a case, in `tests/golden`.
//!
//! A case is a comment and sections: `>>> node` (settings), `>>> apply PATH` (a file's new text), `>>> remove PATH`,
//! and `>>> expect`, which `UPDATE_GOLDEN=1 cargo test -p portway-model --test golden` rewrites. The way is the
//! agent's own: `Manifests`, `LoadBalancer`, `Planner`, tables, rows.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use portway_datapath::layout::Sizes;
use portway_model::k8s::{Change, Manifests};
use portway_model::loadbalancer::{Config, Desired as _, Dirty, LoadBalancer};
use portway_model::plan::{Options, Planner};
use portway_model::tables::{MemoryTables, rows};

const OPTIONS: Options = Options { sizes: Sizes::DEFAULT, maglev: None };

/// A node that follows a directory.
struct Node {
    manifests: Manifests,
    load_balancer: LoadBalancer,
    planner: Planner,
    tables: MemoryTables,
}

impl Node {
    fn new(settings: &str) -> Self {
        let mut config = Config::new("node-a");
        for setting in settings.lines().filter(|line| !line.trim().is_empty()) {
            let (key, value) =
                setting.split_once('=').unwrap_or_else(|| panic!("{setting:?} is no key=value"));
            let on =
                || value.parse::<bool>().unwrap_or_else(|_| panic!("{setting:?} is neither true nor false"));
            match key {
                "name" => config.node_name = value.into(),
                "enable-ipv4" => config.enable_ipv4 = on(),
                "enable-ipv6" => config.enable_ipv6 = on(),
                "k8s-service-proxy-name" => config.service_proxy_name = value.to_owned(),
                "enable-svc-source-range-check" => config.source_range_check = on(),
                "bpf-lb-source-range-all-types" => config.source_range_all_types = on(),
                "enable-external-ips" => config.external_ips = on(),
                "enable-host-port" => config.host_port = on(),
                "enable-session-affinity" => config.session_affinity = on(),
                "enable-service-topology" => config.topology = on(),
                "enable-k8s-terminating-endpoint" => config.terminating_endpoint = on(),
                _ => panic!("{setting:?}: no such setting"),
            }
        }
        Self {
            manifests: Manifests::new(),
            load_balancer: LoadBalancer::new(config),
            planner: Planner::new(OPTIONS),
            tables: MemoryTables::new(Sizes::DEFAULT),
        }
    }

    fn follow(&mut self, change: Change) {
        for event in change.events {
            self.load_balancer.apply(event);
        }
        let dirty = self.load_balancer.take_dirty();
        program(&mut self.planner, &self.load_balancer, dirty, &mut self.tables);
    }

    fn report(&self) -> String {
        let mut report = String::new();
        for problem in self.manifests.problems() {
            writeln!(report, "problem  {}", serde_json::to_string(&problem).unwrap()).unwrap();
        }
        for reject in self.manifests.rejects().chain(self.load_balancer.rejects()) {
            writeln!(report, "reject   {}", serde_json::to_string(&reject).unwrap()).unwrap();
        }
        for conflict in self.load_balancer.conflicts() {
            writeln!(report, "conflict {}", serde_json::to_string(&conflict).unwrap()).unwrap();
        }
        for row in rows(&self.tables.dump()) {
            writeln!(report, "row      {}", serde_json::to_string(&row).unwrap()).unwrap();
        }
        report
    }

    /// Following changes must end where starting with all of them ends.
    fn assert_same_as_from_scratch(&self, case: &Path) {
        let mut tables = MemoryTables::new(Sizes::DEFAULT);
        let everything = self.load_balancer.everything();
        program(&mut Planner::new(OPTIONS), &self.load_balancer, everything, &mut tables);
        assert_eq!(rows(&self.tables.dump()), rows(&tables.dump()), "{}", case.display());
    }
}

fn program(planner: &mut Planner, wanted: &LoadBalancer, mut dirty: Dirty, tables: &mut MemoryTables) {
    for _ in 0..8 {
        let outcome = planner.reconcile(wanted, &mut dirty, tables);
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        if let Some(retired) = planner.take_retired() {
            planner.reclaim(retired);
        }
        if outcome.is_settled() {
            return;
        }
    }
    panic!("the planner does not settle");
}

/// Plays a case; its text with what was found in place of what was expected.
fn play(case: &Path, text: &str) -> String {
    let mut node = Node::new("");
    let mut played = String::new();
    let mut sections = text.split("\n>>> ");
    played.push_str(sections.next().unwrap());
    for section in sections {
        let (head, body) = section.split_once('\n').unwrap_or((section, ""));
        let (verb, path) = head.split_once(' ').unwrap_or((head, ""));
        match verb {
            "node" => node = Node::new(body),
            "apply" => {
                let change = node.manifests.apply(Path::new(path), format!("{body}\n").as_bytes());
                node.follow(change);
            }
            "remove" => {
                let change = node.manifests.remove(Path::new(path));
                node.follow(change);
            }
            "expect" => {
                node.assert_same_as_from_scratch(case);
                write!(played, "\n>>> expect\n{}", node.report().trim_end()).unwrap();
                continue;
            }
            _ => panic!("{}: {verb:?} is no section", case.display()),
        }
        write!(played, "\n>>> {}", section.trim_end()).unwrap();
    }
    played.trim_end().to_owned() + "\n"
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut cases: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    cases.sort();
    cases
}

#[test]
fn every_case_ends_as_its_file_says() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let cases = cases();
    assert!(cases.len() >= 25, "{} cases", cases.len());
    let mut differing = Vec::new();
    for case in cases {
        let expected = std::fs::read_to_string(&case).unwrap();
        assert!(expected.contains("\n>>> expect"), "{} expects nothing", case.display());
        let found = play(&case, &expected);
        if found == expected {
            continue;
        }
        if update {
            std::fs::write(&case, found).unwrap();
        } else {
            differing.push(format!("{}\n{}", case.display(), difference(&expected, &found)));
        }
    }
    assert!(differing.is_empty(), "UPDATE_GOLDEN=1 accepts:\n{}", differing.join("\n"));
}

fn difference(expected: &str, found: &str) -> String {
    let only = |sign, these: &str, those: &str| {
        let those: Vec<_> = those.lines().collect();
        these.lines().filter(|l| !those.contains(l)).fold(String::new(), |all, l| all + sign + l + "\n")
    };
    only("- ", expected, found) + &only("+ ", found, expected)
}

/// `kubectl get svc,endpointslices,pods,nodes -A -o yaml` of a real cluster, unedited. It has one slice of host names,
/// which is refused by its name, and nothing else is.
#[test]
fn what_kubectl_prints_of_a_real_cluster_is_taken_whole() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/real-input/cluster.yaml");
    let mut node = Node::new("");
    let change = node.manifests.apply(&path, &std::fs::read(&path).unwrap());
    assert_eq!(change.problem, None);
    node.follow(change);
    let rejects: Vec<_> = node.manifests.rejects().chain(node.load_balancer.rejects()).collect();
    let [fqdn] = rejects.as_slice() else { panic!("{rejects:#?}") };
    assert_eq!((fqdn.field.as_str(), fqdn.value.as_str()), ("addressType", "FQDN"));
    assert_eq!(node.load_balancer.conflicts().count(), 0);
    let rows = rows(&node.tables.dump());
    let of = |kind| rows.iter().filter(|row| row.kind == kind).count();
    for kind in ["ClusterIP", "NodePort", "LoadBalancer", "ExternalIPs"] {
        assert!(of(kind) > 0, "no {kind} in {} rows", rows.len());
    }
    assert!(rows.iter().any(|row| row.service == "kube-system/kube-dns" && row.protocol == "UDP"));
}

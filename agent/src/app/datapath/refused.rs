//! What could not be programmed, by object: the status, the metrics and Events name it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use nix::errno::Errno;
use portway_datapath::Protocol;
use portway_datapath::layout;
use portway_model::loadbalancer::{Desired, Owner, ServicePortKey};
use portway_model::plan::{Failure, Problem, Subject};

use crate::api::Reject;
use crate::maps::MapError;

/// Services and frontends whose last good version stays because a write failed, as of the last reconcile.
#[derive(Clone, Debug, Default)]
pub(in crate::app) struct Refused {
    by_subject: BTreeMap<Subject, (Reject, Cause)>,
}

/// Where and why a write failed: what metrics are labelled by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::app) struct Cause {
    pub(in crate::app) map: &'static str,
    /// `full`, the name of an errno, or `other`.
    pub(in crate::app) reason: String,
}

impl Refused {
    pub(super) fn new<D: Desired>(failures: &[Failure<MapError>], desired: &D) -> Self {
        let by_subject = failures
            .iter()
            .map(|failure| (failure.subject.clone(), (reject(failure, desired), cause(&failure.problem))))
            .collect();
        Self { by_subject }
    }

    /// In the order of services, then frontends.
    pub(in crate::app) fn rejects(&self) -> impl Iterator<Item = &Reject> {
        self.by_subject.values().map(|(reject, _)| reject)
    }

    pub(in crate::app) fn by_cause(&self) -> BTreeMap<&Cause, u64> {
        let mut counts = BTreeMap::new();
        for (_, cause) in self.by_subject.values() {
            *counts.entry(cause).or_default() += 1;
        }
        counts
    }

    /// Those that `earlier` has not, or has for another reason.
    pub(super) fn news(&self, earlier: &Self) -> BTreeSet<&Reject> {
        let is_new = |(subject, (reject, _)): &(&Subject, &(Reject, Cause))| {
            earlier.by_subject.get(*subject).map(|(reject, _)| reject) != Some(reject)
        };
        self.by_subject.iter().filter(is_new).map(|(_, (reject, _))| reject).collect()
    }
}

/// The object to mend, and what of it is not programmed.
fn reject<D: Desired>(failure: &Failure<MapError>, desired: &D) -> Reject {
    let Failure { subject, problem } = failure;
    let owner = match subject {
        Subject::Service(key) => Some(key.clone()),
        Subject::Frontend(key) => desired.frontend(key).map(|frontend| frontend.service),
        Subject::Leftover(_) => None,
    };
    let (kind, name) = owner.as_ref().map_or(("", ""), |key: &ServicePortKey| match &key.owner {
        Owner::Service(name) => ("Service", &**name),
        Owner::Pod { name, .. } => ("Pod", &**name),
    });
    let (field, value) = match subject {
        Subject::Service(key) => ("port", format!("{} {}", &*key.port_name, key.protocol)),
        Subject::Frontend(key) => {
            let protocol = Protocol::from_number(key.protocol).map_or("", Protocol::name);
            let at = SocketAddr::new(key.addr.into(), key.port.get());
            ("frontend", format!("{at}/{protocol}"))
        }
        Subject::Leftover(_) => ("", subject.to_string()),
    };
    Reject {
        kind: kind.to_owned(),
        name: name.to_owned(),
        field: field.to_owned(),
        value: value.trim().to_owned(),
        reason: format!("not programmed, its last good version stays: {problem}"),
    }
}

fn cause(problem: &Problem<MapError>) -> Cause {
    let (map, reason) = match problem {
        Problem::Write { map, error } => (*map, reason(error)),
        Problem::Full(shortage) => (shortage.map(), "full".to_owned()),
        Problem::Name(_) => (layout::SERVICE_NAMES, "other".to_owned()),
        Problem::NoService(_) => (layout::FRONTENDS, "other".to_owned()),
    };
    Cause { map, reason }
}

fn reason(error: &MapError) -> String {
    match error {
        MapError::Full { .. } => "full".to_owned(),
        MapError::Element { source, .. } | MapError::Map { source, .. } => source
            .raw_os_error()
            .map_or_else(|| "other".to_owned(), |number| format!("{:?}", Errno::from_raw(number))),
        MapError::NotBpfFs { .. }
        | MapError::NoMaps { .. }
        | MapError::NoPodMaps { .. }
        | MapError::Pin { .. }
        | MapError::Create { .. }
        | MapError::Layout(_)
        | MapError::Inconsistent(_)
        | MapError::OutOfRange { .. }
        | MapError::Exists { .. }
        | MapError::NoSuchKey { .. }
        | MapError::NoStoreProgram { .. }
        | MapError::StoreProgram { .. } => "other".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use portway_datapath::{Addr, FrontendKey, Port};
    use portway_model::loadbalancer::{Config, LoadBalancer};

    use super::*;
    use crate::maps::MapId;

    fn failed(number: i32) -> Failure<MapError> {
        let source = io::Error::from_raw_os_error(number);
        let error = MapError::Element {
            map: MapId::Frontends.into(),
            action: "insert",
            key: "10.96.0.1:80/TCP".to_owned(),
            source,
        };
        let key = FrontendKey::new(Addr::v4([10, 96, 0, 1]), Port::new(80), Protocol::TCP);
        Failure { subject: Subject::Frontend(key), problem: Problem::Write { map: layout::FRONTENDS, error } }
    }

    #[test]
    fn what_failed_and_the_errno_are_named_and_told_once() {
        let balancer = LoadBalancer::new(Config::new("node-1"));
        let busy = Refused::new(&[failed(libc::EBUSY)], &balancer);
        let [reject] = busy.rejects().collect::<Vec<_>>()[..] else { panic!("{busy:?}") };
        assert_eq!((&*reject.field, &*reject.value), ("frontend", "10.96.0.1:80/TCP"));
        let cause = Cause { map: layout::FRONTENDS, reason: "EBUSY".to_owned() };
        assert_eq!(busy.by_cause(), [(&cause, 1)].into());
        assert_eq!(busy.news(&Refused::default()).len(), 1);
        assert_eq!(busy.news(&busy.clone()).len(), 0);
        let memory = Refused::new(&[failed(libc::ENOMEM)], &balancer);
        assert_eq!(memory.news(&busy).len(), 1);
    }
}

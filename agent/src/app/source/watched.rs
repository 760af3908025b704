//! The API server's objects as the watches tell them.

use std::time::{Duration, Instant};

use portway_model::k8s::{Change, Manifests, ObjectKind, Watched};
use portway_runtime::kubernetes::WatchEvent;
use serde_json::value::RawValue;

use crate::config::Config;

/// The kinds that may be watched.
pub(in crate::app) const KINDS: [ObjectKind; 9] = [
    ObjectKind::Service,
    ObjectKind::EndpointSlice,
    ObjectKind::Pod,
    ObjectKind::Namespace,
    ObjectKind::Node,
    ObjectKind::CiliumNode,
    ObjectKind::CiliumIdentity,
    ObjectKind::CiliumEndpoint,
    ObjectKind::CiliumEndpointSlice,
];

/// The kinds that are watched: those of identities where there is a pod network. Slices take the place of the
/// endpoints that they gather.
pub(in crate::app) fn watched_kinds(config: &Config) -> impl Iterator<Item = ObjectKind> {
    let identities = config.pod_network.as_ref().map(|network| &network.identities);
    let slices = identities.is_some_and(|identities| identities.endpoint_slices);
    let is_watched = move |kind: &ObjectKind| match kind {
        ObjectKind::Service | ObjectKind::EndpointSlice | ObjectKind::Pod | ObjectKind::Node => true,
        ObjectKind::Namespace | ObjectKind::CiliumNode | ObjectKind::CiliumIdentity => identities.is_some(),
        ObjectKind::CiliumEndpoint => identities.is_some() && !slices,
        ObjectKind::CiliumEndpointSlice => slices,
    };
    KINDS.into_iter().filter(is_watched)
}

/// How far the owner has come with each kind: a watch may be ahead of it.
pub(super) struct Kinds {
    /// In the order of [`KINDS`].
    watched: [bool; KINDS.len()],
    /// The version of the last list that was read to its end.
    listed: [Option<u64>; KINDS.len()],
    last_change: Option<Instant>,
}

impl Kinds {
    pub(super) fn new(config: &Config) -> Self {
        let watched: Vec<_> = watched_kinds(config).collect();
        let watched = KINDS.map(|kind| watched.contains(&kind));
        Self { watched, listed: [None; KINDS.len()], last_change: None }
    }

    /// A kind that is not watched has told everything.
    pub(super) fn has_synced(&self, kind: ObjectKind) -> bool {
        let mut kinds = KINDS.iter().zip(self.watched);
        kinds.any(|(known, watched)| *known == kind && !watched) || self.listed(kind).is_some()
    }

    /// The version of the last list of the kind: what there was by then and is not known is gone.
    pub(super) fn listed(&self, kind: ObjectKind) -> Option<u64> {
        let mut kinds = KINDS.iter().zip(self.listed);
        kinds.find(|(known, _)| **known == kind).and_then(|(_, listed)| listed)
    }

    pub(super) fn last_change(&self) -> Option<Duration> {
        self.last_change.map(|at| at.elapsed())
    }

    /// What an event of `kind` changes, object by object; how many bytes it had.
    pub(super) fn take(
        &mut self,
        kind: &str,
        event: &WatchEvent,
        manifests: &mut Manifests,
        mut each: impl FnMut(Change),
    ) -> usize {
        let Some((at, kind)) = KINDS.iter().enumerate().find(|(_, known)| known.name() == kind) else {
            tracing::warn!(kind, "a watch that nobody began told something");
            return 0;
        };
        let mut bytes = 0;
        let mut one = |watched: Watched<'_>| each(manifests.watched(*kind, watched));
        let mut text = |object: &RawValue| bytes += object.get().len();
        match event {
            WatchEvent::ListBegins => one(Watched::ListBegins),
            WatchEvent::Listed(objects) => {
                for object in objects {
                    text(object);
                    one(Watched::Listed(object.get()));
                }
            }
            WatchEvent::ListEnds { version } => {
                one(Watched::ListEnds);
                if let Some(listed) = self.listed.get_mut(at) {
                    *listed = Some(*version);
                }
            }
            WatchEvent::Applied { object, version: _ } => {
                text(object);
                one(Watched::Applied(object.get()));
                self.last_change = Some(Instant::now());
            }
            WatchEvent::Deleted { object, version: _ } => {
                text(object);
                one(Watched::Deleted(object.get()));
                self.last_change = Some(Instant::now());
            }
            // What was told stays in force.
            WatchEvent::Bookmark { .. } | WatchEvent::KindGone => {}
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Invocation, load};

    #[test]
    fn the_version_of_the_last_list_that_ended_is_known() {
        let arguments =
            ["--k8s-api-server=http://127.0.0.1:1", "--cgroup-root=/c", "--enable-pod-network=true"];
        let invocation = Invocation { arguments: arguments.map(Into::into).into(), ..Invocation::default() };
        let mut kinds = Kinds::new(&load(invocation).unwrap().config);
        let mut manifests = Manifests::default();
        let mut take = |event| kinds.take("CiliumIdentity", &event, &mut manifests, drop);
        take(WatchEvent::ListBegins);
        take(WatchEvent::ListEnds { version: 7 });
        take(WatchEvent::ListBegins);
        assert_eq!(kinds.listed(ObjectKind::CiliumIdentity), Some(7), "the next one is not told yet");
        kinds.take("CiliumIdentity", &WatchEvent::ListEnds { version: 9 }, &mut manifests, drop);
        assert_eq!(kinds.listed(ObjectKind::CiliumIdentity), Some(9));
        assert!(kinds.has_synced(ObjectKind::CiliumIdentity) && !kinds.has_synced(ObjectKind::Pod));
    }
}

//! Which labels the pods of this node have, as far as their identities go. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use portway_cni::protocol::PodName;
use portway_model::k8s::{Event, MIRROR, Namespace, Object, ObjectKey, ObjectKind, Pod, Uid};
use portway_model::labels::{LabelFilter, Labels, security_labels};

use super::Synced;

/// Pods of this node and the namespaces, as the sources tell.
pub(super) struct Follow {
    filter: LabelFilter,
    cluster_name: String,
    node: Arc<str>,
    /// Without one a pod that nobody tells of is not waited for: a directory need not have Pods.
    has_api_server: bool,
    pods: HashMap<Arc<str>, Arc<Pod>>,
    namespaces: HashMap<Arc<str>, Arc<Namespace>>,
    pub(super) synced: Synced,
    /// By the pod's name, and what they were made of.
    labels: HashMap<Arc<str>, (Arc<Pod>, Arc<Namespace>, Labels)>,
}

/// Who a pod is, as far as its labels say.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Who {
    Labelled {
        pod: Arc<Pod>,
        labels: Labels,
    },
    /// Nobody will tell.
    Init,
    /// Somebody will.
    Unknown {
        /// The Pod is known, its Namespace is not.
        has_pod: bool,
        /// What is missing, for people.
        reason: String,
    },
}

impl Follow {
    pub(super) fn new(
        filter: LabelFilter,
        cluster_name: String,
        node: Arc<str>,
        has_api_server: bool,
    ) -> Self {
        Self {
            filter,
            cluster_name,
            node,
            has_api_server,
            pods: HashMap::new(),
            namespaces: HashMap::new(),
            synced: Synced::default(),
            labels: HashMap::new(),
        }
    }

    /// A change of one object. Whether a pod of this node may be another one by it.
    pub(super) fn apply(&mut self, event: &Event) -> bool {
        match event {
            // A file may have other nodes' pods, too.
            Event::Apply(Object::Pod(pod)) if pod.node.as_ref() == Some(&self.node) => {
                self.pods.insert(Arc::clone(&pod.name), Arc::clone(pod));
                true
            }
            Event::Apply(Object::Pod(pod)) => self.remove_pod(&pod.name, ""),
            Event::Apply(Object::Namespace(namespace)) => {
                self.namespaces.insert(Arc::clone(&namespace.name), Arc::clone(namespace));
                true
            }
            Event::Apply(
                Object::Service(_)
                | Object::EndpointSlice(_)
                | Object::Node(_)
                | Object::CiliumNode(_)
                | Object::CiliumIdentity(_)
                | Object::CiliumEndpoint(_)
                | Object::CiliumEndpointSlice(_),
            ) => false,
            Event::Delete(ObjectKey { kind, name, uid }) => match kind {
                ObjectKind::Pod => self.remove_pod(name, uid),
                ObjectKind::Namespace => self.namespaces.remove(name).is_some(),
                ObjectKind::Service
                | ObjectKind::EndpointSlice
                | ObjectKind::Node
                | ObjectKind::CiliumNode
                | ObjectKind::CiliumIdentity
                | ObjectKind::CiliumEndpoint
                | ObjectKind::CiliumEndpointSlice => false,
            },
        }
    }

    /// Who a pod is.
    pub(super) fn who(&mut self, name: &PodName) -> Who {
        let PodName { namespace, name: pod_name, uid } = name;
        if pod_name.is_empty() {
            return Who::Init;
        }
        let full_name = format!("{namespace}/{pod_name}");
        let Some(pod) = self.pods.get(full_name.as_str()).filter(|pod| self.is_same(pod, uid)).cloned()
        else {
            return if self.has_api_server {
                let synced =
                    if self.synced.pods { "" } else { ", and not all Pods of this node were read yet" };
                Who::Unknown { has_pod: false, reason: format!("Pod {full_name} is not known{synced}") }
            } else {
                Who::Init
            };
        };
        let known = self.namespaces.get(namespace.as_str()).cloned();
        let namespace = match known {
            Some(namespace) => namespace,
            None if self.has_api_server => {
                let reason = format!("Namespace {namespace} is not known");
                return Who::Unknown { has_pod: true, reason };
            }
            None => Arc::new(Namespace::implied(&Arc::from(namespace.as_str()))),
        };
        let labels = self.labels(&pod, &namespace);
        Who::Labelled { pod, labels }
    }

    /// Whether a pod is there and runs no more.
    pub(super) fn has_ended(&self, name: &str, uid: Uid) -> bool {
        self.pods.get(name).is_some_and(|pod| !pod.live && Uid::new(&pod.uid) == uid)
    }

    /// Forgets labels of pods that are gone. O(pods).
    pub(super) fn tidy(&mut self) {
        self.labels.retain(|name, _| self.pods.contains_key(name));
    }

    /// Whether a Pod is the one that the runtime names. One of its name alone may be a predecessor of which the watch has
    /// not told yet that it is gone, or what the API server has in place of a static pod: that names its UID.
    fn is_same(&self, pod: &Pod, uid: &str) -> bool {
        let mirrors = || pod.annotations.iter().any(|(key, value)| *key == MIRROR && **value == *uid);
        uid.is_empty() || pod.uid.is_empty() || *pod.uid == *uid || !self.has_api_server || mirrors()
    }

    fn labels(&mut self, pod: &Arc<Pod>, namespace: &Arc<Namespace>) -> Labels {
        if let Some((of, within, labels)) = self.labels.get(&pod.name)
            && of.labels == pod.labels
            && of.service_account == pod.service_account
            && **within == **namespace
        {
            return labels.clone();
        }
        let labels = security_labels(
            &self.filter,
            &pod.labels,
            &namespace.name,
            &namespace.labels,
            pod.service_account.as_deref().unwrap_or(""),
            &self.cluster_name,
        );
        self.labels.insert(Arc::clone(&pod.name), (Arc::clone(pod), Arc::clone(namespace), labels.clone()));
        labels
    }

    /// `uid` that is not empty must be that of the pod of this name.
    fn remove_pod(&mut self, name: &Arc<str>, uid: &str) -> bool {
        if self.pods.get(name).is_some_and(|pod| uid.is_empty() || *pod.uid == *uid) {
            self.pods.remove(name);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, uid: &str, app: &str) -> Pod {
        Pod {
            name: name.into(),
            uid: uid.into(),
            created: None,
            node: Some("node-1".into()),
            live: true,
            ips: Box::default(),
            host_ports: Box::default(),
            labels: Box::new([("app".into(), app.into())]),
            service_account: Some("default".into()),
            annotations: Box::default(),
        }
    }

    fn apply(follow: &mut Follow, pod: Pod) {
        follow.apply(&Event::Apply(Object::Pod(pod.into())));
    }

    fn follow(has_api_server: bool) -> Follow {
        Follow::new(LabelFilter::default(), "default".to_owned(), "node-1".into(), has_api_server)
    }

    fn named(name: &str, uid: &str) -> PodName {
        PodName { namespace: "shop".to_owned(), name: name.to_owned(), uid: uid.to_owned() }
    }

    fn app(who: &Who) -> &str {
        match who {
            Who::Labelled { labels, .. } => labels.get("k8s", "app").map_or("none", |app| app),
            Who::Init => "init",
            Who::Unknown { .. } => "unknown",
        }
    }

    #[test]
    fn a_pods_predecessor_of_the_same_name_is_not_the_pod() {
        let mut follow = follow(true);
        let namespace = Namespace::implied(&"shop".into());
        follow.apply(&Event::Apply(Object::Namespace(namespace.into())));
        apply(&mut follow, pod("shop/web-0", "old", "old"));
        assert_eq!(app(&follow.who(&named("web-0", "new"))), "unknown");
        apply(&mut follow, pod("shop/web-0", "new", "new"));
        assert_eq!(app(&follow.who(&named("web-0", "new"))), "new");
        let late = ObjectKey { kind: ObjectKind::Pod, name: "shop/web-0".into(), uid: "old".into() };
        assert!(!follow.apply(&Event::Delete(late)), "late news of the predecessor");
        assert_eq!(app(&follow.who(&named("web-0", "new"))), "new");
    }

    #[test]
    fn a_static_pod_is_known_by_what_its_mirror_says() {
        let mut follow = follow(true);
        follow.apply(&Event::Apply(Object::Namespace(Namespace::implied(&"shop".into()).into())));
        let mirror =
            Pod { annotations: Box::new([(MIRROR, "hash".into())]), ..pod("shop/proxy", "api", "proxy") };
        apply(&mut follow, mirror);
        assert_eq!(app(&follow.who(&named("proxy", "hash"))), "proxy");
        assert_eq!(app(&follow.who(&named("proxy", "other"))), "unknown");
    }

    #[test]
    fn with_an_api_server_pod_and_namespace_are_waited_for() {
        let mut follow = follow(true);
        assert_eq!(app(&follow.who(&named("web", "u"))), "unknown");
        apply(&mut follow, pod("shop/web", "u", "web"));
        let who = follow.who(&named("web", "u"));
        let reason = "Namespace shop is not known".to_owned();
        assert_eq!(who, Who::Unknown { has_pod: true, reason });
        assert_eq!(app(&follow.who(&PodName::default())), "init", "the runtime names no pod");
    }

    #[test]
    fn in_a_directory_a_pod_may_be_missing_and_its_namespace_is_implied() {
        let mut follow = follow(false);
        assert_eq!(app(&follow.who(&named("web", "u"))), "init");
        apply(&mut follow, pod("shop/web", "of-the-file", "web"));
        let Who::Labelled { labels, .. } = follow.who(&named("web", "u")) else { panic!() };
        let key = "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name";
        assert_eq!(labels.get("k8s", key).map(|value| &**value), Some("shop"));
    }

    #[test]
    fn a_namespace_that_gets_another_label_makes_other_labels_of_its_pods() {
        let mut follow = follow(false);
        apply(&mut follow, pod("shop/web", "u", "web"));
        let before = follow.who(&named("web", "u"));
        assert_eq!(follow.who(&named("web", "u")), before);
        let mut namespace = Namespace::implied(&"shop".into());
        namespace.labels = Box::new([("team".into(), "red".into())]);
        assert!(follow.apply(&Event::Apply(Object::Namespace(namespace.into()))));
        assert_ne!(follow.who(&named("web", "u")), before);
    }

    #[test]
    fn a_pod_of_another_node_is_none_of_ours() {
        let mut follow = follow(false);
        apply(&mut follow, Pod { node: Some("node-2".into()), ..pod("shop/web", "u", "web") });
        assert_eq!(app(&follow.who(&named("web", "u"))), "init");
    }
}

//! A set of objects that changes step by step.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Objects;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Service,
    EndpointSlice,
    Pod,
    Node,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Pod => "Pod",
            Self::Node => "Node",
        }
    }
}

/// Kind, namespace ("" for nodes) and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a few dozen live at a time; a box would only add noise")]
pub enum Object {
    Service(Service),
    EndpointSlice(EndpointSlice),
    Pod(Pod),
    Node(Node),
}

impl Object {
    pub fn key(&self) -> Key {
        let (kind, meta) = match self {
            Self::Service(o) => (Kind::Service, &o.metadata),
            Self::EndpointSlice(o) => (Kind::EndpointSlice, &o.metadata),
            Self::Pod(o) => (Kind::Pod, &o.metadata),
            Self::Node(o) => (Kind::Node, &o.metadata),
        };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Key { kind, namespace: text(&meta.namespace), name: text(&meta.name) }
    }

    pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Service(o) => &mut o.metadata,
            Self::EndpointSlice(o) => &mut o.metadata,
            Self::Pod(o) => &mut o.metadata,
            Self::Node(o) => &mut o.metadata,
        }
    }
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time")]
pub enum Mutation {
    /// Adds the object, or replaces the one of its key.
    Put(Object),
    Delete(Key),
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub objects: BTreeMap<Key, Object>,
}

impl World {
    pub fn apply(&mut self, mutation: &Mutation) {
        match mutation {
            Mutation::Put(object) => {
                self.objects.insert(object.key(), object.clone());
            }
            Mutation::Delete(key) => {
                self.objects.remove(key);
            }
        }
    }

    /// As the oracle takes them.
    pub fn by_kind(&self) -> Objects {
        let mut all = Objects::default();
        for object in self.objects.values() {
            match object {
                Object::Service(o) => all.services.push(o.clone()),
                Object::EndpointSlice(o) => all.slices.push(o.clone()),
                Object::Pod(o) => all.pods.push(o.clone()),
                Object::Node(o) => all.nodes.push(o.clone()),
            }
        }
        all
    }
}

/// The smallest world in which `fails` still holds that leaving out single objects of `world` leads to.
pub fn shrink(world: &World, fails: impl Fn(&World) -> bool) -> World {
    let mut smallest = world.clone();
    loop {
        let smaller = smallest.objects.keys().find_map(|key| {
            let mut candidate = smallest.clone();
            candidate.objects.remove(key);
            fails(&candidate).then_some(candidate)
        });
        match smaller {
            Some(candidate) => smallest = candidate,
            None => return smallest,
        }
    }
}

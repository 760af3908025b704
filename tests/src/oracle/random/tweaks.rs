//! The small changes that a running cluster makes to its objects.

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::Random;
use super::objects::{self, HintStyle, PORT_NAMES, ZONES};
use crate::oracle::world::Object;

/// Another version of `object`: of the same name, age and UID, but for one object in eight, which is made anew.
pub(super) fn tweak(random: &mut Random, object: &Object) -> Object {
    if random.chance(12) {
        return objects::object(random, &object.key());
    }
    let mut tweaked = object.clone();
    match &mut tweaked {
        Object::Service(service) => tweak_service(random, service),
        Object::EndpointSlice(slice) => tweak_slice(random, slice),
        Object::Pod(pod) => tweak_pod(random, pod),
        Object::Node(node) => tweak_node(random, node),
    }
    tweaked
}

fn tweak_service(random: &mut Random, service: &mut Service) {
    let key = Object::Service(service.clone()).key();
    let Object::Service(donor) = objects::object(random, &key) else { return };
    let (Some(spec), Some(new)) = (&mut service.spec, donor.spec) else { return };
    if spec.type_.as_deref() == Some("ExternalName") || new.type_ != spec.type_ {
        // Only fields that mean the same whatever the type.
        spec.internal_traffic_policy = new.internal_traffic_policy;
        spec.session_affinity = new.session_affinity;
        spec.session_affinity_config = new.session_affinity_config;
        return;
    }
    match random.below(6) {
        0 => spec.ports = new.ports,
        1 => {
            spec.external_traffic_policy =
                if new.external_ips.is_some() || spec.type_.as_deref() != Some("ClusterIP") {
                    new.external_traffic_policy
                } else {
                    None
                };
            spec.external_ips = new.external_ips;
        }
        2 => spec.load_balancer_source_ranges = new.load_balancer_source_ranges,
        3 => {
            spec.cluster_ip = new.cluster_ip;
            spec.cluster_ips = new.cluster_ips;
            spec.ip_families = new.ip_families;
        }
        4 => service.status = donor.status,
        _ => service.metadata.labels = donor.metadata.labels,
    }
}

fn tweak_slice(random: &mut Random, slice: &mut EndpointSlice) {
    let style = HintStyle::of(&Object::EndpointSlice(slice.clone()).key());
    let address_type = slice.address_type.clone();
    let endpoints = slice.endpoints.get_or_insert_default();
    let victim = random.below(endpoints.len().max(1) as u64) as usize;
    match random.below(8) {
        0 | 1 => endpoints.push(objects::endpoint(random, &address_type, style)),
        2 if victim < endpoints.len() => drop(endpoints.remove(victim)),
        3 if victim < endpoints.len() => endpoints[victim].hints = objects::hints(random, style),
        4 => endpoints.clear(),
        5 => {
            for port in slice.ports.iter_mut().flatten() {
                if port.name.as_deref() == Some(PORT_NAMES[0]) {
                    port.port = Some(8000 + random.below(3) as i32);
                }
            }
        }
        _ if victim < endpoints.len() => endpoints[victim].conditions = random.maybe(90, objects::conditions),
        _ => endpoints.push(objects::endpoint(random, &address_type, style)),
    }
}

fn tweak_pod(random: &mut Random, pod: &mut Pod) {
    pod.status = Some(objects::pod_status(random));
}

fn tweak_node(random: &mut Random, node: &mut Node) {
    let labels = node.metadata.labels.get_or_insert_default();
    let zone = "topology.kubernetes.io/zone".to_owned();
    match random.maybe(80, |r| r.word(&ZONES)) {
        Some(name) => labels.insert(zone, name),
        None => labels.remove(&zone),
    };
}

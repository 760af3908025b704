//! From objects of the cluster to what they say of addresses.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portway_datapath::{Addr, NumericIdentity};

use super::endpoints::{EndpointAddress, EndpointSource};
use crate::k8s::{
    CiliumEndpoint, CiliumEndpointSlice, EndpointAddresses, EndpointSlice, Event, Object, ObjectKey,
    ObjectKind, Uid,
};

/// The service whose endpoints are the API server.
const API_SERVER: &str = "default/kubernetes";

/// A CiliumEndpoint by its name, in the memory of a pointer.
#[derive(Clone, Debug)]
struct Named(Arc<CiliumEndpoint>);

/// What an object's change says of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressNews {
    Told(EndpointSource, EndpointAddress),
    Gone(EndpointSource, Addr, Uid),
    /// All addresses of the API server.
    ApiServer(BTreeSet<Addr>),
}

/// The objects that say who has an address: CiliumEndpoints, CiliumEndpointSlices, and the EndpointSlices of the service
/// `default/kubernetes`. They are shared with who decoded them.
#[derive(Clone, Debug, Default)]
pub struct AddressObjects {
    endpoints: BTreeSet<Named>,
    slices: BTreeMap<Arc<str>, Arc<CiliumEndpointSlice>>,
    api_server: BTreeMap<Arc<str>, Box<[Addr]>>,
}

impl AddressObjects {
    /// A change of one object. What is new comes first, so that an address that goes from one owner to another is never
    /// nobody's. O(n log n) in addresses of the object.
    pub fn apply(&mut self, event: &Event) -> Vec<AddressNews> {
        match event {
            Event::Apply(Object::CiliumEndpoint(endpoint)) => {
                let before = self.endpoints.replace(Named(Arc::clone(endpoint)));
                news(
                    EndpointSource::Object,
                    &of_endpoint(before.as_ref()),
                    &of_endpoint(Some(&Named(Arc::clone(endpoint)))),
                )
            }
            Event::Apply(Object::CiliumEndpointSlice(slice)) => {
                let before = self.slices.insert(Arc::clone(&slice.name), Arc::clone(slice));
                news(EndpointSource::Slice, &of_slice(before.as_deref()), &of_slice(Some(slice)))
            }
            Event::Apply(Object::EndpointSlice(slice)) if &*slice.service == API_SERVER => {
                self.set_api_server(&slice.name, Some(addresses(slice)))
            }
            Event::Apply(Object::EndpointSlice(slice)) => self.set_api_server(&slice.name, None),
            Event::Apply(
                Object::Service(_)
                | Object::Pod(_)
                | Object::Namespace(_)
                | Object::Node(_)
                | Object::CiliumNode(_)
                | Object::CiliumIdentity(_),
            ) => Vec::new(),
            Event::Delete(ObjectKey { kind, name, .. }) => match kind {
                ObjectKind::CiliumEndpoint => {
                    let before = self.endpoints.take(&**name);
                    news(EndpointSource::Object, &of_endpoint(before.as_ref()), &[])
                }
                ObjectKind::CiliumEndpointSlice => {
                    let before = self.slices.remove(name);
                    news(EndpointSource::Slice, &of_slice(before.as_deref()), &[])
                }
                ObjectKind::EndpointSlice => self.set_api_server(name, None),
                ObjectKind::Service
                | ObjectKind::Pod
                | ObjectKind::Namespace
                | ObjectKind::Node
                | ObjectKind::CiliumNode
                | ObjectKind::CiliumIdentity => Vec::new(),
            },
        }
    }

    fn set_api_server(&mut self, name: &Arc<str>, addresses: Option<Box<[Addr]>>) -> Vec<AddressNews> {
        if self.api_server.get(name) == addresses.as_ref() {
            return Vec::new();
        }
        match addresses {
            Some(addresses) => self.api_server.insert(Arc::clone(name), addresses),
            None => self.api_server.remove(name),
        };
        vec![AddressNews::ApiServer(self.api_server.values().flatten().copied().collect())]
    }
}

fn addresses(slice: &EndpointSlice) -> Box<[Addr]> {
    slice.endpoints.iter().map(|endpoint| endpoint.addr).collect()
}

impl Borrow<str> for Named {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Ord for Named {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl PartialOrd for Named {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Named {}

fn of_endpoint(endpoint: Option<&Named>) -> Vec<EndpointAddress> {
    let Some(Named(endpoint)) = endpoint else { return Vec::new() };
    let known = [endpoint.pod_uid, endpoint.uid].into_iter().find(|uid| !uid.is_none());
    let uid = known.unwrap_or_else(|| Uid::new(&endpoint.name));
    told(uid, endpoint.created, endpoint.identity, &endpoint.addresses).collect()
}

/// Of elements of a slice no UID is told. An element that moves to another slice is two for a while.
fn of_slice(slice: Option<&CiliumEndpointSlice>) -> Vec<EndpointAddress> {
    let Some(slice) = slice else { return Vec::new() };
    let endpoints = slice.endpoints.iter().flat_map(|endpoint| {
        let uid = Uid::new(&format!("{}/{}", slice.name, endpoint.name));
        told(uid, endpoint.created, endpoint.identity, &endpoint.addresses)
    });
    endpoints.collect()
}

fn told(
    uid: Uid,
    created: Option<i64>,
    identity: NumericIdentity,
    addresses: &EndpointAddresses,
) -> impl Iterator<Item = EndpointAddress> + use<> {
    let node = addresses.node;
    let own = [addresses.ipv4, addresses.ipv6].into_iter().flatten();
    own.map(move |addr| EndpointAddress { addr, identity, node, uid, created })
}

fn news(source: EndpointSource, before: &[EndpointAddress], after: &[EndpointAddress]) -> Vec<AddressNews> {
    let (held, stay) = (by_owner(before), by_owner(after));
    let told = stay.iter().filter(|(owner, told)| held.get(owner) != Some(told));
    let told = told.map(|(_, told)| AddressNews::Told(source, **told));
    let gone = held.keys().filter(|owner| !stay.contains_key(owner));
    told.chain(gone.map(|(addr, uid)| AddressNews::Gone(source, *addr, *uid))).collect()
}

/// Of what is told of one owner's address twice the last word counts.
fn by_owner(told: &[EndpointAddress]) -> BTreeMap<(Addr, Uid), &EndpointAddress> {
    told.iter().map(|told| ((told.addr, told.uid), told)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{Format, Names, decode};

    fn object(text: &str) -> Object {
        let mut decoded = decode(text.as_bytes(), Format::Detect, &mut Names::default()).unwrap();
        assert_eq!(decoded.rejects, []);
        decoded.objects.remove(0)
    }

    fn endpoint(uid: &str, identity: u32, v4: &str, v6: &str) -> Event {
        Event::Apply(object(&format!(
            r#"{{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {{"name": "a", "namespace": "x",
            "creationTimestamp": "1970-01-01T00:01:00Z", "ownerReferences": [{{"apiVersion": "v1", "kind": "Pod",
            "name": "a", "uid": "{uid}"}}]}}, "status": {{"identity": {{"id": {identity}}}, "networking": {{
            "addressing": [{{"ipv4": "{v4}", "ipv6": "{v6}"}}], "node": "192.0.2.1"}}}}}}"#
        )))
    }

    fn delete(kind: ObjectKind, name: &str) -> Event {
        Event::Delete(ObjectKey { kind, name: name.into(), uid: "".into() })
    }

    /// A line each.
    fn lines(news: &[AddressNews]) -> Vec<String> {
        let line = |news: &AddressNews| match news {
            AddressNews::Told(_, told) => format!("{} {}", told.addr, told.identity),
            AddressNews::Gone(_, addr, _) => format!("{addr} gone"),
            AddressNews::ApiServer(all) => {
                format!("api {}", all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
        };
        news.iter().map(line).collect()
    }

    #[test]
    fn of_an_endpoint_what_changed_is_told_and_new_owners_come_before_old_ones_go() {
        let mut objects = AddressObjects::default();
        let mut apply = |event: &Event| lines(&objects.apply(event));
        let first = endpoint("1", 300, "10.0.0.1", "fd00::1");
        assert_eq!(apply(&first), ["10.0.0.1 300", "fd00::1 300"]);
        assert_eq!(apply(&first), [""; 0]);
        assert_eq!(apply(&endpoint("1", 301, "10.0.0.1", "fd00::1")), ["10.0.0.1 301", "fd00::1 301"]);
        assert_eq!(apply(&endpoint("1", 301, "10.0.0.1", "")), ["fd00::1 gone"]);
        // Made anew with the name of the one before: on its address or on another one.
        assert_eq!(apply(&endpoint("2", 301, "10.0.0.1", "")), ["10.0.0.1 301", "10.0.0.1 gone"]);
        assert_eq!(apply(&endpoint("3", 302, "10.0.0.2", "")), ["10.0.0.2 302", "10.0.0.1 gone"]);
        assert_eq!(apply(&delete(ObjectKind::CiliumEndpoint, "x/a")), ["10.0.0.2 gone"]);
        assert_eq!(apply(&delete(ObjectKind::CiliumEndpoint, "x/a")), [""; 0]);
    }

    #[test]
    fn an_element_that_moves_to_another_slice_is_there_all_the_time() {
        let slice = |name: &str, pods: &[(&str, u32)]| {
            let element = |(ip, id): &(&str, u32)| {
                format!(
                    r#"{{"name": "p{id}", "id": {id}, "networking": {{"addressing": [{{"ipv4": "{ip}"}}]}}}}"#
                )
            };
            let elements = pods.iter().map(element).collect::<Vec<_>>().join(", ");
            Event::Apply(object(&format!(
                r#"{{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice", "metadata": {{"name": "{name}"}},
                "namespace": "x", "endpoints": [{elements}]}}"#
            )))
        };
        let mut objects = AddressObjects::default();
        let mut ipcache = super::super::Ipcache::new(false, false);
        let mut apply = |event: &Event| {
            for news in objects.apply(event) {
                match news {
                    AddressNews::Told(source, told) => drop(ipcache.set_endpoint(source, &told)),
                    AddressNews::Gone(source, addr, uid) => drop(ipcache.remove_endpoint(source, addr, uid)),
                    AddressNews::ApiServer(_) => {}
                }
            }
            let value = |n| ipcache.value((Addr::v4([10, 0, 0, n]), 128)).map(|value| value.identity.get());
            [value(1), value(2)]
        };
        assert_eq!(apply(&slice("a", &[("10.0.0.1", 301), ("10.0.0.2", 302)])), [Some(301), Some(302)]);
        assert_eq!(apply(&slice("b", &[("10.0.0.2", 302)])), [Some(301), Some(302)]);
        assert_eq!(apply(&slice("a", &[("10.0.0.1", 301)])), [Some(301), Some(302)]);
        assert_eq!(apply(&delete(ObjectKind::CiliumEndpointSlice, "b")), [Some(301), None]);
    }

    #[test]
    fn of_two_elements_that_have_an_address_the_newer_one_lives_whichever_is_told_last() {
        let slice = |name: &str, id: u32, created: &str| {
            Event::Apply(object(&format!(
                r#"{{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice", "metadata": {{"name": "{name}"}},
                "namespace": "x", "endpoints": [{{"name": "p{id}", "id": {id}, {created}
                "networking": {{"addressing": [{{"ipv4": "10.0.0.1"}}]}}}}]}}"#
            )))
        };
        let told_last = |slices: [Event; 2]| {
            let mut objects = AddressObjects::default();
            let mut ipcache = super::super::Ipcache::new(false, false);
            for news in slices.iter().flat_map(|slice| objects.apply(slice)) {
                if let AddressNews::Told(source, told) = news {
                    ipcache.set_endpoint(source, &told);
                }
            }
            ipcache.value((Addr::v4([10, 0, 0, 1]), 128)).map(|value| value.identity.get())
        };
        let (old, new) = (slice("a", 301, r#""created": 60,"#), slice("b", 302, r#""created": 61,"#));
        assert_eq!(told_last([old.clone(), new.clone()]), Some(302));
        assert_eq!(told_last([new.clone(), old]), Some(302));
        assert_eq!(told_last([new, slice("a", 301, "")]), Some(302), "of others' slices no age is known");
    }

    #[test]
    fn the_api_server_is_at_the_endpoints_of_its_service() {
        let slice = |name: &str, service: &str, ip: &str| {
            Event::Apply(object(&format!(
                r#"{{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {{"name": "{name}", "namespace": "default", "labels": {{"kubernetes.io/service-name": "{service}"}}}},
                "endpoints": [{{"addresses": ["{ip}"]}}]}}"#
            )))
        };
        let mut objects = AddressObjects::default();
        let mut apply = |event: &Event| lines(&objects.apply(event));
        assert_eq!(apply(&slice("a", "kubernetes", "192.0.2.1")), ["api 192.0.2.1"]);
        assert_eq!(apply(&slice("b", "kubernetes", "192.0.2.2")), ["api 192.0.2.1 192.0.2.2"]);
        assert_eq!(apply(&slice("c", "web", "192.0.2.3")), [""; 0]);
        assert_eq!(apply(&slice("a", "kubernetes", "192.0.2.1")), [""; 0]);
        assert_eq!(apply(&delete(ObjectKind::EndpointSlice, "default/b")), ["api 192.0.2.1"]);
        assert_eq!(apply(&slice("a", "web", "192.0.2.1")), ["api "]);
    }
}

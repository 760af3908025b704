//! Slices that are left once they are switched off.

use crate::controller::{Controller, Now, Pace, Plan, Trouble};
use crate::observed::{Kind, Observed};

/// Tells of slices that nobody keeps, and how to delete them; writes nothing.
///
/// They harm nobody as long as agents read CiliumEndpoints, and tell agents what was once slices are switched on again,
/// until an operator has seen to them. It deletes none: agents are set anew one after the other, and those that are not
/// yet know the endpoints of other nodes by slices alone. Who has set them all knows when.
pub struct Left {
    /// Of the operator: what is told is told of it, for slices come and go.
    namespace: String,
}

impl Left {
    pub const fn new(namespace: String) -> Self {
        Self { namespace }
    }
}

impl Controller for Left {
    fn name(&self) -> &'static str {
        "endpoint-slices-left"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::CiliumEndpointSlice, Kind::Namespace]
    }

    /// It writes nothing.
    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: 0, per_second: 0.0 }
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        // Those that cannot be read are left, too.
        let count = observed.slices.len() + observed.slices.misfits().count();
        let namespace = observed.namespaces.get(&self.namespace);
        let trouble = (count > 0).then(|| Trouble {
            kind: Kind::Namespace,
            object: self.namespace.clone(),
            uid: namespace.map(|of| of.meta.uid.to_string()).unwrap_or_default(),
            reason: "SlicesLeft",
            message: format!(
                "{count} CiliumEndpointSlices are left from when enable-cilium-endpoint-slice was on, and this operator does \
                 not keep them: delete them once every agent runs with it off \
                 (kubectl delete ciliumendpointslices.cilium.io --all)"
            ),
        });
        Plan { troubles: trouble.into_iter().collect(), ..Plan::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::fake_api::{FakeApi, Replica};

    #[test]
    fn slices_that_are_left_are_told_of_with_their_number_be_they_readable_or_not() {
        let mut api = FakeApi::default();
        api.put(Kind::Namespace, "kube-system", json!({}));
        let mut left = Left::new("kube-system".to_owned());
        let now = Now { wall: Duration::ZERO, monotonic: Duration::ZERO };
        let mut troubles = |api: &FakeApi| left.plan(&Replica::new(api).observed, now).troubles;
        assert_eq!(troubles(&api), []);
        for (name, endpoints) in [("a", json!([])), ("b", json!(7))] {
            api.put(Kind::CiliumEndpointSlice, name, json!({"endpoints": endpoints}));
        }
        let told = troubles(&api);
        assert_eq!((told.len(), &*told[0].object, told[0].uid.is_empty()), (1, "kube-system", false));
        assert!(told[0].message.starts_with("2 CiliumEndpointSlices are left"), "{}", told[0].message);
        api.remove(Kind::CiliumEndpointSlice, "a");
        assert!(troubles(&api)[0].message.starts_with("1 CiliumEndpointSlices"), "{:?}", troubles(&api));
        api.remove(Kind::CiliumEndpointSlice, "b");
        assert_eq!(troubles(&api), []);
    }
}

//! Who the pods of this node are.

use aya_ebpf::bindings::BPF_F_MMAPABLE;
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use portway_datapath::{EndpointPolicy, EndpointValue, NumericIdentity, layout};

#[map(name = "pw_endpoint_policy")]
static ENDPOINT_POLICY: Array<u64> = Array::with_max_entries(layout::ENDPOINT_POLICY_ENTRIES, BPF_F_MMAPABLE);

/// Who a pod of this node is; unknown until its endpoint is published.
#[inline(always)]
pub(crate) fn identity(pod: &EndpointValue) -> NumericIdentity {
    let Some(word) = ENDPOINT_POLICY.get_ptr(pod.id.into()) else { return NumericIdentity::UNKNOWN };
    // SAFETY: a word of the array, 8-byte aligned; user space writes it with single stores.
    EndpointPolicy::from_word(unsafe { word.read_volatile() }).identity()
}

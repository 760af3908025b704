use aya_ebpf::bindings::TC_ACT_OK;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

#[classifier]
pub(crate) fn pw_to_tunnel(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}

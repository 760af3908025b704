//! `aya::Pod` for what user space writes into maps.

#![expect(unsafe_code, reason = "aya::Pod is an unsafe marker")]

use crate::{
    Addr, AffinityKey, AffinityValue, BackendSlot, CpuTraffic, DeviceValue, EndpointValue, ExchangeKey,
    ExchangeValue, FlowKey, FlowValue, FragmentKey, FragmentValue, FrontendKey, IpcacheValue, NatKey,
    NatValue, NodeConfig, NodeNetwork, NumericIdentity, ReplyValue, ServiceName, SocketTranslation,
    SourceRange,
};

macro_rules! pod {
    ($($t:ty),+ $(,)?) => {$(
        // SAFETY: `repr(C)`, integers and byte arrays only, every byte is a field (sizes are asserted beside the type).
        unsafe impl aya::Pod for $t {}
    )+};
}

pod!(
    Addr,
    AffinityKey,
    AffinityValue,
    BackendSlot,
    CpuTraffic,
    DeviceValue,
    EndpointValue,
    ExchangeKey,
    ExchangeValue,
    FlowKey,
    FlowValue,
    FragmentKey,
    FragmentValue,
    FrontendKey,
    IpcacheValue,
    NatKey,
    NatValue,
    NodeConfig,
    NodeNetwork,
    NumericIdentity,
    ReplyValue,
    ServiceName,
    SocketTranslation,
    SourceRange,
);

use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendValue, RunBackend, RunHeader, ServiceIndex,
    ServiceWord,
};

/// What the maps hold, from the kernel's or from tables in memory. Everything is in order of its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableDump {
    pub frontends: Vec<(FrontendKey, FrontendValue)>,
    /// The services that are published.
    pub services: Vec<ServiceDump>,
    /// Service, address and its bits (96 more than an IPv4 prefix has).
    pub source_ranges: Vec<(ServiceIndex, Addr, u8)>,
    /// Slots that were ever used: their incarnation is not 0.
    pub backends: Vec<(BackendIndex, BackendSlot)>,
    /// Service indices that have a name and no published version: a run was ended between the two writes.
    pub stray_names: Vec<ServiceIndex>,
}

/// The published version of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceDump {
    pub index: ServiceIndex,
    pub word: ServiceWord,
    pub header: RunHeader,
    /// In the order of the run.
    pub backends: Vec<RunBackend>,
    /// `namespace/name` of the service, or of the pod for a host port.
    pub service: String,
    /// "" for an unnamed port.
    pub port_name: String,
}

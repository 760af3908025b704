/// Element of `pw_metrics`, a per-CPU array of `u64`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// A connect that was translated.
    Connects = 0,
    /// A datagram of an unconnected socket that was translated.
    Datagrams = 1,
    /// Refused: the service has no backends.
    NoBackends = 2,
    /// A bind that was denied because the port is a NodePort.
    DeniedBinds = 3,
    /// A destination left alone by the external-IP guard.
    GuardedExternalIps = 4,
    /// Translated sockets that were released.
    Releases = 5,
    /// Defect: a frontend without a service, a run without its records.
    Inconsistent = 6,
    /// The kernel had no memory for an entry: the connection went on, but its frontend, backend or client is not
    /// remembered.
    Unremembered = 7,
}

impl Counter {
    pub const ALL: [Self; 8] = [
        Self::Connects,
        Self::Datagrams,
        Self::NoBackends,
        Self::DeniedBinds,
        Self::GuardedExternalIps,
        Self::Releases,
        Self::Inconsistent,
        Self::Unremembered,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Connects => "connects",
            Self::Datagrams => "datagrams",
            Self::NoBackends => "no-backends",
            Self::DeniedBinds => "denied-binds",
            Self::GuardedExternalIps => "guarded-external-ips",
            Self::Releases => "releases",
            Self::Inconsistent => "inconsistent",
            Self::Unremembered => "unremembered",
        }
    }
}

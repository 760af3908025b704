/// Bits and numbers of [`NodeConfig::settings`], one word so that they change together.
///
/// From the low bit: 16 bits first NodePort, 16 bits last NodePort (host order), 32 bits switches.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings(u64);

impl Settings {
    const HOST_NAMESPACE_ONLY: u64 = 1 << 32;
    const EXTERNAL_IP_GUARD: u64 = 1 << 33;
    const BIND_PROTECTION: u64 = 1 << 34;
    const LOOPBACK_NODE_PORTS: u64 = 1 << 35;
    const OPT_OUTS: u64 = 1 << 36;

    /// No NodePorts, every switch off.
    pub const fn new() -> Self {
        Self(0)
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    /// The NodePorts that a bind in the node's namespace may not take, first and last.
    #[must_use]
    pub const fn protect_node_ports(self, first: u16, last: u16) -> Self {
        Self((self.0 & !0xffff_ffff) | (last as u64) << 16 | first as u64 | Self::BIND_PROTECTION)
    }

    /// Translate only sockets of the node's own namespace (`bpf-lb-sock-hostns-only`).
    #[must_use]
    pub const fn host_namespace_only(self) -> Self {
        Self(self.0 | Self::HOST_NAMESPACE_ONLY)
    }

    /// Leave `externalIPs` that are not the node's alone (CVE-2020-8554; off by `disable-external-ip-mitigation`).
    #[must_use]
    pub const fn guard_external_ips(self) -> Self {
        Self(self.0 | Self::EXTERNAL_IP_GUARD)
    }

    /// NodePorts answer on loopback too, for sockets of the node's own namespace.
    #[must_use]
    pub const fn serve_node_ports_on_loopback(self) -> Self {
        Self(self.0 | Self::LOOPBACK_NODE_PORTS)
    }

    /// `pw_netns` may say that a namespace's sockets are left alone: where it can't, no socket pays for asking.
    #[must_use]
    pub const fn allow_opt_outs(self) -> Self {
        Self(self.0 | Self::OPT_OUTS)
    }

    #[inline(always)]
    pub const fn allows_opt_outs(self) -> bool {
        self.0 & Self::OPT_OUTS != 0
    }

    #[inline(always)]
    pub const fn is_host_namespace_only(self) -> bool {
        self.0 & Self::HOST_NAMESPACE_ONLY != 0
    }

    #[inline(always)]
    pub const fn guards_external_ips(self) -> bool {
        self.0 & Self::EXTERNAL_IP_GUARD != 0
    }

    #[inline(always)]
    pub const fn serves_node_ports_on_loopback(self) -> bool {
        self.0 & Self::LOOPBACK_NODE_PORTS != 0
    }

    /// Whether `port` (host order) is a NodePort that binds are kept from.
    #[inline(always)]
    pub const fn protects(self, port: u16) -> bool {
        self.0 & Self::BIND_PROTECTION != 0 && port >= self.0 as u16 && port <= (self.0 >> 16) as u16
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// The one element of `pw_config`. Each word changes in place.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NodeConfig {
    /// The cookie of the node's network namespace.
    pub host_netns: u64,
    /// [`Settings`].
    pub settings: u64,
}

const _: () = assert!(size_of::<NodeConfig>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protected_range_includes_both_ends_and_leaves_the_switches_alone() {
        let settings = Settings::new().guard_external_ips().protect_node_ports(30_000, 32_767);
        assert!(settings.protects(30_000) && settings.protects(32_767));
        assert!(!settings.protects(29_999) && !settings.protects(32_768));
        assert!(settings.guards_external_ips() && !settings.is_host_namespace_only());
        assert!(!Settings::new().protects(0));
    }
}

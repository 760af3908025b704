use core::fmt;

/// Bytes for the two names together: namespace (63), `/`, object name (253) and port name (63).
pub const NAME_BYTES: usize = 380;

/// Value of `pw_service_names` (key: service index): what a service index is called, so that the maps can be read
/// with the agent down. No program reads it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ServiceName {
    service_len: [u8; 2],
    port_len: [u8; 2],
    bytes: [u8; NAME_BYTES],
}

const _: () = assert!(size_of::<ServiceName>() == 384);

/// The two names are longer than [`NAME_BYTES`] together, which no Kubernetes name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameTooLong;

impl fmt::Display for NameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service and port name are longer than {NAME_BYTES} bytes together")
    }
}

impl core::error::Error for NameTooLong {}

impl ServiceName {
    /// `service`: `namespace/name` of the service, or of the pod for a host port. `port`: the port's name or "".
    pub fn new(service: &str, port: &str) -> Result<Self, NameTooLong> {
        let mut bytes = [0; NAME_BYTES];
        let end = service.len() + port.len();
        bytes.get_mut(..service.len()).ok_or(NameTooLong)?.copy_from_slice(service.as_bytes());
        bytes.get_mut(service.len()..end).ok_or(NameTooLong)?.copy_from_slice(port.as_bytes());
        let len = |n: usize| (n as u16).to_be_bytes();
        Ok(Self { service_len: len(service.len()), port_len: len(port.len()), bytes })
    }

    /// The service's and the port's name; "" where the bytes are not what [`Self::new`] wrote.
    pub fn names(&self) -> (&str, &str) {
        let at = usize::from(u16::from_be_bytes(self.service_len));
        let end = at + usize::from(u16::from_be_bytes(self.port_len));
        let text = |range| self.bytes.get(range).and_then(|b| core::str::from_utf8(b).ok()).unwrap_or("");
        (text(0..at), text(at..end))
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (service, port) = self.names();
        write!(f, "{service}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_of_kubernetes_fit() {
        let service = std::format!("{}/{}", "n".repeat(63), "p".repeat(253));
        let port = "q".repeat(63);
        let name = ServiceName::new(&service, &port).unwrap();
        assert_eq!(name.names(), (service.as_str(), port.as_str()));
        assert_eq!(ServiceName::new(&service, &"q".repeat(64)), Err(NameTooLong));
    }
}

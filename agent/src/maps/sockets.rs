//! `pw_sock` for user space: which sockets were translated to what, and where their frontends lead now.

use portway_datapath::{Addr, FrontendKey, Port, Protocol, ServiceIndex, SocketTranslation};
use portway_model::tables::ServiceDump;

use super::error::MapError;
use super::layout::MapId;
use super::reader::MapReader;
use super::sys::from_bytes;

/// The sockets that programs remember, beside the maps that say what they should lead to. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SocketTable {
    reader: MapReader,
}

impl SocketTable {
    pub(super) const fn new(reader: MapReader) -> Self {
        Self { reader }
    }

    /// Entries that there is room for.
    pub fn size(&self) -> u32 {
        self.reader.sizes().sockets
    }

    /// Every entry, by the socket's cookie. One that comes or goes meanwhile may be missing. O(size).
    pub fn for_each(&self, mut entry: impl FnMut(u64, SocketTranslation)) -> Result<(), MapError> {
        let each = |key: &[u8], value: &[u8]| {
            if let (Some(cookie), Some(translation)) = (from_bytes(key), from_bytes(value)) {
                entry(cookie, translation);
            }
        };
        self.reader.maps.sock.for_each(each).map_err(MapError::map(MapId::Sock, "read"))
    }

    /// What the socket of this cookie was translated to, if it was.
    pub fn get(&self, cookie: u64) -> Result<Option<SocketTranslation>, MapError> {
        let mut value = [0; size_of::<SocketTranslation>()];
        let known = self
            .reader
            .maps
            .sock
            .lookup(&cookie.to_ne_bytes(), &mut value)
            .map_err(MapError::map(MapId::Sock, "read"))?;
        Ok(if known { from_bytes(&value) } else { None })
    }

    /// Removes an entry; whether there was one. For sockets that are no more: programs remove those that they see go.
    pub fn forget(&self, cookie: u64) -> Result<bool, MapError> {
        let deleted = self.reader.maps.sock.delete(&cookie.to_ne_bytes());
        deleted.map_err(MapError::map(MapId::Sock, "delete from"))
    }

    /// The service that a client of this frontend gets now, by its address or as a NodePort.
    pub fn behind(
        &self,
        addr: Addr,
        port: Port,
        protocol: Protocol,
    ) -> Result<Option<ServiceDump>, MapError> {
        let exact = self.reader.frontend(&FrontendKey::new(addr, port, protocol))?;
        let value = match exact {
            Some(value) => Some(value),
            None => self.reader.frontend(&FrontendKey::new(addr.any(), port, protocol))?,
        };
        value.map_or(Ok(None), |value| self.published(value.service()))
    }

    /// The published version of a service.
    pub fn published(&self, service: ServiceIndex) -> Result<Option<ServiceDump>, MapError> {
        self.reader.service(service)
    }
}

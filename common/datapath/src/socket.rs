use crate::{Addr, Port, Protocol, ServiceIndex, Translation};

/// Value of `pw_sock`, the storage of a connected socket that was translated. It lives and dies with the socket;
/// what has none was never touched, and is never closed by Portway.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTranslation {
    pub frontend: Addr,
    pub backend: Addr,
    pub frontend_port: Port,
    pub backend_port: Port,
    pub service: ServiceIndex,
    pub protocol: u8,
    _pad: [u8; 7],
}

const _: () = assert!(size_of::<SocketTranslation>() == 48 && align_of::<SocketTranslation>() == 4);

impl SocketTranslation {
    #[inline(always)]
    pub const fn new(frontend: Addr, frontend_port: Port, protocol: Protocol, to: &Translation) -> Self {
        Self {
            frontend,
            backend: to.addr,
            frontend_port,
            backend_port: to.port,
            service: to.service,
            protocol: protocol.number(),
            _pad: [0; 7],
        }
    }
}

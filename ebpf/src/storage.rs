//! `pw_sock`: what a connected socket was translated to. It lives and dies with the socket.

use core::ptr;

use aya_ebpf::bindings::{BPF_SK_STORAGE_GET_F_CREATE, bpf_sock};
use aya_ebpf::btf_maps::SkStorage;
use aya_ebpf::helpers::{bpf_sk_storage_delete, bpf_sk_storage_get};
use aya_ebpf::macros::btf_map;
use portway_datapath::SocketTranslation;

use crate::context::SockAddr;
use crate::outcome::Error;

#[btf_map(name = "pw_sock")]
static SOCK: SkStorage<SocketTranslation> = SkStorage::new();

#[inline(always)]
fn map() -> *mut core::ffi::c_void {
    ptr::from_ref(&SOCK).cast_mut().cast()
}

/// Remembers the translation of a socket, over one of an earlier connect.
#[inline(always)]
pub(crate) fn remember(sock: *mut bpf_sock, translation: SocketTranslation) -> Result<(), Error> {
    let mut value = translation;
    let create = u64::from(BPF_SK_STORAGE_GET_F_CREATE);
    // SAFETY: the socket is the context's; the value is copied by the helper.
    let stored = unsafe { bpf_sk_storage_get(map(), sock.cast(), (&raw mut value).cast(), create) };
    let stored = stored.cast::<SocketTranslation>();
    if stored.is_null() {
        return Err(Error::Unremembered);
    }
    // The helper leaves a value alone that it finds.
    // SAFETY: the helper's value, which has this type.
    unsafe { *stored = value };
    Ok(())
}

/// Forgets the translation of an earlier connect, if there was one.
#[inline(always)]
pub(crate) fn forget(sock: *mut bpf_sock) {
    if recall(sock).is_some() {
        // The only failure is that there is none.
        // SAFETY: the socket is the context's.
        let _ = unsafe { bpf_sk_storage_delete(map(), sock.cast()) };
    }
}

/// The translation of a socket; `None` where it was never translated. `sock` may be the context of a `cgroup_sock`
/// program.
#[inline(always)]
pub(crate) fn recall<'a>(sock: *mut bpf_sock) -> Option<&'a SocketTranslation> {
    // SAFETY: the socket is the context's, or the context.
    let stored = unsafe { bpf_sk_storage_get(map(), sock.cast(), ptr::null_mut(), 0) };
    // SAFETY: the helper's value, which has this type, lives as long as the program runs.
    unsafe { stored.cast::<SocketTranslation>().as_ref() }
}

/// The translation of a UDP socket that is connected now.
///
/// connect(2) with `AF_UNSPEC` dissolves a socket's association without passing a hook: the storage counts only while the
/// socket is connected to what it tells.
#[inline(always)]
pub(crate) fn recall_connected<'a>(ctx: &SockAddr<'_>) -> Option<&'a SocketTranslation> {
    recall(ctx.socket()).filter(|translation| translation.backend_port == ctx.connected_port())
}

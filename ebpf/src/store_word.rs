//! Changes an element of a hash map in place, for user space.
//!
//! bpf(2) can only replace an element, and a program that looks it up meanwhile can miss it. This program is never
//! attached; user space runs it by BPF_PROG_TEST_RUN with 32 bytes of "packet":
//!
//! | bytes | |
//! |---|---|
//! | 0 | the map: 0 `pw_frontends`, 1 `pw_local_addresses` |
//! | 1..4 | zero |
//! | 4..24 | the key; an address takes the first 16 bytes |
//! | 24..32 | the word, in the machine's byte order |
//!
//! Returns 0 if stored, 1 if the map has no such key, 2 if the packet is none of ours.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

use crate::maps::{WordMap, store_word};

const STORED: i32 = 0;
const NO_SUCH_KEY: i32 = 1;
const MALFORMED: i32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    map: u8,
    _pad: [u8; 3],
    key: [u32; 5],
    word: u64,
}

const _: () = assert!(size_of::<Request>() == 32);

/// The packet is none of ours.
struct Malformed;

#[classifier]
pub(crate) fn pw_store_word(ctx: TcContext) -> i32 {
    match try_store_word(&ctx) {
        Ok(true) => STORED,
        Ok(false) => NO_SUCH_KEY,
        Err(Malformed) => MALFORMED,
    }
}

#[inline(always)]
fn try_store_word(ctx: &TcContext) -> Result<bool, Malformed> {
    let request: Request = ctx.load(0).map_err(|_| Malformed)?;
    let map = match request.map {
        0 => WordMap::Frontends,
        1 => WordMap::LocalAddresses,
        _ => return Err(Malformed),
    };
    Ok(store_word(map, &request.key, request.word))
}

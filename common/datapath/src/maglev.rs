//! Maglev hashing (Eisenbud et al., NSDI 2016): a table of slots that every node builds alike, and of which few
//! change when a backend comes or goes.

use crate::{Addr, Port};

/// 12 bytes that salt the table; every node of a cluster must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub [u8; 12]);

/// Where a backend begins in its permutation of the slots, and its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    next: u64,
    skip: u64,
}

impl Permutation {
    /// The permutation of a backend over `size` slots. `size` must be prime and at least 3.
    pub fn new(seed: &Seed, addr: Addr, port: Port, size: u32) -> Self {
        let s = &seed.0;
        let word = |i: usize| u32::from_le_bytes([s[i], s[i + 1], s[i + 2], s[i + 3]]);
        let [a, b, c, d] = addr.words().map(u32::from_be);
        let hash = |salt: u32| {
            let mut h = u64::from(salt) << 32 | u64::from(word(0));
            for w in [word(4), a, b, c, d, u32::from(port.get()), word(8)] {
                h = splitmix(h ^ u64::from(w));
            }
            h
        };
        let size = u64::from(size);
        Self { next: hash(1) % size, skip: hash(2) % (size - 1) + 1 }
    }
}

/// One step of SplitMix64: a bijection of 64-bit numbers that spreads every bit.
const fn splitmix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fills `table`, whose length is prime: slot → position of its backend in `backends`.
///
/// `backends` must be in address order, so that every node builds the same table, and no longer than `table` or
/// `u16::MAX`. Without backends the table stays as it is. Time is about `n log n` in the length of the table.
pub fn populate(backends: &mut [Permutation], table: &mut [u16]) {
    const FREE: u16 = u16::MAX;
    if backends.is_empty() {
        return;
    }
    let size = table.len() as u64;
    table.fill(FREE);
    let mut filled = 0;
    loop {
        for (position, backend) in backends.iter_mut().enumerate() {
            loop {
                let Some(slot) = table.get_mut(backend.next as usize) else { return };
                backend.next = (backend.next + backend.skip) % size;
                if *slot == FREE {
                    *slot = position as u16;
                    break;
                }
            }
            filled += 1;
            if filled == size {
                return;
            }
        }
    }
}

/// The slot of a flow by its hash.
#[inline(always)]
pub const fn slot(flow_hash: u32, size: u32) -> u32 {
    ((flow_hash as u64 * size as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const SIZE: usize = 16_381;

    fn table(backends: &[u32]) -> Vec<u32> {
        let mut permutations: Vec<_> = backends
            .iter()
            .map(|b| {
                Permutation::new(
                    &Seed(*b"JLfvgnHc2kaS"),
                    Addr::v4(b.to_be_bytes()),
                    Port::new(80),
                    SIZE as u32,
                )
            })
            .collect();
        let mut table = vec![0; SIZE];
        populate(&mut permutations, &mut table);
        table.iter().map(|p| backends[usize::from(*p)]).collect()
    }

    #[test]
    fn slots_are_shared_evenly() {
        for n in [1, 3, 10, 100, 160] {
            let backends: Vec<u32> = (1..=n).collect();
            let table = table(&backends);
            let count = |b: &u32| table.iter().filter(|t| *t == b).count();
            let counts: Vec<usize> = backends.iter().map(count).collect();
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{n}: {counts:?}");
        }
    }

    #[test]
    fn few_flows_of_survivors_move_when_a_backend_leaves() {
        for n in [3u32, 10, 100, 160] {
            let all: Vec<u32> = (1..=n).collect();
            let fewer: Vec<u32> = (2..=n).collect();
            let moved = table(&all)
                .iter()
                .zip(table(&fewer))
                .filter(|(before, after)| **before != 1 && *before != after)
                .count();
            // What the algorithm gives at 100 slots a backend and more.
            assert!(moved * 50 <= SIZE, "{n} backends: {moved} of {SIZE} slots of survivors moved");
        }
    }
}

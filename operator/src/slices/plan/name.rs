//! Names of slices, in Cilium's form: `ces-8zcx94kqd-7hv5g`.

/// No vowels and none of 0, 1 and 3, so that no word comes of it (Cilium: operator/pkg/ciliumendpointslice).
const LETTERS: &[u8; 28] = b"bcdfghjklmnpqrstvwxyz2456789";

/// The name of the slice whose oldest endpoint has this UID. Two replicas that make a slice for it make the same one, and
/// the later is refused; `salt` is above 0 only where the name is another slice's already.
pub(super) fn name(uid: &str, salt: u32) -> String {
    let hash = |seed: u64| {
        // FNV-1a of 64 bits: the same in every version of Portway.
        let bytes = uid.bytes().chain(salt.to_be_bytes());
        bytes.fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let first = hash(0xcbf2_9ce4_8422_2325);
    format!("ces-{}-{}", word(first, 9), word(hash(first), 5))
}

fn word(mut hash: u64, letters: usize) -> String {
    // The upper bits of the hash are mixed better than the lower ones.
    hash ^= hash >> 32;
    let mut word = String::new();
    for _ in 0..letters {
        word.push(char::from(LETTERS[(hash % 28) as usize]));
        hash /= 28;
    }
    word
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_have_ciliums_form_and_are_as_many_as_their_endpoints() {
        let mut names = BTreeSet::new();
        for n in 0..20_000_u32 {
            let name = name(&format!("{n:08x}-53a1-4d98-8204-8adf1156ecec"), n % 3);
            let parts: Vec<_> = name.split('-').collect();
            let is_word = |word: &str, len| word.len() == len && word.bytes().all(|b| LETTERS.contains(&b));
            assert!(parts[0] == "ces" && is_word(parts[1], 9) && is_word(parts[2], 5), "{name}");
            assert!(names.insert(name));
        }
        // Another version that named them otherwise would make a second slice beside a frozen leader's.
        assert_eq!(name("90b353f5-53a1-4d98-8204-8adf1156ecec", 0), "ces-ll2k6fmqy-lsghw");
    }
}

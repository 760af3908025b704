//! The type information of an object, as the kernel takes it.
//!
//! rustc describes an enum with data as a union whose members lie behind the tag. The kernel wants every member of a union at
//! its beginning, or refuses all type information, and with it programs that pass a function to a helper
//! (`bpf_loop`). Names of fields are all that the kernel makes of it.

// include/uapi/linux/elf.h, `struct elf64_hdr` and `elf64_shdr`: offsets of fields.
const SECTIONS_AT: usize = 0x28;
const SECTION_BYTES: usize = 0x3a;
const SECTIONS: usize = 0x3c;
const NAMES_SECTION: usize = 0x3e;
const OFFSET: usize = 0x18;
// include/uapi/linux/btf.h.
const MAGIC: u32 = 0xeb9f;
const KIND_UNION: u32 = 5;
/// Bytes of `struct btf_type` and of `struct btf_member`.
const TYPE: usize = 12;
const MEMBER: usize = 12;

/// A copy of an object in which the members of unions begin where the unions do; as it is where it has no type information
/// that can be read.
pub(super) fn with_flat_unions(object: &[u8]) -> Vec<u8> {
    let mut copy = object.to_vec();
    for at in member_offsets(object).unwrap_or_default() {
        if let Some(offset) = copy.get_mut(at..at + size_of::<u32>()) {
            offset.fill(0);
        }
    }
    copy
}

/// Where the offsets of the members of unions stand.
fn member_offsets(object: &[u8]) -> Option<Vec<usize>> {
    let header = btf_section(object)?;
    if word(object, header)? & 0xffff != MAGIC {
        return None;
    }
    let field = |at: usize| word(object, header.checked_add(at)?).map(|word| word as usize);
    let mut at = header + field(4)? + field(8)?;
    let end = at + field(12)?;
    let mut found = Vec::new();
    while at < end {
        let info = word(object, at + 4)?;
        let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        at += TYPE;
        if kind == KIND_UNION {
            found.extend((0..members).map(|member| at + member * MEMBER + 8));
        }
        at += rest_of(kind, members)?;
    }
    Some(found)
}

/// Bytes that follow `struct btf_type`. `None` for a kind that is not known.
const fn rest_of(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG.
        2 | 7..=12 | 16 | 18 => 0,
        // INT, VAR, DECL_TAG.
        1 | 14 | 17 => 4,
        // ARRAY.
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64.
        4 | KIND_UNION | 15 | 19 => members * MEMBER,
        // ENUM, FUNC_PROTO.
        6 | 13 => members * 8,
        _ => return None,
    })
}

/// Where the section `.BTF` begins.
fn btf_section(object: &[u8]) -> Option<usize> {
    let sections = long(object, SECTIONS_AT)?;
    let section = |number: usize| sections.checked_add(number * usize::from(short(object, SECTION_BYTES)?));
    let names = long(object, section(short(object, NAMES_SECTION)?.into())?.checked_add(OFFSET)?)?;
    let is_btf = |at: &usize| {
        let name = word(object, *at).and_then(|name| object.get(names.checked_add(name as usize)?..));
        name.is_some_and(|name| name.starts_with(b".BTF\0"))
    };
    let at = (0..short(object, SECTIONS)?.into()).filter_map(section).find(is_btf)?;
    long(object, at.checked_add(OFFSET)?)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    let long = bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)?;
    usize::try_from(long).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object with a `.BTF` of a struct with a member at bit 64 and a union with two, at 64 and at 0.
    fn object() -> Vec<u8> {
        let mut btf = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0];
        let mut types: Vec<u32> = Vec::new();
        types.extend([0, 4 << 24 | 1, 16, 0, 0, 64]);
        types.extend([0, KIND_UNION << 24 | 2, 16, 0, 0, 64, 0, 0, 0]);
        types.extend([0, 2 << 24, 1]);
        for word in [types.len() as u32 * 4, 0, 0].into_iter().chain(types) {
            btf.extend(word.to_le_bytes());
        }
        let names = b"\0.BTF\0";
        let (names_at, btf_at) = (64, 64 + names.len());
        let sections = btf_at + btf.len();
        let mut object = vec![0; 64];
        object[SECTIONS_AT..SECTIONS_AT + 8].copy_from_slice(&(sections as u64).to_le_bytes());
        for (at, value) in [(SECTION_BYTES, 64), (SECTIONS, 2), (NAMES_SECTION, 0)] {
            object[at] = value;
        }
        object.extend(names);
        object.extend(btf);
        for (name, offset) in [(0_u32, names_at), (1, btf_at)] {
            let mut section = [0; 64];
            section[..4].copy_from_slice(&name.to_le_bytes());
            section[OFFSET..OFFSET + 8].copy_from_slice(&(offset as u64).to_le_bytes());
            object.extend(section);
        }
        object
    }

    #[test]
    fn only_the_members_of_unions_move() {
        let object = object();
        let flat = with_flat_unions(&object);
        let changed: Vec<_> = (0..object.len()).filter(|at| object[*at] != flat[*at]).collect();
        let [at] = changed[..] else { panic!("{changed:?}") };
        assert_eq!((object[at], flat[at]), (64, 0));
        // The struct's member, which comes first, has the same offset and keeps it.
        assert!(object.iter().position(|byte| *byte == 64).is_some_and(|first| first < at));
        assert_eq!(flat, with_flat_unions(&flat));
    }

    #[test]
    fn what_is_no_object_stays_as_it_is() {
        for bytes in [&b""[..], b"\x7fELF", &[0xff; 200]] {
            assert_eq!(with_flat_unions(bytes), bytes);
        }
        let mut cut = object();
        cut.truncate(100);
        assert_eq!(with_flat_unions(&cut), cut);
    }
}

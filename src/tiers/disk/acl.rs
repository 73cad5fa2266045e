//! POSIX access control lists as the kernel stores them in extended attributes, as far as a file system must know them:
//! what a new node inherits, and how list and mode bits follow each other. Pure.
//!
//! Format and rules: Linux `include/uapi/linux/posix_acl_xattr.h`, `fs/posix_acl.c` (`posix_acl_create_masq`,
//! `__posix_acl_chmod_masq`, `posix_acl_equiv_mode`); POSIX 1003.1e draft 17, section 23.

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

fn parse(bytes: &[u8]) -> Option<Vec<AclEntry>> {
    let (version, entries) = bytes.split_first_chunk::<4>()?;
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    let entry = |&[tag0, tag1, perm0, perm1, id0, id1, id2, id3]: &[u8; 8]| AclEntry {
        tag: u16::from_le_bytes([tag0, tag1]),
        perm: u16::from_le_bytes([perm0, perm1]),
        id: u32::from_le_bytes([id0, id1, id2, id3]),
    };
    (u32::from_le_bytes(*version) == VERSION).then(|| entries.iter().map(entry).collect())
}

fn encode(entries: &[AclEntry]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for e in entries {
        bytes.extend(e.tag.to_le_bytes());
        bytes.extend(e.perm.to_le_bytes());
        bytes.extend(e.id.to_le_bytes());
    }
    bytes
}

/// The entry that corresponds to the mode's group bits: the mask if there is one.
fn group_entry(entries: &mut [AclEntry]) -> Option<&mut AclEntry> {
    let tag = if entries.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ };
    entries.iter_mut().find(|e| e.tag == tag)
}

/// Whether the list is equivalent to mode bits.
fn is_minimal(entries: &[AclEntry]) -> bool {
    entries.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
}

/// The permission bits of a node created with `mode` in a directory with this default list, and its access list unless
/// the bits are equivalent to it. The umask does not apply then. `None` for a list that cannot be read.
pub(crate) fn inherit(default: &[u8], mode: u32) -> Option<(u32, Option<Vec<u8>>)> {
    let mut entries = parse(default)?;
    let mut perm = mode;
    let mut narrow = |entry: &mut AclEntry, shift: u32| {
        let allowed = entry.perm & ((perm >> shift) & 7) as u16;
        entry.perm = allowed;
        perm = perm & !(7 << shift) | (u32::from(allowed) << shift);
    };
    for entry in &mut entries {
        match entry.tag {
            USER_OBJ => narrow(entry, 6),
            OTHER => narrow(entry, 0),
            _ => {}
        }
    }
    narrow(group_entry(&mut entries)?, 3);
    let list = (!is_minimal(&entries)).then(|| encode(&entries));
    Some((perm, list))
}

/// The list after `chmod` to these permission bits.
pub(crate) fn chmod(access: &[u8], perm: u32) -> Option<Vec<u8>> {
    let mut entries = parse(access)?;
    for entry in &mut entries {
        match entry.tag {
            USER_OBJ => entry.perm = ((perm >> 6) & 7) as u16,
            OTHER => entry.perm = (perm & 7) as u16,
            _ => {}
        }
    }
    group_entry(&mut entries)?.perm = ((perm >> 3) & 7) as u16;
    Some(encode(&entries))
}

/// The list with the owner's rights changed.
pub(crate) fn with_owner(access: &[u8], rights: impl Fn(u16) -> u16) -> Option<Vec<u8>> {
    let mut entries = parse(access)?;
    entries.iter_mut().filter(|e| e.tag == USER_OBJ).for_each(|e| e.perm = rights(e.perm));
    Some(encode(&entries))
}

/// The permission bits after setting this access list, and whether they are equivalent to it (the list is then not
/// stored).
pub(crate) fn mode_of(access: &[u8], perm: u32) -> Option<(u32, bool)> {
    let mut entries = parse(access)?;
    let minimal = is_minimal(&entries);
    let bits = |tag| entries.iter().find(|e| e.tag == tag).map(|e| u32::from(e.perm & 7));
    let (user, other) = (bits(USER_OBJ)?, bits(OTHER)?);
    let group = u32::from(group_entry(&mut entries)?.perm & 7);
    Some((perm & !0o777 | user << 6 | group << 3 | other, minimal))
}

/// A list that mode 0640 is not equivalent to, to test for ACL support.
pub(crate) fn example() -> Vec<u8> {
    const USER: u16 = 0x02;
    let entry = |tag, perm, id| AclEntry { tag, perm, id };
    let nobody = u32::MAX;
    encode(&[
        entry(USER_OBJ, 6, nobody),
        entry(USER, 4, 1),
        entry(GROUP_OBJ, 4, nobody),
        entry(MASK, 4, nobody),
        entry(OTHER, 0, nobody),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        encode(&entries.iter().map(|&(tag, perm)| AclEntry { tag, perm, id: u32::MAX }).collect::<Vec<_>>())
    }

    #[test]
    fn a_minimal_default_list_narrows_the_mode_and_leaves_no_list() {
        let default = list(&[(USER_OBJ, 7), (GROUP_OBJ, 5), (OTHER, 0)]);
        assert_eq!(inherit(&default, 0o666), Some((0o640, None)));
    }

    #[test]
    fn a_mask_takes_the_group_bits() {
        let default = list(&[(USER_OBJ, 7), (0x02, 7), (GROUP_OBJ, 7), (MASK, 7), (OTHER, 5)]);
        let (perm, access) = inherit(&default, 0o640).expect("a sound list");
        assert_eq!(perm, 0o640);
        let access = access.expect("a named user needs a list");
        assert_eq!(access, list(&[(USER_OBJ, 6), (0x02, 7), (GROUP_OBJ, 7), (MASK, 4), (OTHER, 0)]));
        assert_eq!(mode_of(&access, 0o2777), Some((0o2640, false)));
        assert_eq!(mode_of(&chmod(&access, 0o751).expect("sound"), 0), Some((0o751, false)));
    }

    #[test]
    fn garbage_is_refused() {
        for bad in [&b""[..], b"\x02\0\0", b"\x01\0\0\0", b"\x02\0\0\0\x01"] {
            assert_eq!(inherit(bad, 0o644), None);
            assert_eq!(mode_of(bad, 0o644), None);
        }
    }
}

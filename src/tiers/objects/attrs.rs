//! A file's attributes: giving them to a new file, and reading them.

use std::sync::LazyLock;

use crate::error::{Context, Errno, Result};
use crate::tiers::disk::layout::{PRIVATE, drop_lists};
use crate::tiers::disk::{File, Inode, Kind, NewAttr, acl};
use crate::tiers::log::record::Attrs;

/// A new node's attributes, after umask or default ACL and setgid directory.
pub(crate) struct Birth {
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Birth {
    /// Whether a file that the daemon makes needs a chown. Not for a file of root's, unless root's daemon runs with
    /// another group than root's.
    pub(crate) fn has_owner(&self) -> bool {
        static GROUP: LazyLock<u32> = LazyLock::new(|| nix::unistd::getegid().as_raw());
        (self.uid, self.gid) != (0, 0) || *GROUP != 0
    }
}

/// Gives a new object its owner, the mode bits a chown cleared, and its extended attributes.
pub(crate) fn dress(fd: &dyn File, birth: &Birth) -> std::io::Result<()> {
    if birth.has_owner() {
        fd.set_attr(&NewAttr {
            uid: Some(birth.uid),
            gid: Some(birth.gid),
            perm: (birth.perm & 0o6000 != 0).then_some(birth.perm),
            ..NewAttr::default()
        })?;
    }
    for (key, value) in &birth.xattrs {
        fd.set_xattr(key, value)?;
    }
    Ok(())
}

/// Removes the ACLs that a new node has inherited from its directory, unless it is given others: its permissions are
/// those in the view. Call it before setting the mode, which an ACL would take as its mask.
pub(crate) fn drop_inherited(node: &dyn Inode, kind: Kind, xattrs: &[(Vec<u8>, Vec<u8>)]) -> std::io::Result<()> {
    let inherited: &[&[u8]] = if kind == Kind::Dir { &[acl::ACCESS, acl::DEFAULT] } else { &[acl::ACCESS] };
    let is_given = |key: &[u8]| xattrs.iter().any(|(given, _)| given == key);
    inherited.iter().filter(|key| !is_given(key)).try_for_each(|key| drop_lists(node, &[key]))
}

/// Owner, then mode (a chown clears suid), then extended attributes, then times (each of the others touches them).
pub(crate) fn set_attrs(file: &dyn File, attrs: &Attrs) -> std::io::Result<()> {
    drop_inherited(file, Kind::File, &attrs.xattrs)?;
    file.set_attr(&NewAttr {
        uid: Some(attrs.uid),
        gid: Some(attrs.gid),
        perm: Some(attrs.perm),
        ..NewAttr::default()
    })?;
    for (key, value) in &attrs.xattrs {
        file.set_xattr(key, value)?;
    }
    file.set_attr(&NewAttr { mtime: Some(attrs.mtime), ..NewAttr::default() })
}

/// The file's own extended attributes: not ours, nor those of the tier that it is on.
pub(crate) fn own_xattrs(fd: &dyn File) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let keys = match fd.list_xattr() {
        Err(e) if e.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Vec::new(),
        other => other.at("list attributes of", "object")?,
    };
    let mut all = Vec::new();
    for key in keys.into_iter().filter(|key| travels(key)) {
        if let Some(value) = fd.get_xattr(&key).at("read attributes of", "object")? {
            all.push((key, value));
        }
    }
    all.sort();
    Ok(all)
}

/// Whether an attribute may be copied. The tier's own attributes are meaningless for another file, there or elsewhere.
pub(crate) fn travels(key: &[u8]) -> bool {
    // ACLs as XFS stores them, which it shows by their usual names, too; Lustre, GlusterFS.
    const STAY: [&[u8]; 15] = [
        b"trusted.SGI_ACL_",
        b"trusted.lov",
        b"trusted.lma",
        b"trusted.lmv",
        b"trusted.link",
        b"trusted.fid",
        b"trusted.hsm",
        b"trusted.som",
        b"trusted.dmv",
        b"trusted.glusterfs.",
        b"trusted.gfid",
        b"trusted.afr.",
        b"trusted.ec.",
        b"trusted.pgfid.",
        b"trusted.bit-rot.",
    ];
    match key {
        acl::ACCESS | acl::DEFAULT | b"security.capability" => true,
        key if key.starts_with(b"user.") => !key.starts_with(PRIVATE),
        key => key.starts_with(b"trusted.") && !STAY.iter().any(|stays| key.starts_with(stays)),
    }
}

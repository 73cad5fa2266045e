//! `.dlio/latest-safe`: a link to the newest checkpoint that is wholly on the slow tier.

use super::session::walk;
use super::{Control, Node};
use crate::error::{Errno, Result};
use crate::path::Name;
use crate::tiers::{Attr, Cx, Ino};

impl Control {
    /// Where the link leads, from `.dlio`. ENOENT if there is no such checkpoint, or it is not there any more. The path is nobody's
    /// business who could not go there: EACCES.
    pub(in crate::fs) fn latest_safe(&self, ino: Ino, cx: &Cx) -> Result<Vec<u8>> {
        if Node::of(ino)? != Node::LatestSafe {
            return Err(Errno::EINVAL.into());
        }
        let path = self.tiers.latest_safe().ok_or(Errno::ENOENT)?;
        let names: Vec<Name> = path.split(|byte| *byte == b'/').map(Name::new).collect::<Result<_, _>>()?;
        let (owner, uid, gid) = (self.owner.0, cx.uid, cx.gid);
        self.on_slow(move |tiers, cx| {
            let steps = walk(tiers, cx, &names)?;
            let above = steps.split_last().map_or(&[][..], |(_, above)| above);
            let open = uid == 0 || uid == owner || above.iter().all(|dir| may_pass(dir, uid, gid));
            if open { Ok(()) } else { Err(Errno::EACCES.into()) }
        })?;
        Ok([&b"../"[..], &path].concat())
    }
}

/// Whether this user gets through a directory, by its mode. The kernel does not tell of a process's further groups, so who gets
/// through by one of those alone is told nothing.
fn may_pass(dir: &Attr, uid: u32, gid: u32) -> bool {
    let shift = match (dir.uid == uid, dir.gid == gid) {
        (true, _) => 6,
        (false, true) => 3,
        (false, false) => 0,
    };
    dir.perm >> shift & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::disk::{Kind, Time};

    #[test]
    fn the_mode_of_a_directory_says_who_gets_through() {
        let zero = Time { sec: 0, nsec: 0 };
        let dir = |perm| Attr {
            ino: 9,
            kind: Kind::Dir,
            perm,
            nlink: 2,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            ttl: std::time::Duration::ZERO,
        };
        let pass = |perm| [(1, 2), (3, 2), (3, 4)].map(|(uid, gid)| may_pass(&dir(perm), uid, gid));
        assert_eq!(pass(0o711), [true, true, true]);
        assert_eq!(pass(0o750), [true, true, false]);
        assert_eq!(pass(0o671), [false, true, true], "the owner is none of the others");
    }
}

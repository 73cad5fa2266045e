//! Handles `setfattr -n user.dlio.VERB`: the owner of a file may request for it what only the mount's owner may request
//! on `control`.

use super::sources::Control;
use crate::error::{Errno, Result};
use crate::path::escape;
use crate::tiers::disk::Kind;
use crate::tiers::{Cx, Evicted, Ino};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum Verb {
    /// The file, and everything below it.
    Stage,
    /// The value `0` unpins.
    Pin,
    Evict,
    /// Copies it to the slow tier before all others.
    Drain,
}

impl Verb {
    /// `None`: not an attribute that can be set.
    pub(in crate::fs) fn of(key: &[u8]) -> Option<Verb> {
        match key.strip_prefix(b"user.dlio.")? {
            b"stage" => Some(Verb::Stage),
            b"pin" => Some(Verb::Pin),
            b"evict" => Some(Verb::Evict),
            b"drain" => Some(Verb::Drain),
            _ => None,
        }
    }
}

impl Control {
    /// EPERM for a user who owns neither the file nor the mount. The file's owner gets EDQUOT beyond what one user may
    /// pin or stage, and EISDIR for pinning a directory. EBUSY for evicting a file that is open or pinned, or while
    /// only the fast tier has it.
    pub(in crate::fs) fn by_xattr(&self, cx: &Cx, ino: Ino, verb: Verb, value: &[u8]) -> Result<()> {
        let attr = self.tiers.getattr(cx, ino)?;
        let is_trusted = [0, self.owner.0].contains(&cx.uid);
        if !is_trusted && attr.uid != cx.uid {
            return Err(Errno::EPERM.into());
        }
        let path = self.tiers.path(ino).ok_or(Errno::ENOENT)?;
        match verb {
            Verb::Stage => {
                let what = format!("/{}", escape(&path));
                let job = if is_trusted {
                    self.tiers.stage(&what, vec![path])
                } else {
                    self.tiers.stage_for(cx.uid, &what, vec![path])
                };
                job.map(drop)
            }
            Verb::Pin if value == b"0" => self.tiers.unpin_path(&path).map(drop),
            Verb::Pin if is_trusted => self.tiers.pin_path(&path).map(drop),
            // A file's owner may not pin a directory: files that appear below it later are not counted against the
            // limit.
            Verb::Pin if attr.kind != Kind::File => Err(Errno::EISDIR.into()),
            Verb::Pin => self.tiers.pin_file_for(cx.uid, &path, attr.size).map(drop),
            Verb::Evict => self.evict_one(cx, ino),
            Verb::Drain => self.tiers.prioritize(cx, ino).map(drop),
        }
    }

    fn evict_one(&self, cx: &Cx, ino: Ino) -> Result<()> {
        if self.tiers.evict_copy_of(ino)? {
            return Ok(());
        }
        match self.tiers.evict_now(cx, ino)? {
            Evicted::Gone(_) => Ok(()),
            // None of it is on the fast tier, or nothing that may be evicted.
            Evicted::NotClean if self.tiers.pending_below(ino).is_none() => Ok(()),
            Evicted::NotClean | Evicted::Open | Evicted::Pinned => Err(Errno::EBUSY.into()),
            Evicted::Changed => Err(Errno::ESTALE.into()),
        }
    }
}

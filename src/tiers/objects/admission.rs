//! Attributes and sizes that the slow tier does not take: left out and counted, or refused.

use std::fmt::Display;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use crate::error::{Errno, Result};
use crate::path::{NAME_MAX, Name, escape};
use crate::tiers::disk::layout::remove_leftover;
use crate::tiers::disk::{File, Kind, NewAttr, Stat};
use crate::tiers::log::record::Attrs;
use crate::tiers::objects::abilities::{Abilities, FILE_PERM, FREE, is, is_of_name, is_plain, is_refused};
use crate::tiers::objects::attrs::drop_inherited;
use crate::tiers::objects::slow_tier::SlowTier;
use crate::tiers::{Cx, Tiers};

impl SlowTier {
    /// Whether an attribute was refused for good: the tier has none of its kind, or none so large.
    pub(crate) fn never_takes(&self, error: &io::Error) -> bool {
        let is_full = || self.root.space().is_ok_and(|space| space.avail <= FREE);
        is(error, &[Errno::EOPNOTSUPP, Errno::E2BIG, Errno::ERANGE]) || (is(error, &[Errno::ENOSPC]) && !is_full())
    }

    /// Sets extended attributes of a file of ours that is not in its place yet. Returns the keys that are left out.
    pub(crate) fn put_xattrs(
        &self,
        xattrs: &[(Vec<u8>, Vec<u8>)],
        set: impl Fn(&[u8], &[u8]) -> io::Result<()>,
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut left_out = Vec::new();
        for (key, value) in xattrs {
            match set(key, value) {
                // Some may be set only by root, or not at all on the server.
                Err(e) if self.never_takes(&e) || (!key.starts_with(b"user.") && is_refused(&e)) => {
                    left_out.push(key.clone());
                }
                done => done?,
            }
        }
        Ok(left_out)
    }

    /// Like [`crate::tiers::objects::attrs::set_attrs`], limited to what the tier can hold and what the new file does
    /// not have since it was `born`.
    pub(crate) fn set_attrs(&self, file: &dyn File, born: &Stat, attrs: &Attrs) -> io::Result<Vec<Vec<u8>>> {
        let Attrs { perm, uid, gid, mtime, xattrs } = attrs;
        if self.abilities.acls {
            drop_inherited(file, Kind::File, xattrs)?;
        }
        let chown = (born.uid, born.gid) != (*uid, *gid);
        // A write and a chown clear suid and sgid.
        let chmod = born.perm != *perm || perm & 0o6000 != 0;
        let new = NewAttr {
            uid: chown.then_some(*uid),
            gid: chown.then_some(*gid),
            perm: chmod.then_some(*perm),
            ..NewAttr::default()
        };
        if chown || chmod {
            file.set_attr(&self.abilities.kept(&new))?;
        }
        let left_out = self.put_xattrs(xattrs, |key, value| file.set_xattr(key, value))?;
        file.set_attr(&NewAttr { mtime: Some(*mtime), ..NewAttr::default() })?;
        Ok(left_out)
    }
}

impl Tiers {
    /// The slow tier's abilities, as found at the start.
    pub fn abilities(&self) -> Abilities {
        self.slow.abilities
    }

    /// Reports attributes that the slow tier does not take: `path` has them in the mount only.
    pub(crate) fn warn_of_left_out(&self, path: impl Display, keys: &[Vec<u8>]) {
        for key in keys {
            let key = escape(key);
            self.counters.left_out.fetch_add(1, Ordering::Relaxed);
            if self.slow.abilities.has(key.as_bytes()) {
                self.counters
                    .conflict(format!("/{path}: the slow tier does not take its attribute {key}; it is left out"));
                tracing::warn!(%path, key, "the slow tier does not take an attribute of this file; it is left out");
            }
        }
    }

    /// The part of an attribute change that the slow tier takes for a node of this kind; the rest is counted.
    pub(crate) fn keep_of(&self, kind: Kind, new: &NewAttr) -> NewAttr {
        let kept = self.slow.abilities.kept_by(kind, new);
        if kept != *new {
            self.counters.left_out.fetch_add(1, Ordering::Relaxed);
        }
        kept
    }

    /// Call before a file grows to this size: EFBIG if the slow tier has no files that large.
    pub(crate) fn admit_size(&self, cx: &Cx, size: u64) -> Result<()> {
        let tried = |name: &[u8], size: u64| self.slow.tmp.create(name, 0o600).and_then(|file| file.set_len(size));
        let round = size.checked_next_power_of_two().unwrap_or(size);
        self.admit(cx, &self.slow.size_known, size, &[round, size], tried)
    }

    /// Call before a symbolic link gets this target: ENAMETOOLONG if the slow tier has no targets that long.
    pub(crate) fn admit_target(&self, cx: &Cx, target: &[u8]) -> Result<()> {
        let tried = |name: &[u8], _| self.slow.tmp.symlink(name, target);
        let length = target.len() as u64;
        self.admit(cx, &self.slow.target_known, length, &[length], tried)
    }

    /// Call before a node gets this name: the slow tier's own error if it does not take the name, or EINVAL if that
    /// error would mislead the caller.
    pub(crate) fn admit_name(&self, cx: &Cx, name: &Name) -> Result<()> {
        let name = name.as_bytes();
        if self.slow.abilities.any_names || is_plain(name) || self.slow.is_down() {
            return Ok(());
        }
        cx.slow()?;
        let tried = if name.len() < NAME_MAX { [b"p", name].concat() } else { name.to_vec() };
        let refused = match self.slow.tmp.create(&tried, FILE_PERM) {
            Ok(_) => return remove_leftover(&*self.slow.tmp, &tried),
            Err(e) => e,
        };
        let plain = format!("p{:016x}", self.pool.number()).into_bytes();
        let is_there = self.slow.tmp.create(&plain, FILE_PERM).is_ok();
        remove_leftover(&*self.slow.tmp, &plain)?;
        match refused {
            e if !is_there || !is_of_name(&e) => Ok(()),
            e if is(&e, &[Errno::EILSEQ, Errno::ENAMETOOLONG]) => {
                Err(e.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw).into())
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// `known` is the size that the slow tier is known to take. Larger sizes are tried, in the order of `tries`.
    fn admit(
        &self,
        cx: &Cx,
        known: &AtomicU64,
        wanted: u64,
        tries: &[u64],
        try_it: impl Fn(&[u8], u64) -> io::Result<()>,
    ) -> Result<()> {
        if wanted <= known.load(Ordering::Relaxed) || self.slow.is_down() {
            return Ok(());
        }
        cx.slow()?;
        let name = format!("p{:016x}", self.pool.number()).into_bytes();
        let mut refused = Errno::EFBIG;
        for size in tries {
            let done = try_it(&name, *size);
            remove_leftover(&*self.slow.tmp, &name)?;
            match done {
                Ok(()) => {
                    known.fetch_max(*size, Ordering::Relaxed);
                    return Ok(());
                }
                Err(e) if is(&e, &[Errno::ENAMETOOLONG]) => refused = Errno::ENAMETOOLONG,
                Err(e) if is(&e, &[Errno::EFBIG, Errno::EINVAL]) => {}
                // The error says nothing about the size.
                Err(_) => return Ok(()),
            }
        }
        Err(refused.into())
    }

    /// EPERM, as on the tier itself, for a node of a kind that the slow tier does not have.
    pub(crate) fn admit_kind(&self, kind: Kind) -> Result<()> {
        let Abilities { symlinks, fifos, .. } = self.slow.abilities;
        let able = match kind {
            Kind::File | Kind::Dir => true,
            Kind::Symlink => symlinks,
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => fifos,
        };
        if able { Ok(()) } else { Err(Errno::EPERM.into()) }
    }
}

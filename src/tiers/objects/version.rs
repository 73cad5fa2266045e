//! One version of a file on its way to the slow tier: the first `size` bytes of an object.
//!
//! # Its life
//!
//! A version starts out *committed*: an event of the log names it. Its further life is a set of independent facts; once
//! true, a fact stays true. They share one word ([`Life`]), so that adding one returns which others held before.
//!
//! | fact | said by | may come after | means |
//! |---|---|---|---|
//! | sealing | `ops::seal`, before the seal is logged | committed | an overwrite is logged durably first |
//! | sealed | `ops::seal`, when bytes and seal are durable; a start | sealing | D1: a power cut leaves it |
//! | copied ([`Content::copy`]) | `writeback::drain` | not overwritten by then | in `tmp`; taken back if that goes |
//! | overwritten | a write to its object, `set_aside`, a start | any but applied | its object has other bytes |
//! | early | `writeback::publish` | copied | published before its turn, as part of a batch |
//! | applied | the state, with the event | any | the slow tier has it, or something newer |
//!
//! Besides these facts a version has its *policy*, which may change: whether it may be skipped once it is superseded
//! (`drain_policy = "newest"`).
//!
//! It is *pending* until it is applied, *alive* while it is pending and its object has its bytes, and it *exists* while
//! its bytes are in its object, in `tmp`, or on the slow tier ahead of its turn.

use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::sync::atomic::{AtomicU8, Ordering};
use crate::tiers::disk::{SlowId, Time};
use crate::tiers::log::record::{Attrs, Home, ObjectId, TmpStat};
use crate::tiers::objects::hash::Hash;

/// A version. A million may wait: rare fields are boxed, and [`Attrs`] is stored field by field to avoid padding.
#[derive(Debug)]
pub(crate) struct Content {
    object: Object,
    pub(crate) size: u64,
    perm: u16,
    uid: u32,
    gid: u32,
    sec: i64,
    nsec: u32,
    #[allow(clippy::box_collection, reason = "in 8 bytes")]
    xattrs: Option<Box<Vec<Xattr>>>,
    burst: u32,
    life: Life,
    /// The finished copy in `tmp`. Boxed: few of the waiting versions have one.
    pub(crate) copy: Mutex<Option<Box<Copied>>>,
}

/// An extended attribute: its name and its value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// Usually in the pool, which takes half the bytes.
#[derive(Debug)]
enum Object {
    InPool(u64),
    Other(Box<ObjectId>),
}

#[derive(Clone, Debug)]
pub(crate) struct Copied {
    pub(crate) tmp: Vec<u8>,
    /// Which file it is on the slow tier.
    pub(crate) id: SlowId,
    /// The hash of its bytes, if they were copied.
    pub(crate) sum: Option<Hash>,
    /// Its stat on the slow tier, if that does not change before it is placed.
    pub(crate) known: Option<TmpStat>,
}

impl Content {
    pub(crate) fn new(object: ObjectId, size: u64, attrs: Attrs, burst: u64) -> Self {
        let Attrs { perm, uid, gid, mtime, xattrs } = attrs;
        let object = match object.home {
            Home::Fast => Object::InPool(object.number),
            Home::Slow | Home::Split { .. } => Object::Other(Box::new(object)),
        };
        Content {
            object,
            size,
            // Twelve bits.
            perm: (perm & 0o7777) as u16,
            uid,
            gid,
            sec: mtime.sec,
            nsec: mtime.nsec,
            xattrs: Some(xattrs).filter(|xattrs| !xattrs.is_empty()).map(Box::new),
            burst: burst.try_into().unwrap_or(0),
            life: Life::default(),
            copy: Mutex::default(),
        }
    }

    pub(crate) fn object(&self) -> ObjectId {
        match &self.object {
            Object::InPool(number) => ObjectId { home: Home::Fast, number: *number },
            Object::Other(object) => **object,
        }
    }

    pub(crate) fn attrs(&self) -> Attrs {
        let mtime = Time { sec: self.sec, nsec: self.nsec };
        let xattrs = self.xattrs.as_deref().cloned().unwrap_or_default();
        Attrs { perm: self.perm.into(), uid: self.uid, gid: self.gid, mtime, xattrs }
    }

    pub(crate) fn xattrs(&self) -> &[Xattr] {
        self.xattrs.as_deref().map_or(&[], |xattrs| xattrs)
    }

    /// The number of its burst; 0: unknown.
    pub(crate) fn burst(&self) -> u64 {
        self.burst.into()
    }

    /// Whether its object has its bytes.
    pub(crate) fn is_intact(&self) -> bool {
        !self.life.has(Life::OVERWRITTEN)
    }

    /// Whether the slow tier has it, or something newer.
    pub(crate) fn is_applied(&self) -> bool {
        self.life.has(Life::APPLIED)
    }

    /// Whether it is pending, and its object has its bytes.
    pub(crate) fn is_alive(&self) -> bool {
        !self.life.has(Life::OVERWRITTEN | Life::APPLIED)
    }

    pub(crate) fn is_early(&self) -> bool {
        self.life.has(Life::EARLY)
    }

    /// Whether the bytes exist: in its object, in `tmp`, or published ahead of their turn.
    pub(crate) fn exists(&self) -> bool {
        self.is_intact() || self.is_copied() || self.is_early()
    }

    pub(crate) fn is_sealing(&self) -> bool {
        self.life.has(Life::SEALING)
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.life.has(Life::SEALED)
    }

    pub(crate) fn is_copied(&self) -> bool {
        self.copy.lock().is_some()
    }

    pub(crate) fn set_sealing(&self) {
        self.life.add(Life::SEALING);
    }

    pub(crate) fn set_sealed(&self) {
        self.life.add(Life::SEALING | Life::SEALED);
    }

    pub(crate) fn set_overwritten(&self) {
        self.life.add(Life::OVERWRITTEN);
    }

    pub(crate) fn set_early(&self) {
        self.life.add(Life::EARLY);
    }

    pub(crate) fn set_applied(&self) {
        self.life.add(Life::APPLIED);
    }

    /// Sets whether it may be skipped once it is superseded; the name that it was last given decides.
    pub(crate) fn set_policy(&self, newest: bool) {
        if newest {
            self.life.add(Life::NEWEST);
        } else {
            self.life.0.fetch_and(!Life::NEWEST, Ordering::SeqCst);
        }
    }

    /// Whether nothing is lost by not copying it once it is superseded: its policy allows that, and it has no copy. A
    /// version in an object on the slow tier is never copied and never skipped.
    pub(crate) fn may_be_skipped(&self) -> bool {
        self.life.has(Life::NEWEST)
            && self.is_alive()
            && !self.is_early()
            && !self.is_copied()
            && !self.object().needs_slow()
    }

    /// Called when the version no longer exists anywhere.
    pub(crate) fn lose(&self) {
        self.set_overwritten();
        *self.copy.lock() = None;
    }
}

/// The facts of a version's life. Facts are added, never removed, in one order that all threads see.
#[derive(Debug, Default)]
struct Life(AtomicU8);

impl Life {
    const SEALING: u8 = 1;
    const SEALED: u8 = 2;
    const OVERWRITTEN: u8 = 4;
    const EARLY: u8 = 8;
    const APPLIED: u8 = 16;
    /// Not a fact, but the policy.
    const NEWEST: u8 = 32;

    /// Whether one of these facts holds.
    fn has(&self, facts: u8) -> bool {
        self.0.load(Ordering::SeqCst) & facts != 0
    }

    fn add(&self, facts: u8) {
        self.0.fetch_or(facts, Ordering::SeqCst);
    }
}

//! Compares the two copies of a clean file, or of a staged one, byte by byte, while it is mounted.
//!
//! If they differ, a third witness tells which one is bad: the hash that was taken when the bytes were copied down
//! (`user.dlio.hash` on the object, [`Sum`]). Objects of earlier releases and staged copies have none: for a staged
//! copy the slow file counts. Files that change meanwhile are skipped: they are no longer clean.

use std::sync::Arc;

use crate::error::{Context, Errno, Result};
use crate::path::escape;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Access, File, WHOLE};
use crate::tiers::log::record::ObjectId;
use crate::tiers::objects::copy::next_data;
use crate::tiers::objects::hash::{Hash, Sum};
use crate::tiers::objects::pool::Pool;
use crate::tiers::{Cx, Ino, Tiers};

/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// Pieces compared in one call.
const PIECES: u64 = 8;

/// Which copy of a file is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    Fast,
    Slow,
    /// Neither has the bytes that were copied.
    Both,
    /// They differ, and nothing says which is right.
    Unknown,
    /// The staged copy differs from the slow file.
    Staged,
}

/// The result of comparing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// There is more to be read.
    More,
    Same,
    /// `at`: the first byte that differs.
    Differs {
        bad: Bad,
        at: u64,
    },
    /// It is neither clean nor staged: dirty, evicted or changed meanwhile.
    NotClean,
    /// The slow file's fingerprint has changed: a foreign change.
    Changed,
}

/// The fast copy that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FastCopy {
    Object(Ino, ObjectId),
    Staged(u64),
}

/// A fast copy before its slow file is opened.
struct Begun {
    copy: FastCopy,
    label: String,
    fingerprint: Fingerprint,
    fast: Arc<dyn File>,
    recorded: Option<Hash>,
}

/// A file that is being compared.
pub struct Verifying {
    copy: FastCopy,
    /// Its path, for errors.
    label: String,
    fingerprint: Fingerprint,
    fast: Arc<dyn File>,
    slow: Arc<dyn File>,
    recorded: Option<Hash>,
    at: u64,
    differs_at: Option<u64>,
    /// For the fast copy and the slow one: half a kilobyte each.
    sums: Box<[Sum; 2]>,
}

impl std::fmt::Debug for Verifying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifying").field("copy", &self.copy).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Verifying {
    fn new(Begun { copy, label, fingerprint, fast, recorded }: Begun, slow: Arc<dyn File>) -> Self {
        // Read from the devices, not from memory.
        fast.forget_cached(WHOLE);
        slow.forget_cached(WHOLE);
        let sums = Box::default();
        Verifying { copy, label, fingerprint, fast, slow, recorded, at: 0, differs_at: None, sums }
    }

    /// Whether the slow file still has the recorded fingerprint.
    fn is_of_fingerprint(&self) -> Result<bool> {
        Ok(Fingerprint::of(&self.slow.stat().at("stat on slow", &self.label)?) == self.fingerprint)
    }

    /// Bytes compared so far, and their total.
    pub fn progress(&self) -> (u64, u64) {
        (self.at, self.fingerprint.size)
    }
}

impl Tiers {
    /// Opens both copies of a clean file. Waits for the slow tier.
    pub fn begin_verify(&self, cx: &Cx, ino: Ino) -> Result<Result<Verifying, Verified>> {
        cx.slow()?;
        let (file, path) = {
            let st = self.state.lock();
            (st.view.get(ino).and_then(|node| node.file.clone()), st.view.slow_path(ino))
        };
        let clean = file.and_then(|file| {
            let io = file.io.read();
            Some((io.clean()?, io.object()?))
        });
        let (Some((fingerprint, object)), Some(path)) = (clean, path) else { return Ok(Err(Verified::NotClean)) };
        let fast =
            self.pool.open_object(object.number, Access::Unnoticed).at_fast("open the object of", self.label(ino))?;
        let recorded = Pool::sum_of(&*fast).at_fast("read the hash of", self.label(ino))?;
        let begun =
            Begun { copy: FastCopy::Object(ino, object), label: self.label(ino).into(), fingerprint, fast, recorded };
        self.open_slow_file(&path, begun, Verified::Changed)
    }

    /// Opens a staged copy and its slow file. If the slow file has changed since, the copy is no longer valid: the next
    /// open drops it. Waits for the slow tier.
    pub fn begin_verify_staged(&self, cx: &Cx, number: u64) -> Result<Result<Verifying, Verified>> {
        cx.slow()?;
        let known = {
            let st = self.state.lock();
            st.view.at_slow((st.view.root_dev(), number)).and_then(|ino| st.view.slow_path(ino))
        };
        let Some(path) = known.or_else(|| self.copies.path_of(number).ok().flatten()) else {
            return Ok(Err(Verified::NotClean));
        };
        let label = escape(&path);
        let Some(copy) = self.copies.find(number).at_fast("open the staged copy of", &label)? else {
            return Ok(Err(Verified::NotClean));
        };
        let (fingerprint, fast) = (copy.fingerprint, copy.fd);
        let begun = Begun { copy: FastCopy::Staged(number), label, fingerprint, fast, recorded: None };
        self.open_slow_file(&path, begun, Verified::NotClean)
    }

    /// `other`: the result if there is another file or none.
    fn open_slow_file(&self, path: &[u8], begun: Begun, other: Verified) -> Result<Result<Verifying, Verified>> {
        let opened = match self.slow.parent(path).and_then(|(dir, name)| dir.open(name, Access::Unnoticed)) {
            // The mode denies its owner read access, and we are not root: granting it would change the fingerprint.
            Err(e) if e.raw_os_error() == Some(Errno::EACCES as i32) => return Ok(Err(Verified::NotClean)),
            opened => opened,
        };
        let Some(slow) = absent_is_none(opened).at("open on slow", &begun.label)? else { return Ok(Err(other)) };
        let file = Verifying::new(begun, slow);
        Ok(if file.is_of_fingerprint()? { Ok(file) } else { Err(other) })
    }

    /// Compares the next pieces. Waits for the slow tier.
    pub fn verify_some(&self, cx: &Cx, file: &mut Verifying) -> Result<Verified> {
        cx.slow()?;
        let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
        let sizes = [
            file.fast.stat().at_fast("stat the object of", &file.label)?.size,
            file.slow.stat().at("stat on slow", &file.label)?.size,
        ];
        let end = sizes[0].max(sizes[1]);
        for _ in 0..PIECES {
            // Both have holes up to there.
            file.at = self.next_of_either(file, end)?;
            for (sum, size) in file.sums.iter_mut().zip(sizes) {
                sum.zeros_up_to(file.at.min(size));
            }
            let [fast, slow] = &mut pieces;
            let fast = file.fast.read_into(fast, file.at).at_fast("read the object of", &file.label)?;
            let slow = file.slow.read_into(slow, file.at).at("read on slow", &file.label)?;
            if fast != slow && file.differs_at.is_none() {
                let same = fast.iter().zip(slow).take_while(|(a, b)| a == b).count();
                file.differs_at = Some(file.at + same as u64);
            }
            file.sums.iter_mut().zip([fast, slow]).for_each(|(sum, bytes)| sum.take(file.at, bytes));
            let longer = fast.len().max(slow.len());
            file.at += longer as u64;
            if longer < PIECE {
                // In a hole of the longer one nothing was read.
                if sizes[0] != sizes[1] {
                    file.differs_at = file.differs_at.or(Some(sizes[0].min(sizes[1])));
                }
                let verdict = self.verdict(file, sizes)?;
                if let (Verified::Same, FastCopy::Object(ino, _)) = (verdict, file.copy) {
                    self.note_verified(ino);
                }
                return Ok(verdict);
            }
        }
        Ok(Verified::More)
    }

    /// The next position where either copy has data.
    fn next_of_either(&self, file: &Verifying, end: u64) -> Result<u64> {
        let range = file.at..end.max(file.at);
        let on_fast = next_data(&*file.fast, range.clone()).at_fast("read the object of", &file.label)?;
        let on_slow = next_data(&*file.slow, range).at("read on slow", &file.label)?;
        Ok(on_fast.min(on_slow))
    }

    fn verdict(&self, file: &Verifying, sizes: [u64; 2]) -> Result<Verified> {
        if !self.is_still_there(file.copy, &file.fingerprint) {
            return Ok(Verified::NotClean);
        }
        if !file.is_of_fingerprint()? {
            return Ok(Verified::Changed);
        }
        let ([fast, slow], [fast_size, slow_size]) = (&*file.sums, sizes);
        let (fast, slow) = (fast.clone().of_size(fast_size), slow.clone().of_size(slow_size));
        Ok(match (file.differs_at, file.recorded) {
            (None, None) => Verified::Same,
            (None, Some(recorded)) if fast == recorded => Verified::Same,
            (None, Some(_)) => Verified::Differs { bad: Bad::Both, at: 0 },
            (Some(at), None) => match file.copy {
                FastCopy::Object(..) => Verified::Differs { bad: Bad::Unknown, at },
                FastCopy::Staged(_) => Verified::Differs { bad: Bad::Staged, at },
            },
            (Some(at), Some(recorded)) => {
                let bad = match (fast == recorded, slow == recorded) {
                    (true, _) => Bad::Slow,
                    (false, true) => Bad::Fast,
                    (false, false) => Bad::Both,
                };
                Verified::Differs { bad, at }
            }
        })
    }

    /// Whether the fast copy is still what it was when the comparison began.
    fn is_still_there(&self, copy: FastCopy, fingerprint: &Fingerprint) -> bool {
        match copy {
            FastCopy::Staged(number) => self.copies.has(number),
            FastCopy::Object(ino, object) => {
                let state = self.state.lock().known_file(ino);
                state.is_some_and(|state| {
                    let io = state.io.read();
                    io.clean() == Some(*fingerprint) && io.object() == Some(object)
                })
            }
        }
    }
}

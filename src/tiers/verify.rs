//! Comparing the two copies of a clean file, byte by byte, while it is mounted.
//!
//! A third witness says which of them is bad if they differ: the hash that was taken when the bytes were copied down
//! (`user.dlio.hash` on the object, [`Sum`]). Objects of an earlier version have none. What somebody changes meanwhile is left
//! out: it is not clean any more.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Context, Result};
use crate::tiers::disk::{Access, File};
use crate::tiers::pool::{Pool, Proof};
use crate::tiers::record::ObjectId;
use crate::tiers::slow::absent_is_none;
use crate::tiers::{Cx, Ino, Tiers};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Pieces that are compared in one turn.
const PIECES: u64 = 8;

/// The hash of a file's bytes, taken in pieces; what is left out are zeros.
#[derive(Clone, Default)]
pub(crate) struct Sum {
    hash: Xxh3,
    at: u64,
}

impl Sum {
    /// Takes in bytes that stand at `offset`.
    pub(crate) fn take(&mut self, offset: u64, bytes: &[u8]) {
        self.zeros_up_to(offset);
        self.hash.update(bytes);
        self.at = offset + bytes.len() as u64;
    }

    /// Of a file of this size.
    pub(crate) fn of_size(mut self, size: u64) -> u64 {
        self.zeros_up_to(size);
        self.hash.digest()
    }

    fn zeros_up_to(&mut self, offset: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.at < offset {
            let len = (offset - self.at).min(ZEROS.len() as u64);
            self.hash.update(&ZEROS[..len as usize]);
            self.at += len;
        }
    }
}

/// Which copy of a file is not what was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    Fast,
    Slow,
    /// Neither is what was copied.
    Both,
    /// They differ, and nothing says which is right.
    Unknown,
}

/// What came of comparing a file.
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
    /// It is not clean: dirty, evicted or changed meanwhile.
    NotClean,
    /// The slow file is not the one that was proven: somebody else changed it.
    Changed,
}

/// A file that is being compared.
pub struct Verifying {
    ino: Ino,
    object: ObjectId,
    proof: Proof,
    fast: Arc<dyn File>,
    slow: Arc<dyn File>,
    recorded: Option<u64>,
    at: u64,
    differs_at: Option<u64>,
    /// Of the fast copy and of the slow one: half a kilobyte each.
    sums: Box<[Sum; 2]>,
}

impl std::fmt::Debug for Verifying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifying").field("ino", &self.ino).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Verifying {
    /// Bytes compared so far, and of how many.
    pub fn progress(&self) -> (u64, u64) {
        (self.at, self.proof.size)
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
        let (Some((proof, object)), Some(path)) = (clean, path) else { return Ok(Err(Verified::NotClean)) };
        let fast =
            self.pool.open_object(object.number, Access::Unnoticed).at_fast("open the object of", self.label(ino))?;
        let recorded = Pool::sum_of(&*fast).at_fast("read the hash of", self.label(ino))?;
        let (dir, name) = self.slow.parent(&path).at("open on slow", self.label(ino))?;
        let Some(slow) = absent_is_none(dir.open(name, Access::Unnoticed)).at("open on slow", self.label(ino))? else {
            return Ok(Err(Verified::Changed));
        };
        if Proof::of(&slow.stat().at("stat on slow", self.label(ino))?) != proof {
            return Ok(Err(Verified::Changed));
        }
        // From the devices, not from memory.
        fast.forget_cached();
        slow.forget_cached();
        let sums = Box::new([Sum::default(), Sum::default()]);
        Ok(Ok(Verifying { ino, object, proof, fast, slow, recorded, at: 0, differs_at: None, sums }))
    }

    /// Compares some more of it. Waits for the slow tier.
    pub fn verify_some(&self, cx: &Cx, file: &mut Verifying) -> Result<Verified> {
        cx.slow()?;
        let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
        for _ in 0..PIECES {
            let [fast, slow] = &mut pieces;
            let from_fast = file.fast.read_at(fast, file.at).at_fast("read the object of", self.label(file.ino))?;
            let from_slow = file.slow.read_at(slow, file.at).at("read on slow", self.label(file.ino))?;
            let (fast, slow) = (&fast[..from_fast], &slow[..from_slow]);
            if fast != slow && file.differs_at.is_none() {
                let same = fast.iter().zip(slow).take_while(|(a, b)| a == b).count();
                file.differs_at = Some(file.at + same as u64);
            }
            file.sums[0].take(file.at, fast);
            file.sums[1].take(file.at, slow);
            file.at += from_fast.max(from_slow) as u64;
            if from_fast.max(from_slow) < PIECE {
                let verdict = self.verdict(file)?;
                if verdict == Verified::Same {
                    self.note_verified(file.ino);
                }
                return Ok(verdict);
            }
        }
        Ok(Verified::More)
    }

    fn verdict(&self, file: &Verifying) -> Result<Verified> {
        let state = self.state.lock().known_file(file.ino);
        let still = state.is_some_and(|state| {
            let io = state.io.read();
            io.clean() == Some(file.proof) && io.object() == Some(file.object)
        });
        if !still {
            return Ok(Verified::NotClean);
        }
        let now = file.slow.stat().at("stat on slow", self.label(file.ino))?;
        if Proof::of(&now) != file.proof {
            return Ok(Verified::Changed);
        }
        let [fast, slow] = (*file.sums).clone().map(|sum| {
            let size = sum.at;
            sum.of_size(size)
        });
        Ok(match (file.differs_at, file.recorded) {
            (None, None) => Verified::Same,
            (None, Some(recorded)) if fast == recorded => Verified::Same,
            (None, Some(_)) => Verified::Differs { bad: Bad::Both, at: 0 },
            (Some(at), None) => Verified::Differs { bad: Bad::Unknown, at },
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_that_of_the_whole_file_however_it_was_taken() {
        let mut bytes = vec![0; 20_000];
        bytes[5_000..5_010].fill(7);
        bytes[15_000..15_100].fill(9);
        let mut sum = Sum::default();
        sum.take(5_000, &bytes[5_000..5_010]);
        sum.take(15_000, &bytes[15_000..15_100]);
        assert_eq!(sum.of_size(20_000), xxhash_rust::xxh3::xxh3_64(&bytes));
    }
}

//! The hash of a file's bytes, which detects a damaged copy.

use xxhash_rust::xxh3::Xxh3;

/// Zeros of this length, aligned to it, are left out of a hash. Part of the format on the fast tier.
pub(crate) const LEFT_OUT: u64 = 1 << 20;

const ZEROS: [u8; 4096] = [0; 4096];

/// The hash of a file's bytes: of all bytes (xxh3) or, if whole pieces of zeros were left out (`z`), of the other
/// bytes, the positions of the pieces and the file's length. Zeros count, not holes: the file system decides about
/// holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash {
    value: u64,
    leaves_out: bool,
}

impl Hash {
    pub(crate) fn encode(self) -> String {
        let Hash { value, leaves_out } = self;
        format!("{}{value:016x}", if leaves_out { "z" } else { "" })
    }

    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (digits, leaves_out) = text.strip_prefix('z').map_or((text, false), |digits| (digits, true));
        Some(Hash { value: u64::from_str_radix(digits, 16).ok()?, leaves_out })
    }
}

/// The hash of a file's bytes, taken in pieces; bytes not passed in are zeros.
#[derive(Clone, Default)]
pub(crate) struct Sum {
    hash: Xxh3,
    /// All bytes before this one are in the hash, or left out.
    done: u64,
    /// There are zeros from `done` to here.
    at: u64,
    /// The pieces left out, by number: for each run the first piece and the end.
    left_out: Option<Box<Xxh3>>,
}

impl Sum {
    /// Adds bytes at `offset`.
    pub(crate) fn take(&mut self, offset: u64, mut bytes: &[u8]) {
        // At the end of a file nothing was read, so there are no zeros in front of it.
        if bytes.is_empty() {
            return;
        }
        self.zeros_up_to(offset);
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min((LEFT_OUT - self.at % LEFT_OUT) as usize));
            let end = self.at + piece.len() as u64;
            if piece.chunks(ZEROS.len()).any(|some| ZEROS.get(..some.len()) != Some(some)) {
                self.feed_zeros();
                self.hash.update(piece);
                self.done = end;
            }
            self.at = end;
            bytes = rest;
        }
    }

    /// The hash for a file of this size.
    pub(crate) fn of_size(mut self, size: u64) -> Hash {
        self.zeros_up_to(size);
        self.feed_zeros();
        match self.left_out {
            None => Hash { value: self.hash.digest(), leaves_out: false },
            Some(mut all) => {
                all.update(&self.hash.digest().to_le_bytes());
                all.update(&size.to_le_bytes());
                Hash { value: all.digest(), leaves_out: true }
            }
        }
    }

    pub(crate) fn zeros_up_to(&mut self, offset: u64) {
        self.at = self.at.max(offset);
    }

    /// Feeds the zeros since `done` into the hash, except whole pieces of them.
    fn feed_zeros(&mut self) {
        let (first, end) = (self.done.div_ceil(LEFT_OUT), self.at / LEFT_OUT);
        if first < end {
            self.feed(first * LEFT_OUT - self.done);
            let left_out = self.left_out.get_or_insert_default();
            left_out.update(&first.to_le_bytes());
            left_out.update(&end.to_le_bytes());
            self.feed(self.at - end * LEFT_OUT);
        } else {
            self.feed(self.at - self.done);
        }
        self.done = self.at;
    }

    fn feed(&mut self, mut zeros: u64) {
        while zeros > 0 {
            let some = ZEROS.get(..zeros as usize).unwrap_or(&ZEROS);
            self.hash.update(some);
            zeros -= some.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_parts(size: u64, parts: &[(u64, &[u8])]) -> Hash {
        let mut sum = Sum::default();
        parts.iter().for_each(|(at, bytes)| sum.take(*at, bytes));
        sum.of_size(size)
    }

    /// The hash of a file without a piece of zeros to leave out.
    fn plain(bytes: &[u8]) -> Hash {
        Hash { value: xxhash_rust::xxh3::xxh3_64(bytes), leaves_out: false }
    }

    #[test]
    fn a_sum_is_that_of_the_whole_file_however_it_was_taken() {
        let mut bytes = vec![0; 20_000];
        bytes[5_000..5_010].fill(7);
        bytes[15_000..15_100].fill(9);
        let parts = [(5_000, &bytes[5_000..5_010]), (15_000, &bytes[15_000..15_100])];
        assert_eq!(of_parts(20_000, &parts), plain(&bytes));
    }

    #[test]
    fn long_zeros_count_the_same_in_a_hole_and_written() {
        const MIB: usize = LEFT_OUT as usize;
        let mut bytes = vec![0; 9 * MIB + 77];
        for data in [5..8, MIB - 1..MIB, 3 * MIB..3 * MIB + 1, 6 * MIB + 500..6 * MIB + 900] {
            bytes[data].fill(3);
        }
        let holes = [(5, &bytes[5..8]), (MIB as u64 - 1, &bytes[MIB - 1..MIB]), (3 << 20, &bytes[3 * MIB..7 * MIB])];
        let wanted = of_parts(bytes.len() as u64, &holes);
        assert!(wanted.leaves_out);
        for step in [MIB, 300_007, 4096, 2 * MIB + 1] {
            let parts: Vec<_> = bytes.chunks(step).enumerate().map(|(i, some)| ((i * step) as u64, some)).collect();
            assert_eq!(of_parts(bytes.len() as u64, &parts), wanted, "{step} at once");
        }
        // Another length, and the same data elsewhere.
        assert_ne!(of_parts(bytes.len() as u64 + 1, &holes), wanted);
        assert_ne!(of_parts(bytes.len() as u64, &[holes[0], holes[1], (4 << 20, holes[2].1)]), wanted);
        assert_eq!(Hash::decode(wanted.encode().as_bytes()), Some(wanted));
    }
}

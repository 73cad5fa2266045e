//! The fingerprint of a file, by which the engine knows whether the slow tier still has the version it knew.

use crate::tiers::disk::{Stat, Time};

/// Identifies one version of one file on the slow tier. Device numbers are left out: they change over reboots, and the
/// slow tier itself is identified when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

impl Fingerprint {
    pub(crate) fn of(stat: &Stat) -> Self {
        Fingerprint { ino: stat.ino, size: stat.size, mtime: stat.mtime, ctime: stat.ctime }
    }

    /// Whether the file has the same bytes; its names, owner and mode may have changed.
    pub(crate) fn is_same_version(&self, stat: &Stat) -> bool {
        (self.size, self.mtime) == (stat.size, stat.mtime)
    }

    pub(crate) fn encode(&self) -> String {
        format!("{} {}", self.ino, self.encode_but_ino())
    }

    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let (ino, rest) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Fingerprint::decode_but_ino(ino.parse().ok()?, rest)
    }

    /// Without the inode number, for use where it is known from elsewhere.
    pub(crate) fn encode_but_ino(&self) -> String {
        let Fingerprint { ino: _, size, mtime, ctime } = self;
        format!("{size} {}.{:09} {}.{:09}", mtime.sec, mtime.nsec, ctime.sec, ctime.nsec)
    }

    pub(crate) fn decode_but_ino(ino: u64, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let time = |words: &mut std::str::Split<'_, char>| {
            let (sec, nsec) = words.next()?.split_once('.')?;
            Some(Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? })
        };
        let size = words.next()?.parse().ok()?;
        let (mtime, ctime) = (time(&mut words)?, time(&mut words)?);
        words.next().is_none().then_some(Fingerprint { ino, size, mtime, ctime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_round_trips_and_nonsense_is_none() {
        let fingerprint = Fingerprint {
            ino: 12,
            size: 1 << 40,
            mtime: Time { sec: -5, nsec: 999_999_999 },
            ctime: Time { sec: 1_700_000_000, nsec: 1 },
        };
        assert_eq!(Fingerprint::decode(fingerprint.encode().as_bytes()), Some(fingerprint));
        for bad in ["", "1 2 3 4", "1 2 3.0 4.0 5", "x 2 3.0 4.0"] {
            assert_eq!(Fingerprint::decode(bad.as_bytes()), None, "{bad}");
        }
    }
}

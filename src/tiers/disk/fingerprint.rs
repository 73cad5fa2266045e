//! The fingerprint of a file, by which the engine knows whether the slow tier still has the version it knew.

use crate::tiers::disk::{FileId, Stat, Time};

/// Identifies one version of one file on the slow tier. Device numbers are left out: they change over reboots, and the
/// slow tier itself is identified when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) file: FileId,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

impl Fingerprint {
    pub(crate) fn of(stat: &Stat) -> Self {
        Fingerprint { file: stat.file(), size: stat.size, mtime: stat.mtime, ctime: stat.ctime }
    }

    /// Whether the file has the same bytes; its names, owner and mode may have changed.
    pub(crate) fn is_same_version(&self, stat: &Stat) -> bool {
        (self.size, self.mtime) == (stat.size, stat.mtime)
    }

    pub(crate) fn encode(&self) -> String {
        format!("{} {}", self.file, self.encode_but_file())
    }

    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let (file, rest) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Fingerprint::decode_but_file(FileId::decode(file)?, rest)
    }

    /// Without the file, for use where its number is known from elsewhere.
    pub(crate) fn encode_but_file(&self) -> String {
        let Fingerprint { file: _, size, mtime, ctime } = self;
        format!("{size} {}.{:09} {}.{:09}", mtime.sec, mtime.nsec, ctime.sec, ctime.nsec)
    }

    pub(crate) fn decode_but_file(file: FileId, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let time = |words: &mut std::str::Split<'_, char>| {
            let (sec, nsec) = words.next()?.split_once('.')?;
            Some(Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? })
        };
        let size = words.next()?.parse().ok()?;
        let (mtime, ctime) = (time(&mut words)?, time(&mut words)?);
        words.next().is_none().then_some(Fingerprint { file, size, mtime, ctime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_round_trips_and_nonsense_is_none() {
        for birth in [0, u32::MAX] {
            let fingerprint = Fingerprint {
                file: FileId { ino: 12, birth },
                size: 1 << 40,
                mtime: Time { sec: -5, nsec: 999_999_999 },
                ctime: Time { sec: 1_700_000_000, nsec: 1 },
            };
            let read = Fingerprint::decode(fingerprint.encode().as_bytes());
            assert_eq!(read.map(|read| (read, read.file.birth)), Some((fingerprint, birth)));
        }
        for bad in ["", "1: 2 3.0 4.0", "1:-1 2 3.0 4.0", "1 2 3 4", "1 2 3.0 4.0 5", "x 2 3.0 4.0"] {
            assert_eq!(Fingerprint::decode(bad.as_bytes()), None, "{bad}");
        }
    }
}

//! The names that a member has changed by publishing: the other members look them up again. Pure; `members.rs` has the
//! files.
//!
//! A member's file is `<slot>.pub`: a header of [`HEADER_LEN`] bytes, then a line for each name. Its lease says how far
//! the file goes ([`NamesEnd`]), so the others open it only if there is something new. A long file is replaced by the
//! next one, whose header says where the one before it ended: a reader that has read to there continues after the
//! header. A reader that cannot continue trusts nothing that it knows of the slow tree. A member that has lost lines
//! says so with a length of zero, which no reader has reached.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use crate::path::{escape, unescape};
use crate::tiers::fleet::lines::{checked, with_crc};

/// Bytes of a header.
pub(crate) const HEADER_LEN: u64 = 128;
/// A longer file is replaced by the next one. More lines at once are not written: reading them would save no time.
pub(crate) const FILE_MAX: u64 = 1 << 20;

/// How far a member's names go: its file's number, and bytes in it. No reader has reached a length of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamesEnd {
    pub(crate) file: u64,
    pub(crate) len: u64,
}

impl NamesEnd {
    /// The end after lines that no reader will see.
    pub(crate) fn lost(self) -> NamesEnd {
        NamesEnd { file: self.file + 1, len: 0 }
    }
}

impl fmt::Display for NamesEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.len)
    }
}

impl FromStr for NamesEnd {
    type Err = ();

    fn from_str(word: &str) -> Result<NamesEnd, ()> {
        let (file, len) = word.split_once(':').ok_or(())?;
        Ok(NamesEnd { file: file.parse().map_err(drop)?, len: len.parse().map_err(drop)? })
    }
}

/// What publishing has done to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// Another node has the name.
    Placed,
    Gone,
    /// The same node has other attributes.
    Touched,
}

/// One name, as its line gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedName {
    /// `end` of the event; the last one's, if several were published as one.
    pub(crate) end: u64,
    pub(crate) change: NameChange,
    /// The node's inode number on the slow tier. 0: none, or on another device.
    pub(crate) ino: u64,
    /// The inode number of the name's directory: another member may have moved it.
    pub(crate) dir: u64,
    /// On the slow tree.
    pub(crate) path: Vec<u8>,
}

impl ChangedName {
    /// A line of `lines.rs`.
    pub(crate) fn encode(&self) -> String {
        let ChangedName { end, ino, dir, .. } = self;
        let change = match self.change {
            NameChange::Placed => "placed",
            NameChange::Gone => "gone",
            NameChange::Touched => "touched",
        };
        with_crc(&format!("{change} end={end} ino={ino} dir={dir} {}", escape(&self.path))) + "\n"
    }

    fn decode(line: &str) -> Option<ChangedName> {
        let mut words = checked(line)?.split(' ');
        let change = match words.next()? {
            "placed" => NameChange::Placed,
            "gone" => NameChange::Gone,
            "touched" => NameChange::Touched,
            _ => return None,
        };
        let mut number = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=')?.parse().ok();
        let (end, ino, dir) = (number("end")?, number("ino")?, number("dir")?);
        let path = unescape(words.next()?)?;
        words.next().is_none().then_some(ChangedName { end, change, ino, dir, path })
    }
}

/// What the others have published lately: the path on the slow tree, the inode number, and when the last change of it
/// ended. It tells a later event of ours from one that overlaps the change.
#[derive(Debug, Default)]
pub(crate) struct RecentNames {
    names: HashMap<Vec<u8>, (u64, u64)>,
    order: VecDeque<Vec<u8>>,
}

impl RecentNames {
    /// Beyond this many, names are unknown, and count as overlapping.
    const MOST: usize = 1 << 14;

    pub(crate) fn add(&mut self, changed: &ChangedName) {
        let ino = if changed.change == NameChange::Gone { 0 } else { changed.ino };
        if self.names.insert(changed.path.clone(), (ino, changed.end)).is_none() {
            self.order.push_back(changed.path.clone());
        }
        while self.order.len() > Self::MOST {
            self.order.pop_front().map(|path| self.names.remove(&path));
        }
    }

    /// Whether the node with this path and number was visible to all before this moment of another clock, which is off
    /// by at most `errors`.
    pub(crate) fn was_there(&self, path: &[u8], ino: u64, before: u64, errors: u64) -> bool {
        let told = self.names.get(path).filter(|(told, _)| *told != 0 && *told == ino);
        told.is_some_and(|(_, end)| end.saturating_add(errors) < before)
    }
}

/// The header of a file. `after`: where the previous file ended.
pub(crate) fn header(file: u64, after: NamesEnd) -> Vec<u8> {
    let mut line = with_crc(&format!("names file={file} after={after}")).into_bytes();
    line.resize(HEADER_LEN as usize - 1, b' ');
    line.push(b'\n');
    line
}

/// Where a reader continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamesFrom {
    Offset(u64),
    /// The file is newer than the lease that was read: the next lease belongs to it.
    Later,
    Lost,
}

/// Where a reader that has read to `known` continues in the file with this header, if the lease says `told`.
pub(crate) fn goes_on(known: NamesEnd, told: NamesEnd, header: &[u8]) -> NamesFrom {
    let Some((file, after)) = decode_header(header) else { return NamesFrom::Lost };
    let offset = if known.file == told.file { known.len } else { HEADER_LEN };
    let follows = known.file == told.file || known == after;
    if file > told.file {
        NamesFrom::Later
    } else if file < told.file || !follows || !(HEADER_LEN..=told.len).contains(&offset) {
        NamesFrom::Lost
    } else {
        NamesFrom::Offset(offset)
    }
}

fn decode_header(header: &[u8]) -> Option<(u64, NamesEnd)> {
    let words = checked(std::str::from_utf8(header).ok()?.trim_end())?.strip_prefix("names file=")?;
    let (file, after) = words.split_once(" after=")?;
    Some((file.parse().ok()?, after.parse().ok()?))
}

/// The names in these bytes, which must begin and end with whole lines. `None`: they do not, or a line is unreadable.
pub(crate) fn decode_names(bytes: &[u8]) -> Option<Vec<ChangedName>> {
    let lines = std::str::from_utf8(bytes).ok()?;
    (lines.is_empty() || lines.ends_with('\n')).then(|| lines.lines().map(ChangedName::decode).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(end: u64, change: NameChange, path: &[u8]) -> ChangedName {
        ChangedName { end, change, ino: 7, dir: 2, path: path.to_owned() }
    }

    #[test]
    fn lines_read_back_and_garbage_or_half_a_line_is_nothing() {
        let names = vec![
            changed(1, NameChange::Placed, b"a"),
            changed(u64::MAX, NameChange::Gone, b"d/with space\n\xff=/\\x"),
            ChangedName { ino: u64::MAX, dir: 0, ..changed(2, NameChange::Touched, b"e") },
        ];
        let lines: String = names.iter().map(ChangedName::encode).collect();
        assert_eq!((lines.lines().count(), decode_names(lines.as_bytes())), (3, Some(names)));
        assert_eq!(decode_names(b""), Some(Vec::new()));
        let ends: Vec<usize> = lines.match_indices('\n').map(|(at, _)| at + 1).collect();
        for cut in 1..lines.len() {
            let count = ends.iter().position(|end| *end == cut).map(|at| at + 1);
            assert_eq!(decode_names(&lines.as_bytes()[..cut]).map(|names| names.len()), count, "{cut}");
            let mut broken = lines.clone().into_bytes();
            broken[cut] ^= 1;
            assert_eq!(decode_names(&broken), None, "{cut}");
        }
        // What a file server shows of blocks that were never written.
        assert_eq!(decode_names(&[0; 64]), None);
    }

    #[test]
    fn what_was_there_before_a_moment_is_known_of_the_latest_names() {
        let mut recent = RecentNames::default();
        recent.add(&changed(100, NameChange::Placed, b"a"));
        let was_there = |recent: &RecentNames, ino, before| recent.was_there(b"a", ino, before, 20);
        assert_eq!([120, 121].map(|before| was_there(&recent, 7, before)), [false, true]);
        assert!(!was_there(&recent, 8, 500) && !recent.was_there(b"b", 7, 500, 20), "another file");
        recent.add(&changed(300, NameChange::Touched, b"a"));
        assert_eq!([320, 321].map(|before| was_there(&recent, 7, before)), [false, true]);
        recent.add(&changed(400, NameChange::Gone, b"a"));
        assert!(!was_there(&recent, 7, 500), "whatever has the name now");
        recent.add(&changed(100, NameChange::Placed, b"a"));
        (0..RecentNames::MOST).for_each(|n| recent.add(&changed(100, NameChange::Placed, n.to_string().as_bytes())));
        assert!(!was_there(&recent, 7, 500) && recent.was_there(b"9", 7, 500, 20));
        assert_eq!((recent.names.len(), recent.order.len()), (RecentNames::MOST, RecentNames::MOST));
    }

    #[test]
    fn a_reader_goes_on_where_it_was_or_knows_that_it_lost_its_place() {
        let end = |file, len| NamesEnd { file, len };
        let (first, second) = (header(1, NamesEnd::default()), header(2, end(1, 900)));
        assert_eq!(
            (first.len() as u64, header(u64::MAX, end(u64::MAX, u64::MAX)).len() as u64),
            (HEADER_LEN, HEADER_LEN)
        );
        use NamesFrom::{Later, Lost, Offset};
        for (known, told, header, from) in [
            (end(0, 0), end(1, 500), &first, Offset(HEADER_LEN)),
            (end(1, 500), end(1, 900), &first, Offset(500)),
            (end(1, 900), end(2, 300), &second, Offset(HEADER_LEN)),
            // The last lines of the previous file are gone with it.
            (end(1, 500), end(2, 300), &second, Lost),
            (end(0, 0), end(2, 300), &second, Lost),
            // The lease is older than the new file.
            (end(1, 500), end(1, 900), &second, Later),
            // A power cut of the file server lost the new file, or lines.
            (end(1, 900), end(2, 300), &first, Lost),
            (end(1, 900), end(1, 500), &first, Lost),
            (end(2, 0), end(2, 300), &second, Lost),
            (end(1, 500).lost(), end(3, 300), &header(3, end(1, 500).lost()), Offset(HEADER_LEN)),
        ] {
            assert_eq!(goes_on(known, told, header), from, "{known} {told}");
        }
        assert_eq!(goes_on(end(1, 500), end(1, 900), &first[..20]), Lost);
        assert_eq!(goes_on(end(1, 500), end(1, 900), &[0; 128]), Lost);
        assert_eq!("5:77".parse(), Ok(end(5, 77)));
        assert_eq!(["5", "5:", ":7", "a:7", "5:7:9"].map(|word| word.parse::<NamesEnd>().is_ok()), [false; 5]);
    }
}

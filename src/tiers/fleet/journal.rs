//! A member's finished copies in `tmp` on the slow tree with the places they belong to, and the steps of the group that
//! it publishes. The member writes this; it is read when its node is lost together with its log (`fleet/forget.rs`,
//! `recovery/lost_member.rs`).
//!
//! *Copies.* One line for each copy, in `journal.0` or `journal.1` beside the copies: the copy's name in `tmp`, the
//! file's identity and size, and its path in the view. Streams write in parallel, each at an offset it has reserved, so
//! a line may be missing between others; incomplete lines are skipped. A published copy has no name in `tmp` any more,
//! and a start removes all copies and the journal. When the journal is full, a second one replaces the older of the
//! two.
//!
//! *The group.* `group` is overwritten before the first step of each group, by one write: a line with the length and
//! the CRC of the rest, so that a torn write does not count; a line for each batch with the stamp of its last event;
//! the intents as the log has them. It is not removed: the member's lease, which says from which stamp on its events
//! are unpublished, tells whether the group is over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::path::{escape, unescape};
use crate::tiers::Lsn;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::is_taken;
use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::disk::{Access, Dir, File, FileId};
use crate::tiers::fleet::lines::{checked, with_crc};
use crate::tiers::log::record::{EventOrigin, Path, Record, Step};

/// The journals' names. Copies' names begin with other letters.
const NAMES: [&[u8]; 2] = [b"journal.0", b"journal.1"];
/// Some 80,000 lines.
const FULL: u64 = 8 << 20;
const GROUP: &[u8] = b"group";
/// A group has some hundred steps at most.
const GROUP_MAX: u64 = 64 << 20;

/// A finished copy that waits in `tmp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingCopy {
    /// Its name in `tmp`, after the path of its part.
    pub(crate) tmp: Path,
    pub(crate) id: FileId,
    pub(crate) size: u64,
    /// The path of its file in the view.
    pub(crate) path: Path,
}

impl WaitingCopy {
    fn encode(&self) -> String {
        let WaitingCopy { tmp, id, size, path } = self;
        let words = format!("copy tmp={} slow={id} size={size} path={}", escape(tmp), escape(path));
        with_crc(&words) + "\n"
    }

    /// `None`: the line is invalid.
    fn decode(line: &str) -> Option<WaitingCopy> {
        let mut words = checked(line)?.strip_prefix("copy ")?.split(' ');
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        Some(WaitingCopy {
            tmp: unescape(value("tmp")?)?,
            id: FileId::decode(value("slow")?)?,
            size: value("size")?.parse().ok()?,
            path: unescape(value("path")?)?,
        })
    }
}

/// One step of a group, as the slow tree has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupStep {
    /// The LSN of its batch's last event, and the `end` of that event.
    pub(crate) upto: Lsn,
    pub(crate) end: u64,
    pub(crate) step: Step,
}

/// The whole file of a group.
fn encode_group(steps: &[GroupStep]) -> String {
    let mut body = String::new();
    let count = steps.len() as u64;
    for (index, GroupStep { upto, end, step }) in (0..).zip(steps) {
        body += &format!("batch upto={upto} end={end}\n");
        let intent = Record::Intent { upto: *upto, index, count, step: step.logged() };
        body += &intent.encode(*upto, 0, EventOrigin::default());
    }
    let crc = crc32fast::hash(body.as_bytes());
    with_crc(&format!("group len={} crc={crc:08x}", body.len())) + "\n" + &body
}

/// `None`: the file is invalid.
fn decode_group(bytes: &[u8]) -> Option<Vec<GroupStep>> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (head, rest) = bytes.split_at(end);
    let words = checked(str::from_utf8(head).ok()?)?.strip_prefix("group len=")?;
    let (len, crc) = words.split_once(" crc=")?;
    let body = rest.strip_prefix(b"\n")?.get(..len.parse().ok()?)?;
    if crc32fast::hash(body) != u32::from_str_radix(crc, 16).ok()? {
        return None;
    }
    let mut steps = Vec::new();
    let mut lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    while let Some(batch) = lines.next() {
        let (upto, end) = str::from_utf8(batch).ok()?.strip_prefix("batch upto=")?.split_once(" end=")?;
        let Record::Intent { step, .. } = Record::decode(lines.next()?)?.2 else { return None };
        steps.push(GroupStep { upto: upto.parse().ok()?, end: end.parse().ok()?, step: step.whole() });
    }
    Some(steps)
}

/// The journal that is being written.
#[derive(Debug)]
struct OpenJournal {
    file: Arc<dyn File>,
    /// The offset of the next lines.
    end: AtomicU64,
    name: &'static [u8],
}

#[derive(Debug)]
pub(crate) struct CopyJournal {
    open: Mutex<Option<Arc<OpenJournal>>>,
    /// The name of the group's file is durable.
    has_group: AtomicBool,
}

impl CopyJournal {
    pub(crate) fn new() -> Self {
        CopyJournal { open: Mutex::new(Rank::Leaf, None), has_group: AtomicBool::new(false) }
    }

    /// Adds copies, durably. `tmp` is the root's.
    pub(crate) fn add(&self, tmp: &dyn Dir, copies: &[WaitingCopy]) -> io::Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let lines: String = copies.iter().map(WaitingCopy::encode).collect();
        let journal = self.journal(tmp)?;
        let at = journal.end.fetch_add(lines.len() as u64, Ordering::Relaxed);
        journal.file.write_at(lines.as_bytes(), at)?;
        journal.file.sync()
    }

    fn journal(&self, tmp: &dyn Dir) -> io::Result<Arc<OpenJournal>> {
        let open = self.open.lock().clone();
        let [first, second] = NAMES;
        let name = match open {
            Some(open) if open.end.load(Ordering::Relaxed) < FULL => return Ok(open),
            Some(open) if open.name == first => second,
            _ => first,
        };
        // If two streams come here at once, the second one finds the file and truncates it: a line of the first one may
        // be lost.
        let file = match tmp.create(name, 0o600) {
            Err(e) if is_taken(&e) => tmp.open(name, Access::ReadWrite)?,
            created => created?,
        };
        file.set_len(0)?;
        tmp.sync()?;
        let begun = Arc::new(OpenJournal { file, end: AtomicU64::new(0), name });
        *self.open.lock() = Some(begun.clone());
        Ok(begun)
    }

    /// Records a group durably, before its first step, or again before its next one. `tmp` is the root's.
    pub(crate) fn begin_group(&self, tmp: &dyn Dir, steps: &[GroupStep]) -> io::Result<()> {
        let file = match tmp.open(GROUP, Access::ReadWrite) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => tmp.create(GROUP, 0o600)?,
            file => file?,
        };
        file.write_at(encode_group(steps).as_bytes(), 0)?;
        file.sync()?;
        // Makes the name of a new file durable.
        if self.has_group.swap(true, Ordering::Relaxed) { Ok(()) } else { tmp.sync() }
    }

    /// Called when nothing waits in `tmp` any more.
    pub(crate) fn clear(&self, tmp: &dyn Dir) {
        if self.open.lock().take().is_some() {
            // The next start sweeps what remains.
            NAMES.iter().for_each(|name| drop(tmp.unlink(name)));
        }
    }
}

/// The last recorded group. `None`: there is none, or it was not begun.
pub(crate) fn read_group(tmp: &dyn Dir) -> io::Result<Option<Vec<GroupStep>>> {
    let Some(file) = absent_is_none(tmp.open(GROUP, Access::Read))? else { return Ok(None) };
    Ok(decode_group(&read_all(&*file, GROUP_MAX)?))
}

fn read_all(file: &dyn File, at_most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.stat()?.size.min(at_most) as usize];
    let got = file.read_at(&mut bytes, 0)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// The copies that the journals in this `tmp` name, each once.
pub(super) fn read(tmp: &dyn Dir) -> io::Result<Vec<WaitingCopy>> {
    let mut found: Vec<WaitingCopy> = Vec::new();
    for name in NAMES {
        let file = match tmp.open(name, Access::Read) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let bytes = read_all(&*file, 2 * FULL)?;
        // Unwritten ranges read as zeros.
        let lines = bytes.split(|byte| matches!(byte, b'\n' | 0));
        found.extend(lines.filter_map(|line| WaitingCopy::decode(str::from_utf8(line).ok()?)));
    }
    // Of two copies with one name, the inode number tells which one exists.
    found.sort_by(|one, other| (&one.tmp, one.id.ino).cmp(&(&other.tmp, other.id.ino)));
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::tiers::disk::os::OsDir;

    fn copy(number: u64) -> WaitingCopy {
        WaitingCopy {
            tmp: format!("c{number:016x}-3").into_bytes(),
            id: FileId { ino: number, birth: 3 },
            size: 7,
            path: b"run/a b\n\xff".to_vec(),
        }
    }

    #[test]
    fn what_was_added_is_read_whatever_is_missing_between() {
        let place = tempfile::tempdir().unwrap();
        let dir = OsDir::open(place.path()).unwrap();
        assert_eq!(read(&dir).unwrap(), []);
        let journal = CopyJournal::new();
        journal.add(&dir, &[copy(1), copy(2)]).unwrap();
        let hole = journal.open.lock().clone().unwrap();
        let before = hole.end.fetch_add(1000, Ordering::Relaxed);
        journal.add(&dir, &[copy(3)]).unwrap();
        hole.file.write_at(&copy(4).encode().as_bytes()[..20], before).unwrap();
        assert_eq!(read(&dir).unwrap(), [1, 2, 3].map(copy));
        journal.clear(&dir);
        assert_eq!(read(&dir).unwrap(), []);
        journal.add(&dir, &[copy(5)]).unwrap();
        assert_eq!(read(&dir).unwrap(), [copy(5)]);
    }

    #[test]
    fn a_full_one_is_followed_by_another_and_that_by_the_first() {
        let place = tempfile::tempdir().unwrap();
        let dir = OsDir::open(place.path()).unwrap();
        let journal = CopyJournal::new();
        for number in 1..=3 {
            journal.add(&dir, &[copy(number)]).unwrap();
            journal.open.lock().as_ref().unwrap().end.store(FULL, Ordering::Relaxed);
        }
        assert_eq!(read(&dir).unwrap(), [2, 3].map(copy));
    }

    #[test]
    fn a_group_is_there_whole_or_not_at_all() {
        let step = |path: &[u8]| Step::Remove { path: path.to_vec(), id: FileId { ino: 7, birth: 8 }, dir: false };
        let group = |paths: &[&[u8]]| -> Vec<GroupStep> {
            (3..).zip(paths).map(|(upto, path)| GroupStep { upto, end: 1000 + upto, step: step(path) }).collect()
        };
        let (long, short) = (group(&[b"a b\n", b"run/\xff", b"c"]), group(&[b"d"]));
        let place = tempfile::tempdir().unwrap();
        let dir = OsDir::open(place.path()).unwrap();
        assert_eq!(read_group(&dir).unwrap(), None);
        let journal = CopyJournal::new();
        for steps in [&long, &short, &long] {
            journal.begin_group(&dir, steps).unwrap();
            assert_eq!(read_group(&dir).unwrap().as_ref(), Some(steps));
        }
        let (before, after) = (encode_group(&long).into_bytes(), encode_group(&short).into_bytes());
        for cut in 1..after.len() {
            let torn = [&after[..cut], &before[cut..]].concat();
            assert_eq!(decode_group(&torn), None, "{cut}");
        }
        assert!((0..before.len()).all(|cut| decode_group(&before[..cut]).is_none()));
    }

    #[test]
    fn a_line_that_is_not_whole_is_none() {
        let line = copy(9).encode();
        assert_eq!(WaitingCopy::decode(line.trim_end()), Some(copy(9)));
        assert!((0..line.len() - 1).all(|cut| WaitingCopy::decode(&line[..cut]).is_none()));
    }
}

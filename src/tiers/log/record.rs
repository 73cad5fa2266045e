//! The log's records: what each says, and its encoding in the file. Pure: text in, text out.
//!
//! One record is one line of printable ASCII: `CRC LSN DURABLE KIND key=value ...`, with the CRC-32 (IEEE) over
//! everything behind it up to the newline. DURABLE is the LSN up to which the log was known to be durable when the line
//! was written. Paths are relative to the mount root, as `log/dirs.rs` says; names are escaped by
//! [`crate::path::escape`], and an empty path is the root.
//!
//! Events (changes of the view that the slow tier does not have yet) are `make`, `content`, `link`, `rename`,
//! `exchange`, `unlink`, `rmdir`, `setattr` and `setxattr`; the other kinds are about objects, events and the slow
//! tree.
//!
//! An event may end with `by=UID`: the user whose event it is, root if this is missing. Behind it may be `start=NANOS
//! end=NANOS`, since 1970: when the change began (its first byte since the version's previous commit, or the call), and
//! when it got its place in the order. A member of a fleet writes them ([`crate::tiers::fleet`]).
//!
//! A CRC says that a line is as it was written, not who wrote it: a fast tier may come from anywhere. A line that no
//! daemon writes (a path that leaves the tier, a directory moved into itself, numbers that no counter reaches) is not a
//! record, so code that uses a record need not check it again.

use std::collections::BTreeSet;

use crate::path::{Name, escape, unescape};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::is_at_or_below;
use crate::tiers::disk::layout::{OURS, PRIVATE};
use crate::tiers::disk::{FileId, Kind, NewAttr, Stat, Time};
use crate::tiers::log::dirs::{DirsRead, DirsWritten, LoggedPath};
use crate::tiers::{Ino, Lsn};

/// A path from the mount root: names joined by `/`, no leading slash.
pub(crate) type Path = Vec<u8>;

/// No counter of ours (of records, objects, inodes) gets here in the life of a machine, so adding one never overflows.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// The longest name of an extended attribute on Linux.
const XATTR_NAME_MAX: usize = 255;

/// When a change began, and when it got its place in the order: nanoseconds since 1970, by this machine's clock. Zero
/// for a change that was logged before its mount joined a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamps {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// An event's user ([`EngineState::whose`](crate::tiers::model::state::EngineState::whose)), and its stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventOrigin {
    pub(crate) by: u32,
    pub(crate) stamps: Option<Stamps>,
}

/// The tier that has an object's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Home {
    /// The pool.
    Fast,
    /// `tmp` on the slow tier: the object did not fit.
    Slow,
    /// `tmp` on the slow tier, except the bytes below `at`: those are in the pool's object `head`, which had room up to
    /// there.
    Split { head: u64, at: u64 },
}

/// Identifies an object for ever; numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ObjectId {
    pub(crate) home: Home,
    pub(crate) number: u64,
}

impl ObjectId {
    /// Whether a part of it is on the slow tier.
    pub(crate) fn needs_slow(self) -> bool {
        self.home != Home::Fast
    }

    /// The pool's object that has the beginning of an object in two parts.
    pub(crate) fn head(self) -> Option<ObjectId> {
        match self.home {
            Home::Split { head, .. } => Some(ObjectId { home: Home::Fast, number: head }),
            Home::Fast | Home::Slow => None,
        }
    }

    /// The file on the slow tier alone, for an object in two parts.
    pub(crate) fn tail(self) -> ObjectId {
        match self.home {
            Home::Split { .. } => ObjectId { home: Home::Slow, ..self },
            Home::Fast | Home::Slow => self,
        }
    }

    /// Whether the bytes of `other` are, or once were, bytes of this one.
    pub(crate) fn uses(self, other: ObjectId) -> bool {
        self == other || self.head() == Some(other)
    }

    /// Whether a change of this one's bytes may change the bytes of `other`.
    pub(crate) fn shares(self, other: ObjectId) -> bool {
        self.uses(other) || other.uses(self) || (self.head().is_some() && self.head() == other.head())
    }
}

/// The attributes that go with a file's content, or with a new directory or special file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attrs {
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A new node that is not a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) attrs: Attrs,
    pub(crate) rdev: u64,
    /// A symbolic link's target.
    pub(crate) target: Vec<u8>,
}

/// A node's kind, owner and group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) kind: Kind,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Owned {
    /// Whether a node like `other` may be this one, perhaps after `new` was applied to it.
    pub(crate) fn may_be(&self, other: &Owned, new: &NewAttr) -> bool {
        let same = |was: u32, is: u32, new: Option<u32>| is == was || Some(is) == new;
        self.kind == other.kind && same(self.uid, other.uid, new.uid) && same(self.gid, other.gid, new.gid)
    }
}

/// The node whose attributes an event changes, as the view had it then. No other node gets them: set-id bits and access
/// control lists are rights that its owner gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttrsOf {
    pub(crate) owned: Owned,
    /// `None`: it is not on the slow tier yet, or will be another file there by then.
    pub(crate) slow: Option<FileId>,
}

/// The size and mtime of a file that waits in `tmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TmpStat {
    pub(crate) size: u64,
    pub(crate) mtime: Time,
}

impl TmpStat {
    pub(crate) fn of(stat: &Stat) -> Self {
        TmpStat { size: stat.size, mtime: stat.mtime }
    }

    /// A tier may round times to two seconds, and show that only once it has dropped the file from its cache.
    pub(crate) fn fits(&self, stat: &Stat) -> bool {
        const GRAIN: u64 = 2;
        self.size == stat.size && self.mtime.sec.abs_diff(stat.mtime.sec) <= GRAIN
    }
}

/// One primitive change of the slow tree, with what it expects to find. `id` and `over` are files of the slow tier;
/// `over` is what the target name held before, `None` for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<P = Path> {
    /// Renames a finished node out of `tmp`. `tmp` is the name there, behind the path of the root of its part of the
    /// tree (`writeback/parts.rs`). `node` and `object` say whose version it is; `known` is the slow tier's stat of the
    /// waiting file, if that does not change: inode numbers are reused.
    Place {
        tmp: P,
        id: FileId,
        path: P,
        over: Option<FileId>,
        node: Ino,
        object: Option<ObjectId>,
        known: Option<TmpStat>,
    },
    Move {
        path: P,
        id: FileId,
        to: P,
        over: Option<FileId>,
    },
    Swap {
        a: P,
        a_id: FileId,
        b: P,
        b_id: FileId,
    },
    Link {
        path: P,
        id: FileId,
        to: P,
    },
    Remove {
        path: P,
        id: FileId,
        dir: bool,
    },
    Attr {
        path: P,
        id: FileId,
        of: Owned,
        new: NewAttr,
    },
    Xattr {
        path: P,
        id: FileId,
        of: Owned,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    },
}

impl<P> Step<P> {
    /// The step with its paths in another form.
    pub(crate) fn with_paths<Q>(&self, as_path: impl Fn(&P) -> Q) -> Step<Q> {
        match self {
            Step::Place { tmp, id, path, over, node, object, known } => {
                let (tmp, path) = (as_path(tmp), as_path(path));
                Step::Place { tmp, id: *id, path, over: *over, node: *node, object: *object, known: *known }
            }
            Step::Move { path, id, to, over } => {
                Step::Move { path: as_path(path), id: *id, to: as_path(to), over: *over }
            }
            Step::Swap { a, a_id, b, b_id } => Step::Swap { a: as_path(a), a_id: *a_id, b: as_path(b), b_id: *b_id },
            Step::Link { path, id, to } => Step::Link { path: as_path(path), id: *id, to: as_path(to) },
            Step::Remove { path, id, dir } => Step::Remove { path: as_path(path), id: *id, dir: *dir },
            Step::Attr { path, id, of, new } => Step::Attr { path: as_path(path), id: *id, of: *of, new: *new },
            Step::Xattr { path, id, of, key, value } => {
                Step::Xattr { path: as_path(path), id: *id, of: *of, key: key.clone(), value: value.clone() }
            }
        }
    }
}

impl Step {
    /// The step as a record has it.
    pub(crate) fn logged(&self) -> Step<LoggedPath> {
        self.with_paths(|path| path.clone().into())
    }
}

impl Step<LoggedPath> {
    pub(crate) fn whole(&self) -> Step {
        self.with_paths(|path| path.bytes().into_owned())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A daemon started, in this boot of the machine.
    Start {
        boot: String,
    },
    /// From here on the bytes of `path` are in this object; creates the file if the name is free.
    Bind {
        path: LoggedPath,
        ino: Ino,
        object: ObjectId,
    },
    /// All names of a file that has several, in front of the `bind` or `content` that it belongs to: events on some of
    /// the names may be applied and forgotten by then.
    Names {
        ino: Ino,
        paths: Vec<LoggedPath>,
    },
    /// A directory, symbolic link or special file.
    Make {
        path: LoggedPath,
        ino: Ino,
        spec: Spec,
    },
    /// The content of `path` got its place in the order: the first `size` bytes of the object.
    Content {
        path: LoggedPath,
        ino: Ino,
        object: ObjectId,
        size: u64,
        attrs: Attrs,
    },
    /// `slow`: as [`AttrsOf::slow`].
    Link {
        path: LoggedPath,
        to: LoggedPath,
        ino: Ino,
        slow: Option<FileId>,
    },
    /// `slow`: as [`AttrsOf::slow`].
    Rename {
        path: LoggedPath,
        to: LoggedPath,
        ino: Ino,
        slow: Option<FileId>,
        exchange: bool,
    },
    Remove {
        path: LoggedPath,
        ino: Ino,
        dir: bool,
    },
    SetAttr {
        path: LoggedPath,
        ino: Ino,
        of: AttrsOf,
        new: NewAttr,
    },
    /// `None` removes.
    SetXattr {
        path: LoggedPath,
        ino: Ino,
        of: AttrsOf,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    },
    /// In front of the first event on a name, and of a `bind` of an existing file: what the slow tier was known to have
    /// under the name, `None` for nothing. It lets a start detect foreign changes since then.
    Expect {
        path: LoggedPath,
        slow: Option<Fingerprint>,
    },
    /// A power cut discarded the file, and it has no older version: the records about it have no meaning. Written for a
    /// recovery that no longer reads the record that shows that.
    Discarded {
        ino: Ino,
    },
    /// From here on the object's bytes from `from` on may differ from those of the versions before this record:
    /// versions that are longer no longer exist.
    Invalidate {
        ino: Ino,
        object: ObjectId,
        from: u64,
    },
    /// The file, which is `slow` there, was written in place at `mtime` while changes of its times were pending: the
    /// pending changes before this record set `mtime`, whatever they say.
    InPlace {
        ino: Ino,
        slow: FileId,
        mtime: Time,
    },
    /// The object's bytes and name behind content event `of` are durable on fast.
    Seal {
        of: Lsn,
        size: u64,
    },
    /// Step `index` of `count`, about to change the slow tree. `upto` belongs to the step's batch: once all steps with
    /// that `upto` are done, everything up to there is applied. A group with a step missing in the log was never begun.
    /// A repeated step replaces the first: the node that it places had to be made again.
    Intent {
        upto: Lsn,
        index: u64,
        count: u64,
        step: Step<LoggedPath>,
    },
    /// Every event up to and including `upto` is on the slow tier.
    Applied {
        upto: Lsn,
    },
    /// An operator has set the events in these ranges aside: they have left the order, and the view goes back to what
    /// the slow tier has (`writeback/set_aside.rs`).
    SetAside {
        events: Vec<(Lsn, Lsn)>,
    },
    /// A record that was moved here from an earlier place, with another number. Counts only with the `moved` behind it.
    /// Readers of a log get the record itself here ([`in_present_order`]).
    Again(Box<Record>),
    /// Makes the `count` records in front of it count, and those in these ranges not (`writeback/held_users.rs`).
    Moved {
        count: u64,
        gone: Vec<(Lsn, Lsn)>,
    },
}

impl Record {
    /// The inode of the view that the record is about.
    pub(crate) fn ino(&self) -> Option<Ino> {
        match self {
            Record::Bind { ino, .. }
            | Record::Invalidate { ino, .. }
            | Record::Names { ino, .. }
            | Record::InPlace { ino, .. }
            | Record::Discarded { ino }
            | Record::Make { ino, .. }
            | Record::Content { ino, .. }
            | Record::Link { ino, .. }
            | Record::Rename { ino, .. }
            | Record::Remove { ino, .. }
            | Record::SetAttr { ino, .. }
            | Record::SetXattr { ino, .. } => Some(*ino),
            Record::Again(record) => record.ino(),
            Record::Moved { .. }
            | Record::Start { .. }
            | Record::Expect { .. }
            | Record::Seal { .. }
            | Record::Intent { .. }
            | Record::Applied { .. }
            | Record::SetAside { .. } => None,
        }
    }

    /// Whether the record is a change of the view that has to be applied to the slow tier.
    pub(crate) fn is_event(&self) -> bool {
        match self {
            Record::Make { .. }
            | Record::Content { .. }
            | Record::Link { .. }
            | Record::Rename { .. }
            | Record::Remove { .. }
            | Record::SetAttr { .. }
            | Record::SetXattr { .. } => true,
            Record::Again(record) => record.is_event(),
            Record::Moved { .. }
            | Record::Start { .. }
            | Record::Bind { .. }
            | Record::Names { .. }
            | Record::Expect { .. }
            | Record::Discarded { .. }
            | Record::Invalidate { .. }
            | Record::InPlace { .. }
            | Record::Seal { .. }
            | Record::Intent { .. }
            | Record::Applied { .. }
            | Record::SetAside { .. } => false,
        }
    }

    /// The LSN up to which these records, in order, say that everything is applied; 0 if they do not say.
    pub(crate) fn applied<'a>(records: impl DoubleEndedIterator<Item = &'a Record>) -> Lsn {
        let upto = |record: &Record| if let Record::Applied { upto } = record { Some(*upto) } else { None };
        records.rev().find_map(upto).unwrap_or(0)
    }

    /// The steps of the group that was begun behind the last `applied`, each with the LSN that is applied once the
    /// steps of its batch are done. Intents are always logged for the whole group, and made durable together before the
    /// next step is done: if one is missing, those logged earlier count.
    pub(crate) fn unfinished(records: &[(Lsn, Record)]) -> Vec<(Lsn, Step)> {
        let last = records.iter().rposition(|(_, record)| matches!(record, Record::Applied { .. }));
        let (mut whole, mut steps) = (Vec::new(), Vec::new());
        for (_, record) in records.iter().skip(last.map_or(0, |at| at + 1)) {
            let Record::Intent { upto, index, count, step } = record else { continue };
            if *index == 0 {
                steps.clear();
            }
            match *index == steps.len() as u64 {
                true => steps.push((*upto, step)),
                false => steps.clear(),
            }
            if steps.len() as u64 == *count || left_out!(AllIntents) {
                whole.clone_from(&steps);
            }
        }
        whole.into_iter().map(|(upto, step): (Lsn, &Step<LoggedPath>)| (upto, step.whole())).collect()
    }

    /// Whether these records say that version `of` of the object, `size` bytes long, was overwritten or cut.
    pub(crate) fn invalidated(records: &[(Lsn, Record)], of: Lsn, object: ObjectId, size: u64) -> bool {
        let mut behind = records.iter().skip(records.partition_point(|(lsn, _)| *lsn <= of));
        behind.any(|(_, record)| {
            matches!(record, Record::Invalidate { object: other, from, .. } if other.shares(object) && *from < size)
        })
    }

    /// The record as one line, newline included, with whole paths: for use outside of a segment. `origin` is an
    /// event's; other records have none.
    pub(crate) fn encode(&self, lsn: Lsn, durable: Lsn, origin: EventOrigin) -> String {
        let mut line = LogLine { text: String::new(), dirs: None };
        self.encode_line(lsn, durable, origin, &mut line);
        as_line(&line.text)
    }

    /// Adds the record's line to `out`, and in front of it the directories that the segment does not have yet.
    pub(crate) fn encode_in(&self, numbers: (Lsn, Lsn), origin: EventOrigin, dirs: &mut DirsWritten, out: &mut String) {
        let (lsn, durable) = numbers;
        let mut line = LogLine { text: String::new(), dirs: Some((dirs, out)) };
        self.encode_line(lsn, durable, origin, &mut line);
        let line = as_line(&line.text);
        out.push_str(&line);
    }

    fn encode_line(&self, lsn: Lsn, durable: Lsn, origin: EventOrigin, line: &mut LogLine<'_>) {
        line.text = format!("{lsn} {durable}");
        self.write(line);
        if self.is_event() {
            line.origin(origin);
        }
    }

    /// Writes everything behind the LSNs, except the origin.
    fn write(&self, line: &mut LogLine<'_>) {
        match self {
            Record::Start { boot } => {
                line.word("start").bytes("boot", boot.as_bytes());
            }
            Record::Bind { path, ino, object } => {
                line.word("bind").path("path", path).number("ino", *ino).object(*object);
            }
            Record::Names { ino, paths } => {
                line.word("names").number("ino", *ino).number("paths", paths.len() as u64);
                for path in paths {
                    line.path("path", path);
                }
            }
            Record::Make { path, ino, spec } => {
                line.word("make").path("path", path).number("ino", *ino).spec(spec);
            }
            Record::Content { path, ino, object, size, attrs } => {
                line.word("content").path("path", path).number("ino", *ino).object(*object);
                line.number("size", *size).attrs(attrs);
            }
            Record::Link { path, to, ino, slow } => {
                line.word("link").path("path", path).path("to", to).number("ino", *ino).optional_file("slow", *slow);
            }
            Record::Rename { path, to, ino, slow, exchange } => {
                line.word(if *exchange { "exchange" } else { "rename" });
                line.path("path", path).path("to", to).number("ino", *ino).optional_file("slow", *slow);
            }
            Record::Remove { path, ino, dir } => {
                line.word(if *dir { "rmdir" } else { "unlink" }).path("path", path).number("ino", *ino);
            }
            Record::SetAttr { path, ino, of, new } => {
                line.word("setattr").path("path", path).number("ino", *ino).subject(of).new_attr(new);
            }
            Record::SetXattr { path, ino, of, key, value } => {
                line.word("setxattr").path("path", path).number("ino", *ino).subject(of).xattr(key, value.as_deref());
            }
            Record::Expect { path, slow } => {
                line.word("expect").path("path", path).optional_file("slow", slow.map(|slow| slow.file));
                if let Some(Fingerprint { size, mtime, ctime, .. }) = slow {
                    line.number("size", *size).time("mtime", *mtime).time("ctime", *ctime);
                }
            }
            Record::Discarded { ino } => {
                line.word("discarded").number("ino", *ino);
            }
            Record::Invalidate { ino, object, from } => {
                line.word("invalidate").number("ino", *ino).object(*object).number("from", *from);
            }
            Record::InPlace { ino, slow, mtime } => {
                line.word("in-place").number("ino", *ino).file("slow", *slow).time("mtime", *mtime);
            }
            Record::Seal { of, size } => {
                line.word("seal").number("of", *of).number("size", *size);
            }
            Record::Intent { upto, index, count, step } => {
                line.word("intent").number("upto", *upto).number("index", *index).number("count", *count);
                line.step(step);
            }
            Record::Applied { upto } => {
                line.word("applied").number("upto", *upto);
            }
            Record::SetAside { events } => {
                line.word("set-aside").ranges(events);
            }
            Record::Again(record) => record.write(line.word("again")),
            Record::Moved { count, gone } => {
                line.word("moved").number("count", *count).ranges(gone);
            }
        }
    }

    /// Parses one line without its newline, as [`Record::encode`] has written it. `None` if anything is wrong with it.
    pub(crate) fn decode(line: &[u8]) -> Option<DecodedRecord> {
        Words(checked(line)?.split(' '), None).line()
    }
}

/// LSN, durable LSN, record, an event's origin.
pub(crate) type DecodedRecord = (Lsn, Lsn, Record, EventOrigin);

/// A line of a segment.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "none is kept, and nearly all are records")]
pub(crate) enum LoggedLine {
    /// The directory is among those of the segment now.
    Dir,
    /// The boot in which the daemon runs that began the segment.
    Boot(String),
    Record(DecodedRecord),
}

impl LoggedLine {
    /// Parses one line without its newline. `None` if anything is wrong with it, or with its directory.
    pub(crate) fn decode(line: &[u8], dirs: &mut DirsRead) -> Option<LoggedLine> {
        let text = checked(line)?;
        if let Some(boot) = text.strip_prefix("boot ") {
            let mut words = Words(boot.split(' '), None);
            let boot = String::from_utf8(words.bytes("id")?).ok()?;
            return words.0.next().is_none().then_some(LoggedLine::Boot(boot));
        }
        let Some(dir) = text.strip_prefix("dir ") else {
            return Words(text.split(' '), Some(dirs)).line().map(LoggedLine::Record);
        };
        let mut words = Words(dir.split(' '), None);
        let (number, above, name) = (words.counter("n")?, words.counter("of")?, words.bytes("name")?);
        words.0.next().is_none().then(|| dirs.define(number, above, name))?.map(|()| LoggedLine::Dir)
    }
}

/// The text behind the CRC of a line, if the CRC is right.
fn checked(line: &[u8]) -> Option<&str> {
    let (crc, rest) = std::str::from_utf8(line).ok()?.split_at_checked(8)?;
    let rest = rest.strip_prefix(' ')?;
    (u32::from_str_radix(crc, 16).ok()? == crc32fast::hash(rest.as_bytes())).then_some(rest)
}

/// The first line of a segment, for a segment without a `start`.
pub(crate) fn boot_line(boot: &str) -> String {
    as_line(&format!("boot id={}", escape(boot.as_bytes())))
}

fn as_line(text: &str) -> String {
    format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()))
}

fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "dir",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::CharDevice => "char",
        Kind::BlockDevice => "block",
    }
}

/// Any kind but a file.
fn kind_of(word: &str) -> Option<Kind> {
    [Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice]
        .into_iter()
        .find(|kind| kind_word(*kind) == word)
}

struct LogLine<'a> {
    text: String,
    /// The directories of the segment, and where new ones go; without, paths are whole.
    dirs: Option<(&'a mut DirsWritten, &'a mut String)>,
}

impl LogLine<'_> {
    fn word(&mut self, word: &str) -> &mut Self {
        self.text.push(' ');
        self.text.push_str(word);
        self
    }

    fn number(&mut self, key: &str, n: u64) -> &mut Self {
        self.text += &format!(" {key}={n}");
        self
    }

    fn bytes(&mut self, key: &str, bytes: &[u8]) -> &mut Self {
        self.text += &format!(" {key}={}", escape(bytes));
        self
    }

    fn path(&mut self, key: &str, path: &LoggedPath) -> &mut Self {
        match &mut self.dirs {
            None => self.bytes(key, &path.bytes()),
            Some((dirs, out)) => {
                dirs.write(key, &path.bytes(), &mut self.text, out);
                self
            }
        }
    }

    fn object(&mut self, id: ObjectId) -> &mut Self {
        self.text += &match id.home {
            Home::Fast => format!(" object=f{}", id.number),
            Home::Slow => format!(" object=s{}", id.number),
            Home::Split { head, at } => format!(" object=s{}+f{head}@{at}", id.number),
        };
        self
    }

    fn time(&mut self, key: &str, time: Time) -> &mut Self {
        self.text += &format!(" {key}={}.{:09}", time.sec, time.nsec);
        self
    }

    fn perm(&mut self, perm: u32) -> &mut Self {
        self.text += &format!(" mode={perm:04o}");
        self
    }

    fn attrs(&mut self, a: &Attrs) -> &mut Self {
        self.perm(a.perm).number("uid", a.uid.into()).number("gid", a.gid.into()).time("mtime", a.mtime);
        self.number("xattrs", a.xattrs.len() as u64);
        for (key, value) in &a.xattrs {
            self.xattr(key, Some(value));
        }
        self
    }

    fn spec(&mut self, spec: &Spec) -> &mut Self {
        self.word(kind_word(spec.kind)).attrs(&spec.attrs).number("rdev", spec.rdev).bytes("target", &spec.target)
    }

    fn xattr(&mut self, key: &[u8], value: Option<&[u8]>) -> &mut Self {
        self.bytes("key", key);
        match value {
            Some(value) => self.bytes("value", value),
            None => self.word("removed"),
        }
    }

    fn ranges(&mut self, ranges: &[(Lsn, Lsn)]) -> &mut Self {
        self.number("ranges", ranges.len() as u64);
        for (from, to) in ranges {
            self.number("from", *from).number("to", *to);
        }
        self
    }

    fn origin(&mut self, EventOrigin { by, stamps }: EventOrigin) {
        if by != 0 {
            self.number("by", by.into());
        }
        if let Some(Stamps { start, end }) = stamps {
            self.number("start", start).number("end", end);
        }
    }

    fn optional(&mut self, key: &str, n: Option<u64>) -> &mut Self {
        match n {
            Some(n) => self.number(key, n),
            None => self.word(&format!("{key}=-")),
        }
    }

    fn file(&mut self, key: &str, file: FileId) -> &mut Self {
        self.word(&format!("{key}={file}"))
    }

    fn optional_file(&mut self, key: &str, file: Option<FileId>) -> &mut Self {
        match file {
            Some(file) => self.file(key, file),
            None => self.word(&format!("{key}=-")),
        }
    }

    fn owned(&mut self, of: &Owned) -> &mut Self {
        self.word(kind_word(of.kind)).number("owner", of.uid.into()).number("group", of.gid.into())
    }

    fn subject(&mut self, of: &AttrsOf) -> &mut Self {
        self.optional_file("slow", of.slow).owned(&of.owned)
    }

    fn new_attr(&mut self, new: &NewAttr) -> &mut Self {
        self.optional("uid", new.uid.map(u64::from)).optional("gid", new.gid.map(u64::from));
        self.optional("perm", new.perm.map(u64::from));
        for (key, time) in [("atime", new.atime), ("mtime", new.mtime)] {
            match time {
                Some(time) => self.time(key, time),
                None => self.word(&format!("{key}=-")),
            };
        }
        self
    }

    fn step(&mut self, step: &Step<LoggedPath>) -> &mut Self {
        match step {
            Step::Place { tmp, id, path, over, node, object, known } => {
                self.word("place").path("tmp", tmp).file("slow", *id).path("path", path).optional_file("over", *over);
                self.number("ino", *node);
                match object {
                    Some(id) => self.object(*id),
                    None => self.word("object=-"),
                };
                match known {
                    Some(TmpStat { size, mtime }) => self.number("size", *size).time("mtime", *mtime),
                    None => self,
                }
            }
            Step::Move { path, id, to, over } => {
                self.word("move").path("path", path).file("slow", *id).path("to", to).optional_file("over", *over)
            }
            Step::Swap { a, a_id, b, b_id } => {
                self.word("swap").path("path", a).file("slow", *a_id).path("to", b).file("over", *b_id)
            }
            Step::Link { path, id, to } => self.word("link").path("path", path).file("slow", *id).path("to", to),
            Step::Remove { path, id, dir } => {
                self.word(if *dir { "rmdir" } else { "unlink" }).path("path", path).file("slow", *id)
            }
            Step::Attr { path, id, of, new } => {
                self.word("setattr").path("path", path).file("slow", *id).owned(of).new_attr(new)
            }
            Step::Xattr { path, id, of, key, value } => {
                self.word("setxattr").path("path", path).file("slow", *id).owned(of).xattr(key, value.as_deref())
            }
        }
    }
}

/// Reads the words in the order in which [`LogLine`] wrote them.
struct Words<'a>(std::str::Split<'a, char>, Option<&'a DirsRead>);

impl<'a> Words<'a> {
    fn line(mut self) -> Option<DecodedRecord> {
        let lsn = counter(self.0.next()?)?;
        let durable = counter(self.0.next()?)?;
        let again = self.0.clone().next() == Some("again");
        if again {
            self.0.next();
        }
        let record = self.record()?;
        let record = if again { Record::Again(Box::new(record)) } else { record };
        let origin = if record.is_event() { self.origin()? } else { EventOrigin::default() };
        self.0.next().is_none().then_some((lsn, durable, record, origin))
    }

    fn value(&mut self, key: &str) -> Option<&'a str> {
        self.0.next()?.strip_prefix(key)?.strip_prefix('=')
    }

    fn number(&mut self, key: &str) -> Option<u64> {
        self.value(key)?.parse().ok()
    }

    fn small(&mut self, key: &str) -> Option<u32> {
        self.value(key)?.parse().ok()
    }

    /// A number from one of our counters.
    fn counter(&mut self, key: &str) -> Option<u64> {
        counter(self.value(key)?)
    }

    /// An inode number of the view.
    fn ino(&mut self) -> Option<Ino> {
        self.counter("ino").filter(|ino| *ino != 0)
    }

    /// A file length.
    fn size(&mut self, key: &str) -> Option<u64> {
        self.number(key).filter(|size| i64::try_from(*size).is_ok())
    }

    fn bytes(&mut self, key: &str) -> Option<Vec<u8>> {
        unescape(self.value(key)?)
    }

    /// A path of the view below its root.
    fn path(&mut self, key: &str) -> Option<LoggedPath> {
        let word = self.value(key)?;
        let Some(dirs) = self.1 else {
            return unescape(word).filter(|path| is_below_root(path)).map(LoggedPath::Whole);
        };
        match word.split_once('/') {
            None => dirs.path(0, unescape(word)?),
            Some((dir, name)) => dirs.path(counter(dir).filter(|dir| *dir > 0)?, unescape(name)?),
        }
    }

    /// A path of the view, or its root.
    fn path_or_root(&mut self, key: &str) -> Option<LoggedPath> {
        match self.0.clone().next()?.strip_prefix(key)? {
            "=" => self.bytes(key).map(LoggedPath::Whole),
            _ => self.path(key),
        }
    }

    fn file(&mut self, key: &str) -> Option<FileId> {
        FileId::decode(self.value(key)?)
    }

    fn optional_file(&mut self, key: &str) -> Option<Option<FileId>> {
        match self.value(key)? {
            "-" => Some(None),
            file => Some(Some(FileId::decode(file)?)),
        }
    }

    /// The path that a step moves, the slow file expected there, and the target path.
    fn moved(&mut self) -> Option<(LoggedPath, FileId, LoggedPath)> {
        let (from, id, to) = (self.path("path")?, self.file("slow")?, self.path("to")?);
        are_apart(&from, &to).then_some((from, id, to))
    }

    fn optional(&mut self, key: &str) -> Option<Option<u64>> {
        match self.value(key)? {
            "-" => Some(None),
            n => Some(Some(n.parse().ok()?)),
        }
    }

    fn small_optional(&mut self, key: &str) -> Option<Option<u32>> {
        match self.optional(key)? {
            None => Some(None),
            Some(n) => Some(Some(n.try_into().ok()?)),
        }
    }

    fn time_of(word: &str) -> Option<Time> {
        let (sec, nsec) = word.split_once('.')?;
        let nsec = nsec.parse().ok()?;
        (nsec < 1_000_000_000).then_some(Time { sec: sec.parse().ok()?, nsec })
    }

    fn optional_time(&mut self, key: &str) -> Option<Option<Time>> {
        match self.value(key)? {
            "-" => Some(None),
            word => Some(Some(Self::time_of(word)?)),
        }
    }

    fn object_of(word: &str) -> Option<ObjectId> {
        if let Some(number) = word.strip_prefix('f') {
            return Some(ObjectId { home: Home::Fast, number: counter(number)? });
        }
        let number = word.strip_prefix('s')?;
        let Some((number, head)) = number.split_once('+') else {
            return Some(ObjectId { home: Home::Slow, number: counter(number)? });
        };
        let (head, at) = head.strip_prefix('f')?.split_once('@')?;
        let home = Home::Split { head: counter(head)?, at: at.parse().ok().filter(|at| i64::try_from(*at).is_ok())? };
        Some(ObjectId { home, number: counter(number)? })
    }

    fn object(&mut self) -> Option<ObjectId> {
        Self::object_of(self.value("object")?)
    }

    fn attrs(&mut self) -> Option<Attrs> {
        let perm = u32::from_str_radix(self.value("mode")?, 8).ok()?;
        let (uid, gid) = (self.small("uid")?, self.small("gid")?);
        let mtime = Self::time_of(self.value("mtime")?)?;
        let count = self.number("xattrs")?;
        let mut xattrs = Vec::new();
        for _ in 0..count {
            let (key, value) = self.xattr()?;
            xattrs.push((key, value?));
        }
        Some(Attrs { perm, uid, gid, mtime, xattrs })
    }

    fn xattr(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let key = self.bytes("key").filter(|key| is_xattr_of_users(key))?;
        match self.0.next()? {
            "removed" => Some((key, None)),
            word => Some((key, Some(unescape(word.strip_prefix("value=")?)?))),
        }
    }

    fn new_attr(&mut self) -> Option<NewAttr> {
        Some(NewAttr {
            uid: self.small_optional("uid")?,
            gid: self.small_optional("gid")?,
            perm: self.small_optional("perm")?,
            atime: self.optional_time("atime")?,
            mtime: self.optional_time("mtime")?,
        })
    }

    fn owned(&mut self) -> Option<Owned> {
        let word = self.0.next()?;
        let kind = if word == kind_word(Kind::File) { Kind::File } else { kind_of(word)? };
        Some(Owned { kind, uid: self.small("owner")?, gid: self.small("group")? })
    }

    fn subject(&mut self) -> Option<AttrsOf> {
        Some(AttrsOf { slow: self.optional_file("slow")?, owned: self.owned()? })
    }

    fn spec(&mut self) -> Option<Spec> {
        let kind = kind_of(self.0.next()?)?;
        Some(Spec { kind, attrs: self.attrs()?, rdev: self.number("rdev")?, target: self.bytes("target")? })
    }

    fn record(&mut self) -> Option<Record> {
        Some(match self.0.next()? {
            "start" => Record::Start { boot: String::from_utf8(self.bytes("boot")?).ok()? },
            "bind" => Record::Bind { path: self.path("path")?, ino: self.ino()?, object: self.object()? },
            "invalidate" => Record::Invalidate { ino: self.ino()?, object: self.object()?, from: self.size("from")? },
            "names" => {
                let (ino, count) = (self.ino()?, self.number("paths")?);
                let paths = (0..count).map(|_| self.path("path")).collect::<Option<_>>()?;
                Record::Names { ino, paths }
            }
            "make" => Record::Make { path: self.path("path")?, ino: self.ino()?, spec: self.spec()? },
            "content" => Record::Content {
                path: self.path("path")?,
                ino: self.ino()?,
                object: self.object()?,
                size: self.size("size")?,
                attrs: self.attrs()?,
            },
            "link" => {
                let (path, to, ino) = (self.path("path")?, self.path("to")?, self.ino()?);
                Record::Link { path, to, ino, slow: self.optional_file("slow")? }
            }
            word @ ("rename" | "exchange") => {
                let (path, to) = (self.path("path")?, self.path("to")?);
                let (ino, slow) = (self.ino()?, self.optional_file("slow")?);
                are_apart(&path, &to).then_some(Record::Rename { path, to, ino, slow, exchange: word == "exchange" })?
            }
            word @ ("rmdir" | "unlink") => {
                Record::Remove { path: self.path("path")?, ino: self.ino()?, dir: word == "rmdir" }
            }
            "setattr" => {
                let (path, ino) = (self.path_or_root("path")?, self.ino()?);
                Record::SetAttr { path, ino, of: self.subject()?, new: self.new_attr()? }
            }
            "setxattr" => {
                let (path, ino, of) = (self.path_or_root("path")?, self.ino()?, self.subject()?);
                let (key, value) = self.xattr()?;
                Record::SetXattr { path, ino, of, key, value }
            }
            "expect" => {
                let (path, file) = (self.path("path")?, self.optional_file("slow")?);
                let slow = match file {
                    None => None,
                    Some(file) => Some(Fingerprint {
                        file,
                        size: self.size("size")?,
                        mtime: Self::time_of(self.value("mtime")?)?,
                        ctime: Self::time_of(self.value("ctime")?)?,
                    }),
                };
                Record::Expect { path, slow }
            }
            "discarded" => Record::Discarded { ino: self.ino()? },
            "in-place" => {
                let (ino, slow) = (self.ino()?, self.file("slow")?);
                Record::InPlace { ino, slow, mtime: Self::time_of(self.value("mtime")?)? }
            }
            "seal" => Record::Seal { of: self.counter("of")?, size: self.size("size")? },
            "intent" => {
                let (upto, index, count) = (self.counter("upto")?, self.number("index")?, self.number("count")?);
                Record::Intent { upto, index, count, step: self.step()? }
            }
            "applied" => Record::Applied { upto: self.counter("upto")? },
            "set-aside" => Record::SetAside { events: self.ranges()? },
            "moved" => Record::Moved { count: self.number("count")?, gone: self.ranges()? },
            _ => return None,
        })
    }

    fn ranges(&mut self) -> Option<Vec<(Lsn, Lsn)>> {
        let count = self.number("ranges")?;
        let mut range = || {
            let (from, to) = (self.counter("from")?, self.counter("to")?);
            (from <= to).then_some((from, to))
        };
        (0..count).map(|_| range()).collect()
    }

    /// The end of an event: its user, if any, and both stamps or none, the earlier one first.
    fn origin(&mut self) -> Option<EventOrigin> {
        let names_user = self.0.clone().next().is_some_and(|word| word.starts_with("by="));
        let by = if names_user { self.small("by").filter(|by| *by != 0)? } else { 0 };
        if self.0.clone().next().is_none() {
            return Some(EventOrigin { by, stamps: None });
        }
        let (start, end) = (self.number("start")?, self.number("end")?);
        (start <= end).then_some(EventOrigin { by, stamps: Some(Stamps { start, end }) })
    }

    fn step(&mut self) -> Option<Step<LoggedPath>> {
        Some(match self.0.next()? {
            "place" => Step::Place {
                tmp: self.path("tmp")?,
                id: self.file("slow")?,
                path: self.path("path")?,
                over: self.optional_file("over")?,
                node: self.ino()?,
                object: match self.value("object")? {
                    "-" => None,
                    word => Some(Self::object_of(word)?),
                },
                known: match self.0.clone().next() {
                    None => None,
                    Some(_) => Some(TmpStat { size: self.size("size")?, mtime: Self::time_of(self.value("mtime")?)? }),
                },
            },
            "move" => {
                let (path, id, to) = self.moved()?;
                Step::Move { path, id, to, over: self.optional_file("over")? }
            }
            "swap" => {
                let (a, a_id, b) = self.moved()?;
                Step::Swap { a, a_id, b, b_id: self.file("over")? }
            }
            "link" => Step::Link { path: self.path("path")?, id: self.file("slow")?, to: self.path("to")? },
            word @ ("rmdir" | "unlink") => {
                Step::Remove { path: self.path("path")?, id: self.file("slow")?, dir: word == "rmdir" }
            }
            "setattr" => {
                let (path, id, of) = (self.path_or_root("path")?, self.file("slow")?, self.owned()?);
                Step::Attr { path, id, of, new: self.new_attr()? }
            }
            "setxattr" => {
                let (path, id, of) = (self.path_or_root("path")?, self.file("slow")?, self.owned()?);
                let (key, value) = self.xattr()?;
                Step::Xattr { path, id, of, key, value }
            }
            _ => return None,
        })
    }
}

/// The records of a log in their present order: each moved record at its last place, and only there.
pub(crate) fn in_present_order(records: Vec<(Lsn, Record)>) -> Vec<(Lsn, Record)> {
    if !records.iter().any(|(_, record)| matches!(record, Record::Again(_))) {
        return records;
    }
    let (mut counted, mut gone) = (BTreeSet::new(), Vec::new());
    for (at, (lsn, record)) in records.iter().enumerate() {
        let Record::Moved { count, gone: ranges } = record else { continue };
        let count = usize::try_from(*count).ok();
        let Some(group) = count.and_then(|count| records.get(at.checked_sub(count)?..at)) else { continue };
        if !group.iter().all(|(_, record)| matches!(record, Record::Again(_))) {
            continue;
        }
        counted.extend(group.iter().map(|(lsn, _)| *lsn));
        let before = group.first().map_or(*lsn, |(first, _)| (*first).min(*lsn)).saturating_sub(1);
        gone.extend(ranges.iter().map(|(from, to)| (*from, (*to).min(before))));
    }
    gone.sort_unstable();
    // They may overlap in a log that no daemon has written.
    let mut end = 0;
    gone.iter_mut().for_each(|(_, to)| {
        end = end.max(*to);
        *to = end;
    });
    let is_gone = |lsn: Lsn| {
        let before = gone.partition_point(|(from, _)| *from <= lsn).checked_sub(1);
        before.and_then(|before| gone.get(before)).is_some_and(|(_, to)| lsn <= *to)
    };
    let here = |(lsn, record)| match record {
        Record::Again(record) => counted.contains(&lsn).then_some((lsn, *record)),
        record => Some((lsn, record)),
    };
    records.into_iter().filter(|(lsn, _)| !is_gone(*lsn)).filter_map(here).collect()
}

pub(crate) fn counter(word: &str) -> Option<u64> {
    word.parse().ok().filter(|n| *n < COUNTER_MAX)
}

/// Whether each component is a valid name, and the first is not our own directory.
pub(crate) fn is_below_root(path: &[u8]) -> bool {
    let names = || path.split(|b| *b == b'/');
    names().all(|name| Name::new(name).is_ok()) && names().next() != Some(OURS)
}

/// Neither path is the other or is inside it: nothing moves into itself, or onto itself.
fn are_apart(a: &LoggedPath, b: &LoggedPath) -> bool {
    let (a, b) = (&a.bytes()[..], &b.bytes()[..]);
    !is_at_or_below(a, b) && !is_at_or_below(b, a)
}

fn is_xattr_of_users(key: &[u8]) -> bool {
    !key.is_empty() && key.len() <= XATTR_NAME_MAX && !key.contains(&0) && !key.starts_with(PRIVATE)
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn examples() -> Vec<Record> {
        let time = Time { sec: -3, nsec: 7 };
        let id = ObjectId { home: Home::Fast, number: 9 };
        let attrs =
            Attrs { perm: 0o4755, uid: 1, gid: 2, mtime: time, xattrs: vec![(b"user.a b".to_vec(), vec![0, 255])] };
        let new = NewAttr { uid: Some(4), perm: Some(0o700), mtime: Some(time), ..NewAttr::default() };
        let spec = Spec { kind: Kind::Symlink, attrs: attrs.clone(), rdev: 5, target: b"../x y".to_vec() };
        let path: LoggedPath = b"dir/a name\n\xff=".to_vec().into();
        let file = |ino: u64| FileId { ino, birth: 7 << 29 };
        let [of, link] = [Kind::File, Kind::Symlink].map(|kind| Owned { kind, uid: 6, gid: 0 });
        let steps = [
            Step::Place {
                tmp: b"c7".to_vec().into(),
                id: FileId { ino: 3, birth: 0 },
                path: path.clone(),
                over: None,
                node: 8,
                object: Some(id),
                known: Some(TmpStat { size: 77, mtime: time }),
            },
            Step::Place {
                tmp: b"l7-8".to_vec().into(),
                id: file(3),
                path: path.clone(),
                over: Some(file(4)),
                node: 8,
                object: None,
                known: None,
            },
            Step::Move { path: path.clone(), id: file(1), to: b"t".to_vec().into(), over: Some(file(2)) },
            Step::Swap { a: path.clone(), a_id: file(1), b: b"t".to_vec().into(), b_id: file(2) },
            Step::Link { path: path.clone(), id: file(1), to: b"t".to_vec().into() },
            Step::Remove { path: path.clone(), id: file(1), dir: true },
            Step::Attr { path: path.clone(), id: file(1), of, new },
            Step::Xattr { path: path.clone(), id: file(1), of: link, key: b"user.k".to_vec(), value: None },
        ];
        let mut all = vec![
            Record::Start { boot: "b-1".into() },
            Record::Bind { path: path.clone(), ino: 5, object: ObjectId { home: Home::Slow, number: 1 } },
            Record::Names { ino: 5, paths: vec![path.clone(), b"t".to_vec().into()] },
            Record::Make { path: path.clone(), ino: 5, spec },
            Record::SetAside { events: vec![(3, 3), (5, 9)] },
            Record::Moved { count: 2, gone: vec![(3, 3), (5, 9)] },
            Record::Again(Box::new(Record::Seal { of: 3, size: 77 })),
            Record::Again(Box::new(Record::Remove { path: path.clone(), ino: 5, dir: true })),
            Record::Content { path: path.clone(), ino: 5, object: id, size: 77, attrs },
            Record::Link { path: path.clone(), to: b"t".to_vec().into(), ino: 5, slow: None },
            Record::Rename {
                path: path.clone(),
                to: b"t".to_vec().into(),
                ino: 5,
                slow: Some(file(2)),
                exchange: true,
            },
            Record::Remove { path: path.clone(), ino: 5, dir: false },
            Record::SetAttr { path: Vec::new().into(), ino: 1, of: AttrsOf { owned: of, slow: Some(file(2)) }, new },
            Record::SetXattr {
                path: path.clone(),
                ino: 5,
                of: AttrsOf { owned: link, slow: None },
                key: b"user.k".to_vec(),
                value: Some(Vec::new()),
            },
            Record::Discarded { ino: 5 },
            Record::Invalidate { ino: 5, object: id, from: 9 },
            Record::InPlace { ino: 5, slow: file(3), mtime: time },
            Record::Expect { path: path.clone(), slow: None },
            Record::Expect { path, slow: Some(Fingerprint { file: file(3), size: 5, mtime: time, ctime: time }) },
            Record::Seal { of: 3, size: 77 },
            Record::Applied { upto: 4 },
        ];
        all.extend(steps.into_iter().map(|step| Record::Intent { upto: 12, index: 1, count: 3, step }));
        all
    }

    #[test]
    fn every_record_round_trips_as_one_printable_line() {
        for (i, record) in examples().into_iter().enumerate() {
            let line = record.encode(i as Lsn, 7, EventOrigin::default());
            assert!(
                line.ends_with('\n') && line.trim_end().bytes().all(|b| b == b' ' || b.is_ascii_graphic()),
                "{line}"
            );
            assert_eq!(Record::decode(line.trim_end().as_bytes()), Some((i as Lsn, 7, record, EventOrigin::default())));
        }
    }

    #[test]
    fn a_flipped_or_missing_byte_is_noticed() {
        for record in examples() {
            let line = record.encode(1, 0, EventOrigin::default());
            let line = line.trim_end().as_bytes();
            for i in 0..line.len() {
                let mut bad = line.to_vec();
                bad[i] ^= 1;
                // The CRC's own hex digits may change case without changing their meaning.
                assert!(
                    Record::decode(&bad).is_none_or(|r| r == (1, 0, record.clone(), EventOrigin::default())),
                    "byte {i}"
                );
                assert_eq!(Record::decode(&line[..i]), None, "cut at {i}");
            }
        }
    }

    fn with_crc(text: &str) -> String {
        format!("{:08x} {text}", crc32fast::hash(text.as_bytes()))
    }

    /// The line of a record with more words at its end.
    fn extended(record: &Record, words: &str) -> String {
        let line = record.encode(3, 1, EventOrigin::default());
        with_crc(&format!("{} {words}", &line.trim_end()[9..]))
    }

    #[test]
    fn an_event_may_end_with_its_user_and_stamps_and_nothing_else_may() {
        const KINDS: [&str; 9] =
            ["make", "content", "link", "rename", "exchange", "unlink", "rmdir", "setattr", "setxattr"];
        let mut random = SmallRng::seed_from_u64(1);
        let mut events = 0;
        for record in examples() {
            let is_event = record
                .encode(3, 1, EventOrigin::default())
                .split(' ')
                .skip(3)
                .find(|word| *word != "again")
                .is_some_and(|kind| KINDS.contains(&kind));
            events += u64::from(is_event);
            for _ in 0..100 {
                let (one, other) = (random.random::<u64>(), random.random::<u64>());
                let (start, end) = (one.min(other), one.max(other));
                let by = random.random_range(0..3);
                let user = if by == 0 { String::new() } else { format!("by={by} ") };
                let line = extended(&record, &format!("{user}start={start} end={end}"));
                let origin = EventOrigin { by, stamps: Some(Stamps { start, end }) };
                let wanted = is_event.then(|| (3, 1, record.clone(), origin));
                assert_eq!(record.encode(3, 1, origin) == format!("{line}\n"), is_event, "{line}");
                assert_eq!(Record::decode(line.as_bytes()), wanted, "{line}");
                for bad in [
                    format!("start={end} end={}", start.wrapping_sub(1)),
                    format!("start={start}"),
                    format!("end={end}"),
                    format!("end={end} start={start}"),
                    format!("start={start} end={end} x=1"),
                    format!("start={start} end={end} by=7"),
                    format!("by=0 start={start} end={end}"),
                    format!("start=-1 end={end}"),
                    format!("start=0 end={end}0000000000000000000"),
                ] {
                    let line = extended(&record, &bad);
                    // The least stamp has none before it.
                    assert!(start == 0 || Record::decode(line.as_bytes()).is_none(), "{line}");
                }
            }
            for whole in ["start=5 end=5", "by=7"] {
                let line = extended(&record, whole);
                assert_eq!(Record::decode(line.as_bytes()).is_some(), is_event, "{line}");
            }
        }
        assert!(events >= 7, "{events} kinds of events");
    }

    /// A crash may cut off the end of a move; then it was never begun.
    #[test]
    fn moved_records_are_at_their_last_place_only() {
        let seal = |of: Lsn| Record::Seal { of, size: 1 };
        let again = |of: Lsn| Record::Again(Box::new(seal(of)));
        let moved = |count, gone: &[(Lsn, Lsn)]| Record::Moved { count, gone: gone.to_vec() };
        let mut log = vec![seal(1), seal(2), seal(3), seal(4), again(1), again(3), moved(2, &[(1, 1), (3, 3)])];
        let order = |log: &[Record]| -> Vec<(Lsn, Lsn)> {
            let log = (1..).zip(log.iter().cloned()).collect();
            let seals = in_present_order(log).into_iter().filter_map(|(lsn, record)| match record {
                Record::Seal { of, .. } => Some((lsn, of)),
                _ => None,
            });
            seals.collect()
        };
        assert_eq!(order(&log), [(2, 2), (4, 4), (5, 1), (6, 3)]);
        assert_eq!(order(&log[..6]), [(1, 1), (2, 2), (3, 3), (4, 4)], "its end is cut off");
        log.extend([seal(8), again(1), moved(1, &[(5, 5)])]);
        assert_eq!(order(&log), [(2, 2), (4, 4), (6, 3), (8, 8), (9, 1)], "moved twice");
        assert_eq!(order(&[seal(1), again(2), seal(3), moved(2, &[(1, 1)])]), [(1, 1), (3, 3)], "not by us");
    }

    /// A CRC is no signature. These lines were once accepted: the first three stopped a start with a bare errno, the
    /// renames and the link made a directory its own ancestor (a start that never ended), the numbers overflowed a
    /// counter.
    #[test]
    fn what_no_daemon_writes_is_no_record() {
        let long = "n".repeat(256);
        let all = [
            "1 0 bind path=../etc/passwd ino=5 object=f1",
            "1 0 bind path= ino=5 object=f1",
            &format!("1 0 bind path={long} ino=5 object=f1"),
            "1 0 bind path=a//b ino=5 object=f1",
            "1 0 bind path=a/%00 ino=5 object=f1",
            "1 0 bind path=.dlio-fs/id ino=5 object=f1",
            "1 0 rename path=a to=a/b ino=5 slow=-",
            "1 0 exchange path=a/b to=a ino=5 slow=-",
            "1 0 rename path=a to=a ino=5 slow=-",
            "1 0 bind path=a ino=0 object=f1",
            "1 0 bind path=a ino=18446744073709551615 object=f1",
            "1 0 bind path=a ino=5 object=f18446744073709551615",
            "1 0 bind path=a ino=5 object=s1+f2@18446744073709551615",
            "18446744073709551615 0 applied upto=1",
            "1 0 applied upto=18446744073709551615",
            "1 0 seal of=1 size=9223372036854775808",
            "1 0 set-aside ranges=1 from=3 to=2",
            "1 0 moved count=0 ranges=1 from=3 to=2",
            "1 0 again again seal of=1 size=1",
            "1 0 setxattr path=a ino=5 slow=- file owner=0 group=0 key=user.dlio.clean value=x",
            "1 0 setxattr path=a ino=5 slow=- file owner=0 group=0 key= removed",
            "1 0 setattr path=a ino=5 slow=- door owner=0 group=0 uid=- gid=- perm=- atime=- mtime=-",
            "1 0 make path=a ino=5 file mode=0644 uid=0 gid=0 mtime=0.0 xattrs=0 rdev=0 target=",
            "1 0 intent upto=3 index=0 count=1 place tmp=../../etc slow=1 path=a over=- ino=5 object=-",
            "1 0 intent upto=3 index=0 count=1 unlink path=.dlio-fs/id slow=1",
            "1 0 intent upto=3 index=0 count=1 move path=a slow=1 to=a/b over=-",
        ];
        for text in all {
            assert_eq!(Record::decode(with_crc(text).as_bytes()), None, "{text}");
        }
    }
}

//! What the application does: every kind of change, on new files, on files only the slow tier has, on evicted ones.
//!
//! The same calls go to a mount or to the engine alone ([`Target`]); a ledger keeps what was answered and judges what is
//! found afterwards.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dlio_fs::error::Errno;

use crate::traffic::ledger::{Ledger, Op, may_survive, positions, without};
use crate::traffic::record::record;
use crate::traffic::tree::{Shown, Tree};

/// Where the calls go.
pub(crate) trait Target {
    /// A call of a ledger. `Create` and `Truncate` open the one file that `Write`, `Fsync` and `Close` are about; a `Write`
    /// without one opens it as it is.
    fn perform(&mut self, op: &Op) -> Result<(), Errno>;
    /// What an application sees.
    fn tree(&mut self) -> Result<Tree, String>;
    /// Everything to the slow tier.
    fn drain(&mut self) -> Result<(), Errno>;
    /// Whatever is clean leaves the fast tier, but what is pinned.
    fn evict(&mut self);
    /// Stages the files of a directory, and reads another file to its end, for it to be promoted. Whatever comes of it.
    fn bring(&mut self, dir: &Path, read: &Path);
    /// What is read of a file.
    fn read(&mut self, path: &Path) -> Result<Shown, Errno>;
    fn pin(&mut self, path: &Path) -> Result<(), Errno>;
    /// What is pinned, from the root.
    fn pins(&mut self) -> Result<Vec<PathBuf>, String>;
    /// Somebody else takes all the room of the fast tier but a little, or gives it back.
    fn fill(&mut self, full: bool);
    /// Somebody else writes over a file of the slow tier. No daemon runs.
    fn change_behind(&mut self, path: &Path, bytes: &[u8]);
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Do(Op),
    Drain,
    Evict,
    /// Reads everything: evicted files from the slow tier.
    Look,
    /// A directory to stage, and a file to promote.
    Bring(PathBuf, PathBuf),
    /// Reads a file: it must be as it was written last.
    Read(PathBuf),
    Pin(PathBuf),
    /// The fast tier is full, or no longer.
    Fill(bool),
}

/// A page of the ledger's judgement on cut-off writes.
const PAGE: usize = 4096;
/// Larger than `copy_up_max` of [`OPTIONS`]: written in place on the slow tier.
const LARGE: usize = 6 * PAGE;
pub(crate) const COPY_UP_MAX: u64 = 4 * PAGE as u64;
/// The file that is written in place. The slow tier shows it as it is being written: no prefix of anything.
pub(crate) const IN_PLACE: &str = "large";
/// Staged and pinned; somebody else changes it on the slow tier while no daemon runs.
pub(crate) const KEPT: &str = "set/kept";
const KEPT_LEN: usize = 5000;
/// What a full fast tier has left: not enough for a file.
pub(crate) const LITTLE: u64 = 64 << 10;
/// What is read there is promoted; what is written there does not pass the fast tier.
pub(crate) const RULES: &str = r#"[{path="read/**", promote=true}, {path="past/**", absorb=false}]"#;

fn path(name: &str) -> PathBuf {
    PathBuf::from(name)
}

fn bytes(generation: u64, len: usize) -> Vec<u8> {
    record(generation, 0, len - 20)
}

fn write(name: &str, generation: u64, len: usize) -> Step {
    Step::Do(Op::Write { path: path(name), offset: 0, bytes: bytes(generation, len) })
}

fn saved(name: &str, generation: u64, len: usize) -> Vec<Step> {
    vec![Step::Do(Op::Create(path(name))), write(name, generation, len), Step::Do(Op::Close(path(name)))]
}

fn synced(name: &str, generation: u64, len: usize) -> Vec<Step> {
    let mut steps = saved(name, generation, len);
    steps.insert(2, Step::Do(Op::Fsync(path(name))));
    steps
}

fn truncated(name: &str, generation: u64, len: usize) -> Vec<Step> {
    vec![Step::Do(Op::Truncate(path(name))), write(name, generation, len), Step::Do(Op::Close(path(name)))]
}

fn over(name: &str, generation: u64, len: usize) -> Vec<Step> {
    vec![write(name, generation, len), Step::Do(Op::Fsync(path(name))), Step::Do(Op::Close(path(name)))]
}

fn over_a_part(name: &str, generation: u64) -> Vec<Step> {
    let write = Op::Write { path: path(name), offset: PAGE, bytes: bytes(generation, PAGE) };
    [write, Op::Fsync(path(name)), Op::Close(path(name))].map(Step::Do).to_vec()
}

fn read(name: &str) -> Step {
    Step::Read(path(name))
}

fn rename(from: &str, to: &str) -> Step {
    Step::Do(Op::Rename(path(from), path(to)))
}

fn unlink(name: &str) -> Step {
    Step::Do(Op::Unlink(path(name)))
}

/// What the slow tier has before the first mount.
pub(crate) fn before() -> Vec<Op> {
    let mut ops = Vec::new();
    for dir in ["dir", "dir/sub", "past", "read", "set"] {
        ops.push(Op::Mkdir(path(dir)));
    }
    let evicted = [("old", 6000), ("dir/inside", 3 * PAGE), ("dir/sub/deep", 300), (IN_PLACE, LARGE)];
    let staged =
        [("set/one", 3 * PAGE), ("set/two", 7000), (KEPT, KEPT_LEN), ("read/one", 2 * PAGE), ("past/old", 9000)];
    for (name, len) in evicted.into_iter().chain(staged) {
        let generation = 1000 + len as u64;
        let steps = saved(name, generation, len);
        ops.extend(steps.into_iter().filter_map(|step| if let Step::Do(op) = step { Some(op) } else { None }));
    }
    ops
}

/// Paragraphs: if a call of one fails for good, the application goes on with the next.
pub(crate) fn script() -> Vec<Vec<Step>> {
    let mut script = vec![
        synced("a", 1, 9000),
        vec![rename("a", "b")],
        saved("c", 2, 3 * PAGE),
        truncated("c", 3, 2 * PAGE),
        vec![Step::Do(Op::Mkdir(path("d")))],
        saved("d/f", 4, 700),
        vec![Step::Do(Op::Link(path("d/f"), path("d/g")))],
        vec![Step::Do(Op::Symlink(path("d/f"), path("latest")))],
        vec![
            Step::Do(Op::Chmod(path("d/f"), 0o640)),
            Step::Do(Op::Tag(path("d/f"), b"one".to_vec())),
            rename("d", "e"),
            unlink("e/g"),
        ],
    ];
    // Over files that only the slow tier has.
    let mut manifest = synced("old.tmp", 5, 40);
    manifest.push(rename("old.tmp", "old"));
    script.push(manifest);
    script.push(over("dir/inside", 6, 3 * PAGE));
    script.push(over(IN_PLACE, 7, LARGE));
    script.push(vec![
        Step::Do(Op::Chmod(path("dir/sub/deep"), 0o604)),
        Step::Do(Op::Tag(path("dir/sub/deep"), b"two".to_vec())),
        rename("dir", "moved"),
    ]);
    script.push(vec![unlink("moved/sub/deep"), Step::Do(Op::Rmdir(path("moved/sub")))]);
    script.push(vec![Step::Drain, Step::Evict, Step::Look]);
    // Clean or evicted by now: the fingerprint is removed, or the bytes are copied up.
    script.push(over("b", 8, 9000));
    let end = Op::Write { path: path("c"), offset: 2 * PAGE, bytes: bytes(9, PAGE) };
    script.push(vec![Step::Do(end), Step::Do(Op::Close(path("c")))]);
    script.push(truncated("old", 10, 80));
    script.push(vec![rename("b", "moved/inside"), unlink("latest")]);
    script.push(vec![Step::Do(Op::Mkdir(path("x"))), Step::Do(Op::Rmdir(path("x")))]);
    let mut temporary = saved("t", 11, 500);
    temporary.push(unlink("t"));
    script.push(temporary);
    script.push(vec![Step::Drain]);
    script.push(over("moved/inside", 12, 9000));
    script.extend(staging());
    script
}

/// Staged copies that are read, written over, cut off and evicted, and files that do not pass the fast tier.
fn staging() -> Vec<Vec<Step>> {
    let moved = [saved("past/more", 18, 300), vec![rename("past/more", "more")]].concat();
    vec![
        vec![Step::Pin(path(KEPT))],
        vec![
            Step::Bring(path("set"), path("read/one")),
            read("set/one"),
            read("set/two"),
            read("read/one"),
            read(KEPT),
        ],
        over_a_part("set/one", 13),
        over_a_part("read/one", 14),
        truncated("set/two", 15, 500),
        synced("past/new", 16, 9000),
        over_a_part("past/old", 17),
        moved,
        vec![read("set/one"), read("set/two"), read("read/one"), read("past/old")],
        vec![Step::Drain, Step::Evict, read("set/one"), read("past/new"), read(KEPT)],
        over_a_part("past/new", 19),
        spilled_from_some_point_on("split"),
        saved("spilled", 24, 9000),
        vec![Step::Fill(false)],
        over_a_part("set/one", 20),
    ]
}

/// What finds no room is written to the slow tier.
fn spilled_from_some_point_on(name: &str) -> Vec<Step> {
    let end = Op::Write { path: path(name), offset: PAGE, bytes: bytes(23, 4 * LITTLE as usize) };
    let mut steps = saved(name, 22, PAGE);
    steps.splice(2..2, [Step::Fill(true), Step::Do(end)]);
    steps
}

/// An application and what it was told.
#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) ledger: Ledger,
    clock: u64,
    /// How many changes the slow tier had at the last drain.
    on_slow: usize,
    /// Changes that a power cut must leave, and contents.
    durable: usize,
    synced: BTreeSet<Shown>,
    /// Written over, and not synced since: a power cut may mix the two.
    mixed: BTreeSet<PathBuf>,
    /// The application was told that these are not durable: until it syncs them with success, they may be lost.
    refused: BTreeSet<PathBuf>,
    /// What the slow tier had at the last drain. Only that is written over: a version that is overwritten before it is published
    /// goes out with what follows, and the slow tier is at no position of the order meanwhile.
    drained: BTreeSet<Shown>,
    /// The open file.
    open: Option<PathBuf>,
    /// Whether [`KEPT`] is pinned, if that is known.
    pinned: Option<bool>,
}

impl Player {
    /// Everything that [`before`] says is on the slow tier.
    pub(crate) fn new() -> Self {
        let (ledger, synced) = (Ledger::default(), BTreeSet::new());
        let mut player = Player {
            ledger,
            clock: 0,
            on_slow: 0,
            durable: 0,
            synced,
            mixed: BTreeSet::new(),
            refused: BTreeSet::new(),
            drained: BTreeSet::new(),
            open: None,
            pinned: Some(false),
        };
        for op in before() {
            player.begin(&op);
            player.acknowledge(&op);
        }
        player.all_is_durable();
        player
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, op: &Op) {
        let now = self.tick();
        if let Op::Write { path, offset, .. } = op
            && *offset < self.ledger.size(path)
        {
            self.mixed.insert(path.clone());
        }
        self.ledger.begin(op.clone(), now);
    }

    fn acknowledge(&mut self, op: &Op) {
        let now = self.tick();
        self.ledger.acknowledge(now);
        match op {
            Op::Create(path) | Op::Truncate(path) | Op::Write { path, .. } => self.open = Some(path.clone()),
            Op::Close(_) => self.open = None,
            Op::Fsync(path) => {
                self.durable = self.ledger.changes().len();
                self.synced.extend(self.ledger.content(path));
                self.mixed.remove(path);
                self.refused.remove(path);
            }
            _ => {}
        }
        if let Op::Truncate(path) = op {
            self.mixed.remove(path);
        }
    }

    /// D2.
    fn all_is_durable(&mut self) {
        self.durable = self.ledger.changes().len();
        self.synced = self.ledger.contents();
        self.drained = self.synced.clone();
        self.on_slow = self.durable;
        self.mixed.clear();
    }

    /// Whether an application that knows what there is would make this call.
    fn is_possible(&self, op: &Op) -> bool {
        let ledger = &self.ledger;
        let has = |path: &Path| path.as_os_str().is_empty() || ledger.has(path);
        let has_parent = |path: &Path| has(path.parent().unwrap_or(Path::new("")));
        let is_free = |path: &Path| has_parent(path) && !ledger.has(path);
        match op {
            Op::Mkdir(path) | Op::Create(path) | Op::Symlink(_, path) => is_free(path),
            Op::Truncate(path) | Op::Chmod(path, _) | Op::Tag(path, _) | Op::Unlink(path) => ledger.has(path),
            Op::Write { path, offset, .. } => {
                let may_change = || ledger.content(path).is_some_and(|content| self.drained.contains(&content));
                ledger.has(path) && ledger.size(path) >= *offset && (self.open.is_some() || may_change())
            }
            Op::Fsync(path) | Op::Close(path) => self.open.as_ref() == Some(path),
            Op::Rmdir(path) => ledger.has(path) && ledger.names(&format!("{}/", path.display())).is_empty(),
            // What is discarded after a power cut shows the version before, under the new name: no state that ever was.
            Op::Rename(from, to) => {
                ledger.has(from) && has_parent(to) && !self.mixed.iter().any(|mixed| mixed.starts_with(from))
            }
            Op::Link(from, to) => ledger.has(from) && is_free(to),
            Op::SyncDir => true,
        }
    }

    /// Makes the call, unless it makes no sense by now. After an error the view is looked at: the call has happened or not.
    pub(crate) fn play(&mut self, target: &mut impl Target, op: &Op) -> Result<(), Failed> {
        if !self.is_possible(op) {
            return Err(Failed::Impossible);
        }
        self.begin(op);
        match target.perform(op) {
            Ok(()) => {
                self.acknowledge(op);
                Ok(())
            }
            Err(errno) => {
                // A file that was not closed is closed all the same.
                if matches!(op, Op::Close(_)) {
                    self.open = None;
                }
                if let Op::Fsync(path) = op
                    && path == Path::new(IN_PLACE)
                {
                    self.refused.insert(path.clone());
                }
                Err(Failed::Errno(errno))
            }
        }
    }

    /// After an error: the call in flight has happened or not, nothing else has. What the failed call had opened was closed.
    pub(crate) fn settle(&mut self, op: &Op, seen: &Tree) -> Result<(), String> {
        self.ledger.settle(seen)?;
        if let Op::Create(path) | Op::Truncate(path) | Op::Write { path, .. } = op
            && self.open.is_none()
            && self.ledger.has(path)
        {
            // That may have failed too; then its content is ordered later.
            self.begin(&Op::Close(path.clone()));
            self.ledger.settle(seen)?;
        }
        Ok(())
    }

    /// Pins a file; `false` if it failed.
    pub(crate) fn pin(&mut self, target: &mut impl Target, path: &Path) -> Result<(), Errno> {
        self.pinned = None;
        target.pin(path)?;
        self.pinned = Some(true);
        Ok(())
    }

    /// What was read of a file that nothing is known to have changed since.
    pub(crate) fn reads(&self, path: &Path, found: &Shown) -> Result<(), String> {
        match self.ledger.content(path) {
            Some(wanted) if wanted != *found => {
                Err(format!("{}: {found:?} was read, {wanted:?} written", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Somebody else writes over [`KEPT`], while no daemon runs on any of these, and gives room back: a start needs some.
    pub(crate) fn change_behind<T: Target>(&mut self, targets: &mut [&mut T]) {
        let (kept, bytes) = (path(KEPT), bytes(21, KEPT_LEN));
        for target in targets {
            target.change_behind(&kept, &bytes);
            target.fill(false);
        }
        let now = self.tick();
        for op in [Op::Write { path: kept.clone(), offset: 0, bytes }, Op::Close(kept)] {
            self.ledger.adopt(&op, now);
        }
    }

    /// A pin that was acknowledged stays, whatever happens.
    pub(crate) fn pins(&self, found: &[PathBuf]) -> Result<(), String> {
        let wanted = self.pinned.map(|pinned| if pinned { vec![path(KEPT)] } else { Vec::new() });
        match wanted {
            Some(wanted) if wanted != found => Err(format!("pinned are {found:?}, should be {wanted:?}")),
            _ => Ok(()),
        }
    }

    /// The view shows what was acknowledged.
    pub(crate) fn shows(&mut self, seen: &Tree) -> Result<(), String> {
        self.ledger.settle(seen)
    }

    pub(crate) fn drained(&mut self) {
        self.all_is_durable();
    }

    /// The daemon has gone: nothing is open any more.
    pub(crate) fn dead(&mut self) {
        self.open = None;
    }

    pub(crate) fn open_file(&self) -> Option<PathBuf> {
        self.open.clone()
    }

    /// How many changes the slow tier has at least.
    pub(crate) fn on_slow(&self) -> usize {
        self.on_slow
    }

    /// P4: what a power cut left.
    pub(crate) fn survived(&self, seen: &Tree) -> Result<(), String> {
        let mut seen = seen.clone();
        let kept = seen.remove(Path::new(KEPT)).map(|seen| seen.shown);
        if kept != self.ledger.content(Path::new(KEPT)) {
            return Err(format!("{KEPT} is {kept:?}, which is not what the slow tier has"));
        }
        let mut changes = without(self.ledger.with_in_flight(), Path::new(KEPT));
        for path in self.mixed.union(&self.refused) {
            // What it shows may be a mixture; it must be there.
            seen.remove(path).ok_or_else(|| format!("{} is missing", path.display()))?;
            changes = without(changes, path);
        }
        may_survive(&changes, self.durable, &self.synced, &seen)
    }

    /// P1 and P5: the slow tier is at one of these positions of the order, none before `since`. What is written in place, or by
    /// somebody else, is as it is.
    pub(crate) fn positions(&self, slow: &Tree, since: usize) -> Vec<usize> {
        let (mut slow, mut changes) = (slow.clone(), self.ledger.with_in_flight());
        for path in [IN_PLACE, KEPT].map(Path::new) {
            slow.remove(path);
            changes = without(changes, path);
        }
        let possible = positions(&changes, &slow);
        possible.into_iter().filter(|at| *at >= since).collect()
    }
}

/// A call in one short line.
pub(crate) fn brief(op: &Op) -> String {
    match op {
        Op::Write { path, offset, bytes } => format!("Write({:?}, {} at {offset})", path, bytes.len()),
        other => format!("{other:?}"),
    }
}

/// A tree in one line.
pub(crate) fn brief_tree(tree: &Tree) -> String {
    let shown: Vec<String> = tree
        .iter()
        .map(|(path, seen)| format!("{} {:?} {:o} {:?}", path.display(), seen.shown, seen.mode, seen.tag))
        .collect();
    shown.join(", ")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// What it needs is not there, because an earlier call failed.
    Impossible,
    Errno(Errno),
}

//! What a worker's directory may look like after a power cut: the rules of the model test (`tests/model/order.rs`), for what a
//! worker was told from outside.
//!
//! The slow tier alone shows what some number of the worker's steps gave, exactly. The view shows that too, with every step
//! before an fsync that returned, less contents that were not made durable: of those the version before is shown, and a file
//! of which none was made durable is absent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::traffic::generation_of;
use super::traffic::ledger::{Op, Past};
use super::traffic::tree::{Seen, Shown, Tree};

type Id = usize;

/// One change of the order that the log keeps, when the call that made it began and when it had returned.
#[derive(Clone, Debug)]
struct Step {
    event: Event,
    start: u64,
    end: u64,
}

#[derive(Clone, Debug)]
enum Event {
    /// A directory or a symbolic link.
    Make {
        id: Id,
        at: PathBuf,
    },
    /// `certain` unless the call was cut off.
    Content {
        id: Id,
        at: PathBuf,
        version: usize,
        certain: bool,
    },
    Link {
        id: Id,
        at: PathBuf,
    },
    Remove {
        id: Id,
        at: PathBuf,
    },
    Rename {
        id: Id,
        from: PathBuf,
        to: PathBuf,
    },
    Attributes,
}

#[derive(Clone, Debug)]
struct Node {
    /// `None` for a file.
    shown: Option<Shown>,
    /// What a file held each time it got its place in the order.
    versions: Vec<Version>,
    /// Mode and tag, from this many steps on.
    attributes: Vec<(usize, u32, Option<Vec<u8>>)>,
    /// When an fsync of this version had returned.
    sealed: Vec<(u64, usize)>,
    /// What it holds now.
    bytes: Vec<u8>,
    /// Some version was changed where it was instead of written anew.
    in_place: bool,
    anew: bool,
}

#[derive(Clone, Debug)]
struct Version {
    shown: Shown,
    bytes: Vec<u8>,
    /// The step that ordered it.
    step: usize,
}

/// What a worker did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course {
    steps: Vec<Step>,
    nodes: Vec<Node>,
    /// Every fsync that returned: its start, its end, and the number of steps that were the worker's own before its return.
    syncs: Vec<(u64, u64, usize)>,
    /// The names that each content was ever under.
    ever: BTreeSet<(PathBuf, Shown)>,
    /// Now.
    names: BTreeMap<PathBuf, Id>,
}

impl Course {
    pub(crate) fn new(history: &[Past]) -> Self {
        let mut course = Course::default();
        history.iter().for_each(|past| course.add(past));
        course
    }

    fn add(&mut self, past: &Past) {
        let certain = !past.cut_off;
        match &past.op {
            // Cut off without an effect: of some calls, the content may have been ordered.
            Op::Fsync(path) | Op::Close(path) | Op::Rename(path, _) | Op::Link(path, _) if past.cut_off => {
                self.order(past, path, false);
            }
            _ if past.cut_off => {}
            Op::Mkdir(path) => self.make(past, path, Shown::Dir),
            Op::Symlink(target, path) => self.make(past, path, Shown::Link(target.clone())),
            Op::Create(path) => {
                let id = self.insert(path, None);
                self.nodes[id].attributes.push((0, 0o600, None));
            }
            Op::Truncate(path) => {
                let node = self.file(path);
                (node.bytes, node.anew) = (Vec::new(), true);
            }
            Op::Write { path, offset, bytes } => {
                let node = self.file(path);
                let end = offset + bytes.len();
                node.bytes.resize(node.bytes.len().max(end), 0);
                node.bytes[*offset..end].copy_from_slice(bytes);
                node.in_place |= !node.versions.is_empty() && !node.anew;
            }
            Op::Chmod(path, mode) => self.change(past, path, |attributes| attributes.1 = *mode),
            Op::Tag(path, tag) => self.change(past, path, |attributes| attributes.2 = Some(tag.clone())),
            Op::Close(path) => self.order(past, path, certain),
            Op::Fsync(path) => {
                self.order(past, path, certain);
                self.sync(past, |at| at == path);
            }
            Op::SyncDir => self.sync(past, |at| at.components().count() == 1),
            Op::Link(old, new) => {
                self.order(past, old, certain);
                let id = self.names[old];
                self.name(new, id);
                self.step(past, Event::Link { id, at: new.clone() });
            }
            Op::Rename(from, to) => self.rename(past, from, to),
            Op::Rmdir(path) | Op::Unlink(path) => {
                let id = self.names.remove(path).expect("what is removed was there");
                self.step(past, Event::Remove { id, at: path.clone() });
            }
        }
    }

    fn step(&mut self, past: &Past, event: Event) {
        self.steps.push(Step { event, start: past.start, end: past.end });
    }

    fn insert(&mut self, path: &Path, shown: Option<Shown>) -> Id {
        let (versions, attributes, sealed) = (Vec::new(), Vec::new(), Vec::new());
        self.nodes.push(Node { shown, versions, attributes, sealed, bytes: Vec::new(), in_place: false, anew: true });
        self.names.insert(path.to_owned(), self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    fn make(&mut self, past: &Past, path: &Path, shown: Shown) {
        let id = self.insert(path, Some(shown));
        self.step(past, Event::Make { id, at: path.to_owned() });
    }

    fn file(&mut self, path: &Path) -> &mut Node {
        &mut self.nodes[self.names[path]]
    }

    fn change(&mut self, past: &Past, path: &Path, change: impl FnOnce(&mut (usize, u32, Option<Vec<u8>>))) {
        self.step(past, Event::Attributes);
        let from = self.steps.len();
        let node = self.file(path);
        let mut attributes = node.attributes.last().expect("every file is created").clone();
        attributes.0 = from;
        change(&mut attributes);
        node.attributes.push(attributes);
    }

    /// The content that a file has now gets its place.
    fn order(&mut self, past: &Past, path: &Path, certain: bool) {
        let (id, step) = (self.names[path], self.steps.len());
        let node = &mut self.nodes[id];
        if node.shown.is_some() {
            return;
        }
        let shown = Shown::file(&node.bytes);
        if node.versions.last().is_none_or(|last| last.shown != shown) {
            node.versions.push(Version { shown, bytes: node.bytes.clone(), step });
        }
        node.anew = false;
        let version = node.versions.len() - 1;
        self.step(past, Event::Content { id, at: path.to_owned(), version, certain });
        let names: Vec<PathBuf> =
            self.names.iter().filter(|(_, of)| **of == id).map(|(path, _)| path.clone()).collect();
        names.iter().for_each(|path| self.name(path, id));
    }

    /// A node has this name, too.
    fn name(&mut self, path: &Path, id: Id) {
        self.names.insert(path.to_owned(), id);
        if let Some(last) = self.nodes[id].versions.last() {
            self.ever.insert((path.to_owned(), last.shown.clone()));
        }
    }

    fn sync(&mut self, past: &Past, which: impl Fn(&Path) -> bool) {
        self.syncs.push((past.start, past.end, self.steps.len()));
        for (_, id) in self.names.iter().filter(|(path, _)| which(path)) {
            let node = &mut self.nodes[*id];
            if let Some(newest) = node.versions.len().checked_sub(1) {
                node.sealed.push((past.end, newest));
            }
        }
    }

    fn rename(&mut self, past: &Past, from: &Path, to: &Path) {
        self.order(past, from, true);
        let id = self.names[from];
        self.step(past, Event::Rename { id, from: from.to_owned(), to: to.to_owned() });
        for (_, new, id) in moved(&mut self.names, from, to) {
            self.name(&new, id);
        }
    }

    /// How many steps had returned by this time.
    fn returned(&self, time: u64) -> usize {
        self.steps.partition_point(|step| step.end < time)
    }

    /// How many steps had begun.
    fn begun(&self, time: u64) -> usize {
        self.steps.partition_point(|step| step.start < time)
    }

    /// Every number of steps that `slow` may be the result of.
    pub(crate) fn prefixes(&self, slow: &Tree, range: RangeInclusive<usize>) -> Result<Vec<usize>, String> {
        self.fitting(range, &BTreeSet::new(), slow, |tree, _, id, seen| {
            let versions = &self.nodes[id].versions;
            let is = |version: usize| versions[version].shown == seen.shown;
            tree.current.get(&id).is_some_and(|version| is(*version)) || tree.perhaps.get(&id).is_some_and(|v| is(v.1))
        })
    }

    /// Every number of steps that `view` may be the result of, after the power was cut at this time. `read` reads a file of
    /// the view.
    pub(crate) fn after_cut(
        &self,
        view: &Tree,
        range: RangeInclusive<usize>,
        cut: u64,
        read: impl Fn(&Path) -> Vec<u8>,
    ) -> Result<Vec<usize>, String> {
        let shown: BTreeSet<&Shown> = view.values().map(|seen| &seen.shown).collect();
        // A version that nobody has synced may be durable all the same, and then be written over in place.
        let is_mixed = |node: &Node| {
            let of_node = |at: &Shown| node.versions.iter().any(|version| version.shown == *at);
            let is_file = |path: &Path| view.get(path).is_some_and(|seen| matches!(seen.shown, Shown::File { .. }));
            let mut names = self.ever.iter().filter(|(path, at)| of_node(at) && is_file(path));
            let bytes: Vec<&[u8]> = node.versions.iter().map(|version| &*version.bytes).chain([&*node.bytes]).collect();
            node.in_place && names.any(|(path, _)| is_mixture(&read(path), &bytes))
        };
        let is_discarded = |node: &Node| {
            let seen = |version: &Version| shown.contains(&version.shown);
            let is_there = || node.versions.iter().any(seen) || is_mixed(node);
            node.shown.is_none() && node.sealed_by(cut).is_none() && !is_there()
        };
        let discarded = (0..self.nodes.len()).filter(|id| is_discarded(&self.nodes[*id])).collect();
        self.fitting(range, &discarded, view, |tree, path, id, seen| {
            let node = &self.nodes[id];
            let oldest = node.sealed_by(cut).unwrap_or(0);
            // The content of the next step may be in the log without the rest of it.
            let newest = node.versions.partition_point(|version| version.step <= tree.steps);
            let possible = node.versions.get(oldest..newest).unwrap_or_default();
            let known = possible.iter().any(|version| version.shown == seen.shown);
            let mixed = || {
                let possible: Vec<&[u8]> = node.versions[oldest..].iter().map(|version| &*version.bytes).collect();
                node.in_place && is_mixture(&read(path), &[possible, vec![&node.bytes]].concat())
            };
            node.has_attributes(tree.steps, seen) && (known || mixed())
        })
    }

    /// Every number of steps in the range that gives the names of `seen`, with what `fits` says of its files.
    fn fitting(
        &self,
        range: RangeInclusive<usize>,
        discarded: &BTreeSet<Id>,
        seen: &Tree,
        fits: impl Fn(&Replay, &Path, Id, &Seen) -> bool,
    ) -> Result<Vec<usize>, String> {
        let mut replay = Replay::default();
        let (mut found, mut why) = (Vec::new(), Vec::new());
        for steps in 0..=*range.end() {
            if let Some(last) = steps.checked_sub(1) {
                replay.apply(&self.steps[last].event, discarded, &self.nodes);
            }
            replay.steps = steps;
            if range.contains(&steps) {
                match self.difference(&replay, seen, &fits) {
                    None => found.push(steps),
                    Some(difference) => why.push(format!("  after {steps} steps: {difference}")),
                }
            }
        }
        let next = |steps: usize| self.steps.get(steps).map(|step| &step.event);
        match found.is_empty() {
            false => Ok(found),
            true => {
                why.drain(3.min(why.len())..why.len().saturating_sub(9).max(3.min(why.len())));
                Err(format!("none of {range:?} steps (the next is {:?}):\n{}", next(*range.end()), why.join("\n")))
            }
        }
    }

    fn difference(
        &self,
        replay: &Replay,
        seen: &Tree,
        fits: &impl Fn(&Replay, &Path, Id, &Seen) -> bool,
    ) -> Option<String> {
        let as_it_should_be = |path: &Path, id: Id, seen: &Seen| match &self.nodes[id].shown {
            Some(shown) => *shown == seen.shown,
            None => matches!(seen.shown, Shown::File { .. }) && fits(replay, path, id, seen),
        };
        for (path, id) in &replay.names {
            match seen.get(path) {
                None => return Some(format!("{} is missing", path.display())),
                Some(seen) if !as_it_should_be(path, *id, seen) => {
                    let node = &self.nodes[*id];
                    let had: Vec<_> = node.versions.iter().map(|version| (version.step, &version.shown)).collect();
                    let attributes = node.attributes.iter().rfind(|attributes| attributes.0 <= replay.steps);
                    let at = path.display();
                    return Some(format!(
                        "{at} is {seen:?}; versions {had:?}, {attributes:?}, sealed {:?}",
                        node.sealed
                    ));
                }
                Some(_) => {}
            }
        }
        let perhaps = |path: &Path, seen: &Seen| {
            let is = |(id, (at, version)): (&Id, &(PathBuf, usize))| {
                at == path && self.nodes[*id].versions[*version].shown == seen.shown
            };
            replay.perhaps.iter().any(is)
        };
        let extra = seen.iter().find(|(path, seen)| !replay.names.contains_key(*path) && !perhaps(path, seen))?;
        Some(format!("{} should not be there: {:?}", extra.0.display(), extra.1))
    }

    /// Every file is one that was closed under this name, as a whole.
    pub(crate) fn whole(&self, slow: &Tree) -> Result<(), String> {
        for (path, seen) in slow {
            let is_file = matches!(seen.shown, Shown::File { .. });
            if is_file && !self.ever.contains(&(path.clone(), seen.shown.clone())) {
                return Err(format!("{} was never closed like this: {seen:?}", path.display()));
            }
        }
        Ok(())
    }

    /// The manifest names a file that is there.
    pub(crate) fn manifest(slow: &Tree) -> Result<(), String> {
        let Some(manifest) = slow.get(Path::new("manifest")) else { return Ok(()) };
        let generation = manifest.generations.as_ref().and_then(|generations| generations.first().copied());
        let data = slow.iter().find(|(path, _)| generation_of(path) == generation);
        match data {
            Some((_, data)) if data.generations.as_ref().and_then(|all| all.first().copied()) == generation => Ok(()),
            _ => Err(format!("the manifest names generation {generation:?}, which has {data:?}")),
        }
    }
}

impl Node {
    /// The newest version that an fsync had returned for by then.
    fn sealed_by(&self, cut: u64) -> Option<usize> {
        self.sealed.iter().filter(|(returned, _)| *returned < cut).map(|(_, version)| *version).max()
    }

    fn has_attributes(&self, steps: usize, seen: &Seen) -> bool {
        let now = self.attributes.iter().rfind(|attributes| attributes.0 <= steps);
        now.is_some_and(|(_, mode, tag)| *mode == seen.mode && *tag == seen.tag)
    }
}

/// Moves a name and all below it; what was moved, from where to where.
fn moved(names: &mut BTreeMap<PathBuf, Id>, from: &Path, to: &Path) -> Vec<(PathBuf, PathBuf, Id)> {
    let old: Vec<PathBuf> = names.keys().filter(|path| path.starts_with(from)).cloned().collect();
    let mut moved = Vec::new();
    for old in old {
        let below = old.strip_prefix(from).expect("only names below were taken");
        // Joining an empty path would add a slash.
        let new = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
        let id = names.remove(&old).expect("the name was just listed");
        moved.push((old, new, id));
    }
    names.extend(moved.iter().map(|(_, new, id)| (new.clone(), *id)));
    moved
}

/// The names and contents after some number of steps.
#[derive(Debug, Default)]
struct Replay {
    steps: usize,
    names: BTreeMap<PathBuf, Id>,
    current: BTreeMap<Id, usize>,
    /// Contents that may or may not have been ordered, and where.
    perhaps: BTreeMap<Id, (PathBuf, usize)>,
}

impl Replay {
    fn has(&self, id: Id) -> bool {
        self.names.values().any(|named| *named == id)
    }

    /// What is about a file that was discarded is about nothing.
    fn apply(&mut self, event: &Event, discarded: &BTreeSet<Id>, nodes: &[Node]) {
        match event {
            Event::Make { id, at } => drop(self.names.insert(at.clone(), *id)),
            Event::Content { id, at, version, certain: false } => {
                self.perhaps.insert(*id, (at.clone(), *version));
            }
            Event::Content { id, .. } if discarded.contains(id) => {}
            Event::Content { id, at, version, .. } => {
                if !self.has(*id) {
                    self.names.insert(at.clone(), *id);
                }
                self.current.insert(*id, *version);
                self.perhaps.remove(id);
            }
            Event::Link { id, at } => {
                if self.has(*id) {
                    self.names.insert(at.clone(), *id);
                }
            }
            Event::Remove { id, at } => {
                let there = self.names.get(at);
                // It had replaced what is there instead, and that does not come back.
                let instead =
                    discarded.contains(id) && there.is_some_and(|other| nodes[*other].shown != Some(Shown::Dir));
                if there == Some(id) || instead {
                    self.names.remove(at);
                }
                self.perhaps.remove(id);
            }
            Event::Rename { id, from, to } => {
                if self.names.get(from) == Some(id) {
                    moved(&mut self.names, from, to);
                }
            }
            Event::Attributes => {}
        }
    }
}

/// Whether each byte is that of one of the versions at this place, or zero beyond the end of one.
fn is_mixture(found: &[u8], versions: &[&[u8]]) -> bool {
    let longest = versions.iter().map(|version| version.len()).max().unwrap_or(0);
    let is_from_one = |(at, byte): (usize, &u8)| versions.iter().any(|v| v.get(at).copied().unwrap_or(0) == *byte);
    found.len() <= longest && found.iter().enumerate().all(is_from_one)
}

/// What is known about all workers when the power is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut<'a> {
    pub(crate) courses: &'a [Course],
    pub(crate) time: u64,
    /// The start of the last call that returned when everything was on the slow tier.
    pub(crate) drained: u64,
}

impl Cut<'_> {
    /// The fewest and the most steps of a worker that the view may show. An fsync makes all durable that returned before it
    /// began, whoever did it.
    pub(crate) fn view(&self, worker: usize) -> RangeInclusive<usize> {
        let returned = |(_, end, _): &&(u64, u64, usize)| *end < self.time;
        let all = self.courses.iter().flat_map(|course| &course.syncs);
        let last = all.filter(returned).map(|(start, ..)| *start).max().unwrap_or(0);
        let course = &self.courses[worker];
        let own = course.syncs.iter().filter(returned).map(|(.., steps)| *steps).max().unwrap_or(0);
        let least = course.returned(last.max(self.drained)).max(own);
        least..=course.begun(self.time)
    }

    /// The same for the slow tier.
    pub(crate) fn slow(&self, worker: usize) -> RangeInclusive<usize> {
        let course = &self.courses[worker];
        course.returned(self.drained)..=course.begun(self.time)
    }

    /// No step of one worker is there without every step of another that had returned before it began. Each worker's
    /// possible numbers of steps, in order.
    pub(crate) fn one_order(&self, possible: &[Vec<usize>]) -> Result<(), String> {
        for (one, course) in self.courses.iter().enumerate() {
            // The last step that is there for certain.
            let Some(there) = possible[one][0].checked_sub(1).map(|at| &course.steps[at]) else { continue };
            for (other, course) in self.courses.iter().enumerate() {
                // The first step that is missing for certain.
                let Some(missing) = possible[other].last().and_then(|at| course.steps.get(*at)) else { continue };
                if missing.end < there.start {
                    return Err(format!(
                        "of worker {one} there is {there:?}, but not worker {other}'s earlier {missing:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    /// The call number `n` lasts from `10 n` to `10 n + 5`.
    fn course(ops: &[Op]) -> Course {
        let past = |(n, op): (usize, &Op)| Past {
            op: op.clone(),
            start: 10 * n as u64,
            end: 10 * n as u64 + 5,
            cut_off: false,
        };
        Course::new(&ops.iter().enumerate().map(past).collect::<Vec<_>>())
    }

    fn tree(names: &[(&str, &[u8])]) -> Tree {
        let seen = |bytes: &[u8]| Seen::noted(Shown::file(bytes), 0o600, None);
        names.iter().map(|(name, bytes)| (path(name), seen(bytes))).collect()
    }

    fn saved(name: &str, bytes: &[u8], sync: bool) -> Vec<Op> {
        let mut ops = vec![Op::Create(path(name)), Op::Write { path: path(name), offset: 0, bytes: bytes.to_vec() }];
        ops.extend(sync.then(|| Op::Fsync(path(name))));
        ops.push(Op::Close(path(name)));
        ops
    }

    fn view_after(course: &Course, time: u64, names: &[(&str, &[u8])]) -> Result<Vec<usize>, String> {
        let courses = [course.clone()];
        let cut = Cut { courses: &courses, time, drained: 0 };
        course.after_cut(&tree(names), cut.view(0), time, |path| {
            names.iter().find(|(name, _)| Path::new(name) == path).unwrap().1.to_vec()
        })
    }

    #[test]
    fn what_was_synced_must_be_there_and_nothing_may_be_torn() {
        let course = course(&saved("f", b"whole", true));
        assert!(view_after(&course, 30, &[("f", b"whole")]).is_ok());
        assert!(view_after(&course, 30, &[]).is_err(), "the fsync had returned");
        assert!(view_after(&course, 25, &[]).is_ok(), "it had not");
        assert!(view_after(&course, 25, &[("f", b"who")]).is_err());
        assert!(view_after(&course, 30, &[("f", b"whole"), ("g", b"x")]).is_err());
    }

    #[test]
    fn what_was_not_synced_is_there_as_a_whole_or_the_version_before_it() {
        let mut ops = saved("f", b"old", true);
        ops.extend(saved("tmp", b"new", false));
        ops.push(Op::Rename(path("tmp"), path("f")));
        let course = course(&ops);
        for (names, fine) in [
            (&[("f", b"old".as_slice())][..], true),
            (&[("f", b"old"), ("tmp", b"new")], true),
            (&[("f", b"new")], true),
            (&[], false),
            (&[("tmp", b"new")], false),
            (&[("f", b"ne")], false),
        ] {
            assert_eq!(view_after(&course, 1000, names).is_ok(), fine, "{names:?}");
        }
    }

    #[test]
    fn a_later_sync_of_something_else_keeps_the_names_but_not_the_contents() {
        let mut ops = saved("f", b"old", true);
        ops.extend([Op::Truncate(path("f")), Op::Write { path: path("f"), offset: 0, bytes: b"new".to_vec() }]);
        ops.extend([Op::Close(path("f")), Op::Link(path("f"), path("best"))]);
        ops.extend(saved("other", b"x", true));
        let course = course(&ops);
        let view = |f, best| view_after(&course, 1000, &[("f", f), ("best", best), ("other", b"x")]);
        assert!(view(b"new", b"new").is_ok() && view(b"old", b"old").is_ok());
        assert!(
            view_after(&course, 1000, &[("f", b"new"), ("other", b"x")]).is_err(),
            "the link came before the fsync"
        );
        let slow = |names| course.prefixes(&tree(names), 0..=course.steps.len());
        assert!(slow(&[("f", b"old")]).is_ok() && slow(&[("f", b"new"), ("best", b"new")]).is_ok());
        assert!(slow(&[("f", b"old"), ("best", b"old")]).is_err(), "the slow tier keeps the order");
    }

    #[test]
    fn a_file_that_is_changed_in_place_may_be_mixed_and_no_other() {
        let mut ops = saved("f", b"aaaa", true);
        ops.extend([Op::Write { path: path("f"), offset: 0, bytes: b"bbbb".to_vec() }, Op::Close(path("f"))]);
        let in_place = course(&ops);
        assert!(view_after(&in_place, 1000, &[("f", b"aabb")]).is_ok());
        assert!(view_after(&in_place, 1000, &[("f", b"aacb")]).is_err());
        ops.insert(4, Op::Truncate(path("f")));
        assert!(view_after(&course(&ops), 1000, &[("f", b"aabb")]).is_err());
    }

    #[test]
    fn the_steps_of_two_workers_are_one_order() {
        let first = course(&saved("a", b"x", false));
        let mut later = saved("b", b"x", false);
        later.splice(0..0, [Op::Mkdir(path("d"))]);
        let later = course(&later);
        let courses = [first, later];
        let cut = Cut { courses: &courses, time: 1000, drained: 0 };
        assert!(cut.one_order(&[vec![1], vec![1]]).is_ok());
        assert!(cut.one_order(&[vec![0], vec![1]]).is_ok());
        // b was closed from 30 on, a had been at 25.
        assert!(cut.one_order(&[vec![0], vec![2]]).is_err());
        assert!(cut.one_order(&[vec![0, 1], vec![2]]).is_ok());
    }
}

//! The order of events, the states that the slow tier may show, and what may be left after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use dlio_fs::path::escape;
use dlio_fs::tiers::disk::{Kind, NewAttr};

use super::reference::{Fs, Id, Node, Place};
use super::sim::image::{Image, show_bytes};

/// One change of the view that the slow tier gets in its turn.
#[derive(Clone, Debug)]
pub enum Event {
    /// A directory, link or special file.
    Make {
        id: Id,
        at: Place,
        node: Rc<Node>,
    },
    Content(Content),
    Link {
        id: Id,
        at: Place,
    },
    Remove {
        id: Id,
        at: Place,
    },
    Rename {
        id: Id,
        from: Place,
        to: Place,
    },
    Exchange {
        a: Id,
        a_at: Place,
        b: Id,
        b_at: Place,
    },
    Attr {
        id: Id,
        new: NewAttr,
    },
    Xattr {
        id: Id,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    },
}

/// A file as it was when its content got its place in the order.
#[derive(Clone, Debug)]
pub struct Content {
    pub id: Id,
    pub at: Place,
    pub node: Rc<Node>,
    /// Rises when the file's bytes start anew instead of changing in place.
    pub generation: u32,
    /// An fsync came back after it.
    pub sealed: bool,
}

/// Does to a tree what the event says. What refers to a file that is not there (discarded) is skipped.
pub fn apply(fs: &mut Fs, event: &Event) {
    match event {
        Event::Make { id, at, node } => {
            fs.insert(*id, node.clone());
            fs.put(at, Some(*id));
        }
        Event::Content(Content { id, at, node, .. }) => {
            if !is_named(fs, *id) {
                fs.put(at, Some(*id));
            }
            fs.insert(*id, node.clone());
        }
        Event::Link { id, at } => {
            if is_named(fs, *id) {
                fs.put(at, Some(*id));
            }
        }
        Event::Remove { id, at } => {
            // One that was discarded had replaced whatever is there instead.
            let discarded = !fs.contains(*id) && fs.child(at).is_some_and(|other| fs.node(other).kind != Kind::Dir);
            if fs.child(at) == Some(*id) || discarded {
                fs.put(at, None);
            }
        }
        Event::Rename { id, from, to } => {
            if fs.child(from) == Some(*id) {
                fs.put(from, None);
                fs.put(to, Some(*id));
            }
        }
        Event::Exchange { a, a_at, b, b_at } => {
            // One that was discarded has perhaps replaced what is there instead: that moves, or nothing does.
            let (at_a, at_b) = (fs.child(a_at), fs.child(b_at));
            let meant = |id: &Id, at: Option<Id>| at == Some(*id) || !fs.contains(*id);
            let (moves_a, moves_b) = (meant(a, at_a), meant(b, at_b));
            if moves_a && moves_b {
                fs.put(b_at, at_a);
                fs.put(a_at, at_b);
            }
        }
        Event::Attr { id, new } => {
            if fs.contains(*id) {
                fs.node_mut(*id).set(new);
            }
        }
        Event::Xattr { id, key, value } => {
            if fs.contains(*id) {
                let xattrs = &mut fs.node_mut(*id).xattrs;
                match value {
                    Some(value) => drop(xattrs.insert(key.clone(), value.clone())),
                    None => drop(xattrs.remove(key)),
                }
            }
        }
    }
}

fn is_named(fs: &Fs, id: Id) -> bool {
    fs.contains(id) && !fs.names(id).is_empty()
}

/// The committed tree after some prefix of the events.
#[derive(Clone, Debug)]
struct Stage {
    fs: Fs,
    image: Image,
    /// Contents that the engine may or may not have taken in by now: the versions of each file.
    maybe: BTreeMap<Id, Vec<Content>>,
}

/// What a file's bytes were after this many events, of this generation.
type Written = (usize, u32, Arc<Vec<u8>>);

/// The events since the beginning, and what the slow tier has shown of them.
#[derive(Clone, Debug)]
pub struct Order {
    events: Vec<Event>,
    /// One more than there are events.
    stages: Vec<Stage>,
    /// The slow tier has shown this many events.
    shown: usize,
    /// This many events are durable on fast (but not the contents among them that were not sealed).
    durable: usize,
    /// Every state that a file's bytes went through.
    written: BTreeMap<Id, Vec<Written>>,
    generation: BTreeMap<Id, u32>,
    /// Files that were changed on the slow tier in place: their bytes and times are out of order.
    in_place: BTreeSet<Id>,
}

/// More combinations than this are not tried.
const COMBINATIONS: usize = 16_384;

impl Order {
    pub fn new(fs: Fs) -> Order {
        let stage = Stage { image: fs.image(), fs, maybe: BTreeMap::new() };
        Order {
            events: Vec::new(),
            stages: vec![stage],
            shown: 0,
            durable: 0,
            written: BTreeMap::new(),
            generation: BTreeMap::new(),
            in_place: BTreeSet::new(),
        }
    }

    fn last(&self) -> &Stage {
        self.stages.last().expect("there is always the first one")
    }

    /// Whether the file has become an event (or was there from the start) and is still there.
    /// What any file was as a whole: in the beginning, by an event, or perhaps by one.
    pub fn versions_of_all(&self) -> impl Iterator<Item = Arc<Vec<u8>>> {
        let base = &self.stages[0].fs;
        let first = base.paths().into_iter().map(|(_, id)| base.node(id).bytes.clone());
        let committed = self.events.iter().filter_map(|event| match event {
            Event::Content(content) => Some(content.node.bytes.clone()),
            _ => None,
        });
        let perhaps = self.stages.iter().flat_map(|stage| stage.maybe.values().flatten());
        first.chain(committed).chain(perhaps.map(|content| content.node.bytes.clone()))
    }

    pub fn has(&self, id: Id) -> bool {
        is_named(&self.last().fs, id)
    }

    pub fn has_name(&self, place: &Place) -> bool {
        self.last().fs.child(place).is_some()
    }

    pub fn push(&mut self, event: Event) {
        let Stage { mut fs, mut maybe, .. } = self.last().clone();
        apply(&mut fs, &event);
        match &event {
            Event::Content(content) => drop(maybe.remove(&content.id)),
            Event::Attr { .. } | Event::Xattr { .. } => change_all(&mut maybe, &event),
            Event::Remove { .. } | Event::Rename { .. } => maybe.retain(|_, all| still_possible(&fs, all)),
            _ => {}
        }
        self.stages.push(Stage { image: fs.image(), fs, maybe });
        self.events.push(event);
    }

    /// From now on the slow tier may show this version, or not yet.
    pub fn maybe(&mut self, content: Content) {
        self.stages.last_mut().expect("as above").maybe.entry(content.id).or_default().push(content);
    }

    /// Whether a version of the file may have become an event, or not yet.
    pub fn may_have(&self, id: Id) -> bool {
        self.last().maybe.contains_key(&id)
    }

    /// Attributes of a file that may or may not have become an event changed.
    pub fn maybe_changed(&mut self, event: &Event) {
        change_all(&mut self.stages.last_mut().expect("as above").maybe, event);
    }

    /// A file that never became an event lost its name: it can no longer become one.
    pub fn forget(&mut self, id: Id) {
        let mut stage = self.last().clone();
        if stage.maybe.remove(&id).is_some() {
            // An event without effect: what was possible before it stays possible before it.
            self.stages.push(stage);
            self.events.push(Event::Attr { id: Id::MAX, new: NewAttr::default() });
        }
    }

    pub fn content(&self, id: Id, at: Place, node: Rc<Node>) -> Content {
        Content { id, at, node, generation: self.generation.get(&id).copied().unwrap_or(0), sealed: false }
    }

    /// The file's bytes are these now; `anew` if they did not come about by changing the former ones in place.
    pub fn wrote(&mut self, id: Id, bytes: &Arc<Vec<u8>>, anew: bool) {
        let generation = self.generation.entry(id).or_default();
        *generation += u32::from(anew);
        self.written.entry(id).or_default().push((self.events.len(), *generation, bytes.clone()));
    }

    pub fn is_in_place(&self, id: Id) -> bool {
        self.in_place.contains(&id)
    }

    pub fn in_place(&self) -> BTreeSet<Id> {
        self.in_place.clone()
    }

    pub fn set_all_in_place(&mut self, files: &BTreeSet<Id>) {
        self.in_place.extend(files);
    }

    /// Whether the file's bytes and times on the slow tier are out of order, because they are changed there.
    pub fn set_in_place(&mut self, id: Id, is: bool) {
        if is {
            self.in_place.insert(id);
        } else {
            self.in_place.remove(&id);
        }
    }

    /// Everything so far is durable on fast; of the contents, those of `files`.
    pub fn synced(&mut self, files: impl Fn(Id) -> bool) {
        self.durable = self.events.len();
        for event in &mut self.events {
            if let Event::Content(content) = event {
                content.sealed |= files(content.id);
            }
        }
    }

    /// As durable as `other`, of which this is a continuation: the operation that was to sync more did not come back.
    pub fn unsync(&mut self, other: &Order) {
        self.durable = other.durable;
        for (i, event) in self.events.iter_mut().enumerate() {
            if let Event::Content(content) = event {
                content.sealed &= matches!(other.events.get(i), Some(Event::Content(content)) if content.sealed);
            }
        }
    }

    /// Continues with the events of `other` that are certain: all but contents.
    pub fn take_events(&mut self, other: &Order) {
        self.generation = other.generation.clone();
        self.written = other.written.clone();
        for event in &other.events[self.events.len()..] {
            if !matches!(event, Event::Content(_)) {
                self.push(event.clone());
            }
        }
    }

    /// The slow tier shows `image`: moves on to the first stage at which it may, or says what it should look like.
    pub fn show(&mut self, image: &Image) -> Result<(), String> {
        match (self.shown..self.stages.len()).find(|&at| self.fits(at, image)) {
            Some(at) => {
                self.shown = at;
                Ok(())
            }
            None => Err(self.explain(image)),
        }
    }

    /// How many events the slow tier has shown.
    pub fn position(&self) -> usize {
        self.shown
    }

    /// Whether one of the events shown since `from` is the content of a file with several names: no file system replaces
    /// those at once.
    pub fn replaced_several_names(&self, from: usize) -> bool {
        (from..self.shown).any(|at| match &self.events[at] {
            Event::Content(content) => self.stages[at].fs.names(content.id).len() > 1,
            _ => false,
        })
    }

    /// Whether the slow tier may look like this after a power cut, which may take back what it had shown.
    pub fn show_after_power_cut(&mut self, image: &Image) -> Result<(), String> {
        match (0..self.stages.len()).find(|&at| self.fits(at, image)) {
            Some(at) => {
                self.shown = self.shown.min(at);
                Ok(())
            }
            None => Err(self.explain(image)),
        }
    }

    /// The slow tier has caught up, and shows this.
    pub fn restart(&mut self, fs: Fs) {
        let generation = std::mem::take(&mut self.generation);
        *self = Order { generation, ..Order::new(fs) };
    }

    fn fits(&self, at: usize, image: &Image) -> bool {
        let stage = &self.stages[at];
        if !self.in_place.is_empty() {
            return stage.alternatives().any(|fs| {
                let paths = fs.paths().into_iter().filter(|(_, id)| self.in_place.contains(id));
                let masked = paths.map(|(path, _)| path).collect();
                fs.image().without_bytes_of(&masked) == image.without_bytes_of(&masked)
            });
        }
        stage.image == *image || (!stage.maybe.is_empty() && stage.alternatives().any(|fs| fs.image() == *image))
    }

    fn explain(&self, image: &Image) -> String {
        let mut said = format!("the slow tier shows no prefix of the events ({} were shown before):\n", self.shown);
        let near = self.shown..self.stages.len().min(self.shown + 4);
        for at in near {
            let next = self.events.get(at).map_or_else(|| "nothing".into(), show_event);
            said += &format!(" against {at} events (next: {next})\n");
            said += &self.stages[at].image.diff(image, "expected", "slow    ");
            said += "\n";
        }
        said
    }

    /// Finds out whether `view`, found after a power cut, can be reached: a prefix of the events that has at least the
    /// durable ones, less contents that were not sealed.
    ///
    /// `Ok(false)`: it cannot be judged, because it is not certain which events there were.
    pub fn reach(&self, view: &Image) -> Result<bool, String> {
        let skeleton = |image: &Image| image.without_bytes_of(&image.paths().cloned().collect());
        let found = skeleton(view);
        let mut why = String::new();
        let absent = self.may_be_absent();
        for choice in 0..(1usize << absent.len().min(9)) {
            let discarded: BTreeSet<Id> =
                absent.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1).map(|(_, id)| *id).collect();
            let mut fs = self.stages[0].fs.clone();
            for upto in 0..=self.events.len() {
                if upto > 0 && !self.is_discarded(&self.events[upto - 1], &discarded) {
                    apply(&mut fs, &self.events[upto - 1]);
                }
                if upto < self.durable {
                    continue;
                }
                let image = fs.image();
                if skeleton(&image) != found {
                    continue;
                }
                match self.wrong_bytes(&fs, upto, view) {
                    None => return Ok(true),
                    Some(wrong) => why = wrong,
                }
            }
        }
        if self.stages.iter().any(|stage| !stage.maybe.is_empty()) {
            return Ok(false);
        }
        if why.is_empty() {
            let stage = self.last();
            why =
                format!("no prefix has these names; against all events:\n{}", stage.image.diff(view, "all  ", "found"));
        }
        Err(format!(
            "the view after a power cut cannot be reached ({} of {} events are durable): {why}",
            self.durable,
            self.events.len()
        ))
    }

    fn is_discarded(&self, event: &Event, discarded: &BTreeSet<Id>) -> bool {
        matches!(event, Event::Content(content) if discarded.contains(&content.id))
    }

    /// Files that were not there at the start and of which no version was sealed.
    fn may_be_absent(&self) -> Vec<Id> {
        let mut absent = BTreeMap::new();
        for event in &self.events {
            if let Event::Content(content) = event
                && !is_named(&self.stages[0].fs, content.id)
            {
                *absent.entry(content.id).or_insert(true) &= !content.sealed;
            }
        }
        absent.into_iter().filter(|(_, absent)| *absent).map(|(id, _)| id).collect()
    }

    /// Looks for a file in `view` with bytes that it cannot have after `upto` events and a power cut.
    fn wrong_bytes(&self, fs: &Fs, upto: usize, view: &Image) -> Option<String> {
        for (path, id) in fs.paths() {
            if fs.node(id).kind != Kind::File {
                continue;
            }
            let found = view.get(&path)?.shown.body().clone();
            let versions = self.versions(id, upto);
            let exact = |(bytes, mtime): &(Arc<Vec<u8>>, _)| *bytes == found.bytes && Some(*mtime) == found.mtime;
            if versions.exact.iter().any(exact) || is_mixture(&found.bytes, &versions.mixed) {
                continue;
            }
            let mut said = format!("{} has {} at {:?}\n", escape(&path), show_bytes(&found.bytes), found.mtime);
            for (bytes, mtime) in &versions.exact {
                said += &format!("  it may have exactly {} at {mtime:?}\n", show_bytes(bytes));
            }
            for bytes in &versions.mixed {
                said += &format!("  or a mixture with {}\n", show_bytes(bytes));
            }
            return Some(said);
        }
        None
    }

    /// What a file may hold after `upto` events and a power cut: the last sealed version, any later one, and mixtures of
    /// those that were changed in place with what they were changed to.
    fn versions(&self, id: Id, upto: usize) -> Versions {
        let base = &self.stages[0].fs;
        let mut kept: Vec<(usize, u32, Rc<Node>)> = Vec::new();
        if base.contains(id) {
            kept.push((0, u32::MAX, base.shared(id)));
        }
        for (at, event) in self.events[..upto].iter().enumerate() {
            if let Event::Content(content) = event
                && content.id == id
            {
                if content.sealed {
                    kept.clear();
                }
                kept.push((at, content.generation, content.node.clone()));
            }
        }
        let written = self.written.get(&id).map(Vec::as_slice).unwrap_or_default();
        let mut mixed = Vec::new();
        for (at, generation, node) in &kept {
            let first = written.first().map(|(_, generation, _)| *generation);
            let later = written.iter().filter(|(when, of, _)| {
                (*when > *at || *at == 0) && (*of == *generation || (*generation == u32::MAX && Some(*of) == first))
            });
            let before = mixed.len();
            mixed.extend(later.map(|(_, _, bytes)| bytes.clone()));
            if mixed.len() > before || self.in_place.contains(&id) {
                mixed.push(node.bytes.clone());
            }
        }
        if self.in_place.contains(&id) {
            mixed.extend(written.iter().map(|(_, _, bytes)| bytes.clone()));
        }
        let set_times = self.events.iter().filter_map(|event| match event {
            Event::Attr { id: of, new } if *of == id => new.mtime,
            _ => None,
        });
        let times: Vec<_> = set_times.collect();
        let exact = kept.into_iter().flat_map(|(_, _, node)| {
            let times = times.iter().copied().chain([node.mtime]);
            times.map(|mtime| (node.bytes.clone(), mtime)).collect::<Vec<_>>()
        });
        Versions { exact: exact.collect(), mixed }
    }
}

#[derive(Debug)]
struct Versions {
    exact: Vec<(Arc<Vec<u8>>, dlio_fs::tiers::disk::Time)>,
    mixed: Vec<Arc<Vec<u8>>>,
}

impl Stage {
    /// The tree with and without each of the contents that may or may not have been taken in.
    fn alternatives(&self) -> impl Iterator<Item = Fs> {
        let total: usize = self.maybe.values().map(|all| all.len() + 1).product();
        (0..total.min(COMBINATIONS)).map(|mut choice| {
            let mut fs = self.fs.clone();
            for versions in self.maybe.values() {
                let pick = choice % (versions.len() + 1);
                choice /= versions.len() + 1;
                if pick > 0 {
                    apply(&mut fs, &Event::Content(versions[pick - 1].clone()));
                }
            }
            fs
        })
    }
}

/// Each version that may have been taken in may have been so before the attributes changed, or have them changed.
fn change_all(maybe: &mut BTreeMap<Id, Vec<Content>>, event: &Event) {
    let (Event::Attr { id, .. } | Event::Xattr { id, .. }) = event else { return };
    let Some(versions) = maybe.get_mut(id) else { return };
    for version in versions.clone() {
        let mut fs = Fs::just(*id, version.node.clone());
        apply(&mut fs, event);
        versions.push(Content { node: fs.shared(*id), ..version });
    }
}

/// A version that would bring a name back under which something else is by now is no longer possible.
fn still_possible(fs: &Fs, versions: &[Content]) -> bool {
    versions.iter().all(|content| is_named(fs, content.id) || fs.child(&content.at).is_none())
}

/// Whether each byte is that of one of the versions at this place (or zero, beyond the end of one).
fn is_mixture(found: &[u8], versions: &[Arc<Vec<u8>>]) -> bool {
    let longest = versions.iter().map(|bytes| bytes.len()).max();
    longest.is_some_and(|longest| found.len() <= longest)
        && found.iter().enumerate().all(|(i, b)| versions.iter().any(|v| v.get(i).copied().unwrap_or(0) == *b))
}

fn show_event(event: &Event) -> String {
    let at = |(dir, name): &Place| format!("{dir}/{}", escape(name));
    match event {
        Event::Make { id, at: place, node } => format!("make {:?} {id} at {}", node.kind, at(place)),
        Event::Content(c) => format!("content of {} at {}: {}", c.id, at(&c.at), show_bytes(&c.node.bytes)),
        Event::Link { id, at: place } => format!("link {id} at {}", at(place)),
        Event::Remove { id, at: place } => format!("remove {id} at {}", at(place)),
        Event::Rename { id, from, to } => format!("rename {id} from {} to {}", at(from), at(to)),
        Event::Exchange { a, a_at, b, b_at } => format!("exchange {a} at {} and {b} at {}", at(a_at), at(b_at)),
        Event::Attr { id, new } => format!("attributes of {id}: {new:?}"),
        Event::Xattr { id, key, value } => format!("attribute {} of {id}: {:?}", escape(key), value),
    }
}

//! Step 5 of a start: replays the records behind `applied`, one by one, into the view. It leaves out versions that a
//! power cut made worthless, and records about them, whose numbers and paths may belong to other files by now.
//! `recovery/start.rs` has the steps before and after.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use crate::error::{Context, Errno, Error, Result};
use crate::path::{Name, escape};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::split;
use crate::tiers::disk::{FileId, Kind, NewAttr, Stat};
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::{Attrs, AttrsOf, Home, ObjectId, Record, Spec, Step};
use crate::tiers::model::event::Change;
use crate::tiers::model::node::{DirEntryKey, Node, NodeAttrs};
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::{Ages, FIRST_OWN};
use crate::tiers::objects::file::{Bytes, FileState, Io};
use crate::tiers::objects::pool::Pool;
use crate::tiers::objects::version::Content;
use crate::tiers::ops::attrs;
use crate::tiers::ops::names::{add_made, add_subdir, apply_rename};
use crate::tiers::recovery::left_out::left_out;
use crate::tiers::recovery::state::{Looked, Recovery};
use crate::tiers::sorted::beside;
use crate::tiers::writeback::step::find_beside;
use crate::tiers::{Cx, Ino, Lsn, ROOT, Tiers};

impl<'a> Recovery<'a> {
    /// `by`: the users of the events, except root.
    pub(crate) fn new(tiers: &'a Tiers, records: Vec<(Lsn, Record)>, by: Vec<(Lsn, u32)>, boot: &'a str) -> Self {
        let (mut sealed, mut explained) = (Vec::new(), Vec::new());
        let (mut never, mut placed, mut placed_at) = (HashSet::new(), HashMap::new(), HashMap::new());
        let mut last = None;
        for (lsn, record) in &records {
            match record {
                Record::Seal { of, .. } => sealed.push(*of),
                Record::Discarded { ino } => drop(never.insert(*ino)),
                Record::Intent { step: Step::Place { id, .. }, .. } => drop(placed.insert(id.ino, (*id, *lsn))),
                Record::Start { boot: started } => last = Some(started),
                _ => {}
            }
            if let Record::Intent { step, .. } = record
                && let Step::Place { path: to, id, object: None, .. } | Step::Move { to, id, .. } = step
            {
                placed_at.insert(to.clone(), *id);
            }
            explained.extend(object_of(record));
        }
        Recovery {
            rebooted: last.is_some_and(|last: &String| last != boot),
            sealed: sealed.into_iter().collect(),
            placed,
            placed_at,
            explained: each_of(explained).collect(),
            uptime: tiers.uptime(),
            last_dir: None,
            last_file: None,
            tiers,
            boot,
            cx: Cx::internal(),
            applied: 0,
            discarded: HashSet::new(),
            lost: HashMap::new(),
            homeless: HashMap::new(),
            half: None,
            refused: None,
            met: HashMap::new(),
            skipped: left_out(&records).into_iter().collect(),
            taken: HashSet::new(),
            never,
            left: HashMap::new(),
            sealed_as: HashMap::new(),
            later_attrs: BTreeMap::new(),
            bursts: HashMap::new(),
            looked: Vec::new(),
            records,
            by,
        }
    }

    /// Step 5.
    pub(crate) fn replay(&mut self) -> Result<()> {
        let records = std::mem::take(&mut self.records);
        let mut this_boot = false;
        for (at, (lsn, record)) in records.iter().enumerate() {
            if let Record::Start { boot } = record {
                this_boot = boot == self.boot;
            }
            if *lsn <= self.applied || self.is_skipped(*lsn) {
                continue;
            }
            if this_boot && self.says_it_all(record, records.get(at + 1..).unwrap_or_default()) {
                continue;
            }
            self.replay_one(*lsn, record, this_boot)?;
        }
        self.last_file.take().into_iter().for_each(|last| self.tiers.state.lock().rest(last));
        self.records = records;
        Ok(())
    }

    /// Whether this is the `bind` of a file whose `content` comes next: that record makes the file, gives it the
    /// object, and ends what the `bind` begins. So it is for nearly every new file.
    fn says_it_all(&self, record: &Record, behind: &[(Lsn, Record)]) -> bool {
        let Record::Bind { path, ino, object } = record else { return false };
        // A replay does nothing for a `seal`.
        let next = behind.iter().find(|(_, record)| !matches!(record, Record::Seal { .. }));
        matches!(next, Some((lsn, Record::Content { path: same_path, ino: same_ino, object: same_object, .. }))
            if (same_path, same_ino, same_object) == (path, ino, object) && !self.is_skipped(*lsn))
    }

    pub(crate) fn is_skipped(&self, lsn: Lsn) -> bool {
        self.skipped.contains(&lsn)
    }

    fn replay_one(&mut self, lsn: Lsn, record: &Record, this_boot: bool) -> Result<()> {
        if !matches!(record, Record::Bind { .. } | Record::Content { .. } | Record::Seal { .. }) {
            self.last_dir = None;
        }
        match record {
            Record::Bind { path, ino, object } | Record::Content { path, ino, object, .. }
                if self.lost.contains_key(object) =>
            {
                self.discard_unsynced(&path.bytes(), *ino, *object)
            }
            Record::Bind { path, ino, object } if this_boot => self.replay_bind(&path.bytes(), *ino, *object, lsn),
            Record::Bind { path, ino, object } => self.discard_unsynced(&path.bytes(), *ino, *object),
            Record::Content { path, ino, object, size, attrs } => {
                if this_boot || self.sealed.contains(&lsn) || left_out!(Discard) {
                    self.discarded.remove(object);
                    self.never.remove(ino);
                    self.replay_content(lsn, &path.bytes(), *ino, *object, *size, attrs)
                } else {
                    self.discard_unsynced(&path.bytes(), *ino, *object)
                }
            }
            Record::Invalidate { ino, object, from } => self.replay_invalidate(lsn, *ino, *object, *from),
            // The file may have no name: the changes that this record is about have met it.
            Record::InPlace { ino, mtime, .. } => {
                if let Some(ino) = self.met.get(ino) {
                    self.tiers.state.lock().overtake(*ino, lsn, *mtime);
                }
                Ok(())
            }
            Record::Names { paths, .. } => self.learn_names(paths),
            Record::Expect { path, slow } => self.replay_expect(lsn, &path.bytes(), slow.as_ref(), this_boot),
            Record::Make { path, ino, spec } => self.replay_make(lsn, &path.bytes(), *ino, spec),
            Record::Link { path, to, ino, slow } => self.replay_link(lsn, &path.bytes(), &to.bytes(), (*ino, *slow)),
            Record::Rename { path, to, ino, slow, exchange } => {
                self.replay_rename(lsn, &path.bytes(), &to.bytes(), (*ino, *slow), *exchange)
            }
            Record::Remove { path, ino, dir } => self.replay_remove(lsn, &path.bytes(), *ino, *dir),
            Record::SetAttr { .. } | Record::SetXattr { .. } => self.replay_attr(lsn, record),
            // From here on the log is from mounts that saw the file left behind.
            Record::Discarded { ino } => {
                self.left.retain(|_, (_, of)| of != ino);
                Ok(())
            }
            Record::Start { .. }
            | Record::Seal { .. }
            | Record::Intent { .. }
            | Record::Applied { .. }
            | Record::SetAside { .. }
            // The reader of the log has put each moved record into its place.
            | Record::Again(_)
            | Record::Moved { .. } => Ok(()),
        }
    }

    /// Looks up all the names of a file, so that its next version goes to each of them.
    pub(crate) fn learn_names(&mut self, paths: &[LoggedPath]) -> Result<()> {
        for path in paths {
            if let Some(place) = self.place(&path.bytes())? {
                self.find(&place, None)?;
            }
        }
        Ok(())
    }

    /// The directory and last name of a path of the view, if all the directories are there.
    pub(crate) fn place(&mut self, path: &[u8]) -> Result<Option<DirEntryKey>> {
        let (dirs, name) = split(path);
        if let Some((_, dir)) = self.last_dir.as_ref().filter(|(last, _)| last == dirs) {
            return Ok(Some((*dir, name_of(name)?)));
        }
        let mut dir = ROOT;
        for part in dirs.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            let place = (dir, name_of(part)?);
            let Some(found) = self.find(&place, None)? else { return Ok(None) };
            let Some(ino) = self.dir_at(&place, found)? else { return Ok(None) };
            dir = ino;
        }
        if self.tiers.state.lock().view.live_dir(dir).is_none() {
            return Ok(None);
        }
        self.last_dir = Some((dirs.to_vec(), dir));
        Ok(Some((dir, name_of(name)?)))
    }

    /// Like [`Recovery::place`], for a node that is to be placed there. Missing directories were removed from outside
    /// while no daemon ran: the view gets them again, and publishing makes them (P15). Their former permissions are
    /// unknown, so only the owner gets any.
    pub(crate) fn place_of_new(
        &mut self,
        path: &[u8],
        owner: impl FnOnce(&Self) -> (u32, u32),
    ) -> Result<Option<DirEntryKey>> {
        if let Some(place) = self.place(path)? {
            return Ok(Some(place));
        }
        if self.tiers.damaged.is_some() {
            // The directory may be one of ours, whose record is missing in the damaged log.
            return Ok(None);
        }
        let owner = owner(self);
        let (dirs, name) = split(path);
        let mut dir = ROOT;
        for part in dirs.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            let place = (dir, name_of(part)?);
            dir = match self.find(&place, None)? {
                Some(found) => match self.dir_at(&place, found)? {
                    Some(ino) => ino,
                    // Another node has its name.
                    None => return Ok(None),
                },
                None => self.made_anew(place, owner, path),
            };
        }
        Ok(Some((dir, name_of(name)?)))
    }

    /// Our directory to which this name leads by the log; `found` has the name now. If that is no directory, it is a
    /// foreign node made before ours was published: then ours is beside it, which the log does not say.
    fn dir_at(&self, place: &DirEntryKey, found: Ino) -> Result<Option<Ino>> {
        let is_dir = |ino: &Ino| self.tiers.state.lock().view.live_dir(*ino).is_some();
        if is_dir(&found) {
            return Ok(Some(found));
        }
        let path = self.tiers.state.lock().view.slow_path_at(place);
        let placed = |path: Vec<u8>| Some((*self.placed_at.get(&path.clone().into())?, path));
        let Some((ours, path)) = path.and_then(placed) else { return Ok(None) };
        let is_ours = |stat: &Stat| stat.kind == Kind::Dir && stat.file() == ours;
        let beside = self.tiers.slow.parent(&path).and_then(|(above, name)| find_beside(&*above, name, is_ours));
        let beside = beside.at("look on slow beside", escape(&path))?;
        let Some(beside) = beside else { return Ok(None) };
        Ok(self.find(&(place.0, name_of(&beside)?), None)?.filter(is_dir))
    }

    fn made_anew(&self, (dir, name): DirEntryKey, (uid, gid): (u32, u32), path: &[u8]) -> Ino {
        let now = self.tiers.file_time();
        let mut st = self.tiers.state.lock();
        let ino = st.view.new_ino();
        let meta =
            NodeAttrs { perm: 0o700, uid, gid, nlink: 2, atime: now, mtime: now, ctime: now, ..NodeAttrs::default() };
        st.view.add(ino, Kind::Dir, meta);
        // No file system of the slow tier has this device: lookups do not find it, and publishing makes it again when a
        // node is placed in it.
        st.view.set_slow_id(ino, Some((0, FileId { ino, birth: 0 })));
        st.view.set_view(dir, &name, Some(ino));
        st.view.set_slow(dir, &name, Some(ino));
        add_subdir(&mut st, dir, 1);
        let shown = st.view.path(ino).map(|path| escape(&path)).unwrap_or_default();
        tracing::warn!(path = %escape(path), dir = shown, "a directory with pending changes was removed on the slow tier by somebody else; it is made again");
        self.tiers
            .counters
            .conflict(format!("/{shown}: removed on the slow tier by somebody else, made again for pending changes"));
        ino
    }

    /// The owner of an object's file.
    fn owner_of(&self, object: ObjectId) -> (u32, u32) {
        let stat = match object.home {
            Home::Fast => self.tiers.pool.stat(object.number),
            Home::Slow | Home::Split { .. } => self.tiers.slow.stat_object(object.tail()),
        };
        let ours = || (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        stat.map_or_else(|_| ours(), |stat| (stat.uid, stat.gid))
    }

    /// Quarantines an object whose place is gone. It may be the only copy of acknowledged data: a missing directory or
    /// name is no reason to delete it.
    pub(crate) fn put_aside(&mut self, path: &[u8], object: ObjectId) {
        tracing::error!(path = %escape(path), object = object.number, "its directory no longer exists");
        self.homeless.extend(each_of([object]).map(|object| (object, escape(path))));
        self.discarded.insert(object);
    }

    pub(crate) fn find(&self, (dir, name): &DirEntryKey, expected: Option<Ino>) -> Result<Option<Ino>> {
        {
            let mut st = self.tiers.state.lock();
            // No request is served yet: within one start an answer is asked for only once, whatever age the mount may
            // trust.
            let believed = Ages { ours: Duration::MAX, slow: Duration::MAX };
            if let Some(found) = st.view.known(*dir, name, Duration::ZERO, believed, false) {
                return Ok(found);
            }
            st.view.expected = expected;
        }
        let found = self.tiers.resolve(&self.cx, *dir, name);
        self.tiers.state.lock().view.expected = None;
        match found {
            Err(Error::Posix(Errno::ENOTDIR)) => Ok(None),
            other => other,
        }
    }

    /// Discards a version that was not sealed before the power cut: the previous version is shown, if there is one.
    fn discard_unsynced(&mut self, path: &[u8], ino: Ino, object: ObjectId) -> Result<()> {
        self.discarded.insert(object);
        if self.at(path, ino)?.is_none() && !self.met.contains_key(&ino) {
            self.never.insert(ino);
        }
        Ok(())
    }

    /// Removes a file from a name that another node needs. A discarded file had replaced it, so it is shown in its
    /// place, and stays under a name that the discarded file has left: it is the newest whole version of that name. It
    /// is removed by the record that freed the name: until then nothing was under the name.
    fn make_way(&mut self, place: &DirEntryKey) -> Result<()> {
        let Some((freed, _)) = self.left.remove(place) else { return Ok(()) };
        if let Some(older) = self.older_at(place)? {
            self.remove_name(freed, place.clone(), older, false);
        }
        Ok(())
    }

    /// Removes such files from a directory that is removed and, by the log, empty.
    fn make_way_in(&mut self, dir: Ino) -> Result<()> {
        let inside: Vec<DirEntryKey> = self.left.keys().filter(|(parent, _)| *parent == dir).cloned().collect();
        inside.iter().try_for_each(|place| self.make_way(place))
    }

    /// The file that is where a discarded file was. A directory does not count: no file replaces one.
    fn older_at(&mut self, place: &DirEntryKey) -> Result<Option<Ino>> {
        let found = self.find(place, None)?;
        let st = self.tiers.state.lock();
        Ok(found.filter(|ino| st.view.get(*ino).is_some_and(|node| node.kind != Kind::Dir)))
    }

    /// The node that a record refers to, at the path it gives; numbered as the record says if it is met for the first
    /// time. `None` if another node is there: the one that was meant has been discarded.
    fn at(&mut self, path: &[u8], ino: Ino) -> Result<Option<(DirEntryKey, Ino)>> {
        let Some(place) = self.place(path)? else { return Ok(None) };
        if self.never.contains(&ino) {
            return Ok(None);
        }
        let found = self.find(&place, Some(ino))?;
        // If nothing was discarded, every path leads where it led. One node has two numbers if a start came between two
        // of its records: the one it was made with, and then the slow tier's.
        let certain = self.discarded.is_empty() && self.never.is_empty();
        let other = if ino < FIRST_OWN { self.tiers.state.lock().view.with_slow_ino(ino) } else { None };
        let unmet = |found: &Ino| *found == ino || other == Some(*found) || !self.taken.contains(found);
        let same = |found: &Ino| certain || self.met.get(&ino).map_or_else(|| unmet(found), |met| met == found);
        let Some(found) = found.filter(same) else { return Ok(None) };
        self.meet(ino, found);
        Ok(Some((place, found)))
    }

    pub(crate) fn meet(&mut self, logged: Ino, found: Ino) {
        self.met.insert(logged, found);
        self.taken.insert(found);
    }

    /// The file at `place`, made if there is none.
    fn file_at(&mut self, place: &DirEntryKey, ino: Ino) -> Result<Option<Arc<FileState>>> {
        if let Some(found) = self.find(place, Some(ino))? {
            self.meet(ino, found);
            return Ok(self.tiers.state.lock().file(found));
        }
        let now = self.tiers.file_time();
        let mut st = self.tiers.state.lock();
        let logged = ino;
        let ino = if st.view.get(ino).is_some() { st.view.new_ino() } else { ino };
        let meta = NodeAttrs { nlink: 1, mtime: now, ctime: now, atime: now, ..NodeAttrs::default() };
        let file = st.view.add(ino, Kind::File, meta).file.clone();
        st.view.set_view(place.0, &place.1, Some(ino));
        drop(st);
        self.meet(logged, ino);
        Ok(file)
    }

    pub(crate) fn has_object(&self, object: ObjectId) -> Result<bool> {
        if let Some(looked) = self.inspected(object) {
            return Ok(looked.alone);
        }
        let found = match object.home {
            Home::Fast => self.tiers.pool.stat(object.number),
            Home::Slow | Home::Split { .. } => self.tiers.slow.stat_object(object.tail()),
        };
        if let Some(head) = object.head()
            && !self.has_object(head)?
        {
            return Ok(false);
        }
        let found = absent_is_none(found).at("stat", crate::tiers::objects::pool::label(object))?;
        Ok(found.is_some_and(|stat| stat.kind == Kind::File && (object.needs_slow() || stat.nlink == 1)))
    }

    /// The known state of an object in the pool.
    pub(crate) fn inspected(&self, object: ObjectId) -> Option<&Looked> {
        beside(&self.looked, object.number).filter(|_| object.home == Home::Fast)?.as_ref()
    }

    pub(crate) fn replay_bind(&mut self, path: &[u8], ino: Ino, object: ObjectId, lsn: Lsn) -> Result<()> {
        if !self.has_object(object)? {
            return Ok(());
        }
        let Some(place) = self.place_of_new(path, |recovery| recovery.owner_of(object))? else {
            self.put_aside(path, object);
            return Ok(());
        };
        self.make_way(&place)?;
        let Some(file) = self.file_at(&place, ino)? else {
            self.put_aside(path, object);
            return Ok(());
        };
        let mut io = file.io.write();
        if io.object() != Some(object) {
            self.give_object(&file, &mut io, object)?;
        }
        self.sealed_as.remove(&object);
        self.goes_ahead(&file, &mut io, object, lsn);
        Ok(())
    }

    /// Marks the file's bytes as ahead of its events.
    fn goes_ahead(&self, file: &FileState, io: &mut Io, object: ObjectId, lsn: Lsn) {
        io.attrs_in_view = false;
        io.dirty = true;
        io.unset_clean();
        self.tiers.state.lock().uncommitted.bind(file.ino, lsn, object, self.uptime);
    }

    /// Detects a foreign change of the name while no daemon ran: the view continues from the earlier file, and
    /// publishing, which finds another one, keeps both (P11). A foreign removal is ignored. A power cut may have taken
    /// our writes in place: that makes no file newer.
    pub(super) fn replay_expect(
        &mut self,
        lsn: Lsn,
        path: &[u8],
        slow: Option<&Fingerprint>,
        this_boot: bool,
    ) -> Result<()> {
        let Some(place) = self.place(path)? else { return Ok(()) };
        let Some(found) = self.find(&place, None)? else { return Ok(()) };
        let mut st = self.tiers.state.lock();
        let slot = st.view.get(place.0).and_then(|dir| dir.dir.as_ref()?.slots.get(&place.1));
        let slow_stat = st.view.get(found).and_then(|node| Some((node.slow_id()?, node.slow_fingerprint()?)));
        let (Some(slot), Some(((dev, file), known))) = (slot, slow_stat) else { return Ok(()) };
        let ours = self.placed.get(&file.ino).is_some_and(|(placed, at)| *placed == file && *at > lsn);
        let older = |slow: &Fingerprint| !this_boot && known.mtime <= slow.mtime;
        let same = |slow: &Fingerprint| {
            slow.file == known.file && ((slow.size, slow.mtime) == (known.size, known.mtime) || older(slow))
        };
        if slot.pending() || ours || slow.is_some_and(same) {
            return Ok(());
        }
        tracing::warn!(path = %escape(path), "changed on the slow tier by somebody else while no daemon ran");
        let is_file = st.view.get(found).is_some_and(|node| node.kind == Kind::File);
        match slow.filter(|_| is_file) {
            // There is no file of which ours could be the next version.
            None => st.view.disown(&place, self.uptime),
            Some(slow) => {
                // No file has the number 0: the foreign file may have a new number, and another file may have its old
                // one.
                let theirs = if slow.file.ino == file.ino { slow.file } else { FileId::default() };
                st.view.set_slow_id(found, Some((dev, theirs)));
                if let Some(node) = st.view.get_mut(found) {
                    node.set_slow_fingerprint(Some(*slow));
                }
            }
        }
        Ok(())
    }

    /// Applies after a change of boot, too: a sealed version that was overwritten is shown as it is, because its synced
    /// bytes are nowhere else, and waits until it is accepted.
    fn replay_invalidate(&mut self, lsn: Lsn, ino: Ino, object: ObjectId, from: u64) -> Result<()> {
        let Some(file) = self.met.get(&ino).and_then(|ino| self.tiers.state.lock().file(*ino)) else {
            return Ok(());
        };
        let mut io = file.io.write();
        // An empty version, too: it may be committed while its writer is at work, whose bytes come behind it.
        let broken = |content: &Content| object.shares(content.object()) && (from < content.size || from == 0);
        let mut any = false;
        for (_, content) in self.tiers.state.lock().queue.versions(file.ino).filter(|(_, content)| broken(content)) {
            content.set_overwritten();
            any = true;
        }
        if let Some(known) = io.object().filter(|known| any && object.shares(*known)) {
            // It got the view's attributes before this record. A power cut may have taken them: see `reapply_attrs`.
            if !self.rebooted {
                self.sealed_as.remove(&known);
            }
            self.goes_ahead(&file, &mut io, known, lsn);
        }
        Ok(())
    }

    /// Attaches an object that a record names. The object is not clean, even if it has a fingerprint.
    pub(crate) fn give_object(&self, file: &FileState, io: &mut Io, object: ObjectId) -> Result<()> {
        if let Some(split) = self.tiers.open_split(&self.cx, object)?
            && !self.rebooted
        {
            split.finish_truncation().at("truncate", "object")?;
        }
        let in_pool = [Some(object), object.head()].into_iter().flatten().filter(|object| !object.needs_slow());
        for object in in_pool.filter(|object| self.inspected(*object).is_none_or(|looked| looked.clean)) {
            let fd = self.tiers.open_object(&self.cx, object)?;
            if let Some(fingerprint) = Pool::fingerprint_of(&*fd).at("read the fingerprint of", "object")? {
                let waiting = &mut self.tiers.state.lock().view.waiting;
                if waiting.get(&fingerprint.file.ino).is_some_and(|waiting| waiting.object == object) {
                    waiting.remove(&fingerprint.file.ino);
                }
                Pool::clear_clean(&*fd).at("remove the fingerprint of", "object")?;
            }
        }
        let mut st = self.tiers.state.lock();
        if let Some(old) = io.object() {
            st.clean.remove(file.ino);
            st.objects.remove(old, self.tiers.log.last());
        }
        st.objects.add(object);
        file.place(io, Bytes::Object(object), None);
        for (_, content) in st.queue.versions(file.ino) {
            if object.shares(content.object()) && content.is_alive() {
                file.add_pending_version(io, content.clone());
            }
        }
        if let Some(node) = st.view.get_mut(file.ino) {
            node.ours = true;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn replay_content(
        &mut self,
        lsn: Lsn,
        path: &[u8],
        ino: Ino,
        object: ObjectId,
        size: u64,
        attrs: &Attrs,
    ) -> Result<()> {
        let Some(place) = self.place_of_new(path, |_| (attrs.uid, attrs.gid))? else {
            self.put_aside(path, object);
            return Ok(());
        };
        self.make_way(&place)?;
        let Some(file) = self.file_at(&place, ino)? else {
            self.put_aside(path, object);
            return Ok(());
        };
        self.later_attrs.remove(&file.ino);
        if let Some(head) = object.head() {
            self.sealed_as.remove(&head);
        }
        // An object on slow is published itself: the drain may have been adding to it, and a write may have been giving
        // it newer attributes.
        self.sealed_as.remove(&object);
        if self.rebooted || object.needs_slow() {
            self.sealed_as.insert(object, (size, attrs.clone()));
        }
        let mut io = file.io.write();
        if io.object() != Some(object) {
            self.give_object(&file, &mut io, object)?;
        }
        let mut st = self.tiers.state.lock();
        io.dirty = false;
        io.attrs_in_view = false;
        if let Some(node) = st.view.get_mut(file.ino).filter(|_| object.needs_slow()) {
            // Changes of its attributes start from these.
            let Attrs { perm, uid, gid, mtime, .. } = *attrs;
            let blocks = size.div_ceil(512);
            node.change_meta(|meta| *meta = NodeAttrs { perm, uid, gid, size, blocks, mtime, ..*meta });
        }
        let content = Arc::new(Content::new(object, size, attrs.clone(), self.bursts.get(&lsn).copied().unwrap_or(0)));
        let sealed = self.sealed.contains(&lsn);
        if sealed {
            content.set_sealed();
        }
        file.add_pending_version(&mut io, content.clone());
        st.uncommitted.remove(file.ino);
        let change = Change::Content { ino: file.ino, at: place, content };
        self.tiers.queue_event(&mut st, (lsn, self.by(lsn)), self.uptime, change);
        if let Some(before) = self.last_file.replace(file.ino).filter(|before| *before != file.ino) {
            st.rest(before);
        }
        Ok(())
    }

    fn replay_make(&mut self, lsn: Lsn, path: &[u8], ino: Ino, spec: &Spec) -> Result<()> {
        let Some(place) = self.place_of_new(path, |_| (spec.attrs.uid, spec.attrs.gid))? else { return Ok(()) };
        self.make_way(&place)?;
        if self.find(&place, None)?.is_some() {
            return Ok(());
        }
        let mut st = self.tiers.state.lock();
        let logged = ino;
        let ino = if ino < FIRST_OWN || st.view.get(ino).is_some() { st.view.new_ino() } else { ino };
        self.meet(logged, ino);
        add_made(&mut st, ino, spec, place.clone(), lsn);
        if spec.kind == Kind::Dir {
            add_subdir(&mut st, place.0, 1);
        }
        st.push(lsn, self.uptime, self.by(lsn), Change::Make { ino, at: place, spec: Arc::new(spec.clone()) });
        Ok(())
    }

    fn replay_link(&mut self, lsn: Lsn, path: &[u8], to: &[u8], (ino, slow): (Ino, Option<FileId>)) -> Result<()> {
        let Some((_, ino)) = self.at(path, ino)? else { return Ok(()) };
        if !self.is_on_slow(ino, slow) {
            self.leave_out(path);
            return Ok(());
        }
        let owner = |recovery: &Self| {
            let node_owner = |node: &Node| (node.meta().uid, node.meta().gid);
            recovery.tiers.state.lock().view.get(ino).map_or((0, 0), node_owner)
        };
        let Some(to) = self.place_of_new(to, owner)? else { return Ok(()) };
        self.make_way(&to)?;
        if self.find(&to, None)?.is_some() {
            return Ok(());
        }
        let mut st = self.tiers.state.lock();
        if st.view.get(ino).is_none_or(|node| node.kind == Kind::Dir) {
            // A directory has one name; with two it could be inside itself.
            return Ok(());
        }
        st.view.set_view(to.0, &to.1, Some(ino));
        if let Some(node) = st.view.get_mut(ino) {
            node.change_meta(|meta| meta.nlink += 1);
        }
        st.push(lsn, self.uptime, self.by(lsn), Change::Link { ino, at: to });
        Ok(())
    }

    /// The inode that a rename moves. `None` for a discarded file: the file it had replaced stays behind; an exchange
    /// moves that file.
    fn mover(&mut self, lsn: Lsn, path: &[u8], from: &DirEntryKey, ino: Ino, exchange: bool) -> Result<Option<Ino>> {
        let found = self.at(path, ino)?;
        if found.is_some() || !self.never.contains(&ino) {
            return Ok(found.map(|(_, ino)| ino));
        }
        let older = self.older_at(from)?;
        if exchange {
            return Ok(older);
        }
        self.left.extend(older.map(|_| (from.clone(), (lsn, ino))));
        Ok(None)
    }

    fn replay_rename(
        &mut self,
        lsn: Lsn,
        path: &[u8],
        to: &[u8],
        (ino, slow): (Ino, Option<FileId>),
        exchange: bool,
    ) -> Result<()> {
        let Some(mut from) = self.place(path)? else { return Ok(()) };
        let Some(mut to) = self.place_of_new(to, |_| (0, 0))? else { return Ok(()) };
        let mut mover = self.mover(lsn, path, &from, ino, exchange)?;
        if mover.is_some_and(|mover| !self.is_on_slow(mover, slow)) {
            self.leave_out(path);
            return Ok(());
        }
        if exchange {
            // By the log both names are taken, whatever is there.
            self.left.remove(&from);
            self.left.remove(&to);
        } else if mover.is_some() {
            self.make_way(&to)?;
        }
        let mut other = self.find(&to, None)?;
        if exchange && mover.is_none() {
            // It was discarded; the other one still moves.
            (mover, other) = (other, None);
            std::mem::swap(&mut from, &mut to);
        }
        let Some(ino) = mover else { return Ok(()) };
        let exchange = exchange && other.is_some();
        if let Some(replaced) = other.filter(|_| !exchange) {
            self.make_way_in(replaced)?;
        }
        let change = match other {
            Some(other) if exchange => {
                Change::Exchange { a: ino, a_at: from.clone().into(), b: other, b_at: to.clone().into() }
            }
            replaced => Change::Rename { ino, from: from.clone().into(), to: to.clone().into(), replaced },
        };
        let mut st = self.tiers.state.lock();
        let is_dir = |st: &EngineState, ino: Ino| st.view.get(ino).is_some_and(|node| node.kind == Kind::Dir);
        let net =
            i32::from(is_dir(&st, ino)) - other.filter(|_| exchange).map_or(0, |other| i32::from(is_dir(&st, other)));
        apply_rename(&mut st, &change);
        if from.0 != to.0 {
            add_subdir(&mut st, from.0, -net);
            add_subdir(&mut st, to.0, net);
        }
        if let Some(other) = other.filter(|_| !exchange) {
            if is_dir(&st, other) {
                add_subdir(&mut st, to.0, -1);
            }
            if let Some(node) = st.view.get_mut(other) {
                node.change_meta(|meta| meta.nlink = meta.nlink.saturating_sub(1));
            }
            self.tiers.settle_removed(&mut st, other);
        }
        self.tiers.queue_event(&mut st, (lsn, self.by(lsn)), self.uptime, change);
        Ok(())
    }

    fn replay_remove(&mut self, lsn: Lsn, path: &[u8], ino: Ino, dir: bool) -> Result<()> {
        let mut found = self.at(path, ino)?;
        if found.is_none() && self.never.contains(&ino) && !dir {
            // The file it had replaced does not come back.
            if let Some(place) = self.place(path)? {
                found = self.older_at(&place)?.map(|older| (place, older));
            }
        }
        let Some((at, ino)) = found else { return Ok(()) };
        if dir {
            self.make_way_in(ino)?;
        }
        self.remove_name(lsn, at, ino, dir);
        Ok(())
    }

    fn remove_name(&self, lsn: Lsn, at: DirEntryKey, ino: Ino, dir: bool) {
        let mut st = self.tiers.state.lock();
        let slot = st.view.live_dir(at.0).and_then(|dir| dir.slots.get(&at.1));
        let never_seen = slot.is_some_and(|slot| slot.slow().is_none() && slot.pins == 0);
        st.view.set_view(at.0, &at.1, None);
        if dir {
            add_subdir(&mut st, at.0, -1);
        }
        if let Some(node) = st.view.get_mut(ino) {
            node.change_meta(|meta| meta.nlink = meta.nlink.saturating_sub(1));
        }
        self.tiers.settle_removed(&mut st, ino);
        if never_seen {
            st.view.collect(ino);
        } else {
            st.push(lsn, self.uptime, self.by(lsn), Change::Remove { ino, at });
        }
    }

    /// The event's user.
    fn by(&self, lsn: Lsn) -> u32 {
        beside(&self.by, lsn).copied().unwrap_or(0)
    }

    /// The node that an attribute change refers to; the root has no name.
    fn subject(&mut self, path: &[u8], ino: Ino) -> Result<Option<Ino>> {
        if path.is_empty() { Ok(Some(ROOT)) } else { Ok(self.at(path, ino)?.map(|(_, ino)| ino)) }
    }

    /// The file's object, open, if it has one.
    pub(crate) fn object_fd(&self, ino: Ino) -> Result<Option<Arc<dyn crate::tiers::disk::File>>> {
        let file = self.tiers.state.lock().known_file(ino);
        let object = file.and_then(|file| file.io.read().object());
        object.map(|object| self.tiers.open_object(&self.cx, object)).transpose()
    }

    /// Whether the node may be the slow file that a record is about. A directory that publishing is to make again has
    /// no device.
    fn is_on_slow(&self, ino: Ino, slow: Option<FileId>) -> bool {
        let there = self.tiers.state.lock().view.get(ino).and_then(|node| node.slow_id());
        let there = there.filter(|(dev, _)| *dev != 0).map(|(_, file)| file);
        there.zip(slow).is_none_or(|(there, known)| there == known)
    }

    /// Whether the node, whose attributes are those of the slow file, may be the one whose attributes were changed.
    fn is_of(&self, ino: Ino, record: &Record, of: &AttrsOf) -> bool {
        let new = if let Record::SetAttr { new, .. } = record { *new } else { NewAttr::default() };
        let st = self.tiers.state.lock();
        let Some(node) = st.view.get(ino) else { return false };
        let NodeAttrs { uid, gid, .. } = node.meta();
        let shown = Stat { kind: node.kind, uid, gid, ..Stat::default() };
        let is_there = node.slow_id().is_some_and(|(dev, _)| dev != 0);
        !is_there || of.owned.may_be(&self.tiers.slow.abilities.owned(&shown, &of.owned), &new)
    }

    /// Reports that a record is left out: a foreign file has replaced the one that it is about.
    fn leave_out(&self, path: &[u8]) {
        let path = escape(path);
        tracing::warn!(
            path,
            "replaced on the slow tier by somebody else while no daemon ran; a change of it is left out"
        );
        self.tiers.counters.conflict(format!("/{path}: replaced on the slow tier, a change of it is left out"));
    }

    fn replay_attr(&mut self, lsn: Lsn, record: &Record) -> Result<()> {
        let (Record::SetAttr { path, ino, of, .. } | Record::SetXattr { path, ino, of, .. }) = record else {
            return Ok(());
        };
        let Some(ino) = self.subject(&path.bytes(), *ino)? else { return Ok(()) };
        let file = self.tiers.state.lock().known_file(ino);
        let (object, has_object) = file.map_or((None, false), |file| {
            let mut io = file.io.write();
            io.attrs_in_view |= io.goes_as_it_is();
            (io.object(), io.with_attrs().is_some())
        });
        let is_it = has_object || (self.is_on_slow(ino, of.slow) && self.is_of(ino, record, of));
        if !is_it {
            self.leave_out(&path.bytes());
            return Ok(());
        }
        if object.is_some() {
            self.later_attrs.entry(ino).or_default().push((lsn, record.clone()));
        }
        let now = self.tiers.file_time();
        let mut st = self.tiers.state.lock();
        let change = match record {
            Record::SetXattr { of, key, value, .. } => {
                attrs::apply_xattr(&mut st, ino, key, value.as_deref(), Some(lsn), now, has_object);
                Change::SetXattr { ino, of: Box::new(*of), new: Box::new((key.clone(), value.clone())) }
            }
            Record::SetAttr { of, new, .. } => {
                self.tiers.apply_attr(&mut st, ino, new, now, Some(lsn), has_object)?;
                Change::SetAttr { ino, of: Box::new(*of), new: Box::new(*new) }
            }
            _ => return Ok(()),
        };
        st.push(lsn, self.uptime, self.by(lsn), change);
        Ok(())
    }
}

fn name_of(part: &[u8]) -> Result<Name> {
    Name::new(part).map_err(Error::from)
}

pub(crate) fn object_of(record: &Record) -> Option<ObjectId> {
    match record {
        Record::Bind { object, .. } | Record::Content { object, .. } => Some(*object),
        Record::Intent { step: Step::Place { object, .. }, .. } => *object,
        _ => None,
    }
}

/// The files of these objects; one in two parts counts as two.
pub(crate) fn each_of(objects: impl IntoIterator<Item = ObjectId>) -> impl Iterator<Item = ObjectId> {
    objects.into_iter().flat_map(|object| [Some(object.tail()), object.head()]).flatten()
}

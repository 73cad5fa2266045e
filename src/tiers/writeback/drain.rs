//! Copying sealed versions to the slow tier's `tmp`, in any order, so that publishing is a rename.
//!
//! 1. Create `c<LSN>` in the `tmp` of the part that it goes to, or in the stream's lane there, after removing the
//!    leftover of an earlier attempt, if there is one.
//! 2. Copy the first `size` bytes, holes as holes, and hash them. Streams without a version of their own help with a
//!    large one (`helping.rs`). A large file shares its blocks where both tiers are one file system that can do that.
//!    What the copy brings into the page cache is dropped: a checkpoint is hardly ever read again, training data is
//!    read in each epoch. About once a second sync what was written, to know what has arrived and to keep the disk's
//!    queue short for other programs. An error is treated as in 4.
//! 3. Set owner and mode, where they differ, and extended attributes, then the times.
//! 4. fsync. After an error discard the copy and copy again; never fsync a second time. The disk starts writing
//!    several small copies before the first fsync, so that one journal commit often serves many.
//! 5. Verify length and owner; with `verify = "bytes"` also the bytes, as the slow tier returns them.
//! 6. Check whether a write has invalidated the version meanwhile: if so, discard the copy.
//!
//! A version whose object is already on the slow tier is published by renaming the object. Nothing is copied, except
//! the head of a split file; a write ends that copy at the next piece.

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::DrainStreams;
use crate::error::{Context, Errno, Error, Result};
use crate::tiers::disk::errors::{absent_is_none, is_elsewhere};
use crate::tiers::disk::layout::remove_leftover;
use crate::tiers::disk::{Access, Dir, File, Stat, WHOLE};
use crate::tiers::fleet::journal::WaitingCopy;
use crate::tiers::log::record::{Attrs, TmpStat};
use crate::tiers::model::copy_plan::{self, StillNeeded};
use crate::tiers::model::event::Change;
use crate::tiers::model::publish_plan;
use crate::tiers::objects::abilities::Abilities;
use crate::tiers::objects::copy::{CHUNK, NotCopied, next_data};
use crate::tiers::objects::file::FileState;
use crate::tiers::objects::hash::{Hash, Sum};
use crate::tiers::objects::joint_copy::CopyEnd;
use crate::tiers::objects::parts::{bare, copy_name, in_part};
use crate::tiers::objects::split::Split;
use crate::tiers::objects::version::{Content, Copied};
use crate::tiers::{Cx, Ino, Lsn, Progress, ROOT, Tiers, Wake};

/// How many small versions are copied at once, and the largest size that counts as small.
const AT_ONCE: usize = 32;
const SMALL: u64 = 256 << 10;

/// A version to copy. While it exists, its file is marked as draining.
struct CopyTask {
    lsn: Lsn,
    /// The stream that copies this version.
    stream: u32,
    state: Arc<FileState>,
    content: Arc<Content>,
    /// Bytes copied so far, without holes.
    copied: Cell<u64>,
}

impl Drop for CopyTask {
    fn drop(&mut self) {
        self.state.draining.store(false, Ordering::Release);
    }
}

/// A written copy that is not durable yet; it may fail to become so.
struct Written {
    tmp: Vec<u8>,
    /// The directory of `tmp`.
    dir: Arc<dyn Dir>,
    file: Arc<dyn File>,
    reads_back: bool,
    /// The hash of its bytes.
    sum: Result<Hash, NotCopied>,
}

impl Tiers {
    /// Copies what publishing waits for: one version, or several small ones.
    pub fn drain_step(&self) -> Result<Progress> {
        self.drain_stream_step(0)
    }

    /// Like [`Tiers::drain_step`], for one of several streams, counted from 0, each on its own thread. Idle while fewer
    /// streams are allowed. Held versions are retried at once if nothing else is to be copied.
    pub fn drain_stream_step(&self, stream: u32) -> Result<Progress> {
        self.drain_once(stream, false).map_err(|(error, _)| error)
    }

    /// Like [`Tiers::drain_stream_step`], but held versions are not retried before their time, and are no failure.
    pub fn drain_patiently(&self, stream: u32) -> Result<Progress> {
        match self.drain_once(stream, true) {
            Err((error, is_held)) => {
                if is_held {
                    Ok(Progress::Did)
                } else {
                    Err(error)
                }
            }
            Ok(done) => Ok(done),
        }
    }

    /// The flag beside an error: it holds only some users.
    fn drain_once(&self, stream: u32, patient: bool) -> Result<Progress, (Error, bool)> {
        let streams = self.drain_streams();
        if stream >= streams {
            return Ok(Progress::Idle);
        }
        let (wanted, mut is_enough) = self.next_to_copy(stream, streams as usize, patient);
        is_enough |= self.has_parts();
        if !is_enough {
            self.writeback.streams.lock().interrupt();
        }
        if !wanted.is_empty() && streams > 1 {
            self.wake_some(Wake::OneStream);
        }
        if wanted.is_empty() && self.help(streams) {
            return Ok(Progress::Did);
        }
        if wanted.is_empty() {
            if !self.publishes() && !self.counters.notes.is_copying() {
                self.counters.drain_rests();
            }
            return Ok(Progress::Idle);
        }
        self.counters.drain_goes_on(self.uptime());
        let cpu = self.thread_cpu();
        let done = self.copy_versions(&wanted);
        let spent = self.cpu_since(cpu);
        // For a file in two parts the copied bytes are not counted.
        if !wanted.iter().any(|wanted| wanted.content.object().needs_slow()) {
            self.counters.copies_cost(spent, wanted.iter().map(|wanted| wanted.copied.get()).sum());
        }
        let bytes = wanted.iter().map(|wanted| wanted.content.size).sum();
        drop(wanted);
        if let Err((error, is_held)) = done
            && !self.removes_first(&error, bytes)
        {
            if is_held {
                // Other streams may continue.
                self.wake();
            }
            return Err((error, is_held));
        }
        // The stream that failed waits before it retries; another stream may have made the copy meanwhile.
        if !self.counters.notes.has_failed_copies() {
            self.forget_failures("drain");
        }
        if is_enough {
            self.measure_streams();
        }
        self.wake();
        Ok(Progress::Did)
    }

    /// How many streams may copy now.
    pub fn drain_streams(&self) -> u32 {
        match self.options().drain_streams {
            DrainStreams::Exactly(count) => count,
            DrainStreams::Auto => {
                let mut streams = self.writeback.streams.lock();
                if !self.counters.reads_from_slow(self.uptime()) {
                    return streams.get();
                }
                // Programs wait for the slow tier.
                streams.interrupt();
                (streams.get() / 2).max(1)
            }
        }
    }

    /// True if paused, or while a checkpoint is saved before a deadline. Also if this member of a fleet may have been
    /// declared lost: then a copy of its fast tier may have taken its place and its `tmp`.
    pub(super) fn copies_nothing(&self) -> bool {
        self.is_paused() || self.drain_control.is_saving() || !self.may_go_on()
    }

    /// Whether the next event needs no copy or already has one: publishing takes time, too. Checks only the front,
    /// because each wake calls this.
    fn publishes(&self) -> bool {
        if self.is_paused() {
            return false;
        }
        let st = self.state.lock();
        st.queue.events().front().is_some_and(|event| match &event.change {
            Change::Content { content, .. } => content.is_copied() || !content.exists(),
            _ => true,
        })
    }

    /// A stream's share of what is to be copied, and whether there is something for each of them.
    fn next_to_copy(&self, stream: u32, streams: usize, patient: bool) -> (Vec<CopyTask>, bool) {
        let mut found: Vec<CopyTask> = Vec::new();
        if self.copies_nothing() {
            return (found, false);
        }
        let (pressure, gate) = (self.batches_by_pressure(), self.order.gate(self.uptime()));
        let mut st = self.state.lock();
        let refused = publish_plan::first_refused(&st, gate);
        let mut planned = copy_plan::plan_copies(&mut st, pressure, refused);
        planned.retain(|(_, (_, content))| content.is_sealed() && content.is_intact());
        let is_held = |lsn: Lsn| st.queue.event(lsn).is_some_and(|event| self.held_for(event.by).is_some());
        if patient || planned.iter().any(|(_, (lsn, _))| !is_held(*lsn)) {
            planned.retain(|(_, (lsn, _))| !is_held(*lsn));
        }
        // The end of a single version is a sync: measured beside the middle of another copy it would mislead.
        let is_enough = planned.len() >= streams.max(2);
        let at_once = planned.len().div_ceil(streams).min(AT_ONCE);
        let needed = StillNeeded::of(&st, pressure, refused);
        let required = st.queue.required();
        let first = self.first_to_copy(&st);
        // Their batches may be published much later.
        let out_of_turn: Vec<Lsn> = required.iter().chain(&first).map(|(_, (lsn, _))| *lsn).collect();
        let is_required = required.as_ref().map(|(_, (lsn, _))| *lsn);
        for (ino, (lsn, content)) in required.into_iter().chain(first).chain(planned) {
            if is_required != Some(lsn) && !needed.has(&st, ino, lsn) {
                continue;
            }
            let Some(state) = st.known_file(ino) else { continue };
            if state.draining.swap(true, Ordering::AcqRel) {
                continue;
            }
            let wanted = CopyTask { lsn, stream, state, content, copied: Cell::new(0) };
            // Another thread may have finished its copy since this version was found to have none.
            if wanted.content.is_copied() || wanted.content.is_early() {
                continue;
            }
            let small = wanted.content.size <= SMALL && !wanted.content.object().needs_slow();
            if small || found.is_empty() {
                if !out_of_turn.contains(&lsn) {
                    copy_plan::begin_copy(&mut st, lsn, pressure);
                }
                found.push(wanted);
            }
            if !small || found.len() >= at_once {
                break;
            }
        }
        (found, is_enough)
    }

    /// Continues with the others if one fails. Returns the first error, and whether all errors hold only some users.
    fn copy_versions(&self, wanted: &[CopyTask]) -> Result<(), (Error, bool)> {
        wanted.iter().for_each(|wanted| self.counters.notes.copying(wanted.lsn));
        let written: Vec<_> = wanted.iter().map(|wanted| self.write_version(wanted)).collect();
        if wanted.len() > 1 {
            let files = wanted
                .iter()
                .zip(&written)
                .filter_map(|(wanted, written)| Some((wanted.content.size, &written.as_ref().ok()?.as_ref()?.file)));
            files.for_each(|(size, file)| file.write_behind(0..size));
        }
        let (mut failed, mut finished) = (Ok(()), Vec::new());
        for (wanted, written) in wanted.iter().zip(written) {
            let done = written.and_then(|written| match written {
                Some(written) => self.finish_version(wanted, written),
                None => self.adopt_slow_object(wanted.lsn, &wanted.state, &wanted.content),
            });
            let unsynced = self.counters.notes.copying_ended(wanted.lsn, done.as_ref().err());
            match done {
                Ok(true) => {
                    self.counters.arrived(unsynced, self.uptime());
                    self.counters.drained(wanted.content.size);
                    self.let_copied_go(wanted.state.ino);
                    finished.push(wanted);
                }
                Ok(false) => {}
                Err(error) => {
                    let is_held = self.hold_copy(wanted.lsn, wanted.state.ino, &error);
                    failed = match failed {
                        Err((_, true)) if !is_held => Err((error, false)),
                        Ok(()) => Err((error, is_held)),
                        failed => failed,
                    };
                }
            }
        }
        self.note_copies(&finished);
        failed
    }

    /// Notes where each copy belongs, in case this member of a fleet is lost with its fast tier.
    fn note_copies(&self, finished: &[&CopyTask]) {
        self.order.journal_copies(&*self.slow.tmp, || {
            let st = self.state.lock();
            let note = |CopyTask { state, content, .. }: &&CopyTask| {
                let copied = content.copy.lock();
                let Copied { tmp, id, .. } = copied.as_deref()?;
                let path = st.view.path(state.ino)?;
                Some(WaitingCopy { tmp: tmp.clone(), id: id.1, size: content.size, path })
            };
            finished.iter().filter_map(note).collect()
        });
    }

    /// Steps 1 to 3. `None`: the bytes are already on the slow tier.
    fn write_version(&self, task: &CopyTask) -> Result<Option<Written>> {
        let CopyTask { lsn, state, content, .. } = task;
        if content.object().needs_slow() {
            return Ok(None);
        }
        let label = || self.label(state.ino);
        let source = self.pool.open_object(content.object().number, Access::Unnoticed);
        let source = source.at_fast("open the object of", label())?;
        self.expect_all_bytes(state, content, &*source)?;
        let (part, _) = self.tmp_for(self.dir_of(state.ino))?;
        let tmp = in_part(&part, &copy_name(*lsn, task.stream));
        let (file, born) = self.create_copy(&tmp, content.attrs().perm, label)?; // 1
        let (dir, _) = self.slow.tmp_of(&tmp).at("create the slow copy of", label())?;
        let reads_back = self.options().rules.reads_back(|| self.state.lock().view.path(state.ino));
        let sum = self.copy_down(task, source, (&file, &born)); // 2, 3
        Ok(Some(Written { tmp, dir, file, reads_back, sum }))
    }

    /// Makes an empty copy with as much of its mode as writing allows, and returns its stat: attributes that are right
    /// already need no later request.
    fn create_copy<L: Display>(&self, tmp: &[u8], perm: u32, label: impl Fn() -> L) -> Result<(Arc<dyn File>, Stat)> {
        // A write clears the other bits. If the mode cannot be changed later, it is the file's mode from the start.
        let perm = if self.slow.abilities.modes { perm & 0o777 | 0o600 } else { perm };
        let create = || self.slow.made_tmp_of(tmp).and_then(|(dir, name)| dir.create(name, perm));
        let created = match create() {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                let (dir, name) = self.slow.tmp_of(tmp).at("create the slow copy of", label())?;
                remove_leftover(&*dir, name)?;
                create()
            }
            // Another program has removed the lane.
            Err(e) if is_elsewhere(&e) => {
                self.slow.forget_lanes();
                create()
            }
            created => created,
        };
        let file = created.at("create the slow copy of", label())?;
        let born = file.stat().at("stat the slow copy of", label())?;
        Ok((file, born))
    }

    /// The directory in which a version will be placed, as far as is known now. If publishing finds that this is in
    /// another part, it copies the version over.
    fn dir_of(&self, ino: Ino) -> Ino {
        let st = self.state.lock();
        let node = st.view.get(ino);
        node.and_then(|node| node.links.first().or(node.slow().first())).map_or(ROOT, |place| place.0)
    }

    /// Steps 4 to 6. `false`: the version no longer exists.
    fn finish_version(&self, CopyTask { lsn, state, content, .. }: &CopyTask, written: Written) -> Result<bool> {
        let Written { tmp, dir, file, reads_back, sum } = written;
        let name = bare(&tmp);
        let synced = sum.and_then(|sum| file.sync().map(|()| sum).map_err(NotCopied::Written)); // 4
        file.forget_cached(WHOLE);
        let verified = synced.and_then(|sum| {
            let stat = verify(&*file, content, &self.slow.abilities).map_err(NotCopied::Written)?; // 5
            if reads_back {
                self.read_back((&*dir, name, &file), *lsn, content.size, sum).map_err(NotCopied::Written)?;
            }
            Ok((stat, sum))
        });
        let (stat, sum) = match verified {
            Ok(done) => done,
            Err(failed) => {
                discard(&*dir, name);
                return match failed {
                    _ if !self.is_pending(*lsn) => Ok(false),
                    NotCopied::Read(e) => Err(Error::io_on_fast("read", self.label(state.ino), e)),
                    NotCopied::Written(e) => Err(Error::io("copy to the slow tier", self.label(state.ino), e)),
                };
            }
        };
        // 6: exclusive, so that no earlier write is in flight. The event may already be published, together with one
        // that superseded it; that path looks for copies under the engine's lock.
        let intact = {
            let _io = state.io.write();
            let st = self.state.lock();
            let intact = (content.is_intact() || left_out!(WrittenOver)) && st.queue.applied() < *lsn;
            if intact {
                let (id, known) = (stat.id(), Some(TmpStat::of(&stat)));
                let copied = Copied { tmp: tmp.clone(), id, sum: Some(sum), known };
                *content.copy.lock() = Some(Box::new(copied));
            }
            intact
        };
        if !intact {
            discard(&*dir, name);
        } else if reads_back {
            self.state.lock().checkpoints.change(|index| index.verified_version(*lsn));
        }
        Ok(intact)
    }

    pub(super) fn is_pending(&self, lsn: Lsn) -> bool {
        self.state.lock().queue.applied() < lsn
    }

    /// Steps 2 and 3. Returns the hash of the bytes.
    fn copy_down(
        &self,
        CopyTask { lsn, state, content, copied, .. }: &CopyTask,
        source: Arc<dyn File>,
        (file, born): (&Arc<dyn File>, &Stat),
    ) -> Result<Hash, NotCopied> {
        let CopyEnd { sum, data_end } = self.copy_jointly(*lsn, content, (source, file), copied)?; // 2
        if data_end != content.size {
            // The file ends with a hole.
            file.set_len(content.size).map_err(NotCopied::Written)?;
        }
        let left_out = self.slow.set_attrs(&**file, born, &content.attrs()).map_err(NotCopied::Written)?; // 3
        self.warn_of_left_out(self.label(state.ino), &left_out);
        Ok(sum.of_size(content.size))
    }

    /// Compares a copy with the copied bytes by hash. The copy is no longer in the page cache.
    fn read_back(
        &self,
        (dir, name, written): (&dyn Dir, &[u8], &Arc<dyn File>),
        lsn: Lsn,
        size: u64,
        wanted: Hash,
    ) -> std::io::Result<()> {
        let copy = match dir.open(name, Access::Unnoticed) {
            // The mode denies its owner read access, and we are not root.
            Err(e) if e.raw_os_error() == Some(Errno::EACCES as i32) => written.clone(),
            opened => opened?,
        };
        let whole = copy.stat()?.size == size;
        let (mut sum, mut at) = (Sum::default(), 0);
        let mut piece = vec![0; CHUNK];
        loop {
            at = next_data(&*copy, at..size)?;
            if at == size {
                break;
            }
            let got = copy.read_into(&mut piece, at)?;
            if got.is_empty() {
                break;
            }
            let got = got.get(..(size - at) as usize).unwrap_or(got);
            sum.take(at, got);
            at += got.len() as u64;
            // Reports progress from the beginning again; otherwise the tier would seem unresponsive.
            self.counters.notes.copied(lsn, at);
            if !self.is_pending(lsn) {
                return Err(Errno::ECANCELED.into());
            }
        }
        copy.forget_cached(WHOLE);
        if whole && at == size && sum.of_size(size) == wanted {
            return Ok(());
        }
        Err(std::io::Error::other("the slow tier returns other bytes than were written to it"))
    }

    /// Refuses a version whose end the fast tier has lost: copying it would write zeros over a good file. (A truncation
    /// takes the file's lock and makes it dirty first.)
    fn expect_all_bytes(&self, state: &FileState, content: &Content, object: &dyn File) -> Result<()> {
        let io = state.io.read();
        let has = object.stat().at_fast("stat the object of", self.label(state.ino))?.size;
        if has >= content.size || io.dirty || !content.is_intact() {
            return Ok(());
        }
        let number = content.object().number;
        Err(Error::refused(
            format!("the fast tier has lost the end of {}: {has} of {} bytes", self.label(state.ino), content.size),
            format!("unmount and mount again: object {number:016x} then goes to quarantine, and the rest continues"),
        ))
    }

    fn adopt_slow_object(&self, lsn: Lsn, state: &FileState, content: &Content) -> Result<bool> {
        let name = crate::tiers::objects::pool::tmp_name(content.object());
        let there = absent_is_none(self.slow.stat_object(content.object().tail()));
        if there.at("stat", "object on the slow tier")?.is_none() {
            // Another program has removed it. The order waits for the next version of the file, or for its removal
            // (`unblock`).
            content.lose();
            return Ok(false);
        }
        if let Some(split) = self.open_split(&Cx::internal(), content.object())?
            && !self.join_head(lsn, state, content, &split)?
        {
            return Ok(false);
        }
        let io = state.io.write();
        if io.is_ahead_of(content) || !content.is_intact() {
            return Ok(false);
        }
        let stat = self.slow.tmp.stat(&name).at("stat", "object on the slow tier")?;
        if stat.size != content.size {
            content.lose();
            return Ok(false);
        }
        let id = stat.id();
        *content.copy.lock() = Some(Box::new(Copied { tmp: name, id, sum: None, known: None }));
        Ok(true)
    }

    /// Copies the head into the tail, which becomes the whole file. `false`: a program has written meanwhile.
    fn join_head(&self, lsn: Lsn, state: &FileState, content: &Content, split: &Split) -> Result<bool> {
        let begin = || Ok((split.head_size()?, split.clear_tail_below()?));
        let Some((end, only_data)) = self.if_unchanged(state, content, begin)? else { return Ok(false) };
        let mut at = 0;
        loop {
            // A hole may be as large as the disk.
            let next = || split.next_to_join(at..end, only_data);
            let Some(from) = self.if_unchanged(state, content, next)? else { return Ok(false) };
            at = from;
            if at == end {
                break;
            }
            let to = end.min(at + CHUNK as u64);
            if self.if_unchanged(state, content, || split.join(at, to, only_data))?.is_none() {
                return Ok(false);
            }
            at = to;
            self.counters.notes.copied(lsn, at);
        }
        split.tail().sync().at("copy to the slow tier", self.label(state.ino)).map(|()| true)
    }

    /// Runs `act` while no write or truncation is in progress, and only if there was none since the version was frozen:
    /// a change takes the file's lock to make it dirty.
    fn if_unchanged<T>(
        &self,
        state: &FileState,
        content: &Content,
        act: impl FnOnce() -> std::io::Result<T>,
    ) -> Result<Option<T>> {
        let io = state.io.write();
        if io.is_ahead_of(content) || !content.is_intact() {
            return Ok(None);
        }
        act().at("copy to the slow tier", self.label(state.ino)).map(Some)
    }

    /// Whether pressure makes batches. An event that was refused once must not be refused inside a batch, because a
    /// half-done batch cannot be set aside. So nothing is skipped there, either.
    pub(crate) fn batches_by_pressure(&self) -> bool {
        let is_refused = {
            let mut st = self.state.lock();
            let first = st.queue.events().front().map(|event| (event.lsn, event.by));
            let first = first.filter(|(lsn, by)| self.counters.notes.is_refused(*lsn) || self.is_held(*by));
            st.queue.stop_skipping_at(first.map_or(0, |(lsn, _)| lsn));
            first.is_some()
        };
        self.pressure() && !is_refused
    }

    /// Publishing waits for a version that was rewritten in place and not committed since. After `live_after`, or if a
    /// program waits, it is committed as it is; a write that a crash cut off only if a program waits.
    pub(crate) fn unblock(&self) -> Result<Progress> {
        let blocked = {
            let mut st = self.state.lock();
            let blocker = publish_plan::blocker(&st);
            blocker.and_then(|(ino, at)| Some((st.known_file(ino)?, at)))
        };
        let Some((state, at)) = blocked else { return Ok(Progress::Idle) };
        let left = (at + self.options().live_after).saturating_sub(self.uptime());
        let has_priority = self.counters.notes.priority_lsn() > self.state.lock().queue.applied();
        if let Some(done) = self.save_what_is_open(&state)? {
            return Ok(done);
        }
        if state.io.read().interrupted && !self.has_waiters() {
            return Ok(Progress::Idle);
        }
        if !self.has_waiters() && !has_priority && !left.is_zero() {
            return Ok(Progress::Wait(left));
        }
        self.snapshot(&state)
    }

    /// For a file whose object was in `tmp` on the slow tier and was removed there by another program: saves the bytes
    /// of an open handle, if there is one. `None`: not such a file.
    fn save_what_is_open(&self, state: &Arc<FileState>) -> Result<Option<Progress>> {
        let (object, open) = {
            let io = state.io.read();
            (io.object().filter(|object| object.needs_slow()), io.fd.is_some())
        };
        let Some(object) = object else { return Ok(None) };
        if absent_is_none(self.slow.stat_object(object.tail())).at("stat", "object on the slow tier")?.is_some() {
            return Ok(None);
        }
        if !open {
            let path = self.label(state.ino);
            return Err(Error::refused(
                format!("somebody else removed the newest bytes of /{path} from .dlio-fs/tmp on the slow tier"),
                "write the file again, or remove it; and exclude .dlio-fs from clean-ups of old files",
            ));
        }
        let cx = Cx::internal();
        self.leave_object(&cx, state, object)?;
        self.commit_as_it_is(&cx, state)?;
        Ok(Some(Progress::Did))
    }

    /// Commits a file that is written continuously. A small file is copied first, so that the version stays whole;
    /// writes to a large file pause while it is copied.
    fn snapshot(&self, state: &Arc<FileState>) -> Result<Progress> {
        let cx = Cx::internal();
        let size = self.getattr(&cx, state.ino)?.size;
        let small = size <= self.options().copy_up_max && self.fits(size);
        let lsn = if small { self.commit_copy(&cx, state)? } else { self.commit_as_it_is(&cx, state)? };
        let Some(lsn) = lsn else { return Ok(Progress::Idle) };
        self.counters.totals.late_snapshots.increment(1);
        tracing::debug!(ino = state.ino, lsn, "committed a file that is being rewritten in place");
        Ok(Progress::Did)
    }
}

/// Removes a copy. If that fails, the next start sweeps it.
fn discard(tmp: &dyn Dir, name: &[u8]) {
    if let Err(e) = remove_leftover(tmp, name) {
        tracing::debug!(error = %e, "a discarded copy stays in tmp until the next start");
    }
}

fn verify(file: &dyn File, content: &Content, abilities: &Abilities) -> std::io::Result<Stat> {
    let stat = file.stat()?;
    let Attrs { perm, uid, gid, .. } = content.attrs();
    let as_asked = stat.size == content.size && abilities.shows(&stat, (uid, gid, perm));
    if as_asked {
        Ok(stat)
    } else {
        Err(std::io::Error::other("the slow tier did not keep what was written to it (length, owner or mode differ)"))
    }
}

//! The engine's status: whether everything is safe, and what holds the rest up.

pub(crate) mod queue;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Errno, Result};
use crate::stats::status::{
    Cache, Exceptions, HeldUser, LogFigures, Pipeline, Safety, SlowAbilities, Status, TierSpace,
};
use crate::tiers::disk::Space;
use crate::tiers::disk::errors::with_remedy;
use crate::tiers::progress::copied_in;
use crate::tiers::{Abilities, Cx, Ino, Lsn, Tiers};

impl Tiers {
    /// Why changes are refused, or do not go to the fast tier. Asks neither tier.
    pub fn refuses_writes(&self) -> Option<&'static str> {
        let refusing = self.refuses_changes(&self.state.lock());
        if self.log.usable().is_err() {
            return Some(
                "the fast tier fails; changes are refused until it is repaired and mounted again, see the log",
            );
        }
        if self.fast_fails() {
            return Some("the fast tier fails to read or write: new files go to the slow tier, see the log");
        }
        refusing.then_some("max_pending changes wait for the slow tier: further ones get ENOSPC")
    }

    /// A counter that rises while bytes are written to the slow tier.
    pub fn copied_bytes(&self) -> u64 {
        self.counters.copied_bytes()
    }

    /// The part of [`Tiers::copied_bytes`] that is known to be on the slow tier's disk.
    pub fn arrived_bytes(&self) -> u64 {
        self.counters.totals.drained_bytes.get() + self.counters.notes.on_disk()
    }

    /// An estimate of the unsynced bytes that have arrived since the last sync.
    fn in_flight(&self, now: Duration) -> u64 {
        let since_then = now.saturating_sub(self.counters.speed.lock().1).as_secs_f64();
        let at_most = self.counters.rate(now).map_or(0, |rate| (rate * since_then) as u64);
        self.counters.notes.all_unsynced().min(at_most)
    }

    /// Since when each file that is being written has had no version.
    fn open_since(&self) -> Vec<Duration> {
        let st = self.state.lock();
        let is_open = |ino: &Ino| {
            let file = st.view.get(*ino).and_then(|node| node.file.as_ref());
            file.is_some_and(|file| file.writers.load(Ordering::Acquire) > 0)
        };
        st.uncommitted.files().filter(is_open).filter_map(|ino| st.uncommitted.since(ino)).collect()
    }

    /// The engine's part of the mount's status: the tiers, the log and what waits. The rest is empty.
    pub fn status(&self) -> Status {
        let now = self.uptime();
        let pending = self.pending_extent(now);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (c, totals) = (&self.counters, &self.counters.totals);
        let refusal = || c.troubles.lock().values().find(|(silent, _)| !silent).map(|trouble| trouble.1.clone());
        // After the reason for refusing changes, which is what closed the log.
        let closed = || self.log.usable().err().map(|error| with_remedy(&error));
        let held_users = self.held_users();
        let paused = || self.is_paused().then(|| "the drain is paused; dlio-fs resume continues it".to_owned());
        let held = self
            .damaged
            .clone()
            .or_else(paused)
            .or_else(refusal)
            .or_else(closed)
            .or_else(|| self.held_by_cut_off())
            .or_else(|| self.held_by_copy())
            .or_else(|| self.held_by_fleet())
            .or_else(|| held_users.first().map(HeldUser::line));
        let (objects, known_inodes, interrupted, events, applied, refusing, users_refused, event_bytes) = {
            let st = self.state.lock();
            let cut_off: Vec<_> = st.uncommitted.files().filter_map(|ino| st.view.get(ino)?.file.clone()).collect();
            let objects = st.objects.len() + st.view.waiting.len();
            let (refusing, users) = (self.refuses_changes(&st), self.users_refused(&st));
            let (known, events) = (st.view.nodes.len() as u64, st.queue.len() as u64);
            let bytes = st.queue.bytes();
            (objects as u64, known, cut_off, events, st.queue.applied(), refusing, users, bytes)
        };
        let writing = self.open_since();
        let live_after = self.options().live_after;
        let snapshot_in = |since: &Duration| live_after.saturating_sub(now.saturating_sub(*since));
        let snapshot_in = writing.iter().map(snapshot_in).min();
        let interrupted =
            interrupted.iter().filter(|file| file.io.try_read().is_some_and(|io| io.interrupted)).count() as u64;
        let (copies, copies_bytes) = self.copies.extent();
        Status {
            safety: Safety {
                safe: pending.files == 0 && events == 0 && interrupted == 0 && !c.slow_gone.load(Ordering::Relaxed),
                files: pending.files,
                bytes: pending.bytes,
                writing: writing.len() as u64,
                snapshot_in,
                events,
                oldest: pending.oldest.map(|at| now.saturating_sub(at)),
                // No estimate from the earlier rate while something holds up the drain.
                eta: copied_in(pending.to_copy.saturating_sub(self.in_flight(now)), self.expected_rate())
                    .zip(c.published_in(events))
                    .map(|(copied, published)| copied.max(published).max(snapshot_in.unwrap_or_default()))
                    .filter(|eta| !eta.is_zero() || pending.files + events == 0)
                    .filter(|_| held.is_none() && !self.slow.is_down()),
                held,
                slow_down: self.slow.is_down(),
                fast_fails: self.fast_fails(),
                refusing,
                users_refused,
                interrupted,
            },
            fast: space(&self.fast.space().unwrap_or_default()),
            slow: space(&c.slow_space().unwrap_or_default()),
            pipeline: Pipeline {
                pending_events: events,
                pending_bytes: event_bytes,
                published_events: totals.published_events.get(),
                drained_files: totals.drained_files.get(),
                drained_bytes: totals.drained_bytes.get(),
                drain_bytes_per_s: c.rate(now).unwrap_or(0.0) as u64,
                drain_streams: self.drain_streams(),
                drain_cpu_per_gib: c.cpu_per_gib(),
                bytes_to_copy: pending.to_copy,
                evictions: totals.evictions.get(),
                copies,
                copies_bytes,
                staged_files: totals.staged_files.get(),
                staged_bytes: totals.staged_bytes.get(),
            },
            log: LogFigures { lsn: self.log.last(), durable_lsn: self.log.durable(), applied_lsn: applied },
            cache: Cache { objects, known_inodes, open_files: count(&c.open_files), open_handles: 0 },
            exceptions: Exceptions {
                batches: totals.batches.get(),
                late_snapshots: totals.late_snapshots.get(),
                in_place_writes: totals.in_place_writes.get(),
                conflicts: totals.conflicts.get(),
                left_out: count(&c.left_out),
                removed_first: totals.removed_first.get(),
                held_back: totals.held_back.get(),
                replaced: totals.replaced.get(),
                skipped: totals.skipped_versions.get(),
                skipped_bytes: totals.skipped_bytes.get(),
                set_aside: count(&c.set_aside),
                spilled: totals.spilled_files.get(),
                discarded: count(&c.discarded),
                damaged: count(&c.damaged),
                quarantined: self.pool.quarantined().unwrap_or_else(|_| count(&c.quarantined)),
            },
            slow_abilities: slow_abilities(&self.abilities()),
            partner: self.partner_figures(),
            saved: self.saved_figures(),
            held_users,
            ..Status::default()
        }
    }

    /// The LSN up to which everything must be applied for all present writes to be D2.
    pub fn last_lsn(&self) -> Lsn {
        self.log.last()
    }

    pub fn applied_lsn(&self) -> Lsn {
        let st = self.state.lock();
        // With nothing pending, everything logged counts as applied.
        if st.queue.is_empty() { self.log.last() } else { st.queue.all_applied() }
    }

    /// Whether this event, as returned by [`Tiers::awaited`], is on the slow tier. Held users' events that it does not
    /// depend on need not be.
    pub fn has_applied(&self, awaited: Lsn) -> bool {
        let st = self.state.lock();
        st.queue.is_empty() || st.queue.has_applied(awaited)
    }

    /// The owner of a file, as the view knows it; neither tier is asked.
    pub fn owner_of(&self, ino: Ino) -> Option<u32> {
        self.state.lock().view.get(ino).map(|node| node.meta().uid)
    }

    /// The owner of the inode at a path from the root.
    pub fn owner_at(&self, cx: &Cx, path: &[u8]) -> Result<u32> {
        self.at_path(cx, path, |ino| self.getattr(cx, ino)).map(|attr| attr.uid)
    }

    /// Whether the slow tree is in the middle of changes that are published as one. Waits for the step in progress.
    pub fn is_inside_batch(&self) -> bool {
        self.writeback.is_inside_batch() || self.state.lock().is_inside_batch()
    }

    /// The event that an `fsync` of `ino` waits for on the slow tier, beyond D1: if a rule asks for it, the newest
    /// event at or below `ino`.
    ///
    /// Errors: see [`Tiers::is_out_of_the_order`]; regardless of the rules, because later writes are lost with the last
    /// handle.
    pub fn awaited(&self, ino: Ino) -> Result<Option<Lsn>> {
        if self.counters.set_aside.load(Ordering::Relaxed) > 0 {
            self.is_out_of_the_order(ino, None)?;
        }
        if !self.options().rules.syncs_to_slow(|| self.path(ino)) {
            return Ok(None);
        }
        let pending = self.pending_below(ino);
        Ok(pending.map(|lsn| self.state.lock().queue.first_number(lsn)))
    }

    /// Errors: EIO if something at or below `ino` that an event up to `awaited` was to publish has been set aside: it
    /// will never reach the slow tier.
    pub fn is_out_of_the_order(&self, ino: Ino, awaited: Option<Lsn>) -> Result<()> {
        if self.state.lock().was_set_aside(ino, awaited) { Err(Errno::EIO.into()) } else { Ok(()) }
    }

    /// Checks the invariants of the state in memory; for tests.
    pub fn check(&self) {
        let st = self.state.lock();
        st.view.check();
        st.queue.check();
        st.uncommitted.check();
    }
}

fn space(of: &Space) -> TierSpace {
    TierSpace { total: of.capacity(), used: of.used(), available: of.avail }
}

fn slow_abilities(found: &Abilities) -> SlowAbilities {
    SlowAbilities {
        user_xattrs: found.user_xattrs,
        acls: found.acls,
        owners: found.owners,
        groups: found.groups,
        modes: found.modes,
        symlinks: found.symlinks,
        symlink_attrs: found.link_attrs,
        fifos: found.fifos,
        hard_links: found.hard_links,
        lasting_inode_numbers: found.lasting_numbers,
        any_names: found.any_names,
        rename_exchange: found.exchange,
        rename_noreplace: found.no_replace,
        time_grain: found.time_grain,
    }
}

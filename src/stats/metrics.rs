//! A snapshot in Prometheus' text format 0.0.4, with the same figures as the text and the JSON.
//!
//! What only grows is counted in the mount's [`MetricsRecorder`]. All else is computed from the state when somebody
//! asks, and set in a recorder of that scrape, so that what has become unknown is not shown any more. Units are seconds
//! and bytes, counters end in `_total`, and nothing here names a path. `process_` has the names that all programs use.

use metrics::{IntoF64, Level, Metadata, Recorder as _, Unit};

use super::counters::{Op, Tier, nanos};
use super::recorder::{Labels, MetricsRecorder, key};
use super::status::{FleetFigures, Status, TierSpace};

/// The content type, for the server. The recorder does not know OpenMetrics, so there is no choice.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The recorder asks for it, and does not look at it.
const OURS: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, None);

/// What is set anew for each scrape.
#[derive(Default)]
struct Scrape(MetricsRecorder);

impl Scrape {
    fn gauge(&self, name: &'static str, help: &'static str, value: impl IntoF64) {
        self.labelled(name, help, &[], value);
    }

    fn labelled(&self, name: &'static str, help: &'static str, labels: Labels<'_>, value: impl IntoF64) {
        self.0.describe_gauge(name.into(), None, help.into());
        self.0.register_gauge(&key(name, labels), &OURS).set(value);
    }

    fn counter(&self, name: &'static str, help: &'static str, labels: Labels<'_>, unit: Unit, value: u64) {
        self.0.describe_counter(name.into(), Some(unit), help.into());
        self.0.register_counter(&key(name, labels), &OURS).absolute(value);
    }
}

impl Status {
    /// The text of `.dlio/metrics`; `totals` has what only grows. Ends with a newline.
    pub fn metrics(&self, totals: &MetricsRecorder) -> String {
        let now = Scrape::default();
        self.engine(&now);
        self.times(&now);
        self.tiers(&now);
        self.fleet(&now);
        self.partner(&now);
        self.saved(&now);
        if self.profile {
            self.files(&now);
            self.found(&now);
            self.bytes(&now);
        }
        self.process(&now);
        totals.text() + &now.0.text()
    }

    fn engine(&self, now: &Scrape) {
        let Status { safety, pipeline, log, cache, exceptions, slow_calls, .. } = self;
        let is = |yes: bool| f64::from(u8::from(yes));
        let labels: Labels<'_> = &[("version", &self.version), ("io_path", &self.io_path.name)];
        now.labelled("dliofs_build_info", "Always 1; the labels say what runs.", labels, 1.0);
        for (name, help, value) in [
            ("dliofs_safe", "1 if everything is on the slow tier.", is(safety.safe)),
            ("dliofs_drain_queue_files", "Files of which only fast has the newest state.", safety.files as f64),
            ("dliofs_drain_queue_bytes", "Bytes of those files, pending to be copied.", safety.bytes as f64),
            ("dliofs_drain_queue_events", "Changes that slow does not have yet.", pipeline.pending_events as f64),
            ("dliofs_held", "1 while publishing stands still until somebody looks.", is(safety.held.is_some())),
            ("dliofs_parts_off", "Parts that only observe and were turned off by a bug.", self.off.len() as f64),
            ("dliofs_held_users", "Users whose changes are held while others go on.", self.held_users.len() as f64),
            (
                "dliofs_drain_queue_memory_bytes",
                "Memory and log that those changes take, about.",
                pipeline.pending_bytes as f64,
            ),
            ("dliofs_refusing_changes", "1 while changes get ENOSPC: max_pending is reached.", is(safety.refusing)),
            (
                "dliofs_refused_users",
                "Users whose changes get ENOSPC, because they have their share of max_pending.",
                safety.users_refused as f64,
            ),
            ("dliofs_slow_tier_down", "1 while the slow tier does not answer.", is(safety.slow_down)),
            (
                "dliofs_fast_tier_fails",
                "1 while the fast tier has failed to read or write within the last minute.",
                is(safety.fast_fails),
            ),
            (
                "dliofs_other_mounts",
                "Mounts of the same slow tier that keep no order with this one.",
                self.other_mounts.len() as f64,
            ),
            ("dliofs_interrupted_files", "Files whose writer was cut off by a crash.", safety.interrupted as f64),
            ("dliofs_log_lsn", "The last number given to a record of the log.", log.lsn as f64),
            ("dliofs_log_durable_lsn", "The last record that is durable on the fast tier.", log.durable_lsn as f64),
            ("dliofs_log_applied_lsn", "The last record applied to the slow tier.", log.applied_lsn as f64),
            ("dliofs_objects", "Objects on the fast tier.", cache.objects as f64),
            ("dliofs_known_inodes", "Files and directories in memory.", cache.known_inodes as f64),
            ("dliofs_staged_copies", "Copies of slow files on the fast tier.", pipeline.copies as f64),
            ("dliofs_staged_copies_bytes", "Bytes of them.", pipeline.copies_bytes as f64),
            ("dliofs_open_files", "Files that are open.", cache.open_files as f64),
            ("dliofs_open_handles", "Handles on them: one for each open.", cache.open_handles as f64),
            ("dliofs_discarded_versions", "Versions discarded by the last recovery.", exceptions.discarded as f64),
            ("dliofs_damaged_versions", "Versions the last recovery found damaged.", exceptions.damaged as f64),
            (
                "dliofs_set_aside",
                "Changes that an operator has set aside since the mount.",
                exceptions.set_aside as f64,
            ),
            ("dliofs_quarantined_objects", "Objects in quarantine.", exceptions.quarantined as f64),
            ("dliofs_slow_calls_waiting", "Operations that wait for the slow tier.", slow_calls.waiting as f64),
        ] {
            now.gauge(name, help, value);
        }
    }

    fn times(&self, now: &Scrape) {
        let oldest = Some(self.safety.oldest.unwrap_or_default());
        for (name, help, value) in [
            ("dliofs_mounted_seconds", "Since the mount was made.", Some(self.mounted_for)),
            ("dliofs_drain_oldest_seconds", "Age of the oldest pending change; 0 if there is none.", oldest),
            (
                "dliofs_drain_eta_seconds",
                "Until everything is on slow, at the recent rate, or at drain_bandwidth.",
                self.safety.eta,
            ),
            (
                "dliofs_drain_cpu_seconds_per_gib",
                "Processor time that copying a GiB has taken so far.",
                self.pipeline.drain_cpu_per_gib,
            ),
        ] {
            value.into_iter().for_each(|value| now.gauge(name, help, value));
        }
    }

    fn tiers(&self, now: &Scrape) {
        for (tier, TierSpace { total, used, available }) in [("fast", &self.fast), ("slow", &self.slow)] {
            let space = |name, help, bytes: &u64| now.labelled(name, help, &[("tier", tier)], *bytes as f64);
            space("dliofs_tier_capacity_bytes", "Size of a tier's file system.", total);
            space("dliofs_tier_used_bytes", "In use there, by anybody.", used);
            space("dliofs_tier_available_bytes", "Available there.", available);
        }
    }

    fn files(&self, now: &Scrape) {
        let files = &self.files;
        now.gauge("dliofs_files_tracked", "Files told apart in the statistics.", files.files as f64);
        now.gauge("dliofs_files_tracked_bytes", "Memory that their records take, about.", files.bytes as f64);
        now.gauge("dliofs_files_untracked", "Files met that are not: the memory is full.", files.unnamed as f64);
    }

    /// Nothing if the mount is in no fleet.
    fn partner(&self, now: &Scrape) {
        let Some(partner) = &self.partner else { return };
        let is = |yes: bool| f64::from(u8::from(yes));
        now.gauge(
            "dliofs_partner_safe",
            "1 if everything is on the slow tier, or in the copy at the partner.",
            is(partner.safe_if_one_node_is_lost),
        );
        now.gauge("dliofs_partner_copy_good", "1 if that copy may take the member's place.", is(partner.is_good));
        now.gauge("dliofs_partner_behind_events", "Changes that only this fast tier has.", partner.events as f64);
        now.gauge("dliofs_partner_behind_bytes", "Bytes of their contents.", partner.bytes as f64);
    }

    /// What the slow tier keeps for people.
    fn saved(&self, now: &Scrape) {
        let Some(saved) = &self.saved else { return };
        let oldest = saved.oldest.unwrap_or_default();
        now.gauge("dliofs_saved_files", "Files in .dlio-fs/saved on the slow tier.", saved.files as f64);
        now.gauge("dliofs_saved_bytes", "Bytes of them.", saved.bytes as f64);
        now.gauge("dliofs_saved_oldest_seconds", "Age of the oldest directory there; 0 if there is none.", oldest);
    }

    fn fleet(&self, now: &Scrape) {
        let Some(fleet) = &self.fleet else { return };
        let FleetFigures { here, silent, left, forgotten, not_mounted, clock_off, behind } = fleet;
        for (standing, count) in [
            ("here", here),
            ("silent", silent),
            ("left", left),
            ("forgotten", forgotten),
            ("not-mounted", not_mounted),
            ("clock-off", clock_off),
        ] {
            let help = "Members of the fleet, by what is known of them.";
            now.labelled("dliofs_fleet_members", help, &[("standing", standing)], *count as f64);
        }
        if let Some(behind) = behind {
            let help = "How far the slow tier is behind what any member has logged, at most.";
            now.gauge("dliofs_fleet_behind_seconds", help, *behind);
        }
    }

    /// What was found in the calls, and how many are traced.
    fn found(&self, now: &Scrape) {
        let found = &self.found;
        let sum = |name, help, value| now.counter(name, help, &[], Unit::Count, value);
        sum("dliofs_checkpoints_total", "Bursts of writes, taken for checkpoints.", found.checkpoints);
        now.gauge("dliofs_checkpoint_last_bytes", "Of the last one.", found.checkpoint_bytes as f64);
        now.gauge(
            "dliofs_checkpoint_absorb_seconds",
            "How long the program waited for the last one, from its first open to the end of its last close or fsync.",
            found.checkpoint_absorb,
        );
        now.gauge("dliofs_checkpoint_at_risk_seconds", "From then until slow had it.", found.checkpoint_at_risk);
        now.gauge("dliofs_checkpoint_interval_seconds", "From one to the next.", found.checkpoint_interval);
        now.gauge("dliofs_epoch", "Number of the current pass over the data.", found.epoch as f64);
        now.gauge("dliofs_epoch_duration_seconds", "How long the pass before it took.", found.epoch_duration);
        sum("dliofs_trace_calls_total", "Calls traced one by one.", found.trace.collected);
        sum("dliofs_trace_dropped_total", "Calls that came too fast to be traced.", found.trace.dropped);
        sum("dliofs_trace_unwritten_total", "Traced calls that got into no file.", found.trace.unwritten);
    }

    /// Bytes moved, and look-ups of missing names: sums over operations that a dashboard needs by themselves, and from
    /// the beginning.
    fn bytes(&self, now: &Scrape) {
        for tier in Tier::ALL {
            let moved = |name, help, ops: &[Op]| {
                let lines = self.operations.iter().filter(|line| ops.iter().any(|op| op.name() == line.op));
                let bytes = lines.filter_map(|line| Some(line.tiers.get(tier.name())?.bytes)).sum();
                now.counter(name, help, &[("tier", tier.name())], Unit::Bytes, bytes);
            };
            moved("dliofs_read_bytes_total", "Bytes read by the applications.", &[Op::Read]);
            moved("dliofs_written_bytes_total", "Bytes written or copied by them.", &[Op::Write, Op::CopyFileRange]);
        }
        let negative =
            self.failures.iter().filter(|failure| failure.op == Op::Lookup.name() && failure.errno == "ENOENT");
        let negative = negative.map(|failure| failure.calls).sum();
        let help = "Look-ups of names that are not there.";
        now.counter("dliofs_lookup_negative_total", help, &[], Unit::Count, negative);
    }

    /// The machine resources that the daemon uses.
    fn process(&self, now: &Scrape) {
        let daemon = &self.daemon;
        if let Some(cpu) = daemon.cpu {
            let help = "Processor time, of the system too.";
            now.counter("process_cpu_seconds_total", help, &[], Unit::Nanoseconds, nanos(cpu));
        }
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Memory in use.", daemon.resident_bytes),
            ("process_open_fds", "Descriptors in use.", daemon.descriptors),
            ("process_max_fds", "Descriptors it may have.", daemon.descriptors_max),
        ] {
            value.into_iter().for_each(|value| now.gauge(name, help, value as f64));
        }
    }
}

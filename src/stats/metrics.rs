//! A snapshot in Prometheus' text format 0.0.4. Pure, with the same figures as the text and the JSON.
//!
//! The families are built from the snapshot each time instead of being registered once: the exact counters stay the
//! only ones. Units are seconds and bytes, counters end in `_total`, and nothing here names a path. Values that are
//! unknown or not counted have no sample. `process_` has the names that all programs use.

use std::time::Duration;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType as Type};

use super::counters::{Op, Tier};
use super::status::{Figures, FleetFigures, Status, TierSpace};
use crate::path::harmless;

/// The content type, for the server. The encoder does not know OpenMetrics, so there is no choice.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// The exported bounds of durations, as powers of two of a microsecond: 8 us to 134 s. They are a subset of the
/// counters' bounds, so that each bucket is exact. Not all of them: each is a series for every operation and tier.
const BOUNDS: std::ops::RangeInclusive<usize> = 3..=27;

/// Names with one value each, without labels.
type Plain = (&'static str, &'static str, f64);

impl Status {
    /// The text of `.dlio/metrics`. Ends with a newline.
    pub fn metrics(&self) -> String {
        let mut families = vec![self.info()];
        families.extend(self.gauges().map(|(name, help, value)| family(name, help, Type::GAUGE, [gauge(&[], value)])));
        families.extend(self.times().into_iter().filter_map(|(name, help, value)| {
            Some(family(name, help, Type::GAUGE, [gauge(&[], value?.as_secs_f64())]))
        }));
        families
            .extend(self.counters().map(|(name, help, n)| family(name, help, Type::COUNTER, [counter(&[], n as f64)])));
        families.extend(self.tiers());
        families.push(self.opens());
        families.extend(self.fleet());
        families.extend(self.partner());
        families.extend(self.saved());
        if self.profile {
            families.extend(self.files());
            families.extend(self.found());
            families.extend(self.bytes());
            families.extend(self.per_operation());
        }
        families.extend(self.process());
        families.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new().encode_to_string(&families).expect("every family has a name and a sample")
    }

    fn info(&self) -> MetricFamily {
        let labels = [("version", &*self.version), ("io_path", &self.io_path.name)];
        family("dliofs_build_info", "Always 1; the labels say what runs.", Type::GAUGE, [gauge(&labels, 1.0)])
    }

    fn gauges(&self) -> impl Iterator<Item = Plain> {
        let Status { safety, pipeline, log, cache, exceptions, slow_calls, .. } = self;
        let is = |yes: bool| f64::from(u8::from(yes));
        [
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
        ]
        .into_iter()
    }

    fn times(&self) -> [(&'static str, &'static str, Option<Duration>); 4] {
        let oldest = Some(self.safety.oldest.unwrap_or_default());
        [
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
        ]
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let Status { pipeline, exceptions, slow_calls, .. } = self;
        [
            ("dliofs_published_events_total", "Changes applied to the slow tier.", pipeline.published_events),
            ("dliofs_drained_files_total", "Versions copied to the slow tier.", pipeline.drained_files),
            ("dliofs_drained_bytes_total", "Bytes copied to the slow tier.", pipeline.drained_bytes),
            (
                "dliofs_evictions_total",
                "Clean objects and staged copies deleted from the fast tier.",
                pipeline.evictions,
            ),
            ("dliofs_staged_files_total", "Slow files copied to the fast tier.", pipeline.staged_files),
            ("dliofs_staged_bytes_total", "Bytes of them.", pipeline.staged_bytes),
            ("dliofs_batches_total", "Batches of more than one step.", exceptions.batches),
            ("dliofs_late_snapshots_total", "Files published while open for writing.", exceptions.late_snapshots),
            ("dliofs_in_place_writes_total", "Files written in place on slow.", exceptions.in_place_writes),
            ("dliofs_conflicts_total", "Foreign changes met; both versions are kept.", exceptions.conflicts),
            (
                "dliofs_removed_first_total",
                "Files removed from a full slow tier ahead of what was written before.",
                exceptions.removed_first,
            ),
            ("dliofs_held_back_total", "Changes of held users that others went ahead of.", exceptions.held_back),
            (
                "dliofs_replaced_total",
                "Files and directories of other members of the fleet that made way for ours and were saved.",
                exceptions.replaced,
            ),
            ("dliofs_skipped_versions_total", "Versions superseded before their copy began.", exceptions.skipped),
            ("dliofs_skipped_bytes_total", "Bytes of them.", exceptions.skipped_bytes),
            ("dliofs_spilled_files_total", "Files that did not fit on the fast tier.", exceptions.spilled),
            ("dliofs_slow_calls_total", "Operations that went to the slow tier.", slow_calls.served),
            ("dliofs_slow_calls_timed_out_total", "Answered EIO after slow_wait.", slow_calls.timed_out),
            ("dliofs_slow_calls_refused_total", "Answered EIO: too many waited.", slow_calls.refused),
        ]
        .into_iter()
    }

    fn tiers(&self) -> [MetricFamily; 3] {
        let each = |name, help, of: fn(&TierSpace) -> u64| {
            let tiers = [("fast", &self.fast), ("slow", &self.slow)];
            let samples = tiers.map(|(tier, figures)| gauge(&[("tier", tier)], of(figures) as f64));
            family(name, help, Type::GAUGE, samples)
        };
        [
            each("dliofs_tier_capacity_bytes", "Size of a tier's file system.", |tier| tier.total),
            each("dliofs_tier_used_bytes", "In use there, by anybody.", |tier| tier.used),
            each("dliofs_tier_available_bytes", "Available there.", |tier| tier.available),
        ]
    }

    fn opens(&self) -> MetricFamily {
        let samples = self.io_path.opens.iter().map(|(path, opens)| counter(&[("io_path", path)], *opens as f64));
        family("dliofs_opens_total", "Opens, by the way their reads and writes take.", Type::COUNTER, samples)
    }

    fn files(&self) -> [MetricFamily; 3] {
        let files = &self.files;
        [
            ("dliofs_files_tracked", "Files told apart in the statistics.", files.files as f64),
            ("dliofs_files_tracked_bytes", "Memory that their records take, about.", files.bytes as f64),
            ("dliofs_files_untracked", "Files met that are not: the memory is full.", files.unnamed as f64),
        ]
        .map(|(name, help, value)| family(name, help, Type::GAUGE, [gauge(&[], value)]))
    }

    /// Nothing if the mount is in no fleet.
    fn partner(&self) -> Vec<MetricFamily> {
        let Some(partner) = &self.partner else { return Vec::new() };
        let is = |yes: bool| f64::from(u8::from(yes));
        let gauges: [Plain; 4] = [
            (
                "dliofs_partner_safe",
                "1 if everything is on the slow tier, or in the copy at the partner.",
                is(partner.safe_if_one_node_is_lost),
            ),
            ("dliofs_partner_copy_good", "1 if that copy may take the member's place.", is(partner.is_good)),
            ("dliofs_partner_behind_events", "Changes that only this fast tier has.", partner.events as f64),
            ("dliofs_partner_behind_bytes", "Bytes of their contents.", partner.bytes as f64),
        ];
        gauges.map(|(name, help, value)| family(name, help, Type::GAUGE, [gauge(&[], value)])).into()
    }

    /// What the slow tier keeps for people.
    fn saved(&self) -> Vec<MetricFamily> {
        let Some(saved) = &self.saved else { return Vec::new() };
        let oldest = saved.oldest.unwrap_or_default().as_secs_f64();
        let gauges: [Plain; 3] = [
            ("dliofs_saved_files", "Files in .dlio-fs/saved on the slow tier.", saved.files as f64),
            ("dliofs_saved_bytes", "Bytes of them.", saved.bytes as f64),
            ("dliofs_saved_oldest_seconds", "Age of the oldest directory there; 0 if there is none.", oldest),
        ];
        gauges.map(|(name, help, value)| family(name, help, Type::GAUGE, [gauge(&[], value)])).into()
    }

    fn fleet(&self) -> [MetricFamily; 2] {
        let fleet = self.fleet.as_ref();
        let members = fleet.into_iter().flat_map(|fleet| {
            let FleetFigures { here, silent, left, forgotten, not_mounted, clock_off, .. } = fleet;
            let standings = [
                ("here", here),
                ("silent", silent),
                ("left", left),
                ("forgotten", forgotten),
                ("not-mounted", not_mounted),
                ("clock-off", clock_off),
            ];
            standings.map(|(standing, count)| gauge(&[("standing", standing)], *count as f64))
        });
        let behind = fleet.and_then(|fleet| fleet.behind).map(|behind| gauge(&[], behind.as_secs_f64()));
        [
            family("dliofs_fleet_members", "Members of the fleet, by what is known of them.", Type::GAUGE, members),
            family(
                "dliofs_fleet_behind_seconds",
                "How far the slow tier is behind what any member has logged, at most.",
                Type::GAUGE,
                behind,
            ),
        ]
    }

    /// What was found in the calls, and how many are traced.
    fn found(&self) -> [MetricFamily; 10] {
        let found = &self.found;
        let plain = |name, help, value: f64| family(name, help, Type::GAUGE, [gauge(&[], value)]);
        let time = |name, help, time: Duration| plain(name, help, time.as_secs_f64());
        let sum = |name, help, value: u64| family(name, help, Type::COUNTER, [counter(&[], value as f64)]);
        [
            sum("dliofs_checkpoints_total", "Bursts of writes, taken for checkpoints.", found.checkpoints),
            plain("dliofs_checkpoint_last_bytes", "Of the last one.", found.checkpoint_bytes as f64),
            time(
                "dliofs_checkpoint_absorb_seconds",
                "How long the program waited for the last one, from its first open to the end of its last close or fsync.",
                found.checkpoint_absorb,
            ),
            time("dliofs_checkpoint_at_risk_seconds", "From then until slow had it.", found.checkpoint_at_risk),
            time("dliofs_checkpoint_interval_seconds", "From one to the next.", found.checkpoint_interval),
            plain("dliofs_epoch", "Number of the current pass over the data.", found.epoch as f64),
            time("dliofs_epoch_duration_seconds", "How long the pass before it took.", found.epoch_duration),
            sum("dliofs_trace_calls_total", "Calls traced one by one.", found.trace.collected),
            sum("dliofs_trace_dropped_total", "Calls that came too fast to be traced.", found.trace.dropped),
            sum("dliofs_trace_unwritten_total", "Traced calls that got into no file.", found.trace.unwritten),
        ]
    }

    /// Bytes moved, and look-ups of missing names: sums of [`Status::per_operation`] that a dashboard needs by
    /// themselves, and from the beginning.
    fn bytes(&self) -> [MetricFamily; 3] {
        let each = |name, help, ops: &[Op]| {
            let moved = |tier: Tier| {
                let lines = self.operations.iter().filter(|line| ops.iter().any(|op| op.name() == line.op));
                lines.filter_map(|line| Some(line.tiers.get(tier.name())?.bytes)).sum::<u64>()
            };
            let samples = Tier::ALL.map(|tier| counter(&[("tier", tier.name())], moved(tier) as f64));
            family(name, help, Type::COUNTER, samples)
        };
        let is_negative = |op: &str, errno: &str| op == Op::Lookup.name() && errno == "ENOENT";
        let negative: u64 =
            self.failures.iter().filter(|f| is_negative(&f.op, &f.errno)).map(|failure| failure.calls).sum();
        [
            each("dliofs_read_bytes_total", "Bytes read by the applications.", &[Op::Read]),
            each("dliofs_written_bytes_total", "Bytes written or copied by them.", &[Op::Write, Op::CopyFileRange]),
            family(
                "dliofs_lookup_negative_total",
                "Look-ups of names that are not there.",
                Type::COUNTER,
                [counter(&[], negative as f64)],
            ),
        ]
    }

    fn per_operation(&self) -> [MetricFamily; 3] {
        let served = || {
            let tiers = self.operations.iter().flat_map(|line| line.tiers.iter().map(|served| (&*line.op, served)));
            tiers.map(|(op, (tier, figures))| ([("op", op), ("tier", &**tier)], figures))
        };
        let calls = served().map(|(labels, figures)| counter(&labels, figures.calls as f64));
        let failures = self
            .failures
            .iter()
            .map(|failure| counter(&[("op", &*failure.op), ("errno", &failure.errno)], failure.calls as f64));
        let timed = served().filter(|(_, figures)| figures.p50.is_some());
        [
            family("dliofs_ops_total", "Calls of the applications, as FUSE names them.", Type::COUNTER, calls),
            family("dliofs_op_errors_total", "Calls that failed.", Type::COUNTER, failures),
            family(
                "dliofs_op_duration_seconds",
                "From a request to its reply; a bound counts the shorter ones.",
                Type::HISTOGRAM,
                timed.map(|(labels, figures)| sample(&labels, |metric| metric.set_histogram(histogram(figures)))),
            ),
        ]
    }

    /// The machine resources that the daemon uses.
    fn process(&self) -> impl Iterator<Item = MetricFamily> {
        let daemon = &self.daemon;
        let cpu = daemon.cpu.map(|cpu| counter(&[], cpu.as_secs_f64()));
        let number = |n: Option<u64>| n.map(|n| gauge(&[], n as f64));
        [
            ("process_cpu_seconds_total", "Processor time, of the system too.", Type::COUNTER, cpu),
            ("process_resident_memory_bytes", "Memory in use.", Type::GAUGE, number(daemon.resident_bytes)),
            ("process_open_fds", "Descriptors in use.", Type::GAUGE, number(daemon.descriptors)),
            ("process_max_fds", "Descriptors it may have.", Type::GAUGE, number(daemon.descriptors_max)),
        ]
        .into_iter()
        .map(|(name, help, kind, sample)| family(name, help, kind, sample))
    }
}

fn family(name: &str, help: &str, kind: Type, samples: impl IntoIterator<Item = Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(samples.into_iter().collect());
    family
}

fn sample(labels: &[(&str, &str)], set: impl FnOnce(&mut Metric)) -> Metric {
    let labels = labels.iter().map(|(name, value)| {
        let mut label = LabelPair::default();
        label.set_name((*name).to_owned());
        label.set_value(harmless(value).into_owned());
        label
    });
    let mut metric = Metric::from_label(labels.collect());
    set(&mut metric);
    metric
}

fn gauge(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    sample(labels, |metric| metric.set_gauge(gauge))
}

fn counter(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value);
    sample(labels, |metric| metric.set_counter(counter))
}

/// Cumulative buckets; the last one, which has no bound, is the `+Inf` that the encoder adds.
fn histogram(figures: &Figures) -> Histogram {
    let calls = &figures.latency_log2_us;
    let buckets = BOUNDS.map(|power| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound((1u64 << power) as f64 / 1e6);
        bucket.set_cumulative_count(calls[..=power].iter().sum());
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(calls.iter().sum());
    histogram.set_sample_sum(figures.total.as_secs_f64());
    histogram
}

//! A snapshot as Prometheus reads it (text format 0.0.4). Pure, and the same figures as the text and the JSON have.
//!
//! The families are built from the snapshot each time instead of being registered once: the exact counters stay the only
//! ones. Units are seconds and bytes, counters end in `_total`, and nothing here names a path.

use std::collections::BTreeMap;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType as Type};

use super::counters::BUCKETS;
use super::render::{Figures, Snapshot};

/// Names with a value each: what has no labels.
type Plain = (&'static str, &'static str, f64);

impl Snapshot {
    /// The text of `.dlio/metrics`. Ends with a newline.
    pub fn metrics(&self) -> String {
        let mut families = vec![self.info()];
        families.extend(self.gauges().map(|(name, help, value)| family(name, help, Type::GAUGE, [gauge(&[], value)])));
        families.extend(self.times().into_iter().filter_map(|(name, help, value)| {
            // A time that is not known has no sample.
            Some(family(name, help, Type::GAUGE, [gauge(&[], value?.as_secs_f64())]))
        }));
        families.extend(self.counters().map(|(name, help, n)| family(name, help, Type::COUNTER, [counter(&[], n)])));
        families.extend(self.tiers());
        families.extend(self.per_operation());
        families.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new().encode_to_string(&families).expect("every family has a name and a sample")
    }

    fn info(&self) -> MetricFamily {
        let labels = [("version", self.version), ("io_path", self.io_path.name)];
        family("dlio_info", "Always 1; the labels say what runs.", Type::GAUGE, [gauge(&labels, 1.0)])
    }

    fn gauges(&self) -> impl Iterator<Item = Plain> {
        let Snapshot { safety, pipeline, log, cache, exceptions, slow_calls, files, .. } = self;
        let is = |yes: bool| f64::from(u8::from(yes));
        [
            ("dlio_safe", "1 if everything is on the slow tier.", is(safety.safe)),
            ("dlio_unsafe_files", "Files of which only the fast tier has the newest state.", safety.files as f64),
            ("dlio_unsafe_bytes", "Bytes of those files, pending to be copied.", safety.bytes as f64),
            ("dlio_pending_events", "Changes that the slow tier does not have yet.", pipeline.pending_events as f64),
            ("dlio_held", "1 while publishing stands still until somebody looks.", is(safety.held.is_some())),
            ("dlio_slow_tier_down", "1 while the slow tier does not answer.", is(safety.slow_down)),
            ("dlio_interrupted_files", "Files whose writer was cut off by a crash.", safety.interrupted as f64),
            ("dlio_drain_bytes_per_second", "Bytes copied to slow, lately.", pipeline.drain_bytes_per_s as f64),
            ("dlio_log_lsn", "The last number given to a record of the log.", log.lsn as f64),
            ("dlio_log_durable_lsn", "The last record that is durable on the fast tier.", log.durable_lsn as f64),
            ("dlio_log_applied_lsn", "The last record applied to the slow tier.", log.applied_lsn as f64),
            ("dlio_objects", "Objects on the fast tier.", cache.objects as f64),
            ("dlio_known_inodes", "Files and directories in memory.", cache.known_inodes as f64),
            ("dlio_open_files", "Files that are open.", cache.open_files as f64),
            ("dlio_struck_versions", "Versions struck by the last recovery.", exceptions.struck as f64),
            ("dlio_damaged_versions", "Versions the last recovery found damaged.", exceptions.damaged as f64),
            ("dlio_quarantined_objects", "Objects put aside by recoveries.", exceptions.quarantined as f64),
            ("dlio_slow_calls_waiting", "Operations that wait for the slow tier.", slow_calls.waiting as f64),
            ("dlio_counted_files", "Files told apart in the statistics.", files.files as f64),
            ("dlio_counted_files_bytes", "Memory that their records take, about.", files.bytes as f64),
        ]
        .into_iter()
    }

    fn times(&self) -> [(&'static str, &'static str, Option<std::time::Duration>); 3] {
        [
            ("dlio_mounted_seconds", "Since the mount was made.", Some(self.mounted_for)),
            ("dlio_oldest_pending_seconds", "Age of the oldest pending change.", self.safety.oldest),
            ("dlio_eta_seconds", "Until everything is on slow, at the recent rate.", self.safety.eta),
        ]
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let Snapshot { pipeline, exceptions, slow_calls, files, .. } = self;
        [
            ("dlio_published_events_total", "Changes applied to the slow tier.", pipeline.published_events),
            ("dlio_drained_files_total", "Versions copied to the slow tier.", pipeline.drained_files),
            ("dlio_drained_bytes_total", "Bytes copied to the slow tier.", pipeline.drained_bytes),
            ("dlio_evictions_total", "Clean objects deleted from the fast tier.", pipeline.evictions),
            ("dlio_batches_total", "Batches of more than one step.", exceptions.batches),
            ("dlio_late_snapshots_total", "Files published while open for writing.", exceptions.late_snapshots),
            ("dlio_in_place_writes_total", "Files written in place on slow.", exceptions.in_place_writes),
            ("dlio_conflicts_total", "Foreign changes met; both versions are kept.", exceptions.conflicts),
            ("dlio_spilled_files_total", "Files that did not fit on the fast tier.", exceptions.spilled),
            ("dlio_slow_calls_total", "Operations that went to the slow tier.", slow_calls.served),
            ("dlio_slow_calls_timed_out_total", "Answered EIO after slow_wait.", slow_calls.timed_out),
            ("dlio_slow_calls_refused_total", "Answered EIO: too many waited.", slow_calls.refused),
            ("dlio_uncounted_files_total", "Files met that are not told apart: memory is full.", files.unnamed),
        ]
        .into_iter()
    }

    fn tiers(&self) -> [MetricFamily; 3] {
        let each = |name, help, of: fn(&super::render::Tier) -> u64| {
            let tiers = [("fast", &self.fast), ("slow", &self.slow)];
            let samples = tiers.map(|(tier, figures)| gauge(&[("tier", tier)], of(figures) as f64));
            family(name, help, Type::GAUGE, samples)
        };
        [
            each("dlio_tier_size_bytes", "Size of a tier's file system.", |tier| tier.total),
            each("dlio_tier_used_bytes", "In use there, by anybody.", |tier| tier.used),
            each("dlio_tier_available_bytes", "Available there.", |tier| tier.available),
        ]
    }

    fn per_operation(&self) -> [MetricFamily; 4] {
        let served = || {
            let of = |op: &'static str, tiers: &'_ BTreeMap<&'static str, Figures>| {
                tiers.iter().map(|(tier, figures)| ([("op", op), ("tier", *tier)], figures.clone())).collect::<Vec<_>>()
            };
            self.operations.iter().flat_map(move |line| of(line.op, &line.tiers))
        };
        let each = |name, help, of: fn(&Figures) -> u64| {
            family(name, help, Type::COUNTER, served().map(|(labels, figures)| counter(&labels, of(&figures))))
        };
        let failures = self
            .failures
            .iter()
            .map(|failure| counter(&[("op", failure.op), ("errno", &failure.errno)], failure.calls));
        let timed = served().filter(|(_, figures)| figures.p50.is_some());
        [
            each("dlio_operations_total", "Calls of the applications, as FUSE names them.", |figures| figures.calls),
            family("dlio_operation_errors_total", "Calls that failed.", Type::COUNTER, failures),
            each("dlio_operation_bytes_total", "Bytes read, written or copied by them.", |figures| figures.bytes),
            family(
                "dlio_operation_duration_seconds",
                "From a request to its reply; a bound counts the shorter ones.",
                Type::HISTOGRAM,
                timed.map(|(labels, figures)| sample(&labels, |metric| metric.set_histogram(histogram(&figures)))),
            ),
        ]
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
        label.set_value((*value).to_owned());
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

fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    sample(labels, |metric| metric.set_counter(counter))
}

/// The buckets of `latency_log2_us`, cumulative; the last one, which has no bound, is the `+Inf` that the encoder adds.
fn histogram(figures: &Figures) -> Histogram {
    let mut sum = 0;
    let buckets = figures.latency_log2_us[..BUCKETS - 1].iter().enumerate().map(|(i, count)| {
        sum += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound((1u64 << i) as f64 / 1e6);
        bucket.set_cumulative_count(sum);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(figures.latency_log2_us.iter().sum());
    histogram.set_sample_sum(figures.total.as_secs_f64());
    histogram
}

//! A recorder of the `metrics` facade: it holds counters, gauges and histograms, and writes them in Prometheus' text
//! format 0.0.4.
//!
//! A handle of the facade cannot be read. [`Count`] and [`Latency`] are the cells behind the handles: whoever also reads
//! a figure keeps its cell, so that the statistics and the scrape have the same number. A recorder belongs to a mount,
//! not to the process, which may have several.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, SharedString, Unit};
use parking_lot::Mutex;

use super::counters::{Count, Latency, by_powers_of_two};
use crate::path::harmless;

/// The exported bounds of durations, as powers of two of a microsecond: 8 us to 134 s. They are a subset of the
/// counters' bounds, so that each bucket is exact. Not all of them: each is a series for every operation and tier.
const BOUNDS: std::ops::RangeInclusive<usize> = 3..=27;

/// Names and values of labels.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct MetricsRecorder {
    counters: Families<Count>,
    /// The bits of an `f64`.
    gauges: Families<Arc<AtomicU64>>,
    histograms: Families<Arc<Latency>>,
}

/// All metrics of a type, by name.
#[derive(Debug, Default)]
struct Families<T>(Mutex<BTreeMap<String, Family<T>>>);

#[derive(Debug, Default)]
struct Family<T> {
    help: SharedString,
    unit: Option<Unit>,
    /// By their labels, as the text has them.
    cells: BTreeMap<String, T>,
}

/// The key of a series.
pub fn key(name: &'static str, labels: Labels<'_>) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

impl MetricsRecorder {
    /// The cell of a counter. Registers it if it is new.
    pub fn count(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Count {
        self.counters.describe(name.into(), None, help.into());
        self.counters.cell(&key(name, labels))
    }

    /// The cell of a histogram. Registers it if it is new.
    pub fn latency(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Arc<Latency> {
        self.histograms.describe(name.into(), None, help.into());
        self.histograms.cell(&key(name, labels))
    }

    /// All counters, gauges, and histograms that have recorded something. Each line ends with a newline.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        self.write(&mut out).expect("formatting into memory");
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        self.counters.write(out, "counter", |out, name, labels, unit, count| match unit {
            Some(Unit::Nanoseconds) => sample(out, name, labels, Duration::from_nanos(count.get()).as_secs_f64()),
            _ => sample(out, name, labels, count.get()),
        })?;
        self.gauges.write(out, "gauge", |out, name, labels, _, bits| {
            sample(out, name, labels, f64::from_bits(bits.load(Relaxed)))
        })?;
        self.histograms.write(out, "histogram", |out, name, labels, _, latency| {
            let (buckets, total) = latency.figures();
            let calls = by_powers_of_two(&buckets);
            if calls.iter().all(|calls| *calls == 0) {
                return Ok(());
            }
            let comma = if labels.is_empty() { "" } else { "," };
            let mut bucket = |bound: &dyn fmt::Display, calls: &[u64]| {
                writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {}", calls.iter().sum::<u64>())
            };
            for power in BOUNDS {
                bucket(&((1u64 << power) as f64 / 1e6), &calls[..=power])?;
            }
            bucket(&"+Inf", &calls)?;
            sample(out, &format!("{name}_sum"), labels, total.as_secs_f64())?;
            sample(out, &format!("{name}_count"), labels, calls.iter().sum::<u64>())
        })
    }
}

fn sample(out: &mut String, name: &str, labels: &str, value: impl fmt::Display) -> fmt::Result {
    let (open, close) = if labels.is_empty() { ("", "") } else { ("{", "}") };
    writeln!(out, "{name}{open}{labels}{close} {value}")
}

impl<T: Clone + Default> Families<T> {
    fn describe(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        let mut families = self.0.lock();
        let family = families.entry(name.as_str().to_owned()).or_default();
        (family.help, family.unit) = (help, unit);
    }

    fn cell(&self, key: &Key) -> T {
        let escaped = |value| harmless(value).replace('\\', "\\\\").replace('"', "\\\"");
        let labels = key.labels().map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value())));
        let labels = labels.collect::<Vec<_>>().join(",");
        self.0.lock().entry(key.name().to_owned()).or_default().cells.entry(labels).or_default().clone()
    }

    fn write(
        &self,
        out: &mut String,
        kind: &str,
        series: impl Fn(&mut String, &str, &str, Option<Unit>, &T) -> fmt::Result,
    ) -> fmt::Result {
        for (name, Family { help, unit, cells }) in &*self.0.lock() {
            let mut samples = String::new();
            cells.iter().try_for_each(|(labels, cell)| series(&mut samples, name, labels, *unit, cell))?;
            if !samples.is_empty() {
                write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}")?;
            }
        }
        Ok(())
    }
}

impl metrics::Recorder for MetricsRecorder {
    /// A counter of [`Unit::Nanoseconds`] is written in seconds.
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.counters.describe(name, unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.gauges.describe(name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.histograms.describe(name, unit, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.counters.cell(key).into()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.gauges.cell(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.histograms.cell(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::{Level, Recorder as _};

    const ANY: Metadata<'_> = Metadata::new("test", Level::INFO, None);

    #[test]
    fn what_the_handles_are_given_is_read_from_their_cells_and_written() {
        let recorder = MetricsRecorder::default();
        let files = recorder.count("files_total", "Files.", &[]);
        recorder.register_counter(&key("files_total", &[]), &ANY).increment(2);
        files.increment(1);
        assert_eq!(files.get(), 3);

        recorder.describe_counter("cpu_seconds_total".into(), Some(Unit::Nanoseconds), "Time.".into());
        let cpu = recorder.register_counter(&key("cpu_seconds_total", &[]), &ANY);
        [1_500_000_000, 7].into_iter().for_each(|nanos| cpu.absolute(nanos));

        recorder.describe_gauge("level".into(), None, "A level.".into());
        for (disk, level) in [("b", 0.5), ("a\"\\", 3.0)] {
            recorder.register_gauge(&key("level", &[("disk", disk), ("kind", "x")]), &ANY).set(level);
        }
        let text = "\
            # HELP cpu_seconds_total Time.\n# TYPE cpu_seconds_total counter\ncpu_seconds_total 1.5\n\
            # HELP files_total Files.\n# TYPE files_total counter\nfiles_total 3\n\
            # HELP level A level.\n# TYPE level gauge\n\
            level{disk=\"a\\\"\\\\\",kind=\"x\"} 3\nlevel{disk=\"b\",kind=\"x\"} 0.5\n";
        assert_eq!(recorder.text(), text);
    }

    /// What a histogram of single calls would lose.
    #[test]
    fn a_histogram_has_cumulative_buckets_and_the_exact_sum() {
        let recorder = MetricsRecorder::default();
        let labels: Labels<'_> = &[("op", "read"), ("tier", "fast")];
        let latency = recorder.latency("took_seconds", "How long.", labels);
        assert_eq!(recorder.text(), "", "nothing was recorded");
        let histogram = recorder.register_histogram(&key("took_seconds", labels), &ANY);
        histogram.record(Duration::from_micros(100));
        histogram.record_many(200.0, 2);
        assert_eq!(latency.figures().1, Duration::from_micros(400_000_100));
        recorder.latency("plain_seconds", "How long.", &[]);
        recorder.register_histogram(&key("plain_seconds", &[]), &ANY).record(1.0);
        let text = recorder.text();
        for line in [
            "# TYPE took_seconds histogram",
            r#"took_seconds_bucket{op="read",tier="fast",le="0.000064"} 0"#,
            r#"took_seconds_bucket{op="read",tier="fast",le="0.000128"} 1"#,
            r#"took_seconds_bucket{op="read",tier="fast",le="134.217728"} 1"#,
            r#"took_seconds_bucket{op="read",tier="fast",le="+Inf"} 3"#,
            r#"took_seconds_sum{op="read",tier="fast"} 400.0001"#,
            r#"took_seconds_count{op="read",tier="fast"} 3"#,
            r#"plain_seconds_bucket{le="1.048576"} 1"#,
            "plain_seconds_sum 1",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
    }
}

//! Whether the disks are as fast as asked for: measured on themselves, before each use.
//!
//! Written in pieces of 1 MiB past the page cache, so that only the disk counts, with an fsync after each pass over the file; read
//! in pieces of 1 MiB through the page cache, as training reads, and dropped from it again (`POSIX_FADV_DONTNEED`); small reads are of
//! 4 KiB, each at another place of the same file, cold, by four readers.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

use super::{Device, MB, Speed, Testbed};
use crate::signals::Signals;

/// Not counted: after a pause the kernel lets the first tenth of a second or two go by.
const SETTLE: Duration = Duration::from_millis(500);
const MEASURE: Duration = Duration::from_millis(2500);
/// Of small reads, which the throttle lets through in portions of a tenth of a second: one more or less is 2 %.
const MEASURE_SMALL: Duration = Duration::from_secs(5);
/// How far from the figure asked for a disk may be.
const TOLERANCE: f64 = 0.05;
const PIECE: usize = 1 << 20;
const SMALL: usize = 4096;

/// What was asked for and measured, of each disk.
#[derive(Clone, Debug)]
pub(crate) struct Baseline(Vec<Row>);

#[derive(Clone, Debug)]
struct Row {
    device: Device,
    figures: [Figure; 3],
}

#[derive(Clone, Copy, Debug)]
struct Figure {
    name: &'static str,
    asked: Option<u64>,
    measured: f64,
}

impl Figure {
    fn is_off(&self) -> bool {
        self.asked.is_some_and(|asked| {
            let close = (self.measured / asked as f64 - 1.0).abs() <= TOLERANCE;
            !close
        })
    }
}

impl Testbed {
    /// Measures all three: twenty to thirty seconds.
    pub(crate) fn baseline(&self, signals: &Signals) -> Result<Baseline> {
        eprintln!("measuring them");
        Baseline::measure(self, signals)
    }
}

impl Baseline {
    fn measure(testbed: &Testbed, signals: &Signals) -> Result<Self> {
        let row = |device: Device| {
            let speed = testbed.spec.speed(device);
            let figures = measure(&testbed.dir(device), testbed.spec.size, speed, signals);
            let [read, write, reads] = figures.with_context(|| format!("cannot measure {device}"))?;
            let figures = [
                Figure { name: "read MB/s", asked: Some(speed.read), measured: read },
                Figure { name: "write MB/s", asked: Some(speed.write), measured: write },
                Figure { name: "small reads/s", asked: speed.reads, measured: reads },
            ];
            Ok(Row { device, figures })
        };
        Device::ALL.into_iter().map(row).collect::<Result<_>>().map(Baseline)
    }

    /// Whether all disks are as fast as asked for.
    pub(crate) fn holds(&self) -> bool {
        !self.0.iter().flat_map(|row| row.figures).any(|figure| figure.is_off())
    }

    /// For each disk `read_mb_per_s`, `write_mb_per_s` and `small_reads_per_s`.
    pub(crate) fn json(&self) -> Value {
        let figure = |figure: &Figure| {
            let key = figure.name.to_lowercase().replace(' ', "_").replace('/', "_per_");
            (key, json!({ "asked": figure.asked, "measured": figure.measured, "off": figure.is_off() }))
        };
        let row = |row: &Row| (row.device.to_string(), row.figures.iter().map(figure).collect());
        Value::Object(self.0.iter().map(row).collect())
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return Ok(()) };
        write!(f, "{:<7}", "disk")?;
        first.figures.iter().try_for_each(|figure| write!(f, "{:>22}", figure.name))?;
        write!(f, "\n{:<7}", "")?;
        first.figures.iter().try_for_each(|_| write!(f, "{:>10}{:>12}", "asked", "measured"))?;
        for row in &self.0 {
            write!(f, "\n{:<7}", row.device)?;
            for figure in row.figures {
                let asked = figure.asked.map_or("-".to_owned(), |asked| asked.to_string());
                let mark = if figure.is_off() { " off" } else { "" };
                write!(f, "{asked:>10}{:>8.0}{mark:<4}", figure.measured)?;
            }
        }
        writeln!(f)
    }
}

/// MB read and written a second, and small reads.
fn measure(dir: &Path, size: u64, speed: Speed, signals: &Signals) -> Result<[f64; 3]> {
    let path = dir.join("baseline");
    let direct = File::options().write(true).create_new(true).custom_flags(OFlag::O_DIRECT.bits()).open(&path)?;
    let cached = File::open(&path)?;
    // Whatever happens, the directory is handed over empty.
    fs::remove_file(&path)?;
    let pieces = (2 * speed.write * MB).min(size / 4) / PIECE as u64;
    let written = write(&direct, pieces, signals).context("while writing")?;
    let read = read(&cached, pieces, signals).context("while reading")?;
    let small = small_reads(&cached, pieces, signals).context("while reading at random")?;
    Ok([read / MB as f64, written / MB as f64, small])
}

/// Bytes a second. The file is whole when this returns.
fn write(file: &File, pieces: u64, signals: &Signals) -> Result<f64> {
    // Direct I/O takes memory at whole blocks only.
    let mut memory = vec![0; PIECE + SMALL];
    let start = memory.as_ptr().align_offset(SMALL);
    let bytes = memory.get_mut(start..start + PIECE).context("no aligned memory")?;
    rand::rng().fill(bytes);
    let mut places = (0..pieces).cycle();
    rate(signals, MEASURE, pieces, || {
        let piece = places.next().context("no room for the baseline's file")?;
        file.write_all_at(bytes, piece * PIECE as u64)?;
        if piece + 1 == pieces {
            file.sync_all()?;
        }
        Ok(PIECE as u64)
    })
}

/// Bytes a second.
fn read(mut file: &File, pieces: u64, signals: &Signals) -> Result<f64> {
    let mut bytes = vec![0; PIECE];
    let mut places = (0..pieces).cycle();
    rate(signals, MEASURE, 0, || {
        let piece = places.next().context("no room for the baseline's file")?;
        if piece == 0 {
            file.rewind()?;
        }
        file.read_exact(&mut bytes)?;
        // All that was read so far, each time: what was read a moment ago may stay at the first.
        let so_far = i64::try_from((piece + 1) * PIECE as u64)?;
        posix_fadvise(file, 0, if piece + 1 < pieces { so_far } else { 0 }, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        Ok(PIECE as u64)
    })
}

/// Reads a second, of a few readers: one alone would be told how long a read takes.
fn small_reads(file: &File, pieces: u64, signals: &Signals) -> Result<f64> {
    const READERS: usize = 4;
    // Else the kernel would read what lies around as well.
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM)?;
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let mut blocks: Vec<u64> = (0..pieces * (PIECE / SMALL) as u64).collect();
    blocks.shuffle(&mut rand::rng());
    let (blocks, next) = (&blocks, &AtomicUsize::new(0));
    let reader = || {
        let mut bytes = [0; SMALL];
        rate(signals, MEASURE_SMALL, 0, || {
            let count = next.fetch_add(1, Ordering::Relaxed) % blocks.len();
            if count + 1 == blocks.len() {
                posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
            }
            file.read_exact_at(&mut bytes, blocks[count] * SMALL as u64)?;
            Ok(1)
        })
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().map(|reader| reader.join().unwrap_or_else(|_| bail!("panicked"))).sum()
    })
}

/// How much `step` does in a second, of what it returns. Takes at least `least` steps.
fn rate(signals: &Signals, time: Duration, least: u64, mut step: impl FnMut() -> Result<u64>) -> Result<f64> {
    let mut steps = 0;
    let mut during = |time: Duration, least: u64| {
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < time || steps < least {
            signals.check()?;
            done += step()?;
            steps += 1;
        }
        anyhow::Ok(done as f64 / began.elapsed().as_secs_f64())
    };
    during(SETTLE, 0)?;
    during(time, least)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn baseline(read: f64) -> Baseline {
        let figures = [
            Figure { name: "read MB/s", asked: Some(163), measured: read },
            Figure { name: "write MB/s", asked: Some(133), measured: 133.4 },
            Figure { name: "small reads/s", asked: None, measured: 9876.5 },
        ];
        Baseline(vec![Row { device: Device::Hdd, figures }])
    }

    #[test]
    fn one_figure_that_is_off_is_marked_and_counts() {
        let (right, off) = (baseline(160.0), baseline(120.0));
        assert!(right.holds() && !off.holds());
        let expected = "\
disk                read MB/s            write MB/s         small reads/s
            asked    measured     asked    measured     asked    measured
hdd           163     120 off       133     133             -    9876    \n";
        let table = off.to_string();
        assert_eq!(
            table.lines().map(str::trim_end).collect::<Vec<_>>(),
            expected.lines().map(str::trim_end).collect::<Vec<_>>()
        );
        assert!(!right.to_string().contains("off"));
    }

    #[test]
    fn five_percent_to_either_side_are_allowed_and_what_was_not_asked_for_is_never_off() {
        let is_off = |asked, measured| Figure { name: "", asked, measured }.is_off();
        assert!(!is_off(Some(100), 95.1) && !is_off(Some(100), 104.9));
        assert!(is_off(Some(100), 94.0) && is_off(Some(100), 106.0) && is_off(Some(100), f64::NAN));
        assert!(!is_off(None, 0.0));
    }

    #[test]
    fn the_figures_are_there_as_json() {
        let json = baseline(120.0).json();
        assert_eq!(json["hdd"]["read_mb_per_s"], json!({ "asked": 163, "measured": 120.0, "off": true }));
        assert_eq!(json["hdd"]["small_reads_per_s"]["asked"], Value::Null);
    }
}

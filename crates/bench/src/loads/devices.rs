//! The traffic of block devices over time, from `/proc/diskstats`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlio_fs::error::{Context, Result};

use super::results::Course;

/// The unit of the kernel's counters, whatever the device's own sector size is.
const SECTOR: u64 = 512;

/// A tier's device, by its name in `/proc/diskstats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) tier: String,
    pub(crate) name: String,
}

/// The devices of both tiers, each once.
pub(crate) fn of_tiers(fast: Option<&str>, slow: Option<&str>) -> Vec<Device> {
    let device = |tier: &str, name: &str| Device { tier: tier.to_owned(), name: name.to_owned() };
    match (fast, slow) {
        (Some(one), Some(other)) if one == other => vec![device("fast and slow", one)],
        _ => {
            [("slow", slow), ("fast", fast)].into_iter().filter_map(|(tier, name)| Some(device(tier, name?))).collect()
        }
    }
}

/// The block device behind a mounted file system: by the mounted source (btrfs has no number of its own there), else by
/// the device number. `None` if there is none.
pub(crate) fn behind(source: &Path, number: &str) -> Option<String> {
    let known = counters().ok()?;
    let name = |path: &Path| {
        let path = path.canonicalize().ok()?;
        let name = path.file_name()?.to_str()?.to_owned();
        known.contains_key(&name).then_some(name)
    };
    let by_source = if source.is_absolute() { name(source) } else { None };
    by_source.or_else(|| name(&Path::new("/sys/dev/block").join(number)))
}

/// Bytes read and written since the device appeared, by device.
fn counters() -> io::Result<BTreeMap<String, (u64, u64)>> {
    let bytes = |sectors: u64| sectors.wrapping_mul(SECTOR);
    let all = procfs::diskstats().map_err(io::Error::other)?.into_iter();
    Ok(all.map(|one| (one.name, (bytes(one.sectors_read), bytes(one.sectors_written)))).collect())
}

/// A moment, in seconds, and the bytes moved before it.
type Sample = (f64, f64, f64);

/// All samples of each device.
type Looks = Vec<(Device, Vec<Sample>)>;

fn sample(all: &mut Looks, begun: Instant) -> Result<()> {
    let counted = counters().at("read", "/proc/diskstats")?;
    let now = begun.elapsed().as_secs_f64();
    for (device, samples) in all {
        // A device that was removed moves nothing any more.
        let last = samples.last().map_or((0.0, 0.0), |last: &Sample| (last.1, last.2));
        let (read, written) = counted.get(&device.name).map_or(last, |(read, written)| (*read as f64, *written as f64));
        samples.push((now, read, written));
    }
    Ok(())
}

/// Samples devices repeatedly, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Sampler {
    begun: Instant,
    every: Duration,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<Looks>>>,
    marks: parking_lot::Mutex<Vec<(f64, String)>>,
}

impl Sampler {
    /// Starts; the first sample is taken before it returns. `every`: the interval of the figures.
    pub(crate) fn start(devices: &[Device], every: Duration) -> Result<Sampler> {
        let (stop, stopped) = mpsc::channel::<()>();
        let begun = Instant::now();
        let mut all: Vec<_> = devices.iter().map(|device| (device.clone(), Vec::new())).collect();
        sample(&mut all, begun)?;
        let thread = std::thread::spawn(move || {
            for number in 1.. {
                let next = (begun + every * number).saturating_duration_since(Instant::now());
                let ended = stopped.recv_timeout(next) != Err(RecvTimeoutError::Timeout);
                // The last sample includes what has just been written.
                sample(&mut all, begun)?;
                if ended {
                    break;
                }
            }
            Ok(all)
        });
        Ok(Sampler { begun, every, stop: Some(stop), thread: Some(thread), marks: Default::default() })
    }

    /// Notes a moment.
    pub(crate) fn mark(&self, text: String) {
        self.marks.lock().push((self.begun.elapsed().as_secs_f64(), text));
    }

    /// Ends, and returns the courses; `place` is what was measured meanwhile.
    pub(crate) fn end(mut self, place: &str) -> Result<Vec<Course>> {
        self.stop = None;
        let Some(sampled) = self.thread.take().and_then(|thread| thread.join().ok()) else { return Ok(Vec::new()) };
        let (every, marks) = (self.every.as_secs_f64(), std::mem::take(&mut *self.marks.lock()));
        let course = |(device, samples): (Device, Vec<Sample>)| Course {
            tier: device.tier,
            device: device.name,
            place: place.to_owned(),
            every,
            read: rates(&samples, every, |sample| sample.1),
            written: rates(&samples, every, |sample| sample.2),
            marks: marks.clone(),
        };
        Ok(sampled?.into_iter().map(course).collect())
    }
}

/// Figures per second on an even grid, from counters sampled at slightly uneven moments. Their sum is what was counted:
/// the last one covers less than its interval.
fn rates(samples: &[Sample], every: f64, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Vec::new() };
    let at = |moment: f64| {
        let after = samples.partition_point(|sample| sample.0 < moment).clamp(1, samples.len().max(2) - 1);
        let (Some(a), Some(b)) = (samples.get(after - 1), samples.get(after)) else { return of(last) };
        let part = ((moment - a.0) / (b.0 - a.0).max(1e-9)).clamp(0.0, 1.0);
        of(a) + (of(b) - of(a)) * part
    };
    let spans = ((last.0 - first.0) / every - 1e-6).ceil().max(0.0) as usize;
    let moment = |n: usize| first.0 + n as f64 * every;
    (0..spans).map(|n| (at(moment(n + 1)) - at(moment(n))).max(0.0) / every).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_of_both_devices_is_told_once() {
        assert_eq!(of_tiers(Some("vda"), Some("vda")), [Device { tier: "fast and slow".into(), name: "vda".into() }]);
        assert_eq!(of_tiers(Some("loop0"), None).len(), 1);
        assert_eq!(of_tiers(Some("a"), Some("b")).len(), 2);
        assert!(of_tiers(None, None).is_empty());
    }

    /// 100 bytes a second, with some late samples: nothing is lost and nothing made up.
    #[test]
    fn rates_are_even_though_the_looks_are_not() {
        let looks = [0.0, 0.1, 0.25, 0.3, 0.4, 0.51];
        let samples: Vec<Sample> = looks.iter().map(|at| (*at, 1000.0 + at * 100.0, 0.0)).collect();
        let rates = rates(&samples, 0.1, |sample| sample.1);
        assert_eq!(rates.len(), 6);
        assert!(rates[..5].iter().all(|rate| (rate - 100.0).abs() < 1e-6), "{rates:?}");
        assert!((rates.iter().sum::<f64>() * 0.1 - 51.0).abs() < 1e-6, "{rates:?}");
        assert!(super::rates(&samples[..1], 0.1, |sample| sample.1).is_empty());
        assert!(super::rates(&[], 0.1, |sample| sample.1).is_empty());
    }

    #[test]
    fn what_is_no_device_has_none() {
        assert_eq!(behind(Path::new("server:/export"), "0:50"), None);
        assert_eq!(behind(Path::new("tmpfs"), "0:51"), None);
    }

    #[test]
    fn devices_are_looked_at_until_the_end() {
        let device = Device { tier: "slow".into(), name: "no-such-device".into() };
        let sampler = Sampler::start(&[device], Duration::from_millis(5)).expect("started");
        sampler.mark("begins".into());
        std::thread::sleep(Duration::from_millis(40));
        let courses = sampler.end("slow").expect("sampled");
        assert!(courses[0].read.len() >= 2 && courses[0].written.iter().all(|rate| *rate == 0.0), "{courses:?}");
        assert_eq!(courses[0].marks.len(), 1);
    }
}

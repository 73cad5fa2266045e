//! An epoch as MLPerf Storage measures training: accelerators that read batches and sleep for as long as a real one would
//! compute, and how busy they are. (DLIO shape, scaled: not an MLPerf result.)
//!
//! The accelerators are the H100 of github.com/mlcommons/storage v1.0, `configs/dlio/workload/unet3d_h100.yaml` and
//! `resnet50_h100.yaml`: 0.323 s for 7 samples of 146,600,628 bytes, and 0.224 s for 400 samples of 114,660 bytes. A smaller
//! sample takes less time in proportion, so that an accelerator reads as many bytes a second as there. What differs: the
//! data sets are smaller, the samples of one are all of the same size, each is a file (there 1251 of resnet50's are in one),
//! a step takes fewer of them, and all accelerators go on to the next step together and share the readers.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;

use super::StopFlag;
use super::data::{Data, numbered};
use super::reader::{Load, Pace, Pass};
use super::sequential;

/// The utilisation that MLPerf Storage asks for.
const UTILISATION: f64 = 0.9;
/// As many as MLPerf Storage has for unet3d.
const READERS: usize = 4;
/// Batches that they prepare while a step computes: two for each, as a DataLoader does.
const AHEAD: usize = 2 * READERS;
/// An epoch has so many steps at least.
pub(crate) const STEPS_MIN: usize = 4;
/// A sleep is not finer.
const STEP_MIN: Duration = Duration::from_millis(1);
const PIECE: usize = 1 << 20;

/// A simulated accelerator and the model that it trains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accelerator {
    pub(crate) model: &'static str,
    /// Samples of one step.
    pub(crate) batch: usize,
    /// Bytes that it reads in a second when it never waits.
    rate: f64,
}

impl Accelerator {
    /// Bytes of a sample that it computes on for long enough to be simulated.
    pub(crate) fn sample_min(&self) -> u64 {
        (STEP_MIN.as_secs_f64() * self.rate / self.batch as f64).ceil() as u64
    }
}

pub(crate) const UNET3D: Accelerator =
    Accelerator { model: "unet3d-like", batch: 1, rate: 7.0 * 146_600_628.0 / 0.323 };
pub(crate) const RESNET: Accelerator = Accelerator { model: "resnet-like", batch: 8, rate: 400.0 * 114_660.0 / 0.224 };

/// The samples of an epoch, each a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochData {
    pub(crate) accelerator: Accelerator,
    pub(crate) samples: usize,
    /// Bytes of one.
    pub(crate) size: u64,
}

impl EpochData {
    pub(crate) fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.samples as u64)
    }

    /// Reads all as fast as it goes.
    pub(crate) fn unthrottled(&self) -> Load {
        Load { threads: READERS, decode: false, pace: Pace::Free }
    }

    /// How many accelerators a place that gives so many bytes a second keeps busy for 90 % of the time.
    pub(crate) fn fed(&self, rate: f64) -> f64 {
        rate / (UTILISATION * self.accelerator.rate)
    }

    /// How many of them are simulated: whole ones, at least one, and no more than have the fewest steps.
    pub(crate) fn simulated(&self, fed: f64) -> usize {
        let most = self.samples / (self.accelerator.batch * STEPS_MIN);
        (fed as usize).clamp(1, most.max(1))
    }

    /// So many accelerators at work.
    pub(crate) fn training(&self, accelerators: usize) -> Load {
        let pace = Pace::Steps { batch: self.accelerator.batch * accelerators, compute: self.compute(), ahead: AHEAD };
        Load { threads: READERS, decode: false, pace }
    }

    /// How long each of them computes in a step.
    fn compute(&self) -> Duration {
        Duration::from_secs_f64(self.accelerator.batch as f64 * self.size as f64 / self.accelerator.rate)
    }

    /// The utilisation in percent: computing time divided by total time. As in MLPerf Storage the time begins when the
    /// first batch is there.
    pub(crate) fn utilisation(&self, pass: &Pass) -> f64 {
        100.0 * self.compute().as_secs_f64() * pass.steps as f64 / (pass.seconds - pass.first)
    }

    /// Writes the samples below `dir`; returns their paths from there.
    pub(crate) fn write(&self, dir: &Path, data: &mut Data, stop: &StopFlag) -> Result<Vec<PathBuf>> {
        let model = Path::new(self.accelerator.model);
        fs::create_dir_all(dir.join(model)).at("mkdir", dir.shown())?;
        let paths: Vec<_> = (0..self.samples).map(|number| numbered(model, number)).collect();
        for path in &paths {
            sequential::write(&dir.join(path), self.size, PIECE, false, data, stop)?;
        }
        Ok(paths)
    }

    /// Its own among the paths of several.
    pub(crate) fn own(&self, dir: &Path, paths: &[PathBuf]) -> Vec<PathBuf> {
        let own = paths.iter().filter(|path| path.starts_with(self.accelerator.model));
        own.map(|path| dir.join(path)).collect()
    }
}

/// Bytes to write samples of.
pub(crate) fn data() -> Data {
    Data::new(PIECE)
}

#[cfg(test)]
mod tests {
    use super::super::reader::pass;
    use super::*;

    const FEW: EpochData = EpochData { accelerator: RESNET, samples: 64, size: 1000 };

    #[test]
    fn accelerators_are_fed_by_bytes() {
        // An H100 reads 3.18 and 0.205 GB/s.
        let unet = EpochData { accelerator: UNET3D, samples: 64, size: 8_000_000 };
        let found = [unet.fed(3177e6), FEW.fed(204.75e6)];
        assert!(found.iter().all(|fed| (fed - 1.0 / 0.9).abs() < 0.001), "{found:?}");
        assert_eq!([0.05, 1.9, 2.0, 40.0].map(|fed| unet.simulated(fed)), [1, 1, 2, 16], "of 64 steps 4 are left");
        assert_eq!(UNET3D.sample_min(), 3_177_104);
        assert!(EpochData { size: UNET3D.sample_min(), ..unet }.compute() >= STEP_MIN);
        assert_eq!(FEW.simulated(3.0), 2, "a step takes 8 for each");
        assert_eq!(EpochData { samples: 1, ..unet }.simulated(3.0), 1);
    }

    #[test]
    fn utilisation_is_the_time_of_computing_after_the_first_batch() {
        let step = FEW.compute().as_secs_f64();
        let pass = Pass { seconds: 20.0 * step, first: 4.0 * step, bytes: 0, steps: 8 };
        assert!((FEW.utilisation(&pass) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn an_epoch_is_read_at_any_number_of_accelerators() {
        let (dir, stop) = (tempfile::tempdir().expect("a directory"), StopFlag::default());
        let other = EpochData { accelerator: UNET3D, samples: 4, size: 2_000_000 };
        let mut paths = FEW.write(dir.path(), &mut data(), &stop).expect("written");
        paths.extend(other.write(dir.path(), &mut data(), &stop).expect("written"));
        for (of, accelerators, steps) in [(FEW, 1, 8), (FEW, 3, 2), (other, 1, 4)] {
            let own = of.own(dir.path(), &paths);
            assert_eq!(own.len(), of.samples);
            assert_eq!(pass(&own, of.unthrottled(), &stop).expect("read").bytes, of.bytes());
            let done = pass(&own, of.training(accelerators), &stop).expect("read");
            assert_eq!(done.steps, steps);
            assert!((0.0..=100.0).contains(&of.utilisation(&done)), "a sleep is never too short");
        }
    }
}

//! What a process takes of the machine while a place is measured: time of processors, and memory, as `/proc` tells them.

use std::fs;

use dlio_fs::cli::outcome::Failure;
use dlio_fs::cli::sandbox::Mount;
use dlio_fs::error::{Context, Result};
use procfs::process::Process;

/// The time of processors that some processes take, from a moment on.
pub(super) struct ProcessorTime {
    processes: Vec<Process>,
    /// Of processors, taken before.
    ticks: u64,
}

impl ProcessorTime {
    pub(super) fn begin(pids: impl IntoIterator<Item = u32>) -> Result<ProcessorTime> {
        let processes: Vec<Process> = pids.into_iter().map(process).collect::<Result<_>>()?;
        Ok(ProcessorTime { ticks: ticks(&processes)?, processes })
    }

    pub(super) fn seconds(&self) -> Result<f64> {
        Ok((ticks(&self.processes)? - self.ticks) as f64 / procfs::ticks_per_second() as f64)
    }
}

/// What a mount's daemon takes, from a moment on.
pub(super) struct DaemonCost {
    time: ProcessorTime,
    process: Process,
}

impl DaemonCost {
    pub(super) fn begin(mount: &Mount) -> std::result::Result<DaemonCost, Failure> {
        let pid = mount.daemon()?.pid;
        // Its peak begins anew (proc_pid_clear_refs(5)).
        let refs = format!("/proc/{pid}/clear_refs");
        fs::write(&refs, "5").at("write to", refs)?;
        Ok(DaemonCost { time: ProcessorTime::begin([pid])?, process: process(pid)? })
    }

    /// Of processors.
    pub(super) fn seconds(&self) -> Result<f64> {
        self.time.seconds()
    }

    /// Bytes of memory at most: its own and that of files it has mapped.
    pub(super) fn peak(&self) -> Result<u64> {
        let what = || format!("/proc/{}/status", self.process.pid());
        let status = self.process.status().map_err(std::io::Error::other).at("read", what())?;
        Ok(status.vmhwm.unwrap_or(0) * 1024)
    }
}

fn process(pid: u32) -> Result<Process> {
    Process::new(pid.cast_signed()).map_err(std::io::Error::other).at("look at", format!("process {pid}"))
}

fn ticks(processes: &[Process]) -> Result<u64> {
    let ticks = |process: &Process| {
        let what = || format!("/proc/{}/stat", process.pid());
        let stat = process.stat().map_err(std::io::Error::other).at("read", what())?;
        Ok(stat.utime + stat.stime)
    };
    processes.iter().map(ticks).sum()
}

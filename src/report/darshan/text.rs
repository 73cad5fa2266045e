//! The same numbers as the text that `darshan-parser` prints for a log. Pure.

use std::io::{self, Write};

use super::heat::{self, Heat};
use super::job::{DarshanJob, FS_TYPE};
use super::layout::{DarshanLog, HEADER, Module, VERSION};
use super::posix::{Posix, RENAMED_FROM};

/// Everything before the records.
pub(super) fn head(job: &DarshanJob, log: &DarshanLog, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "# darshan log version: {VERSION}")?;
    writeln!(out, "# compression method: ZLIB")?;
    writeln!(out, "# exe: {}", job.command)?;
    writeln!(out, "# uid: {}", job.uid)?;
    writeln!(out, "# jobid: 0")?;
    writeln!(out, "# start_time: {}", job.start.as_secs())?;
    writeln!(out, "# start_time_asci: {}", DarshanJob::date(job.start))?;
    writeln!(out, "# end_time: {}", job.end.as_secs())?;
    writeln!(out, "# end_time_asci: {}", DarshanJob::date(job.end))?;
    writeln!(out, "# nprocs: {}", job.processes)?;
    // As readers compute it, who only have doubles.
    writeln!(out, "# run time: {:.4}", job.end.as_secs_f64() - job.start.as_secs_f64())?;
    for (key, value) in job.lines() {
        writeln!(out, "# metadata: {key} = {value}")?;
    }
    writeln!(out, "\n# log file regions")?;
    writeln!(out, "# -------------------------------------------------------")?;
    writeln!(out, "# header: {HEADER} bytes (uncompressed)")?;
    writeln!(out, "# job data: {} bytes (compressed)", log.job.len())?;
    writeln!(out, "# record table: {} bytes (compressed)", log.names.len())?;
    for (module, bytes) in &log.modules {
        writeln!(out, "# {} module: {} bytes (compressed), ver={}", module.name(), bytes.len(), module.version())?;
    }
    writeln!(out, "\n# mounted file systems (mount point and fs type)")?;
    writeln!(out, "# -------------------------------------------------------")?;
    writeln!(out, "# mount entry:\t{}\t{FS_TYPE}", job.mount_entry)?;
    writeln!(out, "\n# -1 in a counter: not known. Rank -1: several processes, counted together.")
}

/// The header of a module; an incomplete module says so.
pub(super) fn module(module: Module, log: &DarshanLog, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n# *******************************************************")?;
    writeln!(out, "# {} module data", module.name())?;
    writeln!(out, "# *******************************************************")?;
    if log.partial.contains(&module) {
        writeln!(out, "\n# *WARNING*: The {} module contains incomplete data!", module.name())?;
    }
    writeln!(out, "\n#<module>\t<rank>\t<record id>\t<counter>\t<value>\t<file name>\t<mount pt>\t<fs type>")
}

pub(super) fn posix(posix: &Posix, name: &str, job: &DarshanJob, out: &mut dyn Write) -> io::Result<()> {
    let (rank, id) = (posix.rank, posix.id);
    let (mountpoint, fs_type) = mount_of(name, job);
    for (counter, value) in &posix.counters {
        let value = if counter == RENAMED_FROM { (*value as u64).to_string() } else { value.to_string() };
        writeln!(out, "POSIX\t{rank}\t{id}\tPOSIX_{counter}\t{value}\t{name}\t{mountpoint}\t{fs_type}")?;
    }
    for (counter, value) in posix.times {
        writeln!(out, "POSIX\t{rank}\t{id}\tPOSIX_{counter}\t{value:.6}\t{name}\t{mountpoint}\t{fs_type}")?;
    }
    Ok(())
}

/// All rows, with a row's reads before its writes.
pub(super) fn heat(heat: &Heat, id: u64, job: &DarshanJob, out: &mut dyn Write) -> io::Result<()> {
    let name = heat::NAME;
    let (mountpoint, fs_type) = mount_of(name, job);
    for row in &heat.rows {
        let rank = row.rank;
        let width = heat.width;
        writeln!(
            out,
            "HEATMAP\t{rank}\t{id}\tHEATMAP_F_BIN_WIDTH_SECONDS\t{width:.6}\t{name}\t{mountpoint}\t{fs_type}"
        )?;
        for (way, bins) in [("READ", &row.read), ("WRITE", &row.written)] {
            for (bin, bytes) in bins.iter().enumerate() {
                writeln!(
                    out,
                    "HEATMAP\t{rank}\t{id}\tHEATMAP_{way}_BIN_{bin}\t{bytes}\t{name}\t{mountpoint}\t{fs_type}"
                )?;
            }
        }
    }
    Ok(())
}

/// Where Darshan's tools locate a name: on the mount if it begins with the mount's path.
fn mount_of<'a>(name: &str, job: &'a DarshanJob) -> (&'a str, &'static str) {
    if name.starts_with(&job.mount_entry) { (&job.mount_entry, FS_TYPE) } else { ("UNKNOWN", "UNKNOWN") }
}

//! Blocks at random places, by the ways in which programs ask a kernel for them: what fio is told, and what of its answer is
//! kept. Pure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::units::digits;

/// How a program asks: fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    /// pread(2) and pwrite(2), one after the other
    Psync,
    /// io_submit(2), 16 at a time
    Libaio,
    /// io_uring_enter(2), 16 at a time
    #[value(name = "io_uring")]
    IoUring,
}

/// Under way at a time, but for [`Engine::Psync`].
const DEPTH: u32 = 16;

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Psync => "psync",
            Engine::Libaio => "libaio",
            Engine::IoUring => "io_uring",
        }
    }

    fn depth(self) -> u32 {
        if self == Engine::Psync { 1 } else { DEPTH }
    }

    /// Whether programs use the page cache with it, too. Through that, libaio waits for each block as psync does, and io_uring has the
    /// kernel's own threads wait.
    fn is_buffered_too(self) -> bool {
        self == Engine::Psync
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockCase {
    pub(crate) engine: Engine,
    /// Bytes of a block.
    pub(crate) block: u64,
    /// Each with a file of its own.
    pub(crate) jobs: u32,
    /// Past the page cache.
    pub(crate) direct: bool,
    pub(crate) writes: bool,
}

/// What fio found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockFigures {
    /// Bytes that were read or written.
    pub(crate) bytes: u64,
    /// Bytes per second.
    pub(crate) rate: f64,
    /// Microseconds until a block was done: half of them, all but a hundredth, all but a thousandth. Of fewer than 100, or 1,000, blocks
    /// the last two say no more than the slowest block, and are left out.
    pub p50: f64,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
}

impl BlockCase {
    /// All that these make.
    pub(crate) fn all(engines: &[Engine], blocks: &[u64], jobs: &[u32]) -> Vec<BlockCase> {
        let mut all = Vec::new();
        for &block in blocks {
            for &engine in engines {
                for &jobs in jobs {
                    for direct in [false, true].into_iter().filter(|direct| *direct || engine.is_buffered_too()) {
                        let case = |writes| BlockCase { engine, block, jobs, direct, writes };
                        all.extend([true, false].map(case));
                    }
                }
            }
        }
        all
    }

    /// `write 4 KiB, psync, 1 job, direct`: the kind of case before the first comma.
    pub(crate) fn name(&self, figure: &str) -> String {
        let verb = if self.writes { "write" } else { "read" };
        let size = match self.block {
            block if block >= 1 << 20 => format!("{} MiB", digits_whole(block, 20)),
            block => format!("{} KiB", digits_whole(block, 10)),
        };
        let jobs = if self.jobs == 1 { "1 job".to_owned() } else { format!("{} jobs", self.jobs) };
        let cache = if self.direct { "direct" } else { "buffered" };
        let figure = if figure.is_empty() { String::new() } else { format!(" {figure}") };
        format!("{verb} {size}{figure}, {}, {jobs}, {cache}", self.engine.name())
    }

    /// The file of a job below a directory, from 0 on.
    pub(crate) fn file(dir: &Path, job: u32) -> PathBuf {
        dir.join(format!("block.{job}"))
    }

    /// What fio is told: files of `size` bytes below `dir`, for as long as `time`.
    pub(crate) fn arguments(&self, dir: &Path, size: u64, time: Duration) -> Vec<OsString> {
        let BlockCase { engine, block, jobs, direct, writes } = *self;
        let mut directory = OsString::from("--directory=");
        directory.push(dir);
        let words = [
            "--name=blocks".to_owned(),
            // As in `file`.
            "--filename_format=block.$jobnum".to_owned(),
            format!("--size={size}"),
            format!("--bs={block}"),
            format!("--rw={}", if writes { "randwrite" } else { "randread" }),
            format!("--ioengine={}", engine.name()),
            format!("--iodepth={}", engine.depth()),
            format!("--numjobs={jobs}"),
            format!("--direct={}", u8::from(direct)),
            format!("--runtime={}ms", time.as_millis()),
            "--time_based".to_owned(),
            "--group_reporting".to_owned(),
            // What the file system does by itself is measured, not what fio prepares; the files stay for the next case.
            "--fallocate=none".to_owned(),
            // Else it drops what the page cache has of these files, but not what lies below a mount.
            "--invalidate=0".to_owned(),
            "--output-format=json".to_owned(),
        ];
        words.into_iter().map(OsString::from).chain([directory]).collect()
    }

    /// Whether fio, which failed, complains of a file system that takes no direct I/O, or none from where the memory of its writer lies.
    pub(crate) fn is_refused(&self, complaint: &[u8]) -> bool {
        self.direct && String::from_utf8_lossy(complaint).contains("Invalid argument")
    }

    /// What fio said. An error: it is not understood, and why.
    pub(crate) fn figures(&self, said: &[u8]) -> Result<BlockFigures, String> {
        // It may have warned in front of it.
        let start = said.iter().position(|byte| *byte == b'{').unwrap_or(0);
        let said: FioAnswer = serde_json::from_slice(&said[start..]).map_err(|error| error.to_string())?;
        let [job] = said.jobs.as_slice() else { return Err(format!("it told of {} jobs", said.jobs.len())) };
        if job.error != 0 {
            return Err(format!("its job ended with error {}", job.error));
        }
        let part = if self.writes { &job.write } else { &job.read };
        if part.io_bytes == 0 {
            return Err("no block was done in that time; ask for more with --time".to_owned());
        }
        let latency = |percent: &str| {
            part.clat_ns.percentile.get(percent).map_or(0.0, |nanoseconds| *nanoseconds as f64 / 1000.0)
        };
        let from = |least: u64, percent: &str| (part.total_ios >= least).then(|| latency(percent));
        let (p50, p99, p999) = (latency("50.000000"), from(100, "99.000000"), from(1000, "99.900000"));
        Ok(BlockFigures { bytes: part.io_bytes, rate: part.bw_bytes, p50, p99, p999 })
    }
}

/// A multiple of a power of two, with a fraction if it has one.
fn digits_whole(block: u64, power: u32) -> String {
    let unit = 1u64 << power;
    if block.is_multiple_of(unit) { (block / unit).to_string() } else { digits(block as f64 / unit as f64) }
}

#[derive(Deserialize)]
struct FioAnswer {
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    error: i64,
    read: FioPart,
    write: FioPart,
}

#[derive(Deserialize)]
struct FioPart {
    io_bytes: u64,
    /// Blocks.
    total_ios: u64,
    bw_bytes: f64,
    clat_ns: FioLatency,
}

#[derive(Default, Deserialize)]
struct FioLatency {
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_a_case_with_a_name_of_its_own() {
        let all = BlockCase::all(&[Engine::Psync, Engine::IoUring], &[4096, 1 << 20], &[1, 4]);
        let mut names: Vec<String> = all.iter().map(|case| case.name("")).collect();
        assert_eq!(
            (names[0].as_str(), names[3].as_str()),
            ("write 4 KiB, psync, 1 job, buffered", "read 4 KiB, psync, 1 job, direct")
        );
        assert_eq!(all[23].name("p99"), "read 1 MiB p99, io_uring, 4 jobs, direct");
        assert_eq!(all[23].name("").replace("1 MiB", "x"), "read x, io_uring, 4 jobs, direct");
        assert!(!names.iter().any(|name| name.contains("io_uring") && name.contains("buffered")), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 24);
        assert_eq!(BlockCase { block: 1536, ..all[0] }.name(""), "write 1.50 KiB, psync, 1 job, buffered");
    }

    #[test]
    fn fio_is_told_all_of_a_case() {
        let case = BlockCase { engine: Engine::Libaio, block: 4096, jobs: 4, direct: true, writes: false };
        let words = case.arguments(Path::new("/a b"), 1 << 26, Duration::from_secs(2));
        for word in [
            "--directory=/a b",
            "--rw=randread",
            "--ioengine=libaio",
            "--iodepth=16",
            "--numjobs=4",
            "--direct=1",
            "--invalidate=0",
        ] {
            assert!(words.contains(&OsString::from(word)), "{word} in {words:?}");
        }
        assert!(words.contains(&OsString::from("--runtime=2000ms")) && words.contains(&OsString::from("--bs=4096")));
    }

    #[test]
    fn what_fio_says_is_read_and_what_is_no_answer_is_told() {
        let case = BlockCase { engine: Engine::Psync, block: 4096, jobs: 1, direct: false, writes: true };
        let part = |rate: u64, blocks: u64, percentile| {
            let bytes = rate / 2;
            let latency = format!("{{\"min\": 1{percentile}}}");
            format!("{{\"io_bytes\": {bytes}, \"total_ios\": {blocks}, \"bw_bytes\": {rate}, \"clat_ns\": {latency}}}")
        };
        let told = ", \"percentile\": {\"50.000000\": 1500, \"99.000000\": 4000, \"99.900000\": 90000}";
        let answer_of = |blocks, error| {
            let (read, write) = (part(0, 0, ""), part(123_456_788, blocks, told));
            format!(
                "fio: a note\n{{\"jobs\": [{{\"jobname\": \"blocks\", \"error\": {error}, \"read\": {read}, \"write\": {write}}}]}}"
            )
        };
        let answer = |error| answer_of(1000, error);
        let expected =
            BlockFigures { bytes: 61_728_394, rate: 123_456_788.0, p50: 1.5, p99: Some(4.0), p999: Some(90.0) };
        assert_eq!(case.figures(answer(0).as_bytes()), Ok(expected));
        let fewer = BlockFigures { p999: None, ..expected };
        assert_eq!(case.figures(answer_of(999, 0).as_bytes()), Ok(fewer));
        assert_eq!(case.figures(answer_of(99, 0).as_bytes()), Ok(BlockFigures { p99: None, ..fewer }));
        let nothing = BlockCase { writes: false, ..case }.figures(answer(0).as_bytes());
        assert!(nothing.is_err_and(|why| why.contains("--time")));
        assert!(case.figures(answer(28).as_bytes()).is_err_and(|why| why.contains("error 28")));
        let complaint = b"fio: io_u error on file /a/block.0: Invalid argument: write offset=0, buflen=1048576";
        assert!(BlockCase { direct: true, ..case }.is_refused(complaint) && !case.is_refused(complaint));
        assert!(case.figures(b"fio: no such engine").is_err() && case.figures(b"{\"jobs\": []}").is_err());
    }
}

//! What was observed as a Darshan log, for the tools that read one.
//!
//! The job is the mount, or a window of it. Its processes are *ranks*, from 0 on in the order of the recording's
//! numbers: the heat map has a row for each, and every traced call has one. A file's counters are not kept by process.
//! So its record has the rank of the process if only one has opened it, like Darshan's record of a file that is not
//! shared, and otherwise -1, like Darshan's record of a file summed over ranks. Which process was slowest on such a
//! file is not known: see `posix.rs`.
//!
//! The log is made region by region (`layout.rs`), record by record; no region is in memory before it is compressed.

mod dxt;
mod hash;
mod heat;
mod job;
mod layout;
mod numbers;
mod posix;
mod ranks;

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::ops::Range;
use std::time::Duration;

use dxt::DxtExtent;
use heat::Heat;
use job::DarshanJob;
use layout::{DarshanLog, Module, region};
use posix::Posix;
use ranks::Ranks;

use crate::path;
use crate::stats::record::{Field, FileRecord};
use crate::stats::recording::{Meta, RecordedProcess, Recording};

/// Writes the log.
pub(super) fn write(recording: &mut Recording, out: &mut dyn Write) -> io::Result<()> {
    DarshanData::new(recording)?.log.write(out)
}

/// A file with a record: its places in the recording's files, and its id.
#[derive(Clone, Debug, PartialEq)]
struct DarshanFile {
    /// A range of [`DarshanData::order`].
    places: Range<usize>,
    id: u64,
}

struct DarshanData {
    job: DarshanJob,
    /// Since the mount.
    from: Duration,
    ranks: Ranks,
    /// Indexes into the recording's files, by path.
    order: Vec<usize>,
    files: Vec<DarshanFile>,
    log: DarshanLog,
}

impl DarshanData {
    fn new(recording: &mut Recording) -> io::Result<DarshanData> {
        let (time, run) = times(&recording.meta);
        let plan = DxtExtent::new(recording, &time);
        let run = run.max(plan.end.saturating_sub(time.start));
        let ranks = Ranks::of_recording(recording, plan.processes());
        let job = DarshanJob::new(&recording.meta, time.start, run, ranks.count());
        let heat = Heat::new(&recording.meta, &ranks, time.start, run);
        let mut document = DarshanData {
            job,
            from: time.start,
            ranks,
            order: Vec::new(),
            files: Vec::new(),
            log: DarshanLog::default(),
        };
        document.find_files(recording);
        let (ids, others) = document.ids(recording, &plan);
        document.log.names = region(|out| document.write_names(recording, &others, out))?;
        if !document.files.is_empty() {
            let posix = region(|out| {
                let records = document.files.iter().map(|file| document.posix(recording, file).bytes());
                records.into_iter().try_for_each(|bytes| out.write_all(&bytes))
            })?;
            document.log.modules.push((Module::Posix, posix));
        }
        if !plan.is_empty() {
            let calls = region(|out| plan.write(recording, &time, &ids, &document.ranks, out))?;
            document.log.modules.push((Module::Dxt, calls));
        }
        if let Some(heat) = heat {
            let id = hash::id(heat::NAME.as_bytes());
            let rows = region(|out| heat.rows.iter().try_for_each(|row| out.write_all(&heat.bytes(id, row))))?;
            document.log.modules.push((Module::Heat, rows));
        }
        document.describe_gaps(recording, &plan);
        document.log.job = region(|out| out.write_all(&document.job.bytes()))?;
        Ok(document)
    }

    /// The files that Darshan would have records of. One path with several inode numbers is one file.
    fn find_files(&mut self, recording: &Recording) {
        let files = &recording.files;
        self.order = (0..files.len()).filter(|at| posix::is_met(&files[*at].record())).collect();
        self.order.sort_by(|a, b| files[*a].path.cmp(&files[*b].path));
        let mut end = 0;
        for same in self.order.chunk_by(|a, b| files[*a].path == files[*b].path) {
            let id = hash::id(self.full_name(&files[same[0]].path).as_bytes());
            self.files.push(DarshanFile { places: end..end + same.len(), id });
            end += same.len();
        }
    }

    /// The ids of the traced files by inode number, and the names of those without a record.
    fn ids(&self, recording: &Recording, plan: &DxtExtent) -> (HashMap<u64, u64>, Vec<(u64, String)>) {
        let mut ids: HashMap<u64, u64> = plan.inos().into_iter().map(|ino| (ino, 0)).collect();
        for file in &self.files {
            for at in &self.order[file.places.clone()] {
                ids.entry(recording.files[*at].ino).and_modify(|id| *id = file.id);
            }
        }
        let mut others = Vec::new();
        for (ino, id) in ids.iter_mut().filter(|(_, id)| **id == 0) {
            let path = recording.paths.get(ino).cloned().unwrap_or_else(|| format!("/?{ino}"));
            let name = self.full_name(&path);
            *id = hash::id(name.as_bytes());
            others.push((*id, name));
        }
        others.sort_unstable();
        others.dedup();
        let known: BTreeSet<u64> = others.iter().map(|(id, _)| *id).collect();
        let known: BTreeSet<u64> = self.files.iter().map(|file| file.id).filter(|id| known.contains(id)).collect();
        others.retain(|(id, _)| !known.contains(id));
        (ids, others)
    }

    fn write_names(&self, recording: &Recording, others: &[(u64, String)], out: &mut dyn Write) -> io::Result<()> {
        let mut put = |id: u64, name: &str| {
            out.write_all(&id.to_le_bytes())?;
            out.write_all(name.as_bytes())?;
            out.write_all(&[0])
        };
        self.files.iter().try_for_each(|file| put(file.id, &self.name(recording, file)))?;
        others.iter().try_for_each(|(id, name)| put(*id, name))?;
        // Added even without a heat map: readers derive the end of the names from its position.
        put(hash::id(heat::NAME.as_bytes()), heat::NAME)
    }

    fn posix(&self, recording: &Recording, file: &DarshanFile) -> Posix {
        let places = &self.order[file.places.clone()];
        let record = |record: &FileRecord| Posix::new(file.id, self.ranks.of_file(record), record, self.from);
        match places {
            [only] => record(&recording.files[*only].record()),
            several => {
                let mut sum = FileRecord::default();
                several.iter().for_each(|at| sum.add(&recording.files[*at].record()));
                record(&sum)
            }
        }
    }

    fn name(&self, recording: &Recording, file: &DarshanFile) -> String {
        self.full_name(&recording.files[self.order[file.places.start]].path)
    }

    /// A path below the mount point, unescaped; escaped if it is not text that fits on one line.
    fn full_name(&self, escaped: &str) -> String {
        let is_plain = |text: &str| text.chars().all(path::is_harmless);
        let told =
            path::unescape(escaped).and_then(|bytes| String::from_utf8(bytes).ok()).filter(|text| is_plain(text));
        let told = told.unwrap_or_else(|| match is_plain(escaped) {
            true => escaped.to_owned(),
            false => path::escape(escaped.as_bytes()),
        });
        let mountpoint = self.job.mountpoint.trim_end_matches('/');
        let between = if told.starts_with('/') { "" } else { "/" };
        format!("{mountpoint}{between}{told}")
    }

    /// Marks incomplete modules, and adds what is known about them.
    fn describe_gaps(&mut self, recording: &Recording, plan: &DxtExtent) {
        let mut facts = Vec::new();
        let mut fact = |key: &str, value: String| facts.push((key.to_owned(), value));
        let mut rest = FileRecord::default();
        recording.rest.iter().for_each(|class| rest.add(&class.record()));
        if !rest.is_empty() || !recording.is_whole || !recording.flaws.is_empty() {
            self.log.partial.push(Module::Posix);
        }
        if !rest.is_empty() {
            fact("opens_of_files_not_told_apart", rest.opens().to_string());
            fact("bytes_read_of_files_not_told_apart", rest.get(Field::BytesRead).to_string());
            fact("bytes_written_of_files_not_told_apart", rest.get(Field::BytesWritten).to_string());
        }
        if !recording.is_whole {
            fact("recording", "cut off before its files".to_owned());
        }
        let (_, dropped) = recording.traced();
        if !plan.is_all {
            self.log.partial.push(Module::Dxt);
        }
        fact("dxt_calls", plan.calls().to_string());
        fact("trace_dropped", dropped.to_string());
        self.job.add_facts(facts);
        // Last: if there are many processes, only the first ones fit.
        for RecordedProcess { number, pid, command, .. } in &recording.meta.processes {
            self.job.metadata.push((format!("rank_{}", self.ranks.of(*number)), format!("{command} {pid}")));
        }
    }
}

/// The time of the job, since the mount, and how long it is known to have lasted. For a whole mount this includes every
/// traced call, even those after everything else was written.
fn times(meta: &Meta) -> (Range<Duration>, Duration) {
    let moment = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let (from, until) = (moment(meta.from), moment(meta.until));
    let end = if meta.window.is_some() { until } else { Duration::MAX };
    (from..end, until.saturating_sub(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use crate::report::traced::sample::read;
    use crate::stats::access;
    use crate::stats::counters::{Call, Op, Tier};
    use crate::stats::recording::{self, HeatRow, Writer};
    use crate::stats::trace::{Block, block};
    use crate::stats::traced::Traced;
    use layout::tests::{Found, found};
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    /// A call of millisecond `n`, at offset `n`.
    pub(super) fn traced(op: Op, n: u64, ino: u64, process: u32) -> Traced {
        let (began, took) = (Duration::from_millis(n), Duration::from_micros(7));
        let call = Call { op, began, took, offset: n, bytes: 3, errno: None, tier: Tier::Fast };
        Traced { call, ino, handle: ino, process, thread: process }
    }

    fn meta() -> Meta {
        let process = |number, command: &str| RecordedProcess {
            number,
            pid: 40 + number as u32,
            command: command.into(),
            ..RecordedProcess::default()
        };
        let mut meta = Meta {
            version: "1.2".into(),
            host: "node7".into(),
            mountpoint: "/mnt/train".into(),
            until: 2.0,
            processes: vec![process(3, "python"), process(9, "cp")],
            ..Meta::default()
        };
        meta.heat.span = 0.1;
        meta.heat.rows = vec![HeatRow { process: 9, read: vec![5; 20], written: vec![7; 20] }];
        meta
    }

    /// A recording with these calls and files: inode number, path, record.
    pub(super) fn recorded(calls: &[Traced], files: &[(u64, String, FileRecord)]) -> Vec<u8> {
        let mut out = Writer::new(Vec::new()).expect("into memory");
        for calls in calls.chunks(50) {
            let until = calls.iter().map(Traced::ended).max().expect("a chunk is not empty");
            let (from, len) = (calls[0].call.began, calls.len() as u32);
            let block = Block { from, until, calls: len, dropped: 0, bytes: block::pack(calls).into() };
            out.block(&block).expect("into memory");
        }
        out.paths(&[(7, "/traced/seven".into())]).expect("into memory");
        out.meta(&meta()).expect("into memory");
        out.files(files.iter().cloned()).expect("into memory");
        out.rest(&[]).expect("into memory");
        out.into_inner()
    }

    /// A file that these processes have opened and read.
    fn file(ino: u64, path: &str, openers: &[u64]) -> (u64, String, FileRecord) {
        let (mut record, mut cursor) = (FileRecord::default(), access::Cursor::default());
        for process in openers {
            record.opened_by(*process, None);
            record.count(&traced(Op::Open, 1, ino, 0).call, None);
            record.count(&traced(Op::Read, 2, ino, 0).call, Some(&mut cursor));
        }
        (ino, path.to_owned(), record)
    }

    fn log(recording: &mut Recording) -> Found {
        let mut bytes = Vec::new();
        write(recording, &mut bytes).expect("into memory");
        found(&bytes)
    }

    fn names(mut bytes: &[u8]) -> Vec<(u64, String)> {
        let mut names = Vec::new();
        while let Some(id) = bytes.split_off(..8) {
            let len = bytes.iter().position(|byte| *byte == 0).expect("a name ends");
            let name = bytes.split_off(..len).expect("so long it is");
            names.push((u64::from_le_bytes(id.try_into().expect("eight")), String::from_utf8_lossy(name).into_owned()));
            bytes = &bytes[1..];
        }
        names
    }

    fn eight(bytes: &[u8], at: usize) -> i64 {
        i64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]))
    }

    /// Names with the ranks of their records.
    fn ranks(found: &Found) -> Vec<(String, i64)> {
        let names: HashMap<u64, String> = names(&found.names).into_iter().collect();
        let records = found.modules[&1].chunks_exact(posix::SIZE);
        records.map(|record| (names[&(eight(record, 0) as u64)].clone(), eight(record, 8))).collect()
    }

    #[test]
    fn a_file_is_its_only_opener_s_or_everybody_s() {
        let files = [
            file(1, "/b", &[9]),
            file(2, "/a", &[3]),
            file(3, "/c", &[3, 9]),
            file(4, "/two%20words", &[9]),
            file(5, "/new%0Aline", &[9]),
            (6, "/".to_owned(), {
                let mut record = FileRecord::default();
                record.count(&traced(Op::Readdir, 1, 6, 0).call, None);
                record
            }),
        ];
        let found = log(&mut read(recorded(&[], &files)));
        let wanted = [("/a", 0), ("/b", 1), ("/c", -1), ("/new%0Aline", 1), ("/two words", 1)];
        assert_eq!(ranks(&found), wanted.map(|(path, rank)| (format!("/mnt/train{path}"), rank)));
        assert!(found.partial == 0 && !found.modules.contains_key(&10), "nothing is missing, no call was traced");
        assert_eq!(found.modules[&15].len(), 48 + 16 * 20);
        let job = String::from_utf8_lossy(&found.job).into_owned();
        assert!(job.contains("\nrank_0=python 43\nrank_1=cp 49\n"), "{job}");
    }

    #[test]
    fn one_path_of_two_inodes_is_one_file() {
        let files = [file(1, "/a", &[3]), file(2, "/a", &[3])];
        let calls = [traced(Op::Read, 1, 1, 3), traced(Op::Read, 2, 2, 3), traced(Op::Read, 3, 7, 3)];
        let found = log(&mut read(recorded(&calls, &files)));
        assert_eq!(ranks(&found), [("/mnt/train/a".to_owned(), 0)]);
        let named = names(&found.names);
        let told: Vec<&str> = named.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(told, ["/mnt/train/a", "/mnt/train/traced/seven", "heatmap:POSIX"]);
        assert_eq!(found.modules[&10].len(), 3 * (104 + 32));
        assert_eq!(eight(&found.modules[&1], 16), 2, "opens");
    }

    #[test]
    fn what_is_not_told_apart_is_said() {
        let mut recording = read(recorded(&[], &[file(1, "/a", &[3])]));
        recording.rest = vec![recording::RecordedFile::new(0, "*.b".into(), &file(2, "/b", &[9, 9]).2)];
        let found = log(&mut recording);
        assert_eq!(found.partial, 1 << 1);
        let job = String::from_utf8_lossy(&found.job).into_owned();
        assert!(job.contains("\nopens_of_files_not_told_apart=2\nbytes_read_of_files_not_told_apart=6\n"), "{job}");
    }

    #[test]
    fn a_window_is_a_job_of_its_own() {
        let calls: Vec<_> = (0..100).map(|n| traced(Op::Read, 20 * n, 1, 3)).collect();
        let mut recording = read(recorded(&calls, &[file(1, "/a", &[3])]));
        recording.meta.window = Some("epoch 1".into());
        (recording.meta.from, recording.meta.until) = (0.5, 1.25);
        let found = log(&mut recording);
        assert_eq!(found.modules[&10].len(), 104 + 38 * 32, "from 0.5 s until before 1.25 s");
        assert_eq!(found.modules[&15].len(), 48 + 16 * 15, "bins from there on");
        let moment = |at| Duration::new(eight(&found.job, at) as u64, eight(&found.job, at + 8) as u32);
        assert_eq!(moment(24) - moment(8), Duration::from_millis(750));
        assert!(String::from_utf8_lossy(&found.job).contains("\nwindow=epoch 1\n"));
    }

    #[test]
    fn nothing_observed_is_a_log_as_well() {
        let mut out = Writer::new(Vec::new()).expect("into memory");
        out.meta(&Meta::default()).expect("into memory");
        out.rest(&[]).expect("into memory");
        let mut recording = read(out.into_inner());
        let found = log(&mut recording);
        assert_eq!((found.modules.len(), found.partial), (0, 0));
        assert_eq!(names(&found.names), [(hash::id(b"heatmap:POSIX"), "heatmap:POSIX".to_owned())]);
        assert_eq!(eight(&found.job, 40), 1, "processes");
    }

    fn any_recording(random: &mut SmallRng) -> Vec<u8> {
        const OPS: [Op; 6] = [Op::Open, Op::Read, Op::Write, Op::Getattr, Op::Flush, Op::Lookup];
        let mut calls = Vec::new();
        for n in 0..random.random_range(0..200) {
            let op = OPS[random.random_range(0..OPS.len())];
            calls.push(traced(op, n, random.random_range(1..9), random.random_range(0..12)));
        }
        let mut files = Vec::new();
        for _ in 0..random.random_range(0..40) {
            let openers: Vec<u64> = (0..random.random_range(0..3)).map(|_| random.random_range(0..12)).collect();
            let path = format!("/{}", path::escape(&[random.random(), random.random()]));
            let (ino, path, mut record) = file(random.random_range(1..50), &path, &openers);
            for _ in 0..random.random_range(0..9) {
                let op = OPS[random.random_range(0..OPS.len())];
                let wild = Call { offset: random.random(), bytes: random.random(), ..traced(op, 5, 0, 0).call };
                record.count(&wild, Some(&mut access::Cursor::default()));
            }
            files.push((ino, path, record));
        }
        recorded(&calls, &files)
    }

    /// The regions add up, every record is whole and has a name, and ranks are valid.
    fn expect_sound(found: &Found) {
        let names: HashMap<u64, String> = names(&found.names).into_iter().collect();
        let processes = eight(&found.job, 40);
        for (module, bytes) in &found.modules {
            let mut bytes = &**bytes;
            while !bytes.is_empty() {
                assert!(names.contains_key(&(eight(bytes, 0) as u64)), "module {module}");
                assert!((-1..processes).contains(&eight(bytes, 8)), "module {module}");
                let len = match module {
                    1 => posix::SIZE as i64,
                    10 => 104 + 32 * (eight(bytes, 88) + eight(bytes, 96)),
                    _ => 48 + 16 * eight(bytes, 24),
                };
                bytes = &bytes[len as usize..];
            }
        }
    }

    #[test]
    fn any_recording_gives_a_sound_log() {
        for seed in 0..200 {
            let bytes = any_recording(&mut SmallRng::seed_from_u64(seed));
            expect_sound(&log(&mut read(bytes)));
        }
    }

    /// The rest of a recording becomes a log that says that it is incomplete.
    #[test]
    fn a_recording_that_is_cut_anywhere_gives_a_sound_log() {
        let whole = any_recording(&mut SmallRng::seed_from_u64(11));
        for len in (0..whole.len()).step_by(3) {
            match sample::read(whole[..len].to_vec()) {
                Err(why) => assert!(why.contains("no recording"), "{len}: {why}"),
                Ok(mut cut) => {
                    let is_told = !cut.is_whole || !cut.flaws.is_empty();
                    let found = log(&mut cut);
                    expect_sound(&found);
                    assert!(!is_told || found.partial & 1 << 1 != 0, "{len} of {}", whole.len());
                }
            }
        }
    }
}

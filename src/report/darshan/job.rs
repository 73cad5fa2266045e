//! The job in a log, which is the mount: its time, user, system, and what is known of the counters. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use super::numbers::signed;
use crate::path::harmless;
use crate::stats::recording::{Meta, TierPlace};

/// The sizes of the numbers and of the text after them, with the terminating 0.
const NUMBERS: usize = 7 * 8;
const METADATA: usize = 1024;
/// The same for the command line and the mounts.
const TEXT: usize = 4096 - NUMBERS - METADATA - 1;
/// The version of Darshan whose rules the counters follow.
const RULES: &str = "3.5.0";
/// The latest time: the end of the year 9999.
const LATEST: Duration = Duration::from_secs(253_402_300_799);

/// A job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DarshanJob {
    uid: u32,
    /// Since 1970.
    start: Duration,
    end: Duration,
    processes: usize,
    /// In the order of importance: entries that do not fit are left out.
    pub(super) metadata: Vec<(String, String)>,
    command: String,
    /// Where the mount is; there are no others.
    pub(super) mountpoint: String,
    /// As in the table of mounts, whose readers end a word at a space.
    mount_entry: String,
}

/// Type of the file system.
const FS_TYPE: &str = "fuse.dlio";

impl DarshanJob {
    /// A job that starts `from` after the mount was made and lasts `run`.
    pub(super) fn new(meta: &Meta, from: Duration, run: Duration, processes: usize) -> Self {
        let start = Duration::from_nanos(meta.since).saturating_add(from).min(LATEST);
        let mountpoint = match plain(meta.mountpoint.trim_end_matches('/')) {
            point if point.is_empty() => "/".to_owned(),
            point => point,
        };
        let command =
            format!("dlio-fs mount {mountpoint} --fast {} --slow {}", plain(&meta.fast.path), plain(&meta.slow.path));
        let mount_entry = mountpoint.split_whitespace().next().unwrap_or("/").to_owned();
        DarshanJob {
            uid: meta.uid,
            start,
            end: start.saturating_add(run).min(LATEST),
            processes,
            metadata: metadata(meta),
            command: cut(&command, TEXT / 4),
            mount_entry: cut(&mount_entry, TEXT / 2),
            mountpoint,
        }
    }

    /// Adds facts about the counters, before those about the machine.
    pub(super) fn add_facts(&mut self, facts: Vec<(String, String)>) {
        // After the version, without which PyDarshan stops.
        self.metadata.splice(1..1, facts);
    }

    /// The lines of the metadata that fit.
    fn lines(&self) -> Vec<(&str, String)> {
        let mut room = METADATA - 1;
        let mut told = Vec::new();
        for (key, value) in &self.metadata {
            let value = plain(value);
            let len = key.len() + value.len() + 2;
            if len <= room {
                room -= len;
                told.push((key.as_str(), value));
            }
        }
        told
    }

    /// The form in a log.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (start, end) = (self.start, self.end);
        let numbers = [
            i64::from(self.uid),
            signed(start.as_secs()),
            start.subsec_nanos().into(),
            signed(end.as_secs()),
            end.subsec_nanos().into(),
            self.processes as i64,
            // The job's number: a mount belongs to no job.
            0,
        ];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(i64::to_le_bytes).collect();
        for (key, value) in self.lines() {
            bytes.extend_from_slice(format!("{key}={value}\n").as_bytes());
        }
        bytes.resize(NUMBERS + METADATA, 0);
        bytes.extend_from_slice(format!("{}\n{FS_TYPE}\t{}\0", self.command, self.mount_entry).as_bytes());
        bytes
    }
}

fn metadata(meta: &Meta) -> Vec<(String, String)> {
    let place = |place: &TierPlace| format!("{} {}", place.kind, place.path);
    let opens = meta.io_path.opens.iter().fold(String::new(), |mut text, (path, opens)| {
        // Into memory.
        write!(text, "{path}={opens} ").unwrap_or_default();
        text
    });
    let facts = [
        ("lib_ver", RULES.to_owned()),
        ("written_by", format!("dlio-fs {}", meta.version)),
        ("io_path", meta.io_path.name.clone()),
        ("opens_by_io_path", opens.trim_end().to_owned()),
        ("not_seen", meta.io_path.not_seen.join("; ")),
        ("window", meta.window.clone().unwrap_or_default()),
        ("host", meta.host.clone()),
        ("kernel", meta.kernel.clone()),
        ("fast_tier", place(&meta.fast)),
        ("slow_tier", place(&meta.slow)),
    ];
    facts
        .into_iter()
        .filter(|(_, value)| !value.trim().is_empty())
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// On one line.
fn plain(text: &str) -> String {
    harmless(text).into_owned()
}

fn cut(text: &str, len: usize) -> String {
    text.get(..text.floor_char_boundary(len)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        let mut meta = Meta {
            version: "1.2".into(),
            uid: 1000,
            mountpoint: "/mnt/my data/".into(),
            since: 1_000_000_500_000_000,
            ..Meta::default()
        };
        meta.io_path.name = "exact".into();
        meta
    }

    fn texts(bytes: &[u8]) -> (String, String) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let metadata = text(&bytes[NUMBERS..NUMBERS + METADATA]);
        (metadata.trim_end_matches('\0').to_owned(), text(&bytes[NUMBERS + METADATA..]))
    }

    #[test]
    fn a_job_lies_in_the_log_as_darshan_has_it() {
        assert_eq!(NUMBERS + METADATA, 1080);
        let job = DarshanJob::new(&meta(), Duration::from_secs(5), Duration::from_millis(1500), 3);
        let bytes = job.bytes();
        let eight = |at: usize| i64::from_le_bytes(std::array::from_fn(|n| bytes[8 * at + n]));
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(eight), [1000, 1_000_005, 500_000_000, 1_000_007, 0, 3, 0]);
        let (metadata, text) = texts(&bytes);
        assert_eq!(metadata, "lib_ver=3.5.0\nwritten_by=dlio-fs 1.2\nio_path=exact\n");
        assert_eq!(text, "dlio-fs mount /mnt/my data --fast  --slow \nfuse.dlio\t/mnt/my\0");
    }

    #[test]
    fn what_has_no_room_is_left_out_line_by_line() {
        let mut job = DarshanJob::new(&meta(), Duration::ZERO, Duration::ZERO, 1);
        job.add_facts(vec![("a".into(), "x".repeat(5000)), ("b".into(), "two\nlines=3".into())]);
        job.add_facts((0..50).map(|n| (format!("rank_{n}"), "python".repeat(8))).collect());
        let (metadata, _) = texts(&job.bytes());
        assert!(metadata.starts_with("lib_ver=3.5.0\nrank_0="), "{metadata}");
        assert!(metadata.ends_with('\n') && metadata.len() < METADATA);
        assert!(metadata.lines().all(|line| line.contains('=')), "{metadata}");
    }

    #[test]
    fn however_long_its_paths_it_fits() {
        let mut meta = meta();
        (meta.mountpoint, meta.fast.path) = ("/ä\n\0".repeat(2000), "/f".repeat(3000));
        let bytes = DarshanJob::new(&meta, Duration::MAX, Duration::MAX, 1).bytes();
        assert!(bytes.len() <= 4096, "{}", bytes.len());
        let (_, text) = texts(&bytes);
        assert_eq!((text.matches('\n').count(), text.matches('\t').count(), text.matches('\0').count()), (1, 1, 1));
        let (_, text) = texts(&DarshanJob::new(&Meta::default(), Duration::ZERO, Duration::ZERO, 1).bytes());
        assert!(text.ends_with("\nfuse.dlio\t/\0"), "{text}");
    }
}

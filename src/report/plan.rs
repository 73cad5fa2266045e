//! What staging would save, and which files to stage for it: from what each file cost on the slow tier, before anything
//! is copied. Pure.
//!
//! A file's *cost* is the time of its reads and opens that the slow tier served; it *saves* that less the time that the
//! fast tier would have taken: as much for each read and byte as for the others in the same recording, and as much for
//! each open. Both are per epoch.
//!
//! Files are chosen by what they save per byte, best first, each if it fits into the remaining room. If files were
//! divisible, filling the room in this order would be optimal; so the choice falls short of the best one by at most the
//! first file that does not fit. And more room never saves less: the first file chosen only with more room saves more
//! than everything that could be chosen in its place.

use std::cmp::Ordering;
use std::fmt::{Result as Written, Write};

use serde::{Deserialize, Serialize};

use super::rebuild;
use super::summarize;
use super::summary::{percent, render_count, seconds_text, share};
use super::totals::{Speeds, size};
use crate::path::{self, readable};
use crate::stats::plans::{Promise, Spent};
use crate::stats::record::{Field, FileRecord};
use crate::stats::recording::{Meta, Recording};
use crate::stats::render::bytes;

/// The schema; changing a key requires another one.
pub const SCHEMA: u32 = 1;
/// The points of the curve, as shares of everything read from the slow tier.
const SHARES: [f64; 7] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
/// How many files the text names.
const NAMED: usize = 10;

/// What to stage. Seconds are per epoch, sizes are in bytes and as far as files were read; the JSON keys are the field
/// names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagePlan {
    pub schema: u32,
    pub mountpoint: String,
    pub window: Option<String>,
    /// The room that the plan is for; `None` for any.
    pub size: Option<u64>,
    /// Recorded passes over the data, and whether they were found as such; if not, how often a byte was read.
    pub epochs: f64,
    pub epochs_found: bool,
    /// Something was read from the fast tier and opened there; otherwise its time is taken as zero, and the saving is
    /// an upper bound.
    pub is_compared: bool,
    /// Pieces counted for files without their own record, which cannot be in a plan.
    pub unnamed: u64,
    /// Files that were read from the slow tier, and are left out because the mount has them on the fast one now.
    #[serde(default)]
    pub on_fast: u64,
    /// Everything read from the slow tier, and the chosen part.
    pub all: PlanPart,
    pub chosen: PlanPart,
    /// What the staging job is compared with.
    pub promise: Promise,
    pub curve: Vec<Point>,
    /// The chosen files, the one that saves most for its size first.
    pub files: Vec<PlannedFile>,
}

/// Some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanPart {
    pub files: u64,
    pub bytes: u64,
    /// Reads and opens served by the slow tier.
    pub seconds: f64,
    pub saved: f64,
}

/// The choice for a given room.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The share of all bytes.
    pub share: f64,
    pub size: u64,
    pub files: u64,
    pub bytes: u64,
    pub saved: f64,
}

/// A chosen file. `path`: from the mount's root, escaped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedFile {
    #[serde(flatten, with = "crate::json::path")]
    pub path: String,
    pub bytes: u64,
    pub seconds: f64,
    pub saved: f64,
}

/// A file that was read from the slow tier. Times are nanoseconds of the whole recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StageCandidate {
    path: String,
    size: u64,
    cost: u64,
    saved: u64,
    spent: Spent,
}

impl StageCandidate {
    /// `None`: it has no name, or none of it came from the slow tier.
    fn of(path: &str, record: &FileRecord, speeds: &Speeds) -> Option<StageCandidate> {
        let size = size(record);
        if !is_path(path) || size == 0 || record.get(Field::SlowBytesRead) == 0 {
            return None;
        }
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let (reads, opens) = (speeds.reads(record), speeds.opens(record));
        let (cost, fast) = (nanos(reads.0 + opens.0), nanos(reads.1 + opens.1));
        let mut spent = Spent::default();
        spent.add(record);
        Some(StageCandidate { path: path.to_owned(), size, cost, saved: cost.saturating_sub(fast), spent })
    }

    /// Merges the same path under another number: the file was forgotten meanwhile, or replaced.
    fn join(&mut self, other: &StageCandidate) {
        self.size = self.size.max(other.size);
        self.cost = self.cost.saturating_add(other.cost);
        self.saved = self.saved.saturating_add(other.saved);
        self.spent.time = self.spent.time.saturating_add(other.spent.time);
        self.spent.bytes = self.spent.bytes.saturating_add(other.spent.bytes);
    }

    /// Files that save more per byte come first; no two files are equal.
    fn order(&self, other: &StageCandidate) -> Ordering {
        let worth = |one: &StageCandidate, size: u64| u128::from(one.saved) * u128::from(size);
        let (mine, theirs) = (worth(self, other.size), worth(other, self.size));
        theirs.cmp(&mine).then(self.size.cmp(&other.size)).then_with(|| self.path.cmp(&other.path))
    }
}

/// Whether it is a path from the mount's root: a file without a name has none.
fn is_path(text: &str) -> bool {
    text.starts_with('/') && path::unescape(text).is_some()
}

/// The candidates, in the order in which they are chosen, and how many files were left out, being on fast now.
fn candidates(recording: &Recording, is_on_fast: impl Fn(&str) -> bool) -> (Vec<StageCandidate>, u64) {
    let speeds = summarize::speeds(&recording.meta);
    let files = recording.files.iter();
    let mut all: Vec<_> = files.filter_map(|file| StageCandidate::of(&file.path, &file.record(), &speeds)).collect();
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all.dedup_by(|again, first| {
        let same = again.path == first.path;
        if same {
            first.join(again);
        }
        same
    });
    let found = all.len();
    all.retain(|one| !is_on_fast(&one.path));
    let on_fast = (found - all.len()) as u64;
    all.sort_by(StageCandidate::order);
    (all, on_fast)
}

/// The candidates, in their order, that fit into a given room.
fn choose(all: &[StageCandidate], size: u64) -> impl Iterator<Item = &StageCandidate> {
    let mut left = size;
    all.iter().filter(move |one| {
        let is_chosen = one.saved > 0 && one.size <= left;
        left -= if is_chosen { one.size } else { 0 };
        is_chosen
    })
}

/// How many epochs were recorded, and whether they were found: each counts as far as it lies in the covered time, the
/// last one as far as it has come.
fn epochs(meta: &Meta, all: &[StageCandidate]) -> (f64, bool) {
    let mut found = 0.0;
    for (at, epoch) in meta.epochs.iter().enumerate() {
        let inside = (epoch.ended.min(meta.until) - epoch.began.max(meta.from)).max(0.0);
        let lasted = epoch.ended - epoch.began;
        let before = at.checked_sub(1).filter(|_| epoch.open).map(|at| meta.epochs[at].files);
        let whole = before.map_or(1.0, |files| share(epoch.files, files.max(1)).min(1.0));
        found += if lasted > 0.0 { whole * inside / lasted } else { 0.0 };
    }
    if meta.epochs.len() > 1 && found.is_finite() {
        return (found.max(1.0), true);
    }
    let sum = |of: fn(&StageCandidate) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
    (share(sum(|one| one.spent.bytes), sum(|one| one.size)).max(1.0), false)
}

impl StagePlan {
    /// Chooses files for a given room, or without a limit. Unreadable parts are added to the recording's flaws.
    /// `is_on_fast`: whether the fast tier has the file at a path by now.
    pub fn of(recording: &mut Recording, size: Option<u64>, is_on_fast: impl Fn(&str) -> bool) -> StagePlan {
        rebuild::rebuild(recording);
        summarize::bounded(&mut recording.meta);
        let ((all, on_fast), meta) = (candidates(recording, is_on_fast), &recording.meta);
        let (epochs, epochs_found) = epochs(meta, &all);
        let speeds = summarize::speeds(meta);
        let files: Vec<&StageCandidate> = choose(&all, size.unwrap_or(u64::MAX)).collect();
        let seconds = |nanos: u64| nanos as f64 / 1e9 / epochs;
        StagePlan {
            schema: SCHEMA,
            mountpoint: meta.mountpoint.clone(),
            window: meta.window.clone(),
            size,
            epochs,
            epochs_found,
            is_compared: speeds.knows_fast() && speeds.open[0] > 0.0,
            unnamed: meta.files.unnamed,
            on_fast,
            all: part(all.iter(), epochs),
            chosen: part(files.iter().copied(), epochs),
            promise: promise(&files, epochs),
            curve: curve(&all, epochs),
            files: files
                .into_iter()
                .map(|one| PlannedFile {
                    path: one.path.clone(),
                    bytes: one.size,
                    seconds: seconds(one.cost),
                    saved: seconds(one.saved),
                })
                .collect(),
        }
    }

    /// Reads what [`StagePlan::json`] has written. The error says what is wrong.
    pub fn read(json: &[u8]) -> Result<StagePlan, String> {
        let plan: StagePlan = serde_json::from_slice(json).map_err(|e| format!("it is no plan: {e}"))?;
        if plan.schema != SCHEMA {
            return Err(format!("its form is {}, and this dlio-fs reads {SCHEMA}: plan again", plan.schema));
        }
        match plan.files.iter().find(|file| !is_path(&file.path)) {
            Some(file) => Err(format!("{:?} is no path of a plan", file.path)),
            None => Ok(plan),
        }
    }

    /// For scripts, and for `stage --plan`. Ends with a newline.
    pub fn json(&self) -> String {
        let mut out = serde_json::to_string(self).expect("plain numbers and strings have a JSON form");
        out.push('\n');
        out
    }

    /// For people. Ends with a newline.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.lines(&mut out).expect("formatting into memory");
        out
    }

    fn lines(&self, out: &mut String) -> Written {
        let on_fast = render_count(self.on_fast, "file", "files");
        match (self.all.files, self.on_fast) {
            (0, 0) => return writeln!(out, "Nothing was read from the slow tier: there is nothing to plan."),
            (0, _) => {
                return writeln!(
                    out,
                    "All that was read from the slow tier is on the fast one now, {on_fast}: there is nothing to plan."
                );
            }
            _ => {}
        }
        let PlanPart { files, bytes: sum, saved, .. } = self.chosen;
        let about = if self.is_compared { "about" } else { "at most" };
        writeln!(
            out,
            "staging {} of {} saves {about} {} of {} per epoch",
            bytes(sum),
            bytes(self.all.bytes),
            seconds_text(saved),
            seconds_text(self.all.seconds)
        )?;
        let of = if self.epochs_found { "found in the reads" } else { "by how often a byte was read" };
        writeln!(
            out,
            "{files} of {}; epochs: {:.1}, {of}",
            render_count(self.all.files, "file", "files"),
            self.epochs
        )?;
        writeln!(out, "seconds are those in calls of all processes: opens and reads that the slow tier served")?;
        if !self.is_compared {
            writeln!(
                out,
                "the fast tier is taken to cost nothing: too little was opened and read there to compare with"
            )?;
        }
        if self.on_fast > 0 {
            writeln!(out, "left out: {on_fast} on the fast tier by now")?;
        }
        if self.unnamed > 0 {
            writeln!(out, "files without a record of their own are left out: profile_memory was too little")?;
        }
        writeln!(out, "\n{:>6}{:>12}{:>10}{:>12}{:>12}{:>8}", "room", "", "files", "bytes", "saved", "")?;
        for point in &self.curve {
            let (room, saved) = (percent(point.share), percent(point.saved / self.all.seconds));
            let (size, sum, seconds) = (bytes(point.size), bytes(point.bytes), seconds_text(point.saved));
            writeln!(out, "{room:>6}{size:>12}{:>10}{sum:>12}{seconds:>12}{saved:>8}", point.files)?;
        }
        if !self.files.is_empty() {
            writeln!(out, "\n{:>12}{:>12}{:>12}  path", "bytes", "costs", "saved")?;
        }
        for PlannedFile { path, bytes: sum, seconds, saved } in self.files.iter().take(NAMED) {
            let (size, costs, saves) = (bytes(*sum), seconds_text(*seconds), seconds_text(*saved));
            writeln!(out, "{size:>12}{costs:>12}{saves:>12}  {}", readable(path))?;
        }
        match self.files.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => writeln!(out, "and {more} more: --list, --json"),
        }
    }
}

fn part<'a>(files: impl Iterator<Item = &'a StageCandidate>, epochs: f64) -> PlanPart {
    let (mut part, mut cost, mut saved) = (PlanPart::default(), 0u64, 0u64);
    for one in files {
        part.files += 1;
        part.bytes = part.bytes.saturating_add(one.size);
        (cost, saved) = (cost.saturating_add(one.cost), saved.saturating_add(one.saved));
    }
    (part.seconds, part.saved) = (cost as f64 / 1e9 / epochs, saved as f64 / 1e9 / epochs);
    part
}

fn promise(files: &[&StageCandidate], epochs: f64) -> Promise {
    let sum = |of: fn(&StageCandidate) -> u64| files.iter().map(|one| of(one)).fold(0, u64::saturating_add);
    let each = |sum: u64| (sum as f64 / epochs) as u64;
    let (spent, saved) = (sum(|one| one.spent.time), sum(|one| one.saved));
    Promise { before: each(spent), after: each(spent.saturating_sub(saved)), bytes: each(sum(|one| one.spent.bytes)) }
}

fn curve(all: &[StageCandidate], epochs: f64) -> Vec<Point> {
    let whole = all.iter().map(|one| one.size).fold(0, u64::saturating_add);
    let point = |share: f64| {
        let size = if share < 1.0 { (whole as f64 * share) as u64 } else { whole };
        let PlanPart { files, bytes, saved, .. } = part(choose(all, size), epochs);
        Point { share, size, files, bytes, saved }
    };
    SHARES.map(point).into()
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::report::sample::{Made, empty, hostile};
    use crate::stats::counters::{Op, Tier};
    use crate::stats::recording::Epoch;

    /// `count` candidates with few sizes and gains, so that ties occur.
    fn any(random: &mut SmallRng, count: usize) -> Vec<StageCandidate> {
        let mut all: Vec<_> = (0..count)
            .map(|n| {
                let (size, saved) = (random.random_range(1..30), random.random_range(0..20));
                let cost = saved + random.random_range(0..5);
                StageCandidate { path: format!("/{n}"), size, cost, saved, spent: Spent::default() }
            })
            .collect();
        all.sort_by(StageCandidate::order);
        all
    }

    fn saved<'a>(files: impl IntoIterator<Item = &'a StageCandidate>) -> u64 {
        files.into_iter().map(|one| one.saved).sum()
    }

    /// Found by trying all.
    fn best(all: &[StageCandidate], room: u64) -> u64 {
        let mut most = vec![0; room as usize + 1];
        for one in all {
            for left in (one.size..=room).rev() {
                most[left as usize] = most[left as usize].max(most[(left - one.size) as usize] + one.saved);
            }
        }
        most[room as usize]
    }

    #[test]
    fn what_is_chosen_fits_and_only_what_did_not_fit_is_better() {
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..2_000 {
            let all = any(&mut random, 20);
            let room = random.random_range(0..300);
            let chosen: Vec<_> = choose(&all, room).collect();
            assert!(chosen.iter().map(|one| one.size).sum::<u64>() <= room);
            for out in all.iter().filter(|one| one.saved > 0 && !chosen.contains(one)) {
                let before = chosen.iter().filter(|one| one.order(out).is_lt()).map(|one| one.size).sum::<u64>();
                assert!(before + out.size > room, "{out:?} was better, and fits");
            }
            assert!(chosen.iter().all(|one| one.saved > 0), "what saves nothing takes no room");
        }
    }

    #[test]
    fn it_is_at_most_one_file_short_of_the_best() {
        let mut random = SmallRng::seed_from_u64(2);
        for _ in 0..2_000 {
            let all = any(&mut random, 16);
            let room = random.random_range(0..200);
            let chosen: Vec<_> = choose(&all, room).collect();
            let first_out = all.iter().find(|one| !chosen.contains(one)).map_or(0, |one| one.saved);
            assert!(saved(chosen) + first_out >= best(&all, room), "room {room}: {all:?}");
        }
    }

    #[test]
    fn more_room_never_saves_less() {
        let mut random = SmallRng::seed_from_u64(3);
        for _ in 0..300 {
            let all = any(&mut random, 20);
            let by_room: Vec<_> = (0..=400).map(|room| saved(choose(&all, room))).collect();
            assert!(by_room.is_sorted(), "{all:?}");
            assert_eq!(by_room.last(), Some(&saved(&all)));
        }
    }

    #[test]
    fn the_order_is_the_same_however_files_come() {
        let mut random = SmallRng::seed_from_u64(4);
        for _ in 0..200 {
            let all = any(&mut random, 30);
            let mut other = all.clone();
            other.reverse();
            other.rotate_left(7);
            other.sort_by(StageCandidate::order);
            assert_eq!(all, other);
        }
        let huge =
            |saved, size, path: &str| StageCandidate { path: path.into(), size, saved, ..StageCandidate::default() };
        assert!(huge(u64::MAX, 1, "/b").order(&huge(u64::MAX - 1, 1, "/a")).is_lt(), "nothing overflows");
    }

    /// `/a`: 100 KB read twice in 100 ms each, opened in 10 ms. `/b`: ten times the bytes in the same time.
    fn twice() -> Made {
        let mut made = empty();
        for (ino, path, len) in [(2, "/a", 100_000), (3, "/b", 1_000_000)] {
            let read = |at| {
                [
                    (Op::Open, at, 10_000, 0, 0, Tier::Slow),
                    (Op::Read, at + 10, 100_000, 0, len, Tier::Slow),
                    (Op::Release, at + 120, 0, 0, 0, Tier::Fast),
                ]
            };
            made.file(ino, path, 1, &[read(1000), read(2000)].concat());
        }
        made
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1e-3)
    }

    #[test]
    fn what_an_epoch_costs_is_what_was_counted_by_the_epochs() {
        let plan = StagePlan::of(&mut twice().recording(), Some(500_000), |_| false);
        assert!(near(plan.epochs, 2.0) && !plan.epochs_found && !plan.is_compared, "{plan:?}");
        assert_eq!((plan.all.files, plan.all.bytes, plan.chosen.files), (2, 1_100_000, 1));
        assert!(near(plan.all.seconds, 0.22) && near(plan.chosen.saved, 0.11), "{plan:?}");
        assert_eq!((plan.files[0].path.as_str(), plan.files[0].bytes), ("/a", 100_000));
        assert_eq!(plan.promise.bytes, 100_000);
        assert!(plan.promise.before >= 110_000_000 && plan.promise.after <= plan.promise.before - 109_000_000);
        let text = plan.text();
        assert!(
            text.starts_with("staging 97.7 KiB of 1.0 MiB saves at most 110.0 ms of 220.0 ms per epoch\n"),
            "{text}"
        );
        assert!(text.contains("is taken to cost nothing"), "{text}");
    }

    /// The fast tier takes a tenth of the time for the same bytes, and a tenth for an open.
    #[test]
    fn what_the_fast_tier_takes_is_not_saved() {
        let mut made = twice();
        let fast = [(Op::Open, 3000, 1_000, 0, 0, Tier::Fast), (Op::Read, 3010, 10_000, 0, 100_000, Tier::Fast)];
        made.file(4, "/ckpt", 1, &fast);
        let plan = StagePlan::of(&mut made.recording(), None, |_| false);
        assert!(plan.is_compared && plan.chosen.files == 2, "{plan:?}");
        assert!(near(plan.files[0].seconds, 0.11) && near(plan.files[0].saved, 0.099), "{plan:?}");
        assert!(near(plan.files[1].saved, 0.009), "ten times the bytes take the fast tier ten times as long: {plan:?}");
        assert!(plan.text().contains("saves about"));
    }

    #[test]
    fn epochs_that_were_found_count_as_far_as_they_were_read() {
        let mut made = twice();
        let epoch = |number, began, ended, open, files| Epoch { number, began, ended, open, files, ..Epoch::default() };
        made.meta.epochs = vec![epoch(1, 1.0, 2.0, false, 40), epoch(2, 2.0, 3.0, true, 10)];
        let plan = StagePlan::of(&mut made.recording(), None, |_| false);
        assert!(plan.epochs_found && near(plan.epochs, 1.25), "{plan:?}");
        (made.meta.from, made.meta.until) = (1.0, 1.5);
        let plan = StagePlan::of(&mut made.recording(), None, |_| false);
        assert!(near(plan.epochs, 1.0), "a part of an epoch is told as it is: {plan:?}");
    }

    #[test]
    fn the_curve_ends_with_all_that_saves_anything() {
        let plan = StagePlan::of(&mut twice().recording(), Some(0), |_| false);
        let last = plan.curve.last().expect("seven");
        assert_eq!((plan.curve.len(), last.files, last.bytes), (7, 2, 1_100_000));
        assert!(near(last.saved, plan.all.saved) && plan.curve.is_sorted_by(|a, b| a.saved <= b.saved));
        assert!(plan.files.is_empty() && plan.promise == Promise::default());
    }

    #[test]
    fn a_path_that_has_two_numbers_is_one_file() {
        let mut made = twice();
        made.file(9, "/a", 1, &[(Op::Read, 5000, 100_000, 0, 100_000, Tier::Slow)]);
        let plan = StagePlan::of(&mut made.recording(), None, |_| false);
        assert_eq!((plan.all.files, plan.all.bytes), (2, 1_100_000));
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let plan = StagePlan::of(&mut twice().recording(), None, |_| false);
        assert_eq!(StagePlan::read(plan.json().as_bytes()), Ok(plan.clone()));
        let why = |json: &str| StagePlan::read(json.as_bytes()).expect_err("no plan");
        assert!(why("{}").contains("no plan") && why("[]").contains("no plan"));
        assert!(why(&StagePlan { schema: 9, ..plan.clone() }.json()).contains("plan again"));
        assert!(why(&plan.json().replace("\"/a\"", "\"a\"")).contains("no path"));
        assert!(why(&plan.json().replace("\"/a\"", "\"/a b\",\"path_escaped\":true")).contains("no path"));
    }

    #[test]
    fn nothing_and_nonsense_make_a_plan_too() {
        let nothing = StagePlan::of(&mut empty().recording(), None, |_| false);
        assert!(nothing.text().starts_with("Nothing was read") && StagePlan::read(nothing.json().as_bytes()).is_ok());
        let plan = StagePlan::of(&mut hostile().recording(), Some(1 << 40), |_| false);
        assert!(plan.epochs.is_finite() && plan.all.seconds.is_finite(), "{}", plan.epochs);
        assert!(StagePlan::read(plan.json().as_bytes()).is_ok());
    }
}

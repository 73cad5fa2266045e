//! What could be improved, as rules over a [`Summary`]. Pure.
//!
//! A rule is silent unless its threshold is exceeded and enough was counted to be meaningful. Its advice has the
//! figures, the threshold, and what to do: a command of this program or the system, or a line of the user's own code.

use super::calls::Readers;
use super::summary::{Advice, Staged, Summary, faster, grouped, percent, render_count, seconds_text, share};
use super::totals::TINY;
use crate::stats::access::AccessPattern;
use crate::stats::counters::{Op, nanos};
use crate::stats::plans::{Promise, RunningPlan};
use crate::stats::recording::Checkpoint;
use crate::stats::render::bytes;
use crate::{json, path};

/// Fewer calls than this say nothing about a habit.
const CALLS_MIN: u64 = 1000;
/// Less time than this is not worth the effort.
const SECONDS_MIN: f64 = 1.0;
/// The least bytes fetched again that are worth mentioning.
const BYTES_MIN: u64 = 64 << 20;
const STAGE_SHARE: f64 = 0.10;
const AGAIN_SHARE: f64 = 0.20;
const TINY_SHARE: f64 = 0.50;
/// The upper bound of Darshan's first three size classes.
const TINY_READ: u64 = 10 << 10;
const TINY_CLASSES: usize = 3;
const META_SHARE: f64 = 0.30;
const END_SHARE: f64 = 0.25;
const MISS_SHARE: f64 = 0.10;
const STALL_SHARE: f64 = 0.05;
const FULL_SHARE: f64 = 0.90;
const ALONE_SHARE: f64 = 0.90;
const READ_SHARE: f64 = 0.30;
const FASTER: f64 = 1.15;

/// All advice, safety first.
pub fn advise(summary: &Summary) -> Vec<Advice> {
    let rules = [full, drain, stall, stage, again, readers, metadata, tiny_files, tiny_reads, end_of_file, misses];
    let plans = summary.plans.iter().map(|told| plan(summary, told));
    rules.iter().filter_map(|rule| rule(summary)).chain(plans).collect()
}

/// A path as one word of a shell's command line.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+,:@%".contains(c);
    match path {
        "" => "SLOW".to_owned(),
        path if path.chars().all(plain) && !path.starts_with('-') => path.to_owned(),
        path => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

/// A size for find(1). It rounds sizes up to the unit, so the unit must divide the size exactly.
fn find_size(size: u64) -> String {
    let exact = |unit: u32| (size.is_multiple_of(1 << unit)).then_some(size >> unit);
    match (exact(30), exact(20), exact(10)) {
        (Some(n), _, _) => format!("{n}G"),
        (_, Some(n), _) => format!("{n}M"),
        (_, _, Some(n)) => format!("{n}k"),
        _ => format!("{size}c"),
    }
}

/// The size up to which files take the most time for their bytes.
fn best_size(summary: &Summary) -> Option<&Staged> {
    let fast = &summary.job.fast;
    let fits = |staged: &&Staged| fast.total == 0 || staged.bytes <= fast.total.saturating_sub(fast.used);
    let over = |staged: &Staged| staged.slow_share - staged.byte_share;
    let fitting = summary.staging.iter().filter(fits);
    fitting.max_by(|a, b| over(a).total_cmp(&over(b)))
}

fn stage(summary: &Summary) -> Option<Advice> {
    let best = best_size(summary)?;
    let is_worth = best.slow_share >= STAGE_SHARE
        && best.slow_share >= 2.0 * best.byte_share
        && best.slow_seconds >= SECONDS_MIN
        && best.gain.is_none_or(|gain| gain >= 0.02);
    if !is_worth {
        return None;
    }
    let Staged { size, files, bytes: sum, file_share, byte_share, slow_seconds, slow_share, fast_seconds, .. } = *best;
    let saved = slow_seconds - fast_seconds;
    let gain = |gain: f64| {
        format!(
            "saves {} of {} in reads; reading speed {}",
            seconds_text(saved),
            seconds_text(slow_seconds),
            faster(gain)
        )
    };
    Some(Advice {
        rule: "stage",
        what: format!("Stage the files of at most {}", bytes(size)),
        evidence: format!(
            "{} ({} of the files that were read) hold {} ({} of the bytes) and take {} of the time of reads from the slow tier",
            render_count(files, "file", "files"),
            percent(file_share),
            bytes(sum),
            percent(byte_share),
            percent(slow_share)
        ),
        threshold: format!("at least {} of that time, and twice their share of the bytes", percent(STAGE_SHARE)),
        command: format!(
            "find {0} -type f ! -size +{1} | dlio-fs stage --list - {0}    # or only the directories that are read",
            quoted(&summary.job.mountpoint),
            find_size(size)
        ),
        gain: best.gain.map(gain).or_else(|| {
            Some(format!("at most {}: nothing was read from the fast tier to compare with", seconds_text(slow_seconds)))
        }),
    })
}

fn again(summary: &Summary) -> Option<Advice> {
    let later = summary.epochs.iter().filter(|epoch| epoch.number > 1);
    let (fast, slow) = later.fold((0u64, 0u64), |sum, epoch| {
        (sum.0.saturating_add(epoch.bytes_fast), sum.1.saturating_add(epoch.bytes_slow))
    });
    let (sum, of, evidence) = if summary.epochs.len() > 1 {
        let all = fast.saturating_add(slow);
        (slow, all, format!("after the first epoch {} of {} still came from the slow tier", bytes(slow), bytes(all)))
    } else {
        let (sum, of) = (summary.files.slow_again, summary.moved.slow_bytes_read);
        (sum, of, format!("{} of the {} from the slow tier had been read before", bytes(sum), bytes(of)))
    };
    if sum < BYTES_MIN || share(sum, of) <= AGAIN_SHARE {
        return None;
    }
    let mount = quoted(&summary.job.mountpoint);
    let command = if summary.completeness.is_exact {
        format!(
            "dlio-fs umount {mount} && dlio-fs mount {mount} --fast {} --slow {} -o io=cached    # if it fits into memory; \
             else stage the data: dlio-fs stage",
            quoted(&summary.job.fast.path),
            quoted(&summary.job.slow.path)
        )
    } else {
        format!("dlio-fs stage {mount}    # or only the directories that are read")
    };
    Some(Advice {
        rule: "again",
        what: "Do not read the same data from the slow tier again".to_owned(),
        evidence,
        threshold: format!("more than {} of it, and at least {}", percent(AGAIN_SHARE), bytes(BYTES_MIN)),
        command,
        gain: None,
    })
}

fn tiny_files(summary: &Summary) -> Option<Advice> {
    let (tiny, opens) = (summary.files.tiny_opens, summary.files.opens);
    if opens < CALLS_MIN || share(tiny, opens) <= TINY_SHARE {
        return None;
    }
    Some(Advice {
        rule: "tiny_files",
        what: "Pack the small files into few large ones".to_owned(),
        evidence: format!(
            "{} of {} opens were of files below {}; the median size of a file read is {}",
            grouped(tiny),
            grouped(opens),
            bytes(TINY),
            bytes(summary.files.median)
        ),
        threshold: format!("more than {} of at least {} opens", percent(TINY_SHARE), grouped(CALLS_MIN)),
        command: "tar --sort=name -cf shard-000.tar -C DIRECTORY .    # and read it with webdataset or tarfile"
            .to_owned(),
        gain: None,
    })
}

/// Reads of a pattern.
fn reads_of(summary: &Summary, pattern: AccessPattern) -> u64 {
    summary.patterns.reads.iter().find(|(name, _)| *name == pattern.name()).map_or(0, |(_, calls)| *calls)
}

fn reads(summary: &Summary) -> u64 {
    summary.patterns.reads.iter().fold(0, |sum: u64, (_, calls)| sum.saturating_add(*calls))
}

fn tiny_reads(summary: &Summary) -> Option<Advice> {
    let empty = reads_of(summary, AccessPattern::End);
    let classes = summary.sizes.iter().take(TINY_CLASSES);
    let tiny = classes.fold(0, |sum: u64, class| sum.saturating_add(class.reads)).saturating_sub(empty);
    let all = reads(summary).saturating_sub(empty);
    // Larger reads are impossible if files are no larger themselves.
    if tiny < CALLS_MIN || share(tiny, all) <= TINY_SHARE || summary.files.median <= TINY_READ {
        return None;
    }
    let word = summary.size_word();
    Some(Advice {
        rule: "tiny_reads",
        what: "Read in larger pieces".to_owned(),
        evidence: format!(
            "the {word} size of {} of {} reads was at most {}, while the median file has {}",
            grouped(tiny),
            grouped(all),
            bytes(TINY_READ),
            bytes(summary.files.median)
        ),
        threshold: format!("more than {} of the reads, and at least {}", percent(TINY_SHARE), grouped(CALLS_MIN)),
        command: "open(path, 'rb', buffering=1 << 20)    # in your code".to_owned(),
        gain: None,
    })
}

fn end_of_file(summary: &Summary) -> Option<Advice> {
    let (empty, all) = (reads_of(summary, AccessPattern::End), reads(summary));
    if empty < CALLS_MIN || share(empty, all) <= END_SHARE {
        return None;
    }
    Some(Advice {
        rule: "end_of_file",
        what: "Do not make an extra read to find the end of a file".to_owned(),
        evidence: format!("{} of {} reads found nothing but the end", grouped(empty), grouped(all)),
        threshold: format!("more than {} of the reads, and at least {}", percent(END_SHARE), grouped(CALLS_MIN)),
        command: "os.pread(fd, os.fstat(fd).st_size, 0)    # in your code, instead of f.read()".to_owned(),
        gain: None,
    })
}

fn metadata(summary: &Summary) -> Option<Advice> {
    let cost = summary.cost.as_ref()?;
    let all = cost.read + cost.write + cost.meta;
    if cost.meta < SECONDS_MIN || cost.meta <= META_SHARE * all {
        return None;
    }
    let data = [Op::Read, Op::Write, Op::Fsync, Op::Fdatasync];
    let mut most: Vec<_> = summary.operations.iter().filter(|row| !data.contains(&row.op)).collect();
    most.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let told: Vec<_> = most
        .iter()
        .take(3)
        .map(|row| format!("{} {} in {}", grouped(row.calls), row.op.shown(), seconds_text(row.seconds)))
        .collect();
    let asks = most.first().is_some_and(|row| matches!(row.op, Op::Getattr | Op::Lookup | Op::Getxattr));
    let command = if asks {
        format!(
            "dlio-fs umount {0} && dlio-fs mount {0} --fast {1} --slow {2} -o attribute_lifetime_slow=1min    # if nobody else changes the slow tier",
            quoted(&summary.job.mountpoint),
            quoted(&summary.job.fast.path),
            quoted(&summary.job.slow.path)
        )
    } else {
        "tar --sort=name -cf shard-000.tar -C DIRECTORY .    # one open instead of thousands".to_owned()
    };
    Some(Advice {
        rule: "metadata",
        what: "Make fewer metadata calls".to_owned(),
        evidence: format!(
            "a process spent {} in metadata calls, {} of its time in calls; most in {}",
            seconds_text(cost.meta),
            percent(cost.meta / all),
            told.join(", ")
        ),
        threshold: format!("more than {} of the time in calls", percent(META_SHARE)),
        command,
        gain: None,
    })
}

fn misses(summary: &Summary) -> Option<Advice> {
    let lookups = summary.counted(Op::Lookup)?.calls;
    let of = summary.failures.iter().filter(|failure| failure.op == Op::Lookup && failure.errno == "ENOENT");
    let missed = of.fold(0, |sum: u64, failure| sum.saturating_add(failure.calls));
    if lookups < CALLS_MIN || share(missed, lookups) <= MISS_SHARE {
        return None;
    }
    let place = summary.files.misses.as_ref();
    let most = place.map(|(path, n)| format!("; most of them, {}, in {path}", grouped(*n))).unwrap_or_default();
    let directory = place.and_then(|(path, _)| path::unescape(path));
    let directory = directory.map_or("/DIRECTORY".into(), |path| String::from_utf8_lossy(&path).into_owned());
    let listed = format!("{}{directory}", summary.job.mountpoint.trim_end_matches('/'));
    Some(Advice {
        rule: "misses",
        what: "Avoid lookups of missing names".to_owned(),
        evidence: format!("{} of {} lookups found nothing{most}", grouped(missed), grouped(lookups)),
        threshold: format!("more than {} of at least {} lookups", percent(MISS_SHARE), grouped(CALLS_MIN)),
        command: format!(
            "names = set(os.listdir({}))    # in your code, once, instead of a lookup per name",
            json::string(&listed)
        ),
        gain: None,
    })
}

fn readers(summary: &Summary) -> Option<Advice> {
    let counted: Vec<_> = summary.readers.iter().filter(|level| level.seconds >= SECONDS_MIN).collect();
    let main = counted.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let best = counted.iter().max_by(|a, b| a.rate().total_cmp(&b.rate()))?;
    let rate = |level: &Readers| format!("{}/s", bytes(level.rate() as u64));
    let all: f64 = summary.readers.iter().map(|level| level.seconds).sum();
    if best.up_to != main.up_to && best.rate() > FASTER * main.rate() {
        let (what, rule) = match best.up_to < main.up_to {
            true => ("Read from the slow tier with fewer workers", "readers_many"),
            false => ("Read from the slow tier with more workers", "readers_few"),
        };
        return Some(Advice {
            rule,
            what: what.to_owned(),
            evidence: format!(
                "with {} it delivered {}, with {} it delivered {}",
                under_way(main.up_to),
                rate(main),
                under_way(best.up_to),
                rate(best)
            ),
            threshold: format!("{} faster, for at least {}", percent(FASTER - 1.0), seconds_text(SECONDS_MIN)),
            command: format!(
                "read with {0} threads or processes    # in your code; PyTorch: num_workers={0}; tf.data: num_parallel_calls={0}",
                best.up_to
            ),
            gain: Some(format!("reads from the slow tier {} faster", percent(best.rate() / main.rate() - 1.0))),
        });
    }
    let cost = summary.cost.as_ref()?;
    let alone = main.up_to == 1 && main.seconds >= ALONE_SHARE * all;
    if !alone || all <= READ_SHARE * cost.lasted {
        return None;
    }
    Some(Advice {
        rule: "readers_few",
        what: "Read from the slow tier with more than one worker".to_owned(),
        evidence: format!(
            "for {} of the {} in which it was read there was only one read under way; it delivered {}",
            seconds_text(main.seconds),
            seconds_text(all),
            rate(main)
        ),
        threshold: format!(
            "{} of that time, which is more than {} of the whole",
            percent(ALONE_SHARE),
            percent(READ_SHARE)
        ),
        command:
            "read with 4 threads or processes, 2 from one disk    # in your code; PyTorch: num_workers; tf.data: num_parallel_calls"
                .to_owned(),
        gain: None,
    })
}

fn under_way(readers: u64) -> String {
    match readers {
        1 => "one read under way".to_owned(),
        2 => "two reads under way".to_owned(),
        n => format!("{} to {n} reads under way", n / 2 + 1),
    }
}

/// For the framework that the names of its files tell, if they do.
fn save_beside_training(summary: &Summary) -> &'static str {
    let mut names = summary.top.iter().map(|file| &*file.path);
    match names.any(|name| name.ends_with(".distcp")) {
        true => "torch.distributed.checkpoint.async_save(...)    # in your code: write while training goes on",
        false => "save from a thread of its own    # in your code: write while training goes on",
    }
}

fn stall(summary: &Summary) -> Option<Advice> {
    let absorbing = |checkpoint: &Checkpoint| (checkpoint.absorbed - checkpoint.began).max(0.0);
    let stalled: f64 = summary.checkpoints.iter().map(absorbing).sum();
    if stalled < SECONDS_MIN || stalled <= STALL_SHARE * summary.lasted() {
        return None;
    }
    let sum = summary.checkpoints.iter().fold(0, |sum: u64, checkpoint| sum.saturating_add(checkpoint.bytes));
    let slow = summary.moved.slow_bytes_written;
    let spilled = if slow > 0 { format!("; {} went directly to the slow tier", bytes(slow)) } else { String::new() };
    // The rest is the program's own: it gathers and serializes what it writes.
    let in_calls = summary.cost.as_ref().map(|cost| seconds_text(cost.write));
    let in_calls = in_calls.map_or_else(String::new, |time| format!("; a process was in writes and syncs for {time}"));
    Some(Advice {
        rule: "checkpoint_stall",
        what: "Do not wait for checkpoints".to_owned(),
        evidence: format!(
            "{} ({} in total) took {} to write, {} of the time, at {}/s{spilled}{in_calls}",
            render_count(summary.checkpoints.len() as u64, "checkpoint", "checkpoints"),
            bytes(sum),
            seconds_text(stalled),
            percent(stalled / summary.lasted()),
            bytes((sum as f64 / stalled) as u64)
        ),
        threshold: format!("more than {} of the time", percent(STALL_SHARE)),
        command: save_beside_training(summary).to_owned(),
        gain: Some(format!("up to {}", seconds_text(stalled))),
    })
}

/// The result of a staging plan that was followed.
fn plan(summary: &Summary, told: &RunningPlan) -> Advice {
    let RunningPlan { job, files, promise: Promise { before, after, .. }, since } = *told;
    let seconds = |nanos: u64| seconds_text(nanos as f64 / 1e9);
    let predicted = format!("{} of {} per epoch", seconds(before.saturating_sub(after)), seconds(before));
    let mount = quoted(&summary.job.mountpoint);
    let (what, evidence, command) = match told.measured() {
        Some((epochs, each)) => {
            let saved = seconds(before.saturating_sub(nanos(each)));
            let slow = since.map_or(0.0, |since| share(since.slow_bytes, since.bytes));
            let left = match slow {
                slow if slow > 0.0 => format!("; {} of that still came from the slow tier", percent(slow)),
                _ => String::new(),
            };
            (
                format!("See the result of job {job}: it saves {saved} per epoch, {predicted} were predicted"),
                format!(
                    "its {} have taken {} per epoch since, {} were predicted; read {epochs:.1} times{left}",
                    render_count(files, "file", "files"),
                    seconds_text(each.as_secs_f64()),
                    seconds(after)
                ),
                format!(
                    "dlio-fs stage --show {mount}    # files that did not fit; for another plan, open a window and use dlio-fs plan --window"
                ),
            )
        }
        None => (
            format!("Read on to see the result of job {job}: it should save {predicted}"),
            format!("its {} have hardly been read since they were staged", render_count(files, "file", "files")),
            format!("dlio-fs advise {mount}    # after the next epoch"),
        ),
    };
    let threshold = "the job comes from a plan; the saving is measured in seconds in calls".to_owned();
    Advice { rule: "plan", what, evidence, threshold, command, gain: None }
}

/// The median.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn drain(summary: &Summary) -> Option<Advice> {
    let checkpoints = &summary.checkpoints;
    let every = median(checkpoints.windows(2).map(|two| two[1].began - two[0].began).collect())?;
    let takes = median(checkpoints.iter().filter_map(|one| Some(one.drained? - one.absorbed)).collect())?;
    if every <= 0.0 || takes <= every || takes < SECONDS_MIN {
        return None;
    }
    let waiting = match checkpoints.iter().filter(|one| one.drained.is_none()).count() as u64 {
        0 => String::new(),
        n => format!("; {} not there yet", render_count(n, "is", "are")),
    };
    Some(Advice {
        rule: "drain",
        what: "Save no more often than the slow tier can take".to_owned(),
        evidence: format!(
            "a checkpoint comes every {} and takes {} to reach the slow tier{waiting}",
            seconds_text(every),
            seconds_text(takes)
        ),
        threshold: "longer to the slow tier than until the next one".to_owned(),
        command: format!("save_every *= {}    # in your code; or make checkpoints smaller", (takes / every).ceil()),
        gain: None,
    })
}

fn full(summary: &Summary) -> Option<Advice> {
    let fast = &summary.job.fast;
    if fast.total == 0 || share(fast.used, fast.total) <= FULL_SHARE {
        return None;
    }
    Some(Advice {
        rule: "full",
        what: "Make room on the fast tier".to_owned(),
        evidence: format!(
            "{} of {} are in use ({})",
            bytes(fast.used),
            bytes(fast.total),
            percent(share(fast.used, fast.total))
        ),
        threshold: format!("more than {}", percent(FULL_SHARE)),
        command: format!("dlio-fs evict --all {}", quoted(&summary.job.mountpoint)),
        gain: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::empty;
    use crate::report::summary::{Cost, Counted, Moved, SizeClass};
    use crate::report::totals::FileRow;
    use crate::stats::plans::Spent;
    use crate::stats::recording::{Epoch, RecordedFailure};

    /// A summary in which no rule finds anything.
    fn quiet() -> Summary {
        let mut summary = Summary::of(&mut empty().recording());
        let lasted = Cost { until: 100.0, active: 100.0, lasted: 100.0, ..Cost::default() };
        summary.cost = Some(Cost { processes: 4, read: 20.0, write: 5.0, meta: 1.0, any: 25.0, ..lasted });
        summary.job.wall = 100.0;
        summary.moved = Moved { bytes_read: 1 << 40, slow_bytes_read: 1 << 39, ..Moved::default() };
        summary.files.opens = 100_000;
        summary.files.median = 1 << 20;
        summary.patterns.reads = vec![("first", 100_000), ("consecutive", 100_000), ("end", 10_000)];
        summary
    }

    /// The advice of one rule, for a summary that is otherwise quiet.
    fn said(rule: &str, change: impl FnOnce(&mut Summary)) -> Option<Advice> {
        let mut summary = quiet();
        assert_eq!(advise(&summary), []);
        change(&mut summary);
        let mut all = advise(&summary);
        assert!(all.iter().all(|advice| advice.rule == rule), "{all:?}");
        assert!(all.len() <= 1, "{all:?}");
        all.pop()
    }

    fn staged(size: u64, file_share: f64, byte_share: f64, slow_share: f64) -> Staged {
        Staged {
            size,
            files: (file_share * 10_868.0) as u64,
            bytes: (byte_share * 48e9) as u64,
            file_share,
            byte_share,
            slow_seconds: slow_share * 500.0,
            slow_share,
            fast_seconds: slow_share * 10.0,
            slow_reads: 10_000,
            gain: Some(1.0 / (1.0 - slow_share * 0.98) - 1.0),
        }
    }

    #[test]
    fn what_came_of_a_plan_is_told_once_it_was_read_again() {
        let plan = |since| {
            let promise = Promise { before: 60_000_000_000, after: 20_000_000_000, bytes: 1000 };
            said("plan", |summary| summary.plans = vec![RunningPlan { job: 3, files: 12, promise, since }])
                .expect("a plan")
        };
        let open = plan(None);
        assert_eq!(open.what, "Read on to see the result of job 3: it should save 40.0 s of 60.0 s per epoch");
        let measured = plan(Some(Spent { time: 50_000_000_000, bytes: 2000, slow_bytes: 200 }));
        let what = "See the result of job 3: it saves 35.0 s per epoch, 40.0 s of 60.0 s per epoch were predicted";
        assert_eq!(measured.what, what);
        let evidence = "its 12 files have taken 25.0 s per epoch since, 20.0 s were predicted; read 2.0 times; 10 % of that still \
                        came from the slow tier";
        assert_eq!(measured.evidence, evidence);
        let worse = plan(Some(Spent { time: 90_000_000_000, bytes: 1000, slow_bytes: 0 }));
        assert!(worse.what.contains(": it saves 0 s per epoch") && !worse.evidence.contains("slow tier"), "{worse:?}");
    }

    /// The case of tf-Darshan: 40 % of the files and 8 % of the bytes are in files below 2 MB, and staging them made
    /// reading 19 % faster.
    #[test]
    fn files_that_take_much_time_for_few_bytes_are_to_be_staged() {
        let curve = |small| {
            vec![
                staged(1 << 20, 0.2, 0.02, small / 3.0),
                staged(2 << 20, 0.4, 0.08, small),
                staged(8 << 20, 1.0, 1.0, 1.0),
            ]
        };
        let advice = said("stage", |summary| summary.staging = curve(0.165)).expect("worth it");
        assert!(
            advice.what.contains("2.0 MiB")
                && advice
                    .command
                    .starts_with("find /mnt/train -type f ! -size +2M | dlio-fs stage --list - /mnt/train    # "),
            "{advice:?}"
        );
        assert!(advice.gain.as_ref().is_some_and(|gain| gain.contains("reading speed +19 %")), "{advice:?}");
        assert!(
            advice.evidence.contains("40 % of the files that were read")
                && advice.evidence.contains("8.0 % of the bytes"),
            "{advice:?}"
        );
        assert_eq!(said("stage", |summary| summary.staging = curve(0.09)), None, "too little time");
        assert_eq!(
            said("stage", |summary| summary.staging = vec![staged(2 << 20, 0.4, 0.3, 0.4)]),
            None,
            "as many bytes"
        );
        let full = |summary: &mut Summary| {
            summary.staging = curve(0.165);
            (summary.job.fast.total, summary.job.fast.used) = (1 << 30, 1 << 29);
        };
        assert_eq!(said("stage", full), None, "there is no room");
        let unknown = |summary: &mut Summary| {
            summary.staging = curve(0.165);
            summary.staging.iter_mut().for_each(|point| point.gain = None);
            summary.job.mountpoint = "/mnt/it's here".into();
        };
        let advice = said("stage", unknown).expect("worth it");
        assert!(advice.gain.is_some_and(|gain| gain.starts_with("at most")));
        assert!(advice.command.contains(r"--list - '/mnt/it'\''s here'    # "), "{}", advice.command);
    }

    #[test]
    fn what_is_fetched_again_is_told() {
        let epochs = |slow: u64| {
            let epoch = |number, bytes_fast, bytes_slow| Epoch { number, bytes_fast, bytes_slow, ..Epoch::default() };
            vec![epoch(1, 0, 1 << 30), epoch(2, (1 << 30) - slow, slow)]
        };
        let advice = said("again", |summary| summary.epochs = epochs(1 << 29)).expect("half of it");
        assert!(
            advice.evidence.contains("512.0 MiB of 1.0 GiB")
                && advice
                    .command
                    .ends_with("-o io=cached    # if it fits into memory; else stage the data: dlio-fs stage")
        );
        assert_eq!(said("again", |summary| summary.epochs = epochs(1 << 27)), None);
        let cached = |summary: &mut Summary| {
            summary.epochs = epochs(1 << 29);
            summary.completeness.is_exact = false;
        };
        assert!(said("again", cached).expect("half of it").command.starts_with("dlio-fs stage /mnt/train    # "));
        assert!(
            said("again", |summary| summary.files.slow_again = 1 << 38).is_some(),
            "without epochs the files tell it"
        );
        assert_eq!(said("again", |summary| summary.files.slow_again = 1 << 36), None);
    }

    #[test]
    fn small_files_and_small_reads_are_told() {
        let opens = |tiny| said("tiny_files", |summary| summary.files.tiny_opens = tiny);
        assert!(opens(50_001).is_some_and(|advice| advice.evidence.contains("50,001 of 100,000 opens")));
        assert_eq!(opens(50_000), None);
        let few = |summary: &mut Summary| (summary.files.opens, summary.files.tiny_opens) = (999, 999);
        assert_eq!(said("tiny_files", few), None);
        let reads = |small: u64, change: fn(&mut Summary)| {
            said("tiny_reads", |summary| {
                let class = |name, reads| SizeClass { name, reads, writes: 0, bytes_read: 0, bytes_written: 0 };
                summary.sizes = vec![
                    class("0_100", 10_000),
                    class("1K_10K", 0),
                    class("100_1K", small),
                    class("10K_100K", 200_000 - small),
                ];
                change(summary);
            })
        };
        assert!(
            reads(100_001, |_| {})
                .is_some_and(|advice| advice.evidence.starts_with("the access size of 100,001 of 200,000 reads"))
        );
        assert_eq!(reads(100_000, |_| {}), None, "the empty ones at the end of a file are none");
        assert_eq!(reads(150_000, |summary| summary.files.median = 5_000), None, "the files are no larger");
        let cached = reads(150_000, |summary| summary.completeness.is_exact = false).expect("many");
        assert!(cached.evidence.contains("request size") && !cached.evidence.contains("access"), "{cached:?}");
    }

    #[test]
    fn reads_that_only_find_the_end_are_told() {
        let ends = |n| said("end_of_file", |summary| summary.patterns.reads[2].1 = n);
        assert!(ends(70_000).is_some_and(|advice| advice.evidence.starts_with("70,000 of 270,000 reads")));
        assert_eq!(ends(60_000), None);
    }

    #[test]
    fn metadata_that_takes_much_of_the_time_is_told() {
        let spent = |meta: f64, op| {
            said("metadata", |summary| {
                summary.cost.as_mut().expect("known").meta = meta;
                summary.operations = vec![Counted { op, calls: 128_000, errors: 0, slow: 0, bytes: 0, seconds: 44.0 }];
            })
        };
        let advice = spent(11.0, Op::Open).expect("much");
        assert!(advice.evidence.contains("31 % of its time in calls; most in 128,000 open in 44.0 s"), "{advice:?}");
        assert!(advice.command.starts_with("tar "));
        assert!(spent(11.0, Op::Getattr).is_some_and(|advice| advice.command.contains("attribute_lifetime_slow=1min")));
        assert_eq!(spent(10.0, Op::Open), None);
    }

    #[test]
    fn look_ups_in_vain_are_told_with_the_directory() {
        let missed = |calls| {
            said("misses", |summary| {
                summary.operations =
                    vec![Counted { op: Op::Lookup, calls: 10_000, errors: calls, slow: 0, bytes: 0, seconds: 0.1 }];
                summary.failures = vec![
                    RecordedFailure { op: Op::Lookup, errno: "ENOENT".into(), calls },
                    RecordedFailure { op: Op::Lookup, errno: "EACCES".into(), calls: 5_000 },
                ];
                summary.files.misses = Some(("/my%20env".into(), 900));
            })
        };
        let advice = missed(1_001).expect("many");
        assert!(
            advice.evidence.contains("1,001 of 10,000") && advice.evidence.contains("900, in /my%20env"),
            "{advice:?}"
        );
        assert!(advice.command.contains(r#"os.listdir("/mnt/train/my env")"#), "{}", advice.command);
        assert_eq!(missed(1_000), None);
    }

    #[test]
    fn too_few_and_too_many_readers_are_told() {
        let level = |up_to, seconds: f64, rate: f64| Readers { up_to, seconds, bytes: seconds * rate };
        let readers = |rule, levels: &[Readers]| said(rule, |summary| summary.readers = levels.to_vec());
        // A disk: 94 MB/s with one reader, 77 MB/s with sixteen.
        let advice = readers("readers_many", &[level(1, 5.0, 94e6), level(16, 60.0, 77e6)]).expect("too many");
        assert!(
            advice.command.contains("num_workers=1")
                && advice.evidence.contains("9 to 16 reads under way it delivered 73.4 MiB/s"),
            "{advice:?}"
        );
        assert!(advice.gain.is_some_and(|gain| gain.contains("22 % faster")));
        assert_eq!(readers("readers_many", &[level(1, 5.0, 85e6), level(16, 60.0, 77e6)]), None, "not much faster");
        assert_eq!(readers("readers_many", &[level(1, 0.5, 200e6), level(16, 60.0, 77e6)]), None, "seen for too short");
        assert!(
            readers("readers_few", &[level(1, 60.0, 3e6), level(8, 5.0, 20e6)])
                .is_some_and(|advice| advice.command.contains("num_workers=8"))
        );
        assert!(readers("readers_few", &[level(1, 40.0, 3e6)]).is_some_and(|advice| advice.gain.is_none()));
        assert_eq!(readers("readers_few", &[level(1, 25.0, 3e6)]), None, "it is seldom read");
        assert_eq!(readers("readers_few", &[level(1, 40.0, 3e6), level(2, 40.0, 3e6)]), None, "there are two at times");
    }

    fn checkpoints(every: f64, absorb: f64, drain: f64) -> Vec<Checkpoint> {
        let one = |n: u32| {
            let began = f64::from(n) * every;
            let absorbed = began + absorb;
            let drained = (n < 3).then_some(absorbed + drain);
            Checkpoint { number: n.into(), began, absorbed, bytes: 1 << 30, drained, ..Checkpoint::default() }
        };
        (0..4).map(one).collect()
    }

    #[test]
    fn checkpoints_that_hold_up_training_are_told() {
        let stalled = |absorb| said("checkpoint_stall", |summary| summary.checkpoints = checkpoints(20.0, absorb, 1.0));
        let advice = stalled(2.0).expect("8 of 100 seconds");
        assert!(
            advice
                .evidence
                .contains("4 checkpoints (4.0 GiB in total) took 8.0 s to write, 8.0 % of the time, at 512.0 MiB/s"),
            "{advice:?}"
        );
        assert!(advice.command.starts_with("save from a thread"), "of no framework: {}", advice.command);
        let top = vec![FileRow { path: "/run/step-5/__0_0.distcp".to_owned(), ..FileRow::default() }];
        let of_torch = said("checkpoint_stall", |summary| {
            (summary.checkpoints, summary.top) = (checkpoints(20.0, 2.0, 1.0), top.clone());
        });
        assert!(of_torch.is_some_and(|advice| advice.command.contains("async_save")));
        assert_eq!(stalled(1.2), None);
    }

    #[test]
    fn a_drain_that_does_not_keep_up_is_told() {
        let slow = |drain| said("drain", |summary| summary.checkpoints = checkpoints(20.0, 0.5, drain));
        let advice = slow(45.0).expect("slower");
        assert!(
            advice.evidence.contains("every 20.0 s and takes 45.0 s")
                && advice.evidence.ends_with("1 is not there yet"),
            "{advice:?}"
        );
        assert_eq!(advice.command.split("  ").next(), Some("save_every *= 3"));
        assert_eq!(slow(19.0), None);
    }

    #[test]
    fn a_full_fast_tier_is_told() {
        let used = |used| said("full", |summary| (summary.job.fast.total, summary.job.fast.used) = (100 << 30, used));
        assert_eq!(used(91 << 30).map(|advice| advice.command), Some("dlio-fs evict --all /mnt/train".to_owned()));
        assert_eq!(used(90 << 30), None);
        assert_eq!(said("full", |summary| summary.job.fast.total = 0), None, "not known");
    }
}

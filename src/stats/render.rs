//! A mount's status for people and scripts: text, and JSON with the same content. Pure: a status in, a string out.
//!
//! The first line of the text answers whether everything is on the slow tier, and names what stands in the way. Paths
//! appear only where a problem's own text has them; [`Status::for_others`] removes that text.

use std::fmt::Write;
use std::time::Duration;

use super::counters::Op;
use super::status::{
    Exceptions, FailingCalls, FailureCount, Figures, HeldUser, IoPathFigures, LongestCall, Operation, PartnerFigures,
    Safety, Status, TierSpace,
};
use super::trace::TraceExtent;
use crate::json;
use crate::path::{harmless, harmless_lines};

/// Longer estimates are not shown: the rate was measured while next to nothing moved.
const ETA_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

impl Status {
    /// The status for users other than the mount's owner: a problem is reported without its text, which may name a
    /// path, and other mounts without theirs.
    pub fn for_others(self) -> Self {
        let other_mounts = self.other_mounts.iter().map(|_| "another mount".to_owned()).collect();
        let partner = self.partner.map(PartnerFigures::for_others);
        Status { safety: self.safety.for_others(), other_mounts, partner, held_users: Vec::new(), ..self }
    }

    /// The first line: whether everything is safe, and what a reader must not miss.
    pub fn line(&self) -> String {
        let mut line = self.safety.line();
        if let Some(LongestCall { seconds, .. }) = &self.slow_calls.longest {
            line.push_str(&format!("; a call has waited for the slow tier for {seconds} s"));
        }
        line.extend(self.failing.iter().map(|failing| format!("; {}", failing.line())));
        let conflicts = self.exceptions.conflicts;
        if conflicts > 0 {
            line.push_str(&format!("; CONFLICT: {}, see dlio-fs queue", count(conflicts, "file")));
        }
        line
    }

    /// The text of `.dlio/stats`. Ends with a newline.
    pub fn text(&self) -> String {
        let mut out = self.line();
        out.push_str("\n\n");
        // Writing to a String cannot fail.
        self.sections(&mut out).expect("formatting into memory");
        harmless_lines(&out).into_owned()
    }

    /// The text of `.dlio/stats.json`, one object. Ends with a newline.
    pub fn json(&self) -> String {
        json::document(self)
    }

    fn sections(&self, out: &mut String) -> std::fmt::Result {
        let Status { pipeline, log, cache, exceptions, slow_calls, files, .. } = self;
        writeln!(out, "dlio-fs {}, mounted for {}", self.version, seconds(self.mounted_for))?;
        writeln!(out, "fast tier    {}", self.fast.line())?;
        writeln!(out, "slow tier    {}", self.slow.line())?;
        self.held_users.iter().try_for_each(|held| writeln!(out, "held         {}", held.line_since()))?;
        for part in &self.off {
            writeln!(
                out,
                "off          {part}: turned off by a bug; no file is affected; see the log, and mount again to turn it on"
            )?;
        }
        if !self.other_mounts.is_empty() {
            writeln!(
                out,
                "             mounted by {}, too: order is kept for each mount only",
                self.other_mounts.join(", ")
            )?;
        }
        if let Some(partner) = &self.partner {
            writeln!(out, "partner      {}", partner.line())?;
        }
        if let Some(saved) = self.saved.as_ref().filter(|saved| saved.files > 0) {
            let (size, files) = (bytes(saved.bytes), count(saved.files, "file"));
            writeln!(out, "saved        {size} in {files} on the slow tier, see dlio-fs saved")?;
        }
        writeln!(
            out,
            "pipeline     {} pending, {} published",
            count(pipeline.pending_events, "change"),
            pipeline.published_events
        )?;
        writeln!(
            out,
            "             {}, {} drained at {}/s; {} evicted",
            count(pipeline.drained_files, "file"),
            bytes(pipeline.drained_bytes),
            bytes(pipeline.drain_bytes_per_s),
            pipeline.evictions
        )?;
        let cost = pipeline.drain_cpu_per_gib.map_or("unknown".into(), |cpu| format!("{:.2}", cpu.as_secs_f64()));
        writeln!(out, "             {cost} CPU seconds per GiB drained")?;
        if pipeline.copies + pipeline.staged_files > 0 {
            let (copies, new) = (count(pipeline.copies, "file"), pipeline.staged_files);
            writeln!(out, "staged       {copies}, {}; {new} of them since the mount", bytes(pipeline.copies_bytes))?;
        }
        writeln!(out, "log          {}, {} of them durable", count(log.lsn, "record"), log.durable_lsn)?;
        writeln!(
            out,
            "cache        {}, {}, {} open",
            count(cache.objects, "object"),
            count(cache.known_inodes, "known inode"),
            count(cache.open_files, "file")
        )?;
        writeln!(
            out,
            "exceptions   {} batches, {} late snapshots, {} in-place writes",
            exceptions.batches, exceptions.late_snapshots, exceptions.in_place_writes
        )?;
        let Exceptions { spilled, conflicts, left_out, removed_first, replaced, .. } = exceptions;
        write!(out, "             {spilled} spilled, {conflicts} conflicts, {left_out} attributes left out")?;
        if *removed_first > 0 {
            write!(out, ", {removed_first} removed first")?;
        }
        if exceptions.held_back > 0 {
            write!(out, ", {} held back", exceptions.held_back)?;
        }
        if *replaced > 0 {
            write!(out, ", {replaced} replaced")?;
        }
        writeln!(out)?;
        if exceptions.skipped > 0 {
            let (versions, size) = (count(exceptions.skipped, "version"), bytes(exceptions.skipped_bytes));
            writeln!(out, "             {versions} superseded and skipped, {size}")?;
        }
        if exceptions.set_aside > 0 {
            writeln!(out, "             {} set aside", count(exceptions.set_aside, "change"))?;
        }
        writeln!(
            out,
            "recovery     last start: {} discarded, {} damaged; {} in quarantine",
            exceptions.discarded,
            exceptions.damaged,
            count(exceptions.quarantined, "object")
        )?;
        writeln!(
            out,
            "slow calls   {} served; EIO: {} timed out, {} when {} waited; {} wait now",
            slow_calls.served, slow_calls.timed_out, slow_calls.refused, slow_calls.limit, slow_calls.waiting
        )?;
        if let Some(LongestCall { seconds, about }) = &slow_calls.longest {
            writeln!(out, "             waiting for {seconds} s: {about}")?;
        }
        let IoPathFigures { name, opens, not_seen } = &self.io_path;
        let opens: Vec<_> = opens.iter().map(|(path, opens)| format!("{opens} {path}")).collect();
        writeln!(out, "I/O path     {name}; opens: {}", opens.join(", "))?;
        for hidden in not_seen {
            writeln!(out, "  not seen:  {hidden}")?;
        }
        if let Some(addr) = &self.metrics_addr {
            writeln!(out, "metrics      http://{addr}/metrics")?;
        }
        if !self.profile {
            return writeln!(out, "counted      nothing: profile = false");
        }
        writeln!(
            out,
            "counted      {}, in {} of at most {}",
            count(files.files as u64, "file"),
            bytes(files.bytes as u64),
            bytes(files.limit_bytes as u64)
        )?;
        if files.unnamed > 0 {
            writeln!(out, "             FULL: files that are new are counted by what their names end in")?;
        }
        let TraceExtent { calls, collected, dropped, unwritten, .. } = self.found.trace;
        writeln!(out, "traced       {}, the latest {calls} in memory", count(collected, "call"))?;
        if dropped + unwritten > 0 {
            writeln!(
                out,
                "             {dropped} came too fast and are not traced, {unwritten} not in the files of trace"
            )?;
        }
        operation_table(out, &self.operations)?;
        failure_list(out, &self.failures)
    }
}

fn operation_table(out: &mut String, operations: &[Operation]) -> std::fmt::Result {
    let row = |out: &mut String, cells: [&str; 8]| {
        let [op, calls, errors, size, mean, p50, p99, max] = cells;
        writeln!(out, "{op:<16}{calls:>9}{errors:>7}{size:>11}{mean:>9}{p50:>9}{p99:>9}{max:>9}")
    };
    out.push('\n');
    row(out, ["operation", "calls", "errors", "bytes", "mean", "p50 <", "p99 <", "max"])?;
    for line in operations {
        row(out, cells(shown_op(&line.op), &line.all).each_ref().map(String::as_str))?;
        // If both tiers served it: the figures of the slow one.
        if let (Some(slow), true) = (line.tiers.get("slow"), line.tiers.len() > 1) {
            row(out, cells("  on slow", slow).each_ref().map(String::as_str))?;
        }
    }
    Ok(())
}

/// The name of an operation for people. It stays what it is in documents for scripts.
pub fn shown_op(name: &str) -> &str {
    if name == Op::Refused.name() { Op::Refused.shown() } else { name }
}

fn cells(name: &str, figures: &Figures) -> [String; 8] {
    let optional = |time: Option<Duration>| time.map_or_else(|| "-".into(), latency);
    let mean = figures.p50.map(|_| figures.total.div_f64(figures.calls.max(1) as f64));
    [
        name.to_owned(),
        figures.calls.to_string(),
        figures.errors.to_string(),
        bytes(figures.bytes),
        optional(mean),
        optional(figures.p50),
        optional(figures.p99),
        optional(figures.p50.map(|_| figures.max)),
    ]
}

/// The most frequent ones, one line each.
fn failure_list(out: &mut String, failures: &[FailureCount]) -> std::fmt::Result {
    const SHOWN: usize = 10;
    if failures.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nfailed with\n")?;
    for FailureCount { op, errno, calls } in failures.iter().take(SHOWN) {
        writeln!(out, "{op:<16}{calls:>9}  {errno}")?;
    }
    match failures.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "and {more} more: stats.json"),
    }
}

impl HeldUser {
    /// One line, without a newline, which stays the same as long as the reason does.
    pub fn line(&self) -> String {
        format!("user {}, while others go on: {}", self.uid, one_line(&self.reason))
    }

    /// The same with the time since when.
    pub fn line_since(&self) -> String {
        format!("{}, {}", seconds(self.held_for), self.line())
    }
}

impl FailingCalls {
    /// Without a newline.
    pub fn line(&self) -> String {
        let FailingCalls { calls, writes, errno, ago } = self;
        let ago = seconds(*ago);
        match *writes {
            0 => format!("CALLS FAIL: {}, the last error {errno} {ago} ago", count(*calls, "call")),
            _ => format!("WRITES FAIL: {}, the last error {errno} {ago} ago", count(*writes, "call")),
        }
    }

    /// The same if some of them are writes.
    pub fn of_writes(&self) -> Option<String> {
        (self.writes > 0).then(|| self.line())
    }
}

impl Safety {
    /// See [`Status::for_others`].
    pub fn for_others(self) -> Self {
        Safety { held: self.held.map(|_| "see .dlio/stats as the owner of the mount".to_owned()), ..self }
    }

    /// One line: the verdict first, then what stands in the way. Without a newline.
    pub fn line(&self) -> String {
        let mut parts = vec![match (self.safe, self.files) {
            (true, _) => "SAFE: everything is on the slow tier".to_owned(),
            // Nothing waits, and yet something stands in the way: the reason follows.
            (false, 0) if self.events == 0 && self.interrupted == 0 => "NOT SAFE".to_owned(),
            (false, 0) => format!("NOT SAFE: {} only on fast", count(self.events, "change")),
            (false, files) if files == self.writing && self.events == 0 => {
                format!("NOT SAFE: {} being written, {} only on fast", count(files, "file"), bytes(self.bytes))
            }
            (false, files) => format!("NOT SAFE: {}, {} only on fast", count(files, "file"), bytes(self.bytes)),
        }];
        // What blocks everything comes before the figures: a reader of the line must not miss it.
        parts.extend(self.held.as_ref().map(|why| format!("HELD: {}", one_line(why))));
        if self.slow_down {
            parts.push("SLOW TIER DOWN".to_owned());
        }
        if self.fast_fails {
            parts.push("FAST TIER FAILS: new files go to the slow tier, see the log".to_owned());
        }
        if self.refusing {
            parts.push("REFUSING CHANGES (ENOSPC): max_pending changes wait for the slow tier".to_owned());
        }
        if self.users_refused > 0 {
            let users = count(self.users_refused, "user");
            parts.push(format!(
                "REFUSING CHANGES OF {users} (ENOSPC): no user's changes may be more than are left to others"
            ));
        }
        if self.interrupted > 0 {
            parts.push(format!(
                "{} cut off by a crash (see dlio-fs queue; write it again, delete it, or accept it: dlio-fs sync)",
                count(self.interrupted, "file")
            ));
        }
        if !self.safe {
            parts.extend(self.oldest.map(|age| format!("oldest {}", seconds(age))));
            parts.push(self.what_follows());
        }
        parts.join("; ")
    }
}

impl Safety {
    /// When it is safe, or what comes before that.
    fn what_follows(&self) -> String {
        let eta = self.eta.filter(|eta| *eta < ETA_MAX);
        match (self.snapshot_in, eta) {
            (Some(soon), _) if self.events == 0 && self.held.is_none() && !self.slow_down => {
                format!("a snapshot follows in {}", seconds(soon))
            }
            (_, Some(eta)) => format!("ETA {}", seconds(eta.max(Duration::from_secs(1)))),
            (_, None) => "ETA unknown".to_owned(),
        }
    }
}

impl PartnerFigures {
    /// See [`Status::for_others`].
    fn for_others(self) -> Self {
        PartnerFigures { trouble: self.trouble.map(|_| "see .dlio/stats as the owner of the mount".to_owned()), ..self }
    }

    /// The verdict, then what stands in the way.
    fn line(&self) -> String {
        let mut parts = vec![match self.safe_if_one_node_is_lost {
            true if self.trouble.is_some() => "SAFE IF ONE NODE IS LOST: everything is on the slow tier".to_owned(),
            true => "SAFE IF ONE NODE IS LOST: everything is on the slow tier, or in the copy".to_owned(),
            false => format!(
                "NOT SAFE IF ONE NODE IS LOST: {} ({}), {} only here",
                count(self.events, "change"),
                bytes(self.bytes),
                count(self.open_files, "open file")
            ),
        }];
        parts.extend(self.trouble.as_ref().map(|why| format!("NO COPY: {}", one_line(why))));
        parts.extend(self.waits.map(|waits| {
            format!(
                "publishing has been waiting for the copy at the partner for {} s, and the other members with it",
                waits.as_secs()
            )
        }));
        parts.join("; ")
    }
}

impl TierSpace {
    fn line(&self) -> String {
        format!("{} used of {}, {} available", bytes(self.used), bytes(self.total), bytes(self.available))
    }
}

/// `1 file`, `2 files`.
pub fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// A size with one decimal in binary units: `0 B`, `1.8 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (n as f64, "B");
    for next in UNITS {
        // 1023.95 would print as 1024.0 of the smaller unit.
        if value < 1023.95 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") }
}

/// A rounded-down span for people: `14 s`, `3 min`, `2 h`, `5 d`.
pub fn seconds(span: Duration) -> String {
    match span.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} d", s / 86_400),
    }
}

/// The same with a tenth below ten seconds: `0.9 s`.
pub fn tenths(span: Duration) -> String {
    if span < Duration::from_secs(10) { format!("{:.1} s", span.as_secs_f64()) } else { seconds(span) }
}

/// A latency with about three digits: `4 us`, `1.5 ms`, `2.1 s`.
pub(super) fn latency(span: Duration) -> String {
    match span.as_micros() {
        us @ 0..1_000 => format!("{us} us"),
        us @ 1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        us => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// The first line must stay one line, whatever an error message contains.
pub fn one_line(text: &str) -> String {
    harmless(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::stats::catalog::CatalogExtent;
    use crate::stats::counters::{self, Call, OpCounters};
    use crate::stats::recorder::MetricsRecorder;
    use crate::stats::status::{DaemonFigures, Detected, LogFigures, SlowCalls};

    const GIB: u64 = 1 << 30;

    fn unsafe_now() -> Safety {
        Safety {
            files: 2,
            bytes: (18 * GIB) / 10,
            events: 5,
            oldest: Some(Duration::from_millis(14_900)),
            eta: Some(Duration::from_secs(11)),
            ..Safety::default()
        }
    }

    fn status(safety: Safety) -> Status {
        let counters = OpCounters::default();
        let (op, began, took) = (Op::Read, Duration::ZERO, Duration::from_micros(100));
        let tier = counters::Tier::Fast;
        counters.record(&Call { op, began, took, offset: 0, bytes: 4096, errno: None, tier });
        let forgotten = OpCounters::default();
        forgotten.record_untimed(9);
        Status {
            safety,
            version: "1.2.3".into(),
            mounted_for: Duration::from_secs(90),
            fast: TierSpace { total: 10 * GIB, used: GIB, available: 9 * GIB },
            log: LogFigures { lsn: 12, durable_lsn: 11, applied_lsn: 10 },
            io_path: IoPathFigures {
                name: "exact".into(),
                opens: [("exact".into(), 3)].into(),
                not_seen: vec!["lseek".into()],
            },
            operations: Operation::all(vec![
                (Op::Read, tier, counters.figures()),
                (Op::Read, counters::Tier::Slow, counters.figures()),
                (Op::Forget, tier, forgotten.figures()),
                (Op::Refused, tier, forgotten.figures()),
            ]),
            failures: FailureCount::all(vec![(Op::Lookup, Errno::ENOENT, 7), (Op::Open, Errno::EACCES, 9)]),
            profile: true,
            files: CatalogExtent { files: 3, bytes: 400, limit_bytes: 1 << 20, unnamed: 0 },
            found: Detected {
                trace: TraceExtent { collected: 12, calls: 9, ..Default::default() },
                ..Detected::default()
            },
            daemon: DaemonFigures { cpu: Some(Duration::from_millis(1500)), ..DaemonFigures::default() },
            metrics_addr: Some("0.0.0.0:9464".into()),
            other_mounts: vec!["node7:/mnt/train".into()],
            ..Status::default()
        }
    }

    #[test]
    fn metrics_have_the_totals_and_what_is_known_now() {
        let totals = MetricsRecorder::default();
        totals.count("dliofs_batches_total", "Batches.", &[]).increment(3);
        let now = status(unsafe_now());
        let text = now.metrics(&totals);
        for line in [
            "dliofs_batches_total 3",
            "# TYPE process_cpu_seconds_total counter",
            "process_cpu_seconds_total 1.5",
            "# TYPE dliofs_drain_eta_seconds gauge",
            "dliofs_drain_eta_seconds 11",
            r#"dliofs_build_info{version="1.2.3",io_path="exact"} 1"#,
            r#"dliofs_read_bytes_total{tier="slow"} 4096"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
        let unknown = Safety { eta: None, ..unsafe_now() };
        let text = Status { profile: false, ..status(unknown) }.metrics(&totals);
        assert!(!text.contains("dliofs_drain_eta_seconds"), "what is not known any more has no sample");
        assert!(!text.contains("dliofs_read_bytes_total"), "nor has what is not counted");
    }

    #[test]
    fn the_first_line_answers_the_one_question() {
        let safe = Safety { safe: true, ..Safety::default() };
        assert_eq!(safe.line(), "SAFE: everything is on the slow tier");
        assert_eq!(unsafe_now().line(), "NOT SAFE: 2 files, 1.8 GiB only on fast; oldest 14 s; ETA 11 s");
        let one = Safety { files: 1, bytes: 512, oldest: None, eta: None, ..unsafe_now() };
        assert_eq!(one.line(), "NOT SAFE: 1 file, 512 B only on fast; ETA unknown");
        let writing = (1, Some(Duration::from_secs(35)));
        let open =
            Safety { files: 1, bytes: 11, events: 0, writing: writing.0, snapshot_in: writing.1, ..unsafe_now() };
        let line = "NOT SAFE: 1 file being written, 11 B only on fast; oldest 14 s; a snapshot follows in 35 s";
        assert_eq!(open.line(), line);
        let others = Safety { writing: writing.0, snapshot_in: writing.1, ..unsafe_now() };
        assert_eq!(others.line(), unsafe_now().line(), "what waits besides comes first");
        let down = Safety { slow_down: true, eta: None, ..open };
        assert!(down.line().ends_with("; SLOW TIER DOWN; oldest 14 s; ETA unknown"), "{}", down.line());
        let names_only = Safety { files: 0, eta: None, ..unsafe_now() };
        let stalled = Safety { eta: Some(Duration::from_secs(15_724_800)), ..names_only.clone() };
        assert_eq!(stalled.line(), names_only.line(), "a rate of almost nothing tells nothing");
        assert_eq!(names_only.line(), "NOT SAFE: 5 changes only on fast; oldest 14 s; ETA unknown");
    }

    #[test]
    fn problems_stand_in_the_first_line_right_after_the_verdict() {
        let held = Safety { held: Some("quota\nexceeded; raise it".into()), interrupted: 1, ..unsafe_now() };
        assert_eq!(
            held.line(),
            "NOT SAFE: 2 files, 1.8 GiB only on fast; HELD: quota exceeded; raise it; \
             1 file cut off by a crash (see dlio-fs queue; write it again, delete it, or accept it: dlio-fs sync); oldest 14 s; ETA 11 s"
        );
        let down = Safety { safe: true, slow_down: true, ..Safety::default() };
        assert_eq!(down.line(), "SAFE: everything is on the slow tier; SLOW TIER DOWN");
        let failing = Safety { safe: true, fast_fails: true, ..Safety::default() };
        let line = failing.line();
        assert!(line.starts_with("SAFE: everything is on the slow tier; FAST TIER FAILS: "), "{line}");
    }

    #[test]
    fn others_learn_of_a_problem_but_not_of_the_path_in_its_text() {
        let held = Safety { held: Some("rename /secret/run: EDQUOT".into()), ..unsafe_now() };
        let shown = status(held.clone()).for_others();
        for text in [shown.text(), shown.json()] {
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(shown.text().lines().next().expect("a line").contains("HELD"));
        assert!(status(held).text().contains("secret"), "the owner sees all of it");
    }

    #[test]
    fn text_fits_a_terminal_of_80_columns() {
        let mut full = status(unsafe_now());
        full.fast = TierSpace { total: 9999 * GIB, used: 999 * GIB, available: 999 * GIB };
        full.pipeline.pending_events = 999_999;
        full.exceptions = Exceptions { batches: 9999, conflicts: 99, spilled: 999, ..Exceptions::default() };
        // But for the first line, which names all that is wrong.
        full.slow_calls = SlowCalls { served: 999_999, limit: 1024, threads: 32, ..SlowCalls::default() };
        let long = |text: &str| text.lines().skip(1).find(|line| line.len() > 80).map(str::to_owned);
        assert_eq!(long(&full.text()), None);
        full.files = CatalogExtent { files: 9_999_999, bytes: 1000 << 20, limit_bytes: 1000 << 20, unnamed: 7 };
        assert_eq!(long(&full.text()), None);
    }

    #[test]
    fn the_first_line_names_calls_that_wait_and_conflicts() {
        let mut one = status(Safety { safe: true, ..Safety::default() });
        one.slow_calls.longest = Some(LongestCall { seconds: 8, about: "cat (pid 7): open /cold".into() });
        one.exceptions.conflicts = 2;
        assert_eq!(
            one.text().lines().next(),
            Some(
                "SAFE: everything is on the slow tier; a call has waited for the slow tier for 8 s; \
                 CONFLICT: 2 files, see dlio-fs queue"
            )
        );
    }

    #[test]
    fn text_lists_every_operation_and_what_is_not_seen() {
        let text = status(unsafe_now()).text();
        assert!(text.starts_with("NOT SAFE: "));
        assert!(text.ends_with('\n'));
        assert!(text.contains("log          12 records, 11 of them durable\n"), "{text}");
        // Numbers of records beside SAFE looked as if something were missing.
        assert!(!text.contains("LSN") && !text.contains("applied"), "{text}");
        assert!(text.contains("not seen:  lseek"), "{text}");
        assert!(text.contains("metrics      http://0.0.0.0:9464/metrics"), "{text}");
        let cells = |op: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(op)).expect("a row per operation");
            line.split_whitespace().map(str::to_owned).collect()
        };
        let read = ["read", "2", "0", "8.0", "KiB", "100", "us", "100", "us", "100", "us", "100", "us"];
        assert_eq!(cells("read"), read, "no quantile is above the longest call");
        assert_eq!(cells("  on slow")[2..4], ["1", "0"], "of two one was on the slow tier");
        assert_eq!(cells("open"), ["open", "9", "EACCES"]);
        assert_eq!(cells("forget"), ["forget", "9", "0", "0", "B", "-", "-", "-", "-"], "no duration is invented");
        assert_eq!(cells("left to kernel")[..4], ["left", "to", "kernel", "9"]);
        assert!(!text.contains("refused"), "by whom, and what? {text}");
    }

    #[test]
    fn json_has_the_same_content() {
        let value: serde_json::Value = serde_json::from_str(&status(unsafe_now()).json()).expect("valid JSON");
        assert_eq!(value["safety"]["safe"], false);
        assert_eq!(value["safety"]["files"], 2);
        assert_eq!(value["safety"]["oldest"], 14.9);
        assert_eq!(value["log"]["applied_lsn"], 10);
        assert_eq!(value["io_path"]["name"], "exact");
        assert_eq!(value["operations"][0]["op"], "read");
        assert_eq!(value["operations"][0]["latency_log2_us"][7], 2);
        assert!(value["operations"][1]["p50"].is_null());
        assert_eq!(value["operations"][0]["tiers"]["slow"]["calls"], 1);
        assert_eq!(value["operations"][2]["op"], "refused", "scripts know it by this name");
        assert_eq!(value["failures"][1], serde_json::json!({"op": "lookup", "errno": "ENOENT", "calls": 7}));
        assert_eq!(value["files"]["files"], 3);
        assert_eq!(value["daemon"]["cpu"], 1.5);
        assert_eq!(value["metrics_addr"], "0.0.0.0:9464");
    }

    #[test]
    fn sizes_and_spans_read_well_at_their_edges() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (GIB - 1, "1.0 GiB"),
            (GIB, "1.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        for (s, text) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")] {
            assert_eq!(seconds(Duration::from_secs(s)), text);
        }
    }
}

//! A summary as sections of facts and tables: the content of the documents for people, in one order and wording. Pure.
//!
//! A renderer decides how a section looks; charts repeat figures of the tables, so that no figure exists only as a
//! picture. Texts from outside are stripped of what a terminal or a browser might interpret ([`shown`]).

use std::time::{Duration, UNIX_EPOCH};

use crate::path::{harmless, readable};

use super::summary::{Advice, Summary, faster, grouped, percent, render_count, seconds_text, share};
use crate::stats::counters::Op;
use crate::stats::recording::{Checkpoint, Epoch, RecordedProcess, TierPlace};
use crate::stats::render::bytes;

/// The most rows of lists that grow with time.
const ROWS_MAX: usize = 100;
/// The most characters of a text from outside.
const TEXT_MAX: usize = 300;

/// A part of a document.
#[derive(Clone, Debug)]
pub struct Section {
    /// One word, for links.
    pub id: &'static str,
    pub title: &'static str,
    /// What it shows, and how to read it.
    pub lead: String,
    pub blocks: Vec<PageBlock>,
}

#[derive(Clone, Debug)]
pub enum PageBlock {
    Facts(Vec<(&'static str, String)>),
    Table(Table),
    /// Drawn by renderers that can draw.
    Chart(Chart),
}

/// The charts of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chart {
    Timeline,
    Heat,
    Cost,
    Operations,
    Sizes,
    Patterns,
    Latency,
    Staging,
    Checkpoints,
    Workers,
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub title: &'static str,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
    /// Says what was left out.
    pub note: Option<String>,
    /// Large enough to need a search.
    pub is_searched: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// Numbers are right-aligned.
    pub is_number: bool,
}

/// A text, and the number it stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    pub text: String,
    pub key: Option<f64>,
}

/// A text from outside as one harmless line of limited length.
pub fn shown(text: &str) -> String {
    shortened(&harmless(text), TEXT_MAX)
}

/// At most `max` characters: the middle is cut out.
pub fn shortened(text: &str, max: usize) -> String {
    let len = text.chars().count();
    if len <= max {
        return text.to_owned();
    }
    let (head, tail) = (max.saturating_sub(3) / 3, max.saturating_sub(3) - max.saturating_sub(3) / 3);
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(len - tail).collect();
    format!("{begin}...{end}")
}

fn text(value: impl Into<String>) -> Cell {
    Cell { text: value.into(), key: None }
}

fn number(n: u64) -> Cell {
    Cell { text: grouped(n), key: Some(n as f64) }
}

fn size(n: u64) -> Cell {
    Cell { text: bytes(n), key: Some(n as f64) }
}

fn time(seconds: f64) -> Cell {
    Cell { text: seconds_text(seconds), key: Some(seconds) }
}

fn part(share: f64) -> Cell {
    Cell { text: percent(share), key: Some(share) }
}

fn at(seconds: f64) -> Cell {
    Cell { text: format!("{seconds:.1} s"), key: Some(seconds) }
}

fn rate(n: u64, seconds: f64) -> Cell {
    match seconds > 0.0 {
        true => Cell { text: format!("{}/s", bytes((n as f64 / seconds) as u64)), key: Some(n as f64 / seconds) },
        false => none(),
    }
}

fn none() -> Cell {
    text("-")
}

/// Columns from their names: a leading `#` marks numbers.
fn grid<const N: usize>(title: &'static str, names: [&'static str; N], rows: Vec<[Cell; N]>) -> Table {
    let column = |name: &'static str| match name.strip_prefix('#') {
        Some(name) => Column { name, is_number: true },
        None => Column { name, is_number: false },
    };
    let (columns, rows) = (names.map(column).to_vec(), rows.into_iter().map(Vec::from).collect());
    Table { title, columns, rows, note: None, is_searched: false }
}

fn table<const N: usize>(title: &'static str, names: [&'static str; N], rows: Vec<[Cell; N]>) -> PageBlock {
    PageBlock::Table(grid(title, names, rows))
}

/// The first [`ROWS_MAX`] of a list, and a note about the others.
fn first<T>(all: &[T]) -> (&[T], Option<String>) {
    let left = all.len().saturating_sub(ROWS_MAX);
    (&all[..all.len() - left], (left > 0).then(|| format!("and {} more: see the JSON", grouped(left as u64))))
}

fn with_note(block: PageBlock, note: Option<String>) -> PageBlock {
    match block {
        PageBlock::Table(table) => PageBlock::Table(Table { note, ..table }),
        other => other,
    }
}

/// The sections after the advice and the completeness.
pub fn sections(summary: &Summary) -> Vec<Section> {
    let all = [
        over_time(summary),
        cost(summary),
        operations(summary),
        latency(summary),
        sizes(summary),
        patterns(summary),
        files(summary),
        tiers(summary),
        staging(summary),
        checkpoints(summary),
        epochs(summary),
        workers(summary),
        windows(summary),
        top(summary),
    ];
    all.into_iter().flatten().collect()
}

/// What was observed, where and when.
pub fn job(summary: &Summary) -> Vec<(&'static str, String)> {
    let job = &summary.job;
    let place = |place: &TierPlace| match (shown(&place.path), shown(&place.kind)) {
        (path, kind) if kind.is_empty() => path,
        (path, kind) => format!("{path} ({kind}, {} of {} in use)", bytes(place.used), bytes(place.total)),
    };
    let mut facts =
        vec![("Mount", shown(&job.mountpoint)), ("Fast tier", place(&job.fast)), ("Slow tier", place(&job.slow))];
    if let Some(window) = &job.window {
        facts.push(("Window", shown(window)));
    }
    facts.push(("Began", date(job.since, job.from)));
    facts.push(("Ended", date(job.since, job.until)));
    facts.push((
        "Time",
        format!("{}, something went on for {}", seconds_text(job.wall), seconds_text(summary.lasted())),
    ));
    facts.push(("Processes", grouped(job.processes)));
    facts.push(("Host", format!("{} ({})", shown(&job.host), shown(&job.kernel))));
    facts.push(("User", job.uid.to_string()));
    facts.push(("dlio-fs", shown(&job.version)));
    if !job.safety.is_empty() {
        facts.push(("Then", shown(&job.safety)));
    }
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// What the figures include, and what they lack.
pub fn completeness(summary: &Summary) -> Vec<(&'static str, String)> {
    let all = &summary.completeness;
    let opens: Vec<_> = all.opens.iter().map(|(name, n)| format!("{} {}", grouped(*n), shown(name))).collect();
    let path = match (shown(&all.io_path), opens.is_empty()) {
        (name, _) if name.is_empty() => "not known".to_owned(),
        (name, true) => name,
        (name, false) => format!("{name}; opens: {}", opens.join(", ")),
    };
    let sizes = match all.is_exact {
        true => {
            "as programs issued them, but for what the kernel splits: more than 1 MiB, or 1 MiB in memory that is not page-aligned"
        }
        false => "those of requests that reached the mount, not those that programs issued",
    };
    let traced = match (all.traced_from, all.traced_until) {
        (Some(from), Some(until)) => format!(
            "{} of {} calls, from {from:.1} s to {until:.1} s",
            grouped(all.traced),
            grouped(all.calls.max(all.traced))
        ),
        _ => "no call: what needs single calls is left out".to_owned(),
    };
    let mut facts = vec![("I/O path", path), ("Sizes are", sizes.to_owned())];
    facts.extend(all.not_seen.iter().map(|what| ("Not seen", shown(what))));
    facts.push(("Traced", traced));
    facts.push((
        "Dropped",
        match all.dropped {
            0 => "none".to_owned(),
            n => format!("{}: counted, but not traced", render_count(n, "call", "calls")),
        },
    ));
    facts.push((
        "Files",
        match all.unnamed {
            0 => "all told apart".to_owned(),
            n => {
                format!("beyond the limit of memory some are counted together ({})", render_count(n, "piece", "pieces"))
            }
        },
    ));
    if !all.is_whole {
        facts.push(("Cut off", "the end of the recording is missing".to_owned()));
    }
    facts.extend(all.flaws.iter().map(|flaw| ("Flaw", shown(flaw))));
    facts
}

/// Only what is missing, and that those who read nothing else must know.
pub fn gaps(summary: &Summary) -> Vec<(&'static str, String)> {
    let all = &summary.completeness;
    let is_gap = |label: &str| match label {
        "Dropped" => all.dropped > 0,
        "Files" => all.unnamed > 0,
        label => label == "Cut off",
    };
    completeness(summary).into_iter().filter(|(label, _)| is_gap(label)).collect()
}

/// Advice as facts; [`command`] has how to do it.
pub fn advised(advice: &Advice) -> Vec<(&'static str, String)> {
    let mut facts = vec![("Seen", shown(&advice.evidence)), ("Told when", shown(&advice.threshold))];
    facts.extend(advice.gain.as_ref().map(|gain| ("Predicted", shown(gain))));
    facts
}

/// The command to type, and its comment.
pub fn command(advice: &Advice) -> (String, Option<String>) {
    let command = harmless(&advice.command).into_owned();
    match command.split_once("    # ") {
        Some((command, comment)) => (command.to_owned(), Some(comment.to_owned())),
        None => (command, None),
    }
}

/// `2026-11-22 09:28:20 UTC`.
fn date(since: Duration, after: f64) -> String {
    if since.is_zero() {
        return String::new();
    }
    let moment = UNIX_EPOCH + since;
    let after = Duration::try_from_secs_f64(after).unwrap_or_default();
    let moment = moment.checked_add(after).unwrap_or(moment);
    let told = humantime::format_rfc3339_seconds(moment).to_string();
    told.replace('T', " ").replace('Z', " UTC")
}

/// How many bytes each tier moved, and how fast.
pub fn moved(summary: &Summary) -> Option<Table> {
    let timeline = &summary.timeline;
    let peak = |name: &'static str, values: &[u64]| {
        let most = values.iter().enumerate().max_by_key(|(_, n)| **n).filter(|(_, n)| **n > 0)?;
        let all = values.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let begins = summary.timeline_from + most.0 as f64 * timeline.span;
        let moving = values.iter().filter(|n| **n > 0).count() as f64 * timeline.span;
        Some([text(name), size(all), rate(all, moving), rate(*most.1, timeline.span), at(begins)])
    };
    let rows = [
        peak("read from the fast tier", &timeline.read_fast),
        peak("read from the slow tier", &timeline.read_slow),
        peak("written to the fast tier", &timeline.written_fast),
        peak("written to the slow tier", &timeline.written_slow),
        peak("drained to the slow tier", &timeline.drained),
    ];
    let rows: Vec<_> = rows.into_iter().flatten().collect();
    (!rows.is_empty()).then(|| grid("", ["what moved", "#bytes", "#mean while moving", "#peak", "#at"], rows))
}

fn over_time(summary: &Summary) -> Option<Section> {
    let (timeline, spans) = (&summary.timeline, &summary.spans);
    let mut blocks = Vec::new();
    if !timeline.calls.is_empty() {
        blocks.push(PageBlock::Chart(Chart::Timeline));
        blocks.extend(moved(summary).map(PageBlock::Table));
    }
    if !summary.heat.rows.is_empty() {
        blocks.push(PageBlock::Chart(Chart::Heat));
    }
    let between = |(name, span): (&'static str, Option<(f64, f64)>)| {
        span.map(|(first, last)| [text(name), at(first), at(last), time(last - first)])
    };
    let rows: Vec<_> =
        [("opens", spans.opens), ("reads", spans.reads), ("writes", spans.writes), ("closes", spans.closes)]
            .into_iter()
            .filter_map(between)
            .collect();
    if !rows.is_empty() {
        blocks.push(table("First and last", ["what", "#first", "#last", "#between"], rows));
    }
    let lead =
        format!("In spans of {}; moments are seconds since the mount was made.", seconds_text(timeline.span.max(0.0)));
    (!blocks.is_empty()).then_some(Section { id: "time", title: "Over time", lead, blocks })
}

fn cost(summary: &Summary) -> Option<Section> {
    let cost = summary.cost.as_ref()?;
    if cost.active <= 0.0 {
        return None;
    }
    let row = |name, seconds: f64| [text(name), time(seconds), part(cost.share(seconds))];
    let rows = vec![
        row("reads", cost.read),
        row("writes and syncs", cost.write),
        row("metadata", cost.meta),
        row("any of them", cost.any),
        row("none: it computed or waited elsewhere", cost.active - cost.any),
    ];
    let lead = format!(
        "Time in which a process had at least one call under way, each moment counted once, and its share of the time from its first \
         call to its last: {}, the mean of {}.",
        seconds_text(cost.active),
        render_count(cost.processes, "process", "processes")
    );
    let blocks = vec![PageBlock::Chart(Chart::Cost), table("", ["in", "#time", "#share"], rows)];
    Some(Section { id: "cost", title: "I/O cost", lead, blocks })
}

fn operations(summary: &Summary) -> Option<Section> {
    let row = |row: &super::summary::Counted| {
        [
            text(row.op.shown()),
            number(row.calls),
            number(row.errors),
            number(row.slow),
            if row.bytes > 0 { size(row.bytes) } else { none() },
            time(row.seconds),
        ]
    };
    let rows: Vec<_> = summary.operations.iter().map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let names = ["operation", "#calls", "#failed", "#on slow", "#bytes", "#time"];
    let mut blocks = vec![PageBlock::Chart(Chart::Operations), table("", names, rows)];
    let (failures, note) = first(&summary.failures);
    if !failures.is_empty() {
        let rows =
            failures.iter().map(|one| [text(one.op.shown()), text(shown(&one.errno)), number(one.calls)]).collect();
        blocks.push(with_note(table("Failed", ["operation", "error", "#calls"], rows), note));
    }
    let mut lead = "Named as the kernel names them. The time is the sum over all calls, which may overlap. A failed look-up (ENOENT) \
                is a name that does not exist."
        .to_owned();
    if summary.operations.iter().any(|row| row.op == Op::Refused) {
        lead.push_str(" Left to the kernel: ioctl, access, poll and locks, which it answers by itself.");
    }
    Some(Section { id: "operations", title: "Operations", lead, blocks })
}

fn latency(summary: &Summary) -> Option<Section> {
    let row = |row: &super::summary::LatencyQuantiles| {
        [
            text(row.op.shown()),
            text(row.tier.name()),
            number(row.calls),
            time(row.p50),
            time(row.p90),
            time(row.p99),
            time(row.p999),
            time(row.max),
        ]
    };
    let rows: Vec<_> = summary.latency.iter().map(row).collect();
    let names = ["operation", "tier", "#calls", "#p50", "#p90", "#p99", "#p99.9", "#longest"];
    let lead = "The time below which a share of the calls stayed: at most 6.3 % too high. From the request's arrival to its reply."
        .to_owned();
    let blocks = vec![PageBlock::Chart(Chart::Latency), table("", names, rows.clone())];
    (!rows.is_empty()).then_some(Section { id: "latency", title: "Latency", lead, blocks })
}

/// A readable form of Darshan's class names.
pub fn class_name(name: &str) -> String {
    match name {
        "0_100" => "0 - 100 B".to_owned(),
        "1G_PLUS" => "> 1 GiB".to_owned(),
        name => {
            let unit = |bound: &str| match bound.split_at(bound.len() - 1) {
                (n, "K") => format!("{n} KiB"),
                (n, "M") => format!("{n} MiB"),
                (n, "G") => format!("{n} GiB"),
                _ => format!("{bound} B"),
            };
            name.split_once('_').map_or_else(|| name.to_owned(), |(from, to)| format!("{} - {}", unit(from), unit(to)))
        }
    }
}

fn sizes(summary: &Summary) -> Option<Section> {
    let used = |class: &&super::summary::SizeClass| class.reads + class.writes > 0;
    let row = |class: &super::summary::SizeClass| {
        [
            text(class_name(class.name)),
            number(class.reads),
            size(class.bytes_read),
            number(class.writes),
            size(class.bytes_written),
        ]
    };
    let rows: Vec<_> = summary.sizes.iter().filter(used).map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let mut blocks =
        vec![PageBlock::Chart(Chart::Sizes), table("", ["size", "#reads", "#read", "#writes", "#written"], rows)];
    for (title, name, values) in
        [("Commonest sizes", "size", &summary.common_sizes), ("Commonest strides", "stride", &summary.common_strides)]
    {
        let rows: Vec<_> = values
            .iter()
            .map(|(value, n)| [size(*value), Cell { text: format!("{} B", grouped(*value)), key: None }, number(*n)])
            .collect();
        if !rows.is_empty() {
            let names =
                if name == "size" { ["#size", "#in bytes", "#calls"] } else { ["#stride", "#in bytes", "#calls"] };
            blocks.push(table(title, names, rows));
        }
    }
    let (title, what) = match summary.completeness.is_exact {
        true => ("Access sizes", "As programs issued them"),
        false => ("Request sizes", "What reached the mount through the page cache, not what programs issued"),
    };
    let lead = format!(
        "{what}; by Darshan's ten classes, a bound belonging to the class below it. Counted by calls and by the bytes that they moved. \
         Of each file the first 32 different sizes and strides are known."
    );
    Some(Section { id: "sizes", title, lead, blocks })
}

fn patterns(summary: &Summary) -> Option<Section> {
    let patterns = &summary.patterns;
    let sum = |calls: &[(&str, u64)]| calls.iter().fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));
    let (reads, writes) = (sum(&patterns.reads), sum(&patterns.writes));
    if reads + writes == 0 {
        return None;
    }
    let means = |name: &str| match name {
        "first" => "the first of its open file",
        "consecutive" => "begins where the one before ended",
        "forward" => "begins behind that",
        "backward" => "begins before that",
        "again" => "of bytes that were touched before",
        _ => "found nothing: the end of the file",
    };
    let row = |(read, write): (&(&'static str, u64), &(&'static str, u64))| {
        [
            text(read.0),
            number(read.1),
            part(share(read.1, reads)),
            number(write.1),
            part(share(write.1, writes)),
            text(means(read.0)),
        ]
    };
    let rows = patterns.reads.iter().zip(&patterns.writes).map(row).collect();
    let row = |name, read: u64, write: u64| {
        [text(name), number(read), part(share(read, reads)), number(write), part(share(write, writes))]
    };
    let darshan = vec![
        row("sequential", patterns.sequential_reads, patterns.sequential_writes),
        row("consecutive", patterns.consecutive_reads, patterns.consecutive_writes),
    ];
    let blocks = vec![
        PageBlock::Chart(Chart::Patterns),
        table("", ["pattern", "#reads", "#of all", "#writes", "#of all", "which means"], rows),
        table("By Darshan's rules", ["", "#reads", "#of all", "#writes", "#of all"], darshan),
        PageBlock::Facts(vec![
            ("Turns", format!("{} from reading to writing or back, in one file", grouped(patterns.switches))),
            ("Unaligned", format!("{} did not begin at a multiple of 4096", grouped(patterns.unaligned))),
        ]),
    ];
    let lead = "Each read and write is one of these, for its open file. Darshan counts a file that is read whole in one call as \
                neither sequential nor consecutive, and the empty read at its end as both."
        .to_owned();
    Some(Section { id: "patterns", title: "Patterns", lead, blocks })
}

fn files(summary: &Summary) -> Option<Section> {
    let all = &summary.files;
    if all.used == 0 {
        return None;
    }
    let rows = all.kinds.iter().map(|kind| [text(kind.name), number(kind.files), size(kind.average), size(kind.max)]);
    let blocks = vec![
        table("", ["files", "#count", "#average size", "#largest"], rows.collect()),
        PageBlock::Facts(vec![
            ("Opens", grouped(all.opens)),
            ("Median size", format!("{} of those that were read", bytes(all.median))),
            (
                "Besides",
                render_count(
                    all.asked,
                    "file or directory was only looked at",
                    "files and directories were only looked at",
                ),
            ),
        ]),
    ];
    let lead = "A size is how far a file was read or written. Read again: more bytes were read than it has.".to_owned();
    Some(Section { id: "files", title: "Files", lead, blocks })
}

fn tiers(summary: &Summary) -> Option<Section> {
    let row = |row: &super::summary::TierRow| {
        [
            text(row.tier.name()),
            text(shown(&row.place.kind)),
            number(row.reads),
            size(row.bytes_read),
            number(row.writes),
            size(row.bytes_written),
            time(row.seconds),
        ]
    };
    if summary.tiers.iter().all(|row| row.reads + row.writes == 0) {
        return None;
    }
    let drained = summary.moved.drained;
    let names = ["tier", "file system", "#reads", "#read", "#writes", "#written", "#time"];
    let mut blocks = vec![table("", names, summary.tiers.iter().map(row).collect())];
    let slow = share(summary.moved.slow_bytes_read, summary.moved.bytes_read);
    let mut facts = vec![("Served fast", format!("{} of the bytes that were read", percent(1.0 - slow)))];
    if drained > 0 {
        facts.push(("Drained", format!("{} were copied to the slow tier in the background", bytes(drained))));
    }
    blocks.push(PageBlock::Facts(facts));
    let lead =
        "The slow tier's are calls that had to wait for it; memory counts as fast. Times may overlap.".to_owned();
    Some(Section { id: "tiers", title: "Data by file system and tier", lead, blocks })
}

fn staging(summary: &Summary) -> Option<Section> {
    let row = |row: &super::summary::Staged| {
        [
            size(row.size),
            number(row.files),
            part(row.file_share),
            size(row.bytes),
            part(row.byte_share),
            time(row.slow_seconds),
            part(row.slow_share),
            row.gain.map_or_else(none, |gain| Cell { text: faster(gain), key: Some(gain) }),
        ]
    };
    let rows: Vec<_> = summary.staging.iter().map(row).collect();
    let names = ["#up to", "#files", "#of all", "#bytes", "#of all", "#slow reads", "#of all", "#faster"];
    let lead = "The share that files up to a size have of all files read, and of the time in reads from the slow tier: if the time is far \
                above the bytes, few bytes on fast storage save much. Faster: how much all reading would gain with these files \
                there, judged by what reads of each tier took."
        .to_owned();
    let blocks = vec![PageBlock::Chart(Chart::Staging), table("", names, rows.clone())];
    (!rows.is_empty()).then_some(Section { id: "staging", title: "Staging", lead, blocks })
}

/// The last checkpoints, at most so many.
pub fn last_checkpoints(summary: &Summary, rows: usize) -> Option<Table> {
    let all = &summary.checkpoints;
    let before = all.len().saturating_sub(rows);
    let note = (before > 0).then(|| format!("and {} before", grouped(before as u64)));
    let last = all.get(before..).filter(|last| !last.is_empty())?;
    Some(Table { note, ..checkpoint_table(last) })
}

fn checkpoint_table(some: &[Checkpoint]) -> Table {
    let row = |one: &Checkpoint| {
        let absorbed = one.absorbed - one.began;
        let drained = one.drained.map(|drained| drained - one.absorbed);
        [
            number(one.number),
            at(one.began),
            number(one.files),
            size(one.bytes),
            time(absorbed),
            rate(one.bytes, absorbed),
            drained.map_or_else(|| text("under way"), time),
            text(shown(&readable(&one.path))),
        ]
    };
    let names = ["##", "#at", "#files", "#bytes", "#absorb", "#rate", "#drain", "path"];
    grid("", names, some.iter().map(row).collect())
}

fn checkpoints(summary: &Summary) -> Option<Section> {
    let (some, note) = first(&summary.checkpoints);
    let lead = "Absorbed: from the first open to the end of the last close or fsync, while the program waits. Drained: from then until all of it \
                is on the slow tier; until then it is lost with the node."
        .to_owned();
    let blocks = vec![PageBlock::Chart(Chart::Checkpoints), with_note(PageBlock::Table(checkpoint_table(some)), note)];
    (!some.is_empty()).then_some(Section { id: "checkpoints", title: "Checkpoints", lead, blocks })
}

fn epochs(summary: &Summary) -> Option<Section> {
    let (some, note) = first(&summary.epochs);
    let row = |one: &Epoch| {
        let (lasted, sum) = (one.ended - one.began, one.bytes_fast.saturating_add(one.bytes_slow));
        let number = number(one.number);
        let number = if one.open { Cell { text: format!("{} (open)", number.text), ..number } } else { number };
        [
            number,
            at(one.began),
            time(lasted),
            self::number(one.files),
            self::number(one.reads),
            size(sum),
            rate(sum, lasted),
            part(share(one.bytes_fast, sum)),
        ]
    };
    let rows: Vec<_> = some.iter().map(row).collect();
    let names = ["##", "#began", "#lasted", "#files", "#reads", "#bytes", "#rate", "#fast"];
    let lead = "Passes over the data, found from the accesses themselves. Fast: the share of the bytes that did not wait for the slow \
                tier."
        .to_owned();
    let blocks = vec![with_note(table("", names, rows.clone()), note)];
    (!rows.is_empty()).then_some(Section { id: "epochs", title: "Epochs", lead, blocks })
}

fn workers(summary: &Summary) -> Option<Section> {
    let (some, note) = first(&summary.workers);
    let all = summary.workers.iter().fold(0, |sum: u64, one| sum.saturating_add(one.bytes_read));
    let row = |one: &RecordedProcess| {
        let who = if one.number == 0 { "not known".to_owned() } else { shown(&one.command) };
        [
            if one.pid == 0 { none() } else { Cell { text: one.pid.to_string(), key: Some(one.pid.into()) } },
            text(who),
            number(one.opens),
            number(one.reads),
            size(one.bytes_read),
            part(share(one.bytes_read, all)),
            size(one.bytes_written),
            time(one.time),
        ]
    };
    let rows: Vec<_> = some.iter().map(row).collect();
    let names = ["#pid", "command", "#opens", "#reads", "#read", "#of all", "#written", "#in calls"];
    let mut blocks = vec![PageBlock::Chart(Chart::Workers), with_note(table("", names, rows.clone()), note)];
    if let Some(balance) = balance(summary) {
        blocks.push(PageBlock::Facts(vec![("Balance", balance)]));
    }
    let lead = "The processes that opened files: forked workers, threads and static programs alike. Reads and writes count for the process \
                that opened the file. Time in calls may overlap."
        .to_owned();
    (!rows.is_empty()).then_some(Section { id: "workers", title: "Workers", lead, blocks })
}

/// How evenly the readers share the bytes.
fn balance(summary: &Summary) -> Option<String> {
    let mut read: Vec<u64> = summary.workers.iter().map(|one| one.bytes_read).filter(|bytes| *bytes > 0).collect();
    read.sort_unstable();
    let (least, most) = (*read.first()?, *read.last()?);
    let mean = read.iter().map(|n| *n as f64).sum::<f64>() / read.len() as f64;
    let text = format!(
        "of {} that read, the least has read {}, the most {}: {:.2} times the mean",
        render_count(read.len() as u64, "process", "processes"),
        bytes(least),
        bytes(most),
        most as f64 / mean
    );
    (read.len() > 1).then_some(text)
}

fn windows(summary: &Summary) -> Option<Section> {
    let mut blocks = Vec::new();
    let (some, note) = first(&summary.windows);
    if !some.is_empty() {
        let row = |one: &crate::stats::recording::RecordedWindow| {
            let lasted = one.ended - one.began;
            [
                text(shown(&one.name)),
                at(one.began),
                time(lasted),
                number(one.files),
                number(one.processes),
                size(one.bytes_read),
                rate(one.bytes_read, lasted),
                size(one.bytes_written),
            ]
        };
        let names = ["window", "#began", "#lasted", "#files", "#processes", "#read", "#rate", "#written"];
        blocks.push(with_note(table("", names, some.iter().map(row).collect()), note));
    }
    let (some, note) = first(&summary.marks);
    if !some.is_empty() {
        let rows = some.iter().map(|mark| [at(mark.at), text(shown(&mark.text))]).collect();
        blocks.push(with_note(table("", ["#at", "mark"], rows), note));
    }
    let lead = "What was named through `.dlio/control`.".to_owned();
    (!blocks.is_empty()).then_some(Section { id: "windows", title: "Windows and marks", lead, blocks })
}

fn top(summary: &Summary) -> Option<Section> {
    let row = |row: &super::totals::FileRow| {
        vec![
            time(row.read_seconds + row.write_seconds + row.meta_seconds),
            number(row.opens),
            number(row.reads),
            size(row.bytes_read),
            part(share(row.slow_bytes_read, row.bytes_read)),
            number(row.writes),
            size(row.bytes_written),
            number(row.errors),
            text(shown(&readable(&row.path))),
        ]
    };
    let rows: Vec<_> = summary.top.iter().map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let names = ["time", "opens", "reads", "read", "slow", "writes", "written", "failed", "path"];
    let column = |name: &'static str| Column { name, is_number: name != "path" };
    let known = summary.files.used + summary.files.asked;
    let lead = format!(
        "{} of {}, most time first; all of them with all counters: --format csv. Slow: the share of what was read that waited for the \
         slow tier.",
        grouped(rows.len() as u64),
        render_count(known, "file and directory", "files and directories")
    );
    let table = Table { title: "", columns: names.map(column).to_vec(), rows, note: None, is_searched: true };
    Some(Section { id: "top", title: "Files that took most time", lead, blocks: vec![PageBlock::Table(table)] })
}

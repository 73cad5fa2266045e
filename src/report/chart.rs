//! Pictures of a summary as SVG and plain elements, drawn here and not in the reader's browser. Pure.
//!
//! Colours are classes that the page's style defines, for light and for dark. Every axis has its unit; a table repeats
//! each picture's figures.

use std::fmt::Write;

use super::page::{Chart, class_name, shown};
use super::plot::{
    Axis, LEFT, Panel, PlotLine, Powers, RIGHT, WIDTH, block, escaped, finite, label, legend, panel, put, svg,
};
use super::summary::{Summary, grouped, percent, seconds_text, share};
use crate::stats::counters::Tier;
use crate::stats::recording::{Checkpoint, HeatRow, RecordedHeat, RecordedProcess};
use crate::stats::render::bytes;

const SINCE: &str = "seconds since the mount";
/// Columns of the timeline.
const COLUMNS: usize = 480;
/// Shades of the heat map.
const SHADES: usize = 8;
const BARS_MAX: usize = 40;

/// A picture; empty if there is nothing to draw.
pub fn draw(chart: Chart, summary: &Summary) -> String {
    match chart {
        Chart::Timeline => timeline(summary),
        Chart::Heat => heat(summary),
        Chart::Cost => cost(summary),
        Chart::Operations => operations(summary),
        Chart::Sizes => sizes(summary),
        Chart::Patterns => patterns(summary),
        Chart::Latency => latency(summary),
        Chart::Staging => staging(summary),
        Chart::Checkpoints => checkpoints(summary),
        Chart::Workers => workers(summary),
    }
}

/// An idle stretch is left out of a picture if it is longer than this many seconds and than this part of the covered
/// time.
const IDLE_MIN: f64 = 10.0;
const IDLE_PART: f64 = 0.1;

/// Which of `len` spans from a moment on a picture shows, and the stretches of time they cover.
fn shown_spans(from: f64, span: f64, len: usize, is_idle: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<(f64, f64)>) {
    let idle_max = (IDLE_MIN / span).max(len as f64 * IDLE_PART);
    let (mut kept, mut stretches, mut at) = (Vec::new(), Vec::<(f64, f64)>::new(), 0);
    while at < len {
        let idle = is_idle(at);
        let end = (at..len).find(|next| is_idle(*next) != idle).unwrap_or(len);
        if !idle || (end - at) as f64 <= idle_max {
            let follows = at > 0 && kept.last() == Some(&(at - 1));
            kept.extend(at..end);
            let (began, ended) = (from + at as f64 * span, from + end as f64 * span);
            match stretches.last_mut() {
                Some(last) if follows => last.1 = ended,
                _ => stretches.push((began, ended)),
            }
        }
        at = end;
    }
    (kept, stretches)
}

/// Amounts of a timeline in fewer columns, in bytes per second.
fn rates(values: &[u64], span: f64) -> Vec<f64> {
    let spans = values.len();
    let columns = COLUMNS.min(spans);
    let mean = |column: usize| {
        let (from, to) = (column * spans / columns, (column + 1) * spans / columns);
        let sum: f64 = values[from..to].iter().map(|n| *n as f64).sum();
        sum / (to - from).max(1) as f64 / span
    };
    (0..columns).map(mean).collect()
}

fn timeline(summary: &Summary) -> String {
    let all = &summary.timeline;
    let is_idle = |at: usize| all.calls[at] == 0 && all.drained.get(at).is_none_or(|bytes| *bytes == 0);
    let (spans, stretches) = shown_spans(summary.timeline_from, all.span, all.calls.len(), is_idle);
    if spans.is_empty() {
        return String::new();
    }
    let of = |class, name, values: &[u64]| {
        let values: Vec<u64> = spans.iter().map(|at| values.get(*at).copied().unwrap_or(0)).collect();
        (class, name, rates(&values, all.span))
    };
    let read =
        [of("fast", "read from the fast tier", &all.read_fast), of("slow", "read from the slow tier", &all.read_slow)];
    let written = [
        of("fast", "written to the fast tier", &all.written_fast),
        of("slow", "written to the slow tier", &all.written_slow),
    ];
    let drained = of("drain", "drained to the slow tier", &all.drained);
    let is_any = |courses: &[PlotLine]| courses.iter().any(|(_, _, rates)| rates.iter().any(|rate| *rate > 0.0));
    let axis = Axis::folded(stretches, LEFT, SINCE);
    let (mut body, mut y, mut shown) = (String::new(), 22.0, Vec::new());
    let at = |top, height, name| Panel { top, height, name, powers: Powers::Binary };
    let top = y;
    let backs = body.len();
    if is_any(&read) {
        panel(&mut body, &axis, at(y, 150.0, "read"), &read, None);
        shown.extend(read.iter().filter(|course| is_any(std::slice::from_ref(course))));
        y += 150.0 + 22.0;
    }
    let is_drained = is_any(std::slice::from_ref(&drained));
    if is_any(&written) || is_drained {
        panel(&mut body, &axis, at(y, 110.0, "written"), &written, is_drained.then_some(&drained));
        shown.extend(written.iter().filter(|course| is_any(std::slice::from_ref(course))));
        shown.extend(is_drained.then_some(&drained));
        y += 110.0 + 22.0;
    }
    if shown.is_empty() {
        return String::new();
    }
    y -= 22.0;
    let mut behind = String::new();
    epochs(&mut behind, summary, &axis, top, y);
    axis.ticks(&mut behind, top, y);
    body.insert_str(backs, &behind);
    marks(&mut body, summary, &axis, top, y);
    put!(body, r#"<path class="cross" d="M0 {top:.1}V{y:.1}"/>"#);
    let data = serde_json::json!({
        "stretches": axis.stretches(), "left": LEFT, "right": RIGHT, "width": WIDTH,
        "names": shown.iter().map(|course| course.1).collect::<Vec<_>>(),
        "rates": shown.iter().map(|course| course.2.iter().map(|rate| rate.round()).collect()).collect::<Vec<Vec<f64>>>(),
    });
    let is_shown = |(class, _): &(&str, &str)| shown.iter().any(|course| course.0 == *class);
    let mut entries: Vec<_> = [("fast", "fast tier"), ("slow", "slow tier")].into_iter().filter(is_shown).collect();
    entries.extend(is_drained.then_some(("drain", "copied to the slow tier in the background")));
    entries.extend((!summary.epochs.is_empty()).then_some(("epoch", "epoch")));
    entries.extend((!summary.checkpoints.is_empty()).then_some(("absorb", "checkpoint absorbed")));
    entries.extend((!summary.marks.is_empty()).then_some(("mark", "mark")));
    entries.extend((axis.stretches().len() > 1).then_some(("fold", "idle time left out")));
    let about = "Bytes read and written each second, by tier, over time";
    legend(&entries) + &with_data(svg(y + 42.0, about, r#" data-chart="time""#, &body), &data)
}

/// A picture with the numbers shown under the pointer.
fn with_data(picture: String, data: &serde_json::Value) -> String {
    // A script element has no escapes, and `<` might end it.
    let data = data.to_string().replace('<', "\\u003c");
    format!(r#"<figure>{picture}<script type="application/json">{data}</script></figure>"#)
}

fn epochs(out: &mut String, summary: &Summary, axis: &Axis, top: f64, y: f64) {
    /// More than a name takes.
    const NAME: f64 = 60.0;
    let told = summary.epochs.iter().filter(|one| one.ended > axis.from() && one.began < axis.until());
    let told: Vec<_> = told.take(200).collect();
    // From the last one, which is named however short it is.
    let mut free = f64::MAX;
    for epoch in told.into_iter().rev() {
        let (from, to) = (axis.x(epoch.began), axis.x(epoch.ended));
        let odd = if epoch.number.is_multiple_of(2) { "" } else { " odd" };
        let name = format!("epoch {}", epoch.number);
        block(out, &format!("epoch{odd}"), (from, top), (to - from, y - top), &name);
        if to <= free && (to - from > NAME || free == f64::MAX) {
            label(out, "unit", (to - 4.0, top - 8.0), "end", name);
            free = to - NAME;
        }
    }
}

fn marks(out: &mut String, summary: &Summary, axis: &Axis, top: f64, y: f64) {
    for one in summary.checkpoints.iter().take(200) {
        let (from, to) = (axis.x(one.began), axis.x(one.absorbed));
        block(out, "absorb", (from, y + 1.0), ((to - from).max(2.0), 4.0), format_args!("checkpoint {}", one.number));
    }
    for mark in summary.marks.iter().filter(|mark| mark.at >= axis.from() && mark.at <= axis.until()).take(100) {
        let x = axis.x(mark.at);
        put!(
            out,
            r#"<path class="mark" d="M{x:.1} {top:.1}V{y:.1}"><title>{}</title></path>"#,
            escaped(&shown(&mark.text))
        );
    }
}

/// The process of a row in the heat map.
fn who(workers: &[RecordedProcess], number: u64) -> String {
    let known = workers.iter().find(|one| one.number == number && number != 0);
    known.map_or_else(|| "others".to_owned(), |one| format!("{} {}", shown(&one.command), one.pid))
}

fn heat(summary: &Summary) -> String {
    let RecordedHeat { span, rows } = &summary.heat;
    let len = rows.iter().map(|row| row.read.len().max(row.written.len())).max().unwrap_or(0);
    let all = |row: &HeatRow, at: usize| [&row.read, &row.written].map(|values| values.get(at).copied().unwrap_or(0));
    let (spans, stretches) =
        shown_spans(summary.heat_from, *span, len, |at| rows.iter().all(|row| all(row, at) == [0, 0]));
    let columns = spans.len();
    if columns == 0 {
        return String::new();
    }
    let moved = |row: &HeatRow, column: usize| {
        let [read, written] = all(row, spans[column]);
        read.saturating_add(written)
    };
    let most = rows.iter().flat_map(|row| (0..columns).map(|at| moved(row, at))).max().unwrap_or(0).max(1);
    let left = 150.0;
    let axis = Axis::folded(stretches, left, SINCE);
    let (high, top) = (if rows.len() > 16 { 13.0 } else { 20.0 }, 8.0);
    let bottom = top + high * rows.len() as f64;
    let mut shades = vec![String::new(); SHADES];
    let mut body = String::new();
    for (line, row) in rows.iter().enumerate() {
        for at in (0..columns).filter(|at| moved(row, *at) > 0) {
            // The square root makes small amounts visible beside large ones.
            let shade = ((moved(row, at) as f64 / most as f64).sqrt() * SHADES as f64).ceil() as usize;
            put!(shades[shade.clamp(1, SHADES) - 1], "M{at} {line}h1v1h-1z");
        }
        let y = top + high * (line as f64 + 0.5) + 4.0;
        let name = super::page::shortened(&who(&summary.workers, row.process), 20);
        label(&mut body, "tick", (left - 8.0, y), "end", escaped(&name));
    }
    put!(
        body,
        r#"<rect class="ground" x="{left}" y="{top}" width="{:.1}" height="{:.1}"/>"#,
        WIDTH - left - RIGHT,
        bottom - top
    );
    let scale = (WIDTH - left - RIGHT) / columns as f64;
    put!(body, r#"<g transform="translate({left} {top}) scale({scale:.5} {high})" shape-rendering="crispEdges">"#);
    for (shade, path) in shades.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        put!(body, r#"<path class="heat h{}" d="{path}"/>"#, shade + 1);
    }
    body.push_str("</g>");
    axis.ticks(&mut body, bottom, bottom + 3.0);
    let scale: String = (1..=SHADES).map(|shade| format!(r#"<i class="heat h{shade}"></i>"#)).collect();
    let legend = format!(
        r#"<p class="scale"><span>1 B</span>{scale}<span>{} by a process in {}</span></p>"#,
        bytes(most),
        seconds_text(*span)
    );
    let data = serde_json::json!({
        "stretches": axis.stretches(), "left": left, "right": RIGHT, "width": WIDTH, "top": top, "high": high,
        "names": rows.iter().map(|row| who(&summary.workers, row.process)).collect::<Vec<_>>(),
        "read": rows.iter().map(|row| spans.iter().map(|at| all(row, *at)[0]).collect()).collect::<Vec<Vec<u64>>>(),
        "written": rows.iter().map(|row| spans.iter().map(|at| all(row, *at)[1]).collect()).collect::<Vec<Vec<u64>>>(),
    });
    let picture = svg(bottom + 46.0, "Bytes moved by each process over time", r#" data-chart="heat""#, &body);
    format!("<h3>By process</h3>{legend}{}", with_data(picture, &data))
}

/// A bar of parts that make up a whole: class, name, share.
fn stacked(label: &str, parts: &[(&str, &str, f64)]) -> String {
    let mut out = format!(r#"<div class="stack" role="img" aria-label="{}">"#, escaped(label));
    for (class, name, share) in parts.iter().filter(|part| part.2 > 0.0) {
        let text = if *share > 0.07 { percent(*share) } else { String::new() };
        put!(
            out,
            r#"<span class="{class}" style="width:{:.2}%" title="{}: {}">{text}</span>"#,
            finite(*share * 100.0).min(100.0),
            escaped(name),
            percent(*share)
        );
    }
    out + "</div>"
}

fn cost(summary: &Summary) -> String {
    let Some(cost) = &summary.cost else { return String::new() };
    // Where several kinds overlap, each gets its share of the time.
    let scale =
        if cost.read + cost.write + cost.meta > 0.0 { cost.any / (cost.read + cost.write + cost.meta) } else { 0.0 };
    let part = |seconds: f64| cost.share(seconds * scale);
    let parts = [
        ("read", "reads", part(cost.read)),
        ("write", "writes and syncs", part(cost.write)),
        ("meta", "metadata", part(cost.meta)),
        ("idle", "none of them", (1.0 - cost.share(cost.any)).max(0.0)),
    ];
    let entries: Vec<_> = parts.iter().map(|(class, name, _)| (*class, *name)).collect();
    legend(&entries) + &stacked("Share of a process's time", &parts)
}

/// A bar: label, parts with their classes, the text after it.
type Bar<'a> = (String, Vec<(&'a str, f64)>, String);

/// Bars from the left.
fn bars(rows: &[Bar<'_>], axis: &str) -> String {
    let most = rows.iter().map(|row| row.1.iter().map(|part| part.1).sum::<f64>()).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let mut out = format!(r#"<div class="bars"><p class="unit">{}</p>"#, escaped(axis));
    for (label, parts, value) in rows {
        put!(out, r#"<span class="label">{}</span><span class="track">"#, escaped(label));
        for (class, part) in parts.iter().filter(|part| part.1 > 0.0) {
            put!(out, r#"<i class="{class}" style="width:{:.2}%"></i>"#, finite(part / most * 100.0));
        }
        put!(out, r#"</span><span class="value">{}</span>"#, escaped(value));
    }
    out + "</div>"
}

fn operations(summary: &Summary) -> String {
    let mut most: Vec<_> = summary.operations.iter().collect();
    most.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let seconds = |op, tier| {
        let of = summary.latency.iter().filter(|row| row.op == op && row.tier == tier);
        of.map(|row| row.mean * row.calls as f64).sum::<f64>()
    };
    let row = |row: &&super::summary::Counted| {
        let parts = vec![("fast", seconds(row.op, Tier::Fast)), ("slow", seconds(row.op, Tier::Slow))];
        (row.op.shown().to_owned(), parts, seconds_text(row.seconds))
    };
    let rows: Vec<_> = most.iter().filter(|row| row.seconds > 0.0).take(12).map(row).collect();
    let drawn = bars(&rows, "time in all calls, by the tier that served them");
    if drawn.is_empty() { drawn } else { legend(&[("fast", "fast tier"), ("slow", "slow tier")]) + &drawn }
}

fn sizes(summary: &Summary) -> String {
    let used: Vec<_> = summary.sizes.iter().filter(|class| class.reads + class.writes > 0).collect();
    let by_calls = |class: &&super::summary::SizeClass| {
        let parts = vec![("read", class.reads as f64), ("write", class.writes as f64)];
        (class_name(class.name), parts, grouped(class.reads.saturating_add(class.writes)))
    };
    let by_bytes = |class: &&super::summary::SizeClass| {
        let parts = vec![("read", class.bytes_read as f64), ("write", class.bytes_written as f64)];
        (class_name(class.name), parts, bytes(class.bytes_read.saturating_add(class.bytes_written)))
    };
    let (calls, moved): (Vec<_>, Vec<_>) = (used.iter().map(by_calls).collect(), used.iter().map(by_bytes).collect());
    let word = summary.size_word();
    format!(
        r#"{}<div class="two">{}{}</div>"#,
        legend(&[("read", "reads"), ("write", "writes")]),
        bars(&calls, &format!("calls by {word} size")),
        bars(&moved, &format!("bytes by {word} size"))
    )
}

fn patterns(summary: &Summary) -> String {
    let mut out = String::new();
    let names: Vec<_> = summary.patterns.reads.iter().map(|(name, _)| *name).collect();
    for (what, calls) in [("Reads", &summary.patterns.reads), ("Writes", &summary.patterns.writes)] {
        let all = calls.iter().fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));
        if all > 0 {
            let parts: Vec<_> = calls.iter().map(|(name, n)| (*name, *name, share(*n, all))).collect();
            put!(out, r#"<p class="unit">{what}, share of {} calls</p>{}"#, grouped(all), stacked(what, &parts));
        }
    }
    let entries: Vec<_> = names.iter().map(|name| (*name, *name)).collect();
    legend(&entries) + &out
}

/// Percentiles on a logarithmic axis starting at a microsecond.
fn latency(summary: &Summary) -> String {
    let mut rows: Vec<_> = summary.latency.iter().filter(|row| row.calls > 0).collect();
    rows.sort_by(|a, b| (b.mean * b.calls as f64).total_cmp(&(a.mean * a.calls as f64)));
    rows.truncate(14);
    let most = rows.iter().map(|row| row.max).fold(1e-5, f64::max);
    let decades = (most / 1e-6).log10().ceil().clamp(1.0, 12.0);
    let x = |seconds: f64| finite((seconds.max(1e-6) / 1e-6).log10() / decades * 100.0).clamp(0.0, 100.0);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = String::from(r#"<div class="bars ranges"><p class="unit">time of a call, logarithmic</p>"#);
    for row in rows {
        put!(out, r#"<span class="label">{}</span><span class="track">"#, row.op.shown());
        (1..decades as usize).for_each(|n| put!(out, r#"<b style="left:{:.2}%"></b>"#, n as f64 / decades * 100.0));
        let class = row.tier.name();
        put!(out, r#"<u class="{class}" style="left:{:.2}%;width:{:.2}%"></u>"#, x(row.p50), x(row.p999) - x(row.p50));
        for (name, seconds) in [("p50", row.p50), ("p90", row.p90), ("p99", row.p99), ("p99.9", row.p999)] {
            put!(
                out,
                r#"<i class="{class}" style="left:{:.2}%" title="{name}: {}"></i>"#,
                x(seconds),
                seconds_text(seconds)
            );
        }
        put!(out, r#"</span><span class="value">{}</span>"#, seconds_text(row.p99));
    }
    out.push_str(r#"<span class="label"></span><span class="track ticks">"#);
    for n in 0..=decades as usize {
        let seconds = 1e-6 * 10f64.powi(n as i32);
        let (size, unit) = match seconds {
            s if s < 0.9e-3 => (s * 1e6, "us"),
            s if s < 0.9 => (s * 1e3, "ms"),
            s => (s, "s"),
        };
        put!(out, r#"<em style="left:{:.2}%">{size:.0} {unit}</em>"#, n as f64 / decades * 100.0);
    }
    out.push_str(r#"</span><span class="value">p99</span></div>"#);
    legend(&[("fast dot", "fast tier: p50, p90, p99, p99.9"), ("slow dot", "slow tier")]) + &out
}

fn staging(summary: &Summary) -> String {
    let points = &summary.staging;
    if points.len() < 2 {
        return String::new();
    }
    let (top, height) = (14.0, 210.0);
    let x = |at: usize| LEFT + (WIDTH - LEFT - 120.0) * at as f64 / (points.len() - 1) as f64;
    let y = |share: f64| top + height - finite(share).clamp(0.0, 1.0) * height;
    let mut body = String::new();
    for n in 0..=4 {
        put!(body, r#"<path class="grid" d="M{LEFT} {0:.1}H{1:.1}"/>"#, y(n as f64 / 4.0), x(points.len() - 1));
        label(&mut body, "tick", (LEFT - 7.0, y(n as f64 / 4.0) + 4.0), "end", format_args!("{} %", n * 25));
    }
    let every = points.len().div_ceil(11);
    for (at, point) in points.iter().enumerate().filter(|(at, _)| at.is_multiple_of(every)) {
        let text = bytes(point.size).replace(".0 ", " ");
        label(&mut body, "tick", (x(at), top + height + 17.0), "middle", text);
    }
    let below = ((LEFT + WIDTH - 120.0) / 2.0, top + height + 35.0);
    label(&mut body, "unit", below, "middle", "files of at most this size");
    type Of = fn(&super::summary::Staged) -> f64;
    let lines: [(&str, &str, Of); 3] = [
        ("files", "of the files", |point| point.file_share),
        ("bytes", "of the bytes", |point| point.byte_share),
        ("slow", "of the time in slow reads", |point| point.slow_share),
    ];
    for (class, name, of) in lines {
        let path: Vec<_> =
            points.iter().enumerate().map(|(at, point)| format!("{:.1} {:.1}", x(at), y(of(point)))).collect();
        put!(body, r#"<path class="line {class}" d="M{}"/>"#, path.join("L"));
        for (at, point) in points.iter().enumerate() {
            put!(
                body,
                r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="3.2"><title>up to {}: {} {name}</title></circle>"#,
                x(at),
                y(of(point)),
                bytes(point.size),
                percent(of(point))
            );
        }
    }
    let entries: Vec<_> = lines.iter().map(|(class, name, _)| (*class, *name)).collect();
    legend(&entries) + &svg(top + height + 44.0, "Share of files, bytes and time up to each size", "", &body)
}

fn checkpoints(summary: &Summary) -> String {
    let skip = summary.checkpoints.len().saturating_sub(BARS_MAX);
    let some: Vec<&Checkpoint> = summary.checkpoints.iter().skip(skip).collect();
    let Some(first) = some.first() else { return String::new() };
    let ends = |one: &Checkpoint| one.drained.unwrap_or(summary.job.until).max(one.absorbed);
    let until = some.iter().map(|one| ends(one)).fold(first.absorbed, f64::max);
    let axis = Axis::new((first.began, until.max(first.began + 1e-3)), LEFT, SINCE);
    let (top, high) = (6.0, 20.0);
    let bottom = top + high * some.len() as f64;
    let mut body = String::new();
    axis.ticks(&mut body, top, bottom);
    for (line, one) in some.iter().enumerate() {
        let y = top + high * line as f64 + 4.0;
        let (began, absorbed, ended) = (axis.x(one.began), axis.x(one.absorbed), axis.x(ends(one)));
        label(&mut body, "tick", (LEFT - 7.0, y + 10.0), "end", format_args!("#{}", one.number));
        let (class, took) = match one.drained {
            Some(drained) => ("drain", seconds_text(drained - one.absorbed)),
            None => ("drain open", "more than is recorded".to_owned()),
        };
        let title = format!("drained in {took}");
        block(&mut body, class, (absorbed, y + 2.0), ((ended - absorbed).max(1.0), 8.0), title);
        let title = format!("{} absorbed in {}", bytes(one.bytes), seconds_text(one.absorbed - one.began));
        block(&mut body, "absorb", (began, y), ((absorbed - began).max(2.0), 12.0), title);
    }
    let last = if skip > 0 {
        format!("the last {BARS_MAX}: absorbed, the program waits")
    } else {
        "absorbed: the program waits".to_owned()
    };
    legend(&[("absorb", &last), ("drain", "drained: until it is safe on the slow tier")])
        + &svg(bottom + 42.0, "Checkpoints: absorbed, then drained", "", &body)
}

fn workers(summary: &Summary) -> String {
    let row = |one: &RecordedProcess| {
        let who = if one.number == 0 { "not known".to_owned() } else { format!("{} {}", shown(&one.command), one.pid) };
        let parts = vec![("read", one.bytes_read as f64), ("write", one.bytes_written as f64)];
        (who, parts, bytes(one.bytes_read.saturating_add(one.bytes_written)))
    };
    let rows: Vec<_> = summary.workers.iter().take(24).map(row).collect();
    legend(&[("read", "read"), ("write", "written")]) + &bars(&rows, "bytes by process")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::made;

    fn shown(len: usize, busy: &[usize]) -> (usize, Vec<(f64, f64)>) {
        let (kept, stretches) = shown_spans(100.0, 0.5, len, |at| !busy.contains(&at));
        (kept.len(), stretches)
    }

    #[test]
    fn long_idle_stretches_are_left_out_wherever_they_are() {
        assert_eq!(shown(4, &[0, 3]), (4, vec![(100.0, 102.0)]), "a second is not long");
        assert_eq!(shown(100, &[10, 50, 99]), (11 + 1 + 1, vec![(100.0, 105.5), (125.0, 125.5), (149.5, 150.0)]));
        assert_eq!(shown(100, &[]), (0, Vec::new()));
        let every = (0..2_000).filter(|at| at % 150 == 0).collect::<Vec<_>>();
        assert_eq!(shown(2_000, &every).0, 2_000, "a tenth of the time is what a picture can show");
    }

    #[test]
    fn a_moment_is_where_its_stretch_is() {
        let axis = Axis::folded(vec![(0.0, 10.0), (90.0, 100.0)], 0.0, SINCE);
        let middle = axis.x(10.0);
        assert_eq!([axis.x(50.0), axis.x(90.0)], [middle, middle]);
        assert!(axis.x(5.0) * 2.0 - middle < 1e-9 && axis.x(95.0) - middle * 1.5 < 1e-9 && axis.x(1e9) == middle * 2.0);
        let mut drawn = String::new();
        axis.ticks(&mut drawn, 0.0, 10.0);
        assert!(drawn.matches("fold").count() == 1 && drawn.contains("80 s without a call"), "{drawn}");
        assert!(drawn.contains(">0<") && drawn.contains(">95<") && !drawn.contains(">50<"), "{drawn}");
    }

    #[test]
    fn a_mount_that_was_idle_for_an_hour_shows_what_it_did() {
        let mut made = made();
        made.meta.until += 3600.0;
        made.meta.timeline.calls.resize(36_100, 0);
        let drawn = draw(Chart::Timeline, &Summary::of(&mut made.recording()));
        let stretches = drawn.split("\"stretches\":").nth(1).and_then(|rest| rest.split("]]").next());
        assert!(stretches.is_some_and(|told| told.starts_with("[[0.0,6.1")), "{stretches:?}");
    }
}

//! The screen: draws a [`State`] into a frame of any size. Pure.
//!
//! From top to bottom: the mount, the verdict, problems, the tiers, their throughput over time, the last checkpoint, a
//! table, the keys. If there is too little room, the least important parts are left out first.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget, Wrap};

use super::shown;
use super::snapshot::{Snapshot, word};
use super::state::{State, silence};
use super::table::{self, ColumnKind, TopView, ViewCell, ViewColumn};
use crate::path::{is_harmless, readable};
use crate::stats::pace::CheckpointPace;
use crate::stats::recording::Checkpoint;
use crate::stats::render::{count, seconds, tenths};
use crate::stats::status::TierSpace;

/// The flows, as [`super::snapshot::FlowTimeline::flows`] has them.
const FLOWS: [(&str, Color); 5] = [
    ("read fast", Color::Cyan),
    ("read slow", Color::Blue),
    ("written fast", Color::Green),
    ("written slow", Color::Yellow),
    ("drained", Color::Magenta),
];
/// Columns before the bars, and behind them: the present rate and the peak.
const LABEL: u16 = 13;
const RATES: u16 = 14;
/// Least numbers of lines for: title and axis of the throughput; the tiers; the last checkpoint and the marked row.
const WITH_AXIS: u16 = 20;
const WITH_TIERS: u16 = 16;
const WITH_FLOWS: u16 = 12;
const WITH_DETAILS: u16 = 22;

const KEYS: [(&str, &str); 9] = [
    ("q", "quit"),
    ("?", "help"),
    ("Tab", "table"),
    ("/", "filter"),
    ("< >", "sort"),
    ("space", "pause"),
    ("r", "reverse"),
    ("+ -", "zoom"),
    ("↑ ↓", "mark"),
];

const HELP: [&str; 14] = [
    "f p o u m Tab  files, processes, operations, queue, members",
    "< >            sort by the column to the left, or right",
    "r              reverse the order",
    "/              show rows that contain a text; Esc: all",
    "↑ ↓ PgUp PgDn  mark a row; its full text is below",
    "space          pause",
    "+ -            shorter or longer bars",
    "q, Esc         quit",
    "",
    "BUSY   time in calls: above 100% they overlap",
    "SLOW   served by the slow tier: of the bytes, or calls",
    "p99 <  99% of the calls took less, in powers of two",
    "sizes  in binary units: 1.0M is 1024 * 1024 bytes",
    "files  those that are open or were used last",
];

/// Colours and styles.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Theme {
    /// Without colours only bold, reversed, underlined.
    pub(in crate::cli) colours: bool,
}

impl Theme {
    fn of(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn faint(self) -> Style {
        self.of(Color::DarkGray)
    }

    fn alarm(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }
}

/// Draws all of it.
pub(in crate::cli) fn draw(frame: &mut Frame<'_>, state: &State, theme: Theme) {
    let area = frame.area();
    let mut page = Page { buffer: frame.buffer_mut(), left: area, theme };
    let footer = page.take_last();
    page.head(state);
    for notice in notices(state).into_iter().take(usize::from(area.height / 10)) {
        page.line(Line::styled(notice, theme.alarm()));
    }
    if area.height >= WITH_TIERS {
        page.tiers(&state.snapshot);
    }
    page.flows(state, area.height);
    if let (Some(last), WITH_DETAILS..) = (state.snapshot.checkpoints.last(), area.height) {
        page.checkpoint(last, state.snapshot.stats.safety.bytes);
        if let Some(pace) = &state.snapshot.pace {
            page.pace(pace);
        }
    }
    page.table(state, area.height >= WITH_DETAILS);
    keys(page.buffer, footer, state, theme);
    if state.help {
        help(page.buffer, area, &state.snapshot);
    }
    // Control characters are not drawn at all; others that a terminal follows are.
    for cell in frame.buffer_mut().content.iter_mut().filter(|cell| !cell.symbol().chars().all(is_harmless)) {
        cell.set_char('?');
    }
}

/// Problems, and what the figures lack; the worst first.
fn notices(state: &State) -> Vec<String> {
    let stats = &state.snapshot.stats;
    let mut all = Vec::new();
    all.extend(state.silent.map(silence));
    if state.base_is_there() && !stats.profile {
        all.push("profile = false: only the drain is counted".to_owned());
    }
    if stats.files.unnamed > 0 {
        all.push("profile_memory is full: new files are counted together by the endings of their names".to_owned());
    }
    if !matches!(&*stats.io_path.name, "exact" | "") && !stats.io_path.not_seen.is_empty() {
        all.push(format!("not seen: {}", stats.io_path.not_seen.join("; ")));
    }
    all
}

/// The rest of the screen, from the top.
struct Page<'a> {
    buffer: &'a mut Buffer,
    left: Rect,
    theme: Theme,
}

impl Page<'_> {
    /// The next `height` lines, or all that are left.
    fn rows(&mut self, height: u16) -> Rect {
        let taken = Rect { height: height.min(self.left.height), ..self.left };
        (self.left.y, self.left.height) = (self.left.y + taken.height, self.left.height - taken.height);
        taken
    }

    fn take_last(&mut self) -> Rect {
        self.left.height = self.left.height.saturating_sub(1);
        Rect { y: self.left.y + self.left.height, height: 1, ..self.left }.intersection(*self.buffer.area())
    }

    fn line(&mut self, line: Line<'_>) {
        let area = self.rows(1);
        line.render(area, self.buffer);
    }

    /// A line with a second text at its right end, if it fits.
    fn line_and_end(&mut self, line: Line<'_>, end: Line<'_>) {
        let area = self.rows(1);
        if line.width() + end.width() < usize::from(area.width) {
            let width = end.width() as u16;
            end.render(Rect { x: area.right() - width, width, ..area }, self.buffer);
        }
        line.render(area, self.buffer);
    }

    /// A separator line with a title.
    fn rule(&mut self, title: Vec<Span<'_>>, end: Line<'_>) {
        let area = self.rows(1);
        let dashes = "─".repeat(usize::from(area.width));
        Line::styled(dashes, self.theme.faint()).render(area, self.buffer);
        let mut title = Line::from(title);
        title.spans.insert(0, " ".into());
        title.spans.push(" ".into());
        let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(1), ..area };
        if title.width() + end.width() + 3 < usize::from(area.width) && end.width() > 0 {
            let width = end.width() as u16 + 2;
            let place = Rect { x: area.right() - width - 1, width, ..area };
            Line::from(format!(" {end} ")).style(end.style).render(place, self.buffer);
        }
        title.render(inner.intersection(area), self.buffer);
    }

    fn head(&mut self, state: &State) {
        let stats = &state.snapshot.stats;
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let up = seconds(stats.mounted_for);
        let pause = if state.paused { "PAUSED  " } else { "" };
        let end = Line::from(vec![
            Span::styled(pause, self.theme.alarm()),
            format!("I/O path {}, up for {up}, dlio-fs {}", stats.io_path.name, stats.version).into(),
        ]);
        let room = usize::from(self.left.width).saturating_sub(1);
        let name = Span::styled(shown::end_of(&state.mountpoint, room), bold);
        match state.base_is_there() {
            true => self.line_and_end(name.into(), end),
            false => self.line(name.into()),
        }
        let safety = &stats.safety;
        let style = match word(safety) {
            _ if !state.base_is_there() => return self.line("looking ...".into()),
            "yes" => self.theme.of(Color::Green),
            "no" => self.theme.of(Color::Yellow),
            _ => self.theme.of(Color::Red),
        };
        self.line(Line::styled(stats.line(), style.add_modifier(Modifier::BOLD)));
    }

    /// How full each tier is.
    fn tiers(&mut self, snapshot: &Snapshot) {
        let area = self.rows(1);
        let half = area.width / 2;
        for (x, (name, space)) in
            [("fast", &snapshot.stats.fast), ("slow", &snapshot.stats.slow)].into_iter().enumerate()
        {
            let place = Rect { x: area.x + half * x as u16, width: half.saturating_sub(1), ..area };
            self.tier(name, space, place);
        }
    }

    fn tier(&mut self, name: &str, space: &TierSpace, area: Rect) {
        let share = space.used as f64 / (space.total as f64).max(1.0);
        let told = format!(" {} of {}", shown::size(space.used as f64), shown::size(space.total as f64));
        let room = usize::from(area.width).saturating_sub(name.len() + 1 + told.len());
        let style = if share > 0.9 { self.theme.of(Color::Red) } else { self.theme.of(Color::Cyan) };
        let (full, rest) = gauge(share, room);
        let faint = self.theme.faint();
        let spans = vec![format!("{name} ").into(), Span::styled(full, style), Span::styled(rest, faint), told.into()];
        Line::from(spans).render(area, self.buffer);
    }

    /// The throughput over time.
    fn flows(&mut self, state: &State, height: u16) {
        if height < WITH_FLOWS || self.left.width < LABEL + RATES + 4 {
            return self.sums(state);
        }
        let width = self.left.width - LABEL - RATES;
        let timeline = &state.snapshot.timeline;
        let graph = Graph::new(timeline.span, timeline.until, state.step(), usize::from(width));
        if height >= WITH_AXIS {
            let title = format!("throughput, {} a bar", span(graph.step));
            self.rule(vec![title.into()], "now/s  peak/s".into());
        }
        let each = if height >= 40 { 2 } else { 1 };
        let now = state.change.as_ref();
        for (at, (name, colour)) in FLOWS.into_iter().enumerate() {
            let rates = graph.rates(timeline.flows()[at]);
            let peak = rates.iter().copied().fold(0.0, f64::max);
            let area = self.rows(each);
            let style = self.theme.of(colour);
            for (y, bars) in bars(&rates, peak, each).into_iter().enumerate() {
                let indent = usize::from(width) - rates.len();
                let line = Rect { x: area.x + LABEL, y: area.y + y as u16, width, height: 1 }.intersection(area);
                Line::styled(format!("{}{bars}", " ".repeat(indent)), style).render(line, self.buffer);
            }
            let present = now.map(|change| match (at, change.amounts) {
                (4, _) => Some(change.per_second(change.drained)),
                (at, Some(amounts)) => Some(change.per_second(amounts.flows()[at])),
                (_, None) => None,
            });
            let told = shown::or_dash(present.flatten(), shown::size);
            let ends = format!(" {told:>5}  {:>6}", shown::size(peak));
            let last = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..area };
            Line::styled(name, style).render(last, self.buffer);
            let place = Rect { x: area.x + LABEL + width, width: RATES, ..last };
            Line::from(ends).render(place, self.buffer);
        }
        if height >= WITH_AXIS {
            let area = self.rows(1);
            let place = Rect { x: area.x + LABEL, width, ..area };
            Line::styled(axis(graph.step, usize::from(width)), self.theme.faint()).render(place, self.buffer);
        }
    }

    /// Without room for bars.
    fn sums(&mut self, state: &State) {
        let Some(change) = &state.change else { return };
        let rate = |amount: u64| shown::size(change.per_second(amount));
        let line = change.amounts.map_or_else(
            || format!("drained {}/s", rate(change.drained)),
            |a| {
                let (read, written) =
                    (a.read_fast.saturating_add(a.read_slow), a.written_fast.saturating_add(a.written_slow));
                format!("read {}/s written {}/s drained {}/s", rate(read), rate(written), rate(a.drained))
            },
        );
        self.line(line.into());
    }

    /// The last checkpoint: how long it stalled the program, and how much of it is on the slow tier. Other files may be
    /// dirty, too: then less is shown than has arrived.
    fn checkpoint(&mut self, last: &Checkpoint, dirty: u64) {
        let took = (last.absorbed - last.began).max(0.0);
        let share = match last.drained {
            Some(_) => 1.0,
            None => 1.0 - dirty.min(last.bytes) as f64 / (last.bytes as f64).max(1.0),
        };
        let is_narrow = self.left.width < 100;
        let (full, rest) = gauge(share, if is_narrow { 8 } else { 16 });
        let arrived = match last.drained {
            Some(at) => format!(" in {}", shown::latency((at - last.began).max(0.0))),
            None => format!(" {}", shown::percent(share)),
        };
        let files = if is_narrow { String::new() } else { format!(" in {},", count(last.files, "file")) };
        let (size, took) = (shown::size(last.bytes as f64), shown::latency(took));
        let mut line = Line::from(vec![
            Span::styled(format!("checkpoint {}", last.number), Style::new().add_modifier(Modifier::BOLD)),
            format!("  {size}{files} absorbed in {took}  drained ").into(),
            Span::styled(full, self.theme.of(Color::Magenta)),
            Span::styled(rest, self.theme.faint()),
            format!("{arrived}  ").into(),
        ]);
        // The end of a path says more than its beginning.
        let room = usize::from(self.left.width).saturating_sub(line.width());
        line.push_span(shown::end_of(&readable(&last.path), room));
        self.line(line);
    }

    /// What the slow tier sustains, and the work that would be lost with the fast one: as `.dlio/pace` says it.
    fn pace(&mut self, pace: &CheckpointPace) {
        let every = pace.interval.map(|interval| format!("every {}, ", tenths(interval))).unwrap_or_default();
        let sustained = pace.shortest_interval.map(|shortest| format!("sustained every {}", tenths(shortest)));
        let at_risk = format!("  {} of work at risk", seconds(pace.work_at_risk));
        let safe = match (&pace.newest, pace.safe_in) {
            (None, _) | (_, Some(Duration::ZERO)) => String::new(),
            (_, None) => at_risk,
            (_, Some(left)) => format!("  safe in {}{at_risk}", seconds(left)),
        };
        let style = if pace.is_sustained() == Some(false) { self.theme.alarm() } else { Style::new() };
        self.line(Line::from(vec![
            Span::styled("pace", Style::new().add_modifier(Modifier::BOLD)),
            Span::styled(format!("  {every}{}", sustained.unwrap_or_else(|| "no rate is known".to_owned())), style),
            safe.into(),
        ]));
    }

    /// If there is room, the full text of the marked row stands below.
    fn table(&mut self, state: &State, with_details: bool) {
        let rows = state.rows();
        self.tabs(state, rows.len());
        let columns = state.view.columns();
        let places = table::fitting(columns, self.left.width);
        let widths = widths(columns, &places, self.left.width);
        self.headings(columns, &places, &widths, state.sort().column);
        // There may be fewer rows than before.
        let marked = state.marked.filter(|_| !rows.is_empty()).map(|at| at.min(rows.len() - 1));
        if let (Some(at), true) = (marked, with_details && self.left.height > 3) {
            let area = self.take_last();
            let more = shown::end_of(&rows[at].more, usize::from(area.width));
            Line::styled(more, self.theme.of(Color::Cyan)).render(area, self.buffer);
        }
        let height = usize::from(self.left.height);
        let first = marked.map_or(0, |at| (at + 1).saturating_sub(height));
        for (at, row) in rows.iter().enumerate().skip(first).take(height) {
            let style = match row.idle {
                _ if Some(at) == marked => Style::new().add_modifier(Modifier::REVERSED),
                true => self.theme.faint(),
                false => Style::new(),
            };
            let cells = places.iter().zip(&widths).map(|(at, width)| {
                let ViewCell { text, .. } = &row.cells[*at];
                fit(text, columns[*at].kind, *width)
            });
            self.line(Line::styled(cells.collect::<Vec<_>>().join(" "), style));
        }
        if rows.is_empty() {
            self.line(Line::styled(nothing(state), self.theme.faint()));
        }
    }

    /// Highlights the column of the order.
    fn headings(&mut self, columns: &[ViewColumn], places: &[usize], widths: &[usize], sorted: usize) {
        let plain = Style::new().add_modifier(Modifier::REVERSED);
        let chosen =
            self.theme.of(Color::Cyan).add_modifier(Modifier::REVERSED | Modifier::BOLD | Modifier::UNDERLINED);
        let mut line = Line::default();
        for (at, width) in places.iter().zip(widths) {
            let style = if *at == sorted { chosen } else { plain };
            line.push_span(Span::styled(fit(columns[*at].title, columns[*at].kind, *width), style));
            line.push_span(Span::styled(" ", plain));
        }
        self.line(line);
    }

    /// The names of the tables, the key of each underlined.
    fn tabs(&mut self, state: &State, shown: usize) {
        let mut spans: Vec<Span<'_>> = Vec::new();
        for view in TopView::ALL {
            let (title, key) = view.title();
            let style = if view == state.view {
                Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED)
            } else {
                Style::new()
            };
            let (before, after) = title.split_once(key).unwrap_or((title, ""));
            if !spans.is_empty() {
                spans.push(" ".into());
            }
            spans.push(Span::styled(before, style));
            spans.push(Span::styled(key.to_string(), style.add_modifier(Modifier::UNDERLINED)));
            spans.push(Span::styled(after, style));
        }
        let mut end = table::extent(state.view, &state.snapshot, shown);
        if !state.filter.is_empty() {
            end = format!("{shown} with {:?}", state.filter);
        }
        self.rule(spans, end.into());
    }
}

/// Why a table has no rows.
fn nothing(state: &State) -> &'static str {
    match state.view {
        _ if !state.filter.is_empty() => "no row contains this text; Esc shows all",
        TopView::Queue => "nothing is pending",
        TopView::Members if state.snapshot.fleet.is_none() => "the mount is in no fleet",
        TopView::Members => "the leases have not been read yet",
        _ if state.change.is_none() => "rates appear after the second interval",
        _ => "nothing yet",
    }
}

/// The bars of a period: columns of equal length that begin at multiples of it, so that they do not change over time.
struct Graph {
    /// Seconds of a column.
    step: f64,
    /// Spans in a column.
    each: usize,
    /// Spans that are over.
    over: usize,
    width: usize,
}

impl Graph {
    fn new(span: f64, until: f64, step: f64, width: usize) -> Graph {
        // Before the first snapshot.
        let span = if span > 0.0 { span } else { 1.0 };
        let each = ((step / span).round() as usize).max(1);
        Graph { step: each as f64 * span, each, over: (until / span) as usize, width }
    }

    /// Bytes per second in each of the last complete columns.
    fn rates(&self, spans: &[u64]) -> Vec<f64> {
        let columns = self.over.min(spans.len()) / self.each;
        let spans = &spans[..columns * self.each];
        let columns = spans.chunks(self.each).skip(columns.saturating_sub(self.width));
        columns.map(|column| column.iter().map(|bytes| *bytes as f64).sum::<f64>() / self.step).collect()
    }
}

/// Bars in so many lines, the upper one first. Anything above zero is visible.
fn bars(rates: &[f64], peak: f64, lines: u16) -> Vec<String> {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let level = |rate: f64, line: u16| {
        let whole = (rate / peak * 8.0 * f64::from(lines)).ceil() as usize;
        if rate > 0.0 { whole.saturating_sub(8 * usize::from(line)).min(8) } else { 0 }
    };
    (0..lines).rev().map(|line| rates.iter().map(|rate| LEVELS[level(*rate, line)]).collect()).collect()
}

/// The time axis: how long ago the left, middle and right bars were.
fn axis(step: f64, width: usize) -> String {
    let (left, middle) = (format!("-{}", span(step * width as f64)), format!("-{}", span(step * width as f64 / 2.0)));
    let to_middle = (width / 2).saturating_sub(left.len());
    let to_right = width.saturating_sub(left.len() + to_middle + "now".len());
    match to_middle > middle.len() && to_right > 3 {
        true => format!("{left}{middle:>to_middle$}{:>width$}", "now", width = to_right + 3),
        false => format!("{left}{:>width$}", "now", width = width.saturating_sub(left.len())),
    }
}

/// Seconds for an axis: `0.1 s`, `60 s`, `5 min`.
fn span(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 && s.fract() > 0.01 => format!("{s:.1} s"),
        s => crate::stats::render::seconds(Duration::from_secs_f64(s.clamp(0.0, 1e9))),
    }
}

/// The filled and the empty part of a bar.
fn gauge(share: f64, width: usize) -> (String, String) {
    let full = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    ("█".repeat(full), "░".repeat(width - full))
}

fn widths(columns: &[ViewColumn], places: &[usize], width: u16) -> Vec<usize> {
    let mut widths: Vec<usize> = places.iter().map(|at| usize::from(columns[*at].width)).collect();
    let used: usize = widths.iter().sum::<usize>() + widths.len().saturating_sub(1);
    let grows = places.last().is_some_and(|at| columns[*at].kind == ColumnKind::Path);
    if let (Some(last), true) = (widths.last_mut(), grows) {
        *last += usize::from(width).saturating_sub(used);
    }
    widths
}

/// A text in a column of its kind.
fn fit(text: &str, kind: ColumnKind, width: usize) -> String {
    match kind {
        ColumnKind::Number | ColumnKind::Order => format!("{text:>width$.width$}"),
        ColumnKind::Text => format!("{text:<width$.width$}"),
        ColumnKind::Path => format!("{:<width$}", shown::end_of(text, width)),
    }
}

/// The keys, or the filter being typed.
fn keys(buffer: &mut Buffer, area: Rect, state: &State, theme: Theme) {
    if state.typing {
        let typed = format!("filter: {}_  Enter: keep it, Esc: show all", state.filter);
        return Line::from(typed).render(area, buffer);
    }
    let mut line = Line::default();
    for (key, word) in KEYS {
        if line.width() + key.chars().count() + word.len() + 3 > usize::from(area.width) {
            break;
        }
        line.push_span(Span::styled(key, theme.of(Color::Cyan).add_modifier(Modifier::BOLD)));
        line.push_span(format!(" {word}  "));
    }
    line.render(area, buffer);
}

/// A box over the rest.
fn help(buffer: &mut Buffer, area: Rect, snapshot: &Snapshot) {
    let mut lines: Vec<Line<'_>> = HELP.map(Line::from).to_vec();
    // Wrapped: one line more than the length needs, because words end lines early.
    let hidden = snapshot.stats.io_path.not_seen.iter().map(|hidden| format!("not seen: {hidden}"));
    let more: usize = hidden.clone().map(|hidden| hidden.len() / 50).sum();
    lines.extend(hidden.map(Line::from));
    let (width, height) = (area.width.min(62), area.height.min((lines.len() + more) as u16 + 2));
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(place, buffer);
    Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .block(Block::bordered().title(" any key returns "))
        .render(place, buffer);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::*;
    use crate::cli::top::snapshot::{Dated, ProcessEntry, ProcessTable};
    use crate::stats::counters::BUCKETS;
    use crate::stats::files::{ActiveFile, ActiveFiles, Activity};
    use crate::stats::queue::{PendingEvent, Queue};
    use crate::stats::status::IoPathFigures;

    const COLOURS: Theme = Theme { colours: true };

    /// A mount after so many seconds in which the slow tier was read at a MiB a second and the fast one written at ten.
    fn snapshot(until: u64) -> Snapshot {
        let mut snapshot = crate::cli::top::change::tests::snapshot(until as f64, until << 20, until * 256);
        let each = |amount: u64| vec![amount / 10; until as usize * 10];
        snapshot.timeline.span = 0.1;
        snapshot.timeline.read_slow = each(1 << 20);
        snapshot.timeline.written_fast = each(10 << 20);
        snapshot.timeline.calls = each(256);
        (snapshot.timeline.read_fast, snapshot.timeline.written_slow) = (each(0), each(0));
        snapshot.timeline.drained = each(5 << 20);
        snapshot.stats.version = "1.2.3".into();
        snapshot.stats.io_path =
            IoPathFigures { name: "exact".into(), not_seen: vec!["lseek".into()], ..IoPathFigures::default() };
        (snapshot.stats.fast.total, snapshot.stats.fast.used, snapshot.stats.slow.total) =
            (100 << 30, 25 << 30, 4 << 40);
        (snapshot.stats.safety.files, snapshot.stats.safety.bytes) = (2, 18 << 27);
        let sums = Activity {
            opens: 1,
            reads: until,
            bytes_read: until << 20,
            time: Duration::from_secs(until) / 4,
            ..Activity::default()
        };
        let files = (0..50).map(|ino| {
            let path = format!("/data/a/directory/with/a/long/name/{ino}");
            ActiveFile {
                ino,
                path,
                sums: Activity { bytes_read: sums.bytes_read + ino, ..sums.clone() },
                ..ActiveFile::default()
            }
        });
        snapshot.files =
            Some(Dated { at: until as f64, table: ActiveFiles { files: files.collect(), known: 1_300_000 } });
        let process =
            ProcessEntry { number: 1, pid: Some(4711), command: "python3".into(), sums, ..ProcessEntry::default() };
        snapshot.processes = Some(Dated { at: until as f64, table: ProcessTable { processes: vec![process] } });
        let pending = PendingEvent {
            lsn: 7,
            path: "/run/ckpt-1".into(),
            reason: Some("EDQUOT".into()),
            ..PendingEvent::default()
        };
        snapshot.queue = Some(Queue { events: 3, bytes_to_copy: 9, pending: vec![pending], ..Queue::default() });
        snapshot
    }

    fn state() -> State {
        let mut state = State::new("/mnt/train".into(), 1.0, TopView::default());
        state.update(snapshot(60));
        state.update(snapshot(61));
        state
    }

    fn press(state: &mut State, keys: &str) {
        keys.chars().for_each(|key| drop(format!("{:?}", state.key(KeyCode::Char(key).into()))));
    }

    fn buffer(state: &State, width: u16, height: u16, theme: Theme) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a buffer");
        terminal.draw(|frame| draw(frame, state, theme)).expect("drawn");
        terminal.backend().buffer().clone()
    }

    fn lines(state: &State, width: u16, height: u16) -> Vec<String> {
        let buffer = buffer(state, width, height, COLOURS);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn at_80_by_24_all_of_it_is_there() {
        let shown = lines(&state(), 80, 24);
        let text = shown.join("\n");
        assert!(
            shown[0].starts_with("/mnt/train") && shown[0].ends_with("I/O path exact, up for 61 s, dlio-fs 1.2.3"),
            "{text}"
        );
        assert!(shown[1].starts_with("NOT SAFE: 2 files, 2.2 GiB only on fast"), "{text}");
        let line = |start: &str| shown.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
        assert!(line("fast ").contains("25G of 100G") && line("fast ").contains("0 of 4.0T"), "{text}");
        // It was as fast all the time: every bar is as high as there can be, and as many as fit.
        assert_eq!(line("written fast").matches('█').count(), 53, "{text}");
        assert!(line("written fast").ends_with("10M     10M") && line("drained").ends_with("5.0M    5.0M"), "{text}");
        assert_eq!(line("read fast").matches(['▁', '█']).count(), 0, "{text}");
        assert!(text.contains("throughput, 1 s a bar") && line("             -53 s").ends_with("now"), "{text}");
        assert!(text.contains("50 in use of 1300000 known") && text.contains("READ/s"), "{text}");
        assert!(text.contains("…") && text.contains("/long/name/9"), "the end of a path is seen: {text}");
        assert!(shown[23].starts_with("q quit  ? help"), "{text}");
    }

    #[test]
    fn at_40_by_10_the_verdict_the_rates_and_the_table_are_left() {
        let shown = lines(&state(), 40, 10);
        let text = shown.join("\n");
        assert!(shown[1].starts_with("NOT SAFE: 2 files"), "{text}");
        assert_eq!(shown[2], "read 1.0M/s written 10M/s drained 5.0M/s", "{text}");
        assert!(shown[4].contains("READ/s") && shown[5].contains("1.0M") && shown[9].starts_with("q quit"), "{text}");
    }

    #[test]
    fn no_size_and_nothing_in_the_figures_stops_it() {
        let mut states = vec![State::new("/mnt".into(), 1.0, TopView::default()), state()];
        for keys in ["p", "o>>", "u", "?", "/nothing", " ", "f---", "+++++++"] {
            let mut state = state();
            press(&mut state, keys);
            states.push(state);
        }
        let mut broken = snapshot(61);
        (broken.stats.mounted_for, broken.timeline.until, broken.stats.safety.eta) =
            (Duration::MAX, 1e300, Some(Duration::MAX));
        broken.stats.fast.used = u64::MAX;
        broken.timeline.drained = vec![u64::MAX; 3];
        (broken.timeline.written_fast, broken.timeline.written_slow) = (vec![u64::MAX; 3], vec![u64::MAX; 3]);
        let most = u64::MAX;
        let sums = Activity { opens: most, reads: most, bytes_read: most, bytes_written: most, ..Activity::default() };
        let file = |ino| ActiveFile { ino, path: "/twice".into(), sums: sums.clone(), ..ActiveFile::default() };
        broken.files =
            Some(Dated { at: 99.0, table: ActiveFiles { files: vec![file(98), file(99)], known: usize::MAX } });
        broken.stats.operations[0].all.latency_log2_us = [most; BUCKETS];
        broken.stats.files.unnamed = 1;
        let nothing = Checkpoint { absorbed: -1.0, drained: Some(f64::INFINITY), ..Checkpoint::default() };
        broken.checkpoints = vec![nothing];
        let mut wrong = state();
        wrong.update(broken);
        wrong.wait(1e9);
        states.push(wrong);
        for state in &states {
            for (width, height) in
                [(80, 24), (200, 60), (100, 30), (40, 10), (41, 13), (20, 40), (10, 3), (1, 1), (300, 2)]
            {
                lines(state, width, height);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut state = state();
        let mut wrong = snapshot(62);
        wrong.stats.files.unnamed = 4;
        wrong.stats.io_path.name = "cached".into();
        wrong.stats.safety.held = Some("quota; raise it".into());
        state.update(wrong);
        let text = lines(&state, 100, 50).join("\n");
        for said in ["HELD: quota", "profile_memory is full", "not seen: lseek"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        state.wait(17.0);
        assert!(lines(&state, 80, 24)[2].starts_with("no answer for 17 s"));
        let mut off = snapshot(63);
        off.stats.profile = false;
        state.update(off);
        assert!(lines(&state, 80, 24)[2].starts_with("profile = false"));
    }

    #[test]
    fn each_table_and_what_was_chosen_is_shown() {
        let mut state = state();
        press(&mut state, "p");
        assert!(lines(&state, 80, 24).join("\n").contains("4711 python3"));
        press(&mut state, "o");
        assert!(lines(&state, 80, 24).iter().any(|line| line.starts_with("read ") && line.contains("256")));
        press(&mut state, "u");
        let text = lines(&state, 80, 24).join("\n");
        assert!(text.contains("3 pending") && text.contains("/run/ckpt-1") && !text.contains("EDQUOT"), "{text}");
        press(&mut state, "j");
        let text = lines(&state, 80, 24).join("\n");
        assert!(text.contains("/run/ckpt-1; EDQUOT"), "of a row that is marked all is told: {text}");
        press(&mut state, "f/name/7");
        let text = lines(&state, 80, 24).join("\n");
        assert!(
            text.contains("filter: name/7_") && text.contains("1 with \"name/7\"") && !text.contains("/49"),
            "{text}"
        );
        state.key(KeyCode::Esc.into());
        press(&mut state, "? ");
        assert!(!lines(&state, 80, 24).join("\n").contains("any key"), "any key takes the help away");
        press(&mut state, " ");
        assert!(lines(&state, 100, 24)[0].contains("PAUSED"));
        press(&mut state, "jjj");
        let buffer = buffer(&state, 80, 24, COLOURS);
        let marked = (0..24).filter(|y| buffer[(0, *y)].modifier.contains(Modifier::REVERSED)).count();
        assert_eq!(marked, 2, "the headings, and a row");
        press(&mut state, "o");
        assert_eq!(state.marked, None);
    }

    #[test]
    fn without_colours_there_are_none() {
        let mut all = state();
        let mut with_all = snapshot(62);
        with_all.checkpoints = vec![Checkpoint { bytes: 1, ..Checkpoint::default() }];
        with_all.stats.safety.held = Some("why".into());
        all.update(with_all);
        let colours = |theme| {
            let buffer = buffer(&all, 80, 40, theme);
            buffer.content().iter().filter(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset)).count()
        };
        assert!(colours(COLOURS) > 100);
        assert_eq!(colours(Theme { colours: false }), 0);
    }

    #[test]
    fn the_last_checkpoint_tells_what_has_arrived_at_least() {
        let mut state = state();
        let mut with_one = snapshot(62);
        let (path, bytes) = ("/run/ckpt-3".to_owned(), 9 << 30);
        with_one.checkpoints =
            vec![Checkpoint { number: 3, path, bytes, files: 4, began: 50.0, absorbed: 52.1, ..Checkpoint::default() }];
        state.update(with_one.clone());
        let line = |state: &State| {
            let shown = lines(state, 100, 30);
            shown.into_iter().find(|line| line.starts_with("checkpoint")).expect("a line")
        };
        let text = line(&state);
        assert!(
            text.starts_with("checkpoint 3  9.0G in 4 files, absorbed in 2.1s  drained ████████████░░░░ 75%"),
            "{text}"
        );
        assert!(text.ends_with("/run/ckpt-3"), "{text}");
        with_one.checkpoints[0].path = "/runs/of-this-year/resnet-50/seed-7/ckpt-1200".to_owned();
        state.update(with_one.clone());
        let text = lines(&state, 80, 30).into_iter().find(|line| line.starts_with("checkpoint")).expect("a line");
        assert!(text.trim_end().ends_with("seed-7/ckpt-1200") && text.contains("absorbed in 2.1s"), "{text}");
        with_one.timeline.until = 63.0;
        with_one.checkpoints[0].drained = Some(61.0);
        state.update(with_one);
        assert!(line(&state).contains("████████████████ in 11s"), "{}", line(&state));
    }

    #[test]
    fn the_pace_stands_below_the_last_checkpoint() {
        let (mut state, mut with_one) = (state(), snapshot(62));
        with_one.checkpoints = vec![Checkpoint { bytes: 1, ..Checkpoint::default() }];
        let newest = Some("/run/ckpt-3".to_owned());
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        with_one.pace = Some(CheckpointPace {
            interval: seconds(600),
            shortest_interval: seconds(32),
            safe_in: seconds(30),
            work_at_risk: Duration::from_secs(602),
            newest,
            ..CheckpointPace::default()
        });
        state.update(with_one);
        let shown = lines(&state, 100, 30);
        let at = shown.iter().position(|line| line.starts_with("checkpoint")).expect("a line");
        assert_eq!(
            shown[at + 1].trim_end(),
            "pace  every 10 min, sustained every 32 s  safe in 30 s  10 min of work at risk"
        );
    }

    /// A bar has the same spans in it from the first snapshot on, and is shown when it is over.
    #[test]
    fn bars_do_not_change_as_time_goes_on() {
        let spans: Vec<u64> = (0..100).collect();
        let at = |until: f64, spans: &[u64]| {
            let graph = Graph::new(0.1, until, 1.0, 4);
            (graph.step, graph.rates(spans))
        };
        assert_eq!(at(3.25, &spans[..33]), (1.0, vec![45.0, 145.0, 245.0]));
        assert_eq!(at(3.95, &spans[..40]), (1.0, vec![45.0, 145.0, 245.0]));
        assert_eq!(at(6.0, &spans[..60]).1, [245.0, 345.0, 445.0, 545.0]);
        let coarse = Graph::new(1.6, 16.0, 1.0, 4);
        assert_eq!((coarse.step, coarse.rates(&[16; 10])), (1.6, vec![10.0; 4]), "no finer than what is known");
    }

    #[test]
    fn the_smallest_rate_is_seen_and_the_largest_fills_its_lines() {
        assert_eq!(bars(&[0.0, 0.001, 4.0, 8.0], 8.0, 1), [" ▁▄█"]);
        assert_eq!(bars(&[0.0, 0.001, 6.0, 8.0], 8.0, 2), ["  ▄█", " ▁██"]);
        assert_eq!(bars(&[0.0, 0.0], 0.0, 1), ["  "]);
    }

    #[test]
    fn the_axis_is_as_wide_as_the_bars() {
        for (step, width) in [(1.0, 53), (0.1, 20), (300.0, 160), (1.0, 8)] {
            let axis = axis(step, width);
            assert!(axis.chars().count() == width && axis.ends_with("now") && axis.starts_with('-'), "{axis:?}");
        }
        assert!(axis(1.0, 60).contains("-30 s"));
    }
}

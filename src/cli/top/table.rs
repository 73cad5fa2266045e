//! The tables: their columns, cells and order. Pure.

use std::cmp::Ordering;
use std::time::Duration;

use super::change::{ActivityChange, Delta, OpChange};
use super::shown;
use super::snapshot::Snapshot;
use crate::path::readable;
use crate::stats::fleet::{FleetStatus, MemberStanding, MemberStatus};
use crate::stats::queue::{PendingEvent, Queue};
use crate::stats::render::{one_line, seconds, shown_op};

/// Which table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) enum TopView {
    #[default]
    Files,
    Processes,
    Operations,
    Queue,
    /// Of the mount's fleet.
    Members,
}

impl TopView {
    pub(super) const ALL: [TopView; 5] =
        [TopView::Files, TopView::Processes, TopView::Operations, TopView::Queue, TopView::Members];

    /// The underlined letter is the key.
    pub(super) fn title(self) -> (&'static str, char) {
        match self {
            TopView::Files => ("files", 'f'),
            TopView::Processes => ("processes", 'p'),
            TopView::Operations => ("operations", 'o'),
            TopView::Queue => ("queue", 'u'),
            TopView::Members => ("members", 'm'),
        }
    }

    pub(super) fn columns(self) -> &'static [ViewColumn] {
        match self {
            TopView::Files => &FILES,
            TopView::Processes => &PROCESSES,
            TopView::Operations => &OPERATIONS,
            TopView::Queue => &QUEUE,
            TopView::Members => &MEMBERS,
        }
    }

    /// The initial sort column.
    pub(super) fn first_sort(self) -> usize {
        let wanted = match self {
            TopView::Queue => "NO",
            TopView::Members => "MEMBER",
            TopView::Files | TopView::Processes | TopView::Operations => "BUSY",
        };
        self.columns().iter().position(|column| column.title == wanted).unwrap_or(0)
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct ViewColumn {
    pub(super) title: &'static str,
    /// The least width; the last column takes the rest.
    pub(super) width: u16,
    /// If there is too little room, the columns with the highest numbers are left out first.
    pub(super) spare: u8,
    pub(super) kind: ColumnKind,
}

/// The alignment and initial order of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    /// Right, largest first.
    Number,
    /// Right, smallest first.
    Order,
    /// Left, alphabetical.
    Text,
    /// Like a text; a long one is cut at its beginning.
    Path,
}

const fn column(title: &'static str, width: u16, spare: u8, kind: ColumnKind) -> ViewColumn {
    ViewColumn { title, width, spare, kind }
}

use ColumnKind::{Number, Order, Path, Text};

const FILES: [ViewColumn; 8] = [
    column("READ/s", 6, 0, Number),
    column("WRITE/s", 7, 0, Number),
    column("CALLS/s", 7, 2, Number),
    column("BUSY", 5, 1, Number),
    column("SLOW", 5, 3, Number),
    column("READ", 5, 5, Number),
    column("WRITTEN", 7, 4, Number),
    column("FILE", 12, 0, Path),
];

const PROCESSES: [ViewColumn; 9] = [
    column("PID", 7, 1, Order),
    column("COMMAND", 15, 0, Text),
    column("READ/s", 6, 0, Number),
    column("WRITE/s", 7, 0, Number),
    column("CALLS/s", 7, 3, Number),
    column("BUSY", 5, 2, Number),
    column("READ", 5, 5, Number),
    column("WRITTEN", 7, 4, Number),
    column("CGROUP", 6, 6, Path),
];

const OPERATIONS: [ViewColumn; 10] = [
    column("OPERATION", 15, 0, Text),
    column("CALLS/s", 7, 0, Number),
    column("BYTES/s", 7, 1, Number),
    column("SIZE", 5, 4, Number),
    column("p50 <", 5, 3, Number),
    column("p99 <", 5, 2, Number),
    column("BUSY", 5, 5, Number),
    column("SLOW", 5, 3, Number),
    column("FAIL/s", 6, 6, Number),
    column("CALLS", 6, 7, Number),
];

const QUEUE: [ViewColumn; 8] = [
    column("NO", 8, 3, Order),
    column("STATE", 12, 0, Text),
    column("SIZE", 5, 1, Number),
    column("AGE", 6, 2, Number),
    column("TRIES", 5, 5, Number),
    column("ETA", 6, 2, Order),
    column("CHANGE", 10, 4, Text),
    column("FILE", 12, 0, Path),
];

const MEMBERS: [ViewColumn; 5] = [
    column("MEMBER", 6, 0, Order),
    column("STATE", 17, 0, Text),
    column("BEHIND", 7, 0, Number),
    column("LEASE", 7, 2, Number),
    column("HOST", 12, 1, Text),
];

/// A cell: its text, and for a number its sort key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ViewCell {
    pub(super) text: String,
    pub(super) value: Option<f64>,
}

fn text(text: impl Into<String>) -> ViewCell {
    ViewCell { text: text.into(), value: None }
}

fn number(value: Option<f64>, shown: impl Fn(f64) -> String) -> ViewCell {
    ViewCell { text: shown::or_dash(value, shown), value }
}

/// A row.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewRow {
    pub(super) cells: Vec<ViewCell>,
    /// The full text, for below the table.
    pub(super) more: String,
    /// Nothing moved.
    pub(super) idle: bool,
}

/// The sort column, and whether the order is reversed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) reverse: bool,
}

/// The rows of a view with a cell that contains `filter` in any case, sorted. Equal rows keep the daemon's order.
pub(super) fn rows(
    view: TopView,
    snapshot: &Snapshot,
    change: Option<&Delta>,
    sort: Sort,
    filter: &str,
) -> Vec<ViewRow> {
    let mut rows: Vec<ViewRow> = match (view, change) {
        (TopView::Files, Some(change)) => change.files.iter().map(file).collect(),
        (TopView::Processes, Some(change)) => change.processes.iter().map(process).collect(),
        (TopView::Operations, Some(change)) => change.operations.iter().map(|op| operation(op, change)).collect(),
        (TopView::Members, _) => snapshot.fleet.iter().flat_map(members).collect(),
        (TopView::Queue, _) => snapshot.queue.iter().flat_map(|queue| &queue.pending).map(pending).collect(),
        (_, None) => Vec::new(),
    };
    let wanted = filter.to_lowercase();
    rows.retain(|row| wanted.is_empty() || row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&wanted)));
    let kind = view.columns()[sort.column].kind;
    rows.sort_by(|a, b| {
        let (a, b) = (&a.cells[sort.column], &b.cells[sort.column]);
        let order = match kind {
            Number => by_number(b, a),
            Order => by_number(a, b),
            Text | Path => a.text.cmp(&b.text),
        };
        if sort.reverse { order.reverse() } else { order }
    });
    rows
}

/// No number sorts below every number.
fn by_number(a: &ViewCell, b: &ViewCell) -> Ordering {
    let value = |cell: &ViewCell| cell.value.unwrap_or(f64::NEG_INFINITY);
    value(a).total_cmp(&value(b))
}

fn file(busy: &ActivityChange) -> ViewRow {
    let mut cells = rates(busy);
    cells.insert(4, number(busy.new.slow_share(), shown::percent));
    let path = readable(&busy.name);
    cells.push(text(&path));
    ViewRow { cells, more: path, idle: busy.new.calls() == 0 }
}

fn process(busy: &ActivityChange) -> ViewRow {
    let pid = busy.pid.map(|pid| pid as f64);
    let (name, cgroup) = (readable(&busy.name), readable(&busy.cgroup));
    let mut cells = vec![number(pid, |pid| format!("{pid:.0}")), text(&name)];
    cells.extend(rates(busy));
    cells.push(text(&cgroup));
    ViewRow { cells, more: format!("{name} {cgroup}"), idle: busy.new.calls() == 0 }
}

/// Read, written and calls per second, busy share, totals read and written.
fn rates(busy: &ActivityChange) -> Vec<ViewCell> {
    let rate = |amount: u64| busy.per_second(amount);
    vec![
        number(rate(busy.new.bytes_read), shown::size),
        number(rate(busy.new.bytes_written), shown::size),
        number(rate(busy.new.calls()), shown::count),
        number(busy.busy(), shown::percent),
        number(Some(busy.all.bytes_read as f64), shown::size),
        number(Some(busy.all.bytes_written as f64), shown::size),
    ]
}

fn operation(op: &OpChange, change: &Delta) -> ViewRow {
    let rate = |amount: u64| Some(change.per_second(amount));
    // Only operations that move bytes have a size.
    let moves = |value: f64| (op.bytes > 0).then_some(value);
    let of_calls = |value: f64| (op.calls > 0).then_some(value / op.calls as f64);
    let cells = vec![
        text(shown_op(&op.op)),
        number(rate(op.calls), shown::count),
        number(moves(change.per_second(op.bytes)), shown::size),
        number(of_calls(op.bytes as f64).and_then(moves), shown::size),
        number(op.p50, shown::latency),
        number(op.p99, shown::latency),
        number(Some(op.time / change.span), shown::percent),
        number(of_calls(op.slow_calls as f64), shown::percent),
        number(rate(op.errors), shown::count),
        number(Some(op.all_calls as f64), shown::count),
    ];
    ViewRow { cells, more: String::new(), idle: op.calls == 0 }
}

fn pending(pending: &PendingEvent) -> ViewRow {
    let state: &str = pending.state.into();
    let state = match (pending.done, pending.size) {
        (Some(done), Some(size @ 1..)) => format!("{state} {}", shown::percent(done as f64 / size as f64)),
        _ => state.to_owned(),
    };
    let span = |span: Option<Duration>| ViewCell {
        text: shown::or_dash(span, seconds),
        value: span.map(|span| span.as_secs_f64()),
    };
    let path = match &pending.to {
        Some(to) => format!("{} -> {}", readable(&pending.path), readable(to)),
        None => readable(&pending.path),
    };
    let more = match &pending.reason {
        Some(reason) => format!("{path}; {}", one_line(reason)),
        None => path.clone(),
    };
    let cells = vec![
        number(Some(pending.lsn as f64), |lsn| format!("{lsn:.0}")),
        text(state),
        number(pending.size.map(|size| size as f64), shown::size),
        span(Some(pending.age)),
        number(Some(f64::from(pending.tries)), |tries| format!("{tries:.0}")),
        span(pending.eta),
        text(&pending.change),
        text(path),
    ];
    ViewRow { cells, more, idle: false }
}

/// A lease that nobody has read says nothing, not even that it is missing.
fn members(fleet: &FleetStatus) -> Vec<ViewRow> {
    let read_at = fleet.read_ago.map(|ago| fleet.asked_at.saturating_sub(ago));
    let row = |read_at: Duration, member: &MemberStatus| {
        let span = |span: Option<Duration>| ViewCell {
            text: shown::or_dash(span, seconds),
            value: span.map(|span| span.as_secs_f64()),
        };
        let cells = vec![
            number(Some(f64::from(member.slot)), |slot| format!("{slot:.0}")),
            text(member.standing_text()),
            span(member.up_to.map(|up_to| read_at.saturating_sub(up_to))),
            span((!member.host.is_empty()).then_some(member.unchanged_for)),
            text(&member.host),
        ];
        ViewRow { cells, more: String::new(), idle: member.standing != MemberStanding::Here }
    };
    read_at.map_or_else(Vec::new, |at| fleet.members.iter().map(|member| row(at, member)).collect())
}

/// The title of a view, after its name.
pub(super) fn extent(view: TopView, snapshot: &Snapshot, shown: usize) -> String {
    match view {
        TopView::Files => snapshot.files.as_ref().map_or_else(String::new, |files| {
            format!("{} in use of {} known", files.table.files.len(), files.table.known)
        }),
        TopView::Processes | TopView::Operations => String::new(),
        TopView::Members => snapshot
            .fleet
            .as_ref()
            .map_or_else(String::new, |fleet| format!("fleet {}, {}", fleet.fleet, fleet.short())),
        TopView::Queue => {
            snapshot.queue.as_ref().map_or_else(String::new, |Queue { events, bytes_to_copy, .. }| {
                let more = if *events > shown as u64 { format!(", {shown} shown") } else { String::new() };
                format!("{events} pending, {} to copy{more}", shown::size(*bytes_to_copy as f64))
            })
        }
    }
}

/// The columns that fit, as indices into `columns`; the last one takes the rest of the width.
pub(super) fn fitting(columns: &[ViewColumn], width: u16) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let needed = |kept: &[usize]| kept.iter().map(|at| columns[*at].width + 1).sum::<u16>().saturating_sub(1);
    while needed(&kept) > width {
        let Some(most) = kept.iter().copied().filter(|at| columns[*at].spare > 0).max_by_key(|at| columns[*at].spare)
        else {
            break;
        };
        kept.retain(|at| *at != most);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::snapshot::Dated;
    use crate::stats::files::{ActiveFiles, Activity};
    use crate::stats::queue::EventState;

    fn busy(name: &str, new: u64, all: u64) -> ActivityChange {
        let sums = |bytes: u64| Activity {
            reads: bytes / 10,
            bytes_read: bytes,
            time: Duration::from_secs(bytes),
            ..Activity::default()
        };
        ActivityChange {
            name: name.into(),
            span: Some(2.0),
            new: sums(new),
            all: sums(all),
            ..ActivityChange::default()
        }
    }

    fn names(rows: &[ViewRow]) -> Vec<&str> {
        rows.iter().map(|row| &*row.cells.last().expect("a name").text).collect()
    }

    fn by(view: TopView, title: &str, reverse: bool) -> Sort {
        Sort { column: view.columns().iter().position(|column| column.title == title).expect("a column"), reverse }
    }

    #[test]
    fn files_are_sorted_by_any_column_and_found_by_a_part_of_their_name() {
        let files = vec![busy("/run/Model", 100, 900), busy("/data/b", 3000, 3000), busy("/data/a", 0, 5000)];
        let (snapshot, change) = (Snapshot::default(), Delta { span: 2.0, files, ..Delta::default() });
        let told = |sort, filter: &str| {
            let rows = rows(TopView::Files, &snapshot, Some(&change), sort, filter);
            names(&rows).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let busiest = Sort { column: TopView::Files.first_sort(), reverse: false };
        assert_eq!(told(busiest, ""), ["/data/b", "/run/Model", "/data/a"]);
        assert_eq!(told(Sort { reverse: true, ..busiest }, ""), ["/data/a", "/run/Model", "/data/b"]);
        assert_eq!(told(by(TopView::Files, "READ", false), ""), ["/data/a", "/data/b", "/run/Model"]);
        assert_eq!(told(by(TopView::Files, "FILE", false), ""), ["/data/a", "/data/b", "/run/Model"]);
        assert_eq!(told(by(TopView::Files, "SLOW", false), "model"), ["/run/Model"]);
        assert!(told(busiest, "nothing like it").is_empty());
        let all = rows(TopView::Files, &snapshot, Some(&change), busiest, "");
        assert_eq!(all[0].cells[0].text, "1.5K", "in two seconds");
        assert!(all[2].idle && !all[0].idle);
    }

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        let mut snapshot = Snapshot::default();
        let held = PendingEvent {
            size: Some(8),
            done: Some(2),
            state: EventState::Copying,
            path: "/a".into(),
            to: Some("/b".into()),
            reason: Some("no\nroom".into()),
            ..PendingEvent::default()
        };
        snapshot.queue = Some(Queue { events: 9, bytes_to_copy: 8, pending: vec![held], ..Queue::default() });
        snapshot.files = Some(Dated { at: 0.0, table: ActiveFiles { files: Vec::new(), known: 7 } });
        let member =
            MemberStatus { host: "node7".into(), up_to: Some(Duration::from_secs(90)), ..MemberStatus::default() };
        snapshot.fleet = Some(FleetStatus {
            asked_at: Duration::from_secs(100),
            read_ago: Some(Duration::from_secs(1)),
            members: vec![member],
            ..FleetStatus::default()
        });
        let op = OpChange { op: "read".into(), calls: 4, bytes: 8192, ..OpChange::default() };
        let one = || vec![busy("a", 1, 1)];
        let change = Delta { span: 1.0, files: one(), processes: one(), operations: vec![op], ..Delta::default() };
        for view in TopView::ALL {
            for column in 0..view.columns().len() {
                let rows = rows(view, &snapshot, Some(&change), Sort { column, reverse: false }, "");
                assert_eq!((rows.len(), rows[0].cells.len()), (1, view.columns().len()), "{view:?}");
            }
            let before = rows(view, &snapshot, None, Sort::default(), "");
            let is_of_one_look = matches!(view, TopView::Queue | TopView::Members);
            assert_eq!(before.len(), usize::from(is_of_one_look), "{view:?}");
        }
        let row = &rows(TopView::Queue, &snapshot, None, Sort::default(), "")[0];
        assert_eq!((&*row.cells[1].text, &*row.more), ("copying 25%", "/a -> /b; no room"));
        assert_eq!(extent(TopView::Queue, &snapshot, 1), "9 pending, 8 to copy, 1 shown");
        let member = &rows(TopView::Members, &snapshot, None, Sort::default(), "")[0];
        let told: Vec<&str> = member.cells.iter().map(|cell| &*cell.text).collect();
        assert_eq!(told, ["0", "not mounted yet", "9 s", "0 s", "node7"]);
        let op = &rows(TopView::Operations, &snapshot, Some(&change), Sort::default(), "")[0];
        assert_eq!((&*op.cells[3].text, &*op.cells[4].text), ("2.0K", "-"));
    }

    #[test]
    fn columns_go_where_there_is_no_room_for_them() {
        for view in TopView::ALL {
            assert_eq!(fitting(view.columns(), 120).len(), view.columns().len(), "{view:?}");
            let narrow = fitting(view.columns(), 40);
            let width: u16 = narrow.iter().map(|at| view.columns()[*at].width + 1).sum();
            assert!(width <= 41 && narrow.len() >= 3, "{view:?}: {narrow:?}");
            assert!(!fitting(view.columns(), 0).is_empty());
        }
    }
}

//! The state of the screen: the looks it shows, and the choices made by keys. Pure: looks and keys in.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::change::Delta;
use super::snapshot::Snapshot;
use super::table::{self, Sort, TopView, ViewRow};

/// Seconds in a column of the throughput, by zoom.
const STEPS: [f64; 8] = [0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0];
/// A look that comes earlier than this share of the interval only updates the table.
const EARLY: f64 = 0.6;
/// Rows in a page; the height of the screen is not known here.
const PAGE: usize = 10;

/// Everything that is drawn.
#[derive(Clone, Debug)]
pub(in crate::cli) struct State {
    pub(super) mountpoint: String,
    /// Seconds between two snapshots.
    pub(super) interval: f64,
    pub(super) view: TopView,
    /// The order of each view.
    sorts: [Sort; TopView::ALL.len()],
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) typing: bool,
    pub(super) help: bool,
    pub(super) paused: bool,
    /// The marked row.
    pub(super) marked: Option<usize>,
    zoom: usize,
    /// The look that the next one is compared with.
    base: Option<Snapshot>,
    pub(super) snapshot: Snapshot,
    pub(super) change: Option<Delta>,
    /// Seconds without an answer, if too many.
    pub(super) silent: Option<f64>,
}

/// A request of a key beyond the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum KeyAction {
    Nothing,
    /// Read the table of another view.
    Table,
    Quit,
}

impl State {
    pub(in crate::cli) fn new(mountpoint: String, interval: f64, view: TopView) -> Self {
        let zoom = STEPS.iter().position(|step| *step >= interval.max(1.0)).unwrap_or(STEPS.len() - 1);
        State {
            mountpoint,
            interval,
            view,
            sorts: TopView::ALL.map(|view| Sort { column: view.first_sort(), reverse: false }),
            filter: String::new(),
            typing: false,
            help: false,
            paused: false,
            marked: None,
            zoom,
            base: None,
            snapshot: Snapshot::default(),
            change: None,
            silent: None,
        }
    }

    /// Whether there was a look at the mount.
    pub(super) fn base_is_there(&self) -> bool {
        self.base.is_some()
    }

    pub(in crate::cli) fn view(&self) -> TopView {
        self.view
    }

    /// Takes a look. An early one, made for its table, does not shorten the interval of the other figures.
    pub(in crate::cli) fn update(&mut self, snapshot: Snapshot) {
        self.silent = None;
        if self.paused {
            return;
        }
        let Some(base) = &mut self.base else {
            (self.base, self.snapshot) = (Some(snapshot.clone()), snapshot);
            return;
        };
        let change = Delta::between(base, &snapshot);
        match (change, &mut self.change) {
            (Some(change), Some(before)) if change.span < EARLY * self.interval => {
                (before.files, before.processes) = (change.files, change.processes);
                base.files = base.files.take().or_else(|| snapshot.files.clone());
                base.processes = base.processes.take().or_else(|| snapshot.processes.clone());
            }
            (Some(change), _) => {
                self.change = Some(change);
                *base = snapshot.clone();
            }
            // The mount's clock has not advanced: wait for the next look.
            (None, _) => {}
        }
        self.snapshot = snapshot;
    }

    /// The daemon has not answered for so many seconds.
    pub(in crate::cli) fn wait(&mut self, seconds: f64) {
        self.silent = Some(seconds).filter(|seconds| too_long(*seconds, self.interval) && !self.paused);
    }

    pub(super) fn sort(&self) -> Sort {
        self.sorts[self.view as usize]
    }

    pub(super) fn rows(&self) -> Vec<ViewRow> {
        table::rows(self.view, &self.snapshot, self.change.as_ref(), self.sort(), &self.filter)
    }

    /// The wanted length of a column of the throughput, in seconds.
    pub(super) fn step(&self) -> f64 {
        STEPS[self.zoom]
    }

    pub(in crate::cli) fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyAction::Quit } else { KeyAction::Nothing };
        }
        if self.typing {
            return self.type_filter(key.code);
        }
        if std::mem::take(&mut self.help) {
            return KeyAction::Nothing;
        }
        let (column, columns) = (&mut self.sorts[self.view as usize].column, self.view.columns().len());
        match key.code {
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc if self.marked.is_some() => self.marked = None,
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('<' | ',') | KeyCode::Left => *column = (*column + columns - 1) % columns,
            KeyCode::Char('>' | '.') | KeyCode::Right => *column = (*column + 1) % columns,
            KeyCode::Char('r') => self.sorts[self.view as usize].reverse ^= true,
            KeyCode::Char('+' | '=') => self.zoom = self.zoom.saturating_sub(1),
            KeyCode::Char('-') => self.zoom = (self.zoom + 1).min(STEPS.len() - 1),
            KeyCode::Up | KeyCode::Char('k') => self.mark(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.mark(|at| at + 1),
            KeyCode::PageUp => self.mark(|at| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.mark(|at| at + PAGE),
            KeyCode::Home => self.mark(|_| 0),
            KeyCode::End => self.mark(|_| usize::MAX),
            KeyCode::Tab => return self.show(self.view as usize + 1),
            KeyCode::BackTab => return self.show(self.view as usize + TopView::ALL.len() - 1),
            KeyCode::Char(letter) => {
                return match TopView::ALL.iter().position(|view| view.title().1 == letter) {
                    Some(at) => self.show(at),
                    None => KeyAction::Nothing,
                };
            }
            _ => {}
        }
        KeyAction::Nothing
    }

    fn show(&mut self, at: usize) -> KeyAction {
        self.view = TopView::ALL[at % TopView::ALL.len()];
        self.marked = None;
        KeyAction::Table
    }

    /// Marks another row, or the first one if none is marked.
    fn mark(&mut self, to: impl Fn(usize) -> usize) {
        let last = self.rows().len().checked_sub(1);
        self.marked = last.map(|last| self.marked.map_or(0, to).min(last));
    }

    fn type_filter(&mut self, code: KeyCode) -> KeyAction {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.marked = None;
        KeyAction::Nothing
    }
}

/// Whether so many seconds without a look are suspicious.
pub(super) fn too_long(seconds: f64, interval: f64) -> bool {
    seconds > 3.0 + 2.0 * interval
}

/// The message for that case.
pub(super) fn silence(seconds: f64) -> String {
    format!("no answer for {seconds:.0} s: the daemon is stopped, or hangs; dlio-fs status says more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::change::tests::snapshot;
    use crate::cli::top::snapshot::Dated;

    fn state() -> State {
        State::new("/mnt".into(), 1.0, TopView::default())
    }

    fn press(state: &mut State, keys: &str) -> KeyAction {
        keys.chars().map(|key| state.key(KeyCode::Char(key).into())).last().expect("a key")
    }

    #[test]
    fn each_view_has_its_key_and_its_own_order() {
        let mut state = state();
        let views = [TopView::Processes, TopView::Operations, TopView::Queue, TopView::Members, TopView::Files];
        for (key, view) in "poumf".chars().zip(views) {
            assert_eq!((press(&mut state, &key.to_string()), state.view), (KeyAction::Table, view));
        }
        let first = state.sort();
        press(&mut state, ">r");
        assert_eq!(state.sort(), Sort { column: first.column + 1, reverse: true });
        press(&mut state, "o");
        assert!(!state.sort().reverse);
        press(&mut state, "f<r");
        assert_eq!(state.sort(), first);
        press(&mut state, &">".repeat(TopView::Files.columns().len()));
        assert_eq!(state.sort(), first, "it goes round");
        assert_eq!((state.key(KeyCode::BackTab.into()), state.view), (KeyAction::Table, TopView::Members));
        assert_eq!((state.key(KeyCode::Tab.into()), state.view), (KeyAction::Table, TopView::Files));
    }

    #[test]
    fn no_two_keys_are_the_same() {
        let taken = "q h?/<>,.r+-=jk ";
        assert!(
            TopView::ALL.iter().all(|view| !taken.contains(view.title().1) && view.title().0.contains(view.title().1))
        );
    }

    #[test]
    fn what_is_typed_into_the_filter_is_no_command() {
        let mut state = state();
        press(&mut state, "/quit");
        assert_eq!((&*state.filter, state.typing), ("quit", true));
        state.key(KeyCode::Backspace.into());
        state.key(KeyCode::Enter.into());
        assert_eq!((&*state.filter, state.typing), ("qui", false));
        assert_eq!((state.key(KeyCode::Esc.into()), &*state.filter), (KeyAction::Nothing, ""), "first the filter goes");
        assert_eq!(state.key(KeyCode::Esc.into()), KeyAction::Quit);
        press(&mut state, "/x");
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!((state.key(end), press(&mut self::state(), "q")), (KeyAction::Quit, KeyAction::Quit));
        press(&mut state, "?");
        assert_eq!(press(&mut self::state(), "?"), KeyAction::Nothing);
    }

    #[test]
    fn a_pause_holds_what_is_shown_and_the_rates_after_it_are_of_all_the_time() {
        let mut state = state();
        state.update(snapshot(1.0, 0, 0));
        state.update(snapshot(2.0, 100, 0));
        press(&mut state, " ");
        state.update(snapshot(3.0, 500, 0));
        assert_eq!(state.snapshot.timeline.until, 2.0);
        state.wait(99.0);
        assert_eq!(state.silent, None, "nobody asks");
        press(&mut state, " ");
        state.update(snapshot(12.0, 1100, 0));
        let change = state.change.expect("two looks");
        assert_eq!((change.span, change.amounts.map(|amounts| amounts.read_slow)), (10.0, Some(1000)));
    }

    #[test]
    fn silence_is_told_and_ends_with_an_answer() {
        let mut state = state();
        state.wait(4.0);
        assert_eq!(state.silent, None);
        state.wait(5.5);
        assert_eq!(state.silent, Some(5.5));
        state.update(snapshot(1.0, 0, 0));
        assert_eq!(state.silent, None);
    }

    #[test]
    fn a_look_for_a_table_does_not_shorten_the_interval() {
        let mut state = state();
        state.update(snapshot(1.0, 0, 0));
        state.update(snapshot(2.0, 100, 0));
        let mut early = snapshot(2.2, 900, 0);
        early.files = Some(Dated { at: 2.2, ..Dated::default() });
        early.processes = Some(Dated { at: 2.2, ..Dated::default() });
        state.update(early);
        let read = |state: &State| state.change.as_ref().and_then(|c| Some((c.span, c.amounts?.read_slow)));
        assert_eq!(read(&state), Some((1.0, 100)));
        let base = state.base.as_ref().expect("looked");
        assert_eq!((base.timeline.until, base.files.as_ref().map(|files| files.at)), (2.0, Some(2.2)));
        state.update(snapshot(3.0, 1100, 0));
        assert_eq!(read(&state), Some((1.0, 1000)));
    }

    #[test]
    fn the_mark_stays_on_a_row_that_is_there() {
        let mut state = state();
        let keys = [KeyCode::Down, KeyCode::PageDown, KeyCode::Up, KeyCode::End, KeyCode::Home];
        for code in keys {
            state.key(code.into());
            assert_eq!(state.marked, None, "there is none");
        }
        let busy = |n: usize| crate::cli::top::change::ActivityChange { name: n.to_string(), ..Default::default() };
        state.change = Some(Delta { files: (0..30).map(busy).collect(), ..Delta::default() });
        let marks = keys.map(|code| {
            state.key(code.into());
            state.marked
        });
        assert_eq!(marks, [0, 10, 9, 29, 0].map(Some));
        assert_eq!((state.key(KeyCode::Esc.into()), state.marked), (KeyAction::Nothing, None));
        let step = state.step();
        press(&mut state, "+++++++++");
        assert!(state.step() < step);
        press(&mut state, "----------------");
        assert!(state.step() > step);
    }
}

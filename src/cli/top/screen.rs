//! The terminal: keys in, a [`State`] out. The terminal is restored however it ends.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::draw::{Theme, draw};
use super::snapshot::Snapshot;
use super::state::{KeyAction, State};
use super::table::TopView;
use super::watch::watch;
use crate::cli::outcome::{Exit, Failure, Outcome};
use crate::error::{Context, Error};
use crate::path::Show as _;

/// The screen is drawn at least this often, to show for how long the daemon has not answered.
const REDRAWN: Duration = Duration::from_secs(1);

/// What the screen waits for.
enum ScreenEvent {
    Snapshot(Box<Result<Snapshot, Error>>),
    Terminal(Event),
    /// The keyboard is gone.
    Closed,
    /// A signal asked to end.
    Signal,
}

/// Shows the mount until the user quits. Errors: the mount is gone.
pub(super) fn run(mountpoint: &Path, interval: Duration, theme: Theme, view: TopView) -> Outcome {
    let (send, news) = mpsc::channel();
    let _signals = watch_signals(&send)?;
    let mut state = State::new(mountpoint.shown().to_string(), interval.as_secs_f64(), view);
    let snapshots = send.clone();
    let ask = watch(mountpoint.to_path_buf(), interval, Some(state.view()), move |snapshot| {
        snapshots.send(ScreenEvent::Snapshot(Box::new(snapshot))).is_ok()
    });
    // Restores the terminal even if this thread panics, before the process aborts.
    let mut terminal = ratatui::try_init().at("set up", "the terminal")?;
    read_keys(send);
    let ended = show(&mut terminal, &mut state, theme, &news, |view| {
        // The watching thread has ended with an error, which is on its way here.
        ask.send(view).ok();
    });
    ratatui::restore();
    ended
}

fn show(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    theme: Theme,
    news: &Receiver<ScreenEvent>,
    ask: impl Fn(TopView),
) -> Outcome {
    let mut answered = Instant::now();
    loop {
        state.wait(answered.elapsed().as_secs_f64());
        terminal.draw(|frame| draw(frame, state, theme)).at("write to", "the terminal")?;
        match news.recv_timeout(REDRAWN) {
            Ok(ScreenEvent::Snapshot(snapshot)) => {
                answered = Instant::now();
                state.update((*snapshot)?);
            }
            Ok(ScreenEvent::Terminal(Event::Key(key))) if key.kind != KeyEventKind::Release => match state.key(key) {
                KeyAction::Quit => return Ok(Exit::Done),
                KeyAction::Table => ask(state.view()),
                KeyAction::Nothing => {}
            },
            // Perhaps of another size: draw it again.
            Ok(ScreenEvent::Terminal(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(ScreenEvent::Closed) => return Err(Failure::new(Exit::Failure, "the terminal is gone")),
            Ok(ScreenEvent::Signal) | Err(RecvTimeoutError::Disconnected) => return Ok(Exit::Interrupted),
        }
    }
}

/// Reads keys on its own thread, which ends with the process.
fn read_keys(send: Sender<ScreenEvent>) {
    std::thread::spawn(move || {
        loop {
            let news = event::read().map_or(ScreenEvent::Closed, ScreenEvent::Terminal);
            let closed = matches!(news, ScreenEvent::Closed);
            if send.send(news).is_err() || closed {
                return;
            }
        }
    });
}

/// Signals are caught for as long as the runtime lives.
fn watch_signals(send: &Sender<ScreenEvent>) -> Result<Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build();
    let runtime = runtime.at("start", "signal handling")?;
    let inside = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut arrivals, send) = (signal(kind).at("catch", "signals")?, send.clone());
        runtime.spawn(async move { arrivals.recv().await.is_some_and(|()| send.send(ScreenEvent::Signal).is_ok()) });
    }
    drop(inside);
    Ok(runtime)
}

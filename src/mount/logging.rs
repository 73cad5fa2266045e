//! Where log lines go: standard error, a file, or syslog. The filter may change while mounted, and the file may be
//! renamed by log rotation, which then asks for a new one. An event is always one line, whatever the names in it are.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use parking_lot::Mutex;
use syslog_tracing::{Facility, Options, Syslog};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use super::places::if_missing;
use crate::error::{Errno, Error, Result};
use crate::path::{Show as _, harmless};
use crate::tiers::disk::held::HeldDir;

/// The environment variable that overrides the key `log`.
pub const FILTER_VAR: &str = "DLIO_LOG";
const SYSLOG_SOCKET: &str = "/dev/log";

#[derive(Clone, Debug)]
pub enum LogTo {
    Stderr,
    File(PathBuf),
    Syslog,
}

/// Replaces the filter that [`start`] installed.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// The file that lines are appended to, if they go to one.
static LOG_FILE: OnceLock<LogFile> = OnceLock::new();

#[derive(Debug)]
struct LogFile {
    place: LogPlace,
    /// Replaced at each reopening. Not locked while a line is written: a hanging disk does not block other users of the
    /// file.
    open: Mutex<Arc<File>>,
}

/// The directory of the log file, held open, and its name there: later changes of the directory's path are not
/// followed.
#[derive(Debug)]
struct LogPlace {
    dir: HeldDir,
    name: OsString,
}

impl LogPlace {
    /// One `write` per line in append mode, so that lines of two daemons do not mix.
    ///
    /// A user who may write to the directory may put any node under the name: only a file of our own is appended to. A
    /// fifo would block, and a link may lead to any file.
    fn open(&self) -> Result<File> {
        let path = || self.dir.path().join(&self.name);
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let mut open = OpenOptions::new();
        open.create(true).append(true).mode(0o640).custom_flags(flags);
        let file = open.open(self.dir.at(&self.name)).map_err(|e| unusable(&path(), &e))?;
        let stat = file.metadata().map_err(|e| unusable(&path(), &e))?;
        if stat.is_file() && stat.uid() == geteuid().as_raw() && stat.nlink() <= 1 {
            return Ok(file);
        }
        let what = match (stat.is_file(), stat.nlink()) {
            (false, _) => "is not a regular file".to_owned(),
            (true, 0 | 1) => format!("belongs to user {}, and not to {}", stat.uid(), geteuid()),
            (true, names) => format!("is a file with {names} names, which may be another's"),
        };
        Err(Error::refused(format!("{KEY} {} {what}", path().shown()), "remove it, or name another file"))
    }
}

/// The key and the flag that name the file: an error refers to what the user has written.
pub const KEY: &str = "log_file (--log-file)";

/// The file cannot be opened. If something is missing it is the directory: the file itself is created.
fn unusable(path: &Path, error: &io::Error) -> Error {
    let remedy = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => {
            if_missing(path, "make the directory that it is to be in, or name another file").to_owned()
        }
        Some(Errno::EACCES | Errno::EPERM) => format!("let user {} write there, or name another file", geteuid()),
        _ => "name another file, best on local storage".to_owned(),
    };
    Error::refused(format!("{KEY} {}: {error}", path.shown()), remedy)
}

impl LogFile {
    fn current(&self) -> Arc<File> {
        Arc::clone(&self.open.lock())
    }
}

/// Starts logging with the filter `log` (the key of the configuration); call once. A panic is logged too, before the
/// process aborts.
pub fn start(to: &LogTo, log: &str) -> Result<()> {
    match to {
        LogTo::Stderr => install(io::stderr, true, log),
        LogTo::File(path) => {
            let (dir, name) = HeldDir::find_file(path).map_err(|e| unusable(path, &e))?;
            let place = LogPlace { dir, name };
            let open = Mutex::new(Arc::new(place.open()?));
            let file = LOG_FILE.get_or_init(|| LogFile { place, open });
            install(move || file.current(), true, log)
        }
        LogTo::Syslog => match Syslog::new(c"dlio-fs", Options::LOG_PID, Facility::Daemon) {
            // syslog writes the time itself.
            Some(syslog) => install(syslog, false, log),
            None => Err(Error::refused("syslog is already in use", "report this: logging was started twice")),
        },
    }?;
    log_panics();
    Ok(())
}

/// Reopens the log file by its name, after log rotation has renamed the old one. Returns whether there is a log file at
/// all. Errors: it cannot be opened; the old one is kept.
pub(super) fn reopen() -> Result<bool> {
    let Some(file) = LOG_FILE.get() else { return Ok(false) };
    // Opened without the lock: the file may be on a file system that hangs.
    let new = Arc::new(file.place.open()?);
    *file.open.lock() = new;
    Ok(true)
}

/// Redirects standard error, for panics for example, to the log file, if there is one.
pub(super) fn redirect_stderr() -> io::Result<()> {
    match LOG_FILE.get() {
        Some(file) => Ok(nix::unistd::dup2_stderr(file.current())?),
        None => Ok(()),
    }
}

/// Whether a daemon listens to syslog here; in a container often none does.
pub fn has_syslog() -> bool {
    Path::new(SYSLOG_SOCKET).exists()
}

/// Changes what is logged from now on.
pub(super) fn set_filter(log: &str) -> Result<()> {
    match FILTER.get() {
        Some(handle) => handle.reload(filter(log)?).map_err(|e| Error::refused(format!("logging: {e}"), "report this")),
        // Logging was never started.
        None => Ok(()),
    }
}

fn install<W>(writer: W, with_time: bool, log: &str) -> Result<()>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let twice = || Error::refused("logging is already installed", "report this: logging was started twice");
    let (filter, handle) = reload::Layer::new(filter(log)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(OneLine(writer)).with_ansi(false);
    let lines = if with_time { lines.boxed() } else { lines.without_time().with_level(false).boxed() };
    // `try_init` also takes over fuser's messages through the `log` crate.
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|_| twice())?;
    FILTER.set(handle).map_err(|_| twice())
}

/// Writes each event as one line, without control characters, which a terminal would obey: users choose file names, and
/// one with a line break would write lines of its own into the log.
struct OneLine<W>(W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        OneLine(self.0.make_writer())
    }

    /// Syslog takes the level from here.
    fn make_writer_for(&'w self, about: &Metadata<'_>) -> Self::Writer {
        OneLine(self.0.make_writer_for(about))
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Each call has one whole event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        self.0.write_all(format!("{}{end}", harmless(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// fuser logs every request at debug level and its own trouble at warn. An undelivered reply is no trouble: the caller
/// was interrupted.
fn filter(log: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(format!("fuser=warn,fuser::reply=off,{log}"))
        .map_err(|e| Error::refused(format!("log = {log:?}: {e}"), "write a level (error, warn, info, debug, trace)"))
}

fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "bug: the daemon stops here; nothing acknowledged is lost; mount again to continue");
        before(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_no_terminal_obeys() {
        for (event, line) in [
            ("opened path=a b\u{e9}\n", "opened path=a b\u{e9}\n"),
            ("opened path=a\n2026 ERROR forged\u{1b}[31m\r\n", "opened path=a\\n2026 ERROR forged\\u{1b}[31m\\r\n"),
            ("a\u{9b}31m\tb", "a\\u{9b}31m\\tb"),
        ] {
            let mut written = OneLine(Vec::new());
            written.write_all(event.as_bytes()).expect("memory takes it");
            assert_eq!(String::from_utf8_lossy(&written.0), line);
        }
    }
}

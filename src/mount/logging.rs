//! Where log lines go: standard error, a file, or syslog. What is logged may change while mounted.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use syslog_tracing::{Facility, Options, Syslog};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::error::{Context, Error, Result};

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

/// Starts logging what `log` says (the key of the configuration); call once. A panic is logged too, before the process
/// aborts.
pub fn start(to: &LogTo, log: &str) -> Result<()> {
    match to {
        LogTo::Stderr => install(std::io::stderr, true, log),
        LogTo::File(path) => {
            // One `write` per line in append mode, so that lines of two daemons do not mix.
            let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path);
            install(std::sync::Mutex::new(file.at("open", path.display())?), true, log)
        }
        LogTo::Syslog => match Syslog::new(c"dlio-fs", Options::LOG_PID, Facility::Daemon) {
            // syslog writes the time itself.
            Some(syslog) => install(syslog, false, log),
            None => Err(Error::refused("syslog is in use already", "report this: logging was started twice")),
        },
    }?;
    log_panics();
    Ok(())
}

/// Whether anything listens to syslog here; in a container often nothing does.
pub fn has_syslog() -> bool {
    Path::new(SYSLOG_SOCKET).exists()
}

/// Changes what is logged from now on.
pub(super) fn set_filter(log: &str) -> Result<()> {
    match FILTER.get() {
        Some(handle) => handle.reload(filter(log)?).map_err(|e| Error::refused(format!("logging: {e}"), "report this")),
        // Nothing is logged at all.
        None => Ok(()),
    }
}

fn install<W>(writer: W, with_time: bool, log: &str) -> Result<()>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let twice = || Error::refused("logging is installed already", "report this: logging was started twice");
    let (filter, handle) = reload::Layer::new(filter(log)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    let lines = if with_time { lines.boxed() } else { lines.without_time().with_level(false).boxed() };
    // `try_init` also takes over what fuser says through the `log` crate.
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|_| twice())?;
    FILTER.set(handle).map_err(|_| twice())
}

/// fuser logs every request at debug level and its own trouble at warn. That a reply was not taken is no trouble: whoever asked
/// was interrupted.
fn filter(log: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(format!("fuser=warn,fuser::reply=off,{log}"))
        .map_err(|e| Error::refused(format!("log = {log:?}: {e}"), "write a level (error, warn, info, debug, trace)"))
}

fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "bug: the daemon stops here; nothing acknowledged is lost, mount again to go on");
        before(panic);
    }));
}

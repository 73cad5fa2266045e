//! Where log lines go: standard error, a file, or syslog. What is logged is chosen by `DLIO_LOG`.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use syslog_tracing::{Facility, Options, Syslog};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::error::{Context, Error, Result};

/// The environment variable with the filter, as `tracing_subscriber::EnvFilter` reads it.
pub const FILTER_VAR: &str = "DLIO_LOG";
/// fuser logs every request at debug level and its own trouble at warn.
const DEFAULT_FILTER: &str = "info,fuser=warn";
const SYSLOG_SOCKET: &str = "/dev/log";

#[derive(Clone, Debug)]
pub enum LogTo {
    Stderr,
    File(PathBuf),
    Syslog,
}

/// Starts logging; call once. A panic is logged too, before the process aborts.
pub fn start(to: &LogTo) -> Result<()> {
    match to {
        LogTo::Stderr => install(std::io::stderr, true),
        LogTo::File(path) => {
            // One `write` per line in append mode, so that lines of two daemons do not mix.
            let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path);
            install(std::sync::Mutex::new(file.at("open", path.display())?), true)
        }
        LogTo::Syslog => match Syslog::new(c"dlio-fs", Options::LOG_PID, Facility::Daemon) {
            // syslog writes the time itself.
            Some(syslog) => install(syslog, false),
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

fn install<W>(writer: W, with_time: bool) -> Result<()>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter()?).with_writer(writer).with_ansi(false);
    // `try_init` also takes over what fuser says through the `log` crate.
    let installed = if with_time { builder.try_init() } else { builder.without_time().with_level(false).try_init() };
    installed.map_err(|e| Error::refused(format!("logging: {e}"), "report this: logging was started twice"))
}

fn filter() -> Result<EnvFilter> {
    let wanted = std::env::var(FILTER_VAR).unwrap_or_default();
    let directives = if wanted.is_empty() { DEFAULT_FILTER.to_owned() } else { format!("fuser=warn,{wanted}") };
    EnvFilter::try_new(&directives).map_err(|e| {
        let what = format!("{FILTER_VAR}={wanted}: {e}");
        Error::refused(what, "write a level (error, warn, info, debug, trace) or target=level, separated by commas")
    })
}

fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "bug: the daemon stops here; nothing acknowledged is lost, mount again to go on");
        before(panic);
    }));
}

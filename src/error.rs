//! The errors, and the errno that each becomes.
//!
//! One type for the whole engine: an error keeps the operating system's own error as its source, so the errno an
//! application sees is the one the disk gave. Logging and exit codes are up to the code that receives the error.

use std::io;

pub use nix::errno::Errno;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed. `on_fast`: certainly on the fast tier, so the remedies for the slow one do not apply.
    #[error("{op} {path}{}: {source}", if *on_fast { " on the fast tier" } else { "" })]
    Io { op: &'static str, path: String, on_fast: bool, source: io::Error },
    /// The refusal that POSIX prescribes (ENOENT, EEXIST, ENOTEMPTY, ...); an application's business, not ours.
    #[error("{0}")]
    Posix(Errno),
    /// The operation cannot be answered from the fast tier and memory. Returned only to a caller that forbade slow-tier
    /// access; nothing was changed, and the same call may be made again with access allowed.
    #[error("needs the slow tier")]
    NeedSlow,
    /// The slow tier did not answer in time, or the caller has gone; nothing was changed.
    #[error("the slow tier did not answer in time")]
    SlowTimeout,
    /// A tier, the log or an option is not usable. `remedy` says what to do.
    #[error("{what}; {remedy}")]
    Refused { what: String, remedy: String },
}

impl Error {
    pub fn io(op: &'static str, path: impl Into<String>, source: io::Error) -> Self {
        Error::Io { op, path: path.into(), on_fast: false, source }
    }

    /// The same for a call on the fast tier.
    pub fn io_on_fast(op: &'static str, path: impl Into<String>, source: io::Error) -> Self {
        Error::Io { op, path: path.into(), on_fast: true, source }
    }

    pub fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Refused { what: what.into(), remedy: remedy.into() }
    }

    /// A thread cannot be started. The system says EAGAIN, whichever limit it was.
    pub fn no_thread(name: &str, source: &io::Error) -> Self {
        let remedy = "raise the limit on threads (ulimit -u, TasksMax= of a systemd unit, pids.max of the cgroup), or on \
                      address space (ulimit -v)";
        Error::refused(format!("the thread \"{name}\" cannot be started: {source}"), remedy)
    }

    /// The errno an application gets. An I/O error built without a raw errno becomes EIO.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Io { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            Error::Posix(errno) => *errno,
            // A caller that forbade slow access handles NeedSlow itself; if one leaks, EIO is the right answer.
            Error::NeedSlow | Error::SlowTimeout | Error::Refused { .. } => Errno::EIO,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::Posix(errno)
    }
}

/// Adds the operation and its object to the error of a failed I/O call.
pub trait Context<T> {
    fn at(self, op: &'static str, path: impl std::fmt::Display) -> Result<T>;
    /// The same for a call on the fast tier.
    fn at_fast(self, op: &'static str, path: impl std::fmt::Display) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn at(self, op: &'static str, path: impl std::fmt::Display) -> Result<T> {
        self.map_err(|source| Error::io(op, path.to_string(), source))
    }

    fn at_fast(self, op: &'static str, path: impl std::fmt::Display) -> Result<T> {
        self.map_err(|source| Error::io_on_fast(op, path.to_string(), source))
    }
}

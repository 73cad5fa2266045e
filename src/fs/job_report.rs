//! Leaves the recording and the report (HTML) of a job's mount, or of its window, in the directory that `job_report`
//! names, as Darshan leaves its log. The job's user may control its parent, and could replace it by a link: it is
//! resolved once, and held open.
//!
//! 1. make a file that only its owner may read, under an unpredictable name, because others may write to the directory;
//! 2. give it to the job's user;
//! 3. rename it to a name that no file has.
//!
//! Nothing is synced: a power cut costs a report, not data.

use std::io::{self, Cursor, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{Gid, Uid, fchown};

use super::observer::Observer;
use crate::config::is_job;
use crate::error::{Context, Error, Result};
use crate::path::Show as _;
use crate::report::html;
use crate::report::summary::Summary;
use crate::stats::recording::Recording;
use crate::tiers::disk::held::HeldDir;

/// How many files of one job get distinct names.
const NUMBERS: usize = 10_000;

/// Where reports go, and who owns them.
#[derive(Clone, Debug)]
pub struct JobReports {
    dir: Arc<HeldDir>,
    job: String,
    host: String,
    owner: (u32, u32),
}

impl JobReports {
    /// `job`: the mount's job; `owner`: user and group of the mount. Must be called before the mount is made: a daemon
    /// that wrote into its own mount would wait for itself.
    ///
    /// Errors: the directory does not exist, another user's link leads to it, or it is inside the mount.
    pub fn new(dir: &Path, job: Option<&str>, mountpoint: &Path, owner: (u32, u32)) -> Result<Self> {
        let refused = |why: &str| {
            let remedy = "name an existing directory outside the mount to which reports may be written";
            Error::refused(format!("job_report = {}: {why}", dir.shown()), remedy)
        };
        let dir = Arc::new(HeldDir::find(dir, None).map_err(|error| refused(&error.to_string()))?);
        if dir.path().starts_with(mountpoint) {
            return Err(refused("it is inside the mount"));
        }
        let last = || mountpoint.file_name().and_then(|name| name.to_str()).filter(|name| is_job(name));
        let job = job.or_else(last).unwrap_or("mount").to_owned();
        let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
        let host = host.filter(|host| is_job(host)).unwrap_or_else(|| "host".to_owned());
        Ok(JobReports { dir, job, host, owner })
    }

    /// The job of a window with this name, which is `job NAME`.
    pub(super) fn job_of_window(window: &str) -> Option<&str> {
        window.strip_prefix("job ").map(str::trim).filter(|job| is_job(job))
    }

    /// Leaves the report of the mount, when it ends. Returns the path of the report.
    pub fn leave(&self, observer: &Observer) -> Result<PathBuf> {
        let recording = observer.collected().recording(observer.about(), |ino| observer.path_of(ino));
        self.leave_recording(&self.job, &recording.at("make", "a recording")?)
    }

    /// Leaves the report for a recording of another job.
    pub(super) fn leave_recording(&self, job: &str, recording: &[u8]) -> Result<PathBuf> {
        let read = Recording::read(vec![Box::new(Cursor::new(recording.to_vec()))]);
        let mut read = read.map_err(|why| Error::refused(why, "report this"))?;
        let page = html::report(&Summary::of(&mut read));
        let place = |number: usize, ending: &str| {
            let number = if number > 1 { format!("-{number}") } else { String::new() };
            format!("{job}-{}{number}.{ending}", self.host)
        };
        let shown = |name: &str| self.dir.path().join(name);
        let is_free = |number: &usize| !self.dir.at(place(*number, "dlio")).exists();
        let mut number = (1..NUMBERS).find(is_free).unwrap_or(NUMBERS);
        // Another daemon may be leaving a report of the same job.
        while let Err(error) = self.put(&place(number, "dlio"), recording) {
            if error.kind() != io::ErrorKind::AlreadyExists || number >= NUMBERS {
                return Err(error).at("leave", shown(&place(number, "dlio")).shown());
            }
            number += 1;
        }
        let report = place(number, "html");
        self.put(&report, page.as_bytes()).at("leave", shown(&report).shown())?;
        Ok(shown(&report))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".dlio-fs-").tempfile_in(self.dir.by_descriptor())?; // 1
        file.write_all(bytes)?;
        let (uid, gid) = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
        fchown(file.as_file().as_fd(), Some(uid), Some(gid))?; // 2
        file.persist_noclobber(self.dir.at(name)).map(drop).map_err(|error| error.error) // 3
    }
}

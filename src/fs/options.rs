//! The options of the file system besides its engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::job_report::JobReports;
use crate::config::Rules;
use crate::stats::recording::Meta;

/// The options of the file system besides its engine.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Which path the reads and writes of each file take.
    pub rules: Rules,
    /// How long an application waits for the slow tier before it gets EIO.
    pub slow_wait: Duration,
    /// The owner of the mount: may read `.dlio/files` and write to `.dlio/control`.
    pub owner_uid: u32,
    pub owner_gid: u32,
    /// How many descriptors this process may have.
    pub descriptors: u64,
    /// Where jobs leave their reports.
    pub job_reports: Option<JobReports>,
    /// For recordings: the program and machine, and the tiers.
    pub about: Meta,
    /// Where the metrics are also served over HTTP: reported in the statistics.
    pub metrics_addr: Option<SocketAddr>,
    /// Reported in the statistics.
    pub other_mounts: Arc<OtherMounts>,
}

/// Mounts of the same slow tree that keep no order with this one, as last found, each as `HOST:MOUNTPOINT`.
#[derive(Debug, Default)]
pub struct OtherMounts(Mutex<Vec<String>>);

impl OtherMounts {
    pub fn names(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Replaces the names. Returns whether they have changed.
    pub fn replace(&self, names: Vec<String>) -> bool {
        let mut known = self.0.lock();
        let differs = *known != names;
        *known = names;
        differs
    }
}

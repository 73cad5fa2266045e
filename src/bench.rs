//! The loads of training jobs, timed on plain directories: how `dlio-fs bench` measures, and how it presents the
//! results.
//!
//! Nothing here knows a mount: a place is a directory, and the caller decides what is behind it. These parts are pure:
//! `blocks.rs` (what fio is told and says), `sums.rs` (one figure from several runs),
//! `results.rs`, and the documents.

pub mod blocks;
pub mod caches;
pub mod checkpoint;
pub mod copies;
pub mod data;
pub mod devices;
pub mod epoch;
pub mod files;
pub mod growth;
pub mod markdown;
pub mod metadata;
pub mod page;
pub mod pictures;
pub mod rank_processes;
pub mod ranks;
pub mod reader;
pub mod results;
pub mod sequential;
pub mod sums;
pub mod text;
pub mod train;
pub mod units;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Errno, Result};

/// Whether a load should end. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// From now on each load ends at its next piece or file.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Errors: EINTR once it is set.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Errno::EINTR.into()) } else { Ok(()) }
    }
}

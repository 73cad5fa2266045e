//! An open file of `.dlio`, and each user's share of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::session::ControlSession;
use super::texts::OpenText;
use crate::stats::{Stats, ops};

/// An open file of `.dlio`.
#[derive(Debug)]
pub(in crate::fs) struct Virtual {
    pub(super) what: VirtualContent,
    pub(super) _share: Option<TextShare>,
}

#[derive(Debug)]
pub(super) enum VirtualContent {
    /// Rendered when it was opened.
    Text(OpenText),
    /// Grows while it is read.
    Ops(OpsReader),
    Control(Mutex<ControlSession>),
}

impl Virtual {
    /// Whether it is `control`.
    pub(in crate::fs) fn is_command(&self) -> bool {
        matches!(self.what, VirtualContent::Control(_))
    }
}

/// Counts one file here opened by a user other than the mount's owner.
#[derive(Debug)]
pub(super) struct TextShare {
    pub(super) open: Arc<Mutex<HashMap<u32, usize>>>,
    pub(super) uid: u32,
}

impl Drop for TextShare {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        if let Some(count) = open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

/// A reader of `ops`.
#[derive(Debug)]
pub(super) struct OpsReader {
    pub(super) stats: Arc<Stats>,
    pub(super) reader: Mutex<ops::Reader>,
}

impl Drop for OpsReader {
    fn drop(&mut self) {
        self.stats.close_lines();
    }
}

//! What is found in the calls as they come: epochs, the heat map, lines for readers.

use super::access::Way;
use super::counters::{Call, Op};
use super::epochs::Epochs;
use super::heat::HeatMap;
use super::ops::Lines;
use super::traced::Traced;

/// What is found in the calls as they come.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) epochs: Epochs,
    pub(super) heat: HeatMap,
    pub(super) lines: Lines,
    /// Dropped calls that the lines have reported.
    pub(super) dropped: u64,
}

impl Watch {
    pub(super) fn see(&mut self, traced: &Traced) {
        self.epochs.see(traced);
        let Call { op, began, took, bytes, .. } = traced.call;
        match op {
            Op::Read => self.heat.count(traced.process.into(), Way::Read, bytes, began, took),
            Op::Write | Op::CopyFileRange => self.heat.count(traced.process.into(), Way::Write, bytes, began, took),
            _ => {}
        }
    }
}

//! The order that this mount keeps: alone, or with the other members of a fleet (`fleet.rs`). The rooms that take calls,
//! publish and index checkpoints ask here, and know no fleet.

use std::time::Duration;

use crate::error::Result;
use crate::tiers::Ino;
use crate::tiers::disk::{Dir, Time};
use crate::tiers::fleet::Fleet;
use crate::tiers::fleet::appends::AppendClaim;
use crate::tiers::fleet::journal::{GroupStep, WaitingCopy};
use crate::tiers::fleet::names::ChangedName;
use crate::tiers::fleet::rule::FleetGate;
use crate::tiers::log::record::Stamps;

#[derive(Debug)]
pub(crate) enum Order {
    Alone,
    Fleet(Box<Fleet>),
}

impl Order {
    pub(crate) fn of(fleet: Option<Fleet>) -> Order {
        fleet.map_or(Order::Alone, |fleet| Order::Fleet(Box::new(fleet)))
    }

    /// For what only a member does: its lease, its names, its copy at a partner.
    pub(crate) fn fleet(&self) -> Option<&Fleet> {
        match self {
            Order::Alone => None,
            Order::Fleet(fleet) => Some(fleet),
        }
    }

    /// Whether other mounts change the slow tree, in one order with this one.
    pub(crate) fn is_shared(&self) -> bool {
        self.fleet().is_some()
    }

    /// The fleet's name; empty if this mount is alone.
    pub(crate) fn name(&self) -> String {
        self.fleet().map(|fleet| fleet.name.clone()).unwrap_or_default()
    }

    /// A stamp for the start of a version.
    pub(crate) fn stamp(&self, now: Time) -> Option<u64> {
        self.fleet().map(|fleet| fleet.stamp(now))
    }

    /// The stamps of an event that is logged now ([`Fleet::stamps`]).
    pub(crate) fn stamps(&self, now: Time, start: Option<u64>) -> Option<Stamps> {
        self.fleet().map(|fleet| fleet.stamps(now, start))
    }

    /// Which events the other members admit.
    pub(crate) fn gate(&self, now: Duration) -> FleetGate {
        self.fleet().map_or(FleetGate::Open, |fleet| fleet.gate(now))
    }

    /// The gate let the oldest event go, or not.
    pub(crate) fn note_refusal(&self, refused: bool, now: Duration) {
        if let Some(fleet) = self.fleet() {
            fleet.note_refusal(refused, now);
        }
    }

    /// Whether the others can still count on this mount: asked before each step on the slow tree.
    pub(crate) fn may_go_on(&self, now: Duration) -> bool {
        self.fleet().is_none_or(|fleet| fleet.may_go_on(now))
    }

    /// Claims the right to append to a file, which one member has at a time. `wait`: called before the slow tree is
    /// asked. Returns the claim, and whether the file may have changed on the slow tree since it was seen here. `None`:
    /// no claim is needed.
    pub(crate) fn claim_append(
        &self,
        path: &[u8],
        ino: Ino,
        wait: impl FnOnce() -> Result<()>,
    ) -> Result<Option<(AppendClaim, bool)>> {
        let Some(fleet) = self.fleet() else { return Ok(None) };
        if let Some(claim) = fleet.appends.again(path, ino) {
            return Ok(Some((claim, false)));
        }
        wait()?;
        Ok(Some((fleet.appends.claim(path, ino)?, true)))
    }

    /// For the case that this node is lost with its fast tier: the slow tree says where each copy in `tmp` belongs.
    pub(crate) fn journal_copies(&self, tmp: &dyn Dir, copies: impl FnOnce() -> Vec<WaitingCopy>) {
        if let Some(fleet) = self.fleet()
            && let Err(error) = fleet.journal.add(tmp, &copies())
        {
            tracing::warn!(%error, "the journal of copies on the slow tier is not written: if this node is lost, nobody knows where its copies belong");
        }
    }

    /// For the case that this node is lost: the slow tree has the steps of the group, so that another member can finish
    /// it.
    pub(crate) fn journal_group(&self, tmp: &dyn Dir, steps: impl FnOnce() -> Vec<GroupStep>) {
        if let Some(fleet) = self.fleet()
            && let Err(error) = fleet.journal.begin_group(tmp, &steps())
        {
            tracing::warn!(%error, "the journal of a group on the slow tier is not written: if this node is lost, nobody can finish it");
        }
    }

    /// These names were published: the next lease comes after the others can read of them.
    pub(crate) fn note_published(&self, names: impl FnOnce() -> Vec<ChangedName>) {
        if let Some(fleet) = self.fleet() {
            fleet.note_published(&names());
        }
    }

    /// Whether what another member has at this path was there before an event that began at `start`.
    pub(crate) fn was_there(&self, path: &[u8], ino: u64, start: u64) -> bool {
        self.fleet().is_some_and(|fleet| fleet.was_there(path, ino, start))
    }

    /// For what one of so many members does in the place of all: how many take turns, and whose turn this one's is.
    pub(crate) fn turns(&self, of: u32) -> (u32, u32) {
        self.fleet().map_or((1, 0), |fleet| fleet.turns(of))
    }
}

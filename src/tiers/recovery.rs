//! The start: identifying the tiers, reading the log and repairs. Also tools for a fast tier that is not mounted.

pub(crate) mod fsck;
pub(crate) mod handover;
pub(crate) mod identity;
mod intents;
mod left_out;
pub(crate) mod lost_member;
mod objects;
pub(crate) mod replay;
pub(crate) mod rescue;
pub(crate) mod start;
pub(crate) mod state;
pub(crate) mod takeover;
pub(crate) mod verify;

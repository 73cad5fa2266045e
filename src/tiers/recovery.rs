//! Every start: what makes a fast tier one, reading the log, and putting things right. And looking at a tier that nobody serves.

pub(crate) mod aside;
pub(crate) mod fsck;
pub(crate) mod identity;
pub(crate) mod replay;
pub(crate) mod rescue;
pub(crate) mod start;
pub(crate) mod state;
pub(crate) mod takeover;
pub(crate) mod verify;

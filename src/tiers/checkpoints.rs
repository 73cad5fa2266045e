//! The only detector of checkpoints: bursts of writes, their index, the forecast of the next, and the file that keeps
//! them from mount to mount.

pub(crate) mod bursts;
pub(crate) mod forecast;
pub(crate) mod index;
pub(crate) mod of_fleet;
pub(crate) mod step;
pub(crate) mod store;

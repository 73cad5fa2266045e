//! The way to the slow tier: copying bytes, publishing in the order of the log, and handling refusals.

pub(crate) mod deadline;
pub(crate) mod drain;
pub(crate) mod full_slow;
pub(crate) mod group;
pub(crate) mod mend;
pub(crate) mod parts;
pub(crate) mod priority;
pub(crate) mod publish;
pub(crate) mod set_aside;
pub(crate) mod step;

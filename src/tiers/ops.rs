//! The calls of applications: names, attributes, listings, data, and giving what was written its place in the log.

pub(crate) mod aside;
pub(crate) mod attrs;
pub(crate) mod commit;
pub(crate) mod data;
pub(crate) mod list;
pub(crate) mod meet;
pub(crate) mod names;
pub(crate) mod recheck;
pub(crate) mod seal;

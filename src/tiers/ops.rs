//! The calls of applications: names, attributes, listings and data, and how written data gets its place in the log.

pub(crate) mod aside;
pub(crate) mod attrs;
pub(crate) mod commit;
pub(crate) mod data;
pub(crate) mod list;
pub(crate) mod meet;
pub(crate) mod names;
pub(crate) mod recheck;
pub(crate) mod seal;

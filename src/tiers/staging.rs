//! Staging jobs, and making one copy.

pub(crate) mod copy_one;
pub(crate) mod jobs;

//! Bytes of files (in the pool, on the slow tier, or split between them), the attributes that belong to a file, and the
//! slow tier's abilities.

pub(crate) mod abilities;
pub(crate) mod admission;
pub(crate) mod at_work;
pub(crate) mod attrs;
pub(crate) mod copy;
pub(crate) mod file;
pub(crate) mod hash;
pub(crate) mod joint_copy;
pub(crate) mod parts;
pub(crate) mod pool;
pub(crate) mod slow_parts;
pub(crate) mod slow_tier;
pub(crate) mod split;

pub(crate) mod version;

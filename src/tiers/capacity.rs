//! Room on the fast tier: what may be evicted, in which order, and what stays. `policy` decides and is pure; `evict` carries it out.

pub(crate) mod evict;
pub(crate) mod policy;

#[cfg(test)]
mod month;

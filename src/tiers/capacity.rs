//! Room on the fast tier: what may be evicted, in which order, and what stays. `policy` decides and is pure; `evict` carries it out.

pub(crate) mod evict;
pub(crate) mod pins;
pub(crate) mod policy;
pub(crate) mod rounds;

#[cfg(test)]
mod month;

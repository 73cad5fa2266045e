//! Room on the fast tier: what may be evicted, in which order, and what stays. `policy` decides without I/O; `evict`
//! carries it out.

pub(crate) mod evict;
pub(crate) mod policy;

#[cfg(test)]
#[path = "../../tests/simulations/month.rs"]
mod month;

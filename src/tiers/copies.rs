//! Copies of slow files on the fast tier: which there are, and which of them a power cut would leave.

pub(crate) mod epochs;
pub(crate) mod index;
pub(crate) mod reads;
pub(crate) mod rounds;

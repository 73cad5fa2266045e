//! Copies of slow files on the fast tier: their index, and which of them survive a power cut.

pub(crate) mod epochs;
pub(crate) mod index;
pub(crate) mod reads;
pub(crate) mod rounds;

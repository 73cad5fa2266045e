//! dlio-fs: a mount over slow storage that absorbs checkpoints on fast storage and copies them down in order.

// Names are anybody's: where one is cut inside of a character, the daemon ends. Tests cut what they have made.
#![cfg_attr(not(test), deny(clippy::string_slice))]

pub mod bench;
pub mod cli;
pub mod config;
pub mod error;
pub mod fs;
pub mod json;
pub mod mount;
pub mod observing;
pub mod path;
pub mod report;
pub mod share;
pub mod stats;
pub mod tiers;

#[cfg(test)]
#[path = "../tests/needs/mod.rs"]
mod needs;

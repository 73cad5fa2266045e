//! dlio-fs: a mount over slow storage that absorbs checkpoints on fast storage and copies them down in order.

// Names are anybody's: where one is cut inside of a character, the daemon ends. Tests cut what they have made.
#![cfg_attr(not(test), deny(clippy::string_slice, clippy::indexing_slicing))]

#[allow(clippy::indexing_slicing, reason = "commands: a panic ends nobody's mount")]
pub mod cli;
pub mod config;
pub mod error;
pub mod fs;
pub mod json;
pub mod mount;
pub mod observing;
pub mod path;
#[allow(clippy::indexing_slicing, reason = "commands: a panic ends nobody's mount")]
pub mod report;
pub mod share;
#[allow(clippy::indexing_slicing, reason = "behind the doors of `observing`")]
pub mod stats;
pub mod tiers;

#[cfg(test)]
#[path = "../tests/needs/mod.rs"]
mod needs;

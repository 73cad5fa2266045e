//! dlio-fs: a mount over slow storage that absorbs checkpoints on fast storage and copies them down in order.

pub mod bench;
pub mod cli;
pub mod config;
pub mod error;
pub mod fs;
pub mod json;
pub mod mount;
pub mod path;
pub mod report;
pub mod stats;
pub mod tiers;

#[cfg(test)]
#[path = "../tests/needs/mod.rs"]
mod needs;

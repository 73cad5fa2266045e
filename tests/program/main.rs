//! The built program, as its users meet it: most of it on real mounts, for which it takes root and `/dev/fuse`. What cannot be tried
//! here is left out, and told ([`needs`]).
//!
//! One test program for all: it is linked once, and tests that wait for a file system wait beside each other.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod answers;
mod checkpoints;
mod cli;
mod common;
mod complaints;
mod drain;
mod fleet;
mod hostile;
mod io_paths;
mod job_report;
mod json;
mod limits;
mod live;
mod metrics_http;
mod mount;
mod mount_cycle;
mod mount_faults;
mod mount_helpers;
#[path = "../needs/mod.rs"]
mod needs;
mod observe;
mod parts;
mod plan;
mod real_faults;
mod rules;
mod service;
mod set_aside;
mod slow_tiers;
mod slurm;
mod stage;
mod top;
mod trace;
mod two_users;
mod who_mounts;

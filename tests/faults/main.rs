//! Kills, power cuts and failing calls at every single step (promises P1, P3, P4, P5, P8 and P9), with a daemon and an engine
//! in which calls fail on demand (`src/tiers/disk/faults.rs`): `cargo xtask test points`.

#![cfg(debug_assertions)] // What they need of the engine is in no release build.
#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![allow(unreachable_pub, reason = "the modules below are seen from here only")]

mod engine;
mod failing;
mod lies;
mod mounts;
#[path = "../needs/mod.rs"]
mod needs;
mod points;
mod rig;
mod script;
mod seam;
#[path = "../sim/mod.rs"]
mod sim;
mod starts;
mod stories;
#[path = "../traffic/mod.rs"]
mod traffic;

//! The user's settings: values with their defaults (`values.rs`), rules for some files, and the layers that the values
//! come from.

mod io_path;
mod listen;
mod rules;
mod settings;
mod size;
mod streams;
mod values;

pub use io_path::IoPath;
pub use listen::Listen;
pub use rules::{DrainPolicy, Durable, FullSlow, OnTerm, PathRule, Pattern, Rules, Verify};
pub use settings::{Origin, Reloaded, SettingSources, Settings};
pub use streams::{DrainStreams, STREAMS_MAX};
pub(crate) use values::FLEET_MAX;
pub use values::{Config, FleetSettings, KEYS, ReloadEffect, check_clock_error, is_job};

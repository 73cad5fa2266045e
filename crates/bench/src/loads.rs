//! The loads of training jobs, timed on plain directories: how `dlio-fs-bench` measures, and how it presents the
//! results.
//!
//! Nothing here knows a mount: a place is a directory, and the caller decides what is behind it. These parts are pure:
//! `blocks.rs` (what fio is told and says), `sums.rs` (one figure from several runs),
//! `results.rs`, and the documents.

pub(crate) mod blocks;
pub(crate) mod caches;
pub(crate) mod checkpoint;
pub(crate) mod copies;
pub(crate) mod data;
pub(crate) mod devices;
pub(crate) mod epoch;
pub(crate) mod files;
pub(crate) mod growth;
pub(crate) mod markdown;
pub(crate) mod metadata;
pub(crate) mod page;
pub(crate) mod pictures;
pub(crate) mod rank_processes;
pub(crate) mod ranks;
pub(crate) mod reader;
pub(crate) mod results;
pub(crate) mod sequential;
pub(crate) mod sums;
pub(crate) mod text;
pub(crate) mod train;
pub(crate) mod units;

pub(crate) use dlio_fs::cli::sandbox::StopFlag;

//! Reports what was observed to people and to other programs: a recording in, a document out.
//!
//! Pure, except for the recording's sources, from which traced calls are read, and the writer that a document goes to;
//! the caller provides both. A recording becomes a summary, a summary becomes advice and a page, and a page becomes one
//! of the documents for people; documents for other programs are made from the recording itself.

pub mod advice;
pub mod asked;
pub mod calls;
pub mod chart;
mod chrome;
pub mod csv;
mod darshan;
mod dftracer;
pub mod formats;
pub mod html;
pub mod markdown;
pub mod outlet;
pub mod page;
pub mod plan;
pub mod plot;
pub mod rebuild;
mod summarize;
pub mod summary;
mod tables;
pub mod text;
pub mod totals;
mod traced;

pub use asked::DocumentOptions;
pub use formats::Format;
pub use outlet::Outlet;

#[cfg(test)]
mod sample;

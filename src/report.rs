//! What was observed, told to people and to other programs: a recording in, a document out.
//!
//! Pure but for the recording's sources, from which traced calls are read, and the writer that a document goes to: where both
//! are is the caller's business. A recording becomes a summary, a summary advice and a page, a page one of the documents
//! for people; what other programs read is made of the recording itself.

pub mod advice;
pub mod asked;
pub mod calls;
pub mod chart;
mod chrome;
pub mod csv;
mod darshan;
mod dftracer;
mod folded;
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

pub use asked::Asked;
pub use formats::Format;
pub use outlet::Outlet;

#[cfg(test)]
mod sample;

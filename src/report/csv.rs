//! The table of all files, with every counter, as comma-separated values. Pure.
//!
//! The columns are those of `.dlio/files.tsv`.

use std::io::{self, Write};

use crate::path::harmless;
use crate::stats::files::FileLines;
use crate::stats::recording::Recording;

/// A header line that names the columns; one line for each file, in the order of their paths; then the counters of
/// files without their own record, by class, as `*.jpg`.
pub fn write(recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
    let lines = FileLines::default();
    line(out, &lines.heading())?;
    let mut order: Vec<_> = recording.files.iter().collect();
    order.sort_unstable_by(|a, b| (&a.path, a.ino).cmp(&(&b.path, b.ino)));
    order.into_iter().try_for_each(|file| line(out, &lines.of(&harmless(&file.path), &file.record())))?;
    recording.rest.iter().try_for_each(|class| line(out, &lines.of(&harmless(&class.path), &class.record())))
}

/// Converts tab-separated cells to comma-separated ones.
fn line(out: &mut dyn Write, cells: &str) -> io::Result<()> {
    let quoted = |cell: &str| match cell.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    let cells: Vec<_> = cells.trim_end_matches('\n').split('\t').map(quoted).collect();
    writeln!(out, "{}", cells.join(","))
}

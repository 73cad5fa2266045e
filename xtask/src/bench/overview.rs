//! What users ask first, answered in one table. Pure.

use std::fmt::Write as _;

use anyhow::Result;

use super::bars::{EXACT, MOST, PASSTHROUGH, STAGED, stands_for};
use super::figures::{Measured, Results, Row, find};
use super::parts::FIGURES;
use super::peers::{BARE, OBSERVED};
use super::print::figure;

/// A row of the table.
struct Question {
    text: &'static str,
    /// The first of these that was measured answers.
    parts: &'static [&'static str],
    case: &'static str,
    place: &'static str,
}

const fn question(
    text: &'static str,
    parts: &'static [&'static str],
    case: &'static str,
    place: &'static str,
) -> Question {
    Question { text, parts, case, place }
}

const QUESTIONS: &[Question] = &[
    question("five checkpoints of 600 MB with `fsync`: the job waits", &["checkpoint"], "application blocked", EXACT),
    question("… until all is on the slow tier", &["checkpoint"], "until all is on the slow tier", EXACT),
    question("eight ranks save 840 MB at once", &["ranks", "pace"], "save, slowest rank", EXACT),
    question("… and load it, cold", &["ranks", "pace"], "load, slowest rank", EXACT),
    question("cold epoch of small files, 4 threads", &["ingest"], "read, 4 threads", EXACT),
    question("… staged", &["ingest"], "read, 4 threads", STAGED),
    question("hot epoch of 112 KB files, 4 threads", &["files", "listing"], "small files, 4 threads", EXACT),
    question("… `passthrough`", &["files"], "small files, 4 threads", PASSTHROUGH),
    question("a hot large file in blocks of 1 MiB", &["files"], "sequential read, 1 MiB", EXACT),
    question("create, write 4 KiB, close", &["files", "drain"], "create and write 4 KiB", EXACT),
    question("`find` with attributes over 100,000 files, for each", &["listing"], "walk of a tree with stat", EXACT),
    question("2,000 files of 4 KiB copied, until all are slow", &["drain"], "small files, until all are slow", EXACT),
    question("eight files of 256 MB copied, until all are slow", &["drain"], "large files, until all are slow", EXACT),
    question("observing: small files, 1 thread", &["cost"], "small files, 1 thread", OBSERVED.name),
    question("memory for each of a million pending files", &["growth"], "memory per file, pending", MOST),
    question("ready after a kill with a million pending", &["growth"], "mount ready, pending, after a kill", MOST),
];

pub(super) fn table(measured: &[(Measured, Results)]) -> Result<String> {
    let mut text = String::from("## What users ask\n\n");
    text += "| | fast alone | slow alone | dlio-fs | bare FUSE | others |\n|---|--:|--:|--:|--:|---|\n";
    for question in QUESTIONS {
        let found = question.parts.iter().find_map(|part| find(measured, part));
        let Some((measured, results)) = found else {
            writeln!(text, "| {} | | | not measured | | |", question.text)?;
            continue;
        };
        let part = &measured.part;
        write!(text, "| [{}]({FIGURES}/{part}.md) |", question.text)?;
        writeln!(text, " {} |", answers(question, results).join(" | "))?;
    }
    text.push('\n');
    Ok(text)
}

/// The figures of a question, by column.
fn answers(question: &Question, results: &Results) -> [String; 5] {
    let rows: Vec<&Row> = results.rows.iter().filter(|row| row.case == question.case).collect();
    let ours = stands_for(question.place, results);
    let at = |places: &[&str]| {
        let row = rows.iter().find(|row| places.contains(&row.place.as_str()));
        row.map_or_else(|| "–".to_owned(), |row| figure(row))
    };
    // Not the tiers and other disks, nor dlio-fs with other settings.
    let is_other = |row: &&&Row| {
        let disks_and_columns = ["fast", "slow", "ssd", "optane", BARE.name];
        let place = row.place.as_str();
        let is_number = question.place == MOST;
        !is_number && !disks_and_columns.contains(&place) && !place.starts_with("mount ") && !ours.contains(&place)
    };
    let others: Vec<_> = rows.iter().filter(is_other).map(|row| format!("{} {}", row.place, figure(row))).collect();
    [at(&["fast"]), at(&["slow"]), at(&ours), at(&[BARE.name]), others.join(", ")]
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::sample;
    use super::super::parts::PARTS;
    use super::*;

    #[test]
    fn a_question_is_answered_by_a_part() {
        for question in QUESTIONS {
            assert!(
                question.parts.iter().all(|part| PARTS.iter().any(|known| known.name == *part)),
                "{}",
                question.text
            );
        }
    }

    #[test]
    fn the_places_of_a_case_stand_side_by_side() {
        let small = question("", &["files"], "read 112 KB files, 1 thread", EXACT);
        let results = sample().results().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(answers(&small, &results), ["25.0 µs", "–", "100 µs", "–", "mergerfs 200 µs"]);
    }
}

//! Results as Markdown. Pure.

use std::fmt::{self, Write};

use dlio_fs::report::markdown::plain;

use super::results::Results;
use super::text::{cells, heading};

/// The whole report. Ends with a newline.
pub(crate) fn report(results: &Results) -> String {
    let mut out = String::new();
    whole(&mut out, results).expect("formatting into memory");
    out
}

fn whole(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(out, "# dlio-fs-bench {}\n", plain(&results.bench))?;
    for (name, value) in results.facts() {
        writeln!(out, "- **{}:** {}", plain(&name), plain(&value))?;
    }
    for case in results.cases() {
        let rows: Vec<_> = results.rows_of(&case).collect();
        let (title, scale) = heading(&case, &rows);
        let (head, lines) = cells(&rows, scale);
        writeln!(out, "\n**{}**\n", plain(&title))?;
        writeln!(out, "| {} |", head.join(" | "))?;
        writeln!(out, "| ---{} |", " | --:".repeat(head.len() - 1))?;
        for line in lines {
            let line: Vec<_> = line.iter().map(|cell| plain(cell)).collect();
            writeln!(out, "| {} |", line.join(" | "))?;
        }
    }
    results.note().iter().try_for_each(|note| writeln!(out, "\n{note}"))
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::made;
    use super::*;

    #[test]
    fn each_case_is_a_table_and_names_mean_nothing() {
        let text = report(&made(6));
        assert!(text.contains("**application blocked, ms (less is better)**"), "{text}");
        assert!(text.contains("| mount exact | 646 |") && text.contains("| 1.05 (1.05-1.05) |"), "{text}");
        assert!(text.contains("&lt;b&gt;&amp;\\|x"), "{text}");
    }
}

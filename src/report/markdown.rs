//! The report as Markdown, for an issue, a wiki or a pull request. Pure.

use std::fmt::{Result, Write};

use super::page::{self, PageBlock, Section, Table};
use super::summary::Summary;

/// The whole report. Ends with a newline.
pub fn report(summary: &Summary) -> String {
    let mut out = String::new();
    whole(&mut out, summary).expect("formatting into memory");
    out
}

/// Plain text without any meaning to a reader of Markdown or HTML.
pub fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in page::shown(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// A line of code, fenced by more backquotes than it contains.
fn code(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("{fence}\n{text}\n{fence}")
}

fn whole(out: &mut String, summary: &Summary) -> Result {
    writeln!(out, "# What was done through {}\n\n**{}**\n", plain(&summary.job.mountpoint), plain(&summary.verdict))?;
    facts(out, &page::job(summary))?;
    writeln!(out, "\n## Advice\n")?;
    if summary.advice.is_empty() {
        writeln!(out, "Nothing: no rule found its threshold passed.")?;
    }
    for advice in &summary.advice {
        writeln!(out, "### {}\n", plain(&advice.what))?;
        facts(out, &page::advised(advice))?;
        let (command, comment) = page::command(advice);
        writeln!(out, "\n{}\n", code(&command))?;
        comment.iter().try_for_each(|comment| writeln!(out, "({})\n", plain(comment)))?;
    }
    writeln!(out, "\n## What these figures hold\n")?;
    facts(out, &page::completeness(summary))?;
    page::sections(summary).iter().try_for_each(|section| one(out, section))
}

fn one(out: &mut String, section: &Section) -> Result {
    writeln!(out, "\n## {}\n\n{}\n", section.title, section.lead)?;
    for block in &section.blocks {
        match block {
            PageBlock::Facts(all) => {
                facts(out, all)?;
                writeln!(out)?;
            }
            PageBlock::Table(all) => table(out, all)?,
            // The tables beside it have the figures.
            PageBlock::Chart(_) => {}
        }
    }
    Ok(())
}

fn facts(out: &mut String, facts: &[(&'static str, String)]) -> Result {
    facts.iter().try_for_each(|(label, value)| writeln!(out, "- **{label}:** {}", plain(value)))
}

fn table(out: &mut String, table: &Table) -> Result {
    if !table.title.is_empty() {
        writeln!(out, "**{}**\n", table.title)?;
    }
    let names: Vec<_> = table.columns.iter().map(|column| plain(column.name)).collect();
    let rules: Vec<_> = table.columns.iter().map(|column| if column.is_number { "--:" } else { "---" }).collect();
    writeln!(out, "| {} |\n| {} |", names.join(" | "), rules.join(" | "))?;
    for row in &table.rows {
        let cells: Vec<_> = row.iter().map(|cell| plain(&cell.text)).collect();
        writeln!(out, "| {} |", cells.join(" | "))?;
    }
    table.note.iter().try_for_each(|note| writeln!(out, "\n{note}"))?;
    writeln!(out)
}

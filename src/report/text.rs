//! The report as text of eighty columns, for a terminal, a mail or a log. Pure.

use std::fmt::{Result, Write};

use super::page::{self, Chart, PageBlock, Section, Table};
use super::summary::{Advice, Summary};
use crate::stats::render::bytes;

const WIDTH: usize = 80;
/// The width of a fact's label.
const LABEL: usize = 14;
/// From nothing to the maximum.
const LEVELS: &[u8] = b" .:-=+*#%@";
/// The number of spans of a line that shows a course of time.
const COURSE: usize = 44;

/// What fits on a screen, or all of the report. Ends with a newline.
pub fn report(summary: &Summary, all: bool) -> String {
    let mut out = String::new();
    let written = if all { whole(&mut out, summary) } else { short(&mut out, summary) };
    written.expect("formatting into memory");
    out
}

/// Only the advice. Ends with a newline.
pub fn advice(all: &[Advice]) -> String {
    let mut out = String::new();
    advised(&mut out, all).expect("formatting into memory");
    out
}

/// The verdict, what to do, what moved and the last checkpoints, in about forty lines.
fn short(out: &mut String, summary: &Summary) -> Result {
    const ADVICE: usize = 3;
    const CHECKPOINTS: usize = 5;
    paragraph(out, &page::shown(&summary.verdict), 0)?;
    writeln!(out)?;
    let told = ["Mount", "Fast tier", "Slow tier", "Window", "Began", "Time"];
    let job: Vec<_> = page::job(summary).into_iter().filter(|(label, _)| told.contains(label)).collect();
    facts(out, &job)?;
    facts(out, &page::gaps(summary))?;
    writeln!(out, "\nAdvice")?;
    for (at, advice) in summary.advice.iter().take(ADVICE).enumerate() {
        let number = format!("{}. ", at + 1);
        write!(out, "{number}")?;
        paragraph(out, &page::shown(&advice.what), number.len())?;
        let (command, comment) = page::command(advice);
        writeln!(out, "   {command}")?;
        if let Some(comment) = comment {
            write!(out, "   ")?;
            paragraph(out, &format!("({comment})"), 3)?;
        }
    }
    match summary.advice.len() {
        0 => writeln!(out, "Nothing: no rule found its threshold passed.")?,
        n if n > ADVICE => writeln!(out, "and {} more: dlio-fs advise, which has the evidence, too", n - ADVICE)?,
        _ => {}
    }
    if let Some(moved) = page::moved(summary) {
        writeln!(out)?;
        table(out, &moved)?;
    }
    if let Some(last) = page::last_checkpoints(summary, CHECKPOINTS) {
        writeln!(out, "\nCheckpoints: absorbed while the program waits, then drained to the slow tier")?;
        table(out, &last)?;
    }
    writeln!(out)?;
    writeln!(out, "Evidence, I/O cost, latency, sizes, files, workers: --all, or -o report.html.")
}

fn whole(out: &mut String, summary: &Summary) -> Result {
    paragraph(out, &page::shown(&summary.verdict), 0)?;
    writeln!(out)?;
    facts(out, &page::job(summary))?;
    heading(out, "Advice")?;
    advised(out, &summary.advice)?;
    heading(out, "What these figures hold")?;
    facts(out, &page::completeness(summary))?;
    page::sections(summary).iter().try_for_each(|section| one(out, summary, section))
}

fn advised(out: &mut String, all: &[Advice]) -> Result {
    if all.is_empty() {
        return writeln!(out, "Nothing: no rule found its threshold passed.");
    }
    for (at, advice) in all.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}. {}", at + 1, page::shown(&advice.what))?;
        facts(out, &page::advised(advice))?;
        // On one line, however long: it is to be copied.
        let (command, comment) = page::command(advice);
        writeln!(out, "{:<LABEL$}{command}", "Do")?;
        if let Some(comment) = comment {
            write!(out, "{:LABEL$}", "")?;
            paragraph(out, &format!("({comment})"), LABEL)?;
        }
    }
    Ok(())
}

fn heading(out: &mut String, title: &str) -> Result {
    writeln!(out, "\n{title}\n{}", "-".repeat(title.chars().count()))
}

fn one(out: &mut String, summary: &Summary, section: &Section) -> Result {
    heading(out, section.title)?;
    paragraph(out, &section.lead, 0)?;
    for block in &section.blocks {
        match block {
            PageBlock::Facts(all) => {
                writeln!(out)?;
                facts(out, all)?;
            }
            PageBlock::Table(all) => {
                writeln!(out)?;
                table(out, all)?;
            }
            PageBlock::Chart(Chart::Timeline) => courses(out, summary)?,
            // The tables beside it have the figures.
            PageBlock::Chart(_) => {}
        }
    }
    Ok(())
}

fn facts(out: &mut String, facts: &[(&'static str, String)]) -> Result {
    let mut before = "";
    for (label, value) in facts {
        let shown = if *label == before { "" } else { *label };
        before = label;
        write!(out, "{shown:<LABEL$}")?;
        paragraph(out, value, LABEL)?;
    }
    Ok(())
}

/// Wraps words into lines that begin at a column, where the output already is. A word that is too long stays whole.
fn paragraph(out: &mut String, text: &str, indent: usize) -> Result {
    let mut column = indent;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let len = word.chars().count();
        if column > indent && column + 1 + len > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        }
        if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    writeln!(out)
}

fn table(out: &mut String, table: &Table) -> Result {
    if !table.title.is_empty() {
        writeln!(out, "{}", table.title)?;
    }
    let mut widths: Vec<usize> = table.columns.iter().map(|column| column.name.chars().count()).collect();
    for row in &table.rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    let all = |widths: &[usize], gap: usize| widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1);
    let gap = if all(&widths, 2) <= WIDTH { 2 } else { 1 };
    // If it is too wide, text columns are shortened, the last one first; numbers never are.
    for at in (0..widths.len()).rev().filter(|at| !table.columns[*at].is_number) {
        let over = all(&widths, gap).saturating_sub(WIDTH);
        widths[at] = widths[at].saturating_sub(over).max(widths[at].min(10));
    }
    let line = |out: &mut String, cells: &mut dyn Iterator<Item = &str>| {
        let mut row = String::new();
        for ((cell, width), column) in cells.zip(&widths).zip(&table.columns) {
            let cell = page::shortened(cell, *width);
            match column.is_number {
                true => write!(row, "{cell:>width$}")?,
                false => write!(row, "{cell:<width$}")?,
            }
            row.extend(std::iter::repeat_n(' ', gap));
        }
        writeln!(out, "{}", row.trim_end())
    };
    line(out, &mut table.columns.iter().map(|column| column.name))?;
    table.rows.iter().try_for_each(|row| line(out, &mut row.iter().map(|cell| cell.text.as_str())))?;
    table.note.iter().try_for_each(|note| writeln!(out, "{note}"))
}

/// How much moved over time, one line for each direction and tier.
fn courses(out: &mut String, summary: &Summary) -> Result {
    let timeline = &summary.timeline;
    let ways = [
        ("read fast", &timeline.read_fast),
        ("read slow", &timeline.read_slow),
        ("written fast", &timeline.written_fast),
        ("written slow", &timeline.written_slow),
        ("drained", &timeline.drained),
    ];
    let spans = timeline.calls.len();
    if spans == 0 {
        return Ok(());
    }
    writeln!(out)?;
    for (name, values) in ways.iter().filter(|(_, values)| values.iter().any(|n| *n > 0)) {
        let columns = COURSE.min(spans);
        let mean = |column: usize| {
            let (from, to) = (column * spans / columns, ((column + 1) * spans / columns).min(values.len()));
            let some = values.get(from..to).unwrap_or_default();
            some.iter().map(|n| *n as f64).sum::<f64>() / some.len().max(1) as f64 / timeline.span
        };
        let rates: Vec<f64> = (0..columns).map(mean).collect();
        let most = rates.iter().copied().fold(0.0, f64::max);
        let level = |rate: &f64| {
            let level = (rate / most * (LEVELS.len() - 1) as f64).ceil();
            char::from(LEVELS[(level as usize).min(LEVELS.len() - 1)])
        };
        let course: String = rates.iter().map(level).collect();
        writeln!(out, "{name:<LABEL$}|{course}| {}/s", bytes(most as u64))?;
    }
    let (from, until) = (summary.timeline_from, summary.timeline_from + spans as f64 * timeline.span);
    let (from, until) = (format!("{from:.1} s"), format!("{until:.1} s"));
    writeln!(out, "{:LABEL$} {from}{until:>width$}", "", width = COURSE.min(spans).max(12).saturating_sub(from.len()))
}

//! Results as tables for a terminal. Pure.

use std::fmt::{self, Write};

use dlio_fs::path::harmless;
use dlio_fs::report::page::shortened;

use super::results::{Course, Results, Row};
use super::sums;
use super::units::{Scale, digits};

/// From nothing to the maximum.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The places that each figure is compared with, if they are there; otherwise the first one is used.
const COMPARED: [&str; 2] = ["fast", "slow"];
/// The space between columns.
const GAP: usize = 2;
const NAME_MAX: usize = 30;
const NAME_LEAST: usize = 12;

/// The whole report, as wide as a terminal. Ends with a newline.
pub(crate) fn report(results: &Results, width: usize) -> String {
    let mut out = String::new();
    whole(&mut out, results, width).expect("formatting into memory");
    out
}

fn whole(out: &mut String, results: &Results, width: usize) -> fmt::Result {
    let settings: Vec<_> =
        results.settings.iter().map(|(name, value)| harmless(&format!("{name} {value}")).into_owned()).collect();
    wrapped(out, &format!("{}: {}; caches {}", results.bench, settings.join(", "), results.caches), width)?;
    for (name, tier) in [("fast", &results.tiers.fast), ("slow", &results.tiers.slow)] {
        let device = tier.device.as_ref().map_or_else(|| "no block device".to_owned(), |device| format!("on {device}"));
        wrapped(out, &harmless(&format!("{name}: {} ({}, {device})", tier.path, tier.file_system)), width)?;
    }
    for case in results.cases() {
        let rows: Vec<_> = results.rows_of(&case).collect();
        table(out, &case, &rows, width)?;
    }
    if let Some(note) = results.note() {
        writeln!(out)?;
        wrapped(out, &note, width)?;
    }
    courses(out, results, width)
}

/// A wrapped paragraph; continuation lines are indented.
fn wrapped(out: &mut String, text: &str, width: usize) -> fmt::Result {
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            writeln!(out, "{line}")?;
            line = "  ".to_owned();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{line}")
}

/// The heading of a case, and the unit of its figures.
pub(crate) fn heading(case: &str, rows: &[&Row]) -> (String, Scale) {
    let medians: Vec<_> = rows.iter().map(|row| row.median).collect();
    let unit = rows.first().map_or(super::results::Unit::Seconds, |row| row.unit);
    let scale = Scale::of(unit, sums::median(&medians).unwrap_or_default());
    let better = if rows.first().is_some_and(|row| row.less_is_better) { "less" } else { "more" };
    (format!("{case}, {} ({better} is better)", scale.name), scale)
}

/// The cells of a case's table: the place, the median, the range, and a ratio to each place it is compared with.
pub(crate) fn cells(rows: &[&Row], scale: Scale) -> (Vec<String>, Vec<Vec<String>>) {
    let compared = compared(rows);
    let mut head = vec![String::new(), "median".to_owned()];
    let several = rows.iter().any(|row| row.runs.len() > 1);
    head.extend(several.then(|| "least-most".to_owned()));
    head.extend(compared.iter().map(|name| format!("to {}", shortened(&harmless(name), NAME_MAX))));
    let ratio = |row: &Row, to: &str| {
        let ratio = row.ratios.iter().find(|ratio| ratio.to == to).map(|ratio| ratio.of);
        ratio.map_or_else(String::new, |of| match of.level > 0.0 {
            true => format!("{} ({}-{})", digits(of.median), digits(of.low), digits(of.high)),
            false => digits(of.median),
        })
    };
    let line = |row: &&Row| {
        let mut line = vec![shortened(&harmless(&row.place), NAME_MAX), scale.text(row.median)];
        line.extend(several.then(|| format!("{} to {}", scale.text(row.least), scale.text(row.most))));
        line.extend(compared.iter().map(|to| ratio(row, to)));
        line
    };
    (head, rows.iter().map(line).collect())
}

/// The places of [`COMPARED`] that are there. If there is none, because the places are sizes of one load, the first
/// place.
fn compared<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let is_there = |name: &str| rows.iter().any(|row| row.ratios.iter().any(|ratio| ratio.to == name));
    let tiers: Vec<_> = COMPARED.into_iter().filter(|name| is_there(name)).collect();
    match rows.first() {
        Some(first) if tiers.is_empty() && is_there(&first.place) => vec![first.place.as_str()],
        _ => tiers,
    }
}

fn table(out: &mut String, case: &str, rows: &[&Row], width: usize) -> fmt::Result {
    let (title, scale) = heading(case, rows);
    writeln!(out, "\n{title}")?;
    let (head, mut lines) = cells(rows, scale);
    lines.insert(0, head);
    let mut widths = widths(&lines);
    // On a narrow terminal the range is dropped first, as the ratio's interval also shows the spread.
    let range = lines[0].iter().position(|name| name == "least-most");
    if let Some(range) = range.filter(|_| widths.iter().sum::<usize>() + GAP * widths.len() > width) {
        lines.iter_mut().for_each(|line| drop(line.remove(range)));
        widths.remove(range);
    }
    // Then the middle of long names.
    let over = (widths.iter().sum::<usize>() + GAP * widths.len()).saturating_sub(width);
    if let Some(wide) = widths.first_mut().filter(|_| over > 0) {
        *wide = wide.saturating_sub(over).max(NAME_LEAST);
        lines.iter_mut().for_each(|line| line[0] = shortened(&line[0], *wide));
    }
    for line in &lines {
        let mut text = format!("  {:<1$}", line[0], widths[0]);
        for (cell, wide) in line.iter().zip(&widths).skip(1) {
            write!(text, "{:GAP$}{cell:>wide$}", "")?;
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let columns = lines.first().map_or(0, Vec::len);
    let wide = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    (0..columns).map(wide).collect()
}

/// The traffic of the devices, one line each.
fn courses(out: &mut String, results: &Results, width: usize) -> fmt::Result {
    let places = super::results::distinct(results.devices.iter().map(|course| course.place.as_str()));
    for place in places {
        let of: Vec<_> = results.devices.iter().filter(|course| course.place == place).collect();
        let seconds = of.iter().map(|course| course.every * course.read.len() as f64).fold(0.0, f64::max);
        let during = if place.is_empty() { String::new() } else { format!("{} (last run): ", harmless(&place)) };
        writeln!(out, "\n{during}the devices over {} s, MB/s", digits(seconds))?;
        let line = |course: &&Course| {
            let label = |what| format!("{} ({}) {what}", course.tier, course.device);
            [(label("read"), course.read.clone()), (label("written"), course.written.clone())]
        };
        let lines: Vec<_> = of.iter().flat_map(line).collect();
        let wide = lines.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        for (label, rates) in lines {
            writeln!(out, "{}", course_line(&label, wide, &rates, width))?;
        }
    }
    Ok(())
}

fn course_line(label: &str, wide: usize, rates: &[f64], width: usize) -> String {
    let most = rates.iter().copied().fold(0.0, f64::max);
    let mean = rates.iter().fold(0.0, |sum, rate| sum + rate) / rates.len().max(1) as f64;
    let figures = format!("mean {:>5}, most {:>5}", digits(mean / 1e6), digits(most / 1e6));
    let room = width.saturating_sub(2 + wide + 2 + 2 + figures.len()).clamp(8, 80);
    format!("  {label:<wide$}  {}  {figures}", spark(rates, most, room))
}

/// A course of time in `columns` characters, with the highest for `most`.
pub(crate) fn spark(rates: &[f64], most: f64, columns: usize) -> String {
    let mean = |at: usize| {
        let (from, to) =
            (at * rates.len() / columns, ((at + 1) * rates.len() / columns).max(at * rates.len() / columns + 1));
        let part = &rates[from.min(rates.len())..to.min(rates.len())];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    let level = |rate: f64| match rate / most {
        share if share.is_nan() || share <= 0.0 => ' ',
        share => LEVELS[((share * LEVELS.len() as f64).ceil() as usize).clamp(1, LEVELS.len()) - 1],
    };
    (0..columns).map(|at| level(mean(at))).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::results::{FORMAT, Machine, MeasuredTiers, ResultTable, TierInfo, Unit};
    use super::*;

    /// Results with strange names, several cases, and a course of a device.
    pub(crate) fn made(runs: usize) -> Results {
        let places = ["slow", "fast", "mount exact", "<b>&|x"].map(str::to_owned);
        let mut table = ResultTable::default();
        for run in 0..runs {
            for (place, by) in places.iter().zip([30.0, 1.0, 1.05, 2.0]) {
                let by = by * (1.0 + run as f64 * 0.01);
                table.add(place, "application blocked", Unit::Seconds, 0.6 * by);
                table.add(place, "read, 1 thread", Unit::Files, 900.0 / by);
                table.add(place, "read, 4 threads", Unit::Files, 2_000.0 / by);
            }
        }
        let tier = |name: &str| TierInfo { path: format!("/{name}"), file_system: "ext4".into(), device: None };
        let course = Course {
            tier: "slow".into(),
            device: "loop0".into(),
            place: "mount exact".into(),
            every: 0.1,
            read: vec![0.0; 50],
            written: (0..50).map(|at| if at % 10 < 5 { 133e6 } else { 0.0 }).collect(),
            marks: vec![(1.0, "checkpoint <1>".into())],
        };
        Results {
            format: FORMAT,
            bench: "checkpoint".into(),
            version: "0.1.0".into(),
            machine: Machine { kernel: "6.18".into(), cpus: 2, memory: 1 << 30, cpu: "some".into() },
            tiers: MeasuredTiers { fast: tier("fast"), slow: tier("slow") },
            settings: vec![("size".into(), "600 MB".into()), ("checkpoints".into(), "5".into())],
            caches: "dropped".into(),
            rows: table.rows(&places),
            devices: vec![course],
        }
    }

    #[test]
    fn a_table_has_ratios_and_fits_a_terminal() {
        let long = |results: &mut Results| {
            results.rows.iter_mut().filter(|row| row.place == "fast").for_each(|row| {
                row.place = "mount passthrough staged".into();
                row.ratios.iter_mut().for_each(|ratio| ratio.of.median /= 1e3);
            });
        };
        for (width, at_length) in [(80, false), (120, false), (80, true), (70, true)] {
            let mut results = made(6);
            if at_length {
                long(&mut results);
            }
            let text = report(&results, width);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{line}");
            }
        }
        let text = report(&made(6), 80);
        assert!(text.contains("application blocked, ms (less is better)"), "{text}");
        let mount = text.lines().find(|line| line.contains("mount exact  ")).expect("its row");
        assert!(mount.contains("1.05 (1.05-1.05)") && mount.contains("0.0350"), "{mount}");
        assert!(text.contains("96.9 %"), "{text}");
    }

    #[test]
    fn sizes_of_one_load_are_compared_with_the_first() {
        let places = ["1000 files", "10000 files"].map(str::to_owned);
        let mut table = ResultTable::default();
        places.iter().zip([300.0, 360.0]).for_each(|(place, figure)| table.add(place, "memory", Unit::Size, figure));
        let rows = table.rows(&places);
        let rows: Vec<_> = rows.iter().collect();
        let (head, lines) = cells(&rows, heading("memory", &rows).1);
        assert_eq!(head, ["", "median", "to 1000 files"]);
        assert_eq!(lines, [["1000 files", "300", ""], ["10000 files", "360", "1.20"]]);
        assert_eq!(compared(&rows[..1]), [""; 0], "nothing is compared with itself");
    }

    #[test]
    fn of_one_run_nothing_is_claimed() {
        let text = report(&made(1), 80);
        assert!(text.contains("their precision is unknown") && !text.contains("least-most"), "{text}");
        assert!(!text.lines().any(|line| line.contains("mount exact  ") && line.contains('(')), "{text}");
    }

    #[test]
    fn a_course_is_drawn_from_nothing_to_the_most() {
        assert_eq!(spark(&[0.0, 1.0, 4.0, 8.0], 8.0, 4), " ▁▄█");
        assert_eq!(spark(&[8.0, 0.0], 8.0, 4), "██  ");
        assert_eq!(spark(&[1.0, 3.0, 8.0, 8.0], 8.0, 2), "▂█");
        assert_eq!(spark(&[], 0.0, 3), "   ");
    }
}

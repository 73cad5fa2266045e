//! The documents that a recording can become, by the names users give.

use std::io;

use super::asked::DocumentOptions;
use super::outlet::Outlet;
use super::summary::Summary;
use super::{chrome, csv, darshan, dftracer, html, markdown, rebuild, tables, text};
use crate::json;
use crate::stats::recording::Recording;

/// A kind of document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a terminal: 80 columns, and with --all everything
    Text,
    /// Markdown, for an issue or a wiki
    Md,
    /// One page that needs nothing else, with pictures, for a browser
    Html,
    /// Everything that the report shows, for scripts
    Json,
    /// All files with all their counters, as a table
    Csv,
    /// The traced calls as Chrome's trace JSON, for Perfetto
    Chrome,
    /// The traced calls in the format of DFTracer, for DFAnalyzer
    Dftracer,
    /// Files and traced calls as tables, for pandas and DuckDB: the output is a directory
    Parquet,
    /// A log for Darshan's tools
    Darshan,
}

impl Format {
    /// The format that the ending of a file's name chooses, before a `.gz`, which says that it is compressed.
    pub fn of_name(name: &str) -> Option<Format> {
        let name = name.strip_suffix(".gz").unwrap_or(name);
        match name.rsplit_once('.')?.1 {
            "txt" | "text" => Some(Format::Text),
            "md" => Some(Format::Md),
            "html" | "htm" => Some(Format::Html),
            "json" => Some(Format::Json),
            "csv" => Some(Format::Csv),
            "pfw" => Some(Format::Dftracer),
            "darshan" => Some(Format::Darshan),
            _ => None,
        }
    }

    /// Whether it consists of several tables, which go to a directory.
    pub fn is_tables(self) -> bool {
        self == Format::Parquet
    }

    /// Writes the document. Unreadable parts of the recording are added to its flaws.
    pub fn write(self, recording: &mut Recording, asked: &DocumentOptions, out: &mut dyn Outlet) -> io::Result<()> {
        // A recording that was cut off has files and operations only in its calls.
        rebuild::rebuild(recording);
        match self {
            Format::Text => out.write_all(text::report(&Summary::of(recording), asked.all).as_bytes()),
            Format::Md => out.write_all(markdown::report(&Summary::of(recording)).as_bytes()),
            Format::Html => out.write_all(html::report(&Summary::of(recording)).as_bytes()),
            Format::Json => {
                out.write_all(json::plain(serde_json::to_string_pretty(&Summary::of(recording))?).as_bytes())?;
                writeln!(out)
            }
            Format::Csv => csv::write(recording, out),
            Format::Chrome => chrome::write(recording, asked.split, out),
            Format::Dftracer => dftracer::write(recording, out),
            Format::Parquet => tables::write(recording, out),
            Format::Darshan => darshan::write(recording, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::is_harmless;
    use crate::report::sample::{Made, Memory, empty, few_hostile, hostile, made, read};
    use crate::stats::counters::{Op, Tier};
    use crate::stats::recording::Checkpoint;
    use clap::ValueEnum;

    fn asked() -> DocumentOptions {
        DocumentOptions { all: true, split: 1 << 30 }
    }

    fn document(format: Format, made: &Made) -> String {
        let mut out = Memory::default();
        format.write(&mut made.recording(), &asked(), &mut out).expect("into memory");
        String::from_utf8(out.0.into_iter().flat_map(|part| part.1).collect()).expect("UTF-8")
    }

    #[test]
    fn the_ending_of_a_file_names_its_format() {
        for (name, format) in [
            ("a.txt", Format::Text),
            ("a.md", Format::Md),
            ("a.html", Format::Html),
            ("a.html.gz", Format::Html),
            ("a.json", Format::Json),
            ("a.csv.gz", Format::Csv),
            ("a.pfw", Format::Dftracer),
            ("a.pfw.gz", Format::Dftracer),
            ("a.b.darshan", Format::Darshan),
        ] {
            assert_eq!(Format::of_name(name), Some(format), "{name}");
        }
        for name in ["a.dlio", "a", "html", "a.gz", ".gz"] {
            assert_eq!(Format::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn text_has_eighty_columns_and_every_section() {
        let text = document(Format::Text, &made());
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        for line in [
            "Fast tier     /optane (ext4, 1.0 GiB of 1.0 TiB in use)",
            "Began         2026-11-22 09:28:20 UTC",
            "Traced        13 of 13 calls, from 0.9 s to 5.0 s",
            "read from the slow tier   488.3 KiB  4.8 MiB/s  4.8 MiB/s  1.1 s",
            "read           4       0        3  488.3 KiB  299.0 ms",
            "lookup     ENOENT      1",
            "10 KiB - 100 KiB      2  195.3 KiB       0        0 B",
            "consecutive      1    25 %       0     0 %  begins where the one before ended",
            "sequential       2    50 %       0     0 %",
            "only read               2     244.1 KiB  390.6 KiB",
            "128.0 KiB      1    50 %   97.7 KiB    20 %     99.0 ms    33 %       -",
            "1  5.0 s      1  1.0 MiB  16.0 ms  62.5 MiB/s  1.0 s  /ckpt/c",
            "1  1.0 s   300.0 ms      2      4  488.3 KiB  1.6 MiB/s   0 %",
            "102  worker       1      2  390.6 KiB    80 %      0 B    0 s",
            "w1      1.0 s    1.0 s      2          2  488.3 KiB  488.3 KiB/s      0 B",
            "2.0 s  step 100",
        ] {
            let is_there = text.lines().any(|found| words(found).contains(&words(line)));
            assert!(is_there, "{line:?} is not in\n{text}");
        }
        for made in [made(), hostile(), empty()] {
            let text = document(Format::Text, &made);
            // Figures beyond any real counter, and words longer than a line, are not cut off to make them fit.
            let is_free = |line: &&str| {
                line.starts_with("Do") || line.contains("PiB") || line.split(' ').any(|word| word.chars().count() > 40)
            };
            let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 80 && !is_free(line)).collect();
            assert!(long.is_empty(), "{long:#?}");
        }
    }

    /// A mount of an hour filled six screens, and the verdict was on none that one saw.
    #[test]
    fn the_text_is_a_screen_unless_all_of_it_is_asked_for() {
        let mut busy = made();
        let checkpoint = busy.meta.checkpoints[0].clone();
        busy.meta.checkpoints = (1..200).map(|number| Checkpoint { number, ..checkpoint.clone() }).collect();
        for made in [&made(), &busy, &hostile(), &empty()] {
            let summary = Summary::of(&mut made.recording());
            let (short, whole) = (text::report(&summary, false), text::report(&summary, true));
            assert!(short.lines().count() <= 46, "{} lines: {short}", short.lines().count());
            let first = whole.lines().next();
            assert_eq!(short.lines().next(), first, "the verdict is first");
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(short.contains("\nAdvice\n") && words(&short).ends_with("--all, or -o report.html."), "{short}");
        }
        let short = text::report(&Summary::of(&mut busy.recording()), false);
        for part in ["what moved", "Checkpoints: absorbed", "/ckpt/c", "and 194 before"] {
            assert!(short.contains(part), "{part} is not in {short}");
        }
        assert!(!short.contains("I/O path"), "{short}");
    }

    /// A row said `refused 2,341`. Scripts keep the name.
    #[test]
    fn what_the_kernel_answers_by_itself_is_told_in_words() {
        let mut made = made();
        made.file(9, "/data/tty", 1, &[(Op::Refused, 2000, 1, 0, 0, Tier::Fast)]);
        for format in [Format::Text, Format::Md, Format::Html] {
            let text = document(format, &made);
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains("left to kernel") && words.contains("Left to the kernel: ioctl"), "{text}");
            assert!(words.contains("Median size") && !words.contains("refused"), "{text}");
        }
        assert!(document(Format::Json, &made).contains("\"refused\""));
    }

    /// Whatever a program, a host or a file is called, and whatever somebody has marked.
    #[test]
    fn no_document_has_anything_that_a_terminal_follows() {
        for format in
            Format::value_variants().iter().filter(|format| !format.is_tables() && **format != Format::Darshan)
        {
            let text = document(*format, &few_hostile());
            let followed = text.chars().find(|c| !matches!(c, '\n' | '\t') && !is_harmless(*c));
            assert_eq!(followed, None, "{format:?}");
        }
    }

    #[test]
    fn markdown_is_tables_and_shows_names_as_they_are() {
        let text = document(Format::Md, &made());
        assert!(text.contains("| read | 4 | 0 | 3 | 488.3 KiB | 299.0 ms |"), "{text}");
        assert!(text.contains("| 2.0 s | step 100 |"), "{text}");
        let text = document(Format::Md, &hostile());
        let prose = |line: &&str| !line.starts_with("dlio-fs") && !line.starts_with("find");
        assert!(
            !text.lines().filter(prose).any(|line| line.contains("<b>") || line.contains("[x](")),
            "names are markup"
        );
        let columns = |line: &str| line.replace("\\|", "").matches('|').count();
        for rows in
            text.lines().collect::<Vec<_>>().windows(2).filter(|two| two.iter().all(|line| line.starts_with('|')))
        {
            assert_eq!(columns(rows[0]), columns(rows[1]), "{rows:?}");
        }
    }

    /// Scripts rely on the keys: removing or renaming one requires another schema.
    #[test]
    fn json_has_stable_keys() {
        let value: serde_json::Value = serde_json::from_str(&document(Format::Json, &made())).expect("valid");
        let keys: Vec<_> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(
            keys.join(" "),
            "advice checkpoints common_sizes common_strides completeness cost epochs failures files heat heat_from job latency \
             marks moved operations patterns plans readers schema sizes spans staging tiers timeline timeline_from top verdict windows \
             workers"
        );
        assert_eq!((&value["schema"], &value["moved"]["bytes_read"]), (&1.into(), &500_000.into()));
        assert_eq!(
            value["sizes"][4],
            serde_json::json!({
                "name": "100K_1M", "reads": 1, "writes": 1, "bytes_read": 300_000, "bytes_written": 1 << 20
            })
        );
        assert_eq!(value["completeness"]["is_whole"], true);
        serde_json::from_str::<serde_json::Value>(&document(Format::Json, &hostile())).expect("valid");
    }

    /// Parses a line of comma-separated values.
    fn cells(line: &str) -> Vec<String> {
        let (mut cells, mut is_quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => cells.push(String::new()),
                c => cells.last_mut().expect("one at least").push(c),
            }
        }
        cells
    }

    #[test]
    fn csv_is_all_files_with_all_counters() {
        let text = document(Format::Csv, &made());
        let rows: Vec<Vec<String>> = text.lines().map(cells).collect();
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{text}");
        let column = |name: &str| rows[0].iter().position(|column| column == name).expect("a column");
        assert_eq!(
            rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(),
            ["path", "/", "/ckpt/c", "/data/a", "/data/b"]
        );
        assert_eq!((&*rows[4][column("read")], &*rows[4][column("bytes_read")]), ("2", "400000"));
        assert_eq!(&*rows[4][column("sizes")], "300000:1,100000:1");
        let rows: Vec<_> = document(Format::Csv, &hostile()).lines().map(|line| cells(line).len()).collect();
        assert!(rows.iter().all(|row| *row == rows[0]), "a name has made a row or a column");
    }

    /// Everything that is there is reported, and that it is incomplete; nothing panics.
    #[test]
    fn a_recording_cut_anywhere_becomes_every_document() {
        let whole = made().bytes();
        let mut rebuilt = 0;
        for len in (0..whole.len()).step_by(12).chain(whole.len() - 40..whole.len()) {
            for format in Format::value_variants() {
                let Ok(mut cut) = read(whole[..len].to_vec()) else { break };
                let mut out = Memory::default();
                format.write(&mut cut, &asked(), &mut out).expect("into memory");
                assert!(!out.0.is_empty() && (!cut.flaws.is_empty() || cut.is_whole || cut.traced().0 == 0), "{len}");
                rebuilt += u32::from(!cut.is_whole && cut.files.len() == 4);
            }
        }
        assert!(rebuilt > 0, "no cut lies between the last call and the tables");
    }

    /// The calls give the same figures as the tables would have.
    #[test]
    fn what_is_counted_again_is_what_was_counted() {
        let made = made();
        let whole = Summary::of(&mut made.recording());
        let bytes = made.bytes();
        let cut = (0..bytes.len()).rev().find_map(|len| {
            let mut cut =
                read(bytes[..len].to_vec()).ok().filter(|cut| !cut.is_whole && cut.meta.operations.is_empty())?;
            Some(Summary::of(&mut cut))
        });
        let cut = cut.expect("the tables are at the end");
        assert_eq!(cut.operations, whole.operations);
        assert_eq!(cut.sizes, whole.sizes);
        assert_eq!(cut.files.kinds, whole.files.kinds);
        assert_eq!(cut.top, whole.top);
        assert_eq!(cut.cost, whole.cost);
        assert_eq!(cut.failures, whole.failures);
        assert_eq!(cut.workers.iter().map(|one| one.bytes_read).collect::<Vec<_>>(), [100_000, 400_000]);
        let moved = |values: &[u64]| values.iter().sum::<u64>();
        assert_eq!((moved(&cut.timeline.read_slow), moved(&cut.timeline.written_fast)), (500_000, 1 << 20));
        assert!(!cut.completeness.is_whole && cut.completeness.flaws.iter().any(|flaw| flaw.contains("counted again")));
    }
}

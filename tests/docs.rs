//! The documentation speaks of what is there: the tests, functions and files that it names, the messages it quotes, the
//! commands, keys, metrics and files of `.dlio` that it tells of. And it tells of all of these.
//!
//! `file.rs::name` is a function (`src/tiers/` unless a folder is given), a word with a slash and an ending is a file, and a
//! line that begins with `> ` is a message of the program, with `...` for what varies.

#![allow(clippy::unwrap_used)]

mod pages;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use dlio_fs::cli::man_pages;
use dlio_fs::config::{Config, KEYS, ReloadEffect};
use dlio_fs::report::Format;
use pages::{code, docs, internals, names_in, pages, pages_in, quoted, read, top, unknown_commands};

/// So much is read before it is used.
const README_LINES: usize = 160;
const PAGE_LINES: usize = 300;
/// Keys of a rule, which are no keys of the configuration.
const OF_RULES: [&str; 4] = ["path", "absorb", "pin", "fsync"];
/// What stands for a key, and a key that a page names to say that it is not there.
const NO_KEYS: [&str; 2] = ["key", "full"];
/// What a path in the repository begins with.
const FOLDERS: [&str; 10] =
    ["src/", "crates/", "tests/", "docs/", "examples/", "xtask/", "systemd/", "packaging/", "monitoring/", ".ci/"];

/// The function a quotation names: its file and its name.
fn function(quotation: &str) -> Option<(PathBuf, &str)> {
    let (file, name) = quotation.split_once(".rs::")?;
    // A path of the engine may leave out where the engine is.
    let is_whole = FOLDERS.iter().any(|folder| file.starts_with(folder));
    let folder = if is_whole { "" } else { "src/tiers/" };
    Some((format!("{folder}{file}.rs").into(), name))
}

fn missing_functions(text: &str) -> Vec<String> {
    let is_missing = |(file, name): &(PathBuf, &str)| {
        let source = fs::read_to_string(top().join(file)).unwrap_or_default();
        !source
            .split("fn ")
            .skip(1)
            .any(|rest| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<'])))
    };
    let missing = quoted(text).filter_map(function).filter(is_missing);
    missing.map(|(file, name)| format!("{}::{name}", file.display())).collect()
}

/// What `page` links to, relative to itself, and the files that it names.
fn missing_files(page: &str, text: &str) -> Vec<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let links = links.filter(|target| !target.contains("://") && !is_link(page, target));
    let paths = quoted(text).filter(|q| FOLDERS.iter().any(|folder| q.starts_with(folder)) && !q.contains("::"));
    links.chain(paths.filter(|path| !top().join(path).exists())).map(str::to_owned).collect()
}

fn is_link(page: &str, target: &str) -> bool {
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let file = if file.is_empty() { top().join(page) } else { top().join(page).with_file_name(file) };
    let Some(heading) = heading else { return file.exists() };
    let text = fs::read_to_string(file).unwrap_or_default();
    // As GitHub does it.
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    let slug = |line: &str| {
        let plain: String = line.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect();
        plain.replace(' ', "-")
    };
    text.lines().any(|line| line.starts_with('#') && slug(line) == heading)
}

/// All sources of the program as one text in which a message that is broken over lines is whole.
fn messages() -> String {
    fn add(dir: &Path, all: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => add(&path, all),
                false => all.push_str(&fs::read_to_string(path).unwrap()),
            }
        }
    }
    let mut all = String::new();
    ["src", "crates"].iter().for_each(|dir| add(&top().join(dir), &mut all));
    // `Error::refused(what, remedy)` is shown as "what; remedy".
    let mut whole = String::new();
    for piece in all.split("\\\n") {
        whole.push_str(if whole.is_empty() { piece } else { piece.trim_start() });
    }
    whole
}

fn unknown_messages(text: &str, messages: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("> "));
    let parts = lines.flat_map(|line| line.split("...")).flat_map(|part| part.split("; ")).map(str::trim);
    // A word or two between two placeholders would be found anywhere.
    parts.filter(|part| part.len() >= 8 && !messages.contains(*part)).map(str::to_owned).collect()
}

#[test]
fn what_the_pages_name_is_there() {
    for page in pages().into_iter().chain(pages_in("docs/benchmarks")) {
        let text = read(&page);
        assert_eq!(missing_functions(&text), [""; 0], "functions that {page} names");
        assert_eq!(missing_files(&page, &text), [""; 0], "files that {page} names");
    }
}

#[test]
fn no_page_is_longer_than_one_reads() {
    let lines = |page: &str| read(page).lines().count();
    assert!(lines("README.md") <= README_LINES, "README.md has {} lines", lines("README.md"));
    for page in docs().into_iter().chain(internals()) {
        assert!(lines(&page) <= PAGE_LINES, "{page} has {} lines: make two of it", lines(&page));
    }
}

#[test]
fn the_architecture_links_the_rest() {
    let text = read("ARCHITECTURE.md");
    for page in internals() {
        assert!(text.contains(&format!("]({page})")), "ARCHITECTURE.md does not link {page}");
    }
}

#[test]
fn every_page_is_linked_from_the_readme_and_installed() {
    let (readme, install) = (read("README.md"), read("src/cli/install.rs"));
    for page in docs() {
        assert!(readme.contains(&format!("]({page})")), "{page} is not among the README's links");
        assert!(install.contains(&format!("\"{page}\"")), "{page} is not installed");
    }
}

/// Pages were installed that led to the changelog, the examples and what is for people who change the program, which were not.
#[test]
fn no_link_of_an_installed_page_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let mut install = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
    let output = install.args(["install", "--prefix", "/usr", "--root"]).arg(&tree).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let installed = tree.join("usr/share/doc/dlio-fs");
    let files = files_in(installed.to_str().unwrap());
    let pages: Vec<&String> = files.iter().filter(|file| file.ends_with(".md")).collect();
    assert!(pages.len() > docs().len(), "{pages:?}");
    for page in pages {
        assert_eq!(missing_files(page, &read(page)), [""; 0], "what {page} leads to");
    }
    // The others are links as before.
    assert!(read(installed.join("README.md")).contains("](docs/install.md#which-file-systems)"));
    assert!(read(installed.join("docs/upgrade.md")).contains("](../CHANGELOG.md)"));
    assert!(read(installed.join("docs/install.md")).contains("](recovery.md#getting-files-out-without-a-mount)"));
    assert!(read(installed.join("examples/README.md")) == read("examples/README.md"));
}

/// Once files for Slurm and Kubernetes were installed that Cargo did not pack: the crate could not be built, which only the stage
/// `packages` noticed, and that does not run every day.
#[test]
fn what_is_installed_is_in_the_crate() {
    let (manifest, install) = (read("Cargo.toml"), read("src/cli/install.rs"));
    let (_, rest) = manifest.split_once("\ninclude = [").unwrap();
    let packed: Vec<&str> = rest.split(']').next().unwrap().split('"').skip(1).step_by(2).collect();
    let is_packed = |file: &str| {
        packed.iter().filter_map(|pattern| pattern.strip_prefix('/')).any(|pattern| match pattern.split_once('*') {
            Some((start, end)) => file.starts_with(start) && file.ends_with(end),
            None => Path::new(file).starts_with(pattern),
        })
    };
    let installed = literals(&install, "include_str!(\"../../");
    assert!(installed.len() > 20, "{installed:?}");
    let missing: Vec<_> = installed.into_iter().filter(|file| !is_packed(file)).collect();
    assert_eq!(missing, [""; 0], "add these to `include` of Cargo.toml");
}

#[test]
fn every_promise_has_its_row_and_its_tests() {
    let (semantics, reliability) = (read("docs/SEMANTICS.md"), read("docs/RELIABILITY.md"));
    let promised = semantics.lines().filter_map(|line| line.strip_prefix("| P")?.split_once(' '));
    let numbers: Vec<usize> = promised.filter_map(|(number, _)| number.parse().ok()).collect();
    assert_eq!(numbers, (1..=19).collect::<Vec<_>>());
    for number in numbers {
        let start = format!("| P{number} | ");
        let tests = reliability.lines().find(|line| line.starts_with(&start));
        assert!(tests.is_some_and(|row| quoted(row).any(|q| function(q).is_some())), "P{number}: {tests:?}");
    }
}

#[test]
fn the_messages_that_the_pages_quote_are_in_the_sources() {
    let messages = messages();
    let mut quotations = 0;
    for page in docs() {
        let text = read(&page);
        quotations += text.lines().filter(|line| line.starts_with("> ")).count();
        assert_eq!(unknown_messages(&text, &messages), [""; 0], "{page}");
    }
    assert!(quotations > 60, "only {quotations} messages are quoted");
    // The table of what holds the order quotes in its first column.
    let text = read("docs/troubleshooting.md");
    let holds = text.lines().filter_map(|line| line.strip_prefix("| \"")?.split_once("\" |"));
    let quoted: String = holds.map(|(message, _)| format!("> {message}\n")).collect();
    assert!(quoted.lines().count() > 8, "{quoted}");
    assert_eq!(unknown_messages(&quoted, &messages), [""; 0]);
}

/// The commands, each with its manual page, as plain text.
fn commands() -> Vec<(String, String)> {
    let pages = man_pages().unwrap().into_iter().filter_map(|(file, text)| {
        let name = file.strip_prefix("dlio-fs-")?.strip_suffix(".1")?.to_owned();
        Some((name, String::from_utf8(text).unwrap().replace('\\', "")))
    });
    pages.collect()
}

#[test]
fn every_command_is_documented_and_every_documented_one_is_there() {
    let commands = commands();
    assert!(commands.len() > 20, "{commands:?}");
    for page in pages() {
        assert_eq!(unknown_commands(&read(&page), "dlio-fs", &commands), [""; 0], "{page}");
    }
    let reference = read("docs/commands.md");
    let rows = || reference.lines().filter(|line| line.starts_with("| `dlio-fs "));
    for (name, _) in &commands {
        let is_it = |quotation: &str| quotation.split(' ').nth(1) == Some(name);
        assert!(rows().any(|row| quoted(row).any(is_it)), "{name} is not in docs/commands.md");
    }
}

/// `-o run.darshan` and `-o run.pfw.gz` needed a `--format`, though the page said that the ending chooses.
#[test]
fn the_endings_that_the_pages_tell_of_choose_their_format() {
    let reports = read("docs/reports.md");
    let mut rows = 0;
    for row in reports.lines().filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2) {
        let cells: Vec<_> = row.split(" | ").collect();
        for ending in quoted(cells[1]).filter(|ending| ending.starts_with('.')) {
            let format = Format::from_str(quoted(row).next().unwrap(), false).unwrap();
            for packed in ["", ".gz"] {
                assert_eq!(Format::of_name(&format!("run{ending}{packed}")), Some(format), "{row}");
            }
            rows += 1;
        }
    }
    assert!(rows > 6, "{rows}");
    let mut examples = 0;
    for page in pages() {
        for line in read(&page).lines().filter(|line| line.starts_with("    dlio-fs report ")) {
            let Some((_, file)) = line.split_once(" -o ") else { continue };
            let file = file.split(' ').next().unwrap();
            assert!(line.contains("--format") || Format::of_name(file).is_some(), "{page}: {line}");
            examples += 1;
        }
    }
    assert!(examples > 4, "{examples}");
}

/// All files below a directory of the repository, by their paths from the top.
fn files_in(dir: &str) -> Vec<String> {
    let names = names_in(dir).into_iter().map(|name| format!("{dir}/{name}"));
    names.flat_map(|path| if top().join(&path).is_dir() { files_in(&path) } else { vec![path] }).collect()
}

/// Command lines of a script or a manifest as a page would have them: a list of words is a line, and the program goes by its name.
fn as_code(text: &str) -> String {
    // A comma within a word is one of `-o`.
    let plain = text.replace(", ", " ").replace(['[', ']', '"'], " ").replace(" /usr/bin/dlio-fs ", " dlio-fs ");
    let lines = plain.lines().map(|line| line.split('#').next().unwrap_or_default());
    let lines = lines.map(|line| format!("    {}\n", line.split_whitespace().collect::<Vec<_>>().join(" ")));
    lines.filter(|line| line.contains(" dlio-fs ")).collect()
}

#[test]
fn what_the_files_for_other_programs_call_is_there() {
    let commands = commands();
    let mut calls = 0;
    let files = ["packaging/slurm", "packaging/kubernetes"].into_iter().flat_map(files_in);
    for file in files.filter(|file| [".sh", ".yaml"].iter().any(|ending| file.ends_with(ending))) {
        let code = as_code(&read(&file));
        calls += code.matches("dlio-fs mount ").count() + code.matches("dlio-fs drain ").count();
        assert_eq!(unknown_commands(&code, "dlio-fs", &commands), [""; 0], "{file}");
    }
    assert_eq!(calls, 7, "three daemons with their preStop, and the mount of a job");
}

/// What a daemon does not accept, a pod would say only when it is started.
#[test]
fn a_daemon_accepts_the_settings_that_a_manifest_gives_it() {
    let mut fleets = Vec::new();
    for file in files_in("packaging/kubernetes") {
        let code = as_code(&read(&file));
        for mount in code.lines().filter(|line| line.contains(" dlio-fs mount ")) {
            let mut config = Config::default();
            let given = mount.split(" -o ").skip(1).filter_map(|rest| rest.split(' ').next());
            for option in given.flat_map(|options| options.split(',')) {
                config.apply_option(option).unwrap_or_else(|e| panic!("{file}: {option}: {e}"));
            }
            config.validate().unwrap_or_else(|e| panic!("{file}: {e}"));
            fleets.extend(config.fleet().unwrap().map(|fleet| (file.clone(), fleet.name)));
        }
    }
    assert_eq!(fleets, [("packaging/kubernetes/fleet.yaml".to_owned(), "run7".to_owned())]);
}

/// Keys that are set in a page and are none.
fn unknown_keys(text: &str) -> Vec<String> {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let is_value = |value: &str| {
        ["true", "false"].iter().any(|word| value.starts_with(word)) || value.starts_with(['"', '[', '0', '1', '2'])
    };
    let lines = code(text).filter_map(|line| line.trim().split_once(" = ")).filter(|(_, value)| is_value(value));
    let set = lines.map(|(key, _)| key);
    let options = code(text).flat_map(|line| line.split("-o ").skip(1)).filter_map(|option| option.split_once('='));
    let options = options.map(|(key, _)| key);
    let known =
        |key: &str| KEYS.iter().any(|(known, _)| *known == key) || OF_RULES.contains(&key) || NO_KEYS.contains(&key);
    set.chain(options).filter(|key| is_word(key) && !known(key)).map(str::to_owned).collect()
}

#[test]
fn every_key_is_documented_with_its_default_and_every_documented_one_is_there() {
    let (reference, example) = (read("docs/configuration.md"), read("config.example.toml"));
    let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let rows: Vec<(&str, Vec<&str>)> = rows.map(|(key, rest)| (key, rest.split(" | ").collect())).collect();
    assert_eq!(rows.iter().map(|(key, _)| *key).collect::<Vec<_>>(), KEYS.map(|(key, _)| key), "in this order");
    for ((key, change), (_, cells)) in KEYS.iter().zip(&rows) {
        let default = example.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        assert_eq!(cells[0].trim_matches('`'), default.unwrap_or("–"), "the default of {key}");
        assert_eq!(cells[1], if *change == ReloadEffect::AtOnce { "yes" } else { "remount" }, "{key}");
    }
    for page in pages() {
        assert_eq!(unknown_keys(&read(&page)), [""; 0], "keys that {page} sets");
    }
}

/// What stands between quotation marks in the lines of `source` that have `before` it.
fn literals<'a>(source: &'a str, before: &'a str) -> BTreeSet<&'a str> {
    source.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The names in the first column of a table's rows.
fn named(text: &str) -> BTreeSet<&str> {
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|row| row.split(" | ").next())
        .flat_map(quoted)
        .collect()
}

#[test]
fn every_metric_and_every_file_of_dlio_has_its_row() {
    let registers = ["stats.rs", "stats/metrics.rs", "tiers/counters.rs", "fs/io_paths.rs", "fs/slow_pool.rs"];
    let source = registers.map(|file| read(format!("src/{file}"))).concat();
    let names: BTreeSet<&str> = source
        .split('"')
        .filter(|word| ["dliofs_", "process_"].iter().any(|start| word.starts_with(start) && word.len() > start.len()))
        .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    let reference = read("docs/metrics.md");
    assert_eq!(named(&reference), names);
    for page in docs() {
        let text = read(&page);
        let mut unknown =
            quoted(&text).filter(|quotation| quotation.starts_with("dliofs_") && !names.contains(quotation));
        assert_eq!(unknown.next(), None, "a metric that {page} names");
    }
    let source = read("src/fs/control/node.rs");
    let table = source.split("\nfiles! {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or_default();
    let files = literals(table, " \"");
    assert!(files.contains("stats"), "{files:?}");
    let reference = read("docs/dlio-files.md");
    let told = named(reference.split("\n## ").next().unwrap_or_default());
    assert_eq!(told, files);
}

/// What the page about frameworks says was tried: the name of a stage, and what it was tried with.
fn tried(text: &str) -> Vec<(&str, &str)> {
    let rows = text.lines().skip_while(|line| *line != "| stage | with | does |").skip(2);
    let rows = rows.take_while(|line| line.starts_with("| ")).map(|line| line.split(" | ").collect::<Vec<_>>());
    rows.map(|cells| (cells[0].trim_matches(['|', ' ', '`']), cells[1])).collect()
}

/// Programs with a version that no file of requirements has.
fn untried<'a>(with: &'a str, requirements: &str) -> Vec<&'a str> {
    let versioned = with.split(", ").filter(|program| program.ends_with(|last: char| last.is_ascii_digit()));
    versioned.filter(|program| !requirements.lines().any(|line| line == program.replace(' ', "=="))).collect()
}

#[test]
fn the_programs_that_were_tried_are_those_that_the_tests_run() {
    let page = read("docs/frameworks.md");
    let names = names_in("tests/clients");
    let mut scripts: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix("_client.py")).collect();
    let mut stages: Vec<&str> = tried(&page).iter().map(|(stage, _)| *stage).collect();
    scripts.sort_unstable();
    stages.sort_unstable();
    assert_eq!(stages, scripts);
    let lists = names.iter().filter(|name| name.starts_with("requirements"));
    let requirements: String = lists.map(|name| read(Path::new("tests/clients").join(name))).collect();
    for (stage, with) in tried(&page) {
        assert_eq!(untried(with, &requirements), [""; 0], "{stage}");
    }
}

#[test]
fn what_is_not_there_is_noticed() {
    let text = "see `capacity/evict.rs::evict`, `capacity/evict.rs::evic`, `tests/docs.rs`, `tests/none.rs`, [a](../LICENSE), [b](none.md), \
        [c](../README.md#how-fast) and [d](../README.md#none)";
    assert_eq!(missing_functions(text), ["src/tiers/capacity/evict.rs::evic"]);
    assert_eq!(missing_files("docs/install.md", text), ["none.md", "../README.md#none", "tests/none.rs"]);
    assert_eq!(untried("git, one 1.0, two 2.0", "two==2.1\none==1.0\n"), ["two 2.0"]);
    assert_eq!(unknown_messages("> works again\n> works ... never at all", "\"works again\""), ["never at all"]);
    let commands = [("stage".to_owned(), ".SH OPTIONS --wait".to_owned())];
    let text = "`dlio-fs stage --wait` and `dlio-fs stagger`\n    dlio-fs stage --list x | grep --quiet x\n";
    let unknown = unknown_commands(text, "dlio-fs", &commands);
    assert_eq!(unknown, ["stage --list", "stagger in dlio-fs stagger"]);
    assert_eq!(unknown_keys("`settle = \"1s\"`, `setle = \"1s\"` and `mount -o lo=2`"), ["setle", "lo"]);
}

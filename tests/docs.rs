//! The documentation speaks of what is there: the tests, functions and files that it names, and the messages it quotes.
//!
//! `file.rs::name` is a function (`src/tiers/` unless a folder is given), a word with a slash and an ending is a file, and a
//! line that begins with `> ` is a message of the program, with `...` for what varies.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

const PAGES: [&str; 10] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/answers.md",
    "docs/operations.md",
    "docs/RELIABILITY.md",
    "docs/SECURITY.md",
    "SECURITY.md",
    "examples/README.md",
];
/// What a path in the repository begins with.
const FOLDERS: [&str; 7] = ["src/", "tests/", "docs/", "examples/", "xtask/", "systemd/", ".ci/"];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What stands between backquotes on one line, outside of indented examples.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.lines().filter(|line| !line.starts_with("    "));
    prose.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The function a quotation names: its file and its name.
fn function(quotation: &str) -> Option<(PathBuf, &str)> {
    let (file, name) = quotation.split_once(".rs::")?;
    let folder = if file.contains('/') { "" } else { "src/tiers/" };
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
    let slug = |line: &str| line.trim_matches(['#', ' ', '?']).to_lowercase().replace(' ', "-");
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
    add(&top().join("src"), &mut all);
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
    for page in PAGES {
        let text = read(page);
        assert_eq!(missing_functions(&text), [""; 0], "functions that {page} names");
        assert_eq!(missing_files(page, &text), [""; 0], "files that {page} names");
    }
}

#[test]
fn every_promise_has_its_row_and_its_test_or_says_not_yet() {
    let readme = read("README.md");
    for number in 1..=14 {
        let start = format!("| P{number} | ");
        let row = readme.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row P{number}"));
        let shown = row.split(" | ").nth(2).unwrap_or_default();
        assert!(quoted(shown).any(|q| function(q).is_some()) || shown.starts_with("Not yet"), "{row}");
    }
}

#[test]
fn the_messages_that_the_pages_quote_are_in_the_sources() {
    let messages = messages();
    let text = read("docs/operations.md");
    assert!(text.lines().filter(|line| line.starts_with("> ")).count() > 10, "no message is quoted");
    assert_eq!(unknown_messages(&text, &messages), [""; 0]);
}

/// What the page of answers says was tried: the name of a stage, and what it was tried with.
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
    let answers = read("docs/answers.md");
    let folder = fs::read_dir(top().join("tests/clients")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = folder.map(|name| name.into_string().unwrap()).collect();
    let mut scripts: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix("_client.py")).collect();
    let mut stages: Vec<&str> = tried(&answers).iter().map(|(stage, _)| *stage).collect();
    scripts.sort_unstable();
    stages.sort_unstable();
    assert_eq!(stages, scripts);
    let lists = names.iter().filter(|name| name.starts_with("requirements"));
    let requirements: String = lists.map(|name| read(Path::new("tests/clients").join(name))).collect();
    for (stage, with) in tried(&answers) {
        assert_eq!(untried(with, &requirements), [""; 0], "{stage}");
    }
}

#[test]
fn what_is_not_there_is_noticed() {
    let text = "see `evict.rs::evict`, `evict.rs::evic`, `tests/docs.rs`, `tests/none.rs`, [a](../LICENSE), [b](none.md), \
        [c](../README.md#semantics) and [d](../README.md#none)";
    assert_eq!(missing_functions(text), ["src/tiers/evict.rs::evic"]);
    assert_eq!(missing_files("docs/answers.md", text), ["none.md", "../README.md#none", "tests/none.rs"]);
    assert_eq!(untried("git, one 1.0, two 2.0", "two==2.1\none==1.0\n"), ["two 2.0"]);
    assert_eq!(unknown_messages("> works again\n> works ... never at all", "\"works again\""), ["never at all"]);
}

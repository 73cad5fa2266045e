//! The pages of the documentation, and what is typed in them.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::fs;
use std::path::Path;

/// Beside all pages of `docs`.
pub const PAGES: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "BENCHMARKS.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "examples/README.md",
];

/// The repository, of whichever package these tests are.
pub fn top() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|dir| dir.join(PAGES[1]).exists()).unwrap()
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn names_in(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(top().join(dir)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The pages in a directory, by their path from the top.
pub fn pages_in(dir: &str) -> Vec<String> {
    let names = names_in(dir).into_iter().filter(|name| name.ends_with(".md"));
    let mut pages: Vec<String> = names.map(|name| format!("{dir}/{name}")).collect();
    pages.sort_unstable();
    pages
}

/// The pages for users.
pub fn docs() -> Vec<String> {
    let pages = pages_in("docs");
    assert!(pages.len() > 10, "{pages:?}");
    pages
}

/// The pages for people who change the program, besides `ARCHITECTURE.md`. Not installed.
pub fn internals() -> Vec<String> {
    pages_in("docs/internals")
}

pub fn pages() -> Vec<String> {
    PAGES.into_iter().map(str::to_owned).chain(docs()).chain(internals()).collect()
}

/// What is typed: indented lines, and what stands between backquotes.
pub fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("    ")).chain(quoted(text))
}

/// What stands between backquotes on one line, outside of indented examples.
pub fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.lines().filter(|line| !line.starts_with("    "));
    prose.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// What is typed of a program and is not there: commands, and their options. Each command has its manual page as plain text.
pub fn unknown_commands(text: &str, program: &str, commands: &[(String, String)]) -> Vec<String> {
    let mut unknown = Vec::new();
    let program = format!("{program} ");
    for (call, rest) in code(text).flat_map(|line| line.split(&program).skip(1).map(move |rest| (line, rest))) {
        let words = rest.split(['|', '#', ';', '&', ')', '>', '`']).next().unwrap_or_default();
        let mut words = words.split(' ').map(|word| word.trim_end_matches([',', '.', ':']));
        let name = words.next().unwrap_or_default();
        // `help` has no page of its own.
        if name.is_empty() || name == "help" || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
            continue;
        }
        let Some((_, page)) = commands.iter().find(|(command, _)| *command == name) else {
            unknown.push(format!("{name} in {call}"));
            continue;
        };
        // `--` is where somebody else's begin.
        let options = words.take_while(|word| *word != "--").filter(|word| word.starts_with("--"));
        let options = options.map(|option| option.split('=').next().unwrap_or_default());
        let missing = options.filter(|option| *option != "--help" && !page.contains(option));
        unknown.extend(missing.map(|option| format!("{name} {option}")));
    }
    unknown
}

//! The floors of the house: imports point down only, and what is pure does no I/O and reads no clock.
//!
//! A face and the folder beside it are one room: inside, files may use each other, though never in a circle, and the purity of the
//! ones that compute is checked by what they name.
//!
//! Reads the sources. A module that is not in [`FLOORS`] fails the test until somebody has decided where it belongs.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

/// The sources of `dlio-fs-bench`.
const BENCH: &str = "crates/bench/src";

/// A module, with all below it that is not listed itself, and its floor. A listed module below a face is plain enough to
/// be used from further down than the face.
const FLOORS: &[(&str, u8)] = &[
    ("main", 5),
    ("cli", 5),
    ("mount", 4),
    ("fs", 4),
    ("tiers", 3),
    ("stats", 2),
    ("report", 2),
    ("tiers::disk", 1),
    ("tiers::capacity::policy", 1),
    ("tiers::copies::rounds", 1),
    ("tiers::checkpoints::bursts", 1),
    ("tiers::checkpoints::forecast", 1),
    ("tiers::small_deque", 1),
    ("stats::access", 1),
    ("stats::catalog", 1),
    ("stats::checkpoints", 1),
    ("stats::counters", 1),
    ("stats::daemon", 2),
    ("stats::epochs", 1),
    ("stats::files", 1),
    ("stats::fleet", 1),
    ("stats::heat", 1),
    ("stats::metrics", 1),
    ("stats::ops", 1),
    ("stats::pace", 1),
    ("stats::plans", 1),
    ("stats::processes", 1),
    ("stats::queue", 1),
    ("stats::record", 1),
    ("stats::recorder", 1),
    ("stats::recording", 1),
    ("stats::render", 1),
    ("stats::staging", 1),
    ("stats::status", 1),
    ("stats::timeline", 1),
    ("stats::trace", 1),
    ("stats::traced", 1),
    ("stats::windows", 1),
    ("config", 0),
    ("path", 0),
    ("json", 0),
    ("error", 0),
    ("observing", 0),
    ("share", 0),
];

/// The engine's rooms, the lowest first. A folder is one room, but for what is listed by itself: `capacity::policy` is plain enough to be
/// used from below, `checkpoints::store` looks files up, `fleet::views` names.
const ROOMS: &[&str] = &[
    "side_by_side",
    "small_deque",
    "sorted",
    "disk",
    "log",
    "fleet::lines",
    "fleet::clocks",
    "fleet::names",
    "fleet::periods",
    "fleet::rule",
    "fleet::pace",
    "fleet::smallest",
    "fleet::collector",
    "objects",
    "checkpoints",
    "model",
    "copies::rounds",
    "capacity::policy",
    "progress",
    "incarnation",
    "counters",
    "core",
    "pins",
    "drain_control",
    "fleet",
    "order",
    "saved",
    "partner",
    "references",
    "pending",
    "copies",
    "capacity",
    "ops",
    "fleet::views",
    "checkpoints::store",
    "checkpoints::of_fleet",
    "writeback",
    "staging",
    "recovery",
    "housekeeping",
    "status",
];

/// Files that compute and nothing else: their properties are tested without a disk, and time is an argument.
const PURE: &[&str] = &[
    "crates/bench/src/loads/blocks.rs",
    "crates/bench/src/loads/markdown.rs",
    "crates/bench/src/loads/page.rs",
    "crates/bench/src/loads/results.rs",
    "crates/bench/src/loads/sums.rs",
    "crates/bench/src/loads/text.rs",
    "crates/bench/src/loads/units.rs",
    "src/tiers/log/dirs.rs",
    "src/tiers/log/record.rs",
    "src/tiers/fleet/clocks.rs",
    "src/tiers/fleet/collector.rs",
    "src/tiers/fleet/lines.rs",
    "src/tiers/fleet/names.rs",
    "src/tiers/fleet/pace.rs",
    "src/tiers/fleet/partner.rs",
    "src/tiers/fleet/periods.rs",
    "src/tiers/fleet/rule.rs",
    "src/tiers/fleet/smallest.rs",
    "src/tiers/model/publish_plan.rs",
    "src/tiers/checkpoints/bursts.rs",
    "src/tiers/checkpoints/index.rs",
    "src/tiers/model/closure.rs",
    "src/tiers/model/held.rs",
    "src/tiers/small_deque.rs",
    "src/tiers/disk/throttle.rs",
    "src/tiers/capacity/policy.rs",
    "src/tiers/checkpoints/forecast.rs",
    "src/tiers/copies/rounds.rs",
    "src/tiers/disk/errors.rs",
    "src/tiers/disk/fingerprint.rs",
    "src/tiers/objects/hash.rs",
    "src/tiers/sorted.rs",
    "src/tiers/disk/acl.rs",
    "src/tiers/model/node.rs",
    "src/tiers/model/listing.rs",
    "src/tiers/model/view.rs",
    "src/tiers/model/clean_list.rs",
    "src/tiers/model/copy_plan.rs",
    "src/tiers/model/event.rs",
    "src/tiers/model/expiry.rs",
    "src/tiers/model/fill.rs",
    "src/tiers/model/in_place.rs",
    "src/tiers/model/object_references.rs",
    "src/tiers/model/queue.rs",
    "src/tiers/model/state.rs",
    "src/tiers/model/uncommitted.rs",
    "src/report/chrome.rs",
    "src/report/chrome/lanes.rs",
    "src/report/dftracer.rs",
    "src/report/tables.rs",
    "src/report/traced.rs",
    "src/stats/access.rs",
    "src/stats/catalog.rs",
    "src/stats/counters.rs",
    "src/stats/pace.rs",
    "src/stats/epochs.rs",
    "src/stats/files.rs",
    "src/stats/fleet.rs",
    "src/stats/heat.rs",
    "src/stats/metrics.rs",
    "src/stats/ops.rs",
    "src/stats/plans.rs",
    "src/stats/processes.rs",
    "src/stats/queue.rs",
    "src/stats/record.rs",
    "src/stats/recorder.rs",
    "src/stats/recording.rs",
    "src/stats/render.rs",
    "src/stats/checkpoints.rs",
    "src/stats/staging.rs",
    "src/stats/status.rs",
    "src/stats/timeline.rs",
    "src/stats/trace/block.rs",
    "src/stats/traced.rs",
    "src/stats/watch.rs",
    "src/stats/windows.rs",
    "src/cli/top/change.rs",
    "src/cli/top/draw.rs",
    "src/cli/top/lines.rs",
    "src/cli/top/snapshot.rs",
    "src/cli/top/shown.rs",
    "src/cli/top/state.rs",
    "src/cli/top/table.rs",
    "src/report/darshan.rs",
    "src/report/darshan/dxt.rs",
    "src/report/darshan/hash.rs",
    "src/report/darshan/heat.rs",
    "src/report/darshan/job.rs",
    "src/report/darshan/layout.rs",
    "src/report/darshan/numbers.rs",
    "src/report/darshan/posix.rs",
    "src/report/darshan/ranks.rs",
    "src/report/advice.rs",
    "src/report/asked.rs",
    "src/report/calls.rs",
    "src/report/chart.rs",
    "src/report/csv.rs",
    "src/report/formats.rs",
    "src/report/html.rs",
    "src/report/markdown.rs",
    "src/report/outlet.rs",
    "src/report/page.rs",
    "src/report/plan.rs",
    "src/report/plot.rs",
    "src/report/rebuild.rs",
    "src/report/summarize.rs",
    "src/report/summary.rs",
    "src/report/text.rs",
    "src/report/totals.rs",
    "src/config/io_path.rs",
    "src/config/listen.rs",
    "src/config/settings.rs",
    "src/config/values.rs",
    "src/fs/control/command.rs",
    "src/fs/control/node.rs",
    "src/path.rs",
];

/// What a pure file must not name, except what [`ALLOWED`] says.
const FORBIDDEN: &[&str] = &[
    "std::fs",
    "std::os",
    "std::net",
    "std::process",
    "std::thread",
    "nix::",
    "tokio",
    "dyn Dir",
    "dyn File",
    "dyn Clock",
    "Instant::now",
    "SystemTime::now",
];
/// Error numbers, and names as bytes: plain data, although they come from the system's crates.
const ALLOWED: &[&str] = &["nix::errno", "std::os::unix::ffi"];

#[test]
fn imports_point_down() {
    let sources = sources();
    let mut upward = Vec::new();
    for (module, source) in &sources {
        // The crate's root only lists its modules.
        if module == "lib" {
            continue;
        }
        for path in imports(module, source) {
            let target = longest_module(&path, &sources);
            if target.as_deref().is_some_and(|target| face(target) != face(module) && floor(target) > floor(module)) {
                upward.push(format!("{module} (floor {}) uses {}", floor(module), path.join("::")));
            }
        }
    }
    assert!(upward.is_empty(), "imports that point up:\n{}", upward.join("\n"));
}

/// Texts that are not for people, or are escaped where they reach them.
const NOT_PRINTED: &[(&str, &str)] = &[
    ("json", "a value of a document, which has its own escapes"),
    ("stats::recording", "read from a recording; the documents made of it escape"),
    ("report::advice", "a value in JSON"),
    ("fs::caller", "what the kernel writes, to be read"),
    ("cli::completions", "our own text"),
    ("cli::checkpoints_of_fleet", "read for a number"),
    ("cli::doctor::machine", "the kernel's release"),
    ("cli::pin", "the daemon's reply, which `say` escapes"),
    ("cli::report", "the daemon's reply, which `say` escapes"),
    ("cli::report::outlet", "becomes a file's name again"),
    ("bench::blocks", "what fio says, which `complain` escapes"),
    ("bench::loads::blocks", "read for an error"),
    ("bench::loads::copies", "what the tool says, which `complain` escapes"),
    ("tiers::disk::layout", "a file of ours, to be read"),
    ("tiers::log", "a name that we have made of a number"),
    ("mount::logging", "a whole event, escaped there"),
    ("mount::lock", "a file of ours, to be read, and our host's name"),
    ("mount::table", "a kind of file system, to be compared"),
    ("mount::attach", "what the helper says, which `complain` escapes"),
];

/// Any user's mount point, file, process or host may be called so that a terminal follows it, or that a line of its own comes out: root's
/// `dlio-fs status` said `SAFE` in the words of such a name. So names reach people by `path::Printable`, `path::escape` or `path::harmless` only.
#[test]
fn names_from_outside_are_not_printed_as_they_are() {
    let raw = |source: &str| {
        [".display()", "to_string_lossy", "from_utf8_lossy"].into_iter().find(|way| source.contains(way))
    };
    let is_listed = |module: &str| NOT_PRINTED.iter().any(|(listed, _)| *listed == module);
    let sources = sources_with_bench();
    let found: Vec<_> = sources.iter().filter_map(|(module, source)| Some((module, raw(source)?))).collect();
    let unlisted: Vec<_> = found.iter().filter(|(module, _)| !is_listed(module)).collect();
    assert!(unlisted.is_empty(), "use `.shown()` or `escape` of `src/path.rs`: {unlisted:?}");
    let idle = NOT_PRINTED.iter().find(|(module, _)| !found.iter().any(|(found, _)| found.as_str() == *module));
    assert_eq!(idle, None, "an exception that nothing needs");
}

/// Each file can be read after those that it needs.
#[test]
fn no_files_of_a_program_import_each_other_in_a_circle() {
    for dir in ["src", BENCH, "xtask/src"] {
        let found: Vec<String> = circles(&arrows(&sources_in(dir))).into_iter().collect();
        assert!(found.is_empty(), "files of {dir} that import each other in a circle:\n{}", found.join("\n"));
    }
}

/// The modules that each one imports. The crate's roots are left out, and the face of the engine: its types are below its rooms, what it
/// owns is above them.
fn arrows(sources: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<String>> {
    let left_out = |module: &str| matches!(module, "lib" | "main" | "tiers");
    let arrows = sources.iter().filter(|(module, _)| !left_out(module)).map(|(module, source)| {
        let paths = imports(module, source).into_iter().chain(imports_of_children(module, source, sources));
        let targets = paths.filter_map(|path| longest_module(&path, sources));
        (module.as_str(), targets.filter(|target| target != module && !left_out(target)).collect())
    });
    arrows.collect()
}

/// Paths that begin with a module that the file itself declares, `record::FileRecord` where it says `mod record;`: only to declare it
/// imports nothing.
fn imports_of_children(module: &str, source: &str, sources: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let below = sources.keys().filter_map(|name| name.strip_prefix(module)?.strip_prefix("::"));
    let begins = |at: usize| !source[..at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c));
    let mut found = Vec::new();
    for child in below.filter(|name| !name.contains("::")) {
        for (at, _) in source.match_indices(&format!("{child}::")).filter(|(at, _)| begins(*at)) {
            follow(&source[at..], &mut module.split("::").map(str::to_owned).collect(), &mut found);
        }
    }
    found
}

/// For each module that is in a circle, the shortest one through it; the same circle once.
fn circles(arrows: &BTreeMap<&str, BTreeSet<String>>) -> BTreeSet<String> {
    arrows.keys().filter_map(|module| way_back(module, arrows)).collect()
}

/// The shortest way from a module through what it imports back to it, from its first name in the alphabet.
fn way_back(module: &str, arrows: &BTreeMap<&str, BTreeSet<String>>) -> Option<String> {
    let mut ways = VecDeque::from([vec![module]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for target in arrows.get(way[way.len() - 1]).into_iter().flatten() {
            if target == module {
                let first = way.iter().enumerate().min_by_key(|(_, name)| **name).map_or(0, |(at, _)| at);
                let order = way[first..].iter().chain(&way[..=first]);
                return Some(order.copied().collect::<Vec<_>>().join(" -> "));
            }
            if seen.insert(target.as_str()) {
                ways.push_back(way.iter().copied().chain([target.as_str()]).collect());
            }
        }
    }
    None
}

/// What a room takes from another, by import or by a call of a method of `Tiers`, is below it.
#[test]
fn the_engine_s_rooms_use_what_is_below_them() {
    let sources = sources();
    let rooms: Vec<(&str, &String)> =
        sources.iter().filter_map(|(module, source)| Some((module.strip_prefix("tiers::")?, source))).collect();
    let methods: BTreeMap<&str, &str> = rooms.iter().flat_map(|(module, source)| methods(module, source)).collect();
    let mut upward = Vec::new();
    for (module, source) in rooms {
        let full = format!("tiers::{module}");
        let imported = imports(&full, source).into_iter().filter_map(|path| {
            let target = longest_module(&path, &sources)?.strip_prefix("tiers::")?.to_owned();
            Some((target, path.join("::")))
        });
        let called =
            calls(source).into_iter().filter_map(|name| Some(((*methods.get(name)?).to_owned(), name.to_owned())));
        for (target, what) in imported.chain(called).filter(|(target, _)| is_above(target, module)) {
            upward.push(format!("{module} uses {what} of {target}"));
        }
    }
    assert!(upward.is_empty(), "what points up in the engine:\n{}", upward.join("\n"));
}

/// Whether a module of the engine is in a room above another's.
fn is_above(target: &str, module: &str) -> bool {
    let room = |module: &str| {
        let covers =
            |room: &&str| module == *room || module.strip_prefix(*room).is_some_and(|rest| rest.starts_with("::"));
        let found = ROOMS.iter().enumerate().filter(|(_, room)| covers(room)).max_by_key(|(_, room)| room.len());
        found.unwrap_or_else(|| panic!("tiers::{module} has no room: give it one in ROOMS")).0
    };
    room(target) > room(module)
}

/// The bodies of a source's `impl Tiers`.
fn tiers_bodies(source: &str) -> impl Iterator<Item = &str> {
    source.split("\nimpl Tiers {").skip(1).map(|rest| rest.split("\n}").next().unwrap_or(rest))
}

/// The methods of `Tiers` that a module has.
fn methods<'a>(module: &'a str, source: &'a str) -> Vec<(&'a str, &'a str)> {
    let functions = tiers_bodies(source).flat_map(|body| body.split("\n    ").filter(|line| !line.starts_with(' ')));
    let names = functions.filter_map(|line| line.split_once("fn ")).map(|(_, rest)| word(rest));
    names.map(|name| (name, module)).collect()
}

/// The methods of `Tiers` that it calls, and some of other types.
fn calls(source: &str) -> BTreeSet<&str> {
    let own = tiers_bodies(source).flat_map(|body| body.split("self.").skip(1));
    let others = source.split("tiers.").skip(1);
    own.chain(others).map(word).filter(|name| !name.is_empty()).collect()
}

fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("")
}

#[test]
fn pure_files_do_no_io_and_read_no_clock() {
    for file in PURE {
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_else(|error| {
            panic!("{file}: {error}; a pure file that was moved or removed must be so in PURE as well")
        });
        assert_eq!(impurities(&code(&source)), [""; 0], "{file} is listed as pure");
    }
}

/// All locks of the engine have a rank, so that a wrong order is found.
#[test]
fn the_engine_has_no_lock_without_a_rank() {
    for (module, source) in sources()
        .iter()
        .filter(|(name, _)| name.starts_with("tiers") && *name != "tiers::disk::sync" && *name != "tiers::disk::faults")
    {
        let named =
            ["parking_lot", "std::sync::Mutex", "std::sync::RwLock"].iter().find(|word| code(source).contains(**word));
        assert!(named.is_none(), "{module} names {}: use tiers::disk::sync", named.unwrap_or(&""));
    }
}

/// One word, one thing: a type that is named as another one is a word for two things.
#[test]
fn no_two_types_have_one_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (module, source) in sources_with_bench() {
        for name in types(&source) {
            places.entry(name.to_owned()).or_default().push(module.clone());
        }
    }
    places.retain(|_, modules| modules.len() > 1);
    assert!(places.is_empty(), "give one of each another name: {places:?}");
}

/// The types that a source defines at its top.
fn types(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let line = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(rest, |(_, rest)| rest),
            Some(rest) => rest.trim_start(),
            None => line,
        };
        ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|word| line.strip_prefix(word)).map(word)
    })
}

/// Every source file of `dlio-fs`: its module's path and its text without comments and tests.
fn sources() -> BTreeMap<String, String> {
    sources_in("src")
}

/// Those of `dlio-fs-bench`, too, as if they were below a module `bench`.
fn sources_with_bench() -> BTreeMap<String, String> {
    let bench = sources_in(BENCH).into_iter().map(|(module, source)| (format!("bench::{module}"), source));
    sources().into_iter().chain(bench).collect()
}

fn sources_in(dir: &str) -> BTreeMap<String, String> {
    let mut sources = BTreeMap::new();
    read_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), "", &mut sources);
    assert!(sources.contains_key("main"), "found no sources in {dir}");
    sources
}

fn read_below(dir: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let module = format!("{prefix}{}", path.file_stem().unwrap().to_str().unwrap());
        if path.is_dir() {
            read_below(&path, &format!("{module}::"), sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.insert(module, code(&fs::read_to_string(&path).unwrap()));
        }
    }
}

fn face(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

fn floor(module: &str) -> u8 {
    let covers = |top: &str| module == top || module.strip_prefix(top).is_some_and(|rest| rest.starts_with("::"));
    let listed = FLOORS.iter().filter(|(top, _)| covers(top)).max_by_key(|(top, _)| top.len());
    listed.unwrap_or_else(|| panic!("module {module} has no floor: give it one in FLOORS")).1
}

/// The source without comments, and without the unit tests, which are at its end.
fn code(source: &str) -> String {
    let lines = source.lines().take_while(|line| *line != "#[cfg(test)]");
    lines.map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n")
}

/// Every path that begins with `crate::` or `super::`, in the whole text, as segments below the crate's root.
fn imports(module: &str, source: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let here: Vec<String> = module.split("::").map(str::to_owned).collect();
    // `pub(in crate::fs)` imports nothing.
    for (at, _) in source.match_indices("crate::").filter(|(at, _)| !source[..*at].ends_with("(in ")) {
        follow(&source[at + "crate::".len()..], &mut Vec::new(), &mut found);
    }
    for (at, _) in source.match_indices("super::").filter(|(at, _)| !source[..*at].ends_with("super::")) {
        let path = source[at..].trim_start_matches("super::");
        let up = (source.len() - at - path.len()) / "super::".len();
        follow(path, &mut here[..here.len().saturating_sub(up)].to_vec(), &mut found);
    }
    found
}

/// Reads one import tree, `a::{b, c::d}`, and adds its leaves; returns what follows it.
fn follow<'a>(mut rest: &'a str, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let depth = path.len();
    loop {
        rest = rest.trim_start();
        if let Some(group) = rest.strip_prefix('{') {
            rest = group;
            while !rest.trim_start().starts_with('}') && !rest.trim_start().is_empty() {
                rest = follow(rest, path, found).trim_start().trim_start_matches(',');
            }
            rest = rest.trim_start().trim_start_matches('}');
            break;
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        path.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => rest = more,
            None => {
                found.push(path.clone());
                // A glob, a renaming: up to the end of this leaf.
                rest = &rest[rest.find([',', '}', ';', '\n']).unwrap_or(rest.len())..];
                break;
            }
        }
    }
    path.truncate(depth);
    rest
}

/// The module that a path leads into; `None` for an item of the crate's root.
fn longest_module(path: &[String], sources: &BTreeMap<String, String>) -> Option<String> {
    (1..=path.len()).rev().map(|len| path[..len].join("::")).find(|module| sources.contains_key(module))
}

fn impurities(code: &str) -> Vec<&'static str> {
    let without_allowed = ALLOWED.iter().fold(code.to_owned(), |code, allowed| code.replace(allowed, ""));
    FORBIDDEN.iter().filter(|word| without_allowed.contains(**word)).copied().collect()
}

#[test]
fn import_trees_are_read_to_their_leaves() {
    let read = |module, source| imports(module, source).into_iter().map(|path| path.join("::")).collect::<Vec<_>>();
    assert_eq!(read("cli", "use crate::error::Error;"), ["error::Error"]);
    assert_eq!(
        read(
            "cli",
            "use crate::{\n    error::{Errno, Error},\n    tiers::disk::{self, Kind as K},\n    fs::*,\n};\nuse x::y;"
        ),
        ["error::Errno", "error::Error", "tiers::disk::self", "tiers::disk::Kind", "fs::"]
    );
    assert_eq!(
        read("tiers::plan", "use super::disk::Time; fn f() { super::super::fs::g(); crate::cli::h() }"),
        ["cli::h", "tiers::disk::Time", "fs::g"]
    );
}

#[test]
fn a_circle_of_files_is_found_in_its_order() {
    let found = |face: &str| {
        let sources =
            [("a", face), ("a::b", "use crate::d::Y;"), ("c", "use super::a::{X, Z};"), ("d", "use crate::c;")];
        let sources = sources.map(|(module, source)| (module.to_owned(), source.to_owned()));
        circles(&arrows(&BTreeMap::from(sources))).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(found("mod b; pub(in crate::c) struct X;"), [""; 0]);
    assert_eq!(found("mod b; use b::Z;"), ["a -> a::b -> d -> c -> a"]);
    assert_eq!(found("mod b; pub use self::b::Z; use crate::c::W;").len(), 1);
}

#[test]
fn upward_and_impure_sources_are_found() {
    let sources =
        BTreeMap::from([("tiers", ""), ("fs", ""), ("tiers::disk", "")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    let segments = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let target = |path| longest_module(&segments(path), &sources).unwrap();
    assert!(floor(&target("fs::Handle")) > floor("tiers::log"));
    assert!(floor(&target("tiers::Attr")) > floor("stats"));
    assert!(floor(&target("tiers::disk::Kind")) < floor("stats"));
    assert!(is_above("writeback::drain", "ops::data") && !is_above("ops::data", "ops::names"));
    let source = "\nimpl Tiers {\n    pub fn a(&self) {\n        self.b();\n    }\n}\nimpl X {\n    fn c(&self) {\n        self.d()\n    }\n}";
    assert_eq!((methods("m", source), calls(source)), (vec![("a", "m")], BTreeSet::from(["b"])));
    assert_eq!(
        impurities("use std::fs::File; use nix::errno::Errno; let t = Instant::now();"),
        ["std::fs", "Instant::now"]
    );
    assert_eq!(impurities("use nix::errno::Errno; use std::os::unix::ffi::OsStrExt;"), [""; 0]);
    assert_eq!(code("use a; // std::fs\n/// crate::fs\n#[cfg(test)]\nuse std::fs;").trim(), "use a;");
}

//! `cargo xtask mutants`: does the model test find what was wrong before? Known defects (`tests/sim/mutants/*.patch`) and the engine's
//! lapses are put back one at a time, and the dice throw until a case fails or the time is spent.
//!
//! All patches go into one copy of the tree, each behind a switch (`tests/sim/mutants/switch.rs`) that an environment variable sets: one
//! build has all of them, and the tree has none. Without any of them the same cases must pass.
//!
//! A patch begins with lines of comment: what the defect does and where its story is; `by: fleet` where the dice of a fleet are to find
//! it, `by: stranger` where those with somebody else on the slow tree are; `lacks: ...`, what the dice would need, while they do not. A defect
//! of the engine without `by:` is hunted by the main dice and by those of the stranger in turn.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use crate::Context;
use crate::cargo::executable;
use crate::run::{Running, cargo};

const PATCHES: &str = "tests/sim/mutants";
/// What the dice lack for the lapses, which have no patch to say it.
const OF_LAPSES: &str = "tests/sim/mutants/lapses.txt";
const LAPSES: &str = "src/tiers/disk/faults.rs";
const PAGE: &str = "docs/internals/mutants.md";
/// What is behind this line of the page is written anew.
const TABLE: &str = "## The table";
const MINUTES: u64 = 10;
/// A process that takes no processor time for so long stands still: that is a failure, too.
const STANDSTILL: Duration = Duration::from_secs(120);
/// In a row of one that no case has found.
const NOT_CAUGHT: &str = "| not caught |";
/// So much of what the test said is shown.
const SAID: usize = 100;

const OF_ENGINE: &[&str] = &["the_engine_keeps_its_promises"];
const OF_STRANGER: &[&str] = &["strangers::somebody_else_on_the_same_names_takes_nothing_with_him"];
const OF_FLEET: &[&str] = &[
    "fleet::a_fleet_keeps_one_order",
    "fleet::a_fleet_that_is_badly_run_keeps_one_order",
    "fleet::a_fleet_of_eight_keeps_one_order",
    "fleet::a_fleet_whose_leases_one_member_collects_keeps_one_order",
    "fleet::a_fleet_of_eight_whose_leases_one_member_collects_keeps_one_order",
    "fleet::partner::a_copy_takes_the_place_of_a_lost_node_and_keeps_the_order",
    "of_fleet::no_member_of_a_fleet_names_a_checkpoint_that_lacks_a_part_of_another",
];

type Tests = &'static [&'static str];

#[derive(Clone, Debug)]
struct Mutant {
    name: String,
    /// Sets the switch.
    variable: Option<&'static str>,
    /// Lists of tests; each has its share of the time.
    tests: &'static [Tests],
    about: String,
    lacks: Option<String>,
}

/// How one was found.
#[derive(Debug)]
struct Caught {
    seed: Option<u64>,
    /// Operations of that case.
    steps: Option<u64>,
    said: String,
}

#[derive(Debug)]
struct Wanted {
    names: Vec<String>,
    minutes: f64,
    first: u64,
    keep: bool,
    write: bool,
}

pub(crate) fn command(cx: &Context, args: &[String]) -> Result<bool> {
    let wanted = parse(args)?;
    let mut mutants = mutants(&cx.root)?;
    for name in &wanted.names {
        ensure!(mutants.iter().any(|mutant| mutant.name == *name), "there is no mutant or lapse {name}");
    }
    mutants.retain(|mutant| wanted.names.is_empty() || wanted.names.contains(&mutant.name));
    let place = cx.target.join("xtask/mutants");
    let program = build(cx, &place)?;
    let is_used = |control: &Mutant| mutants.iter().any(|mutant| mutant.tests.contains(&control.tests[0]));
    let controls = controls().filter(is_used);
    let mut missed = 0;
    for mutant in controls.chain(mutants.iter().cloned()) {
        let row = row_of(&program, &mutant, &wanted, &place)?;
        println!("{row}");
        let is_caught = !row.contains(NOT_CAUGHT);
        if mutant.variable.is_none() && is_caught {
            fs::remove_file(place.join("rows").join(&mutant.name))?;
            bail!("without any mutant a case fails: {row}");
        }
        missed += usize::from(mutant.variable.is_some() && !is_caught);
    }
    println!("{} of {} caught", mutants.len() - missed, mutants.len());
    if wanted.write {
        write_page(cx, &place)?;
    }
    Ok(true)
}

/// The engine, a fleet, and the engine with somebody else about, as they are.
fn controls() -> impl Iterator<Item = Mutant> {
    const CONTROLS: [(&str, &[Tests]); 3] = [
        ("nothing, in the engine", &[OF_ENGINE]),
        ("nothing, in a fleet", &[OF_FLEET]),
        ("nothing, beside a stranger", &[OF_STRANGER]),
    ];
    CONTROLS.into_iter().map(|(name, tests)| Mutant {
        name: name.to_owned(),
        variable: None,
        tests,
        about: "the control".to_owned(),
        lacks: Some("the same cases pass".to_owned()),
    })
}

/// Measured now, or kept from before.
fn row_of(program: &Path, mutant: &Mutant, wanted: &Wanted, place: &Path) -> Result<String> {
    if let Some(row) = kept_row(mutant, place).filter(|_| wanted.keep) {
        return Ok(row);
    }
    println!("{}: {}", mutant.name, mutant.about);
    let (found, seconds) = hunt(program, mutant, wanted, place)?;
    let row = row(mutant, found.as_ref(), seconds);
    fs::write(place.join("rows").join(&mutant.name), &row)?;
    Ok(row)
}

/// What was measured before, with what is said by now to be lacking.
fn kept_row(mutant: &Mutant, place: &Path) -> Option<String> {
    let kept = fs::read_to_string(place.join("rows").join(&mutant.name)).ok()?;
    let seconds = kept.trim_end_matches([' ', '|']).rsplit('|').next()?.trim().parse().ok()?;
    Some(if kept.contains(NOT_CAUGHT) { row(mutant, None, seconds) } else { kept })
}

fn parse(args: &[String]) -> Result<Wanted> {
    let mut wanted = Wanted { names: Vec::new(), minutes: MINUTES as f64, first: 0, keep: false, write: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--minutes" => wanted.minutes = value()?.parse().context("--minutes needs a number")?,
            "--first" => wanted.first = value()?.parse().context("--first needs a number")?,
            "--keep" => wanted.keep = true,
            "--write" => wanted.write = true,
            option if option.starts_with('-') => bail!("there is no option {option}"),
            name => wanted.names.push(name.to_owned()),
        }
    }
    Ok(wanted)
}

/// The patches by their names, and the lapses in the order of the engine's.
fn mutants(root: &Path) -> Result<Vec<Mutant>> {
    let mut found = Vec::new();
    for path in patches(root)? {
        let text = fs::read_to_string(&path)?;
        let lines: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("# ")).collect();
        let field = |key| lines.iter().find_map(|line| line.strip_prefix(key));
        let is_about = |line: &&&str| !["by: ", "lacks: "].iter().any(|key| line.starts_with(key));
        let about: Vec<&str> = lines.iter().take_while(is_about).copied().collect();
        ensure!(!about.is_empty(), "{} does not say what it does", path.display());
        let lacks = lines.iter().skip_while(|line| !line.starts_with("lacks: ")).copied().collect::<Vec<_>>().join(" ");
        found.push(Mutant {
            name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            variable: Some("DLIO_MUTANT"),
            tests: match field("by: ") {
                Some("fleet") => &[OF_FLEET],
                Some("stranger") => &[OF_STRANGER],
                _ => &[OF_ENGINE, OF_STRANGER],
            },
            about: about.join(" "),
            lacks: lacks.strip_prefix("lacks: ").map(str::to_owned),
        });
    }
    found.extend(lapses(root)?);
    Ok(found)
}

fn patches(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root.join(PATCHES))?.collect::<Result<Vec<_>, _>>()?;
    let is_patch = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "patch");
    let mut found: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_patch).collect();
    found.sort_unstable();
    Ok(found)
}

/// As the engine lists them, each behind what it does.
fn lapses(root: &Path) -> Result<Vec<Mutant>> {
    let (source, lacking) = (fs::read_to_string(root.join(LAPSES))?, fs::read_to_string(root.join(OF_LAPSES))?);
    let lacking: BTreeMap<&str, &str> = lacking.lines().filter_map(|line| line.split_once(": ")).collect();
    let (_, list) = source.split_once("pub enum Lapse {").context("the engine lists no lapses")?;
    let mut about = String::new();
    let mut found = Vec::new();
    for line in list.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("/// ") {
            about = format!("{about} {text}").trim_start().to_owned();
        } else if let Some(name) = line.strip_suffix(',') {
            let about = std::mem::take(&mut about);
            let is_of_fleet =
                about.starts_with("In a fleet") || about.starts_with("With a partner") || name == "OneStart";
            found.push(Mutant {
                name: name.to_owned(),
                variable: Some("DLIO_LAPSE"),
                tests: if is_of_fleet { &[OF_FLEET] } else { &[OF_ENGINE, OF_STRANGER] },
                about,
                lacks: lacking.get(name).map(|text| (*text).to_owned()),
            });
        }
    }
    Ok(found)
}

/// The model test, with all mutants in it.
fn build(cx: &Context, place: &Path) -> Result<PathBuf> {
    fs::create_dir_all(place.join("rows"))?;
    let tree = place.join("tree");
    copy_tree(cx, place, &tree)?;
    println!("building {}", tree.display());
    let mut command = cargo(cx);
    command.current_dir(&tree).env("CARGO_TARGET_DIR", &cx.target);
    let program = executable(command.args(["test", "--quiet", "--no-run", "--test", "model"]), "model")?;
    println!("running {}", program.display());
    Ok(program)
}

/// What Git knows of, patched. A file that is as it was keeps its time, so that nothing is built twice.
fn copy_tree(cx: &Context, place: &Path, tree: &Path) -> Result<()> {
    let fresh = place.join("fresh");
    fs::remove_dir_all(&fresh).or_else(|e| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
    let files = git(&cx.root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let files: Vec<&str> = files.split('\0').filter(|file| !file.is_empty() && cx.root.join(file).is_file()).collect();
    for file in &files {
        put(&cx.root.join(file), &fresh.join(file))?;
    }
    for patch in patches(&cx.root)? {
        let mut apply = Command::new("git");
        // Not as a part of the tree around it: Git would leave out what is ignored there.
        apply.current_dir(&fresh).env("GIT_CEILING_DIRECTORIES", place).args(["apply", "--recount", "-C1"]).arg(&patch);
        let done = apply.output().context("cannot run git")?;
        ensure!(
            done.status.success(),
            "{} does not apply any more: {}",
            patch.display(),
            String::from_utf8_lossy(&done.stderr)
        );
    }
    put(&cx.root.join(PATCHES).join("switch.rs"), &fresh.join("src/mutants.rs"))?;
    let library = fresh.join("src/lib.rs");
    fs::write(&library, fs::read_to_string(&library)? + "\nmod mutants;\n")?;
    for file in files.into_iter().chain(["src/mutants.rs"]) {
        let is_same = fs::read(tree.join(file)).ok() == Some(fs::read(fresh.join(file))?);
        if !is_same {
            put(&fresh.join(file), &tree.join(file))?;
        }
    }
    Ok(())
}

fn put(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file is in a directory")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(root).args(args).output().context("cannot run git")?;
    ensure!(output.status.success(), "git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Throws dice until a case fails, or the processor time is spent, of which each list of tests has the same share. Returns the time that it
/// took, in seconds.
fn hunt(program: &Path, mutant: &Mutant, wanted: &Wanted, place: &Path) -> Result<(Option<Caught>, f64)> {
    let mut spent = 0.0;
    for (tests, lists) in mutant.tests.iter().zip((1..=mutant.tests.len()).rev()) {
        let share = (wanted.minutes * 60.0 - spent) / lists as f64;
        let (caught, seconds) = hunt_by(tests, program, mutant, wanted, share, place)?;
        spent += seconds;
        if caught.is_some() {
            return Ok((caught, spent));
        }
    }
    Ok((None, spent))
}

fn hunt_by(
    tests: Tests,
    program: &Path,
    mutant: &Mutant,
    wanted: &Wanted,
    budget: f64,
    place: &Path,
) -> Result<(Option<Caught>, f64)> {
    let before = processor_time()?;
    // The cases of a fleet tell of a failure once all of a round are over.
    let mut round = if tests == OF_FLEET { 16 } else { u64::from(u32::MAX) };
    let mut first = wanted.first;
    loop {
        let left = budget - (processor_time()? - before);
        if left < 1.0 {
            return Ok((None, budget));
        }
        let caught = throw(tests, program, mutant, (first, round), left, place)?;
        let spent = processor_time()? - before;
        if caught.is_some() {
            return Ok((caught, spent));
        }
        (first, round) = (first + round, round * 2);
    }
}

/// One run of some cases.
fn throw(
    tests: Tests,
    program: &Path,
    mutant: &Mutant,
    (first, cases): (u64, u64),
    seconds: f64,
    place: &Path,
) -> Result<Option<Caught>> {
    let log = place.join("log");
    let file = File::create(&log)?;
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t \"$1\"; shift; exec \"$@\"", "sh"]).arg(format!("{:.0}", seconds.ceil()));
    command.arg(program).args(["--exact", "--nocapture"]).args(tests).stdout(file.try_clone()?).stderr(file);
    command.env("RUST_BACKTRACE", "0").current_dir(place);
    for kind in ["MODEL", "FLEET", "STRANGERS"] {
        command
            .env(format!("DLIO_{kind}_FIRST"), first.to_string())
            .env(format!("DLIO_{kind}_CASES"), cases.to_string());
    }
    command.envs(mutant.variable.map(|variable| (variable, &mutant.name)));
    let mut running = Running::start(&mut command)?;
    let ending = wait(&mut running, &log)?;
    drop(running);
    if matches!(ending, Ending::Stands) {
        return Ok(Some(Caught { seed: None, steps: None, said: "it stands still".to_owned() }));
    }
    let failed = matches!(ending, Ending::Ended(status) if status.code().is_some_and(|code| code != 0));
    Ok(outcome(failed, &String::from_utf8_lossy(&fs::read(&log)?)))
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Ended(ExitStatus),
    /// A case has failed; the others need not be waited for.
    Said,
    Stands,
}

fn wait(running: &mut Running, log: &Path) -> Result<Ending> {
    let (mut spent, mut moved, mut looked) = (String::new(), Instant::now(), Instant::now());
    loop {
        if let Some(status) = running.ended()? {
            return Ok(Ending::Ended(status));
        }
        if looked.elapsed() > Duration::from_secs(1) {
            looked = Instant::now();
            if String::from_utf8_lossy(&fs::read(log)?).contains(" repeats it") {
                return Ok(Ending::Said);
            }
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", running.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        let now = fields.get(11..13).unwrap_or_default().join(" ");
        if now != spent {
            (spent, moved) = (now, Instant::now());
        }
        if moved.elapsed() > STANDSTILL {
            return Ok(Ending::Stands);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Of a run that ended, `failed` by itself. One that was ended because its time was spent has found nothing, if it has not said so.
fn outcome(failed: bool, text: &str) -> Option<Caught> {
    let of_engine = text.lines().rev().find_map(|line| line.strip_prefix("case ")?.split_once(": "));
    let of_others = ["; DLIO_FLEET_SEED=", "; DLIO_STRANGERS_SEED="].iter().find_map(|seed| text.split_once(seed));
    if let Some((seed, _)) = of_engine.filter(|(seed, _)| seed.parse::<u64>().is_ok()) {
        let (_, said) = text.rsplit_once(&format!("\ncase {seed}: "))?;
        let said = said.split("\n\nDLIO_MODEL_SEED").next().unwrap_or_default();
        let said = if said.starts_with("panicked,") { panicked(text) } else { said.to_owned() };
        return Some(Caught { seed: seed.parse().ok(), steps: steps(text), said });
    }
    if let Some((said, behind)) = of_others {
        let seed = behind.split(' ').next().and_then(|seed| seed.parse().ok());
        // Behind the line that names the place.
        let said = said
            .rsplit_once("panicked at ")
            .and_then(|(_, panic)| panic.split_once('\n'))
            .map_or(said, |(_, said)| said);
        return Some(Caught { seed, steps: None, said: said.to_owned() });
    }
    failed.then(|| Caught { seed: None, steps: None, said: panicked(text) })
}

/// What a panic of the engine, or of the test, said.
fn panicked(text: &str) -> String {
    let message = text.lines().skip_while(|line| !line.contains("panicked at ")).nth(1);
    format!("panic: {}", message.unwrap_or("nothing"))
}

/// How many operations the case had until then: each is a line with a number.
fn steps(text: &str) -> Option<u64> {
    let is_operation = |line: &&str| {
        let parts = line.trim_start().split_once(' ');
        parts.is_some_and(|(number, rest)| {
            number.parse::<u64>().is_ok() && rest.starts_with(|c: char| c.is_ascii_uppercase())
        })
    };
    let count = text.lines().filter(is_operation).count() as u64;
    (count > 0).then_some(count)
}

fn processor_time() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// A line of the table.
fn row(mutant: &Mutant, found: Option<&Caught>, seconds: f64) -> String {
    let name = &mutant.name;
    let Some(Caught { seed, steps, said }) = found else {
        let lacks = mutant.lacks.as_deref().unwrap_or("it is not known yet what the dice lack");
        return format!("| `{name}` {NOT_CAUGHT} {} | {seconds:.0} |", in_cell(lacks, usize::MAX));
    };
    let case = seed.map_or_else(|| "a case".to_owned(), |seed| format!("case {seed}"));
    let case = steps.map_or_else(|| case.clone(), |steps| format!("{case}, {steps}"));
    format!("| `{name}` | {case} | {} | {seconds:.1} |", in_cell(&without_host(said), SAID))
}

/// The page is the same wherever it is made.
fn without_host(said: &str) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim_end();
    said.replace(&format!("-conflict-{host}-"), "-conflict-HOST-").replace(&format!(" on {host},"), " on HOST,")
}

/// One line without what ends a cell or begins something else there.
fn in_cell(text: &str, most: usize) -> String {
    let plain = text.replace(['|', '`', '<', '>', '*', '['], " ");
    let words: Vec<&str> = plain.split_whitespace().collect();
    words.join(" ").chars().take(most).collect::<String>().trim_end().to_owned()
}

/// Puts all rows that are there into the page.
fn write_page(cx: &Context, place: &Path) -> Result<()> {
    let page = cx.root.join(PAGE);
    let text = fs::read_to_string(&page)?;
    let (intro, _) = text.split_once(TABLE).with_context(|| format!("{PAGE} has no line {TABLE:?}"))?;
    let row = |mutant: &Mutant| kept_row(mutant, place);
    let all = mutants(&cx.root)?;
    let rows: Vec<String> = all.iter().filter_map(row).collect();
    let missed = rows.iter().filter(|row| row.contains(NOT_CAUGHT)).count();
    let of_nothing: Vec<String> = controls().filter_map(|control| row(&control)).collect();
    let commit = git(&cx.root, &["log", "-1", "--format=commit %h of %cs"])?;
    let caught = rows.len() - missed;
    let written = format!(
        "{intro}{TABLE}\n\n{caught} of {} caught, at {}; {} are not measured yet.\n\n| defect or lapse | found by | what the test said, or what it lacks | CPU s |\n|---|---|---|---|\n{}\n",
        rows.len(),
        commit.trim(),
        all.len() - rows.len(),
        [of_nothing, rows.clone()].concat().join("\n")
    );
    fs::write(page, written)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_outcome_names_the_case_and_what_was_said() {
        let text = "fast 1 bytes\n   1 Mkdir { }\n  12 Look\n     = Did\n\ncase 7: not | equal\nmore\n\nDLIO_MODEL_SEED=7 repeats it";
        let caught = outcome(true, text).unwrap();
        assert_eq!((caught.seed, caught.steps), (Some(7), Some(2)));
        assert_eq!(in_cell(&caught.said, 11), "not equal m");
        let caught = outcome(true, "thread panicked at x:\nlost\n]; DLIO_FLEET_SEED=3 repeats it").unwrap();
        assert_eq!((caught.seed, caught.said.as_str()), (Some(3), "lost\n]"));
        let caught =
            outcome(true, "thread panicked at x:\nlost\n   an act,\n; DLIO_STRANGERS_SEED=5 repeats it").unwrap();
        assert_eq!((caught.seed, caught.said.lines().next()), (Some(5), Some("lost")));
        assert!(outcome(false, "running 1 test").is_none(), "its time is spent");
        let caught = outcome(true, "thread panicked at x:\nno good").unwrap();
        assert_eq!(caught.said, "panic: no good");
    }

    #[test]
    fn every_patch_says_what_it_does_and_where_that_was() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let found = mutants(root).unwrap();
        assert!(found.len() > 60 && found.iter().any(|mutant| mutant.name == "Append"));
        for mutant in found.iter().filter(|mutant| mutant.variable == Some("DLIO_MUTANT")) {
            assert!(mutant.about.ends_with(").") && mutant.about.contains(" ("), "{}: {}", mutant.name, mutant.about);
        }
    }
}

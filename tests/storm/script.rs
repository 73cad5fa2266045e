//! A storm as data: what each process does in its subtree, what is done to the mount and its tiers meanwhile, and how all of it is set
//! up. A seed makes it, a file keeps it, and it can be halved. Nothing here does anything.

use std::path::PathBuf;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::ops::{Op, random_op, subtree};

/// How large a storm is.
const ACTORS: usize = 3;
const OPS: usize = 500;
const BEFORE: usize = 60;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) scene: Scene,
    /// In the order of their moments.
    pub(crate) disturbances: Vec<Disturbance>,
    pub(crate) actors: Vec<Part>,
}

/// What one process does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Which of the mounts it works on.
    pub(crate) member: usize,
    /// In the slow tree itself, beside the mounts.
    pub(crate) is_stranger: bool,
    /// Done to the slow tree before anything is mounted.
    pub(crate) before: Vec<Op>,
    pub(crate) ops: Vec<Op>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scene {
    pub(crate) fast: Disk,
    pub(crate) slow: Disk,
    /// A FUSE layer over the slow disk, which can be stopped.
    pub(crate) has_layer: bool,
    pub(crate) members: usize,
    /// `-o` of every mount.
    pub(crate) options: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) kind: Kind,
    pub(crate) mib: u64,
}

/// Something that is done once the processes have done so many operations together. Only that makes its moment: how long they take for
/// them is different each time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Disturbance {
    pub(crate) at: u64,
    pub(crate) what: What,
}

/// Milliseconds are how long it lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum What {
    /// SIGKILL of a member's daemon, and a mount anew.
    Kill(usize),
    /// The program with these arguments, and then the mount point of the member, or a path below it.
    Command(usize, Vec<String>, PathBuf),
    Paused(usize, u64),
    ReadOnly(u64),
    Full(u64),
    Frozen(u64),
    Hung(u64),
}

impl Script {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let scene = random_scene(&mut random);
        let mut actors: Vec<_> = (0..ACTORS).map(|number| random_part(&mut random, number, &scene)).collect();
        if random.random_bool(0.3) {
            actors.push(Part { is_stranger: true, ..random_part(&mut random, ACTORS, &scene) });
        }
        let mut script = Script { seed, scene, disturbances: Vec::new(), actors };
        script.disturbances = random_disturbances(&mut random, &script);
        script
    }

    pub(crate) fn total(&self) -> u64 {
        self.actors.iter().map(|part| part.ops.len() as u64).sum()
    }

    /// A line for each thing that happens, so that people can shorten it.
    pub(crate) fn write(&self) -> String {
        let parts: Vec<_> = self.actors.iter().map(Part::write).collect();
        format!(
            "{{\"seed\": {}, \"scene\": {},\n\"disturbances\": [{}],\n\"actors\": [\n{}\n]}}\n",
            self.seed,
            text(&self.scene),
            lines(&self.disturbances),
            parts.join(",\n")
        )
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Smaller scripts, the smallest first: without a half of what is done to the mount, of the processes, or of what they do.
    pub(crate) fn halves(&self) -> Vec<Script> {
        let mut found = Vec::new();
        let mut smaller = |change: &dyn Fn(&mut Script)| {
            let mut script = self.clone();
            change(&mut script);
            script.keep_moments(self.total());
            if script != *self && script.total() > 0 {
                found.push(script);
            }
        };
        for half in [Half::First, Half::Second] {
            smaller(&|script| {
                script.actors.iter_mut().for_each(|part| half.of(&mut part.ops));
            });
            smaller(&|script| half.of(&mut script.disturbances));
            smaller(&|script| half.of(&mut script.actors));
            smaller(&|script| script.actors.iter_mut().for_each(|part| half.of(&mut part.before)));
        }
        for number in 0..self.actors.len() {
            for half in [Half::First, Half::Second] {
                smaller(&|script| half.of(&mut script.actors[number].ops));
            }
        }
        found
    }

    /// Moments are at the same part of the whole as before.
    fn keep_moments(&mut self, former: u64) {
        let total = self.total();
        self.disturbances.iter_mut().for_each(|disturbance| disturbance.at = disturbance.at * total / former.max(1));
    }

    /// For people: what happened, in its order as far as there is one.
    pub(crate) fn story(&self) -> String {
        let mut lines = vec![format!("{:?}", self.scene)];
        lines.extend(self.disturbances.iter().map(|d| format!("after {} operations: {:?}", d.at, d.what)));
        for (number, part) in self.actors.iter().enumerate() {
            let who = if part.is_stranger { "stranger" } else { "actor" };
            lines.push(format!("{who} {number} on member {}", part.member));
            lines.extend(part.before.iter().map(|op| format!("  before: {op:?}")));
            lines.extend(part.ops.iter().enumerate().map(|(number, op)| format!("  {number:4} {op:?}")));
        }
        lines.join("\n")
    }
}

impl Part {
    fn write(&self) -> String {
        let Part { member, is_stranger, before, ops } = self;
        let (before, ops) = (lines(before), lines(ops));
        format!(r#"{{"member": {member}, "is_stranger": {is_stranger}, "before": [{before}], "ops": [{ops}]}}"#)
    }
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

fn lines(all: &[impl Serialize]) -> String {
    all.iter().map(|one| format!("\n  {}", text(one))).collect::<Vec<_>>().join(",")
}

impl What {
    /// Whose daemon it concerns; of the tiers it is nobody's.
    pub(crate) fn member(&self) -> Option<usize> {
        match self {
            What::Kill(member) | What::Command(member, ..) | What::Paused(member, _) => Some(*member),
            _ => None,
        }
    }

    /// In the ledger.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            What::Kill(_) => "kill",
            What::Command(..) => "command",
            What::Paused(..) => "paused",
            What::ReadOnly(_) => "read-only",
            What::Full(_) => "full",
            What::Frozen(_) => "frozen",
            What::Hung(_) => "hung",
        }
    }
}

#[derive(Clone, Copy)]
enum Half {
    First,
    Second,
}

impl Half {
    /// Keeps this one.
    fn of<T>(self, all: &mut Vec<T>) {
        // One is not to be halved.
        let middle = all.len() / 2;
        match self {
            _ if middle == 0 => {}
            Half::First => all.truncate(middle),
            Half::Second => drop(all.drain(..middle)),
        }
    }
}

pub(crate) fn random_of<T: Clone>(random: &mut Xoshiro256PlusPlus, of: &[T]) -> T {
    of[random.random_range(0..of.len())].clone()
}

fn random_scene(random: &mut Xoshiro256PlusPlus) -> Scene {
    let disk = |random: &mut Xoshiro256PlusPlus| match random.random_range(0..4) {
        0..2 => Disk { kind: Kind::Ext4, mib: random.random_range(96..=200) },
        // mkfs.xfs makes none that is smaller.
        2 => Disk { kind: Kind::Xfs, mib: 320 },
        _ => Disk { kind: Kind::Btrfs, mib: random.random_range(128..=200) },
    };
    let (fast, slow) = (disk(random), disk(random));
    let members = if random.random_bool(0.25) { 2 } else { 1 };
    let mut options = random_options(random);
    if members > 1 {
        // Refused in a fleet: nobody would see that a pending version is changed, and what is published together has no order.
        for option in &mut options {
            *option = option.replace("passthrough", "exact").replace("newest", "all");
        }
        // One clock, so it is never off.
        options.extend(["fleet=storm", "clock_error=2ms"].map(str::to_owned));
        options.push(format!("fleet_size={members}"));
    }
    Scene { fast, slow, has_layer: random.random_bool(0.25), members, options }
}

/// The daemon does by itself as much as it can, in most of them.
fn random_options(random: &mut Xoshiro256PlusPlus) -> Vec<String> {
    let keys: [(&str, &[&str]); 10] = [
        ("settle", &["0s", "0s", "100ms", "1s"]),
        ("live_after", &["1s", "5s"]),
        ("high", &["2%", "85%"]),
        ("keep", &["0"]),
        ("copy_up_max", &["64MiB", "64MiB", "50KiB"]),
        ("revalidate", &["0s", "1s", "30s"]),
        ("promote", &["true", "false"]),
        ("drain_streams", &["auto", "4"]),
        ("drain_policy", &["all", "all", "newest"]),
        ("io", &["exact", "exact", "cached", "passthrough"]),
    ];
    let mut options: Vec<String> =
        keys.iter().map(|(key, values)| format!("{key}={}", random_of(random, values))).collect();
    options.push(if options.iter().any(|option| option == "high=2%") { "low=1%" } else { "low=70%" }.to_owned());
    options.push("ballast=4MiB".to_owned());
    let rules = random_rules(random);
    // What was written past the fast tier waits for the next mount once a sync of it has failed on the slow tier.
    if !rules.contains("absorb=false") && random.random_bool(0.3) {
        options.push("slow_wait=1s".to_owned());
    }
    options.push(rules);
    options
}

/// By the names that operations take. The first one that fits decides.
fn random_rules(random: &mut Xoshiro256PlusPlus) -> String {
    const WHERE: [&str; 6] = ["**/a", "**/a/**", "**/b", "**/b/**", "**/c", "**/d/*"];
    const WHAT: [&str; 9] = [
        r#"io="passthrough""#,
        r#"io="passthrough", promote=true"#,
        r#"io="cached""#,
        r#"io="exact""#,
        "absorb=false",
        "pin=true",
        r#"fsync="slow""#,
        r#"verify="bytes""#,
        r#"drain_policy="newest""#,
    ];
    let rules: Vec<_> = (0..random.random_range(0..4))
        .map(|_| format!(r#"{{path="{}", {}}}"#, random_of(random, &WHERE), random_of(random, &WHAT)))
        .collect();
    format!("rules=[{}]", rules.join(", "))
}

fn random_part(random: &mut Xoshiro256PlusPlus, number: usize, scene: &Scene) -> Part {
    let before = (0..random.random_range(0..=BEFORE)).map(|_| random_op(random)).collect();
    let ops = (0..OPS).map(|_| random_op(random)).collect();
    Part { member: number % scene.members, is_stranger: false, before, ops }
}

fn random_disturbances(random: &mut Xoshiro256PlusPlus, script: &Script) -> Vec<Disturbance> {
    let total = script.total();
    let count = random.random_range(4..24);
    let mut found: Vec<_> = (0..count)
        .map(|_| Disturbance { at: random.random_range(0..total), what: random_disturbance(random, script) })
        .collect();
    found.sort_by_key(|disturbance| disturbance.at);
    found
}

fn random_disturbance(random: &mut Xoshiro256PlusPlus, script: &Script) -> What {
    let member = random.random_range(0..script.scene.members);
    let command = |words: &[&str], below: PathBuf| {
        What::Command(member, words.iter().map(|&word| word.to_owned()).collect(), below)
    };
    let time = random.random_range(200..3_000);
    let place = random_place(random, script);
    let options = [
        "settle=0s",
        "settle=2s",
        "promote=true",
        "drain_streams=1",
        "drain_policy=newest",
        "high=3%,low=1%",
        "high=90%,low=80%",
    ];
    match random.random_range(0..40) {
        0..14 => What::Kill(member),
        14..17 => command(&["evict", "--all"], PathBuf::new()),
        17 => command(&["evict"], place),
        18 => command(&["stage"], place),
        19 => command(&["stage", "--wait"], PathBuf::from("**/a")),
        20 => command(&["pin"], place),
        21 => command(&["unpin"], place),
        22 => command(&["queue", "--front"], place),
        23 => command(&["drain"], PathBuf::new()),
        24 => command(&["sync"], PathBuf::new()),
        25 => command(&["reload", "-o", random_of(random, &options)], PathBuf::new()),
        26 => command(&["status"], PathBuf::new()),
        27 => command(&["verify"], place),
        28..31 => What::Paused(member, time),
        31..33 => What::ReadOnly(time),
        33..35 => What::Full(time),
        35..37 => What::Frozen(time),
        _ if script.scene.has_layer => What::Hung(time),
        _ => What::Kill(member),
    }
}

/// The directory of a process, or something in it.
fn random_place(random: &mut Xoshiro256PlusPlus, script: &Script) -> PathBuf {
    let top = PathBuf::from(subtree(random.random_range(0..script.actors.len())));
    if random.random_bool(0.5) { top } else { top.join(random_of(random, &["a", "b", "c/a", "d/e", "f"])) }
}

//! The same on real mounts, sampled: calls of the daemon fail while applications work; when they no longer do, the daemon
//! goes on by itself, or after a start where a sync on the fast tier failed.

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::RngExt;

use crate::failing::{dice, is_full_run};
use crate::needs::{MOUNTS, needs};
use crate::rig::{Machine, Pristine};
use crate::script::{Failed, Player, Step, Target, brief, script};
use crate::traffic::ledger::Op;
use crate::traffic::tree;

type Check<T = ()> = Result<T, String>;

/// Plays on, whatever fails. How many calls of the application failed.
fn play(machine: &mut Machine, player: &mut Player) -> Check<u32> {
    let mut failed = 0;
    for paragraph in script() {
        for step in &paragraph {
            match step {
                Step::Do(op) => match player.play(machine, op) {
                    Ok(()) => continue,
                    Err(Failed::Impossible) => break,
                    Err(Failed::Errno(errno)) => {
                        failed += 1;
                        let seen = view(machine)?;
                        player.settle(op, &seen).map_err(|why| format!("after {}: {errno}: {why}", brief(op)))?;
                        break;
                    }
                },
                Step::Drain => {
                    if machine.drain().is_ok() {
                        player.drained();
                    }
                }
                Step::Evict => machine.evict(),
                Step::Look => drop(machine.tree()),
                Step::Bring(dir, read) => machine.bring(dir, read),
                Step::Read(path) if player.ledger.has(path) => match machine.read(path) {
                    Ok(found) => player.reads(path, &found)?,
                    Err(_) => failed += 1,
                },
                Step::Read(_) => {}
                Step::Fill(full) => machine.fill(*full),
                Step::Pin(path) => failed += u32::from(player.pin(machine, path).is_err()),
            }
        }
        if let Some(path) = player.open_file() {
            let close = Op::Close(path);
            if let Err(Failed::Errno(errno)) = player.play(machine, &close) {
                failed += 1;
                let seen = view(machine)?;
                player.settle(&close, &seen).map_err(|why| format!("after {}: {errno}: {why}", brief(&close)))?;
            }
        }
    }
    Ok(failed)
}

/// A look may meet the fault too; the next one does not.
fn view(machine: &mut Machine) -> Check<tree::Tree> {
    machine.tree().or_else(|_| machine.tree()).or_else(|_| machine.tree())
}

fn run(pristine: &Pristine, rule: &str) -> Check<(u32, bool)> {
    let mut machine = Machine::new(pristine);
    let mut player = Player::new();
    let record = machine.path("record");
    // A start that fails changes nothing: the next one goes on.
    let faults = format!("{rule} record={}", record.display());
    if !machine.start(&faults) {
        let status = machine.ended();
        if status.code() != Some(1) {
            return Err(format!("a start that failed ended with {status}\n{}", machine.log()));
        }
        if !machine.start("") {
            return Err(format!("no start after one that failed:\n{}", machine.log()));
        }
    }
    let failed = play(&mut machine, &mut player)?;
    let needs_a_start = machine.drain().is_err() || !machine.verdict().starts_with("SAFE");
    if needs_a_start {
        machine.kill();
        player.dead();
        player.change_behind(&mut [&mut machine]);
        if !machine.start("") {
            return Err(format!("no start after the faults:\n{}", machine.log()));
        }
    }
    let seen = view(&mut machine)?;
    player.shows(&seen)?;
    player.pins(&machine.pins()?)?;
    machine.drain().map_err(|errno| format!("the drain failed: {errno}"))?;
    let differences = tree::differences(&view(&mut machine)?, &machine.slow_tree());
    if !differences.is_empty() {
        return Err(format!("drained, but not equal:\n{}", differences.join("\n")));
    }
    let log = machine.log();
    if log.lines().count() > 120 || log.contains("panicked") {
        return Err(format!("the log is flooded, or tells of a panic:\n{log}"));
    }
    machine.leave();
    Ok((failed, needs_a_start))
}

#[test]
fn calls_that_fail_on_a_mount_lose_nothing() {
    needs!(MOUNTS);
    let calls = [
        "create",
        "rename",
        "write",
        "open",
        "sync",
        "sync_dir",
        "set_attr",
        "set_xattr",
        "stat",
        "link",
        "list",
        "read",
    ];
    const NUMBERS: [u64; 8] = [1, 2, 3, 5, 8, 13, 21, 34];
    const TIERS: [&str; 2] = ["fast", "slow"];
    let (mut rules, mut dice) = (Vec::new(), dice());
    for (at, call) in calls.iter().enumerate() {
        let mut wanted: Vec<_> = (0..NUMBERS.len()).flat_map(|number| TIERS.map(|tier| (number, tier))).collect();
        if !is_full_run() {
            wanted = vec![wanted.swap_remove(dice.random_range(0..wanted.len()))];
        }
        for (number, tier) in wanted {
            let what = ["EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS"][(at + number) % 5];
            rules.push(format!("at={tier}:{call}:{}:1:{what}", NUMBERS[number]));
        }
    }
    let wanted = rules.len();
    let pristine = Pristine::make();
    let (left, failures, told) = (Mutex::new(rules), Mutex::new(Vec::new()), Mutex::new((0, 0)));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some(rule) = left.lock().pop() else { return };
                    match run(&pristine, &rule) {
                        Ok((failed, restarted)) => {
                            let mut told = told.lock();
                            told.0 += failed;
                            told.1 += u32::from(restarted);
                        }
                        Err(why) => failures.lock().push(format!("{rule}: {why}")),
                    }
                }
            });
        }
    });
    let ((told, restarted), failures) = (told.into_inner(), failures.into_inner());
    println!("{wanted} runs, {told} calls of applications failed, {restarted} runs needed a start");
    assert!(failures.is_empty(), "{} runs failed:\n\n{}", failures.len(), failures.join("\n\n"));
}

/// The parts of `.dlio/stats.json` that tell of it.
fn told(machine: &Machine) -> (bool, u64) {
    let text = fs::read_to_string(machine.root().join(".dlio/stats.json")).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap();
    (stats["safety"]["fast_fails"].as_bool().unwrap(), stats["exceptions"]["spilled"].as_u64().unwrap())
}

#[test]
fn new_files_go_to_the_slow_tier_while_the_fast_one_fails() {
    needs!(MOUNTS);
    let pristine = Pristine::make();
    let bytes = vec![7; 300_000];
    for (rule, writes) in [("at=fast:create@pool:1:1:EIO", true), ("at=fast:write@pool:1:1:EIO", false)] {
        let mut machine = Machine::new(&pristine);
        assert!(machine.start(rule), "{}", machine.log());
        let root = machine.root();
        assert!(!told(&machine).0);
        let written = fs::write(root.join("first"), &bytes).map_err(|e| e.raw_os_error());
        assert_eq!(written, if writes { Ok(()) } else { Err(Some(nix::errno::Errno::EIO as i32)) }, "{rule}");
        fs::write(root.join("second"), &bytes).unwrap();
        assert!(fs::read(root.join("second")).unwrap() == bytes);
        assert_eq!(told(&machine), (true, 1 + u64::from(writes)), "{rule}");
        let verdict = machine.verdict();
        assert!(verdict.contains("FAST TIER FAILS: new files go to the slow tier"), "{verdict}");
        machine.drain().unwrap();
        assert!(fs::read(machine.tier("slow").join("second")).unwrap() == bytes);
        machine.leave();
    }
}

#[test]
fn what_the_fast_tier_cannot_read_any_more_is_read_from_the_slow_one() {
    needs!(MOUNTS);
    let pristine = Pristine::make();
    let mut machine = Machine::new(&pristine);
    let bytes = vec![7; 300_000];
    assert!(machine.start(""), "{}", machine.log());
    for name in ["clean", "gone"] {
        fs::write(machine.root().join(name), &bytes).unwrap();
    }
    machine.drain().unwrap();
    machine.leave();
    assert!(machine.start("at=fast:read@pool:1:*:EIO"), "{}", machine.log());
    let state = |name: &str| xattr::get(machine.root().join(name), "user.dlio.state").unwrap().unwrap();
    let mut gone = fs::File::open(machine.root().join("gone")).unwrap();
    fs::remove_file(machine.tier("slow").join("gone")).unwrap();
    let refused = gone.read(&mut [0; 10]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(nix::errno::Errno::EIO as i32));
    assert_eq!(state("gone"), b"clean", "what is left of it is all there is");
    assert!(fs::read(machine.root().join("clean")).unwrap() == bytes);
    assert_eq!(state("clean"), b"slow");
    assert!(told(&machine).0);
    drop(gone);
    machine.leave();
}

/// It was said that the slow tier is down.
#[test]
fn what_the_drain_cannot_read_is_told_of_the_fast_tier_and_is_tried_again() {
    needs!(MOUNTS);
    let pristine = Pristine::make();
    let mut machine = Machine::new(&pristine);
    let bytes = vec![7; 300_000];
    assert!(machine.start("at=fast:read@pool:1:2:EIO"), "{}", machine.log());
    fs::write(machine.root().join("new"), &bytes).unwrap();
    let mut verdict = machine.verdict();
    let patience = Instant::now() + Duration::from_secs(60);
    while !verdict.contains("FAST TIER FAILS") {
        assert!(Instant::now() < patience, "{verdict}");
        verdict = machine.verdict();
    }
    assert!(!verdict.contains("SLOW TIER DOWN"), "{verdict}");
    machine.drain().unwrap();
    assert!(fs::read(machine.tier("slow").join("new")).unwrap() == bytes);
    assert!(machine.log().contains("the fast tier fails to read or write"), "{}", machine.log());
    machine.leave();
}

/// The blocks are shared, or each piece is written past the cache: the first of these calls fails, or one in the middle
/// of the copy.
#[test]
fn a_copy_that_breaks_off_is_made_again() {
    needs!(MOUNTS);
    let pristine = Pristine::make();
    let bytes: Vec<u8> = (0..5 << 20).map(|n: u32| (n >> 12) as u8).collect();
    for rule in ["1:1:EIO", "2:1:EIO", "3:2:EIO", "4:1:short", "1:2:EOPNOTSUPP"] {
        let mut machine = Machine::new(&pristine);
        assert!(machine.start(&format!("at=slow:write@tmp:{rule}")), "{}", machine.log());
        fs::write(machine.root().join("new"), &bytes).unwrap();
        machine.drain().unwrap();
        assert!(fs::read(machine.tier("slow").join("new")).unwrap() == bytes, "{rule}");
        machine.leave();
    }
}

/// A slow tier that says that it has written what it has not: seen only by who asks for the bytes again. It lies about
/// the first write of several: the last one gives the copy its length. The first call of all shares the blocks of the
/// object; a lie about that is seen by the length, and the bytes are written.
#[test]
fn a_copy_that_the_slow_tier_gives_back_otherwise_is_made_again() {
    needs!(MOUNTS);
    let pristine = Pristine::make();
    let bytes = vec![7; 3 << 20];
    for (option, rule, is_found, is_right) in [
        ("verify=bytes", "at=slow:write@tmp:2:1:lie", true, true),
        ("verify=length", "at=slow:write@tmp:2:1:lie", false, false),
        ("verify=length", "at=slow:write@tmp:1:1:lie", false, true),
    ] {
        let mut machine = Machine::new(&pristine);
        let mut command = machine.command(&[]);
        command.args(["-o", option]);
        assert!(machine.start_as(command, rule), "{}", machine.log());
        fs::write(machine.root().join("new"), &bytes).unwrap();
        machine.drain().unwrap();
        assert_eq!(fs::read(machine.tier("slow").join("new")).unwrap() == bytes, is_right, "{option} {rule}");
        let found = machine.log().contains("returns other bytes than were written to it");
        assert_eq!(found, is_found, "{option} {rule}: {}", machine.log());
        machine.leave();
    }
}

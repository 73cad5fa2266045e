//! Stories of a slow tier that others use too: their names, their mounts, their clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlio_fs::config::{Config, DrainPolicy, Rules};
use dlio_fs::error::{Errno, Error};
use dlio_fs::stats::staging::{JobState, JobStatus};
use dlio_fs::tiers::disk::{Access, Kind, MetadataOrder, NewAttr, RenameMode};
use dlio_fs::tiers::{self, Cx, Evicted, Ino, OpenMode, Progress, ROOT, SetAttr, SlowTree, Tiers};

use crate::sim::{Lose, Op, SimClock, SimDisk};
use crate::stories::{Machine, WRITE, background, create, drain, name, read};
use crate::walk;

const SECOND: Duration = Duration::from_secs(1);
const REVALIDATE: Duration = Duration::from_secs(30);

fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.options.revalidate = REVALIDATE;
    machine.options.attribute_lifetime_slow = SECOND;
    machine
}

/// A slow tier with a clock of its own.
fn machine_with(clock: &Arc<SimClock>) -> Machine {
    let machine = machine();
    let slow = SimDisk::new("slow", MetadataOrder::Journaled, 1 << 30, &machine.power, clock);
    slow.settle();
    Machine { slow, ..machine }
}

/// A directory made through the mount, with one file, both on the slow tier.
fn directory(engine: &Tiers) -> Ino {
    let dir = engine.mkdir(&Cx::internal(), ROOT, &name("d"), 0o755, 0).unwrap().ino;
    engine.release(&Cx::internal(), create(engine, dir, "f", &[1; 50]).1);
    drain(engine);
    engine.recheck_step().unwrap();
    dir
}

/// A file of ours was renamed, or exchanged with another one, and before its version came to the slow tier somebody else made a file of its first
/// name. Ours was put beside that, but the rename went by the first name: the view had a file under its second name that the slow
/// tier did not have there, and everything counted as safe.
#[test]
fn a_file_that_a_conflict_moves_aside_is_moved_on_from_there() {
    for (exchanged, again) in [(false, false), (true, false), (true, true)] {
        let (machine, cx) = (machine(), Cx::internal());
        let slow = machine.slow.root();
        slow.mkdir(b"d", 0o755).unwrap();
        slow.create(b"b", 0o644).unwrap().write_at(b"old b", 0).unwrap();
        let engine = machine.open("boot");
        let d = engine.lookup(&cx, ROOT, &name("d")).unwrap().ino;
        engine.lookup(&cx, ROOT, &name("b")).unwrap();
        engine.release(&cx, create(&engine, d, "a", b"ours").1);
        engine.mkdir(&cx, ROOT, &name("between"), 0o755, 0).unwrap();
        let (to, mode) = if exchanged { ("b", RenameMode::Exchange) } else { ("c", RenameMode::Replace) };
        engine.rename(&cx, d, &name("a"), ROOT, &name(to), mode).unwrap();
        if again {
            engine.rename(&cx, d, &name("a"), ROOT, &name("c"), RenameMode::Replace).unwrap();
            engine.release(&cx, create(&engine, d, "a", b"another").1);
        }
        slow.dir(b"d").unwrap().create(b"a", 0o644).unwrap().write_at(b"theirs", 0).unwrap();
        (0..100).for_each(|_| second(&engine, &machine.clock));
        let (shown, slow) = (walk::view(&engine, &mut Vec::new()).unwrap(), machine.slow.image());
        assert!(shown == slow, "{exchanged} {again}: {}", shown.diff(&slow, "view", "slow"));
        assert_eq!(machine.on_slow(to).as_deref(), Some(&b"ours"[..]), "{exchanged} {again}");
        assert_eq!(machine.on_slow("c").is_some(), again || !exchanged);
        assert_eq!(engine.status().safety.events, 0);
    }
}

/// One second of the background.
fn second(engine: &Tiers, clock: &SimClock) {
    engine.seal_step().unwrap();
    while engine.drain_step().unwrap() == Progress::Did {}
    while engine.publish_step().unwrap() == Progress::Did {}
    engine.recheck_step().unwrap();
    engine.tick().unwrap();
    clock.advance(SECOND);
}

fn make(machine: &Machine, file: &str) {
    machine.slow.root().dir(b"d").unwrap().create(file.as_bytes(), 0o644).unwrap();
}

fn is_there(engine: &Tiers, dir: Ino, file: &str) -> bool {
    match engine.lookup(&Cx::internal(), dir, &name(file)) {
        Ok(attr) => {
            engine.forget(attr.ino, 1);
            true
        }
        Err(error) => {
            assert_eq!(error.errno(), Errno::ENOENT);
            false
        }
    }
}

fn listed(engine: &Tiers, dir: Ino) -> BTreeSet<String> {
    let listing = engine.list(&Cx::internal(), dir).unwrap();
    listing.entries.iter().skip(2).map(|entry| String::from_utf8(entry.name.clone()).unwrap()).collect()
}

/// In a directory made through the mount, where a file was written every second, what others made or removed was never seen: each name of
/// ours that was young kept the whole directory known in full. A write to such a name then became a conflict.
#[test]
fn names_that_others_change_are_seen_where_something_is_written_all_the_time() {
    let (machine, cx) = (machine(), Cx::internal());
    let engine = machine.open("boot");
    let dir = directory(&engine);
    for at in 0..100 {
        let ours = format!("ours{at}");
        engine.release(&cx, create(&engine, dir, &ours, &[1; 50]).1);
        let theirs = machine.slow.root().dir(b"d").unwrap();
        match at {
            20 => make(&machine, "theirs"),
            // In place of one that is known, and one less.
            21 => {
                make(&machine, "new");
                theirs.rename(b"new", &*theirs, b"f", RenameMode::Replace).unwrap();
            }
            22 => theirs.unlink(b"ours3").unwrap(),
            _ => {}
        }
        second(&engine, &machine.clock);
        let late = at >= 22 + REVALIDATE.as_secs();
        if late || at < 20 {
            let seen = (is_there(&engine, dir, "theirs"), is_there(&engine, dir, "ours3"));
            assert_eq!(seen, (late, !late && at >= 3), "after {at} s");
            let names = listed(&engine, dir);
            assert_eq!((names.contains("theirs"), names.contains("ours3")), seen, "after {at} s: {names:?}");
        }
    }
    let size = engine.lookup(&cx, dir, &name("f")).unwrap().size;
    assert_eq!((size, engine.status().exceptions.conflicts), (0, 0), "theirs is in its place");
}

/// A directory that nobody changes stays known in full as long as somebody asks for names in it: no look-up waits for the slow tier, and that
/// is asked once in a while, for the times of the directory. Listed it is only until these are settled.
#[test]
fn a_directory_that_nobody_changes_costs_one_look_in_a_while() {
    let machine = machine();
    let engine = machine.open("boot");
    let dir = directory(&engine);
    let calls = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&calls);
    for at in 0..1000 {
        if at == 200 {
            let counting = Arc::clone(&counting);
            machine.slow.before_calls(move || {
                counting.fetch_add(1, Ordering::Relaxed);
            });
        }
        let absent = engine.lookup(&Cx::fast_only(0, 0), dir, &name(&format!("absent{at}"))).unwrap_err();
        assert!(!matches!(absent, Error::NeedSlow), "after {at} s");
        second(&engine, &machine.clock);
    }
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls > 0 && calls <= 800 / 20, "{calls} calls in 800 s");
}

/// Nobody asks: nor does the background.
#[test]
fn a_directory_that_nobody_asks_for_costs_nothing() {
    let machine = machine();
    let engine = machine.open("boot");
    let dir = directory(&engine);
    for _ in 0..60 {
        second(&engine, &machine.clock);
    }
    make(&machine, "theirs");
    let calls = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&calls);
    machine.slow.before_calls(move || {
        counting.fetch_add(1, Ordering::Relaxed);
    });
    for _ in 0..60 {
        second(&engine, &machine.clock);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert!(is_there(&engine, dir, "theirs"));
}

/// The clock of the slow tier stands still while ours is published, the directory is listed and somebody else makes a name: the times say
/// that nothing has happened.
#[test]
fn times_that_are_too_coarse_to_tell_hide_no_name() {
    let clock = SimClock::stopped();
    let machine = machine_with(&clock);
    let engine = machine.open("boot");
    let dir = directory(&engine);
    for at in 0..100 {
        is_there(&engine, dir, "absent");
        second(&engine, &machine.clock);
        if at == 25 {
            make(&machine, "theirs");
            clock.advance(3 * SECOND);
        }
    }
    assert!(is_there(&engine, dir, "theirs"));
}

/// While the slow tier does not answer, the background waits for it: nothing ages, and who writes checkpoints does not notice.
#[test]
fn a_directory_stays_known_while_the_slow_tier_hangs() {
    let (machine, cx) = (machine(), Cx::fast_only(0, 0));
    let engine = machine.open("boot");
    let dir = directory(&engine);
    for at in 0..1000 {
        engine.tick().unwrap();
        let (_, file) = engine.create(&cx, dir, &name(&format!("ours{at}")), 0o644, 0, WRITE).unwrap();
        engine.flush(&cx, &file).unwrap();
        engine.release(&cx, file);
        machine.clock.advance(SECOND);
    }
}

/// Of ten first mounts that began at the same moment (`srun dlio-fs mount`) seven ended with another id of the slow tree than it had in
/// the end, one of them with a checkpoint in its fast tier, and were refused from then on. Here the second one goes its whole way between
/// any two calls of the first one; on a tier as it should be, on one without links, and on one that has only an exclusive create.
#[test]
fn two_first_mounts_at_once_agree_which_slow_tree_it_is() {
    for lacks in [&[][..], &["link"], &["link", "rename"]] {
        for at in 1.. {
            let machine = Machine::new();
            let other = SimDisk::new("other", MetadataOrder::Journaled, 1 << 30, &machine.power, &machine.clock);
            let in_the_way = move |op: &Op| {
                let making_id = op.path.starts_with(b".dlio-fs/id") && lacks.contains(&op.call);
                making_id.then_some(Errno::EINVAL)
            };
            machine.slow.inject(in_the_way);
            let calls = Arc::new(AtomicU64::new(0));
            let (counting, fast, slow) = (Arc::clone(&calls), other.clone(), machine.slow.clone());
            let (options, clock) = (machine.options.clone(), machine.clock.clone());
            let open_other = move || {
                tiers::open(fast.root(), slow.root(), SlowTree::Writable, options.clone(), clock.clone(), "boot")
            };
            let between = open_other.clone();
            machine.slow.before_calls(move || {
                if counting.fetch_add(1, Ordering::Relaxed) + 1 == at {
                    // Where only an exclusive create is left, it may find an id that is not written yet, and is refused for now.
                    let opened = between();
                    assert!(opened.is_ok() || lacks.len() == 2, "{at}: {:?}", opened.err());
                }
            });
            drop(machine.open("boot"));
            let all = calls.load(Ordering::Relaxed);
            machine.slow.before_calls(|| ());
            drop(machine.open("boot"));
            open_other().unwrap_or_else(|e| panic!("behind call {at}, without {lacks:?}: {e}"));
            if at > all {
                break;
            }
        }
    }
}

/// What has become of a job that stages everything, `seconds` later.
fn staged(engine: &Tiers, clocks: [&SimClock; 2], seconds: u64) -> JobStatus {
    let job = engine.stage("everything", vec![Vec::new()]).unwrap();
    for _ in 0..=seconds {
        for _ in 0..20 {
            engine.stage_step().unwrap();
        }
        clocks.iter().for_each(|clock| clock.advance(SECOND));
    }
    engine.staging_job(job).unwrap()
}

/// A file server whose clock was ten minutes ahead: its files were changed in the future, so they were never staged. Of one whose clock
/// was behind, a file that was just being changed was staged at once.
#[test]
fn whether_a_file_was_changed_a_moment_ago_is_told_by_the_slow_tiers_own_clock() {
    for (ahead, ours) in [(600, 0), (0, 600), (0, 0)] {
        let clock = SimClock::new();
        let machine = machine_with(&clock);
        clock.advance(ahead * SECOND);
        machine.clock.advance(ours * SECOND);
        let engine = machine.open("boot");
        machine.slow.root().create(b"old", 0o644).unwrap().write_at(&[1; 50], 0).unwrap();
        [&clock, &machine.clock].into_iter().for_each(|clock| clock.advance(5 * SECOND));
        machine.slow.root().create(b"new", 0o644).unwrap().write_at(&[1; 50], 0).unwrap();
        let job = staged(&engine, [&clock, &machine.clock], 0);
        assert_eq!((job.complete, job.pending, job.failed), (1, 1, 0), "ahead {ahead}, behind {ours}");
        let job = staged(&engine, [&clock, &machine.clock], 10);
        assert_eq!((job.state, job.failed), (JobState::Done, 0), "ahead {ahead}, behind {ours}");
        assert_eq!(engine.staging().copies, 2);
    }
}

/// The server's clock was set back: the file's time is in its own future, too. And a slow tier on which nothing can be made tells no time.
/// Then a file is staged that was the same a while ago.
#[test]
fn a_file_that_no_clock_tells_of_is_looked_at_twice() {
    for tells in [true, false] {
        let clock = SimClock::new();
        let machine = machine_with(&clock);
        let engine = machine.open("boot");
        if tells {
            clock.advance(3600 * SECOND);
        }
        machine.slow.root().create(b"f", 0o644).unwrap().write_at(&[1; 50], 0).unwrap();
        if tells {
            clock.set_back(3600 * SECOND);
        } else {
            machine.slow.inject(|op| (op.private && op.call == "create").then_some(Errno::EROFS));
        }
        let job = staged(&engine, [&clock, &machine.clock], 0);
        assert_eq!((job.complete, job.pending, job.failed), (0, 1, 0), "tells {tells}");
        let job = staged(&engine, [&clock, &machine.clock], 10);
        assert_eq!((job.state, job.failed, engine.staging().copies), (JobState::Done, 0, 1), "tells {tells}");
    }
}

/// Writes to a file at the root: a version behind the one that is there.
fn overwrite(engine: &Tiers, file: &str, bytes: &[u8]) {
    let cx = Cx::internal();
    let attr = engine.lookup(&cx, ROOT, &name(file)).unwrap();
    let file = engine.open(&cx, attr.ino, OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, bytes, 0, false).unwrap();
    engine.flush(&cx, &file).unwrap();
    engine.release(&cx, file);
    engine.forget(attr.ino, 1);
}

/// An NFS client cannot exchange names. There a look at the inode number alone decided whether a new version might take the name: what
/// somebody else had written into the file meanwhile was gone, without a conflict. And that look was answered from what the client
/// remembered.
#[test]
fn what_others_write_into_a_file_that_is_replaced_is_kept_where_nothing_is_exchanged() {
    for longer in [false, true] {
        let machine = machine();
        machine.slow.become_nfs();
        let engine = machine.open("boot");
        engine.release(&Cx::internal(), create(&engine, ROOT, "f", &[1; 50]).1);
        drain(&engine);
        overwrite(&engine, "f", &[2; 70]);
        machine.slow.believe(b"f");
        machine.clock.advance(SECOND);
        let theirs = machine.slow.root().open(b"f", Access::ReadWrite).unwrap();
        theirs.write_at(&[3; 50], if longer { 50 } else { 0 }).unwrap();
        drop(theirs);
        drain(&engine);
        assert_eq!(engine.status().exceptions.conflicts, 1, "longer: {longer}");
        let there = machine.on_slow("f").unwrap();
        assert!(there.ends_with(&[3; 50]) && there.len() == if longer { 100 } else { 50 }, "{there:?}");
        let names = machine.slow.root().list().unwrap().into_iter().map(|entry| entry.name);
        let beside: Vec<_> = names.filter(|name| name.starts_with(b"f.dlio-conflict-")).collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
        assert_eq!(machine.on_slow(std::str::from_utf8(&beside[0]).unwrap()).unwrap(), [2; 70]);
    }
}

/// Where somebody else's keeps its name, ours is beside it. That was not the file any more that it had been: whoever had it open held an object
/// that never became clean; and as long as the kernel remembered the file, it had no bytes, under its old name or its new one.
#[test]
fn what_a_conflict_has_put_beside_shows_the_bytes_it_has() {
    for (nfs, open, anew) in (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)) {
        let case = format!("nfs: {nfs}, open: {open}, a new file: {anew}");
        let machine = machine();
        if nfs {
            machine.slow.become_nfs();
        }
        let (engine, cx) = (machine.open("boot"), Cx::internal());
        engine.release(&cx, create(&engine, ROOT, "f", &[1; 50]).1);
        drain(&engine);
        // The kernel keeps its references to both.
        let (ino, file) = if anew {
            let made = create(&engine, ROOT, "f.tmp", &[2; 70]);
            engine.rename(&cx, ROOT, &name("f.tmp"), ROOT, &name("f"), RenameMode::Replace).unwrap();
            made
        } else {
            let ino = engine.lookup(&cx, ROOT, &name("f")).unwrap().ino;
            let file = engine.open(&cx, ino, OpenMode { truncate: true, ..WRITE }).unwrap();
            engine.write(&cx, &file, &[2; 70], 0, false).unwrap();
            engine.flush(&cx, &file).unwrap();
            (ino, file)
        };
        let mut held = Some(file);
        if !open {
            held.take().into_iter().for_each(|file| engine.release(&cx, file));
        }
        write_theirs(&machine);
        drain(&engine);
        assert_eq!(engine.status().exceptions.conflicts, 1, "{case}");
        let beside = beside(&engine).pop().unwrap();
        let look = |when: &str, bytes: &[u8]| {
            let size = |file: &str| engine.lookup(&cx, ROOT, &name(file)).unwrap().size;
            assert_eq!((size(&beside), size("f")), (bytes.len() as u64, 50), "{case}, {when}");
            assert_eq!((read(&engine, &beside), read(&engine, "f")), (bytes.to_vec(), vec![3; 50]), "{case}, {when}");
            let known = engine.getattr(&cx, ino).unwrap();
            assert_eq!((known.size, known.nlink), (bytes.len() as u64, 1), "{case}, {when}, by the number it had");
        };
        assert_eq!(engine.getattr(&cx, ino).unwrap().size, 70, "{case}, before anybody looks");
        let mut bytes = vec![2; 70];
        if let Some(file) = held {
            // Nobody has looked up the new name.
            engine.write(&cx, &file, &[4; 5], 70, false).unwrap();
            engine.flush(&cx, &file).unwrap();
            engine.release(&cx, file);
            bytes.extend([4; 5]);
        }
        look("at once", &bytes);
        background(&engine, &machine.clock);
        assert_eq!(engine.evict_now(&cx, ino).unwrap(), Evicted::Gone(bytes.len() as u64), "{case}");
        look("when the fast tier has let go of it", &bytes);
        assert_eq!(machine.on_slow(&beside).unwrap(), bytes, "{case}");
        let status = engine.status();
        assert_eq!((status.safety.files, status.exceptions.conflicts), (0, 1), "{case}");
    }
}

/// A newer version of it replaces the one before, as anywhere. As long as each was put beside on its own, the last one had no bytes while the
/// kernel remembered the file.
#[test]
fn a_newer_version_follows_to_where_a_conflict_has_put_the_file() {
    for nfs in [false, true] {
        let machine = machine();
        if nfs {
            machine.slow.become_nfs();
        }
        let (engine, cx) = (machine.open("boot"), Cx::internal());
        engine.release(&cx, create(&engine, ROOT, "f", &[1; 50]).1);
        drain(&engine);
        for (byte, size) in [(2, 70), (4, 90)] {
            overwrite(&engine, "f", &vec![byte; size]);
            machine.clock.advance(SECOND);
        }
        write_theirs(&machine);
        drain(&engine);
        let beside = beside(&engine);
        let size = |file: &String| engine.lookup(&cx, ROOT, &name(file)).unwrap().size;
        assert_eq!(beside.iter().map(size).collect::<Vec<_>>(), [90], "nfs: {nfs}, {beside:?}");
        assert_eq!(read(&engine, &beside[0]), [4; 90]);
        assert_eq!(read(&engine, "f"), [3; 50]);
        background(&engine, &machine.clock);
        assert_eq!(beside.iter().map(size).collect::<Vec<_>>(), [90], "later, nfs: {nfs}");
        assert_eq!((engine.status().safety.files, engine.status().exceptions.conflicts), (0, 1));
    }
}

/// The second one goes to the slow tier together with another file, of which an older version is in front of it and a newer one behind. It was
/// on the fast tier only, the view showed it under both names, and it counted as safe.
#[test]
fn a_version_that_goes_with_others_follows_the_one_before_it() {
    let (mut machine, cx) = (machine(), Cx::internal());
    let config = Config { drain_policy: DrainPolicy::Newest, ..Config::default() };
    machine.options.rules = Rules::new(&config).unwrap();
    let engine = machine.open("boot");
    engine.release(&cx, create(&engine, ROOT, "f", &[1; 50]).1);
    machine.slow.root().create(b"f", 0o644).unwrap().write_at(b"theirs", 0).unwrap();
    while engine.seal_step().unwrap() == Progress::Did {}
    engine.release(&cx, create(&engine, ROOT, "with", &[2; 50]).1);
    overwrite(&engine, "f", &[3; 60]);
    while engine.drain_step().unwrap() == Progress::Did {}
    overwrite(&engine, "with", &[4; 50]);
    drain(&engine);
    background(&engine, &machine.clock);
    let (shown, slow) = (walk::view(&engine, &mut Vec::new()).unwrap(), machine.slow.image());
    assert!(shown == slow, "{}", shown.diff(&slow, "view", "slow"));
    assert_eq!(machine.on_slow("f").as_deref(), Some(&b"theirs"[..]));
    let beside = beside(&engine);
    assert_eq!(beside.iter().map(|file| read(&engine, file)).collect::<Vec<_>>(), [vec![3; 60]]);
}

/// The same, where the machine stops at any call of publishing or of what is written afterwards.
#[test]
fn what_is_written_to_what_a_conflict_has_put_beside_outlives_a_stop() {
    for lose in [Lose::Nothing, Lose::Unsynced] {
        assert!((1..1000).any(|stop| !is_kept_beside(lose, stop)), "it never got to its end");
    }
}

/// `false`: it was done to the end.
fn is_kept_beside(lose: Lose, stop: u64) -> bool {
    let (mut machine, cx) = (machine(), Cx::internal());
    let engine = machine.open("before");
    engine.release(&cx, create(&engine, ROOT, "f", &[1; 50]).1);
    drain(&engine);
    let ino = engine.lookup(&cx, ROOT, &name("f")).unwrap().ino;
    let file = engine.open(&cx, ino, OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, &[2; 70], 0, false).unwrap();
    engine.flush(&cx, &file).unwrap();
    engine.sync_fast().unwrap();
    // Another file: a start that finishes what a crash cut off compares no more than the number.
    let theirs = machine.slow.root();
    theirs.create(b"theirs", 0o644).unwrap().write_at(&[3; 50], 0).unwrap();
    theirs.rename(b"theirs", &*theirs, b"f", RenameMode::Replace).unwrap();
    machine.slow.settle();
    machine.power.fail_after(stop, &mut machine.rng);
    let go_on = || {
        while matches!((engine.drain_step(), engine.publish_step()), (Ok(Progress::Did), _) | (_, Ok(Progress::Did))) {}
    };
    go_on();
    let written = engine.write(&cx, &file, &[4; 5], 70, false);
    let acknowledged = written.and_then(|_| engine.fsync(&cx, &file)).is_ok();
    engine.release(&cx, file);
    go_on();
    let stopped = machine.power.is_gone();
    machine.power.restore();
    machine.crash(engine, lose);

    let engine = machine.open(if lose == Lose::Nothing { "before" } else { "after" });
    drain(&engine);
    let beside = beside(&engine);
    // Behind a stop between the exchange and the look at what came out ours has the name, and theirs is put aside in `tmp`.
    let ours: Vec<_> =
        beside.iter().map(String::as_str).chain(["f"]).map(|file| machine.on_slow(file).unwrap()).collect();
    let (first, second) = (vec![2; 70], [vec![2; 70], vec![4; 5]].concat());
    let kept = ours.contains(&second) || (!acknowledged && ours.contains(&first));
    assert!(kept, "{lose:?}, stop {stop}, acknowledged: {acknowledged}: {ours:?}");
    assert!(beside.is_empty() || ours.contains(&vec![3; 50]), "{lose:?}, stop {stop}: {ours:?}");
    stopped
}

/// What was written behind the version that a conflict has put beside, and was no event yet, went with the last close: the file had no name.
#[test]
fn what_was_not_closed_yet_at_a_conflict_goes_beside_with_it() {
    let (kill, cut) = (Some(Lose::Nothing), Some(Lose::Unsynced));
    let ways = [(true, None), (false, kill), (true, kill), (false, cut), (true, cut)];
    let since = ["nothing", "mode", "link", "version"];
    let ways = ways.into_iter().flat_map(|(closed, stop)| since.map(|since| (closed, stop, since)));
    for (closed, stop, since) in ways {
        let (mut machine, cx) = (machine(), Cx::internal());
        let mut engine = machine.open("boot");
        engine.release(&cx, create(&engine, ROOT, "f", &[1; 50]).1);
        drain(&engine);
        let ino = engine.lookup(&cx, ROOT, &name("f")).unwrap().ino;
        let file = engine.open(&cx, ino, OpenMode { truncate: true, ..WRITE }).unwrap();
        engine.write(&cx, &file, &[2; 70], 0, false).unwrap();
        engine.flush(&cx, &file).unwrap();
        // Pending behind the version that meets theirs.
        match since {
            "mode" => {
                let attr = NewAttr { perm: Some(0o640), ..NewAttr::default() };
                engine.setattr(&cx, ino, &SetAttr { attr, size: None }).unwrap();
            }
            "link" => drop(engine.link(&cx, ino, ROOT, &name("second")).unwrap()),
            "version" => {
                // The one before is copied, and goes by itself.
                while [engine.seal_step(), engine.drain_step()].into_iter().any(|step| step.unwrap() == Progress::Did) {
                }
                engine.write(&cx, &file, &[2; 70], 0, false).unwrap();
                engine.flush(&cx, &file).unwrap();
            }
            _ => {}
        }
        engine.write(&cx, &file, &[4; 5], 70, false).unwrap();
        write_theirs(&machine);
        for _ in 0..200 {
            second(&engine, &machine.clock);
        }
        assert_eq!(engine.status().exceptions.conflicts, 1, "{since}");
        let name_of = beside(&engine).pop().unwrap();
        match closed {
            true => engine.release(&cx, file),
            false => drop(file),
        }
        if let Some(lose) = stop {
            machine.crash(engine, lose);
            engine = machine.open(if lose == Lose::Nothing { "boot" } else { "after" });
        }
        let case = format!("closed: {closed}, stopped: {stop:?}, since: {since}");
        let size = engine.lookup(&cx, ROOT, &name(&name_of)).unwrap().size;
        // A power cut may take what was not synced.
        assert!(size == 75 || stop == cut && size == 70, "{case}: {size}");
        assert_eq!(read(&engine, "f"), [3; 50], "{case}");
        drain(&engine);
        let kept: Vec<_> = beside(&engine).iter().map(|file| machine.on_slow(file).unwrap()).collect();
        assert_eq!(kept, [[vec![2; 70], vec![4; size as usize - 70]].concat()], "{case}");
        assert_eq!(machine.on_slow("f").unwrap(), [3; 50], "{case}");
    }
}

/// The note of what the slow tier had under the name stands in front of the `bind`: a start read nothing in front of what is published already, and
/// took their file for an earlier version of ours.
#[test]
fn what_others_make_at_a_name_is_kept_where_the_file_was_begun_in_front_of_what_is_published() {
    let (mut machine, cx) = (machine(), Cx::internal());
    let engine = machine.open("boot");
    let (attr, file) = engine.create(&cx, ROOT, &name("f"), 0o644, 0, WRITE).unwrap();
    engine.write(&cx, &file, &[1; 50], 0, false).unwrap();
    engine.mkdir(&cx, ROOT, &name("d"), 0o755, 0).unwrap();
    engine.flush(&cx, &file).unwrap();
    engine.release(&cx, file);
    engine.forget(attr.ino, 1);
    machine.clock.advance(SECOND);
    engine.publish_step().unwrap();
    assert!(machine.slow.root().stat(b"d").is_ok() && machine.on_slow("f").is_none());
    machine.slow.root().create(b"f", 0o644).unwrap().write_at(b"theirs", 0).unwrap();
    machine.crash(engine, Lose::Nothing);
    let engine = machine.open("boot");
    drain(&engine);
    assert_eq!(machine.on_slow("f").as_deref(), Some(&b"theirs"[..]));
    assert_eq!(beside(&engine).iter().map(|file| read(&engine, file)).collect::<Vec<_>>(), [vec![1; 50]]);
}

/// Somebody else writes 50 bytes into `f`.
fn write_theirs(machine: &Machine) {
    machine.clock.advance(SECOND);
    machine.slow.root().open(b"f", Access::ReadWrite).unwrap().write_at(&[3; 50], 0).unwrap();
}

/// The names at the root that conflicts have made.
fn beside(engine: &Tiers) -> Vec<String> {
    listed(engine, ROOT).into_iter().filter(|name| name.starts_with("f.dlio-conflict-")).collect()
}

/// A file that ours replace, with nobody else about, is no conflict there.
#[test]
fn what_we_replace_is_no_conflict_where_nothing_is_exchanged() {
    let machine = machine();
    machine.slow.become_nfs();
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    for round in 1..6 {
        match round {
            1 => engine.release(&cx, create(&engine, ROOT, "f", &[1; 50]).1),
            _ => overwrite(&engine, "f", &[round; 50]),
        }
        if round == 3 {
            let ino = engine.lookup(&cx, ROOT, &name("f")).unwrap().ino;
            engine.link(&cx, ino, ROOT, &name(&format!("second{round}"))).unwrap();
            engine.unlink(&cx, ROOT, &name(&format!("second{round}"))).unwrap();
            let attr = NewAttr { perm: Some(0o600), ..NewAttr::default() };
            engine.setattr(&cx, ino, &SetAttr { attr, size: None }).unwrap();
        }
        background(&engine, &machine.clock);
        assert_eq!(machine.on_slow("f").unwrap(), [round; 50]);
    }
    assert_eq!(engine.status().exceptions.conflicts, 0);
}

/// Somebody else puts a directory, or a link, in the place of a file that the kernel takes for a file for a moment still. Its open was answered
/// with EINVAL, which no file system says to it, and not with ESTALE, on which the kernel looks the name up once more.
#[test]
fn what_others_put_in_the_place_of_a_file_is_looked_up_at_its_open() {
    for is_dir in [true, false] {
        let machine = machine();
        let slow = machine.slow.root();
        slow.create(b"f", 0o644).unwrap().write_at(&[1; 50], 0).unwrap();
        let (engine, cx) = (machine.open("boot"), Cx::internal());
        let file = engine.lookup(&cx, ROOT, &name("f")).unwrap();
        slow.unlink(b"f").unwrap();
        if is_dir { slow.mkdir(b"f", 0o755) } else { slow.symlink(b"f", b"elsewhere") }.unwrap();
        let opened = engine.open(&cx, file.ino, OpenMode::default());
        assert_eq!(opened.map(drop).map_err(|e| e.errno()), Err(Errno::ESTALE), "a directory: {is_dir}");
        let kind = engine.lookup(&cx, ROOT, &name("f")).unwrap().kind;
        assert_eq!(kind, if is_dir { Kind::Dir } else { Kind::Symlink });
    }
}

/// An exchange was answered over a slow tier that exchanges nothing (NFS, most FUSE file systems). No step publishes it there: it held its
/// user, with everything changed later, for ever. It is refused as on the tier itself.
#[test]
fn an_exchange_is_refused_where_nothing_is_exchanged() {
    let machine = machine();
    machine.slow.become_nfs();
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    engine.release(&cx, create(&engine, ROOT, "a", &[1; 50]).1);
    engine.mkdir(&cx, ROOT, &name("b"), 0o755, 0).unwrap();
    let exchange = || engine.rename(&cx, ROOT, &name("a"), ROOT, &name("b"), RenameMode::Exchange);
    // Whether the tier has them by now or not.
    assert_eq!(exchange().map_err(|e| e.errno()), Err(Errno::EINVAL));
    drain(&engine);
    assert_eq!(exchange().map_err(|e| e.errno()), Err(Errno::EINVAL));
    drain(&engine);
    assert_eq!(machine.on_slow("a").unwrap(), [1; 50]);
}

/// While somebody reads a file through the mount that is on the slow tier only, an NFS client keeps it as `.nfs…` when it is removed or
/// replaced, and libfuse as `.fuse_hidden…`. That was listed; and a directory that was removed with it stayed there for good.
#[test]
fn a_file_that_is_read_while_it_is_removed_keeps_no_directory() {
    for become_one_that_keeps in [SimDisk::become_nfs, SimDisk::become_fuse] {
        remove_what_is_read(become_one_that_keeps);
    }
}

fn remove_what_is_read(become_one_that_keeps: fn(&SimDisk)) {
    let machine = machine();
    become_one_that_keeps(&machine.slow);
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    let dir = directory(&engine);
    engine.release(&cx, create(&engine, dir, "replaced", &[2; 50]).1);
    drain(&engine);
    let open = |file: &str| {
        let ino = engine.lookup(&cx, dir, &name(file)).unwrap().ino;
        engine.evict_now(&cx, ino).unwrap();
        engine.open(&cx, ino, OpenMode::default()).unwrap()
    };
    let (first, other) = (open("f"), open("replaced"));
    let mut bytes = [0; 50];
    for file in [&first, &other] {
        engine.read(&cx, file, &mut bytes[..10], 0).unwrap();
    }
    engine.release(&cx, create(&engine, dir, "new", &[3; 50]).1);
    engine.rename(&cx, dir, &name("new"), dir, &name("replaced"), RenameMode::Replace).unwrap();
    for _ in 0..3 * REVALIDATE.as_secs() {
        second(&engine, &machine.clock);
    }
    assert_eq!(listed(&engine, dir), BTreeSet::from(["f".to_owned(), "replaced".to_owned()]));
    for file in ["f", "replaced"] {
        engine.unlink(&cx, dir, &name(file)).unwrap();
    }
    engine.rmdir(&cx, ROOT, &name("d")).unwrap();
    background(&engine, &machine.clock);
    assert_eq!((engine.status().safety.events, engine.status().exceptions.conflicts), (0, 0));
    assert!(machine.slow.root().stat(b"d").is_err(), "it is gone");
    assert_eq!(engine.read(&cx, &first, &mut bytes, 0).unwrap(), 50, "and can be read on");
    assert_eq!(bytes, [1; 50]);
    engine.release(&cx, first);
    engine.release(&cx, other);
    background(&engine, &machine.clock);
    let ours = machine.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
    let left = ours.list().unwrap().into_iter().flat_map(|node| ours.dir(&node.name).unwrap().list().unwrap());
    let left: Vec<_> = left.map(|entry| String::from_utf8(entry.name).unwrap()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Somebody else removes a file, or the directory with it. An open said ESTALE, as it should, for the kernel looks the name up once more
/// then; but that was answered from what was known, and ESTALE went to the program, at a create, too.
#[test]
fn what_others_have_removed_is_looked_up_again() {
    let (machine, cx) = (machine(), Cx::internal());
    machine.slow.become_nfs();
    let engine = machine.open("boot");
    let dir = directory(&engine);
    let read = OpenMode::default();
    let ino = engine.lookup(&cx, dir, &name("f")).unwrap().ino;
    engine.evict_now(&cx, ino).unwrap();
    let theirs = machine.slow.root();
    theirs.dir(b"d").unwrap().unlink(b"f").unwrap();
    assert_eq!(engine.open(&cx, ino, read).unwrap_err().errno(), Errno::ESTALE);
    assert!(!is_there(&engine, dir, "f"), "the look-up that follows at once");
    engine.release(&cx, create(&engine, dir, "f", &[4; 50]).1);
    drain(&engine);
    // To be written: what it is born with is asked for first.
    for mode in [WRITE, OpenMode { truncate: true, ..WRITE }] {
        let ino = engine.lookup(&cx, dir, &name("f")).unwrap().ino;
        engine.evict_now(&cx, ino).unwrap();
        theirs.dir(b"d").unwrap().unlink(b"f").unwrap();
        assert_eq!(engine.open(&cx, ino, mode).unwrap_err().errno(), Errno::ESTALE);
        assert!(!is_there(&engine, dir, "f"));
        engine.release(&cx, create(&engine, dir, "f", &[4; 50]).1);
        drain(&engine);
    }
    // One that others have made, of which the attributes are asked for at each look-up.
    make(&machine, "theirs");
    for _ in 0..2 * REVALIDATE.as_secs() {
        is_there(&engine, dir, "theirs");
        second(&engine, &machine.clock);
    }
    assert!(is_there(&engine, dir, "theirs"));
    theirs.dir(b"d").unwrap().unlink(b"theirs").unwrap();
    machine.clock.advance(2 * SECOND);
    assert!(!is_there(&engine, dir, "theirs"));
    engine.release(&cx, create(&engine, dir, "theirs", &[5; 50]).1);
    drain(&engine);
    let ino = engine.lookup(&cx, dir, &name("f")).unwrap().ino;
    engine.evict_now(&cx, ino).unwrap();
    let below = theirs.dir(b"d").unwrap();
    below.unlink(b"f").unwrap();
    below.unlink(b"theirs").unwrap();
    theirs.rmdir(b"d").unwrap();
    assert_eq!(engine.open(&cx, ino, read).unwrap_err().errno(), Errno::ESTALE);
    assert!(!is_there(&engine, ROOT, "d"), "nor is its directory");
    assert_eq!(engine.status().exceptions.conflicts, 0);
}

/// With the server away whoever does not own a directory could make nothing in it: the kernel asked for its ACL first, and that was asked of
/// the server, which was known to have none.
#[test]
fn nobody_waits_for_acls_of_a_tier_that_has_none() {
    let machine = machine();
    machine.slow.inject(|op| (op.call == "set_xattr").then_some(Errno::EOPNOTSUPP));
    let engine = machine.open("boot");
    assert!(!engine.abilities().acls);
    let list = engine.get_xattr(&Cx::fast_only(0, 0), ROOT, b"system.posix_acl_access");
    assert!(matches!(list, Ok(None)), "{list:?}");
}

const ACL: &[u8] = b"system.posix_acl_access";

/// Of each directory on the way the kernel asks for the ACL, unless its owner asks: with root squashed on NFS nobody is. Each time that was asked
/// of the slow tier, so without the server not even a file on the fast tier could be read.
#[test]
fn the_acls_of_directories_are_known_while_the_slow_tier_does_not_answer() {
    let (machine, cx, at_once) = (machine(), Cx::internal(), Cx::fast_only(0, 0));
    machine.slow.root().mkdir(b"theirs", 0o755).unwrap();
    let engine = machine.open("boot");
    let dir = directory(&engine);
    let theirs = engine.lookup(&cx, ROOT, &name("theirs")).unwrap().ino;
    let acl = |ino: Ino| engine.get_xattr(&at_once, ino, ACL);
    // What the mount has made is as it made it.
    assert_eq!(acl(dir).unwrap(), None);
    for (ino, lasts) in [(dir, REVALIDATE), (theirs, SECOND), (ROOT, SECOND)] {
        machine.clock.advance(2 * REVALIDATE);
        assert!(matches!(acl(ino), Err(Error::NeedSlow)), "others may have changed it");
        assert_eq!(engine.get_xattr(&cx, ino, ACL).unwrap(), None);
        machine.clock.advance(lasts / 2);
        assert_eq!(acl(ino).unwrap(), None, "for as long as its attributes would hold");
    }
    machine.clock.advance(2 * REVALIDATE);
    assert_eq!(engine.acl_in_memory(dir, ACL, true), Some(None), "for whoever has waited for long enough");
    engine.report_silence("look-up", 10 * SECOND);
    for ino in [dir, theirs, ROOT] {
        assert_eq!(acl(ino).unwrap(), None);
    }
}

/// And where somebody else has removed a file, that question, which comes before the open, was answered with ENOENT: the kernel then looked up
/// no name, and made no file.
#[test]
fn who_asks_for_the_acl_of_what_others_have_removed_is_told_to_look_again() {
    let (machine, cx) = (machine(), Cx::internal());
    let engine = machine.open("boot");
    let dir = directory(&engine);
    let ino = engine.lookup(&cx, dir, &name("f")).unwrap().ino;
    engine.evict_now(&cx, ino).unwrap();
    machine.slow.root().dir(b"d").unwrap().unlink(b"f").unwrap();
    assert_eq!(engine.get_xattr(&cx, ino, ACL).unwrap_err().errno(), Errno::ESTALE);
    assert!(!is_there(&engine, dir, "f"), "the look-up that follows at once");
    engine.release(&cx, create(&engine, dir, "f", &[4; 50]).1);
    drain(&engine);
    assert_eq!(engine.status().exceptions.conflicts, 0);
}

/// A file server is away. In a directory that was listed shortly before, the root for instance, no checkpoint could be made: each new name
/// waited for the server, although the listing had said what there is.
#[test]
fn what_a_listing_did_not_show_can_be_made_while_the_slow_tier_does_not_answer() {
    let (machine, cx) = (machine(), Cx::fast_only(0, 0));
    let engine = machine.open("boot");
    directory(&engine);
    machine.slow.root().create(b"theirs", 0o644).unwrap();
    let needs_slow = |file: &str| matches!(engine.lookup(&cx, ROOT, &name(file)), Err(Error::NeedSlow));
    assert!(needs_slow("ckpt1") && listed(&engine, ROOT).contains("theirs"));
    machine.clock.advance(60 * SECOND);
    engine.tick().unwrap();
    engine.recheck_step().unwrap();
    assert!(needs_slow("ckpt1"), "as long as it answers, it is asked");
    engine.report_silence("drain", SECOND);
    for _ in 0..3 {
        assert!(needs_slow("theirs"), "it is there, and nothing more is known of it");
        let made = engine.create(&cx, ROOT, &name("ckpt.tmp"), 0o644, 0, WRITE);
        let (_, file) = made.map_err(|e| format!("{e}")).unwrap();
        engine.flush(&cx, &file).unwrap();
        engine.release(&cx, file);
        engine.rename(&cx, ROOT, &name("ckpt.tmp"), ROOT, &name("ckpt1"), RenameMode::Replace).unwrap();
    }
    engine.report("drain", None);
    drain(&engine);
    assert!(machine.on_slow("ckpt1").is_some());
    // A name of ours that nobody remembers any more is in no listing; and a listing is not believed for ever.
    let ino = engine.lookup(&Cx::internal(), ROOT, &name("ckpt1")).unwrap().ino;
    engine.forget(ino, 2);
    engine.evict_now(&Cx::internal(), ino).unwrap();
    for _ in 0..3 {
        machine.clock.advance(60 * SECOND);
        engine.tick().unwrap();
    }
    engine.report_silence("drain", SECOND);
    assert!(!matches!(engine.lookup(&cx, ROOT, &name("ckpt1")), Err(Error::Posix(Errno::ENOENT))));
    assert!(!needs_slow("new"));
    engine.report("drain", None);
    machine.clock.advance(600 * SECOND);
    engine.recheck_step().unwrap();
    engine.report_silence("drain", SECOND);
    assert!(needs_slow("news"));
}

/// Two files of the slow tier, one with an attribute and an access that the other one must not get; whoever may write the directory
/// exchanges their names before call number `at`. Says whether there were so many calls.
fn exchanged_at(at: u64, act: impl FnOnce(&Machine, &Tiers, Ino)) -> bool {
    let machine = machine();
    let root = machine.slow.root();
    for (file, bytes, perm) in [("hers", b"hers", 0o644), ("secret", b"root", 0o600)] {
        let made = root.create(file.as_bytes(), perm).unwrap();
        made.write_at(bytes, 0).unwrap();
        made.set_xattr(b"user.of", bytes).unwrap();
    }
    machine.slow.settle();
    let secret = root.stat(b"secret").unwrap();
    let engine = machine.open("boot");
    let hers = engine.lookup(&Cx::internal(), ROOT, &name("hers")).unwrap().ino;
    let calls = Arc::new(AtomicU64::new(0));
    let (counting, exchanging) = (Arc::clone(&calls), root.clone());
    machine.slow.before_calls(move || {
        if counting.fetch_add(1, Ordering::Relaxed) == at {
            exchanging.rename(b"hers", &*exchanging, b"secret", RenameMode::Exchange).unwrap();
        }
    });
    act(&machine, &engine, hers);
    let reached = calls.load(Ordering::Relaxed) > at;
    machine.slow.before_calls(|| {});
    let held = [&b"hers"[..], b"secret"].map(|name| root.inode(name).unwrap());
    let held = held.into_iter().find(|inode| inode.stat().unwrap().ino == secret.ino).expect("it is there");
    let is = held.stat().unwrap();
    assert_eq!((is.perm, is.uid, is.nlink), (0o600, secret.uid, 1), "exchanged before call {at}");
    assert_eq!(held.get_xattr(b"user.of").unwrap().as_deref(), Some(&b"root"[..]), "exchanged before call {at}");
    reached
}

/// Publishing compared the number of an inode by its name, and changed it by its name: who exchanged two names in a loop, and changed the
/// mode of hers through the mount, had root's program set-id within seconds.
#[test]
fn what_is_given_another_name_meanwhile_is_not_changed() {
    let cx = Cx::internal();
    let change = |_: &Machine, engine: &Tiers, hers: Ino| {
        let new = NewAttr { perm: Some(0o4755), uid: Some(77), ..NewAttr::default() };
        engine.setattr(&cx, hers, &SetAttr { size: None, attr: new }).ok();
        // It may be told that this is not hers any more.
        engine.set_xattr(&cx, hers, b"user.of", b"mine", false, false).ok();
        engine.link(&cx, hers, ROOT, &name("second")).ok();
        engine.sync_fast().unwrap();
        for _ in 0..20 {
            engine.publish_step().unwrap();
        }
        assert_eq!(engine.status().safety.events, 0);
    };
    let calls = (0..).take_while(|at| exchanged_at(*at, change)).count();
    assert!(calls > 20, "{calls}");
}

/// Between the look at a name that was free and the rename to it, somebody else made a file there: it was replaced, and nobody was told.
#[test]
fn what_others_make_at_the_new_name_of_ours_is_kept() {
    let made_at = |at: u64| {
        let (machine, cx) = (machine(), Cx::internal());
        let root = machine.slow.root();
        root.create(b"old", 0o644).unwrap().write_at(b"ours", 0).unwrap();
        machine.slow.settle();
        let engine = machine.open("boot");
        engine.lookup(&cx, ROOT, &name("old")).unwrap();
        engine.rename(&cx, ROOT, &name("old"), ROOT, &name("new"), RenameMode::Replace).unwrap();
        engine.sync_fast().unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let made = Arc::new(AtomicBool::new(false));
        let (counting, making, is_made) = (Arc::clone(&calls), root.clone(), Arc::clone(&made));
        machine.slow.before_calls(move || {
            if counting.fetch_add(1, Ordering::Relaxed) == at {
                // Behind the rename the name is taken.
                let file = making.create(b"new", 0o644);
                is_made.store(file.and_then(|file| file.write_at(b"theirs", 0)).is_ok(), Ordering::Relaxed);
            }
        });
        for _ in 0..20 {
            engine.publish_step().unwrap();
        }
        machine.slow.before_calls(|| {});
        let files = root.list().unwrap().into_iter().filter(|entry| entry.kind == Kind::File);
        let on_slow = |name: &[u8]| machine.on_slow(std::str::from_utf8(name).unwrap()).unwrap();
        let found: Vec<Vec<u8>> = files.map(|entry| on_slow(&entry.name)).collect();
        let made = made.load(Ordering::Relaxed);
        let all_there = found.contains(&b"ours".to_vec()) && found.contains(&b"theirs".to_vec()) == made;
        assert!(all_there, "made before call {at}: {made}, {found:?}");
        (made, calls.load(Ordering::Relaxed) > at)
    };
    let all: Vec<(bool, bool)> = (0..).map(made_at).take_while(|(_, reached)| *reached).collect();
    assert!(all.iter().filter(|(made, _)| *made).count() > 3, "{all:?}");
}

/// Somebody else wrote into a file of ours whose rename was pending. The rename gave the clean file the fingerprint of what was there then, so what
/// he wrote counted as ours: the view had the former bytes for good, and all was safe. So it was with a mode.
#[test]
fn what_others_write_into_a_file_is_found_behind_a_step_of_ours() {
    for renames in [true, false] {
        let (machine, cx) = (machine(), Cx::internal());
        let engine = machine.open("boot");
        let (ino, file) = create(&engine, ROOT, "file", b"ours");
        engine.release(&cx, file);
        drain(&engine);
        let now = if renames { "other" } else { "file" };
        if renames {
            engine.rename(&cx, ROOT, &name("file"), ROOT, &name(now), RenameMode::Replace).unwrap();
        } else {
            let new = NewAttr { perm: Some(0o600), ..NewAttr::default() };
            engine.setattr(&cx, ino, &SetAttr { attr: new, size: None }).unwrap();
        }
        machine.slow.root().open(b"file", Access::ReadWrite).unwrap().write_at(b"hers", 0).unwrap();
        background(&engine, &machine.clock);
        assert_eq!(machine.on_slow(now).as_deref(), Some(&b"hers"[..]));
        assert_eq!(read(&engine, now), b"hers", "renamed: {renames}");
    }
}

/// So it was with whom they gave it to, and with a mode: our step sets the time by which both would be noticed. Found by case 500678 of the
/// stranger's dice.
#[test]
fn whom_others_give_a_file_is_shown_behind_a_step_of_ours() {
    let theirs =
        [NewAttr { uid: Some(900), ..NewAttr::default() }, NewAttr { perm: Some(0o600), ..NewAttr::default() }];
    for new in theirs {
        let (machine, cx) = (machine(), Cx::internal());
        let engine = machine.open("boot");
        let (_, file) = create(&engine, ROOT, "file", b"ours");
        engine.release(&cx, file);
        drain(&engine);
        machine.slow.root().set_attr(b"file", &new).unwrap();
        engine.rename(&cx, ROOT, &name("file"), ROOT, &name("other"), RenameMode::Replace).unwrap();
        background(&engine, &machine.clock);
        // It is noticed at an open.
        drop(walk::view(&engine, &mut Vec::new()));
        machine.clock.advance(Duration::from_secs(60));
        let found = walk::view(&engine, &mut Vec::new()).unwrap();
        let slow = machine.slow.image();
        assert!(found == slow, "{}", found.diff(&slow, "view", "slow"));
    }
}

/// Who asks for an attribute gets hers or an error, and never what has her name by then.
#[test]
fn what_is_given_another_name_meanwhile_is_not_shown() {
    let cx = Cx::internal();
    let ask = |_: &Machine, engine: &Tiers, hers: Ino| match engine.get_xattr(&cx, hers, b"user.of") {
        Ok(value) => assert_eq!(value.as_deref(), Some(&b"hers"[..])),
        Err(error) => assert_eq!(error.errno(), Errno::ESTALE),
    };
    let calls = (0..).take_while(|at| exchanged_at(*at, ask)).count();
    assert!(calls > 1, "{calls}");
}

/// The kernel lets in whom the file lets in that it knows under a name. Who exchanged the names in between read what is another's alone.
#[test]
fn what_is_given_another_name_meanwhile_is_not_opened_for_whom_the_one_before_let_in() {
    let cx = Cx::internal();
    let read = |engine: &Tiers, file: &tiers::OpenFile| {
        let mut bytes = [0; 4];
        match engine.read(&cx, file, &mut bytes, 0) {
            Ok(_) => assert_eq!(&bytes, b"hers"),
            Err(error) => assert_eq!(error.errno(), Errno::ESTALE),
        }
    };
    let mode = OpenMode::default();
    let open_and_read = |_: &Machine, engine: &Tiers, hers: Ino| match engine.open(&cx, hers, mode) {
        Ok(file) => {
            read(engine, &file);
            engine.release(&cx, file);
        }
        Err(error) => {
            assert_eq!(error.errno(), Errno::ESTALE);
            // The kernel looks up once more, and asks the file that it is shown now whom it lets in.
            let attr = engine.lookup(&cx, ROOT, &name("hers")).unwrap();
            let file = engine.open(&cx, attr.ino, mode).unwrap();
            let mut bytes = [0; 4];
            engine.read(&cx, &file, &mut bytes, 0).unwrap();
            assert_eq!((attr.perm, &bytes), (0o600, b"root"));
            engine.release(&cx, file);
        }
    };
    let calls = (0..).take_while(|at| exchanged_at(*at, open_and_read)).count();
    assert!(calls > 1, "{calls}");

    // By the background, which nobody looks up for; and who has had it open since before.
    let machine = machine();
    let root = machine.slow.root();
    for (file, bytes) in [("hers", b"hers"), ("secret", b"root")] {
        root.create(file.as_bytes(), 0o600).unwrap().write_at(bytes, 0).unwrap();
    }
    machine.slow.settle();
    let engine = machine.open("boot");
    let hers = engine.lookup(&cx, ROOT, &name("hers")).unwrap().ino;
    let since_before = engine.open(&cx, hers, mode).unwrap();
    root.rename(b"secret", &*root, b"hers", RenameMode::Exchange).unwrap();
    staged(&engine, [&machine.clock; 2], 10);
    read(&engine, &since_before);
    assert_eq!(engine.open(&cx, hers, mode).unwrap_err().errno(), Errno::ESTALE);
    read(&engine, &since_before);
    engine.release(&cx, since_before);
}

/// What was known of a file got too old while a second name was made for it. So the call was told that it needs the slow tier, was made
/// again, and found the name that it had made: EEXIST, once in 84,000 under load.
#[test]
fn a_link_that_was_made_is_not_made_again() {
    let (machine, cx) = (machine(), Cx::fast_only(0, 0));
    let engine = machine.open("boot");
    let dir = directory(&engine);
    let file = engine.lookup(&cx, dir, &name("f")).unwrap().ino;
    engine.evict_now(&Cx::internal(), file).unwrap();
    engine.getattr(&Cx::internal(), file).unwrap();
    let clock = machine.clock.clone();
    machine.fast.before_calls(move || clock.advance(REVALIDATE + SECOND));
    let linked = engine.link(&cx, file, dir, &name("second")).unwrap();
    assert_eq!((linked.ino, linked.nlink, linked.size), (file, 2, 50));
}

/// Somebody else replaced a directory by another one while a file of ours was on its way into it. The files that came to it then were not in its
/// listing, and could not be opened: that was read from the directory that he had removed, which was still open. Found by dice of a stranger on
/// the same names (case 356).
#[test]
fn what_comes_to_a_directory_that_others_have_replaced_is_shown() {
    let (machine, cx) = (machine(), Cx::internal());
    let slow = machine.slow.root();
    slow.mkdir(b"d", 0o755).unwrap();
    let engine = machine.open("boot");
    let put = |file: &str, byte: u8| {
        let dir = engine.lookup(&cx, ROOT, &name("d")).unwrap().ino;
        engine.release(&cx, create(&engine, dir, file, &[byte; 50]).1);
        engine.forget(dir, 1);
    };
    put("a", 1);
    machine.clock.advance(REVALIDATE + SECOND);
    slow.rmdir(b"d").unwrap();
    slow.mkdir(b"d", 0o755).unwrap();
    put("b", 2);
    for _ in 0..100 {
        second(&engine, &machine.clock);
    }
    let shown = walk::view(&engine, &mut Vec::new()).unwrap();
    assert!(shown == machine.slow.image(), "{}", shown.diff(&machine.slow.image(), "view", "slow"));
    assert_eq!(listed(&engine, engine.lookup(&cx, ROOT, &name("d")).unwrap().ino).len(), 2);
}

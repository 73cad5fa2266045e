//! Members that keep a copy of their fast tier at a partner. A node is lost at any moment, also in the middle of a call to
//! the copy's disk, which may lose its power then; the copy takes the place, and is mounted.
//!
//! - What a verdict has called safe if the node is lost is there, and in the end on the slow tree.
//! - The order between the members holds all the while: they wait for what is in the copy.
//! - A node that was only frozen publishes nothing any more, and does not touch the copy.
//! - A copy that was given up is refused.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::thread;

use dlio_fs::error::Errno;
use dlio_fs::tiers::FoundCopy;
use dlio_fs::tiers::disk::Access;

use super::*;

/// Copies are sealed before a round, so that the copy shows a state that the member had; what is lost of versions that are
/// not sealed is the business of power cuts.
impl Fleet {
    fn with_partners(seed: u64) -> Fleet {
        let mut fleet = Fleet::new(seed);
        for at in 0..fleet.members.len() {
            let partner = disk("partner", 1 << 30, &fleet.clock, &mut fleet.dice);
            fleet.members[at].partner = Some(Arc::new(parking_lot::Mutex::new(partner)));
            fleet.kill(at);
            fleet.start(at);
        }
        fleet
    }

    fn partner_steps(&self) {
        for at in 0..self.members.len() {
            self.engine(at).partner_step().unwrap();
        }
    }

    fn copy(&mut self, at: usize) {
        let member = &mut self.members[at];
        let engine = member.engine.as_ref().unwrap();
        while engine.seal_step().unwrap() == Progress::Did {}
        engine.partner_step().unwrap();
        if engine.status().partner.is_some_and(|partner| partner.safe_if_one_node_is_lost) {
            member.partnered = member.done.len();
        }
    }

    fn do_something_with_partners(&mut self) -> Result<(), String> {
        let at = self.dice.random_range(0..self.members.len());
        for ghost in &self.members[at].ghosts {
            drop(ghost.fleet_step());
            drop((ghost.drain_step(), ghost.publish_step(), ghost.partner_step()));
        }
        let is_here = |member: &Member| member.engine.is_some() && member.lost.is_none();
        if !is_here(&self.members[at]) {
            return self.do_something();
        }
        match self.dice.random_range(0..100) {
            0..30 => self.copy(at),
            30..32 if self.members[at].partner.is_some() => self.lose_with_partner(at)?,
            32 if self.members[at].partner.is_some() => self.break_partner(at),
            _ => return self.do_something(),
        }
        self.check_all()
    }

    /// The partner's disk fails in the middle of a round; it is there again at once.
    fn break_partner(&mut self, at: usize) {
        let Some(partner) = self.members[at].partner.clone() else { return };
        self.stop_at_any_call(at);
        let found = partner.lock().crash(Lose::Unsynced, &mut self.dice);
        *partner.lock() = found;
        self.clock.advance(Duration::from_secs(5));
    }

    /// The next round may end in the middle.
    fn stop_at_any_call(&mut self, at: usize) {
        let Some(partner) = self.members[at].partner.clone() else { return };
        let calls = self.dice.random_range(1..25);
        partner.lock().power().fail_after(calls, &mut self.dice);
        self.copy(at);
        partner.lock().power().restore();
    }

    /// The node is lost, or only frozen, perhaps in the middle of a round.
    fn lose_with_partner(&mut self, at: usize) -> Result<(), String> {
        self.finish_version(at);
        if self.dice.random_bool(0.5) {
            self.stop_at_any_call(at);
        }
        let (slow, member) = (self.slow.root(), &mut self.members[at]);
        // Without room for its log it has left.
        let Ok(watched) = Watched::begin(&*slow, "job", at as u32) else { return Ok(()) };
        let told = member.engine.as_ref().unwrap().status().partner.unwrap();
        if told.safe_if_one_node_is_lost {
            member.partnered = member.done.len();
        }
        let engine = member.engine.take().unwrap();
        if self.dice.random_bool(0.5) {
            member.ghosts.push(engine);
        }
        let is_cut_off = self.dice.random_bool(0.6);
        let partner = member.partner.take().unwrap();
        if is_cut_off {
            let found = partner.lock().crash(Lose::Unsynced, &mut self.dice);
            *partner.lock() = found;
        }
        let copy = partner.lock().clone();
        let root = copy.root();
        self.clock.advance(Duration::from_secs(61));
        if let Err(error) = watched.hand_over(&slow, &root) {
            if told.is_good {
                return Err(format!("member {at} had a good copy, which is refused: {error}"));
            }
            watched.forget().unwrap();
            self.members[at].lost = Some(shown(&self.slow.image(), at).unwrap());
            return Ok(());
        }
        let id = watched.id();
        let member = &mut self.members[at];
        (member.fast, member.below) = (copy, Some(id));
        self.handed_over += 1;
        self.start(at);
        self.expect_partnered(at)
    }

    /// The copy shows a state that the member had; what came later is lost.
    fn expect_partnered(&mut self, at: usize) -> Result<(), String> {
        let shown = self.view(at)?;
        let member = &mut self.members[at];
        let found = (member.partnered..member.states.len()).rev().find(|n| member.states[*n] == shown);
        let Some(state) = found else {
            let since = &member.done[member.partnered..];
            return Err(format!(
                "the copy of member {at} shows {shown:?}, without {:?} or what was done since: {since:?}",
                member.states[member.partnered]
            ));
        };
        member.states.truncate(state + 1);
        member.done.truncate(state);
        member.there = member.there.min(state);
        member.partnered = state;
        let moved: BTreeSet<String> = shown.into_keys().collect();
        member.moved = moved;
        self.question = None;
        Ok(())
    }

    /// What the member's mount shows.
    fn view(&self, at: usize) -> Result<Shown, String> {
        let (engine, cx) = (self.engine(at), Cx::internal());
        let told = |error: dlio_fs::error::Error| format!("the copy of member {at} cannot be read: {error}");
        let listing = engine.list(&cx, self.members[at].dir).map_err(told)?;
        let mut shown = Shown::new();
        for entry in listing.entries.iter().filter(|entry| entry.kind == Kind::File) {
            let file = String::from_utf8(entry.name.clone()).unwrap();
            let attr = engine.lookup(&cx, self.members[at].dir, &name(&file)).map_err(told)?;
            let open = engine.open(&cx, attr.ino, OpenMode::default()).map_err(told)?;
            let mut body = vec![0; attr.size as usize];
            let got = engine.read(&cx, &open, &mut body, 0).map_err(told)?;
            engine.release(&cx, open);
            let number = body.first_chunk().map_or(0, |first| u32::from_le_bytes(*first));
            if got != body.len() || body != bytes(number) {
                return Err(format!("{file} of member {at} is torn in the view"));
            }
            shown.insert(file, number);
        }
        Ok(shown)
    }
}

/// Returns how often a copy took a place.
fn run_with_partners(seed: u64) -> Result<u32, String> {
    let mut fleet = Fleet::with_partners(seed);
    for _ in 0..250 {
        fleet.do_something_with_partners()?;
    }
    // Everybody who publishes waits for its partner.
    for _ in 0..40 {
        for at in 0..fleet.members.len() {
            if fleet.members[at].away.is_some() {
                fleet.start(at);
            }
            if fleet.members[at].engine.is_some() && fleet.members[at].lost.is_none() {
                fleet.finish_version(at);
                fleet.work(at)?;
                fleet.copy(at);
            }
        }
        fleet.clock.advance(Duration::from_millis(200));
        fleet.check_all()?;
    }
    // From here on without: a copy that is not kept up is given up.
    fleet.clock.advance(Duration::from_secs(5));
    for at in 0..fleet.members.len() {
        if fleet.members[at].engine.is_some() && fleet.members[at].lost.is_none() {
            fleet.members[at].partner = None;
            fleet.kill(at);
            fleet.start(at);
        }
    }
    fleet.finish()?;
    Ok(fleet.handed_over)
}

#[test]
fn a_copy_takes_the_place_of_a_lost_node_and_keeps_the_order() {
    if let Some(seed) = number("DLIO_FLEET_SEED") {
        println!("{} copies took a place", run_with_partners(seed).unwrap());
        return;
    }
    let mut handed_over = 0;
    let first = number("DLIO_FLEET_FIRST").unwrap_or(0);
    for seed in first..first + number("DLIO_FLEET_CASES").unwrap_or(CASES) {
        let done = with_lapse(|| run_with_partners(seed));
        handed_over += done.unwrap_or_else(|why| panic!("{why}; DLIO_FLEET_SEED={seed} repeats it"));
    }
    assert!(handed_over > 0, "no copy took a place");
    println!("{handed_over} copies took a place");
}

/// Of each the case that notices is tried first, as long as it does.
#[test]
fn each_part_of_the_partner_s_rule_is_needed() {
    let noticed_by =
        [(Lapse::PartnerIntents, 507), (Lapse::PartnerObjects, 211), (Lapse::PartnerTurn, 3), (Lapse::StaleCopy, 63)];
    for (lapse, first) in noticed_by {
        let found = std::iter::once(first)
            .chain(0..2000)
            .find_map(|seed| Some((seed, leaving_out(lapse, || run_with_partners(seed)).err()?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("nobody notices {lapse:?}"));
        println!("{lapse:?}: case {seed}: {why}");
    }
}

/// A member publishes a file, and its copy knows the intent and nothing else; another member removes the file.
fn removed_by_another() -> Result<(), String> {
    let mut fleet = Fleet::with_partners(0);
    let go_on = |fleet: &Fleet, copies: bool| {
        for _ in 0..30 {
            (0..2).for_each(|at| fleet.publish(at));
            if copies {
                fleet.partner_steps();
            }
            fleet.fleet_steps();
            fleet.clock.advance(Duration::from_millis(100));
        }
    };
    let events = |fleet: &Fleet, at: usize| fleet.engine(at).status().safety.events;
    let dir = fleet.mkdir(0, ROOT, "d");
    go_on(&fleet, true);
    let theirs = fleet.find(1, ROOT, "d").unwrap().ino;
    fleet.put(0, dir, "x", 7);
    // Intents, copy, publish: and nothing more of the first one's copy.
    for _ in 0..10 {
        fleet.clock.advance(Duration::from_millis(200));
        fleet.engine(1).partner_step().unwrap();
        fleet.fleet_steps();
        fleet.publish(0);
    }
    assert_eq!(events(&fleet, 0), 1, "it waits for its partner");
    fleet.engine(0).partner_step().unwrap();
    fleet.publish(0);
    assert_eq!(events(&fleet, 0), 0);
    assert!(fleet.engine(0).status().partner.unwrap().trouble.is_none());
    fleet.fleet_steps();
    fleet.read(1);
    if fleet.find(1, theirs, "x").is_none() {
        return Err("it is published and not found".to_owned());
    }
    fleet.engine(1).unlink(&Cx::internal(), theirs, &name("x")).unwrap();
    for _ in 0..30 {
        fleet.publish(1);
        fleet.engine(1).partner_step().unwrap();
        fleet.fleet_steps();
        fleet.clock.advance(Duration::from_millis(100));
    }
    fleet.hand_over(0).unwrap();
    go_on(&fleet, true);
    assert_eq!((events(&fleet, 0), events(&fleet, 1)), (0, 0));
    if fleet.slow.image().get(b"d/x").is_some() { Err("it is back".to_owned()) } else { Ok(()) }
}

#[test]
fn what_another_member_has_removed_does_not_come_back_with_the_copy() {
    removed_by_another().unwrap();
    assert!(leaving_out(Lapse::PartnerLease, removed_by_another).is_err());
}

/// The next call of this disk waits until the second channel says something, or is gone.
fn stop_at_next_call(disk: &SimDisk) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((entered, on_enter), (release, on_release)) = (mpsc::channel(), mpsc::channel::<()>());
    let next = parking_lot::Mutex::new(Some((entered, on_release)));
    disk.before_calls(move || {
        let stopped = next.lock().take();
        if let Some((entered, on_release)) = stopped {
            entered.send(()).unwrap();
            on_release.recv().ok();
        }
    });
    (on_enter, release)
}

impl Fleet {
    /// Only this member has a partner from here on.
    fn give_partner(&mut self, at: usize) -> SimDisk {
        let disk = disk("partner", 1 << 30, &self.clock, &mut self.dice);
        let copies = disk.clone();
        self.engine(at).set_partner(Box::new(move || Ok(copies.root())));
        self.members[at].partner = Some(Arc::new(parking_lot::Mutex::new(disk.clone())));
        disk
    }

    /// All that is pending is published, and the copies are good.
    fn with_copies(&self) {
        self.with_copies_but_for(self.members.len());
        self.partner_steps();
        self.fleet_steps();
    }

    /// The last round of this member is missing.
    fn with_copies_but_for(&self, at: usize) {
        let events = || (0..self.members.len()).map(|at| self.engine(at).status().safety.events).sum::<u64>();
        for round in 0..60 {
            (0..self.members.len()).for_each(|at| self.publish(at));
            self.fleet_steps();
            self.clock.advance(Duration::from_millis(100));
            if round >= 20 && events() == 0 {
                return;
            }
            (0..self.members.len()).filter(|of| *of != at || events() > 0).for_each(|of| {
                self.engine(of).partner_step().unwrap();
            });
        }
        panic!("stuck");
    }

    /// The node is lost, and its copy takes its place.
    fn hand_over(&mut self, at: usize) -> Result<(), String> {
        let slow = self.slow.root();
        let watched = Watched::begin(&*slow, "job", at as u32).unwrap();
        let member = &mut self.members[at];
        member.engine = None;
        let copy = member.partner.take().unwrap().lock().clone();
        self.clock.advance(Duration::from_secs(61));
        watched.hand_over(&slow, &copy.root()).map_err(|error| error.to_string())?;
        (self.members[at].fast, self.members[at].below) = (copy, Some(watched.id()));
        self.start(at);
        Ok(())
    }
}

/// The round that makes the copy good begins before a group is finished, and ends after another member has seen and removed
/// what it published.
#[test]
fn what_was_published_while_a_copy_became_good_does_not_come_back_with_it() {
    let mut fleet = Fleet::new(0);
    let dir = fleet.mkdir(0, ROOT, "d");
    fleet.put(0, dir, "open", 5);
    fleet.rounds();
    fleet.read(1);
    let theirs = fleet.find(1, ROOT, "d").unwrap().ino;
    let disk = fleet.give_partner(0);
    // The group with x has its intents, and is to be continued.
    fleet.put(0, dir, "x", 7);
    fleet.clock.advance(Duration::from_secs(1));
    fleet.fleet_steps();
    fleet.fleet_steps();
    fleet.slow.inject(|op| (op.call == "rename" && op.to == b"x").then_some(Errno::EIO));
    let engine = fleet.engine(0);
    while engine.seal_step().unwrap() == Progress::Did {}
    while engine.drain_step().unwrap() == Progress::Did {}
    assert!(engine.publish_step().is_err());
    fleet.slow.inject(|_| None);
    engine.partner_step().unwrap();
    // Something for the second round, and no event.
    let cx = Cx::internal();
    let ino = fleet.find(0, dir, "open").unwrap().ino;
    let open = engine.open(&cx, ino, OpenMode { write: true, ..OpenMode::default() }).unwrap();
    engine.write(&cx, &open, b"more", 0, false).unwrap();
    let remove = |fleet: &Fleet| {
        for _ in 0..5 {
            fleet.clock.advance(Duration::from_millis(200));
            fleet.fleet_steps();
            fleet.publish(0);
            fleet.publish(1);
        }
        fleet.read(1);
        fleet.engine(1).unlink(&Cx::internal(), theirs, &name("x")).unwrap();
        for _ in 0..5 {
            fleet.clock.advance(Duration::from_millis(200));
            fleet.fleet_steps();
            fleet.publish(1);
        }
    };
    let (on_enter, release) = stop_at_next_call(&disk);
    thread::scope(|scope| {
        let round = scope.spawn(|| engine.partner_step());
        on_enter.recv().unwrap();
        remove(&fleet);
        release.send(()).unwrap();
        round.join().unwrap().unwrap();
    });
    assert_eq!(engine.status().safety.events, 0, "it is published");
    engine.fleet_step().unwrap();
    assert!(engine.status().partner.unwrap().is_good);
    fleet.hand_over(0).unwrap();
    for _ in 0..30 {
        (0..2).for_each(|at| fleet.publish(at));
        fleet.fleet_steps();
        fleet.clock.advance(Duration::from_millis(100));
    }
    assert_eq!([0, 1].map(|at| fleet.engine(at).status().safety.events), [0, 0]);
    assert!(fleet.slow.image().get(b"d/x").is_none(), "it is back");
}

/// As while the slow tier answers and the partner does not: nobody waits for it for long.
#[test]
fn a_partner_that_fails_holds_up_nobody() {
    let mut fleet = Fleet::with_partners(0);
    let dir = fleet.mkdir(0, ROOT, "d");
    let go_on = |fleet: &Fleet| {
        for _ in 0..100 {
            (0..2).for_each(|at| fleet.publish(at));
            fleet.partner_steps();
            fleet.fleet_steps();
            fleet.clock.advance(Duration::from_millis(100));
        }
    };
    go_on(&fleet);
    let told = |fleet: &Fleet| fleet.engine(0).status().partner.unwrap();
    assert!(told(&fleet).is_good && told(&fleet).safe_if_one_node_is_lost, "{:?}", told(&fleet));
    let partner = fleet.members[0].partner.clone().unwrap();
    partner.lock().power().fail_after(1, &mut fleet.dice);
    fleet.put(0, dir, "x", 7);
    go_on(&fleet);
    assert!(fleet.slow.image().get(b"d/x").is_some());
    assert!(!told(&fleet).is_good && told(&fleet).trouble.is_some());
    partner.lock().power().restore();
    go_on(&fleet);
    assert!(told(&fleet).is_good && told(&fleet).trouble.is_none(), "{:?}", told(&fleet));
    // It was never handed the place.
    let copy =
        partner.lock().root().dir(Watched::begin(&*fleet.slow.root(), "job", 0).unwrap().id().as_bytes()).unwrap();
    let clock = fleet.members[0].clock.clone();
    let refused = tiers::open(copy, fleet.slow.root(), SlowTree::Writable, fleet.options.clone(), clock, "boot");
    assert!(refused.unwrap_err().to_string().contains("copy of the fast tier of a fleet's member"));
}

/// The start finishes the group that was under way, and the copy knows nothing of it: it would publish that again.
#[test]
fn from_a_start_on_there_is_no_copy_until_it_is_made_anew() {
    let mut fleet = Fleet::with_partners(0);
    let dir = fleet.mkdir(0, ROOT, "d");
    for _ in 0..30 {
        (0..2).for_each(|at| fleet.publish(at));
        fleet.partner_steps();
        fleet.fleet_steps();
        fleet.clock.advance(Duration::from_millis(100));
    }
    fleet.put(0, dir, "x", 7);
    fleet.engine(0).seal_step().unwrap();
    fleet.engine(0).partner_step().unwrap();
    for _ in 0..10 {
        fleet.clock.advance(Duration::from_millis(200));
        fleet.engine(1).partner_step().unwrap();
        fleet.fleet_steps();
        fleet.publish(0);
    }
    assert!(fleet.slow.image().get(b"d/x").is_none(), "it waits for its partner");
    let copies = fleet.members[0].partner.clone().unwrap().lock().root();
    // A lease that is being written is not readable: whoever takes over looks again.
    let is_good = |fleet: &Fleet| {
        Watched::begin(&*fleet.slow.root(), "job", 0).is_ok_and(|watched| watched.find_copy(&copies).is_ok())
    };
    assert!(is_good(&fleet));
    fleet.kill(0);
    // The start is cut off at each call in turn.
    for call in 1.. {
        fleet.slow.power().fail_after(call, &mut fleet.dice);
        let (fast, slow, clock) = (fleet.members[0].fast.root(), fleet.slow.root(), fleet.members[0].clock.clone());
        let begun = tiers::open(fast, slow, SlowTree::Writable, fleet.options.clone(), clock, "boot");
        let is_cut_off = fleet.slow.power().is_gone();
        fleet.slow.power().restore();
        drop(begun);
        let is_there = fleet.slow.image().get(b"d/x").is_some();
        assert!(!(is_there && is_good(&fleet)), "cut off at call {call}");
        if is_there || !is_cut_off {
            assert!(is_there, "its intents were durable");
            break;
        }
        fleet.kill(0);
    }
}

/// A power cut of the partner may leave lines of the log without those before them. They say that those were durable, which
/// was so on the fast tier.
#[test]
fn what_is_behind_the_last_note_of_a_copy_is_no_damage() {
    let mut fleet = Fleet::with_partners(0);
    let dir = fleet.mkdir(0, ROOT, "d");
    for _ in 0..30 {
        (0..2).for_each(|at| fleet.publish(at));
        fleet.partner_steps();
        fleet.fleet_steps();
        fleet.clock.advance(Duration::from_millis(100));
    }
    let watched = Watched::begin(&*fleet.slow.root(), "job", 0).unwrap();
    let log = |root: Arc<dyn tiers::disk::Dir>| {
        let log = root.dir(b".dlio-fs").unwrap().dir(b"log").unwrap();
        let last = log.list().unwrap().into_iter().map(|entry| entry.name).max().unwrap();
        log.open(&last, Access::ReadWrite).unwrap()
    };
    let disk = fleet.members[0].partner.take().unwrap().lock().clone();
    let copy = log(disk.root().dir(watched.id().as_bytes()).unwrap());
    let noted = copy.stat().unwrap().size;
    for file in ["y", "z"] {
        fleet.put(0, dir, file, 7);
        fleet.engine(0).sync_fast().unwrap();
    }
    let whole = log(fleet.members[0].fast.root());
    let mut lines = vec![0; (whole.stat().unwrap().size - noted) as usize];
    whole.read_at(&mut lines, noted).unwrap();
    let first = lines.iter().position(|byte| *byte == b'\n').unwrap();
    lines[..first].fill(0);
    copy.write_at(&lines, noted).unwrap();
    fleet.members[0].engine = None;
    fleet.clock.advance(Duration::from_secs(61));
    watched.hand_over(&fleet.slow.root(), &disk.root()).unwrap();
    (fleet.members[0].fast, fleet.members[0].below) = (disk, Some(watched.id()));
    fleet.start(0);
    let dir = fleet.find(0, ROOT, "d").unwrap().ino;
    assert!(fleet.find(0, dir, "y").is_none() && fleet.find(0, dir, "z").is_none());
    let held = fleet.engine(0).status().safety.held;
    assert!(held.as_ref().is_none_or(|held| !held.contains("damaged")), "{held:?}");
}

/// As while its file server does not answer.
#[test]
fn a_partner_that_hangs_is_given_up_by_another_thread() {
    let fleet = Fleet::new(0);
    let engine = fleet.engine(0);
    let ((entered, on_enter), (release, on_release)) = (mpsc::channel(), mpsc::channel::<()>());
    let on_release = parking_lot::Mutex::new(on_release);
    engine.set_partner(Box::new(move || {
        entered.send(()).unwrap();
        on_release.lock().recv().ok();
        Err(Errno::EIO.into())
    }));
    engine.fleet_step().unwrap();
    let trouble = || engine.status().partner.unwrap().trouble;
    thread::scope(|scope| {
        let round = scope.spawn(|| engine.partner_step());
        on_enter.recv().unwrap();
        fleet.clock.advance(Duration::from_secs(19));
        engine.fleet_step().unwrap();
        assert_eq!(trouble(), None);
        fleet.clock.advance(Duration::from_secs(2));
        engine.fleet_step().unwrap();
        let told = trouble();
        release.send(()).unwrap();
        round.join().unwrap().unwrap();
        assert!(told.is_some_and(|why| why.contains("has not answered for 20 s")));
    });
}

/// A member with a file that is in its copy and not published, and is lost now. Its copy's disk.
fn lost_with_a_copy() -> (Fleet, SimDisk) {
    let mut fleet = Fleet::with_partners(0);
    let dir = fleet.mkdir(0, ROOT, "d");
    let go_on = |fleet: &Fleet, publish: bool| {
        for _ in 0..30 {
            (0..2).filter(|_| publish).for_each(|at| fleet.publish(at));
            fleet.partner_steps();
            fleet.fleet_steps();
            fleet.clock.advance(Duration::from_millis(100));
        }
    };
    go_on(&fleet, true);
    fleet.put(0, dir, "y", 7);
    fleet.engine(0).seal_step().unwrap();
    go_on(&fleet, false);
    assert!(fleet.engine(0).status().partner.unwrap().safe_if_one_node_is_lost);
    fleet.members[0].engine = None;
    let disk = fleet.members[0].partner.take().unwrap().lock().clone();
    (fleet, disk)
}

/// A node was lost with its part of a checkpoint, which its copy did not have. While the copy was mounted its lease said that what was
/// logged before the last lease may be missing, not what was logged before the mount: `latest-safe` of another member named the
/// checkpoint.
#[test]
fn a_checkpoint_with_a_part_that_the_copy_lacks_is_never_safe() {
    let mut fleet = Fleet::with_partners((0..3).find(|seed| !Fleet::new(*seed).is_small).unwrap());
    let looks = |fleet: &Fleet| {
        for _ in 0..60 {
            (0..2).for_each(|at| fleet.publish(at));
            fleet.partner_steps();
            fleet.fleet_steps();
            for at in 0..2 {
                fleet.engine(at).tick().unwrap();
                fleet.engine(at).check_parts().unwrap();
            }
            fleet.clock.advance(Duration::from_millis(100));
        }
        assert_eq!([0, 1].map(|at| fleet.engine(at).status().safety.events), [0, 0]);
        fleet.engine(1).latest_safe().map(|path| String::from_utf8(path).unwrap())
    };
    let put = |fleet: &Fleet, at: usize, dir: Ino, file: &str, size: usize| {
        fleet.clock.advance(3 * ERROR);
        fleet.put(at, dir, file, size);
    };
    let [dir, _] = ["step-1", "step-2"].map(|dir| fleet.mkdir(0, ROOT, dir));
    fleet.with_copies();
    fleet.read(1);
    let [theirs, their_next] = ["step-1", "step-2"].map(|dir| fleet.find(1, ROOT, dir).unwrap().ino);
    put(&fleet, 0, dir, "rank-0", 1 << 20);
    put(&fleet, 1, theirs, "rank-1", 1 << 20);
    put(&fleet, 1, theirs, ".metadata", 3);
    let lost_at = nanos(&fleet.clock);
    fleet.hand_over(0).unwrap();
    let [dir, next] = ["step-1", "step-2"].map(|dir| fleet.find(0, ROOT, dir).unwrap().ino);
    assert!(fleet.find(0, dir, "rank-0").is_none(), "its copy lacks it");
    assert_eq!(looks(&fleet), None);
    assert!(fleet.engine(1).checkpoints(Duration::ZERO)[0].safe, "its own part is there");
    let told = fleet.engine(1).fleet_status().unwrap().members[0].lost_before.unwrap();
    assert!((Duration::from_nanos(lost_at)..Duration::from_nanos(nanos(&fleet.clock))).contains(&told), "{told:?}");
    // What comes later is theirs.
    fleet.clock.advance(Duration::from_secs(4));
    put(&fleet, 0, next, "rank-0", 1 << 20);
    put(&fleet, 1, their_next, "rank-1", 1 << 20);
    put(&fleet, 1, their_next, ".metadata", 3);
    assert_eq!(looks(&fleet).as_deref(), Some("step-2"));
}

/// The command, or its machine, is stopped at each of its calls to either tree. Before the slot has changed the member itself
/// can come back; from then on the copy has the place once the command was run again, and not before.
#[test]
fn a_handover_that_is_cut_off_goes_on_when_it_is_asked_for_again() {
    let (mut refused_both, mut in_place) = (0, 0);
    for call in 0.. {
        let (mut fleet, disk) = lost_with_a_copy();
        let (slow, copies) = (fleet.slow.root(), disk.root());
        let watched = Watched::begin(&*slow, "job", 0).unwrap();
        fleet.clock.advance(Duration::from_secs(61));
        let made = Arc::new(AtomicU64::new(0));
        for tree in [&fleet.slow, &disk] {
            let made = made.clone();
            tree.inject(move |_| (made.fetch_add(1, Ordering::Relaxed) >= call).then_some(Errno::EIO));
        }
        let done = watched.hand_over(&slow, &copies);
        [&fleet.slow, &disk].iter().for_each(|tree| tree.inject(|_| None));
        let open = |fast: Arc<dyn tiers::disk::Dir>| {
            let (slow, clock) = (fleet.slow.root(), fleet.members[0].clock.clone());
            tiers::open(fast, slow, SlowTree::Writable, fleet.options.clone(), clock, "boot").map(drop)
        };
        let copy = copies.dir(watched.id().as_bytes()).unwrap();
        let has_notes = copy.dir(b".dlio-fs").unwrap().stat(b"partner").is_ok();
        if done.is_err() {
            assert!(!has_notes || open(copy).is_err(), "call {call}: a copy that is not whole was mounted");
            let again = Watched::begin(&*slow, "job", 0).unwrap();
            match again.find_copy(&copies).unwrap() {
                FoundCopy::Good if call % 2 == 0 => {
                    // The member comes back instead.
                    open(fleet.members[0].fast.root()).unwrap();
                    continue;
                }
                FoundCopy::Good => refused_both += 1,
                FoundCopy::InPlace => {
                    in_place += 1;
                    assert!(open(fleet.members[0].fast.root()).is_err(), "call {call}: two of one member");
                }
            }
            again.hand_over(&slow, &copies).unwrap();
        }
        let id = watched.id();
        assert!(open(fleet.members[0].fast.root()).is_err());
        (fleet.members[0].fast, fleet.members[0].below) = (disk, Some(id));
        fleet.start(0);
        let dir = fleet.find(0, ROOT, "d").unwrap().ino;
        assert!(fleet.find(0, dir, "y").is_some(), "call {call}");
        if done.is_ok() {
            break;
        }
    }
    assert!(refused_both > 3 && in_place > 3, "{refused_both}, {in_place}");
}

/// The member has written a lease at the last moment: its copy is as it was.
#[test]
fn a_handover_that_is_refused_leaves_the_copy_as_it_was() {
    let (mut fleet, disk) = lost_with_a_copy();
    let watched = Watched::begin(&*fleet.slow.root(), "job", 0).unwrap();
    let log = disk.root().dir(watched.id().as_bytes()).unwrap().dir(b".dlio-fs").unwrap().dir(b"log").unwrap();
    let len = || log.list().unwrap().iter().map(|entry| log.stat(&entry.name).unwrap().size).sum::<u64>();
    let last = log.list().unwrap().into_iter().map(|entry| entry.name).max().unwrap();
    let tail = log.open(&last, Access::ReadWrite).unwrap();
    // What its mirror had written behind the note.
    tail.write_at(b"not noted yet", tail.stat().unwrap().size).unwrap();
    let before = len();
    fleet.start(0);
    for _ in 0..20 {
        fleet.clock.advance(Duration::from_millis(200));
        fleet.engine(0).fleet_step().unwrap();
    }
    assert!(watched.hand_over(&fleet.slow.root(), &disk.root()).is_err(), "it is alive");
    assert_eq!(len(), before);
}

/// A fast tier that was a copy is mounted with the partner directory that it lies in, reached by another way: nothing tells
/// that they are one.
#[test]
fn a_fast_tier_in_the_partner_directory_is_not_taken_for_an_old_copy() {
    let fleet = Fleet::with_partners(0);
    let id = Watched::begin(&*fleet.slow.root(), "job", 0).unwrap().id();
    let partner = fleet.members[0].partner.clone().unwrap().lock().root();
    let fast = partner.mkdir(id.as_bytes(), 0o700).and_then(|()| partner.dir(id.as_bytes())).unwrap();
    let ours = fast.mkdir(b".dlio-fs", 0o700).and_then(|()| fast.dir(b".dlio-fs")).unwrap();
    let log = ours.mkdir(b"log", 0o700).and_then(|()| ours.dir(b"log")).unwrap();
    drop((ours.create(b"super", 0o600).unwrap(), log.create(b"0000000000000001", 0o600).unwrap()));
    for _ in 0..20 {
        fleet.fleet_steps();
        fleet.partner_steps();
        fleet.clock.advance(Duration::from_millis(500));
    }
    let trouble = fleet.engine(0).status().partner.unwrap().trouble.unwrap();
    assert!(trouble.contains("a fast tier with this member's id"), "{trouble}");
    assert!(ours.stat(b"super").is_ok() && log.stat(b"0000000000000001").is_ok());
}

/// A group without steps waits for no copy, so it may be applied in the middle of a round.
#[test]
fn a_file_that_is_removed_in_the_middle_of_a_round_is_no_damage_of_the_copy() {
    let mut fleet = Fleet::with_partners(0);
    let dir = fleet.mkdir(0, ROOT, "d");
    fleet.with_copies();
    fleet.put(0, dir, "x", 7);
    let engine = fleet.engine(0);
    while engine.seal_step().unwrap() == Progress::Did {}
    engine.unlink(&Cx::internal(), dir, &name("x")).unwrap();
    engine.sync_fast().unwrap();
    fleet.clock.advance(Duration::from_secs(1));
    fleet.engine(1).partner_step().unwrap();
    fleet.fleet_steps();
    fleet.fleet_steps();
    // Its extent is taken, and none of its objects.
    let (on_enter, release) = stop_at_next_call(&fleet.members[0].fast);
    let made = thread::scope(|scope| {
        let round = scope.spawn(|| engine.partner_step());
        on_enter.recv().unwrap();
        while engine.publish_step().unwrap() == Progress::Did {}
        release.send(()).unwrap();
        round.join().unwrap().unwrap()
    });
    assert_eq!(engine.status().safety.events, 0, "it is applied");
    assert_eq!(made, Progress::Did, "the next round has the rest");
    fleet.hand_over(0).unwrap();
    assert_eq!(fleet.engine(0).status().exceptions.damaged, 0);
}

#[test]
fn a_fast_tier_that_is_slow_is_no_partner_that_hangs() {
    let fleet = Fleet::with_partners(0);
    fleet.with_copies();
    // It is logged, and not durable.
    fleet.mkdir(0, ROOT, "d");
    let engine = fleet.engine(0);
    let (on_enter, release) = stop_at_next_call(&fleet.members[0].fast);
    thread::scope(|scope| {
        let round = scope.spawn(|| engine.partner_step());
        on_enter.recv().unwrap();
        fleet.clock.advance(Duration::from_secs(21));
        let told = engine.fleet_step();
        let waits = engine.status().partner.unwrap().waits.map(|waits| waits.as_secs());
        release.send(()).unwrap();
        round.join().unwrap().unwrap();
        told.unwrap();
        assert_eq!(waits, Some(21), "but others wait for the round");
    });
    let told = engine.status().partner.unwrap();
    assert!(told.is_good && told.trouble.is_none() && told.waits.is_none(), "{told:?}");
}

/// Ten objects that the copy no longer needs, and this for each call while they are removed.
fn remove_slowly(fleet: &Fleet, at_call: impl Fn(u32)) {
    let dir = fleet.mkdir(0, ROOT, "d");
    fleet.with_copies();
    (0..10).for_each(|file| fleet.put(0, dir, &format!("{file}"), 7));
    fleet.with_copies_but_for(0);
    let engine = fleet.engine(0);
    assert_eq!(engine.status().safety.events, 0, "all is published");
    let disk = fleet.members[0].partner.as_ref().unwrap().lock().clone();
    let ((entered, on_enter), (release, on_release)) = (mpsc::channel(), mpsc::channel::<()>());
    let on_release = parking_lot::Mutex::new(on_release);
    disk.before_calls(move || {
        entered.send(()).ok();
        on_release.lock().recv().ok();
    });
    thread::scope(|scope| {
        let round = scope.spawn(|| {
            let made = engine.partner_step();
            // There are no more calls.
            disk.before_calls(|| ());
            made
        });
        let release = release;
        for call in 0.. {
            if on_enter.recv().is_err() {
                break;
            }
            at_call(call);
            release.send(()).unwrap();
        }
        round.join().unwrap().unwrap();
    });
}

fn objects(disk: &SimDisk, id: &str) -> usize {
    let pool = disk.root().dir(id.as_bytes()).unwrap().dir(b".dlio-fs").unwrap().dir(b"pool").unwrap();
    let shards = pool.list().unwrap().into_iter().filter(|entry| entry.kind == Kind::Dir);
    shards.map(|shard| pool.dir(&shard.name).unwrap().list().unwrap().len()).sum()
}

#[test]
fn a_partner_that_takes_long_to_remove_much_is_none_that_hangs() {
    let fleet = Fleet::with_partners(0);
    remove_slowly(&fleet, |_| {
        fleet.clock.advance(Duration::from_secs(4));
        fleet.engine(0).fleet_step().unwrap();
    });
    let told = fleet.engine(0).status().partner.unwrap();
    assert!(told.is_good && told.trouble.is_none(), "{told:?}");
}

/// Somebody may be giving it the place.
#[test]
fn a_member_whose_lease_is_old_removes_nothing_more_from_its_copy() {
    let fleet = Fleet::with_partners(0);
    let (disk, id) = (
        fleet.members[0].partner.as_ref().unwrap().lock().clone(),
        Watched::begin(&*fleet.slow.root(), "job", 0).unwrap().id(),
    );
    let calls = std::cell::Cell::new(0);
    remove_slowly(&fleet, |call| {
        calls.set(call);
        // In the middle of the removals.
        if call == 9 {
            fleet.clock.advance(Duration::from_secs(60));
        }
    });
    assert_eq!(calls.get(), 9, "no call comes after");
    assert!(objects(&disk, &id) > 3, "{}", objects(&disk, &id));
    fleet.with_copies();
    assert!(fleet.engine(0).status().partner.unwrap().is_good);
    assert_eq!(objects(&disk, &id), 0, "the next round goes on where this one stopped");
}

#[test]
fn a_member_that_was_forgotten_is_not_safe_with_a_copy_that_is_refused() {
    let fleet = Fleet::with_partners(0);
    let dir = fleet.mkdir(0, ROOT, "d");
    fleet.with_copies();
    fleet.put(0, dir, "x", 7);
    let engine = fleet.engine(0);
    while engine.seal_step().unwrap() == Progress::Did {}
    engine.partner_step().unwrap();
    let told = || engine.status().partner.unwrap();
    assert!(told().safe_if_one_node_is_lost, "{:?}", told());
    let watched = Watched::begin(&*fleet.slow.root(), "job", 0).unwrap();
    fleet.clock.advance(Duration::from_secs(61));
    watched.forget().unwrap();
    engine.fleet_step().unwrap();
    assert!(!told().safe_if_one_node_is_lost && !told().is_good, "{:?}", told());
    assert!(told().trouble.is_some_and(|why| why.contains("forgotten")), "{:?}", told());
    assert_eq!(told().events, 1);
}

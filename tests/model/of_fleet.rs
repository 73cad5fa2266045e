//! Checkpoints that two members write together: `latest-safe` of neither names one that a loss of the other's fast tier,
//! and a power cut of the slow tree, would leave without a part.

use std::time::Duration;

use dlio_fs::tiers::disk::faults::{Lapse, leaving_out};
use dlio_fs::tiers::disk::{Dir, MetadataOrder};
use dlio_fs::tiers::{Cx, Ino, ROOT, Watched};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

use crate::pair::{ORDERS, Pair};
use crate::sim::Lose;
use crate::stories::name;
use crate::{number, with_lapse};

const CASES: u64 = 60;
/// Enough for a checkpoint.
const PART: usize = 1 << 20;

fn part(step: u32) -> String {
    step.to_string().repeat(PART)
}

fn dir(pair: &Pair, member: usize, dir: &str) -> Ino {
    match pair.members[member].mkdir(&Cx::internal(), ROOT, &name(dir), 0o755, 0) {
        Ok(attr) => {
            // No sooner is it answered.
            pair.clock.advance(Duration::from_millis(5));
            attr.ino
        }
        Err(_) => pair.dir(member, dir),
    }
}

fn put_part(pair: &Pair, member: usize, place: &str, step: u32) {
    let (dir, file) = (dir(pair, member, place), format!("rank-{member}"));
    pair.members[member].unlink(&Cx::internal(), dir, &name(&file)).ok();
    pair.put(member, dir, &file, &part(step));
}

/// A piece of the background's work that has to do with checkpoints.
fn look(pair: &Pair, member: usize) {
    let engine = &pair.members[member];
    engine.tick().unwrap();
    engine.check_parts().unwrap();
}

/// Work of one member until nothing more comes of it.
fn rounds(pair: &Pair, members: &[usize]) {
    for _ in 0..60 {
        for member in members {
            pair.work(*member);
            look(pair, *member);
        }
    }
}

fn named(pair: &Pair, member: usize) -> Option<String> {
    pair.members[member].latest_safe().map(|path| String::from_utf8(path).unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Marker {
    /// In the checkpoint's directory.
    Inside,
    /// Beside it, for all checkpoints, with the step in it.
    Pointer,
    None,
}

struct Case {
    pair: Pair,
    dice: Xoshiro256PlusPlus,
    marker: Marker,
    /// The steps whose marker was made.
    marked: Vec<u32>,
    /// What each member named last: what was there then does not go away.
    told: [Option<String>; 2],
    /// How often a member that made no marker named a new one.
    named: u32,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
        let marker = [Marker::Inside, Marker::Pointer, Marker::None][dice.random_range(0..3)];
        let pair = Pair::of(ORDERS[dice.random_range(0..2)], seed % 3 == 2);
        Case { pair, dice, marker, marked: Vec::new(), told: [None, None], named: 0 }
    }

    /// Pieces of work; one of the members may be slow.
    fn work(&mut self, pieces: u32, slow: Option<usize>) -> Result<(), String> {
        for _ in 0..pieces {
            let member = self.dice.random_range(0..2);
            if slow == Some(member) && self.dice.random_bool(0.9) {
                continue;
            }
            if self.dice.random_bool(0.5) {
                self.pair.work(member)
            } else {
                look(&self.pair, member)
            }
            self.check()?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        for member in 0..2 {
            let path = named(&self.pair, member);
            if self.told[member] == path {
                continue;
            }
            self.told[member].clone_from(&path);
            let Some(path) = path else { continue };
            let step: u32 = path.strip_prefix("step-").unwrap().parse().unwrap();
            if !self.marked.contains(&step) {
                return Err(format!("member {member} names {path}, and nobody has said that it is all"));
            }
            let image = self.pair.slow.image_after_power_cut(&mut self.dice);
            for rank in 0..2 {
                let file = image.get(format!("{path}/rank-{rank}").as_bytes());
                if file.is_none_or(|file| file.shown.body().bytes[..] != *part(step).as_bytes()) {
                    return Err(format!("member {member} names {path} without the part of {rank}"));
                }
            }
            self.named += u32::from(member == 1);
        }
        Ok(())
    }

    fn save(&mut self, step: u32) -> Result<(), String> {
        let place = format!("step-{step}");
        let slow = [None, Some(0), Some(1)][self.dice.random_range(0..3)];
        let first = self.dice.random_range(0..2);
        for rank in [first, 1 - first] {
            put_part(&self.pair, rank, &place, step);
            self.work(10, slow)?;
        }
        self.work(20, slow)?;
        match self.marker {
            Marker::Inside => self.pair.put(0, self.pair.dir(0, &place), ".metadata", "all"),
            Marker::Pointer => {
                self.pair.put(0, ROOT, "latest.tmp", &place);
                self.pair.rename(0, ROOT, "latest.tmp", "latest");
            }
            Marker::None => return self.work(60, slow),
        }
        self.marked.push(step);
        self.work(60, slow)?;
        if self.dice.random_bool(0.2) {
            self.pair.crash(Lose::Nothing);
            self.pair.start();
        }
        self.work(60, None)
    }
}

fn run(seed: u64) -> Result<u32, String> {
    let mut case = Case::new(seed);
    for step in 1..4 {
        case.save(step).map_err(|why| format!("case {seed}, {:?}: {why}", case.marker))?;
        // The next one is another checkpoint.
        case.pair.clock.advance(Duration::from_secs(4));
        (0..2).for_each(|member| look(&case.pair, member));
    }
    Ok(case.named)
}

#[test]
fn no_member_of_a_fleet_names_a_checkpoint_that_lacks_a_part_of_another() {
    let first = number("DLIO_FLEET_FIRST").unwrap_or(0);
    let cases = first..first + number("DLIO_FLEET_CASES").unwrap_or(CASES);
    let named: u32 = cases.map(|seed| with_lapse(|| run(seed)).unwrap()).sum();
    assert!(named > 0, "nobody is told of a checkpoint that others have marked");
}

#[test]
fn without_the_parts_of_all_somebody_names_one_that_lacks_some() {
    assert!((0..CASES).any(|seed| leaving_out(Lapse::PartsOfAll, || run(seed)).is_err()));
}

#[test]
fn a_checkpoint_is_safe_on_both_members_once_the_marker_of_one_says_so() {
    for (order, is_collected) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let pair = Pair::of(order, is_collected);
        (0..2).for_each(|member| put_part(&pair, member, "step-1", 1));
        rounds(&pair, &[1]);
        assert_eq!(named(&pair, 1), None, "the other one's part is on its fast tier only");
        rounds(&pair, &[0, 1]);
        assert_eq!([0, 1].map(|member| named(&pair, member)), [None, None], "there may be more to come");
        pair.put(0, pair.dir(0, "step-1"), ".metadata", "all");
        assert_eq!(named(&pair, 1), None);
        rounds(&pair, &[0, 1]);
        let both = [0, 1].map(|member| named(&pair, member));
        assert_eq!(both, [Some("step-1".to_owned()), Some("step-1".to_owned())], "{order:?}");
        let since = pair.members[1].checkpoints(Duration::ZERO)[0].elsewhere;
        assert!(since.is_some());
    }
}

/// The second save has the names of the first, whose marker is still there.
fn saved_twice() -> Option<String> {
    let pair = Pair::new(MetadataOrder::Journaled);
    // Of one large file in a directory without a step the file is the checkpoint.
    let save = |step| {
        for member in 0..2 {
            put_part(&pair, member, "last", step);
            let (dir, file) = (pair.dir(member, "last"), format!("optim-{member}"));
            pair.members[member].unlink(&Cx::internal(), dir, &name(&file)).ok();
            pair.put(member, dir, &file, &part(step));
        }
    };
    save(1);
    pair.put(0, pair.dir(0, "last"), ".metadata", "all");
    rounds(&pair, &[0, 1]);
    assert_eq!(named(&pair, 1).as_deref(), Some("last"));
    save(2);
    rounds(&pair, &[0, 1]);
    assert!(pair.members[1].status().safety.events == 0);
    named(&pair, 1)
}

#[test]
fn the_marker_of_an_earlier_save_says_nothing_about_the_next_one() {
    assert_eq!(saved_twice(), None);
    assert!(leaving_out(Lapse::MarkerLater, saved_twice).is_some());
}

/// What the lost one wrote never arrives. Whoever has its slot next does not know of it, and later checkpoints are theirs.
#[test]
fn a_checkpoint_that_a_forgotten_member_had_a_part_in_is_never_safe() {
    for (order, is_collected) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let mut pair = Pair::of(order, is_collected);
        rounds(&pair, &[0, 1]);
        (0..2).for_each(|member| put_part(&pair, member, "step-1", 1));
        pair.put(0, pair.dir(0, "step-1"), ".metadata", "all");
        drop(pair.members.pop());
        let slow: Arc<dyn Dir> = pair.slow.root();
        let watched = Watched::begin(&*slow, "job", 1).unwrap();
        pair.clock.advance(Duration::from_secs(61));
        assert!(watched.is_silent().unwrap());
        watched.forget().unwrap();
        rounds(&pair, &[0]);
        let is_safe = |pair: &Pair| pair.members[0].checkpoints(Duration::ZERO)[0].safe;
        assert!(is_safe(&pair), "its own part is there");
        assert_eq!(named(&pair, 0), None, "{order:?}");
        pair.replace(1);
        rounds(&pair, &[0, 1]);
        assert_eq!(named(&pair, 0), None, "another one has the slot");
        (0..2).for_each(|member| put_part(&pair, member, "step-2", 2));
        pair.put(0, pair.dir(0, "step-2"), ".metadata", "all");
        rounds(&pair, &[0, 1]);
        assert_eq!(named(&pair, 0).as_deref(), Some("step-2"), "{order:?}");
    }
}

/// As when one member saves the next checkpoint while another is late with the marker of the one before.
#[test]
fn a_pointer_speaks_of_its_own_step_only() {
    let pair = Pair::new(MetadataOrder::Journaled);
    let point = |to| {
        pair.put(0, ROOT, "latest.tmp", to);
        pair.rename(0, ROOT, "latest.tmp", "latest");
    };
    put_part(&pair, 1, "step-2", 2);
    point("step-1\n");
    rounds(&pair, &[0, 1]);
    assert_eq!((pair.members[1].status().safety.events, named(&pair, 1)), (0, None));
    point("step-2\n");
    rounds(&pair, &[0, 1]);
    assert_eq!(named(&pair, 1).as_deref(), Some("step-2"));
}

/// Saves overlap: this member has its part of the next step when it makes the pointer of the one before. Its own pointer was
/// not read, so the next step was named though the other one had not written its part.
#[test]
fn a_pointer_of_this_member_speaks_of_its_own_step_only() {
    let pair = Pair::new(MetadataOrder::Journaled);
    let point = |to| {
        pair.put(0, ROOT, "latest.tmp", to);
        pair.rename(0, ROOT, "latest.tmp", "latest");
    };
    (0..2).for_each(|member| put_part(&pair, member, "step-1", 1));
    pair.clock.advance(Duration::from_secs(4));
    put_part(&pair, 0, "step-2", 2);
    point("step-1\n");
    rounds(&pair, &[0, 1]);
    assert_eq!((pair.members[0].status().safety.events, named(&pair, 0).as_deref()), (0, Some("step-1")));
    put_part(&pair, 1, "step-2", 2);
    point("step-2\n");
    rounds(&pair, &[0, 1]);
    assert_eq!([0, 1].map(|member| named(&pair, member)), [Some("step-2".to_owned()), Some("step-2".to_owned())]);
}

#[test]
fn a_checkpoint_from_which_another_member_removes_a_file_is_not_named_any_more() {
    let pair = Pair::new(MetadataOrder::Journaled);
    (0..2).for_each(|member| put_part(&pair, member, "step-1", 1));
    pair.put(0, pair.dir(0, "step-1"), ".metadata", "all");
    rounds(&pair, &[0, 1]);
    assert_eq!(named(&pair, 1).as_deref(), Some("step-1"));
    pair.members[0].unlink(&Cx::internal(), pair.dir(0, "step-1"), &name("rank-1")).unwrap();
    rounds(&pair, &[0, 1]);
    // Whoever asks for a name lets the others' be read.
    pair.members[1].getattr(&Cx::internal(), ROOT).unwrap();
    rounds(&pair, &[0, 1]);
    assert_eq!(named(&pair, 1), None);
}

#[test]
fn what_only_has_the_name_of_a_marker_says_nothing() {
    let pair = Pair::new(MetadataOrder::Journaled);
    put_part(&pair, 1, "step-1", 1);
    let place = dir(&pair, 0, "step-1");
    let inner = pair.members[0].mkdir(&Cx::internal(), place, &name("checkpoint"), 0o755, 0).unwrap().ino;
    pair.clock.advance(Duration::from_millis(5));
    pair.put(0, inner, "rank-0", "a directory is as late as what is in it");
    pair.put(0, place, "model.safetensors.index.json", "before the state of the optimizer");
    rounds(&pair, &[0, 1]);
    assert_eq!((pair.members[0].status().safety.events, named(&pair, 1)), (0, None));
    pair.put(0, place, ".metadata", "all");
    rounds(&pair, &[0, 1]);
    assert_eq!(named(&pair, 1).as_deref(), Some("step-1"));
}

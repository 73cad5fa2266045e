//! A simulated month of training: measures the policy against "least recently used" in the same month.
//!
//! An epoch takes about 20 minutes, a checkpoint is written every 15, the best three and the last one stay. An hour's
//! pause follows every hundredth epoch. After two weeks another data set of the same size is used.
//!
//! `cargo test --lib month -- --nocapture` shows the table.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a failing case tells its story")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::policy::*;
use crate::tiers::checkpoints::forecast::CheckpointForecast;
use crate::tiers::copies::rounds::ReadRounds;

const FILE: u64 = 1 << 30;
const TIER: u64 = 50 * FILE;
const EPOCH: Duration = Duration::from_secs(20 * 60);
const SAVE_EVERY: Duration = Duration::from_secs(15 * 60);
const PAUSE: Duration = Duration::from_secs(3600);
const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// The application removes no checkpoint.
const EVERY: usize = usize::MAX;
/// Epochs until the placement has settled.
const SETTLED: usize = 4;

/// The policy that decides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Ours,
    /// Stages each file that is read, in place of the least recently read one.
    Lru,
    /// Like ours, but staging leaves room for a checkpoint only when one is due.
    LateRoom,
    /// Like ours, but staged copies are evicted down to `low`, like everything else.
    AllToLow,
    /// Like ours, but only the file's own interval decides whose place it may take.
    OneInterval,
    /// Like ours, but without room for expected checkpoints.
    NoRoom,
}

#[derive(Clone, Copy, Debug)]
struct MonthCase {
    policy: Policy,
    /// Size of the data set, and of a checkpoint, in hundredths of the tier.
    set: u64,
    save: u64,
    /// How many of the best checkpoints stay, beside the last one.
    best: usize,
    shuffled: bool,
}

#[derive(Debug, Default)]
struct MonthFile {
    bytes: u64,
    set: u64,
    read: Option<Duration>,
    staged: bool,
}

/// A checkpoint on the fast tier.
#[derive(Debug)]
struct MonthSave {
    number: u64,
    began: Duration,
    bytes: u64,
    written: u64,
    clean: bool,
    /// Only the slow tier has it.
    gone: bool,
    score: u32,
}

#[derive(Clone, Copy, Debug)]
enum MonthName {
    Save(u64),
    File(usize),
}

#[derive(Clone, Copy, Debug)]
enum MonthEvent {
    Begin,
    Piece(u64),
    Drained(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct MonthEpoch {
    set: u64,
    read: u64,
    hit: u64,
    copied: u64,
    /// Bytes of the present data set that are staged when the epoch ends.
    staged: u64,
}

struct Month {
    case: MonthCase,
    limits: SpaceLimits,
    random: SmallRng,
    now: Duration,
    files: Vec<MonthFile>,
    /// Staged files by time of reading; a file that was read again has two entries, of which the last counts.
    by_read: VecDeque<(Duration, usize)>,
    staged: u64,
    saves: Vec<MonthSave>,
    saved: u64,
    events: BTreeMap<(Duration, u64), MonthEvent>,
    planned: u64,
    rounds: ReadRounds,
    checkpoints: CheckpointForecast,
    evicting: Evicting,
    epochs: Vec<MonthEpoch>,
    /// Checkpoints that found too little room when they began, not counting the first four.
    short: u64,
    /// The most bytes of checkpoints on the fast tier.
    most_saved: u64,
}

impl Month {
    fn new(case: MonthCase) -> Self {
        let limits = SpaceLimits { high: 0.85, low: 0.70, reserve: 0.10, inodes: 0.05, quotas: [None; 3], keep: 2 };
        let mut month = Month {
            case,
            limits,
            random: SmallRng::seed_from_u64(7),
            now: Duration::ZERO,
            files: Vec::new(),
            by_read: VecDeque::new(),
            staged: 0,
            saves: Vec::new(),
            saved: 0,
            events: BTreeMap::new(),
            planned: 0,
            rounds: ReadRounds::default(),
            checkpoints: CheckpointForecast::default(),
            evicting: Evicting::default(),
            epochs: Vec::new(),
            short: 0,
            most_saved: 0,
        };
        for set in 0..2 {
            let mut left = TIER * case.set / 100;
            while left > 0 {
                let bytes = month.random.random_range(FILE / 2..FILE * 3 / 2).min(left);
                month.files.push(MonthFile { bytes, set, ..MonthFile::default() });
                left -= bytes;
            }
        }
        month.at(SAVE_EVERY, MonthEvent::Begin);
        month
    }

    fn run(mut self) -> Self {
        while self.now < MONTH {
            let set = u64::from(self.now > MONTH / 2);
            self.epoch(set);
            if self.epochs.len().is_multiple_of(100) {
                self.pause();
            }
        }
        self
    }

    fn epoch(&mut self, set: u64) {
        let mut files: Vec<usize> = (0..self.files.len()).filter(|at| self.files[*at].set == set).collect();
        if self.case.shuffled {
            files.shuffle(&mut self.random);
        }
        self.epochs.push(MonthEpoch { set, ..MonthEpoch::default() });
        let took = EPOCH.mul_f64(self.random.random_range(0.9..1.1));
        for file in &files {
            self.now += took / files.len() as u32;
            self.happen();
            self.read(*file);
        }
        let staged = files.iter().filter(|file| self.files[**file].staged);
        self.epochs.last_mut().unwrap().staged = staged.map(|file| self.files[*file].bytes).sum();
    }

    /// The job is stopped: nothing is read or saved.
    fn pause(&mut self) {
        let begun = std::mem::take(&mut self.events);
        for ((at, number), event) in begun {
            let at = if matches!(event, MonthEvent::Drained(_)) { at } else { at + PAUSE };
            self.events.insert((at, number), event);
        }
        self.now += PAUSE;
    }

    fn at(&mut self, moment: Duration, event: MonthEvent) {
        self.planned += 1;
        self.events.insert((moment, self.planned), event);
    }

    fn happen(&mut self) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let ((moment, _), event) = entry.remove_entry();
            match event {
                MonthEvent::Begin => self.begin_save(moment),
                MonthEvent::Piece(number) => self.write_piece(moment, number),
                MonthEvent::Drained(number) => {
                    self.saves.iter_mut().filter(|save| save.number == number).for_each(|save| save.clean = true);
                }
            }
            self.evict(moment);
        }
        self.evict(self.now);
    }

    fn begin_save(&mut self, now: Duration) {
        let bytes = TIER / 10_000 * self.case.save * self.random.random_range(90..110);
        self.short += u64::from(self.saved >= 4 && self.usage().avail < bytes);
        self.saved += 1;
        let (number, score) = (self.saved, self.random.random());
        self.saves.push(MonthSave { number, began: now, bytes, written: 0, clean: false, gone: false, score });
        self.at(now, MonthEvent::Piece(number));
        self.at(now + SAVE_EVERY, MonthEvent::Begin);
    }

    /// Ten pieces in half a minute, drained at a tenth of that speed.
    fn write_piece(&mut self, now: Duration, number: u64) {
        let save = self.saves.iter_mut().find(|save| save.number == number).unwrap();
        save.written = (save.written + save.bytes / 10).min(save.bytes);
        if save.written + 10 <= save.bytes {
            return self.at(now + Duration::from_secs(3), MonthEvent::Piece(number));
        }
        let (began, bytes) = (save.began, save.bytes);
        self.checkpoints.learn(began, bytes);
        self.most_saved = self.most_saved.max(self.bytes_saved(true) + self.bytes_saved(false));
        self.at(now + Duration::from_secs(300), MonthEvent::Drained(number));
        // The application removes the worst, dirty or not, but never the last.
        if self.saves.len() > self.case.best.saturating_add(1) {
            let older = &self.saves[..self.saves.len() - 1];
            let worst = (0..older.len()).min_by_key(|at| older[*at].score).unwrap();
            self.saves.remove(worst);
        }
    }

    fn bytes_saved(&self, clean: bool) -> u64 {
        self.saves.iter().filter(|save| !save.gone && save.clean == clean).map(|save| save.written).sum()
    }

    fn usage(&self) -> Usage {
        let (clean, dirty) = (self.bytes_saved(true), self.bytes_saved(false));
        Usage {
            total: TIER,
            avail: TIER.saturating_sub(clean + dirty + self.staged),
            files_total: 0,
            files_free: 0,
            classes: [0, clean, self.staged],
        }
    }

    fn written(&self) -> u64 {
        self.saves.last().filter(|save| save.written + 10 <= save.bytes).map_or(0, |save| save.written)
    }

    /// The files that may be evicted, in order; staged copies only if asked for.
    fn candidates(&self, data: bool) -> impl Iterator<Item = (MonthName, Candidate)> {
        let saves = self.saves.iter().filter(|save| save.clean && !save.gone).map(|save| {
            let (class, group) = (Class::Checkpoint, Some(save.number));
            let candidate =
                Candidate { class, pinned: false, group, last_used: save.began, bytes: save.bytes, drained: 0 };
            (MonthName::Save(save.number), candidate)
        });
        let staged = self.by_read.iter().filter(|(read, at)| self.is_staged_since(*read, *at)).map(|(read, at)| {
            let (class, bytes) = (Class::Data, self.files[*at].bytes);
            (MonthName::File(*at), Candidate { class, pinned: false, group: None, last_used: *read, bytes, drained: 0 })
        });
        saves.chain(staged.take(if data { usize::MAX } else { 0 }))
    }

    fn is_staged_since(&self, read: Duration, at: usize) -> bool {
        self.files[at].staged && self.files[at].read == Some(read)
    }

    fn order(&self) -> EvictionOrder {
        EvictionOrder::new(&self.limits, self.saves.iter().map(|save| save.number))
    }

    fn evict(&mut self, now: Duration) {
        let ahead = if self.case.policy == Policy::NoRoom { 0 } else { self.checkpoints.ahead(now, self.written()) };
        let mut wanted = self.limits.to_free(&self.usage(), self.evicting, ahead);
        self.evicting = wanted.evicting;
        if self.case.policy == Policy::AllToLow {
            wanted.data = wanted.all;
        }
        let old = self.saves.iter().rev().skip(2).any(|save| save.clean && !save.gone);
        if wanted.all == Amount::default() || !(old || wanted.asks(Class::Data)) {
            return;
        }
        let (names, candidates): (Vec<_>, Vec<_>) = self.candidates(wanted.asks(Class::Data)).unzip();
        for at in self.order().pick(&candidates, wanted) {
            self.drop_one(names[at]);
        }
    }

    fn drop_one(&mut self, name: MonthName) {
        match name {
            MonthName::File(at) => {
                let file = &mut self.files[at];
                assert!(file.staged);
                file.staged = false;
                self.staged -= file.bytes;
            }
            MonthName::Save(number) => {
                let newest = self.saves.iter().rev().take(2).any(|save| save.number == number);
                let save = self.saves.iter_mut().find(|save| save.number == number).unwrap();
                assert!(save.clean && !save.gone && !newest, "{save:?}");
                save.gone = true;
                if self.case.best == EVERY {
                    self.saves.retain(|save| !save.gone);
                }
            }
        }
    }

    fn read(&mut self, at: usize) {
        let (now, file) = (self.now, &mut self.files[at]);
        let before = file.read.replace(now);
        let epoch = self.epochs.last_mut().unwrap();
        epoch.read += file.bytes;
        if let Some(before) = before {
            self.rounds.read_again(file.set, before, now);
        }
        if file.staged {
            epoch.hit += file.bytes;
        } else if self.make_room(at, before) {
            let file = &mut self.files[at];
            file.staged = true;
            self.staged += file.bytes;
            self.epochs.last_mut().unwrap().copied += file.bytes;
        }
        if self.files[at].staged {
            self.by_read.push_back((now, at));
        }
        while self.by_read.front().is_some_and(|(read, at)| !self.is_staged_since(*read, *at)) {
            self.by_read.pop_front();
        }
        if self.by_read.len() > 4 * self.files.len() {
            let files = &self.files;
            self.by_read.retain(|(read, at)| files[*at].staged && files[*at].read == Some(*read));
        }
    }

    /// Whether the file may be staged; evicts for it.
    fn make_room(&mut self, at: usize, before: Option<Duration>) -> bool {
        let (now, size, usage) = (self.now, self.files[at].bytes, self.usage());
        let ahead = match self.case.policy {
            Policy::LateRoom => self.checkpoints.ahead(now, self.written()),
            Policy::NoRoom => 0,
            _ => self.checkpoints.expected(),
        };
        if self.limits.admits(&usage, ahead, size) {
            return true;
        }
        let interval = match self.case.policy {
            // Any idle time is longer.
            Policy::Lru => Some(Duration::ZERO),
            Policy::OneInterval => before.map(|before| now - before),
            _ => self.rounds.interval(self.files[at].set, before, now),
        };
        if interval.is_none() {
            return false;
        }
        let order = self.order();
        let victims = self.candidates(true).filter(|(_, candidate)| order.place(candidate).is_some());
        let go = self.limits.make_way(&usage, ahead, size, victims, interval, now);
        go.iter().flatten().for_each(|name| self.drop_one(*name));
        go.is_some()
    }

    /// How much of the present data set fits while checkpoints take the most room.
    fn fits(&self) -> u64 {
        (TIER / 100 * self.case.set).min(TIER / 100 * 85 - self.most_saved)
    }

    /// The epochs over a data set.
    fn of(&self, set: u64) -> Vec<MonthEpoch> {
        self.epochs.iter().copied().filter(|epoch| epoch.set == set).collect()
    }

    /// The epochs after the placement has settled.
    fn settled(&self) -> Vec<MonthEpoch> {
        [0, 1].iter().flat_map(|set| self.of(*set).into_iter().skip(SETTLED)).collect()
    }

    /// The least that was read from the fast tier in a settled epoch, as a share of what fits.
    fn least_hit(&self) -> f64 {
        self.settled().iter().map(|epoch| epoch.hit).min().unwrap() as f64 / self.fits() as f64
    }

    fn mean_hit(&self) -> f64 {
        self.settled().iter().map(|epoch| epoch.hit as f64 / epoch.read as f64).sum::<f64>()
            / self.settled().len() as f64
    }

    /// Mean bytes staged in a settled epoch, as a share of the tier.
    fn copied(&self) -> f64 {
        let settled = self.settled();
        settled.iter().map(|epoch| epoch.copied).sum::<u64>() as f64 / settled.len() as f64 / TIER as f64
    }

    /// The second data set's share of what fits, at the end of each of its first epochs.
    fn taken_over(&self) -> Vec<f64> {
        self.of(1).iter().take(SETTLED).map(|epoch| epoch.staged as f64 / self.fits() as f64).collect()
    }

    fn row(&self) -> String {
        let MonthCase { policy, set, save, shuffled, .. } = self.case;
        let order = if shuffled { "shuffled" } else { "same" };
        let fits = self.fits() as f64 / (TIER / 100 * set) as f64;
        let taken: Vec<_> = self.taken_over().iter().map(|share| format!("{:.0}%", share * 100.0)).collect();
        format!(
            "{:<12}{set:>4}%{save:>7}%  {order:<8}{:>6.1}%{:>7.1}%{:>7.1}%{:>7.2}%{:>8} of {:<7}{}",
            format!("{policy:?}"),
            fits * 100.0,
            self.mean_hit() * 100.0,
            self.least_hit() * 100.0,
            self.copied() * 100.0,
            self.short,
            self.saved,
            taken.join(" ")
        )
    }
}

const TITLE: &str = "policy        set    save  order      fits    hits   least  copied   short of room    taken over";

/// The columns: `set` is a share of the tier, `fits` and `hits` of the set, `least` of what fits, `copied` of the tier
/// in each epoch, `taken over` of what fits by the second data set at the end of its first epochs.
fn run(case: MonthCase) -> Month {
    let month = Month::new(case).run();
    println!("{}", month.row());
    month
}

#[test]
fn what_fits_stays_and_what_is_out_of_use_goes() {
    println!("{TITLE}");
    let orders =
        |set| [false, true].map(|shuffled| MonthCase { policy: Policy::Ours, set, save: 4, best: 3, shuffled });
    for case in [50, 100, 200, 400].into_iter().flat_map(orders) {
        let month = run(case);
        assert!(month.least_hit() > 0.95, "what fits is read from the fast tier");
        assert!(month.copied() < 0.001, "nothing is brought to be thrown out");
        assert_eq!(month.short, 0, "checkpoints find room");
        let taken = month.taken_over();
        // With a new order each epoch, some files of the old set have been unread no longer than files in use.
        let least = if case.shuffled { [0.75, 0.85, 0.95] } else { [0.95; 3] };
        assert!(taken[1..].iter().zip(least).all(|(taken, least)| *taken > least), "{taken:?}");
    }
    for case in [100, 200].into_iter().flat_map(orders) {
        let month = run(MonthCase { policy: Policy::Lru, ..case });
        let most = match (case.shuffled, case.set) {
            (false, _) => 0.001,
            (true, 200) => 0.1,
            (true, _) => 0.45,
        };
        assert!(month.mean_hit() < most && month.copied() > 0.5);
    }
}

/// Each rule that is not obvious, against the month without it.
#[test]
fn each_rule_is_worth_it() {
    println!("{TITLE}");
    let large = MonthCase { policy: Policy::Ours, set: 100, save: 18, best: 1, shuffled: true };
    let ours = run(large);
    assert!(ours.copied() < 0.001 && ours.least_hit() > 0.75 && ours.short == 0);
    let late = run(MonthCase { policy: Policy::LateRoom, ..large });
    assert!(late.copied() > 0.1 && late.least_hit() < ours.least_hit() && late.short > 0);
    let none = run(MonthCase { policy: Policy::NoRoom, ..large });
    assert!(none.short > none.saved / 2);
    let single = run(MonthCase { policy: Policy::OneInterval, ..large });
    assert!(single.mean_hit() < ours.mean_hit() / 2.0);

    let small = MonthCase { save: 4, best: EVERY, ..large };
    let (ours, all) = (run(small), run(MonthCase { policy: Policy::AllToLow, ..small }));
    assert!(
        ours.copied() < 0.001
            && ours.least_hit() > 0.9
            && all.copied() > 0.03
            && all.mean_hit() < 0.95 * ours.mean_hit()
    );
}

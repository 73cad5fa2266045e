//! Slots of a fleet that members give up: they go to whoever is first, and to one only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlio_fs::error::Result;
use dlio_fs::tiers::disk::{Dir, MetadataOrder};
use dlio_fs::tiers::{self, Options, SlowTree, Tiers, Watched};
use parking_lot::Mutex;

use crate::pair::text_of;
use crate::sim::{SimClock, SimDisk, SimPower};

struct Machines {
    clock: Arc<SimClock>,
    slow: SimDisk,
}

impl Machines {
    fn new() -> Machines {
        let clock = SimClock::new();
        let slow = SimDisk::new("slow", MetadataOrder::Unknown, 1 << 30, &SimPower::new(), &clock);
        Machines { clock, slow }
    }

    fn disk(&self) -> SimDisk {
        SimDisk::new("fast", MetadataOrder::Journaled, 1 << 30, &SimPower::new(), &self.clock)
    }

    fn mount(&self, fast: &SimDisk) -> Result<Tiers> {
        open(fast.root(), self.slow.root(), &self.clock)
    }
}

fn open(fast: Arc<dyn Dir>, slow: Arc<dyn Dir>, clock: &Arc<SimClock>) -> Result<Tiers> {
    let options = Options::for_tests().with(|options| {
        options.fleet = Some("job".to_owned());
        options.fleet_size = Some(2);
        options.clock_error = Some(Duration::from_millis(1));
    });
    tiers::open(fast, slow, SlowTree::Writable, options, clock.clone(), "boot")
}

fn why(refused: Result<Tiers>) -> String {
    refused.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn a_member_that_has_left_makes_room_for_another_or_for_itself() {
    let machines = Machines::new();
    let [first, second, third] = [(); 3].map(|()| machines.disk());
    let (one, two) = (machines.mount(&first).unwrap(), machines.mount(&second).unwrap());
    assert!(why(machines.mount(&third)).contains("all 2 places of fleet job are taken"));
    one.leave_fleet(|| false).unwrap();
    drop(one);
    machines.mount(&first).unwrap().leave_fleet(|| false).unwrap();
    let new = machines.mount(&third).unwrap();
    two.leave_fleet(|| false).unwrap();
    drop(two);
    drop((machines.mount(&first).unwrap(), new));
    assert!(why(machines.mount(&second)).contains("all 2 places of fleet job are taken"));
    machines.mount(&third).unwrap();
}

/// What somebody has read of the slot's last lease says that nothing older comes: not from its next member either.
#[test]
fn the_lease_of_a_slot_never_goes_back() {
    let machines = Machines::new();
    let [first, second, third] = [(); 3].map(|()| machines.disk());
    let (one, two) = (machines.mount(&first).unwrap(), machines.mount(&second).unwrap());
    machines.clock.advance(Duration::from_secs(1));
    one.leave_fleet(|| false).unwrap();
    drop((one, two));
    let before = least(&machines);
    machines.clock.set_back(Duration::from_millis(2));
    let _three = machines.mount(&third).unwrap();
    assert!(least(&machines) >= before);
}

/// What the lease in the first slot says.
fn least(machines: &Machines) -> u64 {
    let fleet = machines.slow.root().dir(b".dlio-fs").unwrap().dir(b"fleet").unwrap().dir(b"job").unwrap();
    let lease = text_of(&*fleet, "0");
    lease.split(" least=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_forgotten_member_makes_room_for_another_and_not_for_itself() {
    let machines = Machines::new();
    let [first, second, third] = [(); 3].map(|()| machines.disk());
    let (one, two) = (machines.mount(&first).unwrap(), machines.mount(&second).unwrap());
    Watched::begin(&*machines.slow.root(), "job", 0).unwrap().forget().unwrap();
    let _three = machines.mount(&third).unwrap();
    machines.clock.advance(Duration::from_secs(2));
    one.fleet_step().unwrap();
    let held = one.status().safety.held.unwrap_or_default();
    assert!(held.contains("its slot belongs to another mount"), "{held}");
    two.leave_fleet(|| false).unwrap();
    assert!(why(machines.mount(&first)).contains("was forgotten by fleet job"), "whatever slot is free");
    let again = Watched::begin(&*machines.slow.root(), "job", 0).unwrap();
    assert!(again.is_silent().unwrap(), "what the forgotten one writes goes nowhere");
}

/// A new member, and one that comes back or is new, too: the latter begins and ends at each call of the former.
#[test]
fn of_two_that_want_the_same_slot_one_gets_it() {
    for comes_back in [false, true] {
        for at in 0.. {
            let machines = Machines::new();
            let [first, second, third, fourth] = [(); 4].map(|()| machines.disk());
            let _one = machines.mount(&first).unwrap();
            machines.mount(&second).unwrap().leave_fleet(|| false).unwrap();
            let mut both = [&fourth, if comes_back { &second } else { &third }];
            if at % 2 == 1 {
                both.reverse();
            }
            let Some(mounted) = mount_within(&machines, both, at / 2) else {
                assert!(at > 60, "{at} calls");
                break;
            };
            let has = mounted.each_ref().map(|mounted| mounted.is_ok());
            assert!(has[0] != has[1], "call {at}: {has:?}");
            let (winner, loser) = if has[0] { (both[0], both[1]) } else { (both[1], both[0]) };
            drop(mounted);
            assert!(machines.mount(winner).is_ok() && machines.mount(loser).is_err(), "call {at}");
        }
    }
}

/// Mounts the first one, and the second one right before a call that this makes. `None`: it makes fewer calls.
fn mount_within(machines: &Machines, fast: [&SimDisk; 2], at: u64) -> Option<[Result<Tiers>; 2]> {
    let (calls, between) = (AtomicU64::new(0), Arc::new(Mutex::new(None)));
    machines.slow.before_calls({
        let (between, fast) = (between.clone(), fast[1].root());
        let (slow, clock) = (machines.slow.root(), machines.clock.clone());
        move || {
            if calls.fetch_add(1, Ordering::Relaxed) == at {
                *between.lock() = Some(open(fast.clone(), slow.clone(), &clock));
            }
        }
    });
    let mounted = machines.mount(fast[0]);
    let between = between.lock().take();
    Some([mounted, between?])
}

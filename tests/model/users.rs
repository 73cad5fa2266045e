//! Stories of users who share a mount: what one of them may take of what all need.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlio_fs::error::Errno;
use dlio_fs::stats::queue::Queue;
use dlio_fs::tiers::{Cx, Progress, ROOT, Tiers};

use crate::stories::{Machine, WRITE, create, drain, name};

const SHE: u32 = 1001;
const HE: u32 = 1002;

/// A file of so many bytes, on both tiers.
fn drained(engine: &Tiers, file: &str, bytes: usize) {
    engine.release(&Cx::internal(), create(engine, ROOT, file, &vec![1; bytes]).1);
    drain(engine);
}

fn evict_all(engine: &Tiers) {
    while engine.evict_step().unwrap() == Progress::Did {}
}

/// One user's pins filled the fast tier: nothing of anybody else's stayed there.
#[test]
fn what_one_user_may_pin_is_bounded() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    let eighth = engine.status().fast.total / 8;
    let denied = |uid, path: &[u8], bytes| engine.pin_file_for(uid, path, bytes).unwrap_err().errno();
    assert!(engine.pin_file_for(SHE, b"a", eighth / 2).unwrap());
    assert!(!engine.pin_file_for(SHE, b"a", eighth / 2).unwrap(), "it was");
    assert!(engine.pin_file_for(SHE, b"b", eighth / 2).unwrap());
    assert_eq!(denied(SHE, b"c", 4096), Errno::EDQUOT);
    assert!(engine.pin_file_for(HE, b"his", eighth).unwrap(), "others have shares of their own");
    // Once more, with another size.
    assert!(engine.pin_file_for(SHE, b"a", 0).unwrap() && engine.pin_file_for(SHE, b"c", 4096).unwrap());
    for i in 0..997 {
        assert!(engine.pin_file_for(SHE, format!("small{i}").as_bytes(), 0).unwrap());
    }
    assert_eq!(denied(SHE, b"one more", 0), Errno::EDQUOT);
    assert!(engine.pin_path(b"by the owner").unwrap());
    drop(engine);
    let engine = machine.open("boot");
    assert_eq!(engine.pin_file_for(SHE, b"one more", 0).unwrap_err().errno(), Errno::EDQUOT, "behind a start, too");
    assert_eq!(engine.pinned_paths(None).len(), 3 + 997 + 1 + 1);
}

/// A file that has grown since its pin was granted is evicted as any other; until then it stays.
#[test]
fn a_pinned_file_stays_while_it_is_no_larger_than_it_was() {
    let mut machine = Machine::new();
    (machine.options.high, machine.options.low) = (0.0, 0.0);
    let engine = machine.open("boot");
    for file in ["kept", "grown", "other"] {
        drained(&engine, file, 1000);
        engine.pin_file_for(SHE, file.as_bytes(), if file == "grown" { 999 } else { 1000 }).unwrap();
    }
    engine.unpin_path(b"other").unwrap();
    evict_all(&engine);
    let state = |file| {
        let ino = engine.find(&Cx::internal(), ROOT, &name(file)).unwrap().ino;
        engine.get_xattr(&Cx::internal(), ino, b"user.dlio.state").unwrap().unwrap()
    };
    assert_eq!(
        (&state("kept")[..], &state("grown")[..], &state("other")[..]),
        (&b"clean"[..], &b"slow"[..], &b"slow"[..])
    );
}

#[test]
fn one_user_has_so_many_staging_jobs() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    for _ in 0..16 {
        engine.stage_for(SHE, "hers", vec![b"data".to_vec()]).unwrap();
    }
    assert_eq!(engine.stage_for(SHE, "hers", vec![b"data".to_vec()]).unwrap_err().errno(), Errno::EDQUOT);
    engine.stage_for(HE, "his", vec![b"data".to_vec()]).unwrap();
    engine.stage("the owner's", vec![b"data".to_vec()]).unwrap();
    while engine.stage_step().unwrap() == Progress::Did {}
    engine.stage_for(SHE, "hers", vec![b"data".to_vec()]).unwrap();
}

/// Changes that are published together: what was not refused arrives, and what was is told to its user only.
#[test]
fn what_holds_a_change_is_told_to_its_user_only() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    for (user, file) in [(HE, "his"), (SHE, "hers")] {
        let cx = Cx::may_wait(user, user, Arc::default());
        let (_, open) = engine.create(&cx, ROOT, &name(file), 0o600, 0, WRITE).unwrap();
        engine.write(&cx, &open, &[1; 300], 0, false).unwrap();
        engine.release(&cx, open);
    }
    while [engine.seal_step(), engine.drain_step()].into_iter().any(|step| step.unwrap() == Progress::Did) {}
    let renames = AtomicU64::new(0);
    let second = move || renames.fetch_add(1, Ordering::Relaxed) > 0;
    machine.slow.inject(move |op| (op.call == "rename" && second()).then_some(Errno::EACCES));
    let refused = engine.publish_step().unwrap_err().to_string();
    assert!(refused.contains("hers"), "{refused}");
    let told = |queue: Queue| format!("{:?} {:?} {:?}", queue.held, queue.held_users, queue.pending);
    let (owners, his, hers) = (engine.queue(10), engine.queue_of(HE, 10), engine.queue_of(SHE, 10));
    assert_eq!((owners.events, machine.on_slow("his")), (1, Some(vec![1; 300])));
    for told in [told(owners), told(hers)] {
        assert!(told.contains("\"/hers\"") && told.contains("/hers: "), "{told}");
    }
    let his = told(his);
    assert!(!his.contains("hers"), "{his}");
}

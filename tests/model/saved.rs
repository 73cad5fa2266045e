//! What is in `saved`: it is counted, what lost a race goes when it is old, and files get their names back, wherever the machine
//! stops meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlio_fs::tiers::disk::{Clock, Dir, MetadataOrder, NewAttr, Time};
use dlio_fs::tiers::{Adopted, ROOT, adopt, remove_saved, saved_dirs};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::pair::{ORDERS, Pair, set, walk};
use crate::sim::{Lose, SimClock, SimDisk, SimPower};

type Files = BTreeSet<(String, String)>;

const NAME: &str = "n1-1795384262";
const USER: u32 = 1000;

/// Makes a file with all directories above it.
fn put(root: &Arc<dyn Dir>, path: &str, text: &str, mtime: i64) {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = above.split('/').filter(|name| !name.is_empty()).fold(root.clone(), |dir, name| {
        dir.mkdir(name.as_bytes(), 0o700).ok();
        dir.dir(name.as_bytes()).unwrap()
    });
    dir.create(name.as_bytes(), 0o600).unwrap().write_at(text.as_bytes(), 0).unwrap();
    let attrs =
        NewAttr { uid: Some(USER), gid: Some(USER), mtime: Some(Time { sec: mtime, nsec: 0 }), ..NewAttr::default() };
    dir.set_attr(name.as_bytes(), &attrs).unwrap();
}

fn in_saved(root: &Arc<dyn Dir>) -> Files {
    let mut found = Files::new();
    if let Ok(saved) = root.dir(b".dlio-fs").and_then(|ours| ours.dir(b"saved")) {
        saved.list().unwrap().iter().for_each(|time| walk(&*saved.dir(&time.name).unwrap(), "", &mut found));
    }
    found.retain(|(path, _)| !path.ends_with('/'));
    found
}

fn in_tree(root: &Arc<dyn Dir>) -> Files {
    let mut found = Files::new();
    walk(&**root, "", &mut found);
    found
}

/// Two files whose names are free, one that something older has, and one that something newer has.
fn scene(order: MetadataOrder, is_nfs: bool) -> SimDisk {
    let disk = SimDisk::new("slow", order, 1 << 30, &SimPower::new(), &SimClock::new());
    let root = disk.root();
    for (path, text, mtime) in
        [("run/1/a", "a", 50), ("run/1/b", "b", 50), ("run/latest", "1", 50), ("other", "old", 50)]
    {
        put(&root, &format!(".dlio-fs/saved/{NAME}/{path}"), text, mtime);
    }
    put(&root, "run/latest", "0", 40);
    put(&root, "other", "new", 60);
    disk.settle();
    if is_nfs {
        disk.become_nfs();
    }
    disk
}

fn adopted(root: &Arc<dyn Dir>) -> dlio_fs::error::Result<Adopted> {
    adopt(root, NAME.as_bytes(), b"", Time { sec: 100, nsec: 0 })
}

fn assert_put_back(root: &Arc<dyn Dir>, what: &str) {
    let tree =
        set([("other", "new"), ("run/", ""), ("run/1/", ""), ("run/1/a", "a"), ("run/1/b", "b"), ("run/latest", "1")]);
    assert_eq!(in_tree(root), tree, "{what}");
    assert_eq!(in_saved(root), set([("other", "old"), ("run/latest", "0")]), "{what}");
    let dir = root.dir(b"run").unwrap().stat(b"1").unwrap();
    assert_eq!((dir.uid, dir.gid, dir.perm), (USER, USER, 0o755), "{what}");
}

#[test]
fn files_get_their_names_back_where_nothing_newer_has_them() {
    for (order, is_nfs) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let disk = scene(order, is_nfs);
        let root = disk.root();
        let done = adopted(&root).unwrap();
        assert_eq!((done.files, done.exchanged), (3, 1));
        assert!(matches!(&done.left[..], [(path, why)] if path == b"other" && why.contains("newer")), "{done:?}");
        assert_put_back(&root, "at once");
        // What was older counts as old from now on only.
        let newest = saved_dirs(&*root, &[]).unwrap().last().map(|dir| (dir.files > 0, dir.since >= 1_795_384_262));
        assert_eq!(newest, Some((true, true)));
        let again = adopted(&root).unwrap();
        assert_eq!((again.files, again.left.len()), (0, if is_nfs { 1 } else { 2 }), "{again:?}");
    }
}

/// One path only, and what cannot be adopted at all.
#[test]
fn a_part_is_adopted_alone_and_what_is_not_whole_never() {
    let disk = scene(MetadataOrder::Journaled, false);
    let root = disk.root();
    let now = Time { sec: 100, nsec: 0 };
    assert_eq!(adopt(&root, NAME.as_bytes(), b"run/1/a", now).unwrap().files, 1);
    // Nothing is left of a directory that has nothing any more.
    put(&root, ".dlio-fs/saved/n0-1795384262/run/z", "z", 50);
    assert_eq!(adopt(&root, b"n0-1795384262", b"run", now).unwrap().files, 1);
    assert!(saved_dirs(&*root, &[]).unwrap().iter().all(|dir| dir.name == NAME.as_bytes()));
    assert_eq!(in_saved(&root).len(), 3);
    put(&root, ".dlio-fs/saved/n1-1795384263.part/x", "half", 50);
    for name in ["n1-1795384263.part", "n2-1"] {
        assert!(adopt(&root, name.as_bytes(), b"", now).is_err(), "{name}");
    }
    assert!(!in_tree(&root).contains(&("x".to_owned(), "half".to_owned())));
    // Somebody's link or file where a directory has to be.
    put(&root, ".dlio-fs/saved/n3-1795384262/link/y", "y", 50);
    put(&root, ".dlio-fs/saved/n3-1795384262/file/y", "y", 50);
    root.symlink(b"link", b"run").unwrap();
    put(&root, "file", "a file", 10);
    let done = adopt(&root, b"n3-1795384262", b"", now).unwrap();
    assert_eq!((done.files, done.left.len()), (0, 2), "{done:?}");
}

#[test]
fn a_stop_at_any_call_loses_no_file_and_the_next_try_goes_on() {
    let all = |root: &Arc<dyn Dir>| -> BTreeSet<String> {
        in_tree(root)
            .union(&in_saved(root))
            .filter(|(path, _)| !path.ends_with('/'))
            .map(|(_, text)| text.clone())
            .collect()
    };
    let texts: BTreeSet<String> = ["a", "b", "0", "1", "old", "new"].map(str::to_owned).into();
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(7);
    for (order, is_nfs) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        for lose in [Lose::Nothing, Lose::Unsynced, Lose::Unsynced] {
            let mut stop = 1;
            loop {
                let disk = scene(order, is_nfs);
                disk.power().fail_after(stop, &mut dice);
                let done = adopted(&disk.root());
                let is_gone = disk.power().is_gone();
                assert_eq!(done.is_err(), is_gone, "call {stop}: {done:?}");
                disk.power().restore();
                let disk = disk.crash(lose, &mut dice);
                let (root, what) = (disk.root(), format!("{order:?}, NFS {is_nfs}, {lose:?}, call {stop}"));
                assert_eq!(all(&root), texts, "{what}");
                adopted(&root).unwrap();
                assert_put_back(&root, &what);
                if !is_gone {
                    break;
                }
                stop += 1;
            }
            assert!(stop > 8, "{stop}");
        }
    }
}

/// It grew for ever, and nobody saw how large it was.
#[test]
fn what_lost_a_race_goes_when_it_is_old_and_all_of_it_is_counted() {
    let pair = Pair::new(MetadataOrder::Journaled);
    let (root, engine) = (pair.slow.root(), &pair.members[0]);
    let hour = Duration::from_secs(3700);
    let now = pair.clock.now().sec;
    let day = 86_400;
    let old = |days: i64| now - days * day;
    let make = |name: String, since: i64| {
        put(&root, &format!(".dlio-fs/saved/{name}/run/x"), "four", 50);
        let saved = root.dir(b".dlio-fs").unwrap().dir(b"saved").unwrap();
        let mtime = Some(Time { sec: since, nsec: 0 });
        saved.set_attr(name.as_bytes(), &NewAttr { mtime, ..NewAttr::default() }).unwrap();
    };
    let look = || {
        pair.clock.advance(hour);
        engine.saved_step().unwrap();
        engine.status().saved.unwrap()
    };
    engine.saved_step().unwrap();
    assert_eq!(engine.status().saved, None, "not in the first minute");
    assert_eq!((look().files, engine.status().saved.unwrap().oldest), (0, None));
    for (name, days) in [("fleet", 31), ("fleet", 29), ("removed", 40)] {
        make(format!("n1-{}-{name}", old(days)), old(days));
    }
    make(format!("gpu-fleet-{}", old(50)), old(50));
    make(format!("n1-{}", old(45)), old(45));
    let saved = look();
    assert_eq!((saved.files, saved.bytes), (4, 16), "{:?}", saved_dirs(&*root, &[]));
    assert!(saved.oldest.unwrap() >= Duration::from_secs(50 * day as u64));
    let text = engine.status().text();
    assert!(text.contains("\nsaved        16 B in 4 files on the slow tier, see dlio-fs saved\n"), "{text}");
    // Something came into one that had not changed for long: its own time shows it.
    make(format!("n1-{}-removed", old(40) + 1), old(40));
    assert_eq!((look().files, look().files), (5, 5));
    for dir in saved_dirs(&*root, &[]).unwrap() {
        remove_saved(&*root, &dir.name).unwrap();
    }
    assert_eq!((look().files, in_saved(&root)), (0, set([])));
    // The members go on.
    pair.put(0, ROOT, "more", "it");
    pair.all_down([0, 1]);
}

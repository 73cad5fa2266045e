//! Tiers as they fail in practice: not mounted, full, read-only, changed by somebody else, with a damaged log. Each test
//! is named as the promise it pins down. Needs root, /dev/fuse and loop devices.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Whence, lseek64};

use crate::common::rig::program;
use crate::common::trees::{NEVER_SETTLES, assert_same, content, fingerprint, state, the_application_goes_on, tree};
use crate::common::{Elsewhere, Mount, Volume, errno, names, pattern, succeeded, until};
use crate::needs::{MOUNTS, needs};

/// As [`NEVER_SETTLES`], and the kernel asks for everything anew.
const NOTHING_CACHED: [&str; 5] =
    ["settle=30min", "live_after=1h", "high=98%", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"];

fn spilled(mount: &Mount) -> u64 {
    mount.stats_json()["exceptions"]["spilled"].as_u64().unwrap()
}

fn conflicts(mount: &Mount) -> u64 {
    mount.stats_json()["exceptions"]["conflicts"].as_u64().unwrap()
}

// P7: one owner, and the slow tree that is known

#[test]
fn a_slow_tier_that_is_not_mounted_is_refused() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(16, 256);
    let mut mount = Mount::on(Elsewhere { slow: Some(volume.root()), ..Elsewhere::default() }, &NEVER_SETTLES);
    mount.put("known", "on both");
    mount.sync();
    mount.put("pending", "only on fast");
    mount.stop();
    volume.detach();
    let fast = fingerprint(&mount.fast());
    assert!(fast.contains("left files=1 events=1\npending\n"), "{fast}");
    let (code, said) = mount.refused();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is the slow tier not mounted?") && said.lines().count() == 1, "{said}");
    let expected = format!("an empty directory is in its place (--fast {}", mount.fast().display());
    assert!(said.contains("the fast tier belongs to the slow tree ") && said.contains(&expected), "{said}");
    assert_eq!(fs::read_dir(volume.root()).unwrap().count(), 0, "nothing is created in the bare directory");
    assert_eq!(fingerprint(&mount.fast()), fast, "nor changed on the fast tier");
    volume.attach();
    mount.start();
    mount.sync();
    assert_eq!(fs::read(volume.root().join("known")).unwrap(), b"on both");
    assert_eq!(fs::read(volume.root().join("pending")).unwrap(), b"only on fast");
}

#[test]
fn another_slow_tree_is_refused() {
    needs!(MOUNTS);
    let mut other = Mount::new();
    other.put("theirs", "theirs");
    other.sync();
    other.stop();
    let mut mount = Mount::with(&NEVER_SETTLES, |_| ());
    mount.put("pending", "only on fast");
    mount.stop();
    let (ours, tiers) = (mount.slow(), || (fingerprint(&mount.fast()), fingerprint(&other.slow())));
    let before = tiers();
    let mut wrong = Mount::idle(Elsewhere { fast: Some(mount.fast()), slow: Some(other.slow()) }, &[]);
    let (code, said) = wrong.refused();
    assert_eq!(code, Some(1), "{said}");
    let id = |slow: &Path| fs::read_to_string(slow.join(".dlio-fs/id")).unwrap().trim().to_owned();
    assert!(said.contains(&id(&ours)) && said.contains(&id(&other.slow())), "both are named: {said}");
    let found = format!(
        "this one is {} (--fast {}, --slow {}",
        id(&other.slow()),
        mount.fast().display(),
        other.slow().display()
    );
    assert!(said.contains(&found) && said.contains("its own slow tier") && said.lines().count() == 1, "{said}");
    assert_eq!(tiers(), before, "nothing is created or changed");
    wrong.elsewhere.slow = Some(ours);
    wrong.start();
    assert_eq!(fs::read(wrong.at("pending")).unwrap(), b"only on fast");
}

#[test]
fn a_fast_tier_of_another_format_is_refused_and_not_touched() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&NEVER_SETTLES, |_| ());
    mount.put("pending", "only on fast");
    mount.stop();
    let path = mount.fast().join(".dlio-fs/super");
    let ours = fs::read_to_string(&path).unwrap();
    let line = ours.lines().find(|line| line.starts_with("format = ")).unwrap();
    for (format, age) in [(2, "an older"), (99, "a newer")] {
        fs::write(&path, ours.replace(line, &format!("format = {format}"))).unwrap();
        let before = fingerprint(&mount.fast());
        let (code, said) = mount.refused();
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains(&format!("is in format {format}, of {age} dlio-fs; this one reads and writes")),
            "{said}"
        );
        assert!(said.contains("move its .dlio-fs away") && said.lines().count() == 1, "{said}");
        assert_eq!(fingerprint(&mount.fast()), before);
    }
    fs::write(&path, ours).unwrap();
    mount.start();
    assert_eq!(fs::read(mount.at("pending")).unwrap(), b"only on fast");
}

#[test]
fn what_a_user_has_under_our_names_in_the_slow_tree_is_hidden_or_refused_and_never_changed() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&[], |slow| {
        fs::create_dir_all(slow.join(".dlio")).unwrap();
        fs::write(slow.join(".dlio/stats"), "a user's").unwrap();
        fs::create_dir_all(slow.join("run/.dlio-fs")).unwrap();
        fs::write(slow.join("run/.dlio"), "in the root only").unwrap();
    });
    assert!(mount.log().contains("has a .dlio of its own"), "{}", mount.log());
    assert!(mount.stats().starts_with("SAFE"));
    assert_eq!(names(&mount.root()), ["run"], "listed it would be one that leads to ours");
    assert_eq!(fs::read_to_string(mount.at("run/.dlio")).unwrap(), "in the root only");
    mount.put("run/.dlio-fs/f", "below");
    mount.sync();
    assert_eq!(fs::read_to_string(mount.slow().join("run/.dlio-fs/f")).unwrap(), "below");
    mount.stop();
    assert_eq!(fs::read_to_string(mount.slow().join(".dlio/stats")).unwrap(), "a user's");

    let theirs = Mount::idle(Elsewhere::default(), &[]);
    fs::create_dir(theirs.slow().join(".dlio-fs")).unwrap();
    fs::write(theirs.slow().join(".dlio-fs/notes"), "a user's").unwrap();
    let (code, said) = theirs.refused();
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("has a .dlio-fs that dlio-fs did not make") && said.contains("find out whose it is"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(theirs.slow().join(".dlio-fs/notes")).unwrap(), "a user's");
    assert_eq!(fs::read_dir(theirs.fast()).unwrap().count(), 0);
}

// P5: never torn

/// The model's background copies a version in one step, so only here somebody writes while it is copied.
#[test]
fn a_version_that_is_rewritten_while_it_is_copied_is_not_published() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s", "live_after=1h"], |_| ());
    let slow = mount.slow().join("f");
    let mut seen = BTreeMap::new();
    for round in 0..40_u8 {
        let path = mount.at("f");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
        // Towards the copy, which begins at the front.
        for piece in (0..8).rev() {
            file.write_all_at(&vec![round; 1 << 20], piece << 20).unwrap();
        }
        drop(file);
        // The next round writes into the copy that has just begun.
        assert!((0..1_000_000).any(|_| state(&path) != b"dirty"), "never copied");
        // What is published lies there for good: the next version comes by a rename.
        let Ok(bytes) = fs::read(&slow) else { continue };
        if bytes.is_empty() && seen.is_empty() {
            // As it was when it was made.
            continue;
        }
        assert_eq!(bytes.len(), 8 << 20);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn in round {round}");
        *seen.entry(bytes[0]).or_insert(0) += 1;
    }
    mount.sync();
    assert!(fs::read(&slow).unwrap() == vec![39; 8 << 20], "seen on the way: {seen:?}");
}

// P8: a full fast tier is no error

#[test]
fn three_times_the_fast_tier_is_written_without_an_error() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 1024);
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &["ballast=4MiB"]);
    let files: Vec<(String, usize)> =
        (0..14).map(|i| (format!("run/{i}"), 8 << 20)).chain([("run/larger-than-the-tier".into(), 80 << 20)]).collect();
    fs::create_dir(mount.at("run")).unwrap();
    for (i, (name, len)) in files.iter().enumerate() {
        let mut file = File::create(mount.at(name)).unwrap();
        // In pieces: that it does not fit is found in the middle of the file.
        content(i, *len).chunks(1 << 20).for_each(|piece| file.write_all(piece).unwrap());
    }
    let equal = |root: &Path| {
        for (i, (name, len)) in files.iter().enumerate() {
            assert!(fs::read(root.join(name)).unwrap() == content(i, *len), "{name}");
        }
    };
    equal(&mount.root());
    assert!(spilled(&mount) > 0, "{}", mount.stats());
    mount.sync();
    equal(&mount.slow());
    assert_same(&mount.root(), &mount.slow());
    assert_eq!(names(&mount.slow().join(".dlio-fs/tmp")).len(), 1, "of this fast tier only");
}

/// Writes to a file until there is no room left, not for a byte.
fn fill(file: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
    for piece in [1 << 20, 4096, 1] {
        let bytes = vec![9; piece];
        let full = std::iter::repeat_with(|| file.write_all(&bytes)).find_map(Result::err).unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }
}

/// Somebody else has taken all of the fast tier, also what was set aside for a start. The mount was refused, and nothing could be read before
/// somebody had made room.
#[test]
fn a_start_that_finds_no_room_on_the_fast_tier_is_read_only() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 1024);
    let mut mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &["ballast=1MiB"]);
    mount.control("pause");
    mount.put("ckpt", "weights");
    fs::create_dir(mount.at("dir")).unwrap();
    // Of each file that was cut off a start logs what it is: more than fits into the rest of a block.
    let mut open: Vec<_> =
        (0..60).map(|i| File::create(mount.at(format!("{}{i}", "f".repeat(240)))).unwrap()).collect();
    open.iter_mut().for_each(|file| file.write_all(b"cut off").unwrap());
    let filler = volume.root().join("filler");
    fill(&filler);
    // What a directory has is in the log only, and few of these fill it.
    let set = |i: u8| xattr::set(mount.at("dir"), "user.last", &[i; 3000]);
    let log_is_full = (128..=255).cycle().take(10_000).find_map(|i| set(i).err()).unwrap();
    assert_eq!(log_is_full.kind(), std::io::ErrorKind::StorageFull);
    mount.kill();
    drop(open);
    for set_aside in ["spare", "ballast"] {
        drop(fs::remove_file(volume.tier().join(".dlio-fs").join(set_aside)));
    }
    fill(&filler);

    mount.start();
    assert_eq!(fs::read_to_string(mount.at("ckpt")).unwrap(), "weights");
    assert_eq!(errno(File::create(mount.at("new"))), Errno::EROFS);
    assert_eq!(errno(fs::remove_file(mount.at("ckpt"))), Errno::EROFS);
    let stats = mount.stats();
    assert!(stats.starts_with("NOT SAFE") && stats.contains("bytes for this start"), "{stats}");
    let left = program().arg("umount").arg(mount.root()).output().unwrap();
    assert_eq!(left.status.code(), Some(3), "it does not wait for what cannot come: {left:?}");
    assert!(String::from_utf8_lossy(&left.stdout).contains("ckpt"), "{left:?}");
    mount.ended();

    fs::remove_file(&filler).unwrap();
    mount.start();
    assert_eq!(fs::read_to_string(mount.at("ckpt")).unwrap(), "weights");
    mount.put("new", "more");
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
}

/// What was written before the tier was full is still there and nowhere else; only the drain takes it over.
#[test]
fn a_file_that_stops_fitting_goes_on_without_a_copy_of_its_beginning() {
    needs!(MOUNTS, "mkfs.ext4");
    const MIB: usize = 1 << 20;
    let volume = Volume::new(64, 1024);
    let options = [&NEVER_SETTLES[..], &["ballast=4MiB"]].concat();
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    // With a full fast tier the drain begins with a file that is still being written.
    mount.control("pause");
    let mut wanted = content(1, 100 * MIB);
    let mut file = File::create_new(mount.at("large")).unwrap();
    wanted.chunks(MIB).for_each(|piece| file.write_all(piece).unwrap());
    let tmp = mount.slow().join(".dlio-fs/tmp");
    let tmp = tmp.join(&names(&tmp)[0]);
    let tail = fs::metadata(tmp.join(&names(&tmp)[0])).unwrap();
    assert_eq!((tail.len(), names(&tmp).len()), (100 << 20, 1), "{:?}", names(&tmp));
    assert!(tail.blocks() * 512 < 80 << 20, "{} bytes on the slow tier", tail.blocks() * 512);
    // Across the point, on both sides of it, and the end cut off.
    for at in [0, 40 * MIB, 70 * MIB] {
        let piece = content(2, 20 * MIB);
        file.write_all_at(&piece, at as u64).unwrap();
        wanted[at..at + piece.len()].copy_from_slice(&piece);
    }
    file.set_len(95 << 20).unwrap();
    wanted.truncate(95 * MIB);
    assert!(fs::read(mount.at("large")).unwrap() == wanted);
    drop(file);
    mount.control("resume");
    mount.sync();
    assert!(fs::read(mount.slow().join("large")).unwrap() == wanted);
    assert!(fs::read(mount.at("large")).unwrap() == wanted);
    assert_eq!(names(&tmp), [""; 0]);
}

/// Its length was 0 from its publish on, because the view went on with what it knew when the file was made. Reading to the
/// end does not notice; git and safetensors, who map a file, took theirs for empty.
#[test]
fn a_file_that_did_not_fit_keeps_its_length_when_it_is_published() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(48, 256);
    let options =
        [&["ballast=1MiB", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"], &NEVER_SETTLES[..]].concat();
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    fs::create_dir(mount.at("run")).unwrap();
    volume.fill(0);
    let path = mount.put("run/spilled", content(0, 100_000));
    assert!(spilled(&mount) > 0, "{}", mount.stats());
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    mount.sync();
    let shown = fs::metadata(&path).unwrap();
    assert_eq!((shown.len(), shown.modified().unwrap()), (100_000, modified));
    assert_same(&mount.root(), &mount.slow());
}

/// The name was made, then the attributes for the answer needed the slow tier, so the call was repeated: EEXIST. git makes
/// every object so.
#[test]
fn a_file_that_did_not_fit_gets_a_second_name() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(48, 256);
    let options = [&["ballast=1MiB"], &NEVER_SETTLES[..]].concat();
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    fs::create_dir(mount.at("run")).unwrap();
    volume.fill(0);
    for i in 0..20 {
        let path = mount.put(&format!("run/{i}"), content(i, 10_000));
        fs::hard_link(&path, mount.at(format!("run/{i} too"))).unwrap();
        fs::remove_file(path).unwrap();
    }
    assert!(spilled(&mount) > 0, "{}", mount.stats());
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
}

/// Between its rename into place and the end of the publish a spilled file was found under neither of its names: ENOENT,
/// then ESTALE.
#[test]
fn files_that_did_not_fit_are_there_while_they_are_published() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(48, 256);
    let options = ["ballast=1MiB", "settle=0s", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"];
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    fs::create_dir(mount.at("run")).unwrap();
    volume.fill(0);
    for i in 0..200 {
        mount.put(&format!("run/{i}"), content(i, 5_000));
        // Those that are on their way now.
        for before in (i.max(40) - 40)..=i {
            let path = mount.at(format!("run/{before}"));
            assert_eq!(fs::metadata(&path).map(|shown| shown.len()).map_err(|e| e.to_string()), Ok(5_000), "{before}");
            let read = fs::read(&path).unwrap_or_else(|e| panic!("{before} of {i}: {e}"));
            assert!(read == content(before, 5_000), "{before}");
        }
    }
    assert!(spilled(&mount) > 100, "{}", mount.stats());
}

#[test]
fn what_was_written_is_published_when_somebody_fills_the_fast_tier() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(48, 256);
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &NEVER_SETTLES);
    fs::create_dir(mount.at("run")).unwrap();
    for i in 0..10 {
        mount.put(&format!("run/{i}"), content(i, 100_000));
    }
    volume.fill(0);
    let open = File::open(mount.at("run/0")).unwrap();
    // Not even a fingerprint finds room: the objects go, and whoever has one open goes on with it.
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
    let mut read = vec![0; 100_000];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == content(0, 100_000));
    OpenOptions::new().append(true).open(mount.at("run/0")).unwrap().write_all(b"more").unwrap();
    mount.sync();
    assert_eq!(fs::read(mount.slow().join("run/0")).unwrap(), [&content(0, 100_000)[..], b"more"].concat());
}

#[test]
fn the_ballast_lets_the_log_go_on_when_somebody_fills_the_fast_tier() {
    needs!(MOUNTS, "mkfs.ext4");
    let (volume, slow) = (Volume::new(48, 256), Volume::new(16, 256));
    let tiers = Elsewhere { fast: Some(volume.tier()), slow: Some(slow.tier()) };
    let mount = Mount::on(tiers, &[&NEVER_SETTLES[..], &["ballast=8MiB"]].concat());
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/before", "before");
    // Nothing is published, which would shorten the log.
    slow.remount("ro");
    let ballast = volume.tier().join(".dlio-fs/ballast");
    assert_eq!(fs::metadata(&ballast).unwrap().len(), 8 << 20);
    let mut fillers = vec![volume.fill(0)];
    // More records than the segment has room set aside for: what comes then is the ballast's.
    let mut value = pattern(3000);
    let mut log_one = || {
        value[0] = value[0].wrapping_add(1);
        xattr::set(mount.at("run"), "user.note", &value).unwrap();
        value.clone()
    };
    for round in 0.. {
        log_one();
        if !ballast.exists() {
            break;
        }
        assert!(round < 20_000, "the log never needed the ballast");
    }
    // What the ballast had is the log's, not whoever's comes first.
    fillers.push(volume.fill(0));
    for _ in 0..150 {
        log_one();
    }
    fs::rename(mount.at("run/before"), mount.at("run/renamed")).unwrap();
    let value = log_one();
    fillers.iter().for_each(|filler| fs::remove_file(filler).unwrap());
    slow.remount("rw");
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
    assert_eq!(names(&mount.slow().join("run")), ["renamed"]);
    assert_eq!(xattr::get(mount.slow().join("run"), "user.note").unwrap().unwrap(), value);
    until("the ballast is back", || fs::metadata(&ballast).is_ok_and(|ballast| ballast.len() == 8 << 20));
}

/// While its object is renamed into place, a file that did not fit has no name that the view knows. It was ENOENT for that
/// moment, and what it had been at its creation, empty, from then on.
#[test]
fn a_file_that_did_not_fit_is_there_and_whole_all_the_while_it_is_published() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 256);
    let options = ["settle=0s", "ballast=1MiB", "revalidate=0s", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"];
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    fs::create_dir(mount.at("run")).unwrap();
    volume.fill(0);
    for round in 0..40 {
        let (name, len) = (format!("run/{}", round % 20), 1 + round);
        let path = mount.put(&name, content(round, len));
        // A look after it was published as well.
        for published in [false, true] {
            until("it is published", || {
                assert_eq!(fs::metadata(&path).unwrap().len(), len as u64, "round {round}");
                assert!(fs::read(&path).unwrap() == content(round, len), "round {round}");
                published || state(&path) == b"slow"
            });
        }
    }
    assert!(spilled(&mount) >= 20, "{}", mount.stats());
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
}

/// A rename of a directory is done on the slow tier before the view knows. For that moment, an fsync long, what is on slow only was
/// looked for where it had been: attributes, look-ups and opens below it failed with ENOENT or ESTALE.
#[test]
fn what_is_below_a_directory_is_there_all_the_while_its_rename_is_published() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 256);
    let below = volume.tier().join("0/below");
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("file"), content(1, 10_000)).unwrap();
    symlink("file", below.join("link")).unwrap();
    xattr::set(&below, "user.tag", b"there").unwrap();
    let options = ["settle=0s", "revalidate=0s", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"];
    let mount = Mount::over(volume.tier(), &options);
    for round in 0..60 {
        let dir = mount.at(format!("{}/below", round + 1));
        fs::rename(mount.at(round.to_string()), dir.parent().unwrap()).unwrap();
        // A look after it was published as well.
        for published in [false, true] {
            until("it is published", || {
                assert_eq!(xattr::get(&dir, "user.tag").unwrap().as_deref(), Some(&b"there"[..]), "round {round}");
                assert_eq!(names(&dir), ["file", "link"], "round {round}");
                assert!(fs::read(dir.join("file")).unwrap() == content(1, 10_000), "round {round}");
                assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("file"), "round {round}");
                published || volume.tier().join((round + 1).to_string()).exists() && mount.verdict().starts_with("SAFE")
            });
        }
    }
}

/// The same of a file that loses the first of its names.
#[test]
fn a_file_with_two_names_is_there_all_the_while_the_removal_of_one_is_published() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 256);
    fs::create_dir_all(volume.tier()).unwrap();
    for round in 0..60 {
        let file = volume.tier().join(format!("{round}-a"));
        fs::write(&file, content(round, 1000)).unwrap();
        fs::hard_link(&file, volume.tier().join(format!("{round}-b"))).unwrap();
    }
    let options = ["settle=0s", "revalidate=0s", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"];
    let mount = Mount::over(volume.tier(), &options);
    for round in 0..60 {
        let (gone, kept) = (format!("{round}-a"), mount.at(format!("{round}-b")));
        // Known by both names, in this order.
        assert_eq!([&mount.at(&gone), &kept].map(|path| fs::metadata(path).unwrap().nlink()), [2, 2]);
        fs::remove_file(mount.at(&gone)).unwrap();
        for published in [false, true] {
            until("it is published", || {
                assert!(xattr::list(&kept).unwrap().next().is_none(), "round {round}");
                assert!(fs::read(&kept).unwrap() == content(round, 1000), "round {round}");
                published || !volume.tier().join(&gone).exists() && mount.verdict().starts_with("SAFE")
            });
        }
    }
}

/// To be told of the slow tier, which has room, sends the operator to the wrong disk.
#[test]
fn a_log_without_room_is_told_as_the_fast_tier_s() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(12, 64);
    let options = [&NEVER_SETTLES[..], &["ballast=1MiB"]].concat();
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    fs::create_dir(mount.at("d")).unwrap();
    volume.fill(0);
    let log_one = |i: u32| fs::set_permissions(mount.at("d"), fs::Permissions::from_mode(0o700 + i % 8));
    let refused = (0..).find_map(|i| log_one(i).err()).unwrap();
    assert_eq!(refused.raw_os_error(), Some(Errno::ENOSPC as i32));
    mount.control("front /d");
    until("the order is held", || mount.verdict().contains("HELD: "));
    let verdict = mount.verdict();
    assert!(verdict.contains("HELD: append log on the fast tier: No space left"), "{verdict}");
    assert!(verdict.contains("free space or raise the quota on the fast tier"), "{verdict}");
}

#[test]
fn a_fast_tier_without_inodes_is_no_error() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 64);
    let options = [&NEVER_SETTLES[..], &["ballast=1MiB"]].concat();
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    fs::create_dir(mount.at("run")).unwrap();
    for i in 0..200 {
        mount.put(&format!("run/{i}"), content(i, 5_000));
    }
    assert!(spilled(&mount) > 100, "{}", mount.stats());
    for i in 0..200 {
        assert!(fs::read(mount.at(format!("run/{i}"))).unwrap() == content(i, 5_000), "{i}");
    }
    mount.sync();
    assert_eq!(tree(&mount.slow()).len(), 201);
    assert_same(&mount.root(), &mount.slow());
}

/// The log's own room was no help on a file system that writes elsewhere what is written over, and the room of what was removed came late:
/// a close got ENOSPC, and the order was held for good.
#[test]
fn a_btrfs_that_gets_full_is_no_error() {
    needs!(MOUNTS, "mkfs.btrfs");
    let volume = Volume::btrfs(400);
    let options = ["settle=0s", "ballast=16MiB"];
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    // No two blocks are the same, should it compress.
    let bytes: Vec<u8> = pattern(40 << 20);
    for i in 0..11 {
        mount.put(&format!("{i}"), &bytes);
    }
    mount.sync();
    for i in [0, 5, 10] {
        assert!(fs::read(mount.slow().join(format!("{i}"))).unwrap() == bytes, "{i}");
    }
}

// P9: a slow tier that refuses

#[test]
fn a_full_slow_tier_holds_publishing_until_there_is_room() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 512);
    let mount = Mount::on(Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() }, &["settle=0s"]);
    fs::create_dir(mount.at("run")).unwrap();
    mount.sync();
    let filler = volume.fill(3 << 20);
    for i in 0..4 {
        mount.put(&format!("run/{i}"), content(i, 2 << 20));
    }
    until("the statistics say so first", || mount.verdict().contains("HELD: "));
    let verdict = mount.verdict();
    assert!(verdict.starts_with("NOT SAFE: ") && verdict.contains("free space or raise the quota"), "{verdict}");
    assert_eq!(mount.status(), Some(4));
    the_application_goes_on(&mount);
    for name in names(&volume.tier().join("run")) {
        assert_eq!(fs::metadata(volume.tier().join("run").join(&name)).unwrap().len(), 2 << 20, "{name:?} is whole");
    }
    fs::remove_file(filler).unwrap();
    until("it goes on by itself", || mount.verdict().starts_with("SAFE"));
    assert_eq!(mount.status(), Some(0));
    assert_eq!(tree(&volume.tier()).len(), 1 + 4 + 1 + 19);
    assert_same(&mount.root(), &volume.tier());
}

/// With three checkpoints the tier is full: the removal of the oldest waits behind the newest.
#[test]
fn a_full_slow_tier_lets_removals_go_first() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 512);
    let elsewhere = Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() };
    let mount = Mount::on(elsewhere, &["settle=0s"]);
    for i in 0..8 {
        mount.put(&format!("ckpt-{i}"), content(i, 13 << 20));
        if i > 1 {
            fs::remove_file(mount.at(format!("ckpt-{}", i - 2))).unwrap();
        }
        if i == 2 {
            let mut sync = program();
            let mut sync = sync.arg("sync").arg(mount.root()).stderr(Stdio::piped()).spawn().unwrap();
            let mut told = String::new();
            BufReader::new(sync.stderr.take().unwrap()).read_line(&mut told).unwrap();
            assert!(told.contains("No space left on device"), "why it waits: {told}");
            sync.kill().unwrap();
            sync.wait().unwrap();
            until("it is told", || {
                mount.verdict().contains("`dlio-fs reload -o full_slow=remove-first` lets them go first")
            });
            let mut reload = program();
            succeeded(reload.args(["reload", "-o", "full_slow=remove-first"]).arg(mount.root()).output().unwrap());
        }
        mount.sync();
    }
    assert_eq!(names(&volume.tier()).len(), 3, "two checkpoints and what is ours");
    assert_same(&mount.root(), &volume.tier());
    assert!(mount.stats().contains(" removed first"), "{}", mount.stats());
}

/// A write got ENOSPC beside a copy that only spared a read.
#[test]
fn a_clean_checkpoint_goes_before_a_write_fails() {
    needs!(MOUNTS, "mkfs.ext4");
    let (fast, slow) = (Volume::new(64, 1024), Volume::new(96, 1024));
    let tiers = Elsewhere { fast: Some(fast.tier()), slow: Some(slow.tier()) };
    let mount = Mount::on(tiers, &["settle=0s", "ballast=1MiB", "keep=1", "high=98%"]);
    mount.put("ckpt-1", content(1, 30 << 20));
    mount.sync();
    let filler = slow.fill(0);
    mount.put("ckpt-2", content(2, 40 << 20));
    assert!(fs::read(mount.at("ckpt-1")).unwrap() == content(1, 30 << 20), "from the slow tier");
    fs::remove_file(filler).unwrap();
    mount.sync();
    assert!(fs::read(slow.tier().join("ckpt-2")).unwrap() == content(2, 40 << 20));
}

/// "free space", and there was plenty.
#[test]
fn a_slow_tier_without_inodes_is_named_so() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 64);
    let mount = Mount::on(Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() }, &["settle=0s"]);
    let mut fillers = (0..100).map(|i| volume.tier().join(format!("filler-{i}")));
    let full = fillers.find_map(|filler| File::create(filler).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    mount.put("ckpt", "weights");
    until("it is told", || mount.verdict().contains("; it has no inodes left (df -i): remove files there"));
    fs::remove_file(volume.tier().join("filler-0")).unwrap();
    mount.sync();
    assert_eq!(fs::read_to_string(volume.tier().join("ckpt")).unwrap(), "weights");
}

#[test]
fn a_read_only_slow_tier_holds_publishing_until_it_can_be_written() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 512);
    fs::write(volume.tier().join("cold"), "from the slow tier").unwrap();
    let mut mount = Mount::on(Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() }, &["settle=0s"]);
    fs::create_dir(mount.at("run")).unwrap();
    mount.sync();
    volume.remount("ro");
    mount.put("run/first", "first");
    until("the statistics say so first", || mount.verdict().contains("HELD: "));
    let verdict = mount.verdict();
    assert!(verdict.contains("Read-only file system") && verdict.contains("remount its file system"), "{verdict}");
    assert!(verdict.ends_with("ETA unknown"), "at no rate of before: {verdict}");
    assert_eq!(mount.status(), Some(4));
    the_application_goes_on(&mount);
    OpenOptions::new().append(true).open(mount.at("cold")).unwrap().write_all(b", changed").unwrap();
    assert_eq!(fs::read_to_string(mount.at("cold")).unwrap(), "from the slow tier, changed");

    mount.stop();
    let (code, said) = mount.refused();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("mounted read-only; remount it for writing"), "{said}");
    volume.remount("rw");
    mount.start();
    volume.remount("ro");
    mount.put("run/second", "second");
    until("it is held again", || mount.verdict().contains("HELD: "));
    volume.remount("rw");
    until("it goes on by itself", || mount.verdict().starts_with("SAFE"));
    assert_eq!(tree(&volume.tier()).len(), 1 + 1 + 2 + 1 + 19);
    assert_same(&mount.root(), &volume.tier());
    assert_eq!(fs::read_to_string(volume.tier().join("cold")).unwrap(), "from the slow tier, changed");
}

/// A file that is rewritten in place before it was copied waits for its next commit. With that refused at `max_pending`
/// nothing could ever be published again, and no room made.
#[test]
fn at_max_pending_changes_are_refused_until_there_is_room() {
    needs!(MOUNTS);
    let options = [&NEVER_SETTLES[..], &["max_pending=1000"]].concat();
    let mount = Mount::with(&options, |_| ());
    // All but a few first: every process that another test starts closes its copies of our files, which commits them.
    (0..990).for_each(|i| fs::create_dir(mount.at(format!("{i}"))).unwrap());
    let path = mount.put("rewritten", "first");
    let rewritten = OpenOptions::new().write(true).open(&path).unwrap();
    rewritten.write_all_at(b"again", 0).unwrap();
    let mut open = File::create(mount.at("open")).unwrap();
    open.write_all(b"written before").unwrap();
    let refused = (990..2_000).find_map(|i| fs::create_dir(mount.at(format!("{i}"))).err()).expect("a limit");
    assert_eq!(refused.raw_os_error(), Some(Errno::ENOSPC as i32));
    assert_eq!(mount.stats_json()["pipeline"]["pending_events"], 1000);
    let verdict = mount.verdict();
    assert!(verdict.starts_with("NOT SAFE: ") && verdict.contains("REFUSING CHANGES (ENOSPC)"), "{verdict}");
    assert_eq!(mount.status(), Some(4));
    assert_eq!(errno(fs::write(mount.at("new"), "x")), Errno::ENOSPC);
    assert_eq!(errno(fs::rename(&path, mount.at("renamed"))), Errno::ENOSPC);
    // What was taken before keeps its promises: it gets its place in the order, and is durable.
    open.sync_all().unwrap();
    assert_eq!(errno((&open).write_all(b"more")), Errno::ENOSPC);
    assert_eq!(fs::read_to_string(&path).unwrap(), "again");
    mount.sync();
    assert_eq!(mount.verdict(), "SAFE: everything is on the slow tier");
    open.write_all(b", and behind").unwrap();
    mount.put("new", "x");
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
    assert_eq!(fs::read_to_string(mount.slow().join("open")).unwrap(), "written before, and behind");
}

// P11: foreign changes

/// Ours under the name of a conflict, theirs under its own; nothing else in the directory.
#[track_caller]
fn both_kept(mount: &Mount, dir: &str, name: &str, theirs: &str, ours: &str) {
    let slow = mount.slow().join(dir);
    let found = names(&slow);
    let [first, second] = &found[..] else { panic!("{found:?}") };
    assert_eq!(first, name);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let time = second.to_str().unwrap().strip_prefix(&format!("{name}.dlio-conflict-{host}-"));
    assert!(time.is_some_and(|time| time.parse::<u64>().is_ok()), "{found:?}");
    assert_eq!(fs::read_to_string(slow.join(name)).unwrap(), theirs);
    assert_eq!(fs::read_to_string(slow.join(second)).unwrap(), ours);
    assert_same(&mount.root(), &mount.slow());
    assert_eq!(conflicts(mount), 1);
    assert_eq!(mount.status(), Some(5));
}

/// `run/f` is on both tiers, and has a newer version on the fast one.
fn ours_is_newer(mount: &Mount) {
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/f", "before");
    mount.sync();
    mount.put("run/f", "ours");
}

#[test]
fn a_foreign_change_is_served_at_the_first_open_after_revalidate() {
    needs!(MOUNTS);
    let mount = Mount::with(&["revalidate=0s", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"], |_| ());
    let path = mount.put("f", "ours");
    mount.sync();
    assert_eq!(state(&path), b"clean");
    let slow = mount.slow().join("f");
    fs::write(&slow, "theirs, written in place").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs, written in place");
    assert_eq!(fs::metadata(&path).unwrap().len(), 24);
    fs::write(mount.slow().join("new"), "theirs, renamed over it").unwrap();
    fs::rename(mount.slow().join("new"), &slow).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs, renamed over it");
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b", and ours").unwrap();
    mount.sync();
    assert_eq!(fs::read_to_string(&slow).unwrap(), "theirs, renamed over it, and ours");
    assert_eq!(conflicts(&mount), 0);
}

#[test]
fn a_foreign_change_is_served_at_the_first_open_after_a_mount() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["revalidate=1h"], |_| ());
    mount.put("f", "ours");
    mount.sync();
    mount.stop();
    fs::write(mount.slow().join("f"), "theirs").unwrap();
    mount.start();
    assert_eq!(fs::read_to_string(mount.at("f")).unwrap(), "theirs");
}

#[test]
fn a_foreign_file_that_took_the_name_of_ours_stays_and_so_does_ours() {
    needs!(MOUNTS);
    let mount = Mount::with(&NOTHING_CACHED, |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    mount.sync();
    mount.put("run/f", "ours");
    fs::write(mount.slow().join("run/f"), "theirs").unwrap();
    mount.sync();
    both_kept(&mount, "run", "f", "theirs", "ours");
}

#[test]
fn a_foreign_file_in_place_of_the_one_we_replace_stays_and_so_does_ours() {
    needs!(MOUNTS);
    let mount = Mount::with(&NOTHING_CACHED, |_| ());
    ours_is_newer(&mount);
    fs::write(mount.slow().join("theirs"), "theirs").unwrap();
    fs::rename(mount.slow().join("theirs"), mount.slow().join("run/f")).unwrap();
    mount.sync();
    both_kept(&mount, "run", "f", "theirs", "ours");
}

#[test]
fn a_foreign_write_into_the_file_we_replace_stays_and_so_does_ours() {
    needs!(MOUNTS);
    let mount = Mount::with(&NOTHING_CACHED, |_| ());
    ours_is_newer(&mount);
    fs::write(mount.slow().join("run/f"), "theirs").unwrap();
    mount.sync();
    both_kept(&mount, "run", "f", "theirs", "ours");
}

#[test]
fn a_foreign_file_is_not_removed_for_ours() {
    needs!(MOUNTS);
    let mount = Mount::with(&NOTHING_CACHED, |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    for name in ["run/removed", "run/moved"] {
        mount.put(name, "before");
    }
    mount.sync();
    fs::remove_file(mount.at("run/removed")).unwrap();
    fs::rename(mount.at("run/moved"), mount.at("run/away")).unwrap();
    for name in ["run/removed", "run/moved"] {
        fs::write(mount.slow().join("theirs"), "theirs").unwrap();
        fs::rename(mount.slow().join("theirs"), mount.slow().join(name)).unwrap();
    }
    mount.sync();
    assert_eq!(names(&mount.slow().join("run")), ["moved", "removed"]);
    assert_eq!(fs::read_to_string(mount.slow().join("run/removed")).unwrap(), "theirs");
    assert_eq!(fs::read_to_string(mount.slow().join("run/moved")).unwrap(), "theirs");
    assert_eq!(conflicts(&mount), 2);
}

#[test]
fn a_foreign_removal_does_not_stop_the_order() {
    needs!(MOUNTS);
    let mount = Mount::with(&NOTHING_CACHED, |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    for name in ["run/changed", "run/removed", "run/kept"] {
        mount.put(name, "before");
    }
    mount.sync();
    mount.put("run/changed", "after");
    fs::remove_file(mount.at("run/removed")).unwrap();
    mount.put("run/behind", "behind");
    for name in ["changed", "removed"] {
        fs::remove_file(mount.slow().join("run").join(name)).unwrap();
    }
    mount.sync();
    assert_eq!(names(&mount.slow().join("run")), ["behind", "changed", "kept"]);
    assert_eq!(fs::read_to_string(mount.slow().join("run/changed")).unwrap(), "after");
    assert_same(&mount.root(), &mount.slow());
}

#[test]
fn eviction_compares_the_fingerprint_once_more() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 256);
    let options = [
        "revalidate=0s",
        "attribute_lifetime=0s",
        "attribute_lifetime_slow=0s",
        "ballast=1MiB",
        "high=85%",
        "low=70%",
        "keep=0",
    ];
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &options);
    // The one that is changed is the older: it is looked at first.
    let changed = mount.put("changed", content(1, 1 << 20));
    mount.sync();
    let unchanged = mount.put("unchanged", content(2, 1 << 20));
    mount.sync();
    OpenOptions::new().append(true).open(mount.slow().join("changed")).unwrap().write_all(b"theirs").unwrap();
    assert_eq!((state(&changed), state(&unchanged)), (b"clean".to_vec(), b"clean".to_vec()));
    volume.fill(2 << 20);
    until("what is clean is evicted", || state(&unchanged) == b"slow");
    assert_eq!(state(&changed), b"clean", "what is not, is kept until somebody opens it");
    assert_eq!(fs::read(&changed).unwrap(), [&content(1, 1 << 20)[..], b"theirs"].concat());
    assert!(fs::read(&unchanged).unwrap() == content(2, 1 << 20));
}

#[test]
fn an_attribute_that_the_slow_tier_has_no_room_for_is_refused_and_holds_nothing() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 256);
    let mount = Mount::on(Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() }, &[]);
    let path = mount.put("f", "x");
    for _ in 0..2 {
        assert_eq!(errno(xattr::set(&path, "user.large", &[1; 30_000])), Errno::ENOSPC);
        xattr::set(&path, "user.medium", &[2; 3000]).unwrap();
        assert_eq!(errno(xattr::set(&path, "user.other", &[3; 2000])), Errno::ENOSPC, "not beside the other one");
        // The second time it is clean.
        mount.sync();
    }
    assert_eq!(xattr::get(volume.tier().join("f"), "user.medium").unwrap().unwrap(), [2; 3000]);
    assert_eq!(
        names(&mount.slow().join(".dlio-fs/tmp").join(names(&mount.slow().join(".dlio-fs/tmp"))[0].clone())).len(),
        0
    );
}

// P12: nothing lost in copying

/// Where data is in a file: pairs of its begin and end.
fn extents(path: &Path) -> Vec<(i64, i64)> {
    let file = File::open(path).unwrap();
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(data) = lseek64(&file, at, Whence::SeekData) {
        at = lseek64(&file, data, Whence::SeekHole).unwrap();
        found.push((data, at));
    }
    found
}

#[test]
fn holes_stay_holes_in_the_slow_copy() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let file = File::create(mount.at("sparse")).unwrap();
    file.write_all_at(&pattern(64 << 10), 4 << 20).unwrap();
    file.write_all_at(&pattern(64 << 10), 12 << 20).unwrap();
    file.set_len(16 << 20).unwrap();
    drop(file);
    mount.sync();
    let slow = mount.slow().join("sparse");
    let of = |mib: i64| (mib << 20, (mib << 20) + (64 << 10));
    assert_eq!(extents(&slow), [of(4), of(12)]);
    assert_eq!(fs::metadata(&slow).unwrap().blocks(), fs::metadata(mount.at("sparse")).unwrap().blocks());
    assert!(fs::read(&slow).unwrap() == fs::read(mount.at("sparse")).unwrap());
}

#[test]
fn attributes_links_and_times_arrive_on_the_slow_tier() {
    needs!(MOUNTS);
    let mount = Mount::with(&NEVER_SETTLES, |_| ());
    let path = mount.put("f", "content");
    let slow = |name: &str| mount.slow().join(name);
    xattr::set(&path, "user.origin", b"a\0b\xff").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o2751)).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1001)).unwrap();
    fs::hard_link(&path, mount.at("second")).unwrap();
    symlink("no/such\ntarget", mount.at("link")).unwrap();
    std::os::unix::fs::lchown(mount.at("link"), Some(7), Some(8)).unwrap();
    fs::create_dir(mount.at("d")).unwrap();
    xattr::set(mount.at("d"), "user.origin", b"of a directory").unwrap();
    let time = TimeSpec::new(1_000_000_007, 123_456_789);
    // Before its first close they travel with the content, later on by themselves.
    let born = File::create(mount.at("born")).unwrap();
    (&born).write_all(b"content").unwrap();
    xattr::set(mount.at("born"), "user.origin", b"a\0b\xff").unwrap();
    std::os::unix::fs::chown(mount.at("born"), Some(1000), Some(1001)).unwrap();
    utimensat(AT_FDCWD, &mount.at("born"), &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    drop(born);
    for name in ["f", "link", "d"] {
        utimensat(AT_FDCWD, &mount.at(name), &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    }
    mount.sync();
    let shown = |path: &Path| {
        let m = fs::symlink_metadata(path).unwrap();
        (m.mode(), m.uid(), m.gid(), m.mtime(), m.mtime_nsec())
    };
    for name in ["f", "second", "link", "d", "born"] {
        assert_eq!(shown(&mount.at(name)), shown(&slow(name)), "{name}");
        assert_eq!((shown(&slow(name)).3, shown(&slow(name)).4), (1_000_000_007, 123_456_789), "{name}");
    }
    for name in ["f", "born"] {
        assert_eq!(fs::metadata(slow(name)).unwrap().uid(), 1000, "{name}");
    }
    let [f, second] = ["f", "second"].map(|name| fs::metadata(slow(name)).unwrap());
    assert_eq!((f.ino(), f.nlink()), (second.ino(), 2), "one file with two names");
    assert_eq!(fs::read_link(slow("link")).unwrap().to_str(), Some("no/such\ntarget"));
    for name in ["f", "born"] {
        assert_eq!(xattr::get(slow(name), "user.origin").unwrap().unwrap(), b"a\0b\xff", "{name}");
    }
    assert_eq!(xattr::get(slow("d"), "user.origin").unwrap().unwrap(), b"of a directory");
    assert_eq!(xattr::list(slow("f")).unwrap().count(), 1, "and nothing of ours");
}

// The log: a torn tail is a crash, damage before it is not

/// The segment of the log with the newest records, and its bytes.
fn newest_segment(mount: &Mount) -> (PathBuf, Vec<u8>) {
    let dir = mount.fast().join(".dlio-fs/log");
    let path = names(&dir).into_iter().map(|name| dir.join(name)).rfind(|path| fs::metadata(path).unwrap().len() > 0);
    let path = path.expect("a log with records");
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
}

#[test]
fn damage_in_the_log_holds_publishing_and_hides_nothing_else() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&NEVER_SETTLES, |_| ());
    for i in 0..10 {
        let path = mount.put(&format!("file-{i}"), content(i, 10_000));
        // Each behind the one before: whatever is hit, a later record says that it was durable.
        File::open(path).unwrap().sync_all().unwrap();
        fs::create_dir(mount.at(format!("dir-{i}"))).unwrap();
    }
    mount.kill();
    let (segment, mut bytes) = newest_segment(&mount);
    let hit = bytes.windows(15).position(|word| word == b"make path=dir-4").unwrap();
    bytes[hit + 14] ^= 1;
    fs::write(&segment, bytes).unwrap();
    mount.start();

    let verdict = mount.verdict();
    assert!(verdict.contains("HELD: the log is damaged (log/") && verdict.contains("dlio-fs rescue"), "{verdict}");
    assert_eq!(mount.status(), Some(4));
    for i in 0..10 {
        assert!(fs::read(mount.at(format!("file-{i}"))).unwrap() == content(i, 10_000), "{i}");
    }
    assert!(!mount.at("dir-4").exists() && mount.at("dir-5").exists(), "only what the record said is not known");
    let mut control = OpenOptions::new().read(true).write(true).open(mount.at(".dlio/control")).unwrap();
    control.write_all(b"sync\n").unwrap();
    let mut line = [0; 4096];
    for _ in 0..2 {
        let n = control.read(&mut line).unwrap();
        assert!(line[..n].starts_with(b"waiting for "), "{}", String::from_utf8_lossy(&line[..n]));
    }
    assert!(tree(&mount.slow()).is_empty(), "nothing is published, although somebody waits for it");
}

/// The mount has put the object aside, for it lost the record that made its directory. Its other records are there.
#[test]
fn what_a_damaged_log_hides_is_in_the_daemon_s_log_and_can_be_rescued() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&NEVER_SETTLES, |_| ());
    fs::create_dir(mount.at("hidden")).unwrap();
    for name in ["hidden/ckpt", "a-later-record-says-that-it-was-durable"] {
        File::open(mount.put(name, content(0, 10_000))).unwrap().sync_all().unwrap();
    }
    mount.kill();
    let (segment, mut bytes) = newest_segment(&mount);
    let hit = bytes.windows(17).position(|word| word == b"make path=hidden ").unwrap();
    bytes[hit + 14] ^= 1;
    fs::write(&segment, bytes).unwrap();
    mount.start();
    assert!(!mount.at("hidden").exists());
    assert!(mount.log().contains("ERROR") && mount.log().contains("the log is damaged (log/"), "{}", mount.log());
    mount.stop();
    let to = tempfile::tempdir().unwrap();
    let rescued = program().arg("rescue").arg(mount.fast()).arg("--to").arg(to.path()).output().unwrap();
    let said = String::from_utf8_lossy(&rescued.stderr);
    assert!(rescued.status.code() == Some(3) && said.contains("record 4 is missing"), "{said}");
    assert!(fs::read(to.path().join("hidden/ckpt")).unwrap() == content(0, 10_000));
}

/// The object in the pool with these bytes.
fn object_with(mount: &Mount, bytes: &[u8]) -> PathBuf {
    let shards = fs::read_dir(mount.fast().join(".dlio-fs/pool")).unwrap();
    let objects = shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
    objects.map(|object| object.unwrap().path()).find(|path| fs::read(path).unwrap() == bytes).expect("an object of it")
}

#[test]
fn verify_names_a_damaged_copy_and_evicting_it_is_the_remedy() {
    needs!(MOUNTS);
    let mount = Mount::new();
    fs::create_dir(mount.at("run")).unwrap();
    for i in 0..4 {
        mount.put(&format!("run/file-{i}"), content(i, 300_000));
    }
    mount.sync();
    let verify = |more: &[&str]| {
        let output = program().arg("verify").arg(mount.at("run")).args(more).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, found, summary) = verify(&[]);
    assert_eq!((code, found.as_str()), (Some(0), ""), "{summary}");
    assert!(summary.contains("4 files compared") && summary.contains("0 damaged; 0 not compared"), "{summary}");
    let object = File::options().write(true).open(object_with(&mount, &content(2, 300_000))).unwrap();
    object.write_all_at(b"!", 123_456).unwrap();
    let (code, found, summary) = verify(&[]);
    let line = "fast: /run/file-2 is damaged at byte 123456; the slow copy is good: evict the file\n";
    assert_eq!((code, found.as_str()), (Some(1), line), "{summary}");
    let (code, report, _) = verify(&["--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((code, &report["findings"][0]["kind"]), (Some(1), &"fast".into()), "{report}");
    succeeded(program().arg("evict").arg(mount.at("run/file-2")).output().unwrap());
    assert!(fs::read(mount.at("run/file-2")).unwrap() == content(2, 300_000));
    assert_eq!(verify(&[]).0, Some(0));
    fs::write(mount.slow().join("run/file-1"), "somebody else's").unwrap();
    let (code, found, _) = verify(&[]);
    assert_eq!(
        (code, found.as_str()),
        (Some(5), "changed: /run/file-1 was changed on the slow tier by somebody else\n")
    );
}

#[test]
fn a_torn_tail_is_cut_and_nothing_is_held() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&NEVER_SETTLES, |_| ());
    for i in 0..10 {
        mount.put(&format!("file-{i}"), content(i, 10_000));
    }
    mount.kill();
    let (segment, bytes) = newest_segment(&mount);
    // The begin of a record, as a power cut leaves it.
    let torn = &bytes[..bytes.len().min(40)];
    OpenOptions::new().append(true).open(&segment).unwrap().write_all(torn).unwrap();
    mount.start();
    let verdict = mount.verdict();
    assert!(verdict.starts_with("NOT SAFE: 10 files") && !verdict.contains("HELD"), "{verdict}");
    assert_eq!(fs::metadata(&segment).unwrap().len(), bytes.len() as u64, "it is gone");
    mount.sync();
    assert_eq!(tree(&mount.slow()).len(), 10);
    assert_same(&mount.root(), &mount.slow());
}

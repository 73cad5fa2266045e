//! Slow tiers that cannot do all that ext4 can (P16): what is missing is found at the mount, and has an outcome; nothing of it holds
//! what comes behind. Needs root, /dev/fuse; bindfs for most.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use crate::common::foreign::{Foreign, Sshfs};
use crate::common::gluster::Gluster;
use crate::common::rig::PROGRAM;
use crate::common::trees::assert_same;
use crate::common::{Elsewhere, Mount, Relay, Volume, errno, mode, names, succeeded};
use crate::needs::{MOUNTS, needs};

fn able(mount: &Mount, what: &str) -> bool {
    mount.stats_json()["slow_abilities"][what].as_bool().unwrap()
}

fn add(path: &Path, bytes: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes.as_bytes()).unwrap();
}

/// Every file that the slow tier had was refused at the first write, because its attributes could not be listed; one `setfattr` held the
/// whole log for good.
#[test]
fn over_a_tier_without_extended_attributes_files_are_written_again_and_attributes_refused() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::showing(&["--xattr-none"], |tree| {
        fs::write(tree.join("model"), "old").unwrap();
        fs::write(tree.join("log"), "old\n").unwrap();
    });
    let mount = Mount::over(below.shown(), &["settle=0s"]);
    assert!(!able(&mount, "user_xattrs") && !able(&mount, "acls") && able(&mount, "owners"));
    fs::write(mount.at("model"), "new").unwrap();
    add(&mount.at("log"), "more\n");
    for key in ["user.mime_type", "system.posix_acl_access"] {
        assert_eq!(errno(xattr::set(mount.at("model"), key, b"text")), Errno::EOPNOTSUPP, "{key}");
    }
    assert_eq!(xattr::get(mount.at("model"), "user.mime_type").unwrap(), None);
    mount.sync();
    assert_eq!(fs::read_to_string(below.tree().join("model")).unwrap(), "new");
    assert_eq!(fs::read_to_string(below.tree().join("log")).unwrap(), "old\nmore\n");
    mount.control("evict /");
    add(&mount.at("model"), "er");
    mount.sync();
    assert_eq!(fs::read_to_string(below.tree().join("model")).unwrap(), "newer");
    assert_eq!(mount.status(), Some(0));
}

/// What a tier lacks was found out by the first checkpoint, for the doctor tried two things only.
#[test]
fn the_doctor_says_what_a_slow_tier_lacks_and_leaves_nothing_there() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::showing(&["--xattr-none", "--force-user=nobody"], |_| ());
    let (doctor, shown) =
        (Command::new(PROGRAM).arg("doctor").arg("--slow").arg(below.shown()).output(), below.shown());
    let told = String::from_utf8(doctor.unwrap().stdout).unwrap();
    for lack in ["no user xattrs", "no ACLs", "no owners of files"] {
        assert!(told.contains(&format!("slow: abilities   {lack}")), "{lack}: {told}");
    }
    assert!(!told.contains("no groups"), "{told}");
    assert_eq!(fs::read_dir(shown).unwrap().count(), 0, "the doctor left something behind");
}

/// The kernel asks for the ACL when somebody else than the owner comes, and the tier's error was his answer: he could read nothing.
#[test]
fn over_a_tier_without_acls_others_than_the_owner_read_and_list() {
    needs!(MOUNTS);
    let place = tempfile::tempdir().unwrap();
    mount(Some("none"), place.path(), Some("ramfs"), MsFlags::empty(), None::<&str>).unwrap();
    let slow = place.path().join("slow");
    fs::create_dir_all(slow.join("d")).unwrap();
    fs::write(slow.join("d/f"), "read").unwrap();
    {
        let mount = Mount::over(slow, &[]);
        assert!(!able(&mount, "acls"));
        assert_eq!(succeeded(mount.as_user(1002, "ls d; cat d/f")), "f\nread");
    }
    umount2(place.path(), MntFlags::MNT_DETACH).unwrap();
}

/// Its copy was not what was written, for it had another owner: that was told as a slow tier that is down, for ever.
#[test]
fn a_tier_that_gives_all_files_one_owner_gets_them_and_the_view_shows_that_owner() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::showing(&["--force-user=nobody"], |_| ());
    let mount = Mount::over(below.shown(), &["settle=0s"]);
    assert!(!able(&mount, "owners") && able(&mount, "modes"));
    mount.sh("mkdir d; echo a > d/f; ln -s f d/l; chmod 0640 d/f; chown 1000:1000 d/f");
    let nobody = fs::metadata(below.shown().join(".dlio-fs")).unwrap().uid();
    assert_eq!(fs::symlink_metadata(mount.at("d/f")).unwrap().uid(), nobody);
    mount.sync();
    assert_eq!((mode(&below.tree().join("d/f")) & 0o777, mount.status()), (0o640, Some(0)));
    assert_eq!(fs::read_to_string(below.tree().join("d/l")).unwrap(), "a\n");
    assert!(!mount.stats().contains("DOWN") && mount.log().matches("does not have owners of files").count() == 1);
}

/// Each file was to be given its owner, also the one that it had: refused, and with it all that came behind.
#[test]
fn a_tier_on_which_nobody_may_change_an_owner_gets_files() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::showing(&["--chown-deny", "--chgrp-deny"], |_| ());
    let mount = Mount::over(below.shown(), &["settle=0s"]);
    assert!(!able(&mount, "owners") && !able(&mount, "groups"));
    mount.sh("mkdir d; echo a > d/f; chown 1000:1000 d/f");
    mount.sync();
    assert_eq!((fs::metadata(mount.at("d/f")).unwrap().uid(), mount.status()), (0, Some(0)));
    assert_eq!(fs::read_to_string(below.tree().join("d/f")).unwrap(), "a\n");
}

/// A named user wrote on after `chmod 640`, whose mask the list from the slow tier did not have yet; an append took the `chmod` back.
/// Random changes show the same as on the tier itself after each, and in the end both tiers agree.
#[test]
fn mode_and_acl_follow_each_other_as_on_the_tier_itself() {
    needs!(MOUNTS, "mkfs.xfs", "mkfs.ext4", "setfacl");
    const NODES: &str = "for n in a b d/c; do echo 1 > $n; setfacl -m u:65534:rw,g:7:r $n; done; setfacl -m u:65534:rwx d; setfacl -d -m u:65534:rwX e";
    const SHOW: &str = "getfacl -cpnE a b d d/* e e/*; stat -c %a a b d d/* e e/*";
    let (ext4, xfs) = (Volume::new(64, 1024), Volume::xfs());
    for (seed, fast, slow) in [(1, &ext4, &xfs), (2, &xfs, &ext4), (3, &ext4, &xfs), (4, &xfs, &ext4)] {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let slow = slow.tier().join(format!("slow{seed}"));
        let plain = slow.join("plain");
        for dir in [&plain, &slow] {
            ["d", "e"].iter().for_each(|sub| fs::create_dir_all(dir.join(sub)).unwrap());
            sh_in(dir, NODES);
        }
        let fast = fast.tier().join(format!("fast{seed}"));
        fs::create_dir(&fast).unwrap();
        let mount = Mount::on(Elsewhere { fast: Some(fast), slow: Some(slow.clone()) }, &["settle=0s"]);
        let mut changes = String::new();
        for round in 0..6 {
            mount.control(if round % 2 == 0 { "pause" } else { "resume" });
            let ops: Vec<String> = (0..15).map(|_| change_of_acl(&mut rng)).collect();
            let script = ops.iter().map(|op| format!("({op}) 2>&1 || :; ({SHOW}) 2>&1 || :\n")).collect::<String>();
            changes += &ops.join("\n");
            let (shown, plain) = (mount.sh(&script), sh_in(&plain, &script));
            assert_eq!(shown, plain, "seed {seed}, after\n{changes}");
        }
        mount.sync();
        assert_eq!(sh_in(&slow, SHOW), sh_in(&plain, SHOW), "on the slow tier, seed {seed}, after\n{changes}");
    }
}

fn sh_in(dir: &Path, script: &str) -> String {
    succeeded(Command::new("sh").args(["-c", &format!("{script}\n:")]).current_dir(dir).output().unwrap())
}

fn change_of_acl(rng: &mut Xoshiro256PlusPlus) -> String {
    let node = ["a", "b", "d", "d/c", "e"][rng.random_range(0..5)];
    let rights = ["r", "rw", "rwx", "x", "-"][rng.random_range(0..5)];
    match rng.random_range(0..8) {
        0 | 1 => format!("chmod {} {node}", ["600", "640", "2755", "4711", "777", "0"][rng.random_range(0..6)]),
        2 => format!("setfacl -m u:{}:{rights} {node}", [7, 65534][rng.random_range(0..2)]),
        3 => format!("setfacl -m m::{rights} {node}"),
        4 => format!("setfacl {} {node}", ["-b", "-x u:65534", "-k", "-m g::rx"][rng.random_range(0..4)]),
        5 => format!("echo more >> {}", ["a", "b", "d/c"][rng.random_range(0..3)]),
        6 => format!("umask 027; echo new > {}/n{}", ["d", "e"][rng.random_range(0..2)], rng.random_range(0..3)),
        _ => format!("cp -p a new; mv new {}", ["a", "b", "d/c"][rng.random_range(0..3)]),
    }
}

/// mergerfs makes a directory's inode number from its path, if it is not told otherwise: the rename of a checkpoint's directory did not find
/// what it had renamed, and was given up, with all safe.
#[test]
fn a_tier_whose_inode_numbers_change_is_refused_and_mergerfs_with_lasting_ones_takes_all() {
    needs!(MOUNTS, "mergerfs");
    // With the numbers of its library, which it does not list; and with its own.
    for options in ["allow_other", "allow_other,use_ino"] {
        let unfit = Relay::by("mergerfs", &["-o", options], |_| ());
        let [fast, slow] = ["fast", "slow"].map(|name| unfit.shown().join(name));
        [&fast, &slow].into_iter().for_each(|tier| fs::create_dir(tier).unwrap());
        let as_fast = Elsewhere { fast: Some(fast.clone()), slow: None };
        for (elsewhere, tier) in [(as_fast, "fast"), (Elsewhere { fast: None, slow: Some(slow.clone()) }, "slow")] {
            let is_told = |told: &str| {
                told.contains(&format!("the {tier} tier gives")) && told.contains("use_ino,inodecalc=devino-hash")
            };
            let (code, told) = Mount::idle(elsewhere, &[]).refused();
            assert!(is_told(&told) && code != Some(0), "{code:?} {told}");
            let mut doctor = Command::new(PROGRAM);
            let doctor = doctor.args(["doctor", &format!("--{tier}")]).arg(unfit.shown().join(tier)).output().unwrap();
            assert!(is_told(&String::from_utf8(doctor.stdout).unwrap()), "{tier}");
        }
        for left in [fast.join(".dlio-fs"), slow.join(".dlio-fs/tmp")] {
            assert!(!names(&left).iter().any(|name| name.as_bytes().starts_with(b"t")), "{left:?}");
        }
    }

    let fit = Relay::by("mergerfs", &["-o", "allow_other,use_ino,inodecalc=devino-hash"], |_| ());
    let mount = Mount::over(fit.shown(), &["settle=0s"]);
    mount.sh("mkdir -p run/ck.tmp; echo shard > run/ck.tmp/s1; echo removed > run/s2");
    mount.sync();
    mount
        .sh("mv run/ck.tmp run/ck; ln run/ck/s1 run/linked; rm run/s2; echo more >> run/ck/s1; ln -s ck/s1 run/latest");
    mount.sync();
    assert_same(&mount.root(), &fit.tree());
    assert_eq!((mount.status(), mount.stats_json()["exceptions"]["conflicts"].as_u64()), (Some(0), Some(0)));
}

/// "has a .dlio-fs that dlio-fs did not make ... rename it", and the swapped mount worked, and called the only copy of a file safe.
#[test]
fn swapped_tiers_are_refused_by_every_command_that_reads_them() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    mount.put("f", "on the fast tier");
    mount.stop();
    let (fast, slow) = (mount.fast(), mount.slow());
    let refused = |args: &[&OsStr]| {
        let done = Command::new(PROGRAM).args(args).output().unwrap();
        let told = [done.stdout, done.stderr].concat();
        let told = String::from_utf8(told).unwrap();
        assert!(!done.status.success() && told.contains("swapped?") && !told.contains("rename"), "{args:?}: {told}");
        told
    };
    let [as_fast, as_slow, dir] = ["--fast", "--slow", "mount"].map(OsStr::new);
    let told = refused(&[dir, mount.root().as_os_str(), as_fast, slow.as_os_str(), as_slow, fast.as_os_str()]);
    assert!(told.contains(&format!("--slow {} is a fast tier", fast.display())), "{told}");
    refused(&[OsStr::new("doctor"), as_fast, slow.as_os_str()]);
    refused(&[OsStr::new("doctor"), as_slow, fast.as_os_str()]);
    refused(&[OsStr::new("fsck"), slow.as_os_str()]);
    refused(&[OsStr::new("fsck"), fast.as_os_str(), as_slow, fast.as_os_str()]);
    mount.start();
    mount.sync();
    assert_eq!(fs::read_to_string(slow.join("f")).unwrap(), "on the fast tier");
}

/// The order was held for good by the rename of a directory that lies in the lower layer of an overlayfs.
#[test]
fn a_directory_that_an_overlay_does_not_rename_is_not_renamed_in_the_mount() {
    needs!(MOUNTS, "mkfs.ext4");
    let (volume, place) = (Volume::new(32, 4096), tempfile::tempdir().unwrap());
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| volume.tier().join(name));
    [&lower.join("old/in"), &upper, &work].into_iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    let layers = format!(
        "lowerdir={},upperdir={},workdir={},redirect_dir=off",
        lower.display(),
        upper.display(),
        work.display()
    );
    mount(Some("overlay"), place.path(), Some("overlay"), MsFlags::empty(), Some(&*layers)).unwrap();
    let part = place.path().join("part");
    fs::create_dir(&part).unwrap();
    mount(Some("none"), &part, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::create_dir(part.join("a")).unwrap();
    {
        let mount = Mount::over(place.path().to_owned(), &["settle=0s"]);
        fs::create_dir(mount.at("new")).unwrap();
        mount.sync();
        assert_eq!(errno(fs::rename(mount.at("old"), mount.at("moved"))), Errno::EXDEV, "as the overlay says");
        assert_eq!(errno(fs::rename(mount.at("old/in"), mount.at("in"))), Errno::EXDEV);
        fs::rename(mount.at("part/a"), mount.at("part/b")).unwrap();
        // `mv` copies it then.
        mount.sh("mv old moved; mv new renamed; echo x > moved/in/f");
        mount.sync();
        assert_same(&mount.root(), place.path());
        assert_eq!((mount.status(), mount.stats_json()["exceptions"]["conflicts"].as_u64()), (Some(0), Some(0)));
    }
    umount2(&part, MntFlags::MNT_DETACH).unwrap();
    umount2(place.path(), MntFlags::MNT_DETACH).unwrap();
}

/// The fast tier takes longer ones than xfs does: one held the whole log for good.
#[test]
fn a_symbolic_link_that_is_too_long_for_the_slow_tier_is_refused_at_the_call() {
    needs!(MOUNTS, "mkfs.xfs");
    let volume = Volume::xfs();
    let mount = Mount::over(volume.tier(), &["settle=0s"]);
    assert_eq!(errno(symlink("a".repeat(2000), mount.at("long"))), Errno::ENAMETOOLONG);
    symlink("a".repeat(1000), mount.at("short")).unwrap();
    mount.sync();
    assert_eq!(fs::read_link(volume.tier().join("short")).unwrap().as_os_str().len(), 1000);
}

/// The same of a size that the fast tier has.
#[test]
fn a_file_that_is_too_large_for_the_slow_tier_is_refused_at_the_call() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::of_small_blocks();
    let mount = Mount::over(volume.tier(), &["settle=0s"]);
    let file = fs::File::create(mount.at("large")).unwrap();
    assert_eq!(errno(file.set_len(5 << 40)), Errno::EFBIG);
    file.set_len(3 << 40).unwrap();
    file.set_len(10).unwrap();
    drop(file);
    mount.sync();
    assert_eq!(fs::metadata(volume.tier().join("large")).unwrap().len(), 10);
}

/// The slow tier's file has attributes for which the fast tier has no room. Appending to it worked until it was staged: then the write
/// got ENOSPC.
#[test]
fn a_staged_file_with_more_attributes_than_the_fast_tier_takes_is_written() {
    needs!(MOUNTS, "mkfs.xfs", "mkfs.ext4");
    let (fast, slow) = (Volume::new(64, 512), Volume::xfs());
    let value = vec![b'x'; 8000];
    for name in ["a", "b"] {
        fs::write(slow.tier().join(name), "old\n").unwrap();
        xattr::set(slow.tier().join(name), "user.large", &value).unwrap();
    }
    let elsewhere = Elsewhere { fast: Some(fast.tier()), slow: Some(slow.tier()) };
    let mount = Mount::on(elsewhere, &["settle=0s"]);
    add(&mount.at("a"), "more\n");
    crate::common::until("it is staged", || {
        mount.control("stage /b");
        xattr::get(mount.at("b"), "user.dlio.state").unwrap().unwrap() == b"staged"
    });
    add(&mount.at("b"), "more\n");
    mount.sync();
    for name in ["a", "b"] {
        assert_eq!(fs::read_to_string(slow.tier().join(name)).unwrap(), "old\nmore\n");
        assert_eq!(xattr::get(slow.tier().join(name), "user.large").unwrap().as_deref(), Some(&value[..]));
    }
}

/// What is set on a symbolic link over SFTP is set on the file that it names: who made a link to a file of the server's got that file. Of
/// two names of one file, which have other numbers there, the second was taken for somebody else's and given up, with all drained.
#[test]
fn over_sshfs_all_arrives_and_nothing_outside_is_changed() {
    needs!(MOUNTS, "sshfs", "sshd", "ssh-keygen", "git");
    let below = Sshfs::new();
    let secret = below.beside("secret");
    fs::write(&secret, "root's").unwrap();
    let was = fs::metadata(&secret).unwrap();
    let mount = Mount::over(below.shown(), &["settle=0s"]);
    for lack in ["user_xattrs", "acls", "symlink_attrs", "fifos", "hard_links", "lasting_inode_numbers"] {
        assert!(!able(&mount, lack), "{lack}");
    }
    assert!(able(&mount, "owners") && able(&mount, "modes") && able(&mount, "symlinks") && able(&mount, "any_names"));
    mount.sh("mkdir -m 777 d; echo a > d/f; chmod 0640 d/f; chown 1000:1001 d/f; echo b > 'd/a:b?'");
    succeeded(mount.as_user(1002, &format!("ln -s {} d/l; ln -s f d/m", secret.display())));
    mount.sh("chown -h 1003:1003 d/l d/m; touch -h -d @99 d/l; mv d/l d/k");
    assert_eq!(errno(fs::hard_link(mount.at("d/f"), mount.at("d/g"))), Errno::EPERM);
    assert_eq!(errno(nix::unistd::mkfifo(&mount.at("d/p"), Mode::S_IRUSR).map_err(Into::into)), Errno::EPERM);
    assert_eq!(errno(xattr::set(mount.at("d/f"), "user.mime_type", b"text")), Errno::EOPNOTSUPP);
    for step in 1..=4 {
        mount.sh(&format!(
            "echo {step} > ckpt.tmp; mv ckpt.tmp ckpt; echo {step} > ckpt-{step}; rm -f ckpt-{}",
            step - 2
        ));
    }
    mount.sh(
        "git init -q a; git -C a -c user.name=a -c user.email=a commit -qm a --allow-empty; git clone -q a b; git -C b fsck",
    );
    mount.sync();
    assert_eq!((mount.status(), mount.stats_json()["exceptions"]["conflicts"].as_u64()), (Some(0), Some(0)));
    assert_same(&mount.root(), &below.tree());
    let file = fs::metadata(below.tree().join("d/f")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (1000, 1001, 0o640));
    let is = fs::metadata(&secret).unwrap();
    assert_eq!(
        (is.uid(), is.gid(), is.modified().unwrap()),
        (was.uid(), was.gid(), was.modified().unwrap()),
        "what a link names"
    );
    assert_eq!(fs::symlink_metadata(mount.at("d/k")).unwrap().uid(), 0);
    mount.control("evict /");
    assert_eq!(fs::read_to_string(mount.at("ckpt")).unwrap(), "4\n");
}

#[test]
fn over_sshfs_neither_a_killed_daemon_nor_a_connection_that_ends_loses_anything() {
    needs!(MOUNTS, "sshfs", "sshd", "ssh-keygen");
    let below = Sshfs::new();
    let mut mount = Mount::over(below.shown(), &["settle=0s"]);
    mount.sh("mkdir d; for i in 1 2 3 4 5 6 7 8; do echo old > d/$i; done");
    mount.sync();
    mount.control("pause");
    mount.sh("echo new > d/1; mv d/2 d/9; rm d/3; echo more >> d/4; chmod 600 d/5; ln -s 1 d/l; mkdir e; mv d/6 e/6");
    mount.control("resume");
    mount.kill();
    let fsck = Command::new(PROGRAM).arg("fsck").arg(mount.fast()).output().unwrap();
    assert!(fsck.status.success(), "{fsck:?}");
    mount.start();
    mount.sync();
    // The connection ends in the middle of a copy. In the middle of a rename nothing tells whose file is in its place
    // afterwards, for these inode numbers do not last: it would be kept as somebody else's, and ours beside it.
    mount.put("e/large", vec![1; 8 << 20]);
    assert!(below.cut() > 0);
    mount.sync();
    assert_eq!((mount.status(), mount.stats_json()["exceptions"]["conflicts"].as_u64()), (Some(0), Some(0)));
    assert_same(&mount.root(), &below.tree());
    assert_eq!(mode(&below.tree().join("d/5")), 0o600);
}

/// One hard link held all that came behind, for the try of a fifo, of which exfat-fuse makes a file, ended all that was to be tried. So did a
/// name with a colon, told as somebody who cleans up in `tmp`.
#[test]
fn on_exfat_what_it_does_not_have_is_refused_at_the_call_and_all_else_arrives() {
    needs!(MOUNTS, "mount.exfat-fuse", "mkfs.exfat");
    let volume = Foreign::exfat();
    let mut mount = Mount::over(volume.tier(), &["settle=0s"]);
    for lack in ["user_xattrs", "owners", "groups", "modes", "symlinks", "fifos", "hard_links", "any_names"] {
        assert!(!able(&mount, lack), "{lack}");
    }
    mount.sh("mkdir d; echo a > d/f; echo x > d/f; chmod 600 d/f; chown 1000:1000 d/f; touch -d @1700000001.5 d/f; echo b > d/\u{e9}");
    assert_eq!(errno(symlink("f", mount.at("d/l"))), Errno::EPERM);
    assert_eq!(errno(fs::hard_link(mount.at("d/f"), mount.at("d/g"))), Errno::EPERM);
    assert_eq!(errno(nix::unistd::mkfifo(&mount.at("d/p"), Mode::S_IRUSR).map_err(Into::into)), Errno::EPERM);
    for name in ["a:b", "a?", "a|b", "a\\b", "a\u{1}"] {
        assert_eq!(errno(fs::write(mount.at("d").join(name), "x")), Errno::EINVAL, "{name}");
        assert_eq!(errno(fs::create_dir(mount.at("d").join(name))), Errno::EINVAL, "{name}");
        assert_eq!(errno(fs::rename(mount.at("d/f"), mount.at("d").join(name))), Errno::EINVAL, "{name}");
    }
    assert_eq!(errno(fs::write(mount.at("d").join(OsStr::from_bytes(b"\xff")), "x")), Errno::EILSEQ);
    mount.sync();
    assert_eq!(mount.status(), Some(0));
    // Names that differ in case only are one name there: both files are kept, as with a change of somebody else's.
    mount.sh("echo 1 > Model; echo 2 > model; echo 1 > Other; mv Other other");
    mount.sync();
    assert_eq!(mount.status(), Some(5));
    let file = fs::metadata(mount.at("d/f")).unwrap();
    assert_eq!((file.uid(), file.mode() & 0o777), (0, 0o755));
    assert!((1_700_000_000..=1_700_000_002).contains(&fs::metadata(volume.tier().join("d/f")).unwrap().mtime()));
    mount.control("pause");
    mount.sh("echo y >> d/f; mv d e; mkdir d; mv e/f d; rm other");
    mount.kill();
    mount.start();
    mount.sync();
    assert_same(&mount.root(), &volume.tier());
    assert_eq!(fs::read_to_string(volume.tier().join("d/f")).unwrap(), "x\ny\n");
    let kept = names(volume.tier().as_path()).into_iter().filter(|name| name.to_string_lossy().starts_with(['M', 'm']));
    let kept: Vec<_> = kept.map(|name| fs::read_to_string(volume.tier().join(name)).unwrap()).collect();
    assert_eq!(kept, ["1\n", "2\n"]);
}

/// A case-only rename was published as that of one of two names: the one there is was removed, with all drained.
#[test]
fn a_rename_that_changes_only_the_case_keeps_the_file_where_case_does_not_count() {
    needs!(MOUNTS, "lowntfs-3g", "mkfs.ntfs");
    let volume = Foreign::ntfs_without_case();
    let mount = Mount::over(volume.tier(), &["settle=0s"]);
    mount.control("pause");
    mount.sh("echo kept > Model; mv Model model; mkdir Dir; echo kept > Dir/f; mv Dir dir; echo two > a; ln a b");
    mount.control("resume");
    mount.sync();
    assert_eq!(names(&volume.tier()), [".dlio-fs", "a", "b", "dir", "model"]);
    assert_eq!(fs::read_to_string(volume.tier().join("model")).unwrap(), "kept\n");
    assert_same(&mount.root(), &volume.tier());
}

#[test]
#[ignore = "needs root, /dev/fuse and GlusterFS: cargo xtask test gluster"]
fn on_glusterfs_all_arrives_on_every_replica_also_when_one_was_away() {
    needs!(MOUNTS, "glusterd", "ip", "git", "setfattr");
    let below = Gluster::new();
    let mut mount = Mount::over(below.tier(), &["settle=0s"]);
    for ability in ["user_xattrs", "owners", "modes", "symlinks", "symlink_attrs", "fifos", "hard_links", "any_names"] {
        assert!(able(&mount, ability), "{ability}");
    }
    mount.sh("mkdir d; echo a > d/f; ln d/f d/g; ln -s f d/l; mkfifo d/p; echo b > 'd/a:b'; chmod 0640 d/f; chown 1000:1001 d/f");
    mount.sh("chown -h 1003:1003 d/l; setfattr -n user.mime_type -v text d/f; mv d/g h; rm d/p");
    mount.sh(
        "git init -q a; git -C a -c user.name=a -c user.email=a commit -qm a --allow-empty; git clone -q a b; git -C b fsck",
    );
    mount.sync();
    assert_same(&mount.root(), &below.tier());
    let brick = Gluster::BRICKS[0];
    below.kill_brick(brick);
    mount.control("pause");
    mount.sh("for i in 1 2 3 4 5 6 7 8; do echo $i > ckpt.tmp; mv ckpt.tmp ckpt-$i; done; rm ckpt-1; echo more >> d/f; mv b c");
    mount.kill();
    mount.start();
    mount.sync();
    assert_eq!((mount.status(), mount.stats_json()["exceptions"]["conflicts"].as_u64()), (Some(0), Some(0)));
    assert_same(&mount.root(), &below.tier());
    let file = fs::metadata(below.tier().join("h")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o777, file.nlink()), (1000, 1001, 0o640, 2));
    assert_eq!(fs::symlink_metadata(below.tier().join("d/l")).unwrap().uid(), 1003);
    below.start_bricks();
    for other in Gluster::BRICKS {
        let healed = || fs::read_to_string(below.replica(other).join("d/f")).is_ok_and(|text| text == "a\nmore\n");
        crate::common::until("the replica has what was written without it", || {
            healed() && below.replica(other).join("c/.git").is_dir()
        });
    }
}

/// A copy of a large file then takes no room, and is another file all the same.
#[test]
fn tiers_on_one_file_system_share_the_blocks_of_a_large_file() {
    needs!(MOUNTS, "mkfs.xfs", "mkfs.btrfs");
    for volume in [Volume::xfs(), Volume::btrfs(400)] {
        let [fast, slow] = ["fast", "slow"].map(|name| volume.tier().join(name));
        [&fast, &slow].into_iter().for_each(|tier| fs::create_dir(tier).unwrap());
        let mount = Mount::on(Elsewhere { fast: Some(fast), slow: Some(slow.clone()) }, &["settle=0s"]);
        let used = || {
            succeeded(Command::new("sync").arg("-f").arg(volume.tier()).output().unwrap());
            let space = nix::sys::statvfs::statvfs(&volume.tier()).unwrap();
            ((space.blocks() - space.blocks_free()) * space.fragment_size()) >> 20
        };
        let (before, mut bytes) = (used(), crate::common::pattern(64 << 20));
        // A hole in the middle, and an end that is no whole block.
        bytes[20 << 20..24 << 20].fill(0);
        bytes.truncate((64 << 20) - 77);
        let file = fs::File::create(mount.at("large")).unwrap();
        file.write_all_at(&bytes[..20 << 20], 0).unwrap();
        file.write_all_at(&bytes[24 << 20..], 24 << 20).unwrap();
        drop(file);
        mount.sync();
        assert!(fs::read(slow.join("large")).unwrap() == bytes);
        let more = used() - before;
        assert!((60..90).contains(&more), "{more} MiB for both copies");
        mount.control("pause");
        let file = OpenOptions::new().write(true).open(mount.at("large")).unwrap();
        file.write_all_at(b"new", 1 << 20).unwrap();
        drop(file);
        assert!(fs::read(slow.join("large")).unwrap() == bytes, "what is written now is not on the slow tier yet");
        mount.control("resume");
        mount.sync();
        bytes[1 << 20..][..3].copy_from_slice(b"new");
        assert!(fs::read(slow.join("large")).unwrap() == bytes);
        // A version is the first bytes of its object, which has grown since.
        mount.control("pause");
        mount.put("grown", &bytes[..3 << 20]);
        let mut file = OpenOptions::new().append(true).open(mount.at("grown")).unwrap();
        file.write_all(&bytes[..2 << 20]).unwrap();
        mount.control("resume");
        // A drain that had begun when it was paused may have published the name by itself, with an empty file.
        let shown = || fs::read(slow.join("grown")).unwrap_or_default();
        crate::common::until("the version is published", || !shown().is_empty());
        assert!(shown() == bytes[..3 << 20], "{} bytes", shown().len());
    }
}

//! The contract of the disk seam, kept by the operating system's directories and by the simulated disk alike: one suite,
//! run over both. And what only the simulated disk can do: losing what was not synced.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod needs;
mod sim;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::os::{OsClock, OsDir};
use dlio_fs::tiers::disk::{
    Access, Allocate, Clock, Dir, File, Kind, MetadataOrder, NewAttr, REFUSALS, RenameMode, Seek, Time, WHOLE,
};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use needs::{ROOT, are_met};
use sim::{Lose, SimClock, SimDisk, SimPower};

/// What only root may do with the system's files.
const BY_ROOT: [&str; 4] = [
    "attributes_are_set_in_the_order_owner_mode_times",
    "attributes_of_the_directory_itself_and_of_links",
    "special_files_keep_what_they_are",
    "xattrs_come_and_go_on_files_directories_and_links",
];

/// Runs one piece of the contract over each implementation, each in an empty directory.
macro_rules! contract {
    ($($(#[$doc:meta])* fn $name:ident($root:ident) $body:block)*) => {
        $($(#[$doc])* fn $name($root: Arc<dyn Dir>) $body)*

        mod os { $(#[test] fn $name() {
            if super::BY_ROOT.contains(&stringify!($name)) && !super::are_met(&[super::ROOT]) {
                return;
            }
            let dir = tempfile::tempdir().unwrap();
            super::$name(std::sync::Arc::new(super::OsDir::open(dir.path()).unwrap().with_births()));
        })* }

        mod simulated { $(#[test] fn $name() {
            super::$name(super::disk(super::MetadataOrder::Journaled).root());
        })* }
    };
}

fn disk(order: MetadataOrder) -> SimDisk {
    SimDisk::new("disk", order, 1 << 30, &SimPower::new(), &SimClock::new())
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_raw(result.unwrap_err().raw_os_error().unwrap())
}

fn read(file: &dyn File) -> Vec<u8> {
    let mut buf = vec![0; file.stat().unwrap().size as usize + 10];
    let n = file.read_at(&mut buf, 0).unwrap();
    buf.truncate(n);
    buf
}

fn write(dir: &dyn Dir, name: &[u8], bytes: &[u8]) {
    dir.create(name, 0o600).unwrap().write_at(bytes, 0).unwrap();
}

fn content(dir: &dyn Dir, name: &[u8]) -> Vec<u8> {
    read(&*dir.open(name, Access::Read).unwrap())
}

fn names(dir: &dyn Dir) -> BTreeSet<Vec<u8>> {
    dir.list().unwrap().into_iter().map(|e| e.name).collect()
}

fn set(names: &[&str]) -> BTreeSet<Vec<u8>> {
    names.iter().map(|n| n.as_bytes().to_vec()).collect()
}

contract! {
    fn files_are_created_written_and_read_back(root) {
        let file = root.create(b"a", 0o640).unwrap();
        file.write_at(b"hello", 3).unwrap();
        assert_eq!(read(&*file), b"\0\0\0hello");
        let mut short = [0; 4];
        assert_eq!(file.read_at(&mut short, 4).unwrap(), 4);
        assert_eq!(&short, b"ello");
        assert_eq!(file.read_at(&mut short, 100).unwrap(), 0);
        let stat = root.stat(b"a").unwrap();
        assert_eq!((stat.kind, stat.perm, stat.nlink, stat.size), (Kind::File, 0o640, 1, 8));
        assert_eq!(stat.ino, file.stat().unwrap().ino);
        assert_eq!(errno(root.create(b"a", 0o640)), Errno::EEXIST);
        assert_eq!(errno(root.open(b"b", Access::Read)), Errno::ENOENT);
        let reader = root.open(b"a", Access::Read).unwrap();
        assert_eq!(errno(reader.write_at(b"x", 0)), Errno::EBADF);
        assert_eq!(errno(root.open(b"a", Access::Unnoticed).unwrap().write_at(b"x", 0)), Errno::EBADF);
        root.open(b"a", Access::ReadWrite).unwrap().set_len(2).unwrap();
        assert_eq!(read(&*reader), b"\0\0");
        file.sync().unwrap();
        root.sync().unwrap();
        file.forget_cached(WHOLE);
    }

    /// From the cache, past it, or by sharing blocks: done as without, or refused with nothing changed.
    fn other_ways_to_read_and_write_do_the_same_or_nothing(root) {
        let is_refused = |e: io::Error| REFUSALS.iter().any(|errno| e.raw_os_error() == Some(*errno as i32));
        let file = root.create(b"a", 0o600).unwrap();
        file.write_at(b"hello", 0).unwrap();
        let mut buf = [0; 5];
        match file.read_cached(&mut buf, 0) {
            Ok(got) => assert_eq!(buf[..got], b"hello"[..got]),
            Err(e) => assert!(is_refused(e)),
        }
        let written: &[u8] = match file.write_uncached(b"world", 3) {
            Ok(()) => b"helworld",
            Err(e) => {
                assert!(is_refused(e));
                b"hello"
            }
        };
        file.sync().unwrap();
        assert_eq!(read(&*file), written);
        let Some(from) = file.descriptor() else { return };
        let copy = root.create(b"b", 0o600).unwrap();
        let shared: &[u8] = match copy.reflink(from) {
            Ok(()) => written,
            Err(e) => {
                assert!(is_refused(e));
                b""
            }
        };
        assert_eq!(read(&*copy), shared);
    }

    /// Whoever may not wait is told what whoever may would be, or nothing.
    fn what_is_at_hand_is_what_there_is(root) {
        write(&*root, b"file", b"bytes");
        root.symlink(b"link", b"file").unwrap();
        root.mkdir(b"dir", 0o755).unwrap();
        for name in [&b"file"[..], b"link", b"dir"] {
            let stat = root.stat(name).unwrap();
            let at_hand = root.stat_at_hand(name);
            assert!(at_hand.as_ref().is_none_or(|found| found.as_ref().unwrap() == &stat), "{at_hand:?}, {stat:?}");
        }
        for absent in [&b"none"[..], b"", b"..", b"a/b", b"../a", b"a\0b"] {
            assert!(root.stat_at_hand(absent).is_none_or(|found| found.is_err()), "{absent:?}");
            assert!(root.open_at_hand(absent).is_none(), "{absent:?}");
        }
        assert!(root.open_at_hand(b"link").is_none());
        if let Some(file) = root.open_at_hand(b"file") {
            assert_eq!((file.stat().unwrap().ino, read(&*file)), (root.stat(b"file").unwrap().ino, b"bytes".to_vec()));
            let mut buf = [0; 3];
            let at_hand = file.read_at_hand(&mut buf, 3);
            assert!(at_hand.is_none_or(|got| got == 2 && buf == *b"es\0"), "{at_hand:?}: {buf:?}");
        }
        for name in [&b"dir"[..], b"file"] {
            root.rename(name, &*root, b"moved", RenameMode::Replace).unwrap_or_else(|_| root.rmdir(b"moved").unwrap());
            let found = root.stat_at_hand(b"moved").map(|found| found.map(|stat| stat.ino).ok());
            assert!(found.is_none_or(|ino| ino == root.stat(b"moved").map(|stat| stat.ino).ok()), "{name:?}");
        }
    }

    /// However deep: the kernel takes 4,096 bytes of a path at a time.
    fn a_walk_goes_as_deep_as_the_directories_and_through_no_link(root) {
        let (name, mut path, mut dir) = (b"a directory", Vec::new(), root.clone());
        for _ in 0..1000 {
            dir.mkdir(name, 0o755).unwrap();
            dir = dir.dir(name).unwrap();
            path.extend_from_slice(if path.is_empty() { b"" } else { b"/" });
            path.extend_from_slice(name);
            if path.len() < 60 || path.len() > 4030 && path.len() < 4130 || path.len() > 11_900 {
                assert_eq!(root.walk(&path).unwrap().stat(b".").unwrap(), dir.stat(b".").unwrap(), "{}", path.len());
            }
        }
        root.symlink(b"link", name).unwrap();
        write(&*root, b"file", b"bytes");
        for (bad, errno_of_it) in [
            (&b"none/a directory"[..], &[Errno::ENOENT][..]),
            (b"file/a directory", &[Errno::ENOTDIR]),
            (b"link/a directory", &[Errno::ELOOP, Errno::ENOTDIR]),
            (b"link", &[Errno::ELOOP, Errno::ENOTDIR]),
            (b"a directory/../a directory", &[Errno::EINVAL]),
            (b"", &[Errno::EINVAL]),
        ] {
            assert!(errno_of_it.contains(&errno(root.walk(bad))), "{}", String::from_utf8_lossy(bad));
        }
    }

    fn names_that_leave_the_directory_are_refused(root) {
        for bad in [&b""[..], b"..", b"a/b", b"/", b"../a", b"a\0b"] {
            assert_eq!(errno(root.stat(bad)), Errno::EINVAL, "{bad:?}");
            assert_eq!(errno(root.create(bad, 0o600)), Errno::EINVAL, "{bad:?}");
            assert_eq!(errno(root.dir(bad)), Errno::EINVAL, "{bad:?}");
            assert_eq!(errno(root.set_attr(bad, &NewAttr { perm: Some(0), ..NewAttr::default() })), Errno::EINVAL);
            assert_eq!(errno(root.rename(bad, &*root, b"x", RenameMode::Replace)), Errno::EINVAL, "{bad:?}");
        }
        for method in [root.unlink(b"."), root.rmdir(b"."), root.mkdir(b".", 0o700), root.symlink(b".", b"x")] {
            assert_eq!(errno(method), Errno::EINVAL);
        }
        assert_eq!(errno(root.create(&[b'n'; 256], 0o600)), Errno::ENAMETOOLONG);
        write(&*root, b"\xff\n ", b"any byte");
        assert_eq!(content(&*root, b"\xff\n "), b"any byte");
    }

    fn only_regular_files_are_opened(root) {
        root.mkdir(b"dir", 0o700).unwrap();
        root.symlink(b"link", b"dir").unwrap();
        root.symlink(b"dangling", b"nowhere").unwrap();
        // Nobody has the other end open: without care, this would wait for ever.
        root.mknod(b"fifo", Kind::Fifo, 0o600, 0).unwrap();
        root.mknod(b"socket", Kind::Socket, 0o600, 0).unwrap();
        for name in [&b"dir"[..], b"link", b"dangling", b"fifo", b"socket"] {
            for access in [Access::Read, Access::Unnoticed, Access::ReadWrite] {
                assert_eq!(errno(root.open(name, access)), Errno::EINVAL, "{name:?} {access:?}");
            }
        }
        for name in [&b"link"[..], b"fifo"] {
            assert!(matches!(errno(root.dir(name)), Errno::ENOTDIR | Errno::ELOOP), "{name:?}");
        }
        assert_eq!(errno(root.create(b"dangling", 0o600)), Errno::EEXIST);
        assert_eq!(names(&*root), set(&["dangling", "dir", "fifo", "link", "socket"]));
    }

    fn directories_nest_and_count_their_links(root) {
        root.mkdir(b"d", 0o1750).unwrap();
        let d = root.dir(b"d").unwrap();
        d.mkdir(b"e", 0o700).unwrap();
        write(&*d, b"f", b"x");
        let stat = d.stat(b".").unwrap();
        assert_eq!((stat.kind, stat.perm, stat.nlink), (Kind::Dir, 0o1750, 3));
        assert_eq!(stat.ino, root.stat(b"d").unwrap().ino);
        assert_eq!(errno(root.rmdir(b"d")), Errno::ENOTEMPTY);
        assert_eq!(errno(root.unlink(b"d")), Errno::EISDIR);
        assert_eq!(errno(d.rmdir(b"f")), Errno::ENOTDIR);
        assert_eq!(errno(d.rmdir(b"g")), Errno::ENOENT);
        d.rmdir(b"e").unwrap();
        d.unlink(b"f").unwrap();
        root.rmdir(b"d").unwrap();
        assert_eq!(errno(d.create(b"late", 0o600)), Errno::ENOENT);
        assert_eq!(d.list().unwrap(), []);
        assert_eq!(root.list().unwrap(), []);
    }

    fn lists_tell_every_kind_and_inode(root) {
        write(&*root, b"file", b"");
        root.mkdir(b"dir", 0o700).unwrap();
        root.symlink(b"link", b"x").unwrap();
        root.mknod(b"fifo", Kind::Fifo, 0o600, 0).unwrap();
        let listed = root.list().unwrap();
        assert_eq!(listed.len(), 4);
        for entry in listed {
            let stat = root.stat(&entry.name).unwrap();
            assert_eq!((entry.ino, entry.kind), (stat.ino, stat.kind), "{:?}", entry.name);
        }
    }

    fn listing_reads_large_directories_to_the_end_each_time(root) {
        let expected: BTreeSet<Vec<u8>> = (0..3000).map(|i| format!("a-rather-long-name-{i}").into_bytes()).collect();
        expected.iter().for_each(|name| write(&*root, name, b""));
        assert_eq!(names(&*root), expected);
        assert_eq!(names(&*root), expected);
    }

    fn links_share_the_inode_and_outlive_each_other(root) {
        root.mkdir(b"d", 0o700).unwrap();
        let d = root.dir(b"d").unwrap();
        write(&*root, b"a", b"one");
        root.link(b"a", &*d, b"b").unwrap();
        assert_eq!(root.stat(b"a").unwrap().ino, d.stat(b"b").unwrap().ino);
        assert_eq!(d.stat(b"b").unwrap().nlink, 2);
        assert_eq!(errno(root.link(b"a", &*d, b"b")), Errno::EEXIST);
        assert_eq!(errno(root.link(b"d", &*root, b"e")), Errno::EPERM);
        assert_eq!(errno(root.link(b"none", &*root, b"e")), Errno::ENOENT);
        root.unlink(b"a").unwrap();
        assert_eq!(content(&*d, b"b"), b"one");
        // A link to a symbolic link is a link to that, not to what it names.
        root.symlink(b"s", b"d").unwrap();
        root.link(b"s", &*root, b"t").unwrap();
        assert_eq!(root.readlink(b"t").unwrap(), b"d");
    }

    /// By its name, held, open, and under another name. A file system may keep no times of birth.
    fn a_birth_is_of_one_file_however_it_is_looked_at(root) {
        let file = root.create(b"a", 0o600).unwrap();
        let birth = file.stat().unwrap().birth;
        file.write_at(b"later", 0).unwrap();
        root.link(b"a", &*root, b"b").unwrap();
        file.set_attr(&NewAttr { mtime: Some(Time { sec: 1, nsec: 0 }), perm: Some(0o640), ..NewAttr::default() }).unwrap();
        root.rename(b"a", &*root, b"c", RenameMode::Replace).unwrap();
        for name in [&b"b"[..], b"c"] {
            let held = root.inode(name).unwrap().stat().unwrap().birth;
            let opened = root.open(name, Access::Read).unwrap().stat().unwrap().birth;
            let at_hand = root.stat_at_hand(name).map_or(birth, |stat| stat.unwrap().birth);
            let seen = [root.stat(name).unwrap().birth, root.stat_now(name).unwrap().birth, held, opened, at_hand];
            assert_eq!(seen, [birth; 5]);
        }
        // The clock of a file system has ticks.
        let other = (0..).map(|n| root.create(format!("other{n}").as_bytes(), 0o600).unwrap().stat().unwrap().birth);
        assert!(birth == 0 || other.take(1 << 20).any(|other| other != birth));
    }

    fn renames_replace_refuse_and_exchange(root) {
        root.mkdir(b"d", 0o700).unwrap();
        let d = root.dir(b"d").unwrap();
        write(&*root, b"a", b"A");
        write(&*root, b"b", b"B");
        root.rename(b"a", &*d, b"a", RenameMode::NoReplace).unwrap();
        assert_eq!(errno(root.rename(b"b", &*d, b"a", RenameMode::NoReplace)), Errno::EEXIST);
        root.rename(b"b", &*d, b"a", RenameMode::Exchange).unwrap();
        assert_eq!((content(&*root, b"b"), content(&*d, b"a")), (b"A".to_vec(), b"B".to_vec()));
        assert_eq!(errno(root.rename(b"b", &*d, b"none", RenameMode::Exchange)), Errno::ENOENT);
        root.rename(b"b", &*d, b"a", RenameMode::Replace).unwrap();
        assert_eq!(names(&*root), set(&["d"]));
        assert_eq!(content(&*d, b"a"), b"A");
        assert_eq!(errno(root.rename(b"none", &*d, b"a", RenameMode::Replace)), Errno::ENOENT);
    }

    fn renames_of_directories_follow_the_rules(root) {
        root.mkdir(b"d", 0o700).unwrap();
        let d = root.dir(b"d").unwrap();
        d.mkdir(b"sub", 0o700).unwrap();
        let sub = d.dir(b"sub").unwrap();
        root.mkdir(b"e", 0o700).unwrap();
        write(&*root, b"f", b"");
        assert_eq!(errno(root.rename(b"d", &*sub, b"x", RenameMode::Replace)), Errno::EINVAL);
        assert_eq!(errno(root.rename(b"d", &*sub, b"x", RenameMode::NoReplace)), Errno::EINVAL);
        assert_eq!(errno(sub.rename(b"x", &*root, b"d", RenameMode::Replace)), Errno::ENOENT);
        write(&*sub, b"x", b"");
        assert_eq!(errno(sub.rename(b"x", &*root, b"d", RenameMode::Replace)), Errno::ENOTEMPTY);
        assert_eq!(errno(sub.rename(b"x", &*root, b"d", RenameMode::Exchange)), Errno::EINVAL);
        assert_eq!(errno(root.rename(b"e", &*root, b"f", RenameMode::Replace)), Errno::ENOTDIR);
        assert_eq!(errno(root.rename(b"f", &*root, b"e", RenameMode::Replace)), Errno::EISDIR);
        assert_eq!(errno(root.rename(b"e", &*root, b"d", RenameMode::Replace)), Errno::ENOTEMPTY);
        root.rename(b"d", &*root, b"e", RenameMode::Replace).unwrap();
        assert_eq!(names(&*root), set(&["e", "f"]));
        assert_eq!(content(&*sub, b"x"), b"");
        root.rename(b"e", &*root, b"f", RenameMode::Exchange).unwrap();
        assert_eq!(root.stat(b"f").unwrap().kind, Kind::Dir);
        root.rename(b"f", &*root, b"f", RenameMode::Replace).unwrap();
    }

    fn renaming_one_name_of_a_file_over_another_changes_nothing(root) {
        write(&*root, b"a", b"x");
        root.link(b"a", &*root, b"b").unwrap();
        root.rename(b"a", &*root, b"b", RenameMode::Replace).unwrap();
        assert_eq!(names(&*root), set(&["a", "b"]));
        assert_eq!(errno(root.rename(b"a", &*root, b"b", RenameMode::NoReplace)), Errno::EEXIST);
    }

    fn attributes_are_set_in_the_order_owner_mode_times(root) {
        let file = root.create(b"a", 0o755).unwrap();
        let (atime, mtime) = (Time { sec: 5, nsec: 7 }, Time { sec: -3, nsec: 999_999_999 });
        let all =
            NewAttr { uid: Some(12), gid: Some(34), perm: Some(0o6755), atime: Some(atime), mtime: Some(mtime) };
        root.set_attr(b"a", &all).unwrap();
        let stat = file.stat().unwrap();
        assert_eq!((stat.uid, stat.gid, stat.perm, stat.mtime, stat.atime), (12, 34, 0o6755, mtime, atime));
        file.set_attr(&NewAttr { uid: Some(13), ..NewAttr::default() }).unwrap();
        let stat = file.stat().unwrap();
        assert_eq!((stat.uid, stat.gid, stat.perm, stat.mtime), (13, 34, 0o755, mtime));
        file.set_attr(&NewAttr { mtime: Some(atime), ..NewAttr::default() }).unwrap();
        assert_eq!(file.stat().unwrap().mtime, atime);
        let before = file.stat().unwrap();
        file.set_attr(&NewAttr::default()).unwrap();
        assert_eq!(file.stat().unwrap(), before);
        let bad = Time { sec: 0, nsec: 1_000_000_000 };
        let set = root.set_attr(b"a", &NewAttr { mtime: Some(bad), ..NewAttr::default() });
        assert_eq!(errno(set), Errno::EINVAL);
        assert_eq!(errno(root.set_attr(b"none", &all)), Errno::ENOENT);
    }

    fn attributes_of_the_directory_itself_and_of_links(root) {
        root.set_attr(b".", &NewAttr { perm: Some(0o2711), gid: Some(77), ..NewAttr::default() }).unwrap();
        assert_eq!((root.stat(b".").unwrap().perm, root.stat(b".").unwrap().gid), (0o2711, 77));
        root.mkdir(b"d", 0o700).unwrap();
        assert_eq!((root.stat(b"d").unwrap().perm, root.stat(b"d").unwrap().gid), (0o2700, 77));
        write(&*root, b"target", b"");
        root.symlink(b"link", b"target").unwrap();
        let time = Time { sec: 9, nsec: 9 };
        let new = NewAttr { uid: Some(5), perm: Some(0o600), mtime: Some(time), ..NewAttr::default() };
        root.set_attr(b"link", &new).unwrap();
        let (link, target) = (root.stat(b"link").unwrap(), root.stat(b"target").unwrap());
        assert_eq!((link.uid, link.mtime, link.kind, link.perm), (5, time, Kind::Symlink, 0o777));
        assert_eq!((target.uid, target.perm), (0, 0o600));
        assert_ne!(target.mtime, time);
    }

    fn xattrs_come_and_go_on_files_directories_and_links(root) {
        let file = root.create(b"f", 0o600).unwrap();
        root.mkdir(b"d", 0o700).unwrap();
        root.symlink(b"l", b"f").unwrap();
        for name in [&b"f"[..], b"d", b"."] {
            assert_eq!(root.get_xattr(name, b"user.k").unwrap(), None);
            root.set_xattr(name, b"user.k", b"v\0\xff").unwrap();
            root.set_xattr(name, b"user.empty", b"").unwrap();
            assert_eq!(root.get_xattr(name, b"user.k").unwrap().unwrap(), b"v\0\xff");
            assert_eq!(root.get_xattr(name, b"user.empty").unwrap().unwrap(), b"");
            let keys: BTreeSet<_> = root.list_xattr(name).unwrap().into_iter().collect();
            assert_eq!(keys, set(&["user.empty", "user.k"]));
            root.remove_xattr(name, b"user.k").unwrap();
            root.remove_xattr(name, b"user.k").unwrap();
            assert_eq!(root.list_xattr(name).unwrap(), [b"user.empty"]);
        }
        assert_eq!(file.get_xattr(b"user.empty").unwrap().unwrap(), b"");
        file.set_xattr(b"user.k", b"2").unwrap();
        assert_eq!(root.get_xattr(b"f", b"user.k").unwrap().unwrap(), b"2");
        assert_eq!(file.list_xattr().unwrap().len(), 2);
        file.remove_xattr(b"user.k").unwrap();
        file.remove_xattr(b"user.k").unwrap();
        // A link has its own: nothing is read from, or written to, what it names.
        assert_eq!(root.list_xattr(b"l").unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(errno(root.set_xattr(b"l", b"user.k", b"v")), Errno::EPERM);
        root.set_xattr(b"l", b"trusted.k", b"v").unwrap();
        assert_eq!(root.get_xattr(b"l", b"trusted.k").unwrap().unwrap(), b"v");
        assert_eq!(root.get_xattr(b"f", b"trusted.k").unwrap(), None);
        assert_eq!(errno(root.set_xattr(b"f", b"nonsense", b"v")), Errno::EOPNOTSUPP);
        assert_eq!(errno(root.get_xattr(b"none", b"user.k")), Errno::ENOENT);
    }

    fn special_files_keep_what_they_are(root) {
        root.mknod(b"null", Kind::CharDevice, 0o600, (1 << 8) | 3).unwrap();
        root.mknod(b"disk", Kind::BlockDevice, 0o600, (8 << 8) | 1).unwrap();
        root.mknod(b"plain", Kind::File, 0o640, 0).unwrap();
        let null = root.stat(b"null").unwrap();
        assert_eq!((null.kind, null.rdev), (Kind::CharDevice, (1 << 8) | 3));
        assert_eq!(root.stat(b"disk").unwrap().kind, Kind::BlockDevice);
        assert_eq!(content(&*root, b"plain"), b"");
        assert_eq!(errno(root.mknod(b"d", Kind::Dir, 0o700, 0)), Errno::EINVAL);
        assert_eq!(errno(root.mknod(b"null", Kind::Fifo, 0o600, 0)), Errno::EEXIST);
        assert_eq!(errno(root.readlink(b"plain")), Errno::EINVAL);
        assert_eq!(errno(root.symlink(b"empty", b"")), Errno::ENOENT);
    }

    fn an_open_file_outlives_its_name(root) {
        let file = root.create(b"a", 0o600).unwrap();
        root.unlink(b"a").unwrap();
        file.write_at(b"still here", 0).unwrap();
        write(&*root, b"a", b"other");
        assert_eq!(read(&*file), b"still here");
        assert_eq!(file.stat().unwrap().nlink, 0);
    }

    fn holes_are_found_and_kept(root) {
        let file = root.create(b"a", 0o600).unwrap();
        file.write_at(&[1; 100], 8192).unwrap();
        file.set_len(40960).unwrap();
        assert_eq!(file.stat().unwrap().blocks, 8);
        assert_eq!(file.seek(Seek::Data, 0).unwrap(), 8192);
        assert_eq!(file.seek(Seek::Hole, 0).unwrap(), 0);
        assert_eq!(file.seek(Seek::Hole, 8200).unwrap(), 12288);
        assert_eq!(errno(file.seek(Seek::Data, 12288)), Errno::ENXIO);
        assert_eq!(file.seek(Seek::Hole, 40959).unwrap(), 40959);
        assert_eq!(errno(file.seek(Seek::Hole, 40960)), Errno::ENXIO);
        file.write_at(&[2; 40960], 0).unwrap();
        assert_eq!(file.seek(Seek::Hole, 0).unwrap(), 40960);
        file.allocate(Allocate::PunchHole, 4000, 8288).unwrap();
        let bytes = read(&*file);
        assert!(bytes[..4000].iter().chain(&bytes[12288..]).all(|&b| b == 2));
        assert!(bytes[4000..12288].iter().all(|&b| b == 0));
        assert_eq!(file.seek(Seek::Hole, 0).unwrap(), 4096);
        assert_eq!(file.seek(Seek::Data, 4096).unwrap(), 12288);
        assert_eq!(file.stat().unwrap().size, 40960);
    }

    fn room_can_be_allocated(root) {
        let file = root.create(b"a", 0o600).unwrap();
        file.allocate(Allocate::KeepSize, 0, 10000).unwrap();
        assert_eq!((file.stat().unwrap().size, file.stat().unwrap().blocks), (0, 24));
        file.allocate(Allocate::Extend, 0, 10000).unwrap();
        assert_eq!(read(&*file), [0; 10000]);
        file.write_at(&[7; 10000], 0).unwrap();
        file.allocate(Allocate::ZeroRange, 9000, 3000).unwrap();
        assert_eq!(file.stat().unwrap().size, 12000);
        file.allocate(Allocate::ZeroRangeKeepSize, 0, 1).unwrap();
        let bytes = read(&*file);
        assert!(bytes[1..9000].iter().all(|&b| b == 7) && bytes[9000..].iter().all(|&b| b == 0) && bytes[0] == 0);
        assert_eq!(errno(file.allocate(Allocate::Extend, 0, 0)), Errno::EINVAL);
    }

    fn shrinking_leaves_zeros_behind(root) {
        let file = root.create(b"a", 0o600).unwrap();
        file.write_at(&[9; 5000], 0).unwrap();
        file.set_len(10).unwrap();
        file.set_len(5000).unwrap();
        assert_eq!(read(&*file)[..10], [9; 10]);
        assert!(read(&*file)[10..].iter().all(|&b| b == 0));
    }

    fn writing_moves_the_times(root) {
        let file = root.create(b"a", 0o600).unwrap();
        let old = Time { sec: 1, nsec: 0 };
        let back = NewAttr { mtime: Some(old), ..NewAttr::default() };
        for change in [
            &(|| file.write_at(b"x", 0).unwrap()) as &dyn Fn(),
            &|| file.set_len(5).unwrap(),
            &|| file.set_len(5).unwrap(),
            &|| file.allocate(Allocate::PunchHole, 0, 3).unwrap(),
        ] {
            file.set_attr(&back).unwrap();
            change();
            assert!(file.stat().unwrap().mtime > old);
        }
        file.set_attr(&back).unwrap();
        file.write_at(b"", 0).unwrap();
        file.set_xattr(b"user.k", b"v").unwrap();
        root.link(b"a", &*root, b"b").unwrap();
        assert_eq!(file.stat().unwrap().mtime, old);
        root.set_attr(b".", &back).unwrap();
        root.unlink(b"b").unwrap();
        assert!(root.stat(b".").unwrap().mtime > old);
    }

    fn space_adds_up(root) {
        let space = root.space().unwrap();
        assert!(space.avail <= space.free && space.free <= space.total && space.total > 0, "{space:?}");
        assert!(space.files_free <= space.files && space.block.is_power_of_two() && space.name_max == 255);
    }
}

#[test]
fn two_implementations_do_not_share_names() {
    let dir = tempfile::tempdir().unwrap();
    let os: Arc<dyn Dir> = Arc::new(OsDir::open(dir.path()).unwrap());
    let (a, b) = (disk(MetadataOrder::Journaled).root(), disk(MetadataOrder::Journaled).root());
    write(&*a, b"x", b"");
    write(&*os, b"x", b"");
    for (from, to) in [(&a, &b), (&a, &os), (&os, &a)] {
        assert_eq!(errno(from.rename(b"x", &**to, b"x", RenameMode::Replace)), Errno::EXDEV);
        assert_eq!(errno(from.link(b"x", &**to, b"x")), Errno::EXDEV);
    }
}

#[test]
fn the_machines_clock_moves_forward() {
    let (now, up) = (OsClock.now(), OsClock.uptime());
    assert!(now.sec > 1_700_000_000 && now.nsec < 1_000_000_000);
    assert!(OsClock.uptime() >= up);
    let clock = SimClock::new();
    let (now, up) = (clock.now(), clock.uptime());
    clock.advance(Duration::from_secs(5));
    assert!(clock.now().sec >= now.sec + 5 && clock.uptime() >= up + Duration::from_secs(5));
}

fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

#[test]
fn a_kill_loses_nothing_and_closes_what_was_open() {
    let disk = disk(MetadataOrder::Unknown);
    let root = disk.root();
    write(&*root, b"a", b"bytes");
    let unlinked = root.create(b"b", 0o600).unwrap();
    root.unlink(b"b").unwrap();
    let after = disk.crash(Lose::Nothing, &mut rng(1));
    assert_eq!(errno(root.stat(b"a")), Errno::EIO);
    assert_eq!(errno(unlinked.write_at(b"x", 0)), Errno::EIO);
    assert_eq!(names(&*after.root()), set(&["a"]));
    assert_eq!(content(&*after.root(), b"a"), b"bytes");
}

#[test]
fn a_power_cut_after_a_kill_still_takes_what_was_not_synced() {
    let found = |seed| {
        let disk = disk(MetadataOrder::Unknown);
        write(&*disk.root(), b"a", b"bytes");
        let killed = disk.crash(Lose::Nothing, &mut rng(seed));
        names(&*killed.crash(Lose::Unsynced, &mut rng(seed)).root())
    };
    assert_eq!((0..50).map(found).collect::<BTreeSet<_>>(), BTreeSet::from([set(&[]), set(&["a"])]));
}

/// Does something to a disk, cuts the power once per seed, and gathers what was found.
fn after_power_cuts<T: Ord>(
    order: MetadataOrder,
    before: impl Fn(&dyn Dir),
    look: impl Fn(&dyn Dir) -> T,
) -> BTreeSet<T> {
    let cut = |seed| {
        let disk = disk(order);
        before(&*disk.root());
        look(&*disk.crash(Lose::Unsynced, &mut rng(seed)).root())
    };
    (0..200).map(cut).collect()
}

#[test]
fn synced_files_in_synced_directories_survive_a_power_cut() {
    for order in [MetadataOrder::Journaled, MetadataOrder::Unknown] {
        let found = after_power_cuts(
            order,
            |root| {
                let file = root.create(b"a", 0o600).unwrap();
                file.write_at(&[1; 9000], 0).unwrap();
                file.set_xattr(b"user.k", b"v").unwrap();
                file.sync().unwrap();
                root.sync().unwrap();
                root.create(b"b", 0o600).unwrap().write_at(b"not synced", 0).unwrap();
            },
            |root| {
                assert_eq!(root.get_xattr(b"a", b"user.k").unwrap().unwrap(), b"v");
                content(root, b"a")
            },
        );
        assert_eq!(found, BTreeSet::from([vec![1; 9000]]));
    }
}

#[test]
fn a_journal_keeps_the_order_of_names_and_nothing_else_does() {
    let before = |root: &dyn Dir| {
        for name in ["a", "b", "c"] {
            root.mkdir(name.as_bytes(), 0o700).unwrap();
        }
    };
    let journaled = after_power_cuts(MetadataOrder::Journaled, before, names);
    assert_eq!(journaled, BTreeSet::from([set(&[]), set(&["a"]), set(&["a", "b"]), set(&["a", "b", "c"])]));
    assert_eq!(after_power_cuts(MetadataOrder::Unknown, before, names).len(), 8);
}

#[test]
fn one_sync_carries_all_names_only_with_a_journal() {
    let before = |root: &dyn Dir| {
        root.mkdir(b"a", 0o700).unwrap();
        root.sync().unwrap();
        root.mkdir(b"b", 0o700).unwrap();
        root.dir(b"a").unwrap().sync().unwrap();
    };
    assert_eq!(after_power_cuts(MetadataOrder::Journaled, before, names), BTreeSet::from([set(&["a", "b"])]));
    assert_eq!(
        after_power_cuts(MetadataOrder::Unknown, before, names),
        BTreeSet::from([set(&["a"]), set(&["a", "b"])])
    );
}

#[test]
fn unsynced_bytes_tear() {
    for order in [MetadataOrder::Journaled, MetadataOrder::Unknown] {
        let before = |root: &dyn Dir| {
            let file = root.create(b"a", 0o600).unwrap();
            file.write_at(&[1; 8192], 0).unwrap();
            file.sync().unwrap();
            root.sync().unwrap();
            file.write_at(&[2; 12288], 0).unwrap();
        };
        let found = after_power_cuts(order, before, |root| content(root, b"a"));
        let block = |bytes: &[u8], i: usize| bytes.get(i * 4096).copied();
        let seen = |i| found.iter().map(|bytes| block(bytes, i)).collect::<BTreeSet<_>>();
        assert_eq!(seen(0), BTreeSet::from([Some(1), Some(2)]));
        assert_eq!(seen(2), BTreeSet::from([None, Some(0), Some(2)]));
        assert!(found.iter().all(|bytes| (8192..=12288).contains(&bytes.len())));
    }
}

#[test]
fn a_rename_is_there_whole_or_not_at_all() {
    for order in [MetadataOrder::Journaled, MetadataOrder::Unknown] {
        let before = |root: &dyn Dir| {
            for (name, bytes) in [(b"a", b"A"), (b"b", b"B")] {
                let file = root.create(name, 0o600).unwrap();
                file.write_at(bytes, 0).unwrap();
                file.sync().unwrap();
            }
            root.sync().unwrap();
            root.rename(b"a", root, b"b", RenameMode::Replace).unwrap();
        };
        let found = after_power_cuts(order, before, |root| (names(root), content(root, b"b")));
        assert_eq!(found, BTreeSet::from([(set(&["a", "b"]), b"B".to_vec()), (set(&["b"]), b"A".to_vec())]));
    }
}

#[test]
fn a_moved_directory_never_loses_what_is_in_it() {
    let before = |root: &dyn Dir| {
        root.mkdir(b"x", 0o700).unwrap();
        let x = root.dir(b"x").unwrap();
        x.mkdir(b"y", 0o700).unwrap();
        let file = x.dir(b"y").unwrap().create(b"f", 0o600).unwrap();
        file.sync().unwrap();
        x.dir(b"y").unwrap().sync().unwrap();
        x.sync().unwrap();
        root.sync().unwrap();
        x.rename(b"y", root, b"y", RenameMode::Replace).unwrap();
        root.rename(b"x", &*root.dir(b"y").unwrap(), b"x", RenameMode::Replace).unwrap();
    };
    fn files(dir: &dyn Dir) -> usize {
        let count = |e: dlio_fs::tiers::disk::DirEntry| match e.kind {
            Kind::Dir => files(&*dir.dir(&e.name).unwrap()),
            _ => 1,
        };
        dir.list().unwrap().into_iter().map(count).sum()
    }
    for order in [MetadataOrder::Journaled, MetadataOrder::Unknown] {
        assert_eq!(after_power_cuts(order, before, files), BTreeSet::from([1]));
    }
}

#[test]
fn the_machine_stops_at_the_call_it_was_told() {
    let (power, clock) = (SimPower::new(), SimClock::new());
    let mut written = BTreeSet::new();
    for seed in 0..40 {
        let disks = ["fast", "slow"].map(|l| SimDisk::new(l, MetadataOrder::Journaled, 1 << 20, &power, &clock));
        let (a, b) = (disks[0].root(), disks[1].root());
        power.fail_after(3, &mut rng(seed));
        let before = power.calls();
        let file = a.create(b"f", 0o600).unwrap();
        b.mkdir(b"d", 0o700).unwrap();
        assert_eq!(errno(file.write_at(&[1; 6000], 0)), Errno::EIO);
        assert_eq!(errno(b.stat(b"d")), Errno::EIO);
        assert_eq!(errno(a.unlink(b"f")), Errno::EIO);
        assert_eq!(power.calls(), before + 3);
        power.restore();
        let after = disks[0].crash(Lose::Nothing, &mut rng(seed));
        written.insert(content(&*after.root(), b"f").len());
    }
    assert_eq!(written, BTreeSet::from([0, 4096, 6000]));
    // A descriptor that the last call opened is of no use, and does no harm.
    let disk = SimDisk::new("disk", MetadataOrder::Journaled, 1 << 20, &power, &clock);
    for seed in 0..10 {
        power.restore();
        power.fail_after(1, &mut rng(seed));
        assert_eq!(errno(disk.root().create(&[b'a' + seed as u8], 0o600)), Errno::EIO);
    }
}

#[test]
fn a_full_disk_takes_what_fits() {
    let disk = SimDisk::new("disk", MetadataOrder::Journaled, 3 * 4096, &SimPower::new(), &SimClock::new());
    let root = disk.root();
    let file = root.create(b"a", 0o600).unwrap();
    assert_eq!(errno(file.write_at(&[1; 20000], 0)), Errno::ENOSPC);
    assert_eq!(read(&*file), [1; 8192]);
    assert_eq!(errno(file.allocate(Allocate::Extend, 0, 20000)), Errno::ENOSPC);
    file.write_at(&[2; 8192], 0).unwrap();
    disk.set_capacity(8192);
    assert_eq!(errno(root.create(b"b", 0o600)), Errno::ENOSPC);
    assert_eq!(root.space().unwrap().free, 0);
    root.unlink(b"a").unwrap();
    assert_eq!(errno(root.create(b"b", 0o600)), Errno::ENOSPC);
    drop(file);
    root.create(b"b", 0o600).unwrap();
}

#[test]
fn calls_fail_on_demand() {
    let disk = disk(MetadataOrder::Journaled);
    disk.inject(|op| (op.call == "write_at" && op.path == b"d/f" && op.bytes > 1).then_some(Errno::EDQUOT));
    disk.root().mkdir(b"d", 0o700).unwrap();
    let file = disk.root().dir(b"d").unwrap().create(b"f", 0o600).unwrap();
    assert_eq!(errno(file.write_at(b"xx", 0)), Errno::EDQUOT);
    file.write_at(b"x", 0).unwrap();
}

#[test]
fn an_observer_sees_every_state_outside_of_the_private_directory() {
    let disk = disk(MetadataOrder::Journaled);
    let root = disk.root();
    disk.observe();
    root.mkdir(sim::PRIVATE, 0o700).unwrap();
    let private = root.dir(sim::PRIVATE).unwrap();
    private.create(b"tmp", 0o600).unwrap().write_at(b"new", 0).unwrap();
    assert_eq!(disk.take_observed().len(), 0);
    private.rename(b"tmp", &*root, b"a", RenameMode::Replace).unwrap();
    root.link(b"a", &*root, b"b").unwrap();
    root.open(b"b", Access::ReadWrite).unwrap().write_at(b"N", 0).unwrap();
    root.set_attr(b".", &NewAttr { atime: Some(Time::default()), ..NewAttr::default() }).unwrap();
    let seen = disk.take_observed();
    assert_eq!(seen.len(), 3);
    let shown = |i: usize, path: &[u8]| seen[i].get(path).map(|e| (e.shown.body().bytes.to_vec(), e.same_as.clone()));
    assert_eq!(shown(0, b"a"), Some((b"new".to_vec(), None)));
    assert_eq!(shown(0, b"b"), None);
    assert_eq!(shown(1, b"b"), Some((b"new".to_vec(), Some(b"a".to_vec()))));
    assert_eq!(shown(2, b"a"), Some((b"New".to_vec(), None)));
    assert_eq!(seen[2], disk.image());
    assert!(seen[1].diff(&seen[2], "before", "after").contains("before: File 0600 0:0"));
    assert_eq!(seen[2].diff(&disk.image(), "before", "after"), "");
    root.rename(b"a", &*private, b"gone", RenameMode::Replace).unwrap();
    assert_eq!(disk.take_observed()[0].get(b"b").unwrap().same_as, None);
}

/// Where the tests lie the kernel may have to ask somebody; in memory it never has to.
#[test]
fn in_memory_a_name_that_was_looked_at_is_at_hand() {
    if !are_met(&["/dev/shm"]) {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = OsDir::open(dir.path()).unwrap();
    write(&root, b"file", b"bytes");
    assert_eq!(root.stat_at_hand(b"file").unwrap().unwrap(), root.stat(b"file").unwrap());
    assert_eq!(read(&*root.open_at_hand(b"file").unwrap()), b"bytes");
    assert_eq!(errno(root.stat(b"none")), Errno::ENOENT);
    // A tmpfs keeps all names, and remembers that there is none only as long as it likes.
    assert!(root.stat_at_hand(b"none").is_none_or(|found| errno(found) == Errno::ENOENT));
}

/// What is mounted there may be of another machine, and to be asked.
#[test]
fn what_is_mounted_on_a_name_is_not_at_hand() {
    let root = OsDir::open(std::path::Path::new("/")).unwrap();
    for mounted in [&b"proc"[..], b"sys"] {
        assert!(root.stat(mounted).is_ok() && root.stat_at_hand(mounted).is_none());
        assert!(root.open_at_hand(mounted).is_none());
        assert!(root.dir(mounted).unwrap().stat_at_hand(b"self").is_none());
    }
}

/// Of a file system that is not known nobody can say whether it answers from memory alone. Terminals have one of their own, which does: it
/// stands for those that do not.
#[test]
fn on_an_unknown_file_system_nothing_is_at_hand() {
    if !are_met(&["/dev/pts"]) {
        return;
    }
    let terminals = OsDir::open(std::path::Path::new("/dev/pts")).unwrap();
    assert!(terminals.stat(b"ptmx").is_ok() && terminals.stat_at_hand(b"ptmx").is_none());
    assert!(terminals.open_at_hand(b"ptmx").is_none());
}

//! What an application sees through a real mount: one test per behaviour.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, OFlag, RenameFlags, fallocate, renameat2};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, makedev, mknod, utimensat};
use nix::sys::statvfs::statvfs;
use nix::sys::time::TimeSpec;
use nix::unistd::{Whence, lseek64, mkfifo};

use crate::common::{Elsewhere, Mount, Relay, USER, errno, mode, names, pattern, succeeded, until};
use crate::needs::{MOUNTS, needs};

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory in which everybody may write.
fn open_dir(mount: &Mount, name: &str) -> std::path::PathBuf {
    let dir = mount.at(name);
    fs::create_dir(&dir).unwrap();
    set_mode(&dir, 0o777);
    dir
}

fn rename_with(from: &std::path::Path, to: &std::path::Path, flags: RenameFlags) -> io::Result<()> {
    renameat2(AT_FDCWD, from, AT_FDCWD, to, flags).map_err(io::Error::from)
}

// Bytes

#[test]
fn what_is_written_is_read_at_once_through_another_descriptor() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let content = pattern(3 * 1024 * 1024 + 17);
    let path = mount.at("f");
    let mut writer = File::create(&path).unwrap();
    let reader = File::open(&path).unwrap();
    writer.write_all(&content).unwrap();
    let mut tail = [0; 100];
    reader.read_exact_at(&mut tail, content.len() as u64 - 100).unwrap();
    assert_eq!(tail, content[content.len() - 100..]);
    assert_eq!(reader.metadata().unwrap().len(), content.len() as u64);
    assert_eq!(reader.read_at(&mut tail, content.len() as u64).unwrap(), 0, "end of file");
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn an_overwrite_in_the_middle_changes_only_that() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let mut content = pattern(300_000);
    let path = mount.put("f", &content);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"here", 123_456).unwrap();
    content[123_456..123_460].copy_from_slice(b"here");
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn appends_of_two_descriptors_do_not_overwrite_each_other() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let open = || OpenOptions::new().append(true).create(true).open(mount.at("log")).unwrap();
    let (mut a, mut b) = (open(), open());
    for _ in 0..50 {
        a.write_all(b"aa\n").unwrap();
        b.write_all(b"bbbb\n").unwrap();
    }
    assert_eq!(fs::read_to_string(mount.at("log")).unwrap(), "aa\nbbbb\n".repeat(50));
}

#[test]
fn truncation_cuts_and_extends_with_zeros() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", pattern(10_000));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(100).unwrap();
    file.set_len(5_000).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content[..100], pattern(10_000)[..100]);
    assert_eq!(content[100..], vec![0; 4_900]);
    let before = file.metadata().unwrap();
    nix::unistd::truncate(&path, 7).unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), 7, "by path as well");
    assert!(file.metadata().unwrap().mtime_nsec() != before.mtime_nsec(), "a truncation sets mtime");
}

#[test]
fn exclusive_creation_refuses_what_exists() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "old");
    let exclusive = || OpenOptions::new().write(true).create_new(true).open(&path);
    assert_eq!(errno(exclusive()), Errno::EEXIST);
    fs::remove_file(&path).unwrap();
    exclusive().unwrap();
}

#[test]
fn opening_with_truncation_empties_the_file() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "a long former content");
    let mut file = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    file.write_all(b"new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
}

#[test]
fn direct_io_writes_and_reads() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let content = pattern(1 << 20);
    let direct = OFlag::O_DIRECT.bits();
    let path = mount.at("f");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(direct).open(&path).unwrap();
    file.write_all(&content).unwrap();
    let mut read = Vec::new();
    OpenOptions::new().read(true).custom_flags(direct).open(&path).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == content);
}

#[test]
fn synchronous_writes_and_syncs_succeed() {
    needs!(MOUNTS);
    let mount = Mount::new();
    for flag in [OFlag::O_SYNC, OFlag::O_DSYNC] {
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).custom_flags(flag.bits()).open(mount.at("f")).unwrap();
        file.write_all(b"durable").unwrap();
    }
    let file = File::open(mount.at("f")).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    File::open(mount.root()).unwrap().sync_all().unwrap();
    assert!(mount.calls("fsyncdir").0 >= 1, "fsync of a directory reaches the daemon");
    assert_eq!((mount.calls("fsync").0, mount.calls("fdatasync").0), (1, 1));
}

/// The file stays open: to be closed it would be durable soon by itself. To the next daemon it is another boot, which takes what was not
/// durable for lost, as after a power cut.
#[test]
fn what_was_answered_as_durable_is_there_in_the_next_boot() {
    needs!(MOUNTS);
    let sync = |_: &Mount, file: &File| file.sync_all().unwrap();
    let data = |_: &Mount, file: &File| file.sync_data().unwrap();
    let root = |mount: &Mount, _: &File| File::open(mount.root()).unwrap().sync_all().unwrap();
    let above = |mount: &Mount, _: &File| File::open(mount.at("run")).unwrap().sync_all().unwrap();
    let none = |_: &Mount, _: &File| ();
    type Way<'a> = &'a dyn Fn(&Mount, &File);
    let ways: [(&str, OFlag, Way, bool); 7] = [
        ("fsync", OFlag::empty(), &sync, true),
        ("fdatasync", OFlag::empty(), &data, true),
        ("fsync of the mount point", OFlag::empty(), &root, true),
        ("fsync of its directory", OFlag::empty(), &above, true),
        ("O_SYNC", OFlag::O_SYNC, &none, true),
        ("O_DSYNC", OFlag::O_DSYNC, &none, true),
        ("nothing", OFlag::empty(), &none, false),
    ];
    for (way, flags, make_durable, survives) in ways {
        let mut mount = Mount::with(&["live_after=1h"], |slow| fs::create_dir(slow.join("run")).unwrap());
        let path = mount.at("run/f");
        let file = OpenOptions::new().write(true).create(true).custom_flags(flags.bits()).open(&path).unwrap();
        file.write_all_at(b"durable", 0).unwrap();
        make_durable(&mount, &file);
        mount.kill();
        drop(file);
        mount.through(&["env", "DLIO_FAULTS=boot=another"]);
        mount.start();
        let there = fs::read(&path).is_ok_and(|bytes| bytes == b"durable");
        assert_eq!(there, survives, "{way}");
    }
}

/// Also what is in a file that is still open: nothing else has made that durable.
#[test]
fn a_daemon_that_leaves_makes_everything_durable_first() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["live_after=1h"], |_| ());
    let path = mount.at("f");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"written", 0).unwrap();
    mount.stop();
    drop(file);
    mount.through(&["env", "DLIO_FAULTS=boot=another"]);
    mount.start();
    assert_eq!(fs::read_to_string(&path).unwrap(), "written");
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.at("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(fs::metadata(&path)), Errno::ENOENT);
    file.write_all(b" and after").unwrap();
    file.set_len(12).unwrap();
    let mut content = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "before and a");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.sync_all().unwrap();
    drop(file);
    mount.put("f", "another");
    assert_eq!(fs::read_to_string(&path).unwrap(), "another");
}

#[test]
fn a_replaced_file_stays_readable_for_who_has_it_open() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "old");
    let old = File::open(&path).unwrap();
    fs::rename(mount.put("f.tmp", "new"), &path).unwrap();
    let mut content = [0; 3];
    old.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"old");
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
}

#[test]
fn a_shared_mapping_is_seen_by_read_and_arrives_on_the_slow_tier() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", pattern(64 * 1024));
    mount.python(
        "import mmap, os\n\
         fd = os.open('f', os.O_RDWR)\n\
         m = mmap.mmap(fd, 0, mmap.MAP_SHARED)\n\
         assert m[:4] == os.pread(fd, 4, 0)\n\
         m[5000:5006] = b'stored'\n\
         m.flush()\n\
         assert os.pread(fd, 6, 5000) == b'stored'\n\
         os.pwrite(fd, b'written', 9000)\n\
         assert m[9000:9007] == b'written', m[9000:9007]\n\
         m[60000:60004] = b'last'\n\
         m.close(); os.close(fd)\n",
    );
    let mut expected = pattern(64 * 1024);
    expected[5000..5006].copy_from_slice(b"stored");
    expected[9000..9007].copy_from_slice(b"written");
    expected[60000..60004].copy_from_slice(b"last");
    assert!(fs::read(mount.at("f")).unwrap() == expected);
    mount.sync();
    assert!(fs::read(mount.slow().join("f")).unwrap() == expected);
}

#[test]
fn a_private_mapping_changes_nothing() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", "original");
    mount.python(
        "import mmap, os\n\
         fd = os.open('f', os.O_RDONLY)\n\
         m = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)\n\
         m[:4] = b'mine'\n\
         assert m[:] == b'mineinal'\n\
         m.close()\n",
    );
    assert_eq!(fs::read_to_string(mount.at("f")).unwrap(), "original");
}

#[test]
fn a_punched_hole_reads_as_zeros_and_is_found_by_seek() {
    needs!(MOUNTS);
    const MIB: i64 = 1 << 20;
    let mount = Mount::new();
    let path = mount.put("f", pattern(3 * MIB as usize));
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | keep, MIB, MIB).unwrap();
    let mut expected = pattern(3 * MIB as usize);
    expected[MIB as usize..2 * MIB as usize].fill(0);
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(lseek64(&file, 0, Whence::SeekHole).unwrap(), MIB);
    assert_eq!(lseek64(&file, MIB, Whence::SeekData).unwrap(), 2 * MIB);
    assert_eq!(lseek64(&file, 2 * MIB, Whence::SeekHole).unwrap(), 3 * MIB, "the end is a hole");
    assert_eq!(lseek64(&file, 3 * MIB, Whence::SeekData), Err(Errno::ENXIO));
}

#[test]
fn allocation_extends_or_keeps_the_size() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "content");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let size = || fs::metadata(&path).unwrap().len();
    fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 100_000).unwrap();
    assert_eq!(size(), 7);
    fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    assert_eq!(size(), 100_000);
    assert!(fs::read(&path).unwrap().starts_with(b"content\0"));
    let collapse = FallocateFlags::FALLOC_FL_COLLAPSE_RANGE;
    assert_eq!(fallocate(&file, collapse, 0, 4096), Err(Errno::EOPNOTSUPP));
}

#[test]
fn copy_file_range_copies_between_files() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let content = pattern(2 << 20);
    mount.put("from", &content);
    mount.python(
        "import os\n\
         a, b = os.open('from', os.O_RDONLY), os.open('to', os.O_RDWR | os.O_CREAT)\n\
         done, size = 0, os.fstat(a).st_size - 1000\n\
         while done < size: done += os.copy_file_range(a, b, size - done, 1000 + done, 10 + done)\n\
         assert os.copy_file_range(a, b, 10, size + 1000, 0) == 0, 'nothing is left'\n",
    );
    let copied = fs::read(mount.at("to")).unwrap();
    assert_eq!(copied[..10], [0; 10]);
    assert!(copied[10..] == content[1000..]);
    assert!(mount.calls("copy_file_range").1 >= content.len() as u64 - 1000, "it was not taken apart by the kernel");
}

// Attributes

#[test]
fn times_are_kept_to_the_nanosecond() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "x");
    let (atime, mtime) = (TimeSpec::new(1_600_000_000, 123_456_789), TimeSpec::new(1_700_000_000, 987_654_321));
    utimensat(AT_FDCWD, &path, &atime, &mtime, UtimensatFlags::FollowSymlink).unwrap();
    let times = |path: &std::path::Path| {
        let meta = fs::symlink_metadata(path).unwrap();
        ((meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec()))
    };
    assert_eq!(times(&path), ((1_600_000_000, 123_456_789), (1_700_000_000, 987_654_321)));
    mount.sync();
    assert_eq!(times(&mount.slow().join("f")).1, (1_700_000_000, 987_654_321), "the slow copy has the same mtime");
    let before = TimeSpec::new(-2, 800_000_000);
    utimensat(AT_FDCWD, &path, &before, &before, UtimensatFlags::FollowSymlink).unwrap();
    assert_eq!(times(&path).1, (-2, 800_000_000), "before 1970");
}

#[test]
fn touch_sets_the_time_of_now_and_omit_leaves_the_other() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "x");
    let old = TimeSpec::new(1000, 1);
    utimensat(AT_FDCWD, &path, &old, &old, UtimensatFlags::FollowSymlink).unwrap();
    mount.sync();
    utimensat(AT_FDCWD, &path, &TimeSpec::UTIME_OMIT, &TimeSpec::UTIME_NOW, UtimensatFlags::FollowSymlink).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.atime(), meta.atime_nsec()), (1000, 1), "a copy to the slow tier is no access");
    assert!(meta.mtime() > 1_700_000_000, "{}", meta.mtime());
}

/// An output was older than the source that had been touched before it was made, and `make` made it again, in 60 of 200 rounds: one had its
/// time from the file system of the fast tier, which counts in ticks, the other from a clock that does not.
#[test]
fn what_is_changed_later_is_never_older_however_it_is_changed() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("slow"), "old").unwrap());
    succeeded(Command::new("python3").args(["-c", IN_EACH_ORDER]).current_dir(mount.root()).output().unwrap());
}

/// Each change behind each other one. Of each, the times that it gives.
const IN_EACH_ORDER: &str = r#"
import os
m, c = "st_mtime_ns", "st_ctime_ns"
for name in "touched", "written", "cut", "mode", "xattr": open(name, "w").close()
for name in "parent", "links", "moves": os.mkdir(name)
open("moves/0", "w").close()
written, at = open("written", "ab", 0), [0]
def write(name):
    with open(name, "w") as file: file.write("x")
def beside(make, name):
    at[0] += 1
    make(f"{name}{at[0]}")
    return f"{name}{at[0]}"
def move():
    at[0] += 1
    os.rename(*(f"moves/{n}" for n in (os.listdir("moves")[0], at[0])))
    return "moves"
changes = {
    "touch": lambda: (os.utime("touched"), [("touched", m)]),
    "touch of a slow file": lambda: (os.utime("slow"), [("slow", m)]),
    "touch of a directory": lambda: (os.utime("parent"), [("parent", m)]),
    "write": lambda: (written.write(b"x"), [("written", m), ("written", c)]),
    "write anew": lambda: (write("anew"), [("anew", m), ("anew", c)]),
    "create": lambda: ((name := beside(write, "parent/f")), [(name, m), ("parent", m)]),
    "create nothing": lambda: ((name := beside(os.mknod, "parent/n")), [(name, m), ("parent", m)]),
    "truncate": lambda: (os.truncate("cut", at[0] + 1), beside(lambda _: 0, ""), [("cut", m)]),
    "mkdir": lambda: ((name := beside(os.mkdir, "parent/d")), [(name, m), ("parent", m)]),
    "symlink": lambda: ((name := beside(lambda n: os.symlink("x", n), "parent/s")), [(name, m), ("parent", m)]),
    "link": lambda: (beside(lambda n: os.link("touched", n), "links/"), [("links", m), ("touched", c)]),
    "rename": lambda: (move(), [("moves", m)]),
    "chmod": lambda: (os.chmod("mode", 0o600), [("mode", c)]),
    "attribute": lambda: (os.setxattr("xattr", "user.a", b"x"), [("xattr", c)]),
}
def times(change): return [(getattr(os.lstat(name), which), name, which) for name, which in changes[change]()[-1]]
for first in changes:
    for second in changes:
        for turn in range(3):
            before, after = times(first), times(second)
            assert max(before)[0] <= min(after)[0], f"{second} is older than {first}: {before} {after}"
"#;

#[test]
fn a_file_belongs_to_its_creator_and_is_closed_to_others() {
    needs!(MOUNTS);
    let mount = Mount::new();
    open_dir(&mount, "d");
    succeeded(mount.as_user(USER, "umask 077; echo mine > d/f; mkdir d/sub"));
    let meta = fs::metadata(mount.at("d/f")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (USER, USER, 0o600));
    assert!(!mount.as_user(USER + 1, "cat d/f").status.success());
    assert!(!mount.as_user(USER + 1, "ls d/sub").status.success());
    assert!(!mount.as_user(USER + 1, "chmod 777 d/f").status.success());
    assert_eq!(mount.sh("cat d/f"), "mine\n");
}

#[test]
fn the_umask_of_the_caller_counts() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.sh("umask 027; : > f; mkdir d; mkfifo p");
    assert_eq!((mode(&mount.at("f")), mode(&mount.at("d")), mode(&mount.at("p"))), (0o640, 0o750, 0o640));
}

#[test]
fn a_setgid_directory_hands_down_its_group() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let dir = open_dir(&mount, "d");
    std::os::unix::fs::chown(&dir, None, Some(4321)).unwrap();
    set_mode(&dir, 0o2777);
    mount.sh(": > d/f; mkdir d/sub");
    assert_eq!(fs::metadata(dir.join("f")).unwrap().gid(), 4321);
    assert_eq!((fs::metadata(dir.join("sub")).unwrap().gid(), mode(&dir.join("sub")) & 0o2000), (4321, 0o2000));
}

#[test]
fn a_sticky_directory_keeps_others_files() {
    needs!(MOUNTS);
    let mount = Mount::new();
    set_mode(&open_dir(&mount, "d"), 0o1777);
    succeeded(mount.as_user(USER, "echo x > d/f"));
    assert!(!mount.as_user(USER + 1, "rm -f d/f").status.success());
    succeeded(mount.as_user(USER, "rm d/f"));
}

#[test]
fn a_write_by_a_user_clears_suid_and_sgid() {
    needs!(MOUNTS);
    let mount = Mount::new();
    for (script, survives) in
        [("printf x >> f", false), (": > f", false), ("printf x | dd of=f conv=notrunc", false), ("cat f", true)]
    {
        let path = mount.put("f", "program");
        set_mode(&path, 0o6777);
        succeeded(mount.as_user(USER, script));
        assert_eq!(mode(&path), if survives { 0o6777 } else { 0o777 }, "{script}");
    }
    let path = mount.put("f", "program");
    set_mode(&path, 0o6777);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"by root").unwrap();
    assert_eq!(mode(&path), 0o6777, "root may");
}

#[test]
fn chown_clears_suid() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "program");
    set_mode(&path, 0o6755);
    std::os::unix::fs::chown(&path, Some(USER), Some(USER)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (USER, USER, 0o755));
}

#[test]
fn extended_attributes_are_kept() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "x");
    xattr::set(&path, "user.one", b"1\0binary\xff").unwrap();
    xattr::set(&path, "user.two", b"").unwrap();
    assert_eq!(xattr::get(&path, "user.one").unwrap().unwrap(), b"1\0binary\xff");
    assert_eq!(xattr::get(&path, "user.two").unwrap().unwrap(), b"");
    assert_eq!(xattr::get(&path, "user.none").unwrap(), None);
    let listed: BTreeSet<OsString> = xattr::list(&path).unwrap().collect();
    assert_eq!(listed, ["user.one", "user.two"].map(OsString::from).into());
    mount.python(
        "import os, errno\n\
         def fails(code, call, *args):\n\
         \x20   try: call(*args)\n\
         \x20   except OSError as e: assert e.errno == code, e\n\
         \x20   else: raise AssertionError('it worked')\n\
         fails(errno.EEXIST, os.setxattr, 'f', 'user.one', b'', os.XATTR_CREATE)\n\
         fails(errno.ENODATA, os.setxattr, 'f', 'user.none', b'', os.XATTR_REPLACE)\n\
         os.setxattr('f', 'user.two', b'2', os.XATTR_REPLACE)\n\
         os.removexattr('f', 'user.one')\n\
         fails(errno.ENODATA, os.removexattr, 'f', 'user.one')\n",
    );
    mount.sync();
    assert_eq!(xattr::get(mount.slow().join("f"), "user.two").unwrap().unwrap(), b"2");
}

#[test]
fn our_attributes_tell_the_state_and_cannot_be_set() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("old"), "x").unwrap());
    let get = |name: &str, key: &str| {
        String::from_utf8(xattr::get(mount.at(name), key).unwrap().expect("the attribute is there")).unwrap()
    };
    assert_eq!((get("old", "user.dlio.state"), get("old", "user.dlio.tier")), ("slow".into(), "slow".into()));
    let path = mount.put("new", "x");
    assert!(["dirty", "draining", "clean"].contains(&get("new", "user.dlio.state").as_str()));
    assert_eq!(get("new", "user.dlio.tier"), "fast");
    mount.sync();
    assert_eq!(get("new", "user.dlio.state"), "clean");
    assert_eq!(xattr::list(&path).unwrap().collect::<Vec<_>>(), Vec::<OsString>::new(), "not listed");
    assert_eq!(errno(xattr::set(&path, "user.dlio.state", b"clean")), Errno::EPERM);
    assert_eq!(errno(xattr::set(&path, "user.dlio.anything", b"")), Errno::EPERM);
    assert_eq!(errno(xattr::remove(&path, "user.dlio.state")), Errno::EPERM);
    let on_slow: Vec<OsString> = xattr::list(mount.slow().join("new")).unwrap().collect();
    assert_eq!(on_slow, Vec::<OsString>::new(), "nothing of ours on the slow copy");
}

#[test]
fn an_access_acl_lets_a_named_user_in() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "for two");
    set_mode(&path, 0o600);
    assert!(!mount.as_user(USER, "cat f").status.success());
    mount.sh(&format!("setfacl -m u:{USER}:r f"));
    assert_eq!(succeeded(mount.as_user(USER, "cat f")), "for two");
    assert!(!mount.as_user(USER + 1, "cat f").status.success());
    assert_eq!(mode(&path), 0o640, "the group bits show the mask");
    set_mode(&path, 0o600);
    assert!(!mount.as_user(USER, "cat f").status.success(), "chmod sets the mask");
    let facl = mount.sh("getfacl -cnE f");
    assert!(facl.contains(&format!("user:{USER}:r--")) && facl.contains("mask::---"), "{facl}");
    set_mode(&path, 0o640);
    mount.sync();
    let facl = succeeded(Command::new("getfacl").args(["-cnE", "f"]).current_dir(mount.slow()).output().unwrap());
    assert!(facl.contains(&format!("user:{USER}:r--")), "{facl}");
}

#[test]
fn a_default_acl_is_inherited_and_replaces_the_umask() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.sh(&format!("mkdir d; setfacl -d -m u:{USER}:rwx d; umask 077; : > d/f; mkdir d/sub; mkfifo d/p"));
    let facl = mount.sh("getfacl -cnE d/f");
    assert!(facl.contains(&format!("user:{USER}:rwx")) && facl.contains("mask::rw-"), "{facl}");
    assert_eq!(mode(&mount.at("d/f")), 0o664, "from 0666 and the ACL, not from the umask");
    let facl = mount.sh("getfacl -cnE d/sub");
    assert!(facl.contains(&format!("default:user:{USER}:rwx")), "{facl}");
    assert_eq!(mode(&mount.at("d/sub")) & 0o700, 0o700);
    assert!(mount.sh("getfacl -cnE d/p").contains(&format!("user:{USER}:rwx")));
    succeeded(mount.as_user(USER, "echo theirs > d/f; : > d/sub/f"));
}

#[test]
fn statfs_shows_the_slow_tier() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let (ours, slow) = (statvfs(&mount.root()).unwrap(), statvfs(&mount.slow()).unwrap());
    let total = |s: &nix::sys::statvfs::Statvfs| s.blocks() * s.fragment_size();
    assert_eq!(total(&ours), total(&slow));
    assert!(ours.blocks_available() > 0 && ours.files() > 0);
    assert_eq!(ours.name_max(), 255);
}

#[test]
fn regular_files_ask_for_large_requests() {
    needs!(MOUNTS);
    let mount = Mount::new();
    assert_eq!(fs::metadata(mount.put("f", "x")).unwrap().blksize(), 1 << 20);
}

// Names

#[test]
fn rename_replaces_a_file_and_an_empty_directory() {
    needs!(MOUNTS);
    let mount = Mount::new();
    fs::rename(mount.put("a", "new"), mount.put("b", "old")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("b")).unwrap(), "new");
    assert_eq!(errno(fs::metadata(mount.at("a"))), Errno::ENOENT);
    mount.sh("mkdir full empty; : > full/f");
    fs::rename(mount.at("full"), mount.at("empty")).unwrap();
    assert_eq!(names(&mount.at("empty")), ["f"]);
    fs::create_dir(mount.at("other")).unwrap();
    assert_eq!(errno(fs::rename(mount.at("other"), mount.at("empty"))), Errno::ENOTEMPTY);
    assert_eq!(errno(fs::rename(mount.at("b"), mount.at("other"))), Errno::EISDIR);
    assert_eq!(errno(fs::rename(mount.at("other"), mount.at("b"))), Errno::ENOTDIR);
    assert_eq!(errno(fs::rename(mount.at("empty"), mount.at("empty/below"))), Errno::EINVAL);
}

#[test]
fn rename_without_replacing_refuses_what_exists() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let (a, b) = (mount.put("a", "a"), mount.put("b", "b"));
    assert_eq!(errno(rename_with(&a, &b, RenameFlags::RENAME_NOREPLACE)), Errno::EEXIST);
    assert_eq!(fs::read_to_string(&b).unwrap(), "b");
    rename_with(&a, &mount.at("c"), RenameFlags::RENAME_NOREPLACE).unwrap();
    assert_eq!(fs::read_to_string(mount.at("c")).unwrap(), "a");
}

#[test]
fn an_exchange_swaps_two_names_of_any_kind() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let (a, b) = (mount.put("a", "a"), mount.at("b"));
    fs::create_dir(&b).unwrap();
    mount.put("b/in", "x");
    rename_with(&a, &b, RenameFlags::RENAME_EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(&b).unwrap(), "a");
    assert_eq!(names(&a), ["in"]);
    assert_eq!(errno(rename_with(&a, &mount.at("none"), RenameFlags::RENAME_EXCHANGE)), Errno::ENOENT);
    mount.sync();
    assert_eq!(fs::read_to_string(mount.slow().join("b")).unwrap(), "a");
    assert_eq!(names(&mount.slow().join("a")), ["in"]);
}

#[test]
fn a_whiteout_is_refused() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("a", "a");
    assert_eq!(errno(rename_with(&path, &mount.at("b"), RenameFlags::RENAME_WHITEOUT)), Errno::EINVAL);
}

#[test]
fn hard_links_are_one_file() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let (a, b) = (mount.put("a", "one"), mount.at("b"));
    fs::hard_link(&a, &b).unwrap();
    let (of_a, of_b) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
    assert_eq!((of_a.ino(), of_a.nlink()), (of_b.ino(), 2));
    fs::write(&b, "two").unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "two");
    assert_eq!(errno(fs::hard_link(&a, &b)), Errno::EEXIST);
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
    fs::hard_link(&b, &a).unwrap();
    mount.sync();
    let (on_slow, other) =
        (fs::metadata(mount.slow().join("a")).unwrap(), fs::metadata(mount.slow().join("b")).unwrap());
    assert_eq!((on_slow.ino(), on_slow.nlink()), (other.ino(), 2), "still one file on the slow tier");
}

#[test]
fn symbolic_links_keep_their_target() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", "x");
    for target in ["f", "/absolute/nowhere", "with space\nand newline"] {
        symlink(target, mount.at("link")).unwrap();
        assert_eq!(fs::read_link(mount.at("link")).unwrap().as_os_str(), target);
        assert_eq!(fs::symlink_metadata(mount.at("link")).unwrap().len(), target.len() as u64);
        fs::remove_file(mount.at("link")).unwrap();
    }
    symlink("f", mount.at("link")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("link")).unwrap(), "x");
    symlink("loop", mount.at("loop")).unwrap();
    assert_eq!(errno(File::open(mount.at("loop"))), Errno::ELOOP);
}

#[test]
fn special_files_work() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mkfifo(&mount.at("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
    assert_eq!(mount.sh("echo through > fifo & cat fifo; wait"), "through\n");
    let listener = UnixListener::bind(mount.at("socket")).unwrap();
    assert!(fs::metadata(mount.at("socket")).unwrap().file_type().is_socket());
    UnixStream::connect(mount.at("socket")).unwrap().write_all(b"hi").unwrap();
    let mut said = String::new();
    listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
    assert_eq!(said, "hi");
    mknod(&mount.at("null"), SFlag::S_IFCHR, Mode::from_bits_truncate(0o600), makedev(1, 3)).unwrap();
    let meta = fs::metadata(mount.at("null")).unwrap();
    assert!(meta.file_type().is_char_device());
    assert_eq!(meta.rdev(), makedev(1, 3));
    mknod(&mount.at("plain"), SFlag::S_IFREG, Mode::from_bits_truncate(0o600), 0).unwrap();
    assert!(fs::metadata(mount.at("plain")).unwrap().is_file());
}

#[test]
fn a_name_may_hold_any_byte() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    let all: Vec<OsString> =
        (1..=255u8).filter(|&b| b != b'/').map(|b| OsString::from_vec(vec![b'n', b, b'x'])).collect();
    for name in &all {
        fs::write(mount.at(name), name.as_bytes()).unwrap();
    }
    let mut expected = all.clone();
    expected.sort();
    assert_eq!(names(&mount.root()), expected);
    mount.stop();
    mount.start();
    assert_eq!(names(&mount.root()), expected, "after a restart");
    mount.sync();
    for name in &all {
        assert_eq!(fs::read(mount.slow().join(name)).unwrap(), name.as_bytes());
    }
}

#[test]
fn the_longest_name_is_255_bytes() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    let path = mount.put(&longest, "x");
    assert_eq!(names(&mount.root()), [OsStr::new(&longest)]);
    let bad = mount.at(&too_long);
    assert_eq!(errno(File::create(&bad)), Errno::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(&bad)), Errno::ENAMETOOLONG);
    assert_eq!(errno(fs::create_dir(&bad)), Errno::ENAMETOOLONG);
    assert_eq!(errno(symlink("x", &bad)), Errno::ENAMETOOLONG);
    assert_eq!(errno(fs::rename(&path, &bad)), Errno::ENAMETOOLONG);
    assert_eq!(errno(fs::hard_link(&path, &bad)), Errno::ENAMETOOLONG);
    mount.sync();
    assert_eq!(fs::read_to_string(mount.slow().join(&longest)).unwrap(), "x");
}

#[test]
fn a_large_directory_lists_each_name_once() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    let expected: BTreeSet<OsString> = (0..5_000).map(|i| format!("a-name-of-some-length-{i:05}").into()).collect();
    for name in &expected {
        File::create(dir.join(name)).unwrap();
    }
    let listed = names(&dir);
    assert_eq!(listed.len(), 5_000);
    assert_eq!(BTreeSet::from_iter(listed), expected);
    // With attributes, from a cold cache: what the kernel forgets it gets again with the listing.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    let sizes = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!((sizes.count(), mount.calls("readdirplus").0 > 0), (5_000, true));
}

#[test]
fn a_directory_may_be_emptied_while_it_is_read() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    for i in 0..1_000 {
        File::create(dir.join(i.to_string())).unwrap();
    }
    let mut removed = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, 1_000);
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_rewound_directory_shows_what_is_there_now() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.sh("mkdir d; : > d/a");
    let mut dir = nix::dir::Dir::open(&mount.at("d"), OFlag::O_DIRECTORY, Mode::empty()).unwrap();
    let mut list = || {
        let mut names: Vec<_> = dir.iter().map(|entry| entry.unwrap().file_name().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(list(), [c".", c"..", c"a"].map(ToOwned::to_owned));
    mount.sh("rm d/a; : > d/b");
    assert_eq!(list(), [c".", c"..", c"b"].map(ToOwned::to_owned), "a second pass starts from the beginning");
}

#[test]
fn refusals_are_those_of_posix() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let file = mount.put("f", "x");
    mount.sh("mkdir d; : > d/f");
    assert_eq!(errno(File::open(mount.at("none"))), Errno::ENOENT);
    assert_eq!(errno(File::open(file.join("below"))), Errno::ENOTDIR);
    assert_eq!(errno(OpenOptions::new().write(true).open(mount.at("d"))), Errno::EISDIR);
    assert_eq!(errno(fs::remove_dir(mount.at("d"))), Errno::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(&file)), Errno::ENOTDIR);
    assert_eq!(errno(fs::remove_file(mount.at("d"))), Errno::EISDIR);
    assert_eq!(errno(fs::create_dir(&file)), Errno::EEXIST);
    assert_eq!(errno(fs::hard_link(mount.at("d"), mount.at("e"))), Errno::EPERM);
    let tmpfile = OpenOptions::new().write(true).custom_flags(OFlag::O_TMPFILE.bits()).open(mount.root());
    assert_eq!(errno(tmpfile), Errno::EOPNOTSUPP);
}

#[test]
fn inode_numbers_stay_over_rename_and_drain() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let path = mount.put("f", "x");
    fs::create_dir(mount.at("d")).unwrap();
    let (file, dir) = (fs::metadata(&path).unwrap().ino(), fs::metadata(mount.at("d")).unwrap().ino());
    let held = File::open(&path).unwrap();
    fs::rename(&path, mount.at("d/g")).unwrap();
    fs::rename(mount.at("d"), mount.at("e")).unwrap();
    mount.sync();
    assert_eq!(fs::metadata(mount.at("e/g")).unwrap().ino(), file);
    assert_eq!(fs::metadata(mount.at("e")).unwrap().ino(), dir);
    assert_eq!(held.metadata().unwrap().ino(), file);
    let listed = fs::read_dir(mount.at("e")).unwrap().next().unwrap().unwrap();
    assert_eq!(std::os::unix::fs::DirEntryExt::ino(&listed), file, "the listing says the same");
}

// Locks

#[test]
fn flock_keeps_three_processes_apart() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("counter", "0\n");
    let worker = "for i in $(seq 20); do flock lock sh -c 'n=$(cat counter); echo $((n + 1)) > counter'; done";
    let spawn = |_| Command::new("sh").args(["-ec", worker]).current_dir(mount.root()).spawn().unwrap();
    let workers: Vec<_> = (0..3).map(spawn).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(mount.at("counter")).unwrap(), "60\n");
}

#[test]
fn record_locks_conflict_between_processes() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", "0123456789");
    let holder = "import fcntl, sys\n\
                  f = open('f', 'r+')\n\
                  fcntl.lockf(f, fcntl.LOCK_EX, 5, 0)\n\
                  print('held', flush=True)\n\
                  sys.stdin.read()\n";
    let mut holder = Command::new("python3")
        .args(["-c", holder])
        .current_dir(mount.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = [0; 5];
    holder.stdout.as_mut().unwrap().read_exact(&mut held).unwrap();
    mount.python(
        "import fcntl\n\
         f = open('f', 'r+')\n\
         fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5)\n\
         try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 4)\n\
         except BlockingIOError: pass\n\
         else: raise AssertionError('two holders of one byte')\n",
    );
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    mount.python("import fcntl; fcntl.lockf(open('f', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)");
}

/// A handle was given out for any file, and was ESTALE as soon as the kernel had forgotten the file: an NFS server's clients lost what
/// they had open, a backup program its place. Now it is said at once that there are none (from Linux 6.9 on).
#[test]
fn no_file_handle_is_given_out_that_could_not_be_honoured() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", "hello");
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.slow().join("theirs"), "hello").unwrap();
    mount.python(
        "import ctypes, errno\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         for name in b'.', b'f', b'd', b'theirs', b'.dlio/stats':\n\
         \x20   handle = ctypes.create_string_buffer(8 + 128)\n\
         \x20   ctypes.c_uint.from_buffer(handle).value = 128\n\
         \x20   told = libc.name_to_handle_at(-100, name, handle, ctypes.byref(ctypes.c_int()), 0)\n\
         \x20   assert (told, ctypes.get_errno()) == (-1, errno.EOPNOTSUPP), (name, told, ctypes.get_errno())\n",
    );
}

// `.dlio` and what is hidden

#[test]
fn the_control_directory_is_there_but_not_listed() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", "x");
    assert_eq!(names(&mount.root()), ["f"]);
    assert_eq!(
        names(&mount.at(".dlio")),
        [
            "advice",
            "checkpoints",
            "checkpoints.json",
            "config",
            "control",
            "files",
            "files.json",
            "files.tsv",
            "metrics",
            "ops",
            "pace",
            "pace.json",
            "processes",
            "processes.json",
            "queue",
            "queue.json",
            "recording",
            "staging",
            "staging.json",
            "stats",
            "stats.json",
            "timeline.json",
            "windows",
            "windows.json"
        ]
    );
    let modes = ["stats", "stats.json", "files", "control"].map(|name| mode(&mount.at(".dlio").join(name)));
    assert_eq!(modes, [0o444, 0o444, 0o444, 0o666]);
    assert!(mount.stats().contains("I/O path     exact"));
    assert_eq!(mount.stats_json()["io_path"]["name"], "exact");
}

#[test]
fn the_first_line_of_stats_says_whether_all_is_safe() {
    needs!(MOUNTS);
    // Nothing settles within this test, so nothing is drained before somebody waits for it.
    let mount = Mount::with(&["settle=1h", "live_after=2h"], |_| ());
    let first = || mount.stats().lines().next().unwrap().to_owned();
    assert_eq!(first(), "SAFE: everything is on the slow tier");
    // A directory is no file.
    fs::create_dir(mount.at("d")).unwrap();
    assert!(first().starts_with("NOT SAFE: 1 change only on fast; oldest "), "{}", first());
    mount.put("f", pattern(3 << 20));
    assert!(first().starts_with("NOT SAFE: 1 file, 3.0 MiB only on fast; oldest "), "{}", first());
    assert_eq!(mount.stats_json()["safety"]["files"], 1);
    mount.sync();
    assert_eq!(first(), "SAFE: everything is on the slow tier");
    assert!(fs::read(mount.slow().join("f")).unwrap() == pattern(3 << 20));
}

#[test]
fn the_control_file_answers_each_command() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.sh("mkdir 'run 1'; echo x > 'run 1/f'");
    let last = |command: &str| mount.control(command).lines().last().unwrap_or_default().to_owned();
    assert!(last("sync run%201").starts_with("ok: /run%201 is on the slow tier"), "{}", last("sync run%201"));
    assert_eq!(fs::read_to_string(mount.slow().join("run 1/f")).unwrap(), "x\n");
    assert!(last("sync").starts_with("ok: everything is on the slow tier"));
    assert!(last("sync none").starts_with("error: /none: ENOENT"), "{}", last("sync none"));
    assert!(last("frobnicate").starts_with("error: unknown command \"frobnicate\"; known: "));
    let status: serde_json::Value = serde_json::from_str(&mount.control("status")).unwrap();
    assert_eq!(status["safety"]["safe"], true);
}

#[test]
fn the_control_directory_cannot_be_changed() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let (inside, file) = (mount.at(".dlio/stats"), mount.put("f", "x"));
    assert_eq!(errno(File::create(mount.at(".dlio/new"))), Errno::EPERM);
    assert_eq!(errno(fs::create_dir(mount.at(".dlio/new"))), Errno::EPERM);
    assert_eq!(errno(OpenOptions::new().write(true).open(&inside)), Errno::EACCES);
    assert_eq!(errno(fs::remove_file(&inside)), Errno::EPERM);
    assert_eq!(errno(fs::rename(&inside, mount.at("g"))), Errno::EPERM);
    assert_eq!(errno(fs::rename(&file, mount.at(".dlio/g"))), Errno::EPERM);
    assert_eq!(errno(fs::rename(mount.at(".dlio"), mount.at("g"))), Errno::EPERM);
    assert_eq!(errno(fs::hard_link(&inside, mount.at("g"))), Errno::EPERM);
    assert_eq!(errno(fs::remove_dir(mount.at(".dlio"))), Errno::EPERM);
    assert_eq!(errno(fs::set_permissions(&inside, fs::Permissions::from_mode(0o777))), Errno::EPERM);
    assert_eq!(errno(xattr::set(&inside, "user.x", b"")), Errno::EPERM);
}

#[test]
fn others_may_read_stats_but_no_paths_and_may_not_pause_the_drain() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("secret-name", "x");
    let stats = succeeded(mount.as_user(USER, "cat .dlio/stats .dlio/stats.json"));
    assert!(stats.contains("on the slow tier") || stats.contains("only on fast"), "{stats}");
    assert!(!stats.contains("secret-name"), "{stats}");
    assert!(!succeeded(mount.as_user(USER, "cat .dlio/files")).contains("secret-name"));
    assert!(!mount.as_user(USER, "echo pause > .dlio/control").status.success());
    assert!(mount.sh("cat .dlio/files").contains("/secret-name"), "the owner sees them");
}

/// What holds the order names the file.
#[test]
fn others_are_told_that_something_is_held_and_not_of_which_file() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    mount.through(&["env", "DLIO_FAULTS=at=slow:write@tmp:1:*:EACCES"]);
    mount.start();
    mount.put("secret-name", "x");
    until("the owner is told which", || mount.verdict().contains("secret-name"));
    let told = succeeded(mount.as_user(USER, "cat .dlio/stats .dlio/stats.json .dlio/metrics"));
    assert!(told.contains("see .dlio/stats as the owner of the mount"), "{told}");
    assert!(!told.contains("secret-name"), "{told}");
}

#[test]
fn our_own_directories_are_hidden() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", "x");
    mount.sync();
    assert!(mount.slow().join(".dlio-fs").is_dir(), "what is hidden is there");
    let hidden = mount.at(".dlio-fs");
    assert_eq!(names(&mount.root()), ["f"]);
    assert_eq!(errno(fs::metadata(&hidden)), Errno::ENOENT);
    assert!(fs::create_dir(&hidden).is_err() && File::create(&hidden).is_err());
    assert!(fs::rename(mount.at("f"), &hidden).is_err());
    assert!(mount.slow().join(".dlio-fs").is_dir());
}

#[test]
fn every_read_and_write_is_counted_as_it_was_issued() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    for _ in 0..7 {
        file.write_all(&pattern(1_001)).unwrap();
    }
    for i in 0..5 {
        file.read_exact_at(&mut [0; 100], i * 13).unwrap();
    }
    assert_eq!(mount.calls("write"), (7, 7_007));
    assert_eq!(mount.calls("read"), (5, 500), "and what reads .dlio is not counted");
    let files = fs::read_to_string(mount.at(".dlio/files")).unwrap();
    let line = files.lines().find(|line| line.ends_with("  /f")).unwrap();
    assert!(line.split_whitespace().take(3).eq(["1", "5", "7"]), "{line}");
}

// The slow tier behind it

#[test]
fn what_the_slow_tier_has_is_shown_as_it_is() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| {
        fs::create_dir_all(slow.join("a/b")).unwrap();
        fs::write(slow.join("a/b/f"), pattern(100_000)).unwrap();
        set_mode(&slow.join("a/b/f"), 0o640);
        symlink("b/f", slow.join("a/link")).unwrap();
        fs::hard_link(slow.join("a/b/f"), slow.join("a/same")).unwrap();
    });
    assert!(fs::read(mount.at("a/link")).unwrap() == pattern(100_000));
    assert_eq!(names(&mount.at("a")), ["b", "link", "same"]);
    let (ours, slow) = (fs::metadata(mount.at("a/b/f")).unwrap(), fs::metadata(mount.slow().join("a/b/f")).unwrap());
    assert_eq!(ours.mode(), slow.mode());
    assert_eq!((ours.mtime(), ours.mtime_nsec(), ours.nlink()), (slow.mtime(), slow.mtime_nsec(), 2));
    assert_eq!(ours.ino(), fs::metadata(mount.at("a/same")).unwrap().ino(), "two names, one file");
}

#[test]
fn changes_of_slow_files_arrive_there() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| {
        fs::create_dir(slow.join("d")).unwrap();
        fs::write(slow.join("d/kept"), "kept").unwrap();
        fs::write(slow.join("d/changed"), "before").unwrap();
        fs::write(slow.join("d/removed"), "x").unwrap();
        fs::write(slow.join("d/moved"), "moved").unwrap();
    });
    OpenOptions::new().append(true).open(mount.at("d/changed")).unwrap().write_all(b" and after").unwrap();
    fs::remove_file(mount.at("d/removed")).unwrap();
    fs::rename(mount.at("d/moved"), mount.at("elsewhere")).unwrap();
    fs::rename(mount.at("d"), mount.at("e")).unwrap();
    assert_eq!(names(&mount.at("e")), ["changed", "kept"]);
    mount.sync();
    let slow = mount.slow();
    assert_eq!(names(&slow.join("e")), ["changed", "kept"]);
    assert_eq!(fs::read_to_string(slow.join("e/changed")).unwrap(), "before and after");
    assert_eq!(fs::read_to_string(slow.join("elsewhere")).unwrap(), "moved");
    assert!(!slow.join("d").exists());
}

#[test]
fn a_restart_shows_what_was_pending() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=1h", "live_after=2h"], |_| ());
    mount.sh("mkdir d; echo first > d/f; ln -s f d/link; mv d e");
    mount.stop();
    assert!(!mount.slow().join("e").exists(), "it was only on the fast tier");
    mount.start();
    assert_eq!(mount.sh("cat e/link; readlink e/link"), "first\nf\n");
    mount.sync();
    assert_eq!(fs::read_to_string(mount.slow().join("e/f")).unwrap(), "first\n");
}

#[test]
fn with_the_slow_tier_hanging_the_fast_one_goes_on() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(|slow| {
        fs::create_dir_all(slow.join("cold")).unwrap();
        fs::write(slow.join("cold/f"), "from the slow tier").unwrap();
    });
    let mount = Mount::over(below.shown(), &["slow_wait=2s"]);
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/first", "x");
    let frozen = below.freeze();

    // More callers than there are threads that serve the kernel, each for a name that only the slow tier knows.
    let cold = |i: usize| errno(fs::metadata(mount.at(format!("cold-{i}"))));
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..40).map(|i| scope.spawn(move || cold(i))).collect();
        for i in 0..100 {
            let path = mount.put(&format!("run/{i}"), pattern(10_000));
            assert!(fs::read(&path).unwrap() == pattern(10_000));
            fs::rename(&path, mount.at(format!("run/{i}.done"))).unwrap();
        }
        assert_eq!(names(&mount.at("run")).len(), 101);
        File::open(mount.at("run/0.done")).unwrap().sync_all().unwrap();
        assert!(waiting.into_iter().all(|caller| caller.join().unwrap() == Errno::EIO));
    });
    assert!(mount.stats().starts_with("NOT SAFE: "), "stats go on answering: {}", mount.stats());
    let slow_calls = mount.stats_json()["slow_calls"].clone();
    assert!(slow_calls["timed_out"].as_u64().unwrap() + slow_calls["refused"].as_u64().unwrap() >= 40, "{slow_calls}");

    let slow_down = || mount.stats_json()["safety"]["slow_down"] == true;
    until("the statistics say that it is down", slow_down);
    assert!(mount.stats().contains("SLOW TIER DOWN"), "{}", mount.stats());
    drop(frozen);
    until("they say that it is back", || !slow_down());
    assert_eq!(mount.log().matches("the slow tier does not answer").count(), 1, "{}", mount.log());
    until("the log says so too", || mount.log().matches("the slow tier answers again").count() == 1);
    let read = || fs::read_to_string(mount.at("cold/f"));
    until("the slow tier answers again", || read().is_ok());
    assert_eq!(read().unwrap(), "from the slow tier");
    mount.sync();
    assert!(fs::read(below.shown().join("run/99.done")).unwrap() == pattern(10_000));
}

/// Each new name at the root waited for a file server that was away, although the root had just been listed: no checkpoint could be made there.
#[test]
fn a_name_that_a_listing_did_not_show_is_made_while_the_slow_tier_hangs() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(|slow| fs::write(slow.join("theirs"), "theirs").unwrap());
    let mount = Mount::over(below.shown(), &[]);
    assert!(names(&mount.at("")).iter().any(|name| name == "theirs"));
    let frozen = below.freeze();
    let path = mount.put("ckpt.tmp", pattern(10_000));
    fs::rename(&path, mount.at("ckpt")).unwrap();
    fs::create_dir(mount.at("run")).unwrap();
    assert!(mount.stats().contains("SLOW TIER DOWN"), "{}", mount.stats());
    drop(frozen);
    until("the slow tier answers again", || mount.stats_json()["safety"]["slow_down"] == false);
    mount.sync();
    assert!(fs::read(below.shown().join("ckpt")).unwrap() == pattern(10_000));
    assert_eq!(mount.stats_json()["exceptions"]["conflicts"], 0);
}

/// After five seconds a busy disk, or a file server that came back a minute later, was EIO to a training job.
#[test]
fn who_waits_for_a_hanging_slow_tier_is_named_and_can_be_killed() {
    needs!(MOUNTS, "bindfs");
    let names = ["cold", "other"];
    let below = Relay::new(|slow| {
        names.iter().for_each(|name| fs::write(slow.join(name), "from the slow tier").unwrap());
    });
    let mount = Mount::over(below.shown(), &[]);
    let frozen = below.freeze();
    let read = |name: &str| Command::new("cat").arg(mount.at(name)).stdout(Stdio::piped()).spawn().unwrap();
    // Of two that look the same name up the second one waits in the kernel, where nobody can kill it.
    let (waits, mut killed) = (read(names[0]), read(names[1]));
    let named = |pid: u32| format!("by cat (pid {pid})");
    until("the statistics say who waits", || {
        let stats = mount.stats();
        stats.contains(&named(waits.id())) || stats.contains(&named(killed.id()))
    });
    until("the log says so too", || mount.log().contains("waits for the slow tier"));
    killed.kill().unwrap();
    assert_eq!(killed.wait().unwrap().signal(), Some(9));
    drop(frozen);
    assert_eq!(waits.wait_with_output().unwrap().stdout, b"from the slow tier", "no error, however long it took");
}

/// To see who uses the mount, `umount --now` asked for the attributes of each open file, and waited for the file server that was away.
#[test]
fn who_holds_a_file_of_the_slow_tier_is_named_while_it_hangs() {
    needs!(MOUNTS, "bindfs");
    // Without attributes that the kernel keeps for a while.
    let cold = |slow: &std::path::Path| fs::write(slow.join("cold"), "from the slow tier").unwrap();
    let below = Relay::showing(&["-o", "attr_timeout=0"], cold);
    let mount = Mount::over(below.shown(), &["attribute_lifetime_slow=0s"]);
    let mut held = File::open(mount.at("cold")).unwrap();
    held.read_to_string(&mut String::new()).unwrap();
    let frozen = below.freeze();
    let mut umount = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
    let output = umount.args(["umount", "--now"]).arg(mount.root()).output().unwrap();
    drop(frozen);
    let said = String::from_utf8_lossy(&output.stderr);
    let holder = format!("(pid {}): {}", std::process::id(), mount.at("cold").display());
    assert!(!output.status.success() && said.contains(&holder), "{said}");
    drop(held);
}

#[test]
fn a_sync_waits_in_steps_while_the_slow_tier_hangs() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(|_| ());
    let mount = Mount::over(below.shown(), &["slow_wait=2s"]);
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/first", "x");
    mount.sync();
    let frozen = below.freeze();
    mount.put("run/f", "x");
    let mut control = OpenOptions::new().read(true).write(true).open(mount.at(".dlio/control")).unwrap();
    control.write_all(b"sync\n").unwrap();
    let mut line = [0; 4096];
    for _ in 0..2 {
        let n = control.read(&mut line).unwrap();
        assert!(line[..n].starts_with(b"waiting for "), "{}", String::from_utf8_lossy(&line[..n]));
    }
    assert_eq!(errno(control.write_all(b"sync\n")), Errno::EBUSY, "one command at a time");
    drop(frozen);
    let mut rest = String::new();
    control.read_to_string(&mut rest).unwrap();
    assert!(rest.lines().last().is_some_and(|line| line.starts_with("ok: ")), "{rest}");
    assert_eq!(fs::read_to_string(below.shown().join("run/f")).unwrap(), "x");
}

#[test]
fn clean_files_that_nobody_has_looked_at_since_the_start_are_evicted_too() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    mount.sh("mkdir -p d/e; for i in $(seq 40); do echo $i > d/e/$i; done");
    mount.sync();
    mount.stop();
    mount.option("high=2%");
    mount.option("low=1%");
    mount.start();
    until("they are gone", || mount.stats_json()["cache"]["objects"] == 0);
    assert_eq!(mount.sh("cat d/e/17"), "17\n");
}

#[test]
fn a_file_keeps_its_inode_number_and_content_when_it_is_evicted() {
    needs!(MOUNTS);
    // The watermarks are below what the file system of the fast tier has in use anyway: what is clean goes at once.
    let mount = Mount::with(&["high=2%", "low=1%", "keep=0"], |_| ());
    let path = mount.put("f", pattern(1 << 20));
    let ino = fs::metadata(&path).unwrap().ino();
    mount.sync();
    let state = || xattr::get(&path, "user.dlio.state").unwrap().unwrap();
    until("the file is evicted", || state() == b"slow");
    assert_eq!(xattr::get(&path, "user.dlio.tier").unwrap().unwrap(), b"slow");
    assert_eq!(fs::metadata(&path).unwrap().ino(), ino);
    assert!(fs::read(&path).unwrap() == pattern(1 << 20));
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), ino, "and when it is changed again");
    assert_eq!(fs::metadata(&path).unwrap().len(), (1 << 20) + 4);
}

/// The kernel tells of the end of an open file when it comes to it, which may be after somebody has opened the file anew and
/// truncated it: the empty file got a place in the order, and was published between two checkpoints.
#[test]
fn a_file_that_is_written_anew_has_no_empty_version() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=30min", "live_after=1h"], |_| ());
    for _ in 0..300 {
        mount.put("model.keras", pattern(20_000));
    }
    // The shell opens and truncates it, and closes one of two descriptors before the command has written anything.
    mount.sh("cp model.keras source; for i in $(seq 20); do cat source > model.keras; done");
    let log = mount.sh(&format!("cat {}/.dlio-fs/log/*.log", mount.fast().display()));
    let versions: Vec<&str> = log.lines().filter(|line| line.contains(" content path=model.keras")).collect();
    assert!(versions.len() >= 320, "{versions:?}");
    assert!(versions.iter().all(|version| version.contains(" size=20000 ")), "{versions:#?}");
}

/// Who starts a process gives it copies of all descriptors, and it closes them at once. Each such close gave the half file a place in the
/// order, and a checkpoint was published half, because somebody had run a command while it was saved.
#[test]
fn a_process_that_is_started_while_a_file_is_written_completes_nothing() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=30min", "live_after=1h"], |_| ());
    let versions = || {
        let log = mount.sh(&format!("cat {}/.dlio-fs/log/*.log", mount.fast().display()));
        let of_file = log.lines().filter(|line| line.contains(" content path=model.keras"));
        let size = |line: &str| line.split(' ').find_map(|word| word.strip_prefix("size=")).unwrap().to_owned();
        of_file.map(size).collect::<Vec<String>>()
    };
    let mut file = File::create(mount.at("model.keras")).unwrap();
    file.write_all(&pattern(20_000)).unwrap();
    assert!(Command::new("true").status().unwrap().success());
    assert_eq!(versions(), Vec::<String>::new(), "it knows nothing of the file");
    file.write_all(&pattern(10_000)).unwrap();
    assert!(Command::new("true").status().unwrap().success());
    drop(file);
    assert_eq!(versions(), ["30000"]);

    // Who has written closes too: a child that was given the descriptor, and its parent afterwards.
    let mut file = OpenOptions::new().append(true).open(mount.at("model.keras")).unwrap();
    let child = Command::new("echo").arg("from a child").stdout(file.try_clone().unwrap()).status().unwrap();
    assert!(child.success());
    assert_eq!(versions(), ["30000", "30013"]);
    file.write_all(b"from its parent").unwrap();
    drop(file);
    assert_eq!(versions(), ["30000", "30013", "30028"]);
}

/// A process is forked at each stage of a save, on each I/O path, also over a version that only the slow tier has; and of two processes
/// that write a file one closes it while the other computes. What the slow tier had was half a file. No time is waited for: a
/// file that is made afterwards comes to the slow tier behind what has its place in the order.
#[test]
fn half_a_file_of_two_processes_is_not_published() {
    needs!(MOUNTS);
    const SAVE: &str = "import os, sys, time\n\
        mount, slow, io = sys.argv[1:4]\n\
        def fork():\n\
        \x20   child = os.fork()\n\
        \x20   if child == 0: os._exit(0)\n\
        \x20   os.waitpid(child, 0)\n\
        \x20   marker = f'{mount}/marker'\n\
        \x20   with open(marker, 'w') as file: file.write('x')\n\
        \x20   while not os.path.exists(f'{slow}/marker'): time.sleep(0.01)\n\
        \x20   os.remove(marker)\n\
        \x20   while os.path.exists(f'{slow}/marker'): time.sleep(0.01)\n\
        def size(name): return os.path.getsize(f'{slow}/{name}') if os.path.exists(f'{slow}/{name}') else None\n\
        for name, flags, before in (('new', os.O_CREAT, None), ('old', os.O_TRUNC, 3000)):\n\
        \x20   file = os.open(f'{mount}/{name}', os.O_WRONLY | flags, 0o644)\n\
        \x20   fork(); assert size(name) == before, (io, name, 'nothing written', size(name))\n\
        \x20   os.write(file, b'n' * 1000)\n\
        \x20   fork(); assert size(name) == before, (io, name, 'half written', size(name))\n\
        \x20   os.write(file, b'n' * 2000); os.close(file)\n\
        \x20   fork(); assert size(name) == 3000\n\
        first = os.open(f'{mount}/shared', os.O_WRONLY | os.O_CREAT, 0o644)\n\
        ready, go = os.pipe(), os.pipe()\n\
        if os.fork() == 0:\n\
        \x20   os.close(first); second = os.open(f'{mount}/shared', os.O_WRONLY)\n\
        \x20   os.write(ready[1], b'x'); os.read(go[0], 1)\n\
        \x20   os.pwrite(second, b'b' * 1000, 1000); os.close(second); os._exit(0)\n\
        os.read(ready[0], 1)\n\
        os.pwrite(first, b'a' * 1000, 0); os.ftruncate(first, 2000); os.close(first)\n\
        with open(f'{mount}/after', 'w') as file: file.write('x')\n\
        assert os.stat(f'{mount}/after').st_size == 1 and size('shared') is None and size('after') is None\n\
        os.write(go[1], b'x'); os.wait()\n\
        while size('after') is None: time.sleep(0.01)\n\
        assert open(f'{slow}/shared', 'rb').read() == b'a' * 1000 + b'b' * 1000\n";
    for io in ["exact", "cached", "passthrough"] {
        let old = |slow: &std::path::Path| fs::write(slow.join("old"), [b'o'; 3000]).unwrap();
        let mount = Mount::with(&["settle=0s", "live_after=1h", &format!("io={io}")], old);
        let mut python = Command::new("python3");
        let ran = python.args(["-c", SAVE]).args([mount.at("").as_os_str(), mount.slow().as_os_str()]).arg(io).status();
        assert!(ran.unwrap().success(), "{io}");
    }
}

/// With O_TRUNC in the kernel's OPEN it is the daemon that truncates, before the kernel has looked whether the file is a program
/// that runs, if it is opened for reading only. The program then ended with SIGBUS.
#[test]
fn a_program_that_runs_is_not_truncated_by_a_reader() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.sh("cp /bin/sleep sleep");
    let mut sleep = Command::new(mount.at("sleep")).arg("60").spawn().unwrap();
    let flags = OFlag::O_RDONLY | OFlag::O_TRUNC;
    assert_eq!(nix::fcntl::open(&mount.at("sleep"), flags, Mode::empty()).unwrap_err(), Errno::ETXTBSY);
    assert_eq!(fs::metadata(mount.at("sleep")).unwrap().len(), fs::metadata("/bin/sleep").unwrap().len());
    sleep.kill().unwrap();
    sleep.wait().unwrap();
}

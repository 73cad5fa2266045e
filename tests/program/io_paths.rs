//! The I/O paths beside `exact`: what is read is right on each of them, and the figures say what they cannot see.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use crate::common::{Elsewhere, Mount, Volume, pattern, until};
use crate::needs::{MOUNTS, needs};

const RULES: &str = r#"rules=[{path="data/**", io="passthrough"}, {path="**/*.csv", io="cached"}]"#;
const LEN: usize = 1 << 20;

fn opens(mount: &Mount, path: &str) -> u64 {
    mount.stats_json()["io_path"]["opens"][path].as_u64().unwrap_or(0)
}

/// A mount over a slow tier with `data/f`.
fn over_data(options: &[&str]) -> Mount {
    Mount::with(options, |slow| {
        fs::create_dir(slow.join("data")).unwrap();
        fs::write(slow.join("data/f"), pattern(LEN)).unwrap();
    })
}

#[test]
fn a_cached_file_that_is_read_again_costs_no_read() {
    needs!(MOUNTS);
    let mount = over_data(&["io=cached"]);
    assert!(fs::read(mount.at("data/f")).unwrap() == pattern(LEN));
    let (reads, bytes) = mount.calls("read");
    assert!(reads > 0 && bytes >= LEN as u64, "the first time the page cache has nothing");
    assert!(fs::read(mount.at("data/f")).unwrap() == pattern(LEN));
    assert_eq!(mount.calls("read"), (reads, bytes));
    assert_eq!((opens(&mount, "cached"), opens(&mount, "exact")), (2, 0));
}

#[test]
fn a_cached_file_changed_on_the_slow_tier_is_read_anew() {
    needs!(MOUNTS);
    let mount = over_data(&["io=cached", "attribute_lifetime_slow=0s"]);
    assert!(fs::read(mount.at("data/f")).unwrap() == pattern(LEN));
    let other: Vec<u8> = pattern(LEN).iter().map(|b| !b).collect();
    fs::write(mount.slow().join("data/f"), &other).unwrap();
    assert!(fs::read(mount.at("data/f")).unwrap() == other);
}

#[test]
fn what_is_written_through_a_cached_file_is_read_by_others_and_drained() {
    needs!(MOUNTS);
    let mount = Mount::with(&["io=cached"], |_| ());
    let path = mount.put("f", pattern(LEN));
    let reader = File::open(&path).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all_at(b"overwritten", 5000).unwrap();
    let mut got = [0; 11];
    reader.read_exact_at(&mut got, 5000).unwrap();
    assert_eq!(&got, b"overwritten");
    mount.python(
        "import mmap, os\n\
         fd = os.open('f', os.O_RDWR)\n\
         m = mmap.mmap(fd, 0, mmap.MAP_SHARED)\n\
         m[70000:70006] = b'stored'\n\
         m.flush(); m.close(); os.close(fd)\n",
    );
    drop((reader, writer));
    mount.sync();
    let mut expected = pattern(LEN);
    expected[5000..5011].copy_from_slice(b"overwritten");
    expected[70000..70006].copy_from_slice(b"stored");
    assert!(fs::read(mount.slow().join("f")).unwrap() == expected);
}

#[test]
fn reads_of_a_passthrough_file_are_the_kernel_s_alone_and_the_figures_say_so() {
    needs!(MOUNTS);
    let mount = over_data(&["io=passthrough"]);
    let mut got = Vec::new();
    File::open(mount.at("data/f")).unwrap().read_to_end(&mut got).unwrap();
    assert!(got == pattern(LEN));
    assert_eq!(mount.calls("read"), (0, 0));
    assert_eq!((opens(&mount, "passthrough"), opens(&mount, "exact")), (1, 0));
    let stats = mount.stats();
    assert!(stats.contains("I/O path     passthrough; opens: 1 passthrough"), "{stats}");
    assert!(stats.contains("not seen:  reads of passthrough files"), "{stats}");
    mount.python(
        "import mmap, os\n\
         fd = os.open('data/f', os.O_RDONLY)\n\
         m = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)\n\
         assert m[:] == os.pread(fd, len(m), 0)\n",
    );
    assert_eq!(mount.calls("read"), (0, 0));
}

#[test]
fn a_writer_beside_a_passthrough_reader_is_seen_and_changes_what_is_read() {
    needs!(MOUNTS);
    let mount = over_data(&["io=passthrough"]);
    mount.put("f", pattern(LEN));
    mount.sync();
    assert_eq!(opens(&mount, "exact"), 1, "written through the mount");
    let reader = File::open(mount.at("f")).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(mount.at("f")).unwrap();
    let late = File::open(mount.at("f")).unwrap();
    assert_eq!((opens(&mount, "passthrough"), opens(&mount, "exact")), (3, 1));
    let (reads, writes) = (mount.calls("read"), mount.calls("write"));
    writer.write_all_at(b"overwritten", 5000).unwrap();
    assert_eq!(mount.calls("write").0, writes.0 + 1, "the writer's calls are seen");
    let mut got = [0; 11];
    writer.read_exact_at(&mut got, 5000).unwrap();
    assert_eq!((&got, mount.calls("read").0), (b"overwritten", reads.0 + 1));
    for file in [&reader, &late] {
        let mut got = [0; 11];
        file.read_exact_at(&mut got, 5000).unwrap();
        assert_eq!(&got, b"overwritten", "an object is written where it lies: everybody sees it");
    }
    drop((reader, writer, late));
    mount.sync();
    let mut expected = pattern(LEN);
    expected[5000..5011].copy_from_slice(b"overwritten");
    assert!(fs::read(mount.slow().join("f")).unwrap() == expected);
    assert!(fs::read(mount.at("f")).unwrap() == expected);
}

/// The one way in which passthrough touches the order: what the kernel reads by itself is changed where it is.
#[test]
fn a_slow_file_that_is_read_by_passthrough_is_written_in_place() {
    needs!(MOUNTS);
    let mount = over_data(&["io=passthrough"]);
    let reader = File::open(mount.at("data/f")).unwrap();
    let script = "import mmap, os\n\
        fd = os.open('data/f', os.O_RDWR)\n\
        os.pwrite(fd, b'overwritten', 5000)\n\
        m = mmap.mmap(fd, 0, mmap.MAP_SHARED)\n\
        assert m[5000:5011] == b'overwritten'\n\
        m[70000:70006] = b'stored'\n\
        m.flush(); m.close(); os.close(fd)\n";
    mount.python(script);
    let mut expected = pattern(LEN);
    expected[5000..5011].copy_from_slice(b"overwritten");
    expected[70000..70006].copy_from_slice(b"stored");
    let mut got = vec![0; LEN];
    reader.read_exact_at(&mut got, 0).unwrap();
    assert!(got == expected, "the reader sees what was written");
    assert_eq!(mount.stats_json()["exceptions"]["in_place_writes"], 1);
    drop(reader);
    mount.sync();
    assert!(fs::read(mount.slow().join("data/f")).unwrap() == expected);
    mount.python(script);
    assert_eq!(mount.stats_json()["exceptions"]["in_place_writes"], 1, "with nobody reading it is copied up");
}

#[test]
fn stores_through_a_mapping_of_a_passthrough_file_are_drained_although_nobody_sees_them() {
    needs!(MOUNTS);
    let mount = Mount::with(&["io=passthrough"], |_| ());
    mount.put("f", pattern(LEN));
    mount.sync();
    let reader = File::open(mount.at("f")).unwrap();
    mount.python(
        "import mmap, os\n\
         fd = os.open('f', os.O_RDWR)\n\
         m = mmap.mmap(fd, 0, mmap.MAP_SHARED)\n\
         os.close(fd)\n\
         m[70000:70006] = b'stored'\n\
         m.close()\n",
    );
    let mut got = [0; 6];
    reader.read_exact_at(&mut got, 70_000).unwrap();
    assert_eq!(&got, b"stored");
    drop(reader);
    until("the mapping's release has arrived", || {
        mount.sync();
        fs::read(mount.slow().join("f")).unwrap()[70_000..70_006] == *b"stored"
    });
}

/// A writer that opened while another open held the file's lock for a moment got the exact path beside a passthrough
/// reader, which the kernel refuses with EIO.
#[test]
fn readers_and_writers_that_come_and_go_open_a_passthrough_file() {
    needs!(MOUNTS);
    const OPENS: usize = 3000;
    let mount = Mount::with(&["io=passthrough"], |_| ());
    let path = mount.put("f", pattern(LEN));
    mount.sync();
    std::thread::scope(|scope| {
        for write in [false, true] {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..OPENS {
                    OpenOptions::new().read(true).write(write).open(path).unwrap();
                }
            });
        }
    });
    assert!(opens(&mount, "passthrough") > 0);
}

#[test]
fn eviction_and_removal_leave_passthrough_readers_what_they_opened() {
    needs!(MOUNTS);
    let mount = Mount::with(&["io=passthrough"], |_| ());
    mount.put("f", pattern(LEN));
    mount.sync();
    let reader = File::open(mount.at("f")).unwrap();
    mount.control("evict /f");
    fs::remove_file(mount.at("f")).unwrap();
    mount.sync();
    let mut got = vec![0; LEN];
    reader.read_exact_at(&mut got, 0).unwrap();
    assert!(got == pattern(LEN));
}

#[test]
fn rules_choose_by_path_and_the_first_decides() {
    needs!(MOUNTS);
    let mount = Mount::with(&[RULES], |slow| {
        fs::create_dir(slow.join("data")).unwrap();
        fs::create_dir(slow.join("logs")).unwrap();
        for name in ["data/f.csv", "logs/f.csv", "logs/f"] {
            fs::write(slow.join(name), pattern(4096)).unwrap();
        }
    });
    for name in ["data/f.csv", "logs/f.csv", "logs/f"] {
        assert!(fs::read(mount.at(name)).unwrap() == pattern(4096), "{name}");
    }
    assert_eq!(["passthrough", "cached", "exact"].map(|path| opens(&mount, path)), [1, 1, 1]);
    assert_eq!(mount.stats_json()["io_path"]["name"], "exact");
}

/// What the kernel caches of attributes must not outlive what it caches of bytes.
#[test]
fn a_cached_file_that_shrank_on_the_slow_tier_ends_where_it_ends() {
    needs!(MOUNTS);
    let mount = over_data(&["io=cached", "attribute_lifetime_slow=0s"]);
    assert_eq!(fs::read(mount.at("data/f")).unwrap().len(), LEN);
    fs::write(mount.slow().join("data/f"), b"short").unwrap();
    assert_eq!(fs::read(mount.at("data/f")).unwrap(), b"short");
}

/// Each read and each open of a slow file went to another thread, although no I/O was needed.
#[test]
fn a_slow_file_that_lies_in_memory_is_read_without_another_thread() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 1000);
    fs::create_dir(volume.tier().join("data")).unwrap();
    let below = volume.tier().join("data/f");
    fs::write(&below, pattern(LEN)).unwrap();
    let elsewhere = Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() };
    let mut mount = Mount::idle(elsewhere, &["attribute_lifetime_slow=1h"]);
    mount.start();
    let served = || mount.stats_json()["slow_calls"]["served"].as_u64().unwrap();
    // The first reads bring it into memory, and set its access time.
    until("it is read from memory", || {
        let before = served();
        assert!(fs::read(mount.at("data/f")).unwrap() == pattern(LEN));
        served() == before
    });
    // All reads still count as the slow tier's, and what others write there is seen at once.
    let stats = mount.stats_json();
    let read = stats["operations"].as_array().unwrap().iter().find(|operation| operation["op"] == "read").unwrap();
    assert!(read["tiers"]["fast"].is_null() && read["tiers"]["slow"]["calls"] == read["calls"], "{read}");
    OpenOptions::new().write(true).open(&below).unwrap().write_all_at(b"changed", LEN as u64 - 3).unwrap();
    let changed = fs::read(mount.at("data/f")).unwrap();
    assert!((changed.len(), &changed[LEN - 3..]) == (LEN + 4, &b"changed"[..]));
    let mut new = File::create(volume.tier().join("data/new")).unwrap();
    new.write_all(b"another").unwrap();
    // Only what is written back leaves the memory.
    new.sync_all().unwrap();
    fs::rename(volume.tier().join("data/new"), &below).unwrap();
    until("the last handle of the former file is released", || fs::read(mount.at("data/f")).unwrap() == b"another");
    // One that is gone from memory waits for the disk in another thread.
    let before = served();
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    assert_eq!(fs::read(mount.at("data/f")).unwrap(), b"another");
    assert!(served() > before);
    mount.stop();
}

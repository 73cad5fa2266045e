//! Nothing goes around the seam: every system call of the daemon that changes a tier is one that the faults could have
//! stopped at.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::needs::{MOUNTS, needs};
use crate::points::play_steps;
use crate::rig::{Machine, Pristine};
use crate::script::{Player, Step, Target, script};

/// What changes a file system, by the name that the seam has for it.
const CALLS: &[(&str, &[&str])] = &[
    ("mkdir", &["mkdir", "mkdirat"]),
    ("mknod", &["mknod", "mknodat"]),
    ("symlink", &["symlink", "symlinkat"]),
    ("link", &["link", "linkat"]),
    ("rename", &["rename", "renameat", "renameat2"]),
    ("set_attr", &["chown", "lchown", "fchown", "fchownat", "chmod", "fchmod", "fchmodat", "utimensat"]),
    ("set_xattr", &["setxattr", "lsetxattr", "fsetxattr"]),
    ("remove_xattr", &["removexattr", "lremovexattr", "fremovexattr"]),
    (
        "write",
        &["write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice", "ioctl"],
    ),
    ("set_len", &["truncate", "ftruncate"]),
    ("allocate", &["fallocate"]),
    ("sync", &["fsync", "fdatasync", "sync_file_range", "msync"]),
    ("sync_all", &["syncfs", "sync"]),
];

type Counts = BTreeMap<String, u64>;

#[test]
fn every_changing_system_call_passes_the_seam() {
    needs!(MOUNTS, "strace");
    let pristine = Pristine::make();
    let mut machine = Machine::new(&pristine);
    let (trace, record) = (machine.path("trace"), machine.path("record"));
    let traced = "-e trace=creat,open,openat,unlink,unlinkat,rmdir,".to_owned();
    let names: Vec<&str> = CALLS.iter().flat_map(|(_, names)| *names).copied().collect();
    let traced = traced + &names.join(",");
    let (option, list) = traced.split_once(' ').unwrap();
    let beneath = ["strace", "-f", "-y", "-s", "200", option, list, "-o", trace.to_str().unwrap()];
    let command: Command = machine.command(&beneath);
    assert!(machine.start_as(command, &format!("record={}", record.display())), "{}", machine.log());
    // A write that finds too little room is several system calls.
    let steps = script().into_iter().flatten().filter(|step| !matches!(step, Step::Fill(_)));
    assert_eq!(play_steps(&mut machine, &mut Player::new(), steps), Ok(true), "{}", machine.log());
    // Of a large one the drain makes other calls.
    fs::write(machine.root().join("large"), vec![7; 3 << 20]).unwrap();
    machine.drain().unwrap();
    machine.interrupt();
    let tiers = [machine.tier("fast"), machine.tier("slow")].map(|tier| tier.to_str().unwrap().to_owned());
    let trace = fs::read_to_string(trace).unwrap();
    let made = system_calls(&trace, &tiers);
    let seen = recorded(&fs::read_to_string(&record).unwrap());
    assert!(trace.contains("FICLONE"), "no large file was drained");
    println!("{} calls: {seen:?}", seen.values().sum::<u64>());
    assert!(seen.values().sum::<u64>() > 300, "the script does too little: {seen:?}");
    let lines = |kind: &str| {
        let names = CALLS.iter().filter(|(other, _)| *other == kind).flat_map(|(_, names)| *names);
        let names: Vec<String> = names.map(|name| format!(" {name}(")).collect();
        let of_kind = trace.lines().filter(|line| names.iter().any(|name| line.contains(name)));
        of_kind.collect::<Vec<_>>().join("\n")
    };
    for (kind, calls) in &made {
        assert_eq!(
            Some(calls),
            seen.get(kind),
            "{kind}: system calls, and what the seam saw of them:\n{}",
            lines(kind)
        );
    }
    assert_eq!(made, seen, "system calls, and what the seam saw of them");
}

/// What the kernel was asked for on either tier. The lock, and the file that tells other mounts of this one, are the daemon's, not
/// the engine's: nothing of the tiers depends on what they say.
fn system_calls(trace: &str, tiers: &[String]) -> Counts {
    let mut counts = Counts::new();
    for line in trace.lines() {
        let Some((_, call)) = line.split_once(' ') else { continue };
        let Some((name, arguments)) = call.trim_start().split_once('(') else { continue };
        // What is written may be an answer that names a tier.
        let written = matches!(name, "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2");
        let arguments = if written { arguments.split(',').next().unwrap_or_default() } else { arguments };
        // Extended attributes by name, and modes, go by way of a descriptor: nothing else in the daemon does.
        let on_tier =
            tiers.iter().any(|tier| arguments.contains(tier.as_str())) || arguments.contains("\"/proc/self/fd/");
        // All others look, or are hints.
        if name == "ioctl" && !arguments.contains("FICLONE") {
            continue;
        }
        let of_daemon = ["/.dlio-fs/lock", "/.dlio-fs\", 0700", "/.dlio-fs/mounts"];
        let is_of_daemon = of_daemon.iter().any(|words| arguments.contains(words));
        if name.contains("resumed") || !on_tier || is_of_daemon {
            continue;
        }
        let kind = match name {
            "creat" | "open" | "openat" => arguments.contains("O_CREAT").then_some("create"),
            "unlinkat" if arguments.contains("AT_REMOVEDIR") => Some("rmdir"),
            "rmdir" => Some("rmdir"),
            "unlink" | "unlinkat" => Some("unlink"),
            _ => CALLS.iter().find(|(_, names)| names.contains(&name)).map(|(kind, _)| *kind),
        };
        if let Some(kind) = kind {
            *counts.entry(kind.to_owned()).or_default() += 1;
        }
    }
    counts
}

fn recorded(record: &str) -> Counts {
    let mut counts = Counts::new();
    for line in record.lines().filter(|line| !line.starts_with('-')) {
        let kind = line.split(' ').nth(2).unwrap();
        let kind = if kind == "sync_dir" { "sync" } else { kind };
        *counts.entry(kind.to_owned()).or_default() += 1;
    }
    counts
}

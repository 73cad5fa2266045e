//! A machine of its own, for what the kernel of this one need not have: qemu without any help of the hardware, so that it runs everywhere,
//! with Debian's kernel and an NFS server. What it is made of is `tests/nfs/assemble.sh`, what is done in it `tests/nfs/guest.py`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::clients::count_checks;
use crate::run::{run, run_and_read};
use crate::setup::{guest_dir, work_dir};
use crate::{Context, Tally};

/// What the slow tier is mounted as, and whom the server takes root, or everybody, for. Each in a machine that has just started.
const MOUNTS: [&str; 5] = ["3,none", "4.0,none", "4.2,none", "3,root", "4.2,all"];
/// A machine that has not ended by then never will.
const GUARD: &str = "900";

/// All mounts, or those that the variable `NFS` names: `NFS="4.2,all 3,root"`.
pub(crate) fn nfs(cx: &Context) -> Result<Tally> {
    let named = std::env::var("NFS").unwrap_or_default();
    let named: Vec<&str> = named.split(' ').filter(|mount| !mount.is_empty()).collect();
    let checks = make_disk(cx)?;
    let mut tally = Tally::default();
    for mount in if named.is_empty() { &MOUNTS[..] } else { &named } {
        println!("-- vers and squash: {mount}");
        // A guest without the hardware's help may fail to start on a busy machine, once.
        let mut text = boot(cx, &checks, mount)?;
        if !text.contains("guest begins") {
            text = boot(cx, &checks, mount)?;
        }
        let mut counted = count_checks(&text);
        let ended = text.lines().find_map(|line| line.strip_prefix("guest ended: "));
        if ended.is_none() || counted.passed + counted.failed == 0 {
            counted.failed += 1;
            counted.failures.push(format!("{mount}: the guest did not get to its end, see its console above"));
        }
        tally.add(counted);
    }
    fs::remove_file(&checks).with_context(|| format!("cannot remove {}", checks.display()))?;
    Ok(tally)
}

/// The program and the scripts, as a disk that the guest reads.
fn make_disk(cx: &Context) -> Result<PathBuf> {
    let (tree, image) = (work_dir(cx).join("nfs-disk"), work_dir(cx).join("nfs-disk.img"));
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))?;
    }
    for scripts in ["nfs", "clients"] {
        copy_files(&cx.root.join("tests").join(scripts), &tree.join(scripts))?;
    }
    // Without what a debugger needs it is a third.
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(tree.join("dlio-fs")).arg(cx.target.join("debug/dlio-fs"));
    run(&mut strip)?;
    drop(fs::remove_file(&image));
    let mut mke2fs = Command::new("mke2fs");
    run(mke2fs.args(["-q", "-t", "ext4", "-m", "0", "-d"]).arg(&tree).arg(&image).arg("512M"))?;
    fs::remove_dir_all(&tree)?;
    Ok(image)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Returns what the guest has printed. Nothing that it writes to its disk stays.
fn boot(cx: &Context, checks: &Path, mount: &str) -> Result<String> {
    let place = guest_dir(cx);
    let (qemu, libraries) = (place.join("qemu"), place.join("qemu/usr/lib/x86_64-linux-gnu"));
    let own = qemu.join("lib/x86_64-linux-gnu");
    let mut command = Command::new("timeout");
    command.arg(GUARD).arg(own.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(format!("{}:{}", own.display(), libraries.display()));
    command.arg(qemu.join("usr/bin/qemu-system-x86_64"));
    command.arg("-L").arg(qemu.join("usr/share/qemu")).arg("-L").arg(qemu.join("usr/share/seabios"));
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    command.arg("-kernel").arg(place.join("vmlinuz")).arg("-initrd").arg(place.join("initrd.gz"));
    let drive = |file: &Path, how: &str| format!("file={},if=virtio,format=raw,{how}", file.display());
    command.arg("-drive").arg(drive(&place.join("root.img"), "snapshot=on"));
    command.arg("-drive").arg(drive(checks, "readonly=on"));
    let kernel = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check random.trust_cpu=on";
    command.arg("-append").arg(format!("{kernel} -- {mount}"));
    let (_, text) = run_and_read(&mut command)?;
    // A serial line ends its lines otherwise.
    Ok(text.replace('\r', ""))
}

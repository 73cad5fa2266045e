//! The stage of an ordinary user: suites on a mount without root, on which the modes hold for the daemon, too. Everything that it has
//! accepted arrives.
//!
//! Root makes a disk, on which the user has a tree like the project's with what the suites need, and starts each suite as that user
//! (`cargo xtask as-user SUITE`), in a mount name space where everybody may open /dev/fuse, as udev makes it. A script of
//! `tests/clients` runs in the bare directory first and then, at the same path, on the mount; at the end root, from whom nothing is closed,
//! compares what has arrived on the slow tier with what the first run has left.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::alike::{Besides, ensure_alike, ensure_alike_but};
use crate::clients::Script;
use crate::conformance::pjdfstest_of_a_user;
use crate::motion::{self, in_motion};
use crate::run::{in_time, print_tail, run_and_read};
use crate::scratch::{Disk, Scratch, Wish, log_path, with_own_mounts};
use crate::setup::{PJDFSTEST, tool, work_dir};
use crate::{Context, Tally, cargo, differential};

/// `nobody`, whom every system has.
const USER: u32 = 65534;

struct Suite {
    name: &'static str,
    kind: Kind,
    /// What each run makes the same, below the directory that both have.
    alike: &'static str,
    /// But for the bytes of files with these names.
    other_bytes: &'static [&'static str],
    when: When,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A script of `tests/clients`.
    Client,
    /// What needs root is left out.
    Pjdfstest,
    /// Beside a plain directory of its own.
    Lockstep,
    /// On disks in memory.
    Model,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// With `--all`, or if `SUITE` names it.
    All,
}

const fn suite(name: &'static str, kind: Kind) -> Suite {
    Suite { name, kind, alike: "", other_bytes: &[], when: When::Always }
}

const SUITES: &[Suite] = &[
    // The index has the times and inodes of files.
    Suite { other_bytes: &["index"], ..suite("git", Kind::Client) },
    suite("closed", Kind::Client),
    Suite { when: When::All, ..suite("pip", Kind::Client) },
    suite("pjdfstest", Kind::Pjdfstest),
    suite("lockstep", Kind::Lockstep),
    suite("model", Kind::Model),
    // What is built says when.
    Suite { alike: "cargo/src", when: When::All, ..suite("cargo", Kind::Client) },
];

/// All suites, or those that the variable `SUITE` names.
pub(crate) fn user(cx: &Context) -> Result<Tally> {
    let named = std::env::var("SUITE").unwrap_or_default();
    let names: Vec<&str> = named.split(',').filter(|name| !name.is_empty()).collect();
    if let Some(unknown) = names.iter().find(|name| find(name).is_none()) {
        let known: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("SUITE={unknown}: the suites are {}", known.join(", "));
    }
    let disk = Disk::new(cx)?;
    let home = Home::furnish(cx, disk.root())?;
    let mut tally = Tally::default();
    for suite in SUITES.iter().filter(|suite| suite.is_wanted(cx, &names)) {
        tally.add(home.run(cx, suite).unwrap_or_else(|error| {
            println!("FAILED {}: {error:#}", suite.name);
            print_tail(&log_path(&home.context(cx), &suite.log()));
            let failures = vec![format!("{}: {error:#}", suite.name)];
            Tally { failed: 1, failures, ..Tally::default() }
        }));
    }
    Ok(tally)
}

fn find(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}

impl Suite {
    fn is_wanted(&self, cx: &Context, names: &[&str]) -> bool {
        match names {
            [] => cx.all || self.when == When::Always,
            names => names.contains(&self.name),
        }
    }

    fn log(&self) -> String {
        format!("user-{}", self.name)
    }

    fn tally(&self, there: &Context) -> PathBuf {
        work_dir(there).join(format!("{}.tally", self.name))
    }
}

/// The tree that the user has.
struct Home {
    root: PathBuf,
    sysroot: PathBuf,
}

impl Home {
    fn furnish(cx: &Context, root: PathBuf) -> Result<Home> {
        /// As the kernel numbers /dev/fuse.
        const FUSE: u64 = makedev(10, 229);
        let home = Home { root, sysroot: cargo::sysroot()? };
        let there = home.context(cx);
        for dir in ["tests/clients", "tests/conformance"] {
            for entry in fs::read_dir(cx.root.join(dir))? {
                let file = entry?.path();
                if file.is_file() {
                    copy(&file, &home.root.join(dir))?;
                }
            }
        }
        copy(&std::env::current_exe()?, &there.target.join("debug"))?;
        copy(&cx.target.join("debug/dlio-fs"), &there.target.join("debug"))?;
        copy(&tool(cx, PJDFSTEST), &there.target.join("tools/bin"))?;
        fs::rename(copy(&cargo::test_program(cx, "model")?, &there.target)?, model(&there))?;
        fs::create_dir_all(work_dir(&there))?;
        chown(work_dir(&there), Some(USER), Some(USER))?;
        fs::create_dir(home.rust())?;
        mknod(&home.fuse(), SFlag::S_IFCHR, Mode::empty(), FUSE)?;
        fs::set_permissions(home.fuse(), Permissions::from_mode(0o666))?;
        Ok(home)
    }

    fn context(&self, cx: &Context) -> Context {
        Context { root: self.root.clone(), target: self.root.join("target"), all: cx.all }
    }

    fn rust(&self) -> PathBuf {
        self.root.join("rust")
    }

    fn fuse(&self) -> PathBuf {
        self.root.join("fuse")
    }

    /// Runs one suite as the user, and looks at what it leaves.
    fn run(&self, cx: &Context, suite: &Suite) -> Result<Tally> {
        println!("\n-- {} as an ordinary user", suite.name);
        let (there, began) = (self.context(cx), Instant::now());
        let tmp = self.root.join(suite.name);
        fs::create_dir(&tmp)?;
        chown(&tmp, Some(USER), Some(USER))?;
        let mut command =
            with_own_mounts("mount --bind \"$0\" /dev/fuse; mount --bind \"$1\" \"$2\"; shift 2; exec \"$@\"");
        command.arg(self.fuse()).arg(&self.sysroot).arg(self.rust());
        let user = USER.to_string();
        command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.arg(there.target.join("debug/xtask")).args(["as-user", suite.name]).args(cx.all.then_some("--all"));
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.rust().join("bin").display());
        command.env_clear().env("PATH", path).env("HOME", &tmp).env("TMPDIR", &tmp).current_dir(&tmp);
        // From these it knows where everything is.
        command.env("CARGO_MANIFEST_DIR", self.root.join("xtask")).env("CARGO_TARGET_DIR", &there.target);
        let (status, _) = run_and_read(&mut command)?;
        ensure!(status.success(), "its process ended with {status}");
        let tally: Tally = serde_json::from_slice(&fs::read(suite.tally(&there))?)?;
        let native = tmp.join(NATIVE);
        if native.exists() {
            let trees = [tmp.join("slow"), native].map(|tree| tree.join(suite.alike));
            ensure_alike_but(&trees[0], &trees[1], Besides::SetTimes, suite.other_bytes)?;
        }
        println!(
            "{}: {} passed, {} failed in {:.1} s",
            suite.name,
            tally.passed,
            tally.failed,
            began.elapsed().as_secs_f64()
        );
        Ok(tally)
    }
}

/// Where it is then.
fn copy(file: &Path, dir: &Path) -> Result<PathBuf> {
    let to = dir.join(file.file_name().context("a file has a name")?);
    fs::create_dir_all(dir)?;
    fs::copy(file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(to)
}

fn model(there: &Context) -> PathBuf {
    there.target.join("model")
}

/// Beside the tiers: what a suite has left in the bare directory.
const NATIVE: &str = "native";

/// The process of one suite, which is the user's.
pub(crate) fn as_user(cx: &Context, name: &str) -> Result<ExitCode> {
    let suite = find(name).with_context(|| format!("no suite is named `{name}`"))?;
    let for_suite = cx.clone();
    let tally = in_time(name, 10, move || suite.run(&for_suite))?;
    fs::write(suite.tally(cx), serde_json::to_vec(&tally)?)?;
    Ok(ExitCode::SUCCESS)
}

impl Suite {
    fn run(&self, cx: &Context) -> Result<Tally> {
        match self.kind {
            Kind::Client => self.client(cx),
            Kind::Pjdfstest => self.pjdfstest(cx),
            Kind::Lockstep => self.in_motion(cx),
            Kind::Model => model_cases(cx),
        }
    }

    /// In the bare directory first: paths end up in files.
    fn client(&self, cx: &Context) -> Result<Tally> {
        let mut scratch = Scratch::unmounted(cx, &self.log(), Wish { options: &["settle=0s"], ..Wish::default() })?;
        let script = Script::new(cx, &scratch, self.name, Path::new("python3"))?;
        println!("-- in the bare directory");
        let bare = script.run("write", &scratch.point().join(self.name))?;
        let native = scratch.fast().with_file_name(NATIVE);
        fs::create_dir(&native)?;
        fs::rename(scratch.point().join(self.name), native.join(self.name))?;
        scratch.mount()?;
        println!("-- on the mount");
        let mut tally = script.through_the_mount(&scratch)?;
        tally.add(bare);
        arrived(&scratch)?;
        println!("-- through the mount, evicted");
        motion::evict(&scratch)?;
        tally.add(script.run("verify", &scratch.point().join(self.name))?);
        scratch.umount()?;
        tally.add(script.on_slow()?);
        Ok(tally)
    }

    fn pjdfstest(&self, cx: &Context) -> Result<Tally> {
        let mut scratch = Scratch::mounted(cx, &self.log(), Wish::default())?;
        let tally = pjdfstest_of_a_user(cx, &scratch)?;
        arrived(&scratch)?;
        scratch.umount()?;
        Ok(tally)
    }

    fn in_motion(&self, cx: &Context) -> Result<Tally> {
        let mut scratch = Scratch::mounted(cx, &self.log(), Wish { options: &motion::OPTIONS, ..Wish::default() })?;
        let (seeds, operations) = if cx.all { (5, 10_000) } else { (1, 2_500) };
        let (result, moved) =
            in_motion(&scratch, || (1..=seeds).try_for_each(|seed| differential::run(&scratch, seed, operations)))?;
        println!("{moved}");
        result?;
        arrived(&scratch)?;
        scratch.umount()?;
        Ok(Tally { passed: seeds, ..Tally::default() })
    }
}

/// Everything, and nobody else has been there.
fn arrived(scratch: &Scratch) -> Result<()> {
    scratch.drain()?;
    ensure_alike(&scratch.point(), &scratch.slow(), Besides::All)?;
    let conflicts = scratch.figure("/exceptions/conflicts")?;
    ensure!(conflicts == 0, "{conflicts} conflicts, and nobody else changes the slow tier");
    Ok(())
}

/// Its disks are in memory: that it needs no rights is all that differs.
fn model_cases(cx: &Context) -> Result<Tally> {
    let mut command = Command::new(model(cx));
    command.env("DLIO_MODEL_CASES", if cx.all { "10000" } else { "300" });
    cargo::counted(command.arg("the_engine_keeps_its_promises").current_dir(&cx.root))
}

//! The stages that run real programs on the mount.
//!
//! Each is a script in `tests/clients` with two verbs: `write DIR NOTES` does what users do below DIR and notes outside
//! the mount what must be found again, `verify DIR NOTES` finds it. It is verified through the mount, and again on the
//! slow tier alone, with the mount gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::run::run_and_read;
use crate::scratch::{Scratch, Wish};
use crate::setup::{python, torch_python, work_dir};
use crate::{Context, Tally};

pub(crate) fn keras(cx: &Context) -> Result<Tally> {
    client(cx, "keras", &python(cx))
}

pub(crate) fn keras_alexnet(cx: &Context) -> Result<Tally> {
    client(cx, "keras_alexnet", &python(cx))
}

pub(crate) fn tensorflow(cx: &Context) -> Result<Tally> {
    client(cx, "tensorflow", &python(cx))
}

pub(crate) fn tfdata(cx: &Context) -> Result<Tally> {
    client(cx, "tfdata", &python(cx))
}

/// Its files are open for longer than `live_after`.
pub(crate) fn tensorboard(cx: &Context) -> Result<Tally> {
    client_on(cx, "tensorboard", &python(cx), Wish { options: &["live_after=1s"], ..Wish::default() })
}

pub(crate) fn h5py(cx: &Context) -> Result<Tally> {
    client(cx, "h5py", &python(cx))
}

pub(crate) fn safetensors(cx: &Context) -> Result<Tally> {
    client(cx, "safetensors", &python(cx))
}

pub(crate) fn exports(cx: &Context) -> Result<Tally> {
    reports(cx, "exports")
}

pub(crate) fn darshan(cx: &Context) -> Result<Tally> {
    reports(cx, "darshan")
}

/// No mount: only what the schemas of Kubernetes say, and what is demanded beside them.
pub(crate) fn manifests(cx: &Context) -> Result<Tally> {
    checks(Command::new(python(cx)).arg(cx.root.join("tests/manifests/validate.py")))
}

/// The script makes three mounts, one for each rank.
pub(crate) fn dcp_fleet(cx: &Context) -> Result<Tally> {
    let mut command = Command::new(torch_python(cx));
    command.arg(cx.root.join("tests/fleet/dcp.py")).arg(cx.target.join("debug/dlio-fs"));
    checks(&mut command)
}

/// The mounts are made by Slurm.
pub(crate) fn slurm(cx: &Context) -> Result<Tally> {
    let unpacked = cx.target.join("tools/slurm");
    let tools = if unpacked.exists() { unpacked } else { "/".into() };
    let mut command = Command::new("python3");
    command.arg(cx.root.join("tests/slurm/cluster.py")).arg(cx.target.join("debug/dlio-fs")).arg(tools);
    checks(&mut command)
}

/// What a script says that it has checked; at least one more has failed if it says so at its end only.
fn checks(command: &mut Command) -> Result<Tally> {
    let (status, text) = run_and_read(command)?;
    let mut tally = count_checks(&text);
    if !status.success() && tally.failed == 0 {
        tally.failed = 1;
        tally.failures.push(format!("{status}, see above"));
    }
    Ok(tally)
}

/// What these look at are reports, and not files on the slow tier.
fn reports(cx: &Context, client: &'static str) -> Result<Tally> {
    let mut scratch = Scratch::mounted(cx, client, Wish::default())?;
    let tally = Script::new(cx, &scratch, client, &python(cx))?.through_the_mount(&scratch)?;
    scratch.umount()?;
    Ok(tally)
}

/// The script makes its mounts.
pub(crate) fn observe(cx: &Context) -> Result<Tally> {
    let mut command = Command::new(python(cx));
    command.arg(cx.root.join("tests/observe/observe.py")).arg(cx.target.join("debug/dlio-fs"));
    checks(command.args([torch_python(cx), python(cx)]))
}

pub(crate) fn torch(cx: &Context) -> Result<Tally> {
    client(cx, "torch", &torch_python(cx))
}

pub(crate) fn lightning(cx: &Context) -> Result<Tally> {
    client(cx, "lightning", &torch_python(cx))
}

pub(crate) fn lightning_alexnet(cx: &Context) -> Result<Tally> {
    client(cx, "lightning_alexnet", &torch_python(cx))
}

pub(crate) fn dcp(cx: &Context) -> Result<Tally> {
    client(cx, "dcp", &torch_python(cx))
}

pub(crate) fn dataloader(cx: &Context) -> Result<Tally> {
    client(cx, "dataloader", &torch_python(cx))
}

pub(crate) fn git(cx: &Context) -> Result<Tally> {
    client(cx, "git", Path::new("python3"))
}

pub(crate) fn sqlite(cx: &Context) -> Result<Tally> {
    client(cx, "sqlite", Path::new("python3"))
}

fn client(cx: &Context, name: &str, python: &Path) -> Result<Tally> {
    client_on(cx, name, python, Wish::default())
}

fn client_on(cx: &Context, name: &str, python: &Path, wish: Wish<'_>) -> Result<Tally> {
    let mut scratch = Scratch::mounted(cx, name, wish)?;
    let script = Script::new(cx, &scratch, name, python)?;
    let mut tally = script.through_the_mount(&scratch)?;
    scratch.umount()?;
    tally.add(script.on_slow()?);
    Ok(tally)
}

pub(crate) struct Script<'a> {
    name: &'a str,
    python: &'a Path,
    path: PathBuf,
    notes: PathBuf,
    /// `dlio-fs`.
    program: PathBuf,
    /// Where its directory is to arrive.
    on_slow: PathBuf,
}

impl<'a> Script<'a> {
    /// That has yet to write.
    pub(crate) fn new(cx: &Context, scratch: &Scratch, name: &'a str, python: &'a Path) -> Result<Self> {
        let script = Script::again(cx, scratch, name, python);
        if script.notes.exists() {
            fs::remove_dir_all(&script.notes).with_context(|| format!("cannot remove {}", script.notes.display()))?;
        }
        fs::create_dir_all(&script.notes)?;
        Ok(script)
    }

    /// That has written, and knows what.
    pub(crate) fn again(cx: &Context, scratch: &Scratch, name: &'a str, python: &'a Path) -> Self {
        let notes = work_dir(cx).join(format!("{name}-notes"));
        let path = cx.root.join(format!("tests/clients/{name}_client.py"));
        let program = scratch.program().get_program().into();
        Script { name, python, path, notes, program, on_slow: scratch.slow().join(name) }
    }

    pub(crate) fn through_the_mount(&self, scratch: &Scratch) -> Result<Tally> {
        let in_mount = scratch.point().join(self.name);
        let mut tally = self.run("write", &in_mount)?;
        println!("-- through the mount");
        tally.add(self.run("verify", &in_mount)?);
        Ok(tally)
    }

    pub(crate) fn on_slow(&self) -> Result<Tally> {
        println!("-- from the slow tier, the mount gone");
        self.run("verify", &self.on_slow)
    }

    pub(crate) fn run(&self, verb: &str, dir: &Path) -> Result<Tally> {
        let mut command = Command::new(self.python);
        // Warnings about the machine's missing GPU drown what matters.
        command.env("TF_CPP_MIN_LOG_LEVEL", "3").env("CUDA_VISIBLE_DEVICES", "").env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("ON_SLOW", &self.on_slow).env("DLIO_FS", &self.program);
        let (status, text) = run_and_read(command.arg(&self.path).arg(verb).arg(dir).arg(&self.notes))?;
        let tally = count_checks(&text);
        if tally.failed == 0 && !status.success() || tally.passed + tally.failed == 0 {
            bail!("{} {verb}: {status} before its checks were done", self.path.display());
        }
        Ok(tally)
    }
}

/// Counts the lines `ok NAME` and `FAILED NAME: why`.
pub(crate) fn count_checks(text: &str) -> Tally {
    let lines = |prefix: &str| text.lines().filter(|line| line.starts_with(prefix)).count() as u64;
    let failures: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("FAILED ")).map(str::to_owned).collect();
    Tally { passed: lines("ok "), failed: failures.len() as u64, failures, ..Tally::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_counted_by_their_first_word() {
        let text = "ok weights\nFAILED optimizer: differs\nokay then\nok names\n";
        let failures = vec!["optimizer: differs".to_owned()];
        assert_eq!(count_checks(text), Tally { passed: 2, failed: 1, failures, ..Tally::default() });
    }
}

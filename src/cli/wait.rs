//! `dlio-fs wait`: until a checkpoint that several nodes write is whole on the slow tier.
//!
//! Two moments would do. If PATH was made after all the rest (a marker), the fleet's order says that the rest is there
//! once PATH is on the slow tier. If it was not (a directory), nothing about PATH itself says so. What is right for both
//! is the moment at which PATH is seen: whatever was answered before PATH was made was answered before that moment, too.
//!
//! With a step, PATH is the directory of the checkpoints, and what is looked for in it is the marker of that step.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::client;
use super::fleet::{self, FleetQuestion, FleetSource};
use super::made::{self, made, pointed_to};
use super::outcome::{Exit, Failure, Outcome, complain};
use super::progress::News;
use crate::error::{Context, Error};
use crate::path::Show as _;
use crate::tiers::FLEET_MARKERS;

/// How often PATH is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// Wait until a path exists and everything that any node wrote before it is on the slow tier; prints nothing
///
/// For a checkpoint that the nodes of a fleet write together: name its marker, the file that is made after all the
/// others. Then the checkpoint is whole on the slow tier, whichever nodes wrote it, and can be read from there. Of a
/// directory, or a file that is not the last one, the command cannot know what is still to come: call it once all nodes
/// have finished writing. What this mount has looked up before may be shown as it was for a second or two.
///
/// With --step, PATH is the directory in which the checkpoints are. It waits for the one whose name has that step, until
/// a marker is in it, such as .metadata, or one beside it, such as latest, names that step or a later one; for a
/// checkpoint that is a single file, until that is there. For one without a marker, name its last file.
///
/// At the timeout the exit code is 1 if the path does not exist, and otherwise that of `dlio-fs status --fleet`. It is 3
/// also if a part of the checkpoint may have been lost with a node, by the times of its files, until somebody accepts that
/// (dlio-fs accept-loss).
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs wait /mnt/train/ckpt/step-700/.metadata --timeout 10min
  dlio-fs wait /mnt/train/ckpt --step 700
  dlio-fs wait /shared/run7/ckpt/latest --fleet run7 --slow /shared/run7

The last one is for a machine that has no mount.")]
pub(super) struct WaitArgs {
    /// A file or directory, in a mount that is a member, or on the slow tier
    path: PathBuf,
    /// Wait for the checkpoint of this step in the directory PATH
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// How long to wait
    #[arg(long, value_name = "TIME", value_parser = super::duration::parse_duration)]
    timeout: Option<Duration>,
    /// The fleet, if the path is on its slow tier
    #[arg(long, value_name = "NAME", requires = "slow")]
    fleet: Option<String>,
    /// The slow tier of that fleet
    #[arg(long, value_name = "DIR", requires = "fleet")]
    slow: Option<PathBuf>,
}

impl WaitArgs {
    /// What is waited for, once it is there.
    fn found(&self) -> Result<Option<PathBuf>, Error> {
        match self.step {
            None => Ok(exists(&self.path)?.then(|| self.path.clone())),
            Some(step) => of_step(&self.path, step),
        }
    }

    fn wanted(&self) -> String {
        match self.step {
            None => self.path.shown().to_string(),
            Some(step) => format!("a whole checkpoint of step {step} in {}", self.path.shown()),
        }
    }
}

/// 1. PATH exists.
/// 2. The question is asked: what was answered before PATH was made is part of it.
/// 3. All members are past the question, and none was lost while the checkpoint was made.
pub(super) fn run(args: &WaitArgs) -> Outcome {
    let begun = Instant::now();
    let left = || args.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
    let source = match (&args.fleet, &args.slow) {
        (Some(fleet), Some(slow)) => FleetSource::on_slow(fleet, slow)?,
        _ => FleetSource::Mount(client::the_mount(Some(&args.path))?),
    };
    // Whoever names no fleet is not to wait for the path first.
    let mut question = FleetQuestion::ask(source)?;
    let mut news = News::default();
    let path = loop {
        if let Some(path) = args.found()? {
            break path;
        }
        if left().is_some_and(|left| left.is_zero()) {
            return Err(Failure::new(Exit::Failure, format!("{} does not exist", args.wanted())));
        }
        // Below a mount that is gone it would be waited for in vain.
        question.check_source()?;
        news.tell(&format!("waits for {}, which does not exist", args.wanted()));
        thread::sleep(LOOK.min(left().unwrap_or(LOOK)));
    }; // 1
    question.ask_about(made(&path, args.step)?)?; // 2
    question.wait(left(), |line| news.tell(line))?; // 3
    let answer = question.answer();
    answer.why.iter().for_each(complain);
    if !exists(&path)? {
        let why = format!("{} has been removed meanwhile", path.shown());
        return Err(Failure::new(Exit::Failure, why));
    }
    Ok(fleet::exit(&answer))
}

/// The file that says that the checkpoint of a step in this directory is whole.
fn of_step(dir: &Path, step: u64) -> Result<Option<PathBuf>, Error> {
    for path in made::of_step(dir, step)? {
        // Gone meanwhile.
        let Ok(found) = path.metadata() else { continue };
        if found.is_file() {
            return Ok(Some(path));
        }
        for marker in FLEET_MARKERS {
            let (inside, beside) = (path.join(marker), dir.join(marker));
            if exists(&inside)? {
                return Ok(Some(inside));
            }
            // That step, or a later one.
            if pointed_to(&beside).is_some_and(|found| found >= step) {
                return Ok(Some(beside));
            }
        }
    }
    Ok(None)
}

fn exists(path: &Path) -> Result<bool, Error> {
    match path.metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        found => found.map(|_| true).at("look for", path.shown()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_checkpoint_of_a_step_is_there_with_its_marker() {
        let top = tempfile::tempdir().expect("a directory");
        let dir = top.path();
        let of = |step| of_step(dir, step).expect("listed");
        let put = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("one")).and_then(|()| fs::write(&path, text)).expect("written");
            path
        };
        assert_eq!(of_step(&dir.join("none"), 7).expect("nothing"), None);
        put("step-7/rank-0", "");
        put("step-70/.metadata", "");
        put("step-7.tmp/.metadata", "");
        assert_eq!(of(7), None);
        let marker = put("step-7/.metadata", "");
        assert_eq!(of(7), Some(marker));
        // As Megatron has it.
        put("iter_0000800/mp_rank_00/model.pt", "");
        put("iter_0000900/mp_rank_00/model.pt", "");
        let pointer = put("latest_checkpointed_iteration.txt", "800");
        assert_eq!((of(800), of(900)), (Some(pointer.clone()), None));
        put("latest_checkpointed_iteration.txt", "900\n");
        assert_eq!((of(800), of(900)), (Some(pointer.clone()), Some(pointer)));
        // As Lightning has it.
        let file = put("epoch=1-step=1000.ckpt", "");
        assert_eq!((of(1000), of(1)), (Some(file), None));
    }
}

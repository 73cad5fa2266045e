//! Ranks that are processes with PyTorch (`ranks.py`): each has its shard in memory, and saves and loads it when it is
//! told to. All are told at once, and each says when it is done.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use dlio_fs::error::{Context, Error, Result};
use dlio_fs::path::Show as _;

const SCRIPT: &str = include_str!("ranks.py");

/// What each rank saves with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Saver {
    /// Plain writes, by threads of this program
    Bytes,
    /// `torch.save` and an fsync, by a process for each rank
    Torch,
    /// `torch.distributed.checkpoint`, by a process for each rank
    Dcp,
}

impl Saver {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Saver::Bytes => "bytes",
            Saver::Torch => "torch",
            Saver::Dcp => "dcp",
        }
    }
}

#[derive(Debug)]
pub(crate) struct RankProcesses(Vec<RankProcess>);

#[derive(Debug)]
struct RankProcess {
    child: Child,
    tell: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl RankProcesses {
    /// Starts them, and waits until each has its shard of `shard` bytes. `meeting`: a file that does not exist yet, by
    /// which they find each other. Errors: Python is missing, or has no PyTorch; what it said is on standard error.
    pub(crate) fn start(
        python: &Path,
        saver: Saver,
        ranks: usize,
        shard: u64,
        meeting: &Path,
    ) -> Result<RankProcesses> {
        let start = |rank: usize| {
            let mut command = Command::new(python);
            command.args(["-c", SCRIPT, &rank.to_string(), &ranks.to_string(), &shard.to_string(), saver.name()]);
            // Ctrl-C is for this program, which ends them.
            command.arg(meeting).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().at("run", python.shown())?;
            let (tell, told) = (child.stdin.take(), child.stdout.take());
            let (Some(tell), Some(told)) = (tell, told) else { unreachable!("both are pipes") };
            Ok(RankProcess { child, tell, told: BufReader::new(told) })
        };
        let mut processes = RankProcesses((0..ranks).map(start).collect::<Result<_>>()?);
        processes.0.iter_mut().try_for_each(|process| process.expect("ready"))?;
        Ok(processes)
    }

    /// Has each save its shard of a step. Returns the seconds until the slowest one is done.
    pub(crate) fn save(&mut self, step: &Path) -> Result<f64> {
        self.each("save", step)
    }

    /// Has each load its shard, and then compare it with what it saved. Returns the seconds until the slowest one has loaded it. None
    /// compares before all have loaded: that would take processors from the others.
    pub(crate) fn load(&mut self, step: &Path) -> Result<f64> {
        let took = self.each("load", step)?;
        self.each("compare", step)?;
        Ok(took)
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|process| process.child.id())
    }

    /// From before the first one is told until the last one has answered, in seconds.
    fn each(&mut self, what: &str, step: &Path) -> Result<f64> {
        let begun = Instant::now();
        for process in &mut self.0 {
            writeln!(process.tell, "{what} {}", step.shown()).at("tell a rank to", what)?;
        }
        self.0.iter_mut().try_for_each(|process| process.expect("done"))?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

impl RankProcess {
    /// Waits for its next line. Errors: it says something else, or has ended.
    fn expect(&mut self, wanted: &str) -> Result<()> {
        let remedy = "its last words are above; name a Python that has PyTorch with --python";
        let mut line = String::new();
        self.told.read_line(&mut line).at("listen to", "a rank")?;
        match line.trim_end() {
            said if said == wanted => Ok(()),
            _ if line.is_empty() => Err(Error::refused("a rank has ended", remedy)),
            said => Err(Error::refused(format!("a rank says \"{said}\" in place of \"{wanted}\""), remedy)),
        }
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // If it has ended already, there is nothing to end.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

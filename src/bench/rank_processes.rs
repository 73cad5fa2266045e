//! Ranks that are processes with PyTorch (`ranks.py`): each has its shard in memory, and saves and loads it when it is
//! told to. All are told at once, and each says for how long it was blocked.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::error::{Context, Error, Result};

const SCRIPT: &str = include_str!("ranks.py");

/// What each rank saves with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Saver {
    /// Plain writes, by threads of this program
    Bytes,
    /// `torch.save` and an fsync, by a process for each rank
    Torch,
    /// `torch.distributed.checkpoint`, by a process for each rank
    Dcp,
}

impl Saver {
    pub fn name(self) -> &'static str {
        match self {
            Saver::Bytes => "bytes",
            Saver::Torch => "torch",
            Saver::Dcp => "dcp",
        }
    }
}

#[derive(Debug)]
pub struct RankProcesses(Vec<RankProcess>);

#[derive(Debug)]
struct RankProcess {
    child: Child,
    tell: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl RankProcesses {
    /// Starts them, and waits until each has its shard of `shard` bytes. `meeting`: a file that does not exist yet, by
    /// which they find each other. Errors: Python is missing, or has no PyTorch; what it said is on standard error.
    pub fn start(python: &Path, saver: Saver, ranks: usize, shard: u64, meeting: &Path) -> Result<RankProcesses> {
        let start = |rank: usize| {
            let mut command = Command::new(python);
            command.args(["-c", SCRIPT, &rank.to_string(), &ranks.to_string(), &shard.to_string(), saver.name()]);
            // Ctrl-C is for this program, which ends them.
            command.arg(meeting).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().at("run", python.display())?;
            let (tell, told) = (child.stdin.take(), child.stdout.take());
            let (Some(tell), Some(told)) = (tell, told) else { unreachable!("both are pipes") };
            Ok(RankProcess { child, tell, told: BufReader::new(told) })
        };
        let mut processes = RankProcesses((0..ranks).map(start).collect::<Result<_>>()?);
        processes.0.iter_mut().try_for_each(|process| process.listen().map(drop))?;
        Ok(processes)
    }

    /// Has each save its shard of a step. Returns the seconds of the slowest one.
    pub fn save(&mut self, step: &Path) -> Result<f64> {
        self.each("save", step)
    }

    /// Has each load its shard, and compare it with what it saved. Returns the seconds that loading took the slowest one.
    pub fn load(&mut self, step: &Path) -> Result<f64> {
        self.each("load", step)
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|process| process.child.id())
    }

    fn each(&mut self, what: &str, step: &Path) -> Result<f64> {
        for process in &mut self.0 {
            writeln!(process.tell, "{what} {}", step.display()).at("tell a rank to", what)?;
        }
        let took = self.0.iter_mut().map(|process| {
            let line = process.listen()?;
            line.parse::<f64>().map_err(std::io::Error::other).at("understand a rank", line)
        });
        took.collect::<Result<Vec<f64>>>().map(|took| took.into_iter().fold(0.0, f64::max))
    }
}

impl RankProcess {
    fn listen(&mut self) -> Result<String> {
        let mut line = String::new();
        self.told.read_line(&mut line).at("listen to", "a rank")?;
        if line.is_empty() {
            let remedy = "its last words are above; name a Python that has PyTorch with --python";
            return Err(Error::refused("a rank has ended", remedy));
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        for RankProcess { child, .. } in &mut self.0 {
            // If it has ended already, there is nothing to end.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

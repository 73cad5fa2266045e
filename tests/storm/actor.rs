//! One process of a storm: does each operation on the mount and on a plain directory, and compares the answers.
//!
//! When the daemon is killed, the operation that had no answer yet has happened or it has not: the process waits for the next mount,
//! looks which of the two it was, and goes on from there. Its open files are gone. Everything that had an answer must be there.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::RenameFlags;
use nix::sys::stat::{Mode, umask};
use serde::{Deserialize, Serialize};

use super::judge::{self, Times, Tree};
use super::ledger::{Reader, now};
use super::ops::{Answer, Op, Side, errno_of, is_dead};
use super::rig::patience;
use super::script::Script;

/// Operations between two comparisons of the whole trees.
const COMPARE_EVERY: usize = 100;

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The file of the script, and which of its parts this is.
    pub(crate) script: PathBuf,
    pub(crate) part: usize,
    pub(crate) on_mount: PathBuf,
    pub(crate) mirror: PathBuf,
    pub(crate) ledger: PathBuf,
}

struct Actor {
    has_layer: bool,
    /// The mount gives up on a slow tier that takes longer than this, which a busy machine's does by itself.
    has_slow_wait: bool,
    is_stranger: bool,
    /// Those of the others who change the slow tree beside this one's mount.
    foreign: Vec<usize>,
    mount: Side,
    mirror: Side,
    ledger: Reader,
}

/// Prints a mark for each operation that is done.
pub(crate) fn play(task: Task) -> Result<(), String> {
    let text = fs::read_to_string(&task.script).map_err(|error| error.to_string())?;
    let script = Script::read(&text)?;
    let part = &script.actors[task.part];
    // Modes are what the script says.
    umask(Mode::empty());
    let mut actor = Actor {
        has_layer: script.scene.has_layer,
        has_slow_wait: script.scene.options.iter().any(|option| option.starts_with("slow_wait=")),
        is_stranger: part.is_stranger,
        foreign: (0..script.actors.len())
            .filter(|number| script.actors[*number].is_stranger || script.actors[*number].member != part.member)
            .collect(),
        mount: Side::new(task.on_mount, !part.is_stranger),
        mirror: Side::new(task.mirror, false),
        ledger: Reader(task.ledger),
    };
    for (number, op) in part.ops.iter().enumerate() {
        let in_context = |error| format!("actor {}, operation {number}, {op:?}: {error}", task.part);
        actor.step(op).map_err(in_context)?;
        if (number + 1) % COMPARE_EVERY == 0 {
            actor.compare().map_err(in_context)?;
        }
        let mut out = std::io::stdout();
        out.write_all(b"#").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
    }
    actor.compare().map_err(|error| format!("actor {}, at the end: {error}", task.part))
}

/// Before anything is mounted: on the slow tree and its mirror.
pub(crate) fn prepare(slow: PathBuf, mirror: PathBuf, ops: &[Op]) -> Result<(), String> {
    let mut sides = [Side::new(slow, false), Side::new(mirror, false)];
    for op in ops {
        let [slow, mirror] = sides.each_mut().map(|side| side.apply(op));
        if slow != mirror {
            return Err(format!("{op:?}: {slow:?} on the slow disk, {mirror:?} on the plain one"));
        }
    }
    Ok(())
}

impl Actor {
    fn step(&mut self, op: &Op) -> Result<(), String> {
        if self.has_layer && self.is_beyond_a_layer(op) {
            return Ok(());
        }
        let began = now();
        let on_mount = self.mount.apply(op);
        if let Err(errno) = &on_mount
            && self.is_of_the_storm(*errno, began)
        {
            return self.settle(op, *errno);
        }
        // Of a handle from before somebody put another file in its place.
        if on_mount == Err(Errno::ESTALE) && matches!(op, Op::Peek(other) if self.foreign.contains(other)) {
            return Ok(());
        }
        // A file that is written in place gets no more than the layer has, and is as it was.
        if self.has_layer && matches!(op, Op::Allocate(..)) && on_mount == Err(Errno::EOPNOTSUPP) {
            return Ok(());
        }
        let on_mirror = self.mirror.apply(op);
        if on_mount == on_mirror || (self.is_stranger && both_are_taken(&on_mount, &on_mirror)) {
            return Ok(());
        }
        let storm = self.ledger.between(began, now());
        Err(format!(
            "{} on the mount, {} on a plain directory; meanwhile: {storm:?}",
            told(&on_mount),
            told(&on_mirror)
        ))
    }

    /// What a slow tier that is a FUSE file system lacks: the mount refuses it, or keeps what the tier gives.
    fn is_beyond_a_layer(&self, op: &Op) -> bool {
        match op {
            Op::Rename(_, _, flags) => *flags == RenameFlags::RENAME_EXCHANGE.bits(),
            // It changes a mode of which the kernel knows nothing: what is asked next is told the former one.
            Op::SetAcl { .. } => true,
            Op::Chown(path, ..) | Op::SetTimes(path, ..) | Op::SetXattr(path, ..) => {
                fs::symlink_metadata(self.mirror.top.join(path)).is_ok_and(|stat| stat.is_symlink())
            }
            _ => false,
        }
    }

    /// Whether it is the answer of a mount to which something is done just now.
    fn is_of_the_storm(&self, errno: Errno, began: u64) -> bool {
        let gave_up = self.has_slow_wait && errno == Errno::EIO;
        is_dead(errno) || gave_up || self.ledger.between(began, now()).iter().any(|what| is_allowed(errno, what))
    }

    /// The operation has happened or not; everything before it has.
    fn settle(&mut self, op: &Op, errno: Errno) -> Result<(), String> {
        let seen = self.tree_of_the_mount()?;
        self.mount.drop_handles();
        let without = self.differences(&seen)?;
        let mut with = without.clone();
        let changed = self.mirror.changed(op).and_then(|file| Some((file.metadata().ok()?.modified().ok()?, file)));
        let set_time = |time| drop(changed.as_ref().map(|(_, file)| file.set_modified(time)));
        // ext4 sets the time of a change before it looks for room.
        if !with.is_empty() && !is_dead(errno) {
            set_time(SystemTime::now());
            with = self.differences(&seen)?;
        }
        let pieces = self.mirror.pieces(op).unwrap_or_else(|| std::iter::once(0..0).collect());
        for piece in pieces {
            if with.is_empty() {
                break;
            }
            // What it answers the mount can no longer tell.
            self.mirror.apply_piece(op, piece).ok();
            with = self.differences(&seen)?;
            // A change in place has its bytes first, and is then logged to have come after the times that are set behind it.
            if let Some((before, _)) = changed.as_ref().filter(|_| !with.is_empty()) {
                set_time(*before);
                let with_former_time = self.differences(&seen)?;
                if with_former_time.is_empty() {
                    with = with_former_time;
                } else {
                    set_time(SystemTime::now());
                }
            }
        }
        if !with.is_empty() {
            return Err(format!(
                "cut off; the mount and a plain directory differ without it:\n{without}\nand with it:\n{with}"
            ));
        }
        self.mirror.drop_handles();
        Ok(())
    }

    fn times(&self) -> Times {
        if self.has_layer { Times::None } else { Times::Set }
    }

    /// Of what the mount shows, from the plain directory.
    fn differences(&self, seen: &Tree) -> Result<String, String> {
        let mirror = judge::read(&self.mirror.top, self.times()).map_err(|error| error.to_string())?;
        Ok(judge::differences(seen, &mirror))
    }

    fn compare(&self) -> Result<(), String> {
        let differences = self.differences(&self.tree_of_the_mount()?)?;
        if differences.is_empty() {
            Ok(())
        } else {
            Err(format!("the mount and a plain directory differ:\n{differences}"))
        }
    }

    /// Waits for a mount that answers, however often it is killed while it is looked at.
    fn tree_of_the_mount(&self) -> Result<Tree, String> {
        let deadline = Instant::now() + patience();
        loop {
            let began = now();
            match judge::read(&self.mount.top, self.times()) {
                Ok(tree) => return Ok(tree),
                Err(error) if Instant::now() < deadline && self.is_of_the_storm(errno_of(&error), began) => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(format!("looking at {}: {error}", self.mount.top.display())),
            }
        }
    }
}

/// What the mount may answer while this is done to it.
fn is_allowed(errno: Errno, what: &str) -> bool {
    match what {
        // A page that was being read, or a file whose bytes the kernel was reading by itself.
        "kill" => errno == Errno::EIO,
        // What is written in place, and what a stranger does.
        "read-only" => errno == Errno::EROFS,
        "full" => errno == Errno::ENOSPC,
        // After `slow_wait`.
        "hung" | "frozen" => errno == Errno::EIO,
        _ => false,
    }
}

/// Of a directory that is not empty file systems say the one or the other.
fn both_are_taken(one: &Answer, other: &Answer) -> bool {
    [one, other].iter().all(|answer| matches!(answer, Err(Errno::EEXIST | Errno::ENOTEMPTY)))
}

fn told(answer: &Answer) -> String {
    match answer {
        Ok(said) if said.is_empty() => "done".to_owned(),
        Ok(said) => said.clone(),
        Err(errno) => format!("{errno:?}"),
    }
}

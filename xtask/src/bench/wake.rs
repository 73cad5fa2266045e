//! What the machine takes to wake a thread on another processor: each request to a file system in user space costs two such, whoever's
//! it is. Where others are busy on the same hardware, it is the first thing that gets slower, and the disks do not show it.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// On hardware that has nothing else to do it is 4 to 10.
const USUAL_US: f64 = 20.0;
/// How long a processor of a virtual machine waits for work before it is given back to the machine beneath, which may be slow to return
/// it; 0 to 10^6 ns and more.
const HALT_POLL: &str = "/sys/module/haltpoll/parameters";
/// What is set in there while something is measured: a millisecond, which is not made shorter.
const AWAKE: [(&str, &str); 2] = [("guest_halt_poll_ns", "1000000"), ("guest_halt_poll_allow_shrink", "N")];
/// There and back.
const ROUNDS: u32 = 2000;
const BATCHES: usize = 9;

/// Keeps the processors of a virtual machine from being given back between two requests, for as long as it lives: no machine of its own
/// does that. Nothing where the kernel has no such setting.
#[derive(Debug)]
pub(super) struct Awake(Vec<(PathBuf, String)>);

impl Awake {
    pub(super) fn keep() -> Result<Self> {
        let mut before = Awake(Vec::new());
        for (name, value) in AWAKE {
            let path = PathBuf::from(HALT_POLL).join(name);
            let Ok(old) = fs::read_to_string(&path) else { continue };
            fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))?;
            before.0.push((path, old));
        }
        Ok(before)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for (path, old) in &self.0 {
            if let Err(e) = fs::write(path, old.trim()) {
                eprintln!("warning: {} was {}, and cannot be set to that again: {e}", path.display(), old.trim());
            }
        }
    }
}

/// Microseconds until another thread goes on: the median of a few batches. None on a machine with one processor.
pub(super) fn up() -> Result<Option<f64>> {
    let usable = sched_getaffinity(Pid::from_raw(0)).context("which processors may be used")?;
    let is_usable = |cpu: &usize| usable.is_set(*cpu).unwrap_or(false);
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(is_usable).take(2).collect();
    let [here, there] = cpus[..] else { return Ok(None) };
    let (mut asked, mut ask) = pipe()?;
    let (mut answered, mut answer) = pipe()?;
    thread::scope(|scope| {
        scope.spawn(move || stay_on(there).and_then(|()| answer_all(&mut asked, &mut answer)));
        // A thread of its own: this one may go on wherever it likes.
        let asking = scope.spawn(move || {
            stay_on(here)?;
            let mut batches = (0..BATCHES).map(|_| batch(&mut ask, &mut answered)).collect::<Result<Vec<f64>>>()?;
            batches.sort_by(f64::total_cmp);
            Ok(Some(batches[BATCHES / 2]))
        });
        asking.join().unwrap_or_else(|_| Err(anyhow!("measuring a wake-up panicked")))
    })
}

/// What to say of a figure that others have made.
pub(super) fn warning(us: Option<f64>) -> Option<String> {
    us.filter(|us| *us > USUAL_US).map(|us| {
        format!(
            "waking a thread takes {us:.0} us here, {USUAL_US} and less are usual: mounts are slower than they need be. \
             Is something else busy on this hardware?"
        )
    })
}

fn stay_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot stay on processor {cpu}"))
}

/// Until the other end is closed.
fn answer_all(asked: &mut PipeReader, answer: &mut PipeWriter) -> Result<()> {
    let mut byte = [0];
    while asked.read(&mut byte)? > 0 {
        answer.write_all(&byte)?;
    }
    Ok(())
}

/// Microseconds each way.
fn batch(ask: &mut PipeWriter, answered: &mut PipeReader) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        ask.write_all(&[0])?;
        answered.read_exact(&mut [0])?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(2 * ROUNDS))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_takes_some_time_and_this_thread_stays_where_it_may_be() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let figure = up().unwrap();
        assert!(figure.is_none_or(|us| us > 0.0));
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before);
    }

    #[test]
    fn what_was_set_is_set_again() {
        let all = || AWAKE.map(|(name, _)| fs::read_to_string(PathBuf::from(HALT_POLL).join(name)).ok());
        let before = all();
        drop(Awake::keep());
        assert_eq!(all(), before);
    }

    #[test]
    fn what_is_unusual_is_said() {
        assert_eq!(warning(Some(8.0)), None);
        assert_eq!(warning(None), None);
        assert!(warning(Some(90.4)).unwrap().contains("takes 90 us here, 20 and less"));
    }
}

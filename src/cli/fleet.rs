//! The verdict about a whole fleet: asked through a mount that is a member, whose daemon reads the leases, or on the slow
//! tree itself, from a machine that has no mount.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::outcome::{Exit, Failure, Outcome, say, say_json};
use super::{client, tiers};
use crate::error::Error;
use crate::path::Show as _;
use crate::stats::fleet::{FleetAnswer, FleetStatus, FleetVerdict, MadeWithin};
use crate::tiers::{FleetPeriods, FleetReader};

/// How often the leases are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What the members' clocks may be off costs as much again: a lease counts that is later by twice the bound, and that of
/// a member that has left by four times.
const CLOCK_WAITS: u32 = 4;

/// Which fleet is meant.
#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// Ask about all members of the mount's fleet, or of fleet NAME on the slow tier that --slow names
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    fleet: Option<Option<String>>,
    /// The slow tier of the fleet, for a machine without a mount
    #[arg(long, value_name = "DIR", requires = "fleet")]
    slow: Option<PathBuf>,
}

impl FleetArgs {
    /// Where to ask, if a fleet is meant. `path` is on a mount.
    pub(super) fn source(&self, path: Option<&Path>) -> Result<Option<FleetSource>, Failure> {
        let Some(name) = &self.fleet else { return Ok(None) };
        let usage = |what: &str| Failure::new(Exit::Usage, what.to_owned());
        Ok(Some(match (name, &self.slow, path) {
            (Some(name), Some(slow), None) => FleetSource::on_slow(name, slow)?,
            (_, Some(_), Some(_)) => return Err(usage("a mount and --slow: name one of them")),
            (None, Some(_), None) => {
                return Err(usage("--slow without the fleet's name; write --fleet NAME --slow DIR"));
            }
            // The mount's own fleet. What follows --fleet is taken for its value, and no fleet has a name with a slash.
            (None, None, path) => FleetSource::Mount(client::the_mount(path)?),
            (Some(at), None, None) if at.contains('/') => FleetSource::Mount(client::the_mount(Some(Path::new(at)))?),
            (Some(_), None, _) => {
                return Err(usage("--fleet NAME without its slow tier; add --slow DIR, or name a mount instead"));
            }
        }))
    }
}

/// Who reads the leases.
#[derive(Debug)]
pub(super) enum FleetSource {
    /// The daemon of this mount. Each look makes it read them soon.
    Mount(PathBuf),
    Slow(Box<FleetReader>),
}

impl FleetSource {
    pub(super) fn on_slow(fleet: &str, slow: &Path) -> Result<FleetSource, Failure> {
        let slow = tiers::open("--slow", slow)?;
        tiers::enter(&[(tiers::SLOW, &slow)])?;
        let reader = tiers::fleet_reader(&slow, fleet).map_err(Failure::usage)?;
        Ok(FleetSource::Slow(Box::new(reader)))
    }

    fn look(&mut self) -> Result<FleetStatus, Error> {
        match self {
            FleetSource::Mount(mountpoint) => {
                if client::is_dead(mountpoint)? {
                    return Err(client::dead(mountpoint));
                }
                let file = mountpoint.join(".dlio/fleet.json");
                if !file.exists() {
                    let what = format!("the mount at {} is in no fleet", mountpoint.shown());
                    return Err(Error::refused(
                        what,
                        "for one mount alone use dlio-fs status and dlio-fs sync, without --fleet",
                    ));
                }
                let text = client::read(mountpoint, "fleet.json")?;
                serde_json::from_str(&text).map_err(|e| {
                    Error::refused(format!("{}: {e}", file.shown()), "use the dlio-fs that made the mount")
                })
            }
            FleetSource::Slow(reader) => reader.look(),
        }
    }
}

/// One question about a fleet: is everything on the slow tier that was answered before it was asked?
#[derive(Debug)]
pub(super) struct FleetQuestion {
    source: FleetSource,
    as_of: Duration,
    /// It is about this only, as far as something is lost.
    made: Option<MadeWithin>,
    status: FleetStatus,
}

impl FleetQuestion {
    pub(super) fn ask(mut source: FleetSource) -> Result<FleetQuestion, Failure> {
        let status = source.look()?;
        Ok(FleetQuestion { source, as_of: status.asked_at, made: None, status })
    }

    /// The same, with its answer. Returns at once if it is a good one, and otherwise once every member has had the time to
    /// give it.
    pub(super) fn about_now(source: FleetSource) -> Result<FleetQuestion, Failure> {
        let mut question = FleetQuestion::ask(source)?;
        // A member with nothing pending writes its lease once in a period: one that is late by then has something, or is gone.
        let answer = FleetPeriods::of(question.status.members.len()).answer;
        let patience = answer + CLOCK_WAITS * question.status.clock_error;
        question.wait(Some(patience), |_| ())?;
        Ok(question)
    }

    /// Errors: the mount that was asked is gone.
    pub(super) fn check_source(&self) -> Result<(), Failure> {
        match &self.source {
            FleetSource::Mount(mountpoint) => client::the_mountpoint(mountpoint).map(drop),
            FleetSource::Slow(_) => Ok(()),
        }
    }

    /// The same about now, and about what was made then.
    pub(super) fn ask_about(&mut self, made: MadeWithin) -> Result<(), Failure> {
        self.status = self.source.look()?;
        self.as_of = self.status.asked_at;
        let began = made.began.saturating_sub(2 * self.status.clock_error);
        self.made = Some(MadeWithin { began, ..made });
        Ok(())
    }

    pub(super) fn answer(&self) -> FleetAnswer<'_> {
        match self.made {
            None => self.status.answer(self.as_of),
            Some(made) => self.status.answer_about(self.as_of, made),
        }
    }

    /// Looks until all is safe that is not lost for good, for `limit` at most.
    pub(super) fn wait(&mut self, limit: Option<Duration>, mut tell: impl FnMut(&str)) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.answer().is_final() && limit.is_none_or(|limit| begun.elapsed() < limit) {
            // What was read before the question says little about it.
            if self.status.read_ago.is_some_and(|ago| self.status.asked_at.saturating_sub(ago) >= self.as_of) {
                tell(&self.answer().line());
            }
            thread::sleep(LOOK);
            self.status = self.source.look()?;
        }
        Ok(())
    }
}

/// Prints the verdict about now.
pub(super) fn status(source: FleetSource, as_json: bool) -> Outcome {
    let question = FleetQuestion::about_now(source)?;
    let answer = question.answer();
    if as_json {
        say_json(&answer)?
    } else {
        say(answer.text().trim_end())?
    }
    Ok(exit(&answer))
}

pub(super) fn exit(answer: &FleetAnswer) -> Exit {
    match answer.verdict {
        FleetVerdict::Safe => Exit::Done,
        FleetVerdict::SafeBut | FleetVerdict::NotSafe => Exit::Undrained,
        FleetVerdict::Held => Exit::Degraded,
    }
}

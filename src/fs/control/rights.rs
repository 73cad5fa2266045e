//! Which user may request what. Root and the mount's owner may request anything. All other users (P14, P17):
//!
//! - a user who may reach a path and read or write there may ask when it is on the slow tier;
//! - a path's owner may direct its copies, within a user's limits of room and work;
//! - no user learns a path that is not theirs, nor anything about another user's processes.
//!
//! Rights depend on the user who opened the file in `.dlio`: the descriptor may have been given to another program
//! since.

use super::asker::Asker;
use super::command::{ControlCommand, StageTarget};
use super::paths::{shown, walk};
use super::sources::Control;
use super::stage::no_job;
use crate::error::Errno;
use crate::path::Name;
use crate::tiers::{Attr, Ino, ROOT};

impl ControlCommand {
    /// Refuses what this user may not request. The error is the text of the reply.
    pub(super) fn allow(&self, control: &Control, asker: &Asker) -> Result<(), String> {
        if asker.is_trusted() {
            return Ok(());
        }
        match self {
            ControlCommand::Sync(None) | ControlCommand::Status | ControlCommand::Pins => Ok(()),
            ControlCommand::Sync(Some(names)) => control.reached(asker, names).map(drop),
            ControlCommand::Front(names)
            | ControlCommand::Evict(names)
            | ControlCommand::Verify(names)
            | ControlCommand::Pin(names)
            | ControlCommand::Unpin(names) => control.owned(asker, names),
            ControlCommand::Stage(wanted) => control.may_stage(asker, wanted),
            ControlCommand::StageMore(number, wanted) => {
                control.job_of(asker, *number).and_then(|()| control.may_stage(asker, wanted))
            }
            ControlCommand::WatchStaging(number) | ControlCommand::CancelStaging(Some(number)) => {
                control.job_of(asker, *number)
            }
            ControlCommand::Deadline(_)
            | ControlCommand::Reload(_)
            | ControlCommand::Pause(_)
            | ControlCommand::CancelStaging(None)
            | ControlCommand::PauseStaging(_)
            | ControlCommand::SetAside(..)
            | ControlCommand::StartWindow(_)
            | ControlCommand::StopWindow(_)
            | ControlCommand::WindowFiles(_)
            | ControlCommand::WindowRecording(_)
            | ControlCommand::Mark(_) => Err(only_the_owner()),
        }
    }
}

fn only_the_owner() -> String {
    "only root and the mount's owner may do that".to_owned()
}

impl Control {
    /// The attributes of a path that a user can reach and may read or write.
    pub(super) fn reached(&self, asker: &Asker, names: &[Name]) -> Result<Attr, String> {
        let (walked, who) = (names.to_vec(), asker.clone());
        let reached = self.on_slow(move |tiers, cx| {
            let mut steps = vec![tiers.getattr(cx, ROOT)?];
            steps.extend(walk(tiers, cx, &walked, |dir| who.may(dir, 1))?);
            let last = steps.pop().ok_or(Errno::ENOENT)?;
            if who.is(last.uid) || who.may(&last, 6) { Ok(last) } else { Err(Errno::EACCES.into()) }
        });
        reached.map_err(|error| format!("{}: {error}", shown(names)))
    }

    fn owned(&self, asker: &Asker, names: &[Name]) -> Result<(), String> {
        let attr = self.reached(asker, names)?;
        if asker.is(attr.uid) { Ok(()) } else { Err(format!("{}: it belongs to another user", shown(names))) }
    }

    /// Only paths: the owners of the files that a pattern finds are not checked, and plans are for the mount's owner.
    fn may_stage(&self, asker: &Asker, wanted: &[StageTarget]) -> Result<(), String> {
        wanted.iter().try_for_each(|one| match one {
            StageTarget::Path(names) => self.owned(asker, names),
            StageTarget::Pattern(_) | StageTarget::Promise(_) => Err(only_the_owner()),
        })
    }

    /// A staging job that this user has begun. The existence of others is not revealed.
    fn job_of(&self, asker: &Asker, number: u64) -> Result<(), String> {
        let theirs = self.tiers.staging_job(number).is_none_or(|job| job.by.is_some_and(|uid| asker.is(uid)));
        if theirs { Ok(()) } else { Err(no_job(number)) }
    }

    /// Whether a user may learn of a file, that is, owns it.
    pub(super) fn is_theirs(&self, asker: &Asker, ino: Ino) -> bool {
        asker.is_trusted() || self.tiers.owner_of(ino).is_some_and(|uid| asker.is(uid))
    }
}

//! Finishes the group that a lost member of a fleet had begun to publish. `fleet/forget.rs` has the steps before and
//! after.
//!
//! The member's log is lost, so its group comes from the journal on the slow tree (`fleet/journal.rs`). Everything in
//! it had its turn, and the other members wait for this one until it is forgotten: they find the group finished. Each
//! step is applied, or found applied, by the inode numbers it names, as at a start (`recovery/intents.rs`), up to one
//! that finds nothing to place. Before each step the member must still be silent. Steps of events that are published by
//! the member's lease are left alone: they were done long ago, and the names in them may belong to other nodes by now.
//! A removal of a file moves it to `saved`: nothing is deleted on the word of a journal that no member can confirm.

use std::sync::Arc;

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::Watched;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, split};
use crate::tiers::disk::saved::{SavedKind, move_to, save};
use crate::tiers::disk::{Dir, FileId, Kind, RenameMode};
use crate::tiers::fleet::journal::{GroupStep, read_group};
use crate::tiers::log::record::Step;
use crate::tiers::objects::abilities::Abilities;
use crate::tiers::objects::parts::Parts;
use crate::tiers::objects::slow_tier::SlowTier;
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::writeback::step::{Met, SyncSet, put_aside, step_path};

/// Directories that are kept open.
const DIRS_KEPT: usize = 64;

/// How far a lost member's group was finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinishedGroup {
    /// Steps that are done now, by the member or here.
    pub done: usize,
    /// All steps that were not published by the member's lease.
    pub all: usize,
    /// The path of the next step, if that cannot be done: the node to place is gone, or would have to go to another
    /// file system.
    pub stopped: Option<String>,
}

/// Finishes what `member` had begun. It must have been silent for long enough: a member whose own lease is old begins
/// no step.
///
/// Errors: its journal cannot be read; a step is refused by the slow tier; the member is alive. Then the caller must
/// not let the other members go on, and may retry.
pub fn finish_group(member: &Watched, slow: &Arc<dyn Dir>) -> Result<FinishedGroup> {
    let id = member.id();
    let names = [OURS, b"tmp", id.as_bytes()];
    let tmp = absent_is_none(names.into_iter().try_fold(slow.clone(), |dir, name| dir.dir(name)));
    let Some(tmp) = tmp.at("open", "its directory in .dlio-fs/tmp")? else { return Ok(FinishedGroup::default()) };
    let steps = read_group(&*tmp).at("read", "the journal of its group")?.unwrap_or_default();
    let pending: Vec<Step> =
        steps.into_iter().filter(|step| is_pending(step, member.least())).map(|it| it.step).collect();
    let mut finished = FinishedGroup { all: pending.len(), ..FinishedGroup::default() };
    if pending.is_empty() {
        return Ok(finished);
    }
    // Which parts of the tree have their own `tmp` is recorded on the lost fast tier: a step from there is refused.
    let ours = slow.dir(OURS).at("open", ".dlio-fs on the slow tier")?;
    let parts = Parts::open(ours, &id)?;
    let path = [OURS, b"/tmp/", id.as_bytes()].concat();
    let slow = SlowTier::new(slow.clone(), tmp, path, parts, Abilities::default(), (DIRS_KEPT, true));
    let tree = OpenTree::new(&slow);
    for step in &pending {
        if !member.is_silent()? {
            return Err(Error::refused("the member has come back", "see whether anybody still waits for it"));
        }
        if !finish_step(&tree, &slow, step).at("finish what it had begun at", escape(step_path(step)))? {
            finished.stopped = Some(escape(step_path(step)));
            break;
        }
        finished.done += 1;
    }
    Ok(finished)
}

/// Whether the step's event is not published: the lease is the `end` of the oldest such event, or larger.
fn is_pending(step: &GroupStep, least: u64) -> bool {
    step.end >= least
}

/// Does one step, durably: the next one must not be on the disk before it. `false`: it cannot be done.
fn finish_step(tree: &OpenTree<'_>, slow: &SlowTier, step: &Step) -> std::io::Result<bool> {
    let met = match step {
        Step::Remove { path, id, dir: false } => save_removed(slow, path, *id),
        // The member's plan already considers the tier's abilities: leave out what the tier never takes.
        Step::Attr { .. } | Step::Xattr { .. } => {
            tree.apply(step, None).or_else(|error| match is_never_taken(&error) {
                true => Ok(Met::LeftOut),
                false => Err(error),
            })
        }
        step => tree.apply(step, None),
    };
    match met? {
        Met::Lacking if was_replaced(tree, step)? => {}
        Met::Lacking | Met::Lost | Met::Apart | Met::Moved => return Ok(false),
        Met::Expected | Met::Rewritten => keep_from_going_back(slow, step)?,
        Met::Merged(_) | Met::Conflict(_) | Met::Gone | Met::LeftOut => {}
    }
    let mut touched = SyncSet::default();
    touched.add(step);
    touched.sync(tree).map_err(std::io::Error::other).map(|()| true)
}

fn is_never_taken(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::EPERM, Errno::EOPNOTSUPP, Errno::ENOSYS].iter().any(|never| errno == Some(*never as i32))
}

/// Whether the member had placed its node, and another member has placed one there since: its event overlaps in time.
fn was_replaced(tree: &OpenTree<'_>, step: &Step) -> std::io::Result<bool> {
    let Step::Place { path, id, over, .. } = step else { return Ok(false) };
    Ok(tree.stat_now(path)?.is_some_and(|there| there.file() != *id && Some(there.file()) != *over))
}

/// Renames the former version, which an exchange has brought to `tmp`: an exchange that the member had sent to the file
/// server before it fell silent would otherwise bring it back.
fn keep_from_going_back(slow: &SlowTier, step: &Step) -> std::io::Result<()> {
    let Step::Place { tmp, over: Some(_), .. } = step else { return Ok(()) };
    let (dir, name) = slow.tmp_of(tmp)?;
    absent_is_none(dir.rename(name, &*dir, &put_aside(name), RenameMode::Replace)).map(drop)
}

/// Moves a file that the member was about to remove to `saved`.
fn save_removed(slow: &SlowTier, path: &[u8], id: FileId) -> std::io::Result<Met> {
    let (above, name) = split(path);
    let Some(dir) = absent_is_none(slow.walk(above))? else { return Ok(Met::Gone) };
    match absent_is_none(dir.stat_now(name))? {
        Some(there) if there.file() == id && there.kind != Kind::Dir => {
            save(&slow.root, &SavedKind::Removed.name(), path, |saved, as_name| move_to(&*dir, name, saved, as_name))?;
            Ok(Met::Expected)
        }
        _ => Ok(Met::Gone),
    }
}

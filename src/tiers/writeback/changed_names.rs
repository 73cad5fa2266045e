//! The names that a group of events has changed on the slow tree, for the other members of a fleet.

use crate::tiers::disk::layout::split;
use crate::tiers::fleet::names::{ChangedName, NameChange};
use crate::tiers::model::publish_plan::{Effect, Planned};
use crate::tiers::model::state::EngineState;
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::step::{Met, step_path};
use crate::tiers::{Ino, Tiers};

impl Tiers {
    /// Called when the steps are durable and the view is updated, before the events leave the queue: from then on the
    /// lease allows other members to continue.
    pub(super) fn note_changed_names(&self, group: &Unfinished) {
        self.order.note_published(|| {
            let mut names = Vec::new();
            let st = self.state.lock();
            for (planned, met) in group.planned.iter().zip(&group.met) {
                changed_by(&st, planned, met, &mut names);
            }
            names
        });
    }
}

fn changed_by(st: &EngineState, planned: &Planned, met: &Met, names: &mut Vec<ChangedName>) {
    let end = st.queue.stamps(planned.upto).end;
    let mut add = |change, ino, (dir, path): (Ino, Vec<u8>)| {
        names.push(ChangedName { end, change, ino: number(st, ino), dir: number(st, Some(dir)), path });
    };
    for effect in &planned.effects {
        match effect {
            Effect::Name(at, who) => {
                let change = if who.is_some() { NameChange::Placed } else { NameChange::Gone };
                // A later step may have moved the directory.
                let path = st.view.slow_path_at(at).unwrap_or_else(|| step_path(&planned.step).to_vec());
                if let (Met::Conflict(beside), Some(_)) = (met, who) {
                    let beside = [path.strip_suffix(split(&path).1).unwrap_or_default(), beside].concat();
                    add(NameChange::Placed, *who, (at.0, beside));
                }
                add(change, *who, (at.0, path));
            }
            Effect::Touched(ino) => {
                let name = st.view.get(*ino).and_then(|node| node.slow().first());
                let at = name.and_then(|name| Some((name.0, st.view.slow_path_at(name)?)));
                at.into_iter().for_each(|at| add(NameChange::Touched, Some(*ino), at));
            }
            Effect::Identity(..) => {}
        }
    }
}

/// The node's inode number on the slow tree; 0 if it has none on the device of the root.
fn number(st: &EngineState, ino: Option<Ino>) -> u64 {
    let id = ino.and_then(|ino| st.view.get(ino)?.slow_id());
    id.filter(|(dev, _)| *dev == st.view.root_dev()).map_or(0, |(_, file)| file.ino)
}

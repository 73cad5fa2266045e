//! After a foreign change, what is known of the slow tree there is not trusted any more, however young: the next lookup
//! asks the slow tier.
//!
//! Names with pending changes keep what the view has; only what is known of the slow tree expires.

use crate::path::Name;
use crate::tiers::disk::{Kind, SlowId};
use crate::tiers::model::node::{DirEntryKey, ObservedAt, Slot};
use crate::tiers::model::view::View;
use crate::tiers::{Ino, Lsn, ROOT};

impl View {
    /// The directories in which a name on the slow tree has changed: the one at this path there, and the one with this
    /// inode number, which may have moved meanwhile (0: unknown).
    pub(crate) fn slow_dirs(&self, path: &[u8], number: u64) -> Vec<Ino> {
        let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
        let at_path = names.try_fold(ROOT, |dir, name| self.get(dir)?.dir.as_ref()?.slots.get(name)?.slow());
        let is_dir = |ino: &Ino| self.get(*ino).is_some_and(|node| node.kind == Kind::Dir);
        let numbered = self.with_slow_ino(number).filter(|ino| Some(*ino) != at_path);
        at_path.into_iter().chain(numbered).filter(is_dir).collect()
    }

    /// Follows a foreign rename of this directory on the slow tree: it gets the new name in the view, too, and what is
    /// open or pending in it goes along, as on one machine. `false`: it is not this directory, or a pending change in
    /// the view wins.
    pub(crate) fn follow_dir(&mut self, ino: Ino, id: SlowId, (dir, name): &DirEntryKey) -> bool {
        let Some(node) = self.get(ino).filter(|node| node.kind == Kind::Dir && node.slow_id() == Some(id)) else {
            return false;
        };
        // If the new name was looked up since, the node has both names.
        let old: Vec<DirEntryKey> = node.links.iter().filter(|link| *link != &(*dir, name.clone())).cloned().collect();
        let slot = |at: Ino, name: &Name| self.live_dir(at).and_then(|dir| dir.slots.get(name));
        let is_ours = |at: Ino, name: &Name| slot(at, name).is_some_and(Slot::pending) || self.is_following(at, name);
        let replaced = slot(*dir, name).and_then(Slot::view).filter(|there| *there != ino);
        if node.moved()
            || old.iter().any(|(at, name)| is_ours(*at, name))
            || is_ours(*dir, name)
            || replaced.is_some_and(|ino| self.owes_below(ino))
            || self.live_dir(*dir).is_none()
            || self.is_above(ino, *dir)
        {
            return false;
        }
        self.set_both(*dir, name, Some(ino));
        old.iter().for_each(|(at, name)| self.set_both(*at, name, None));
        true
    }

    /// Expires a name that a foreign change has given another meaning. Returns whether its directory is known in full,
    /// so that no lookup would ask the slow tier, and the nodes that may have other attributes.
    pub(crate) fn expire_name(&mut self, dir: Ino, name: &Name, applied: Lsn) -> (bool, Vec<Ino>) {
        let Some(node) = self.get_mut(dir).filter(|node| node.slow_id().is_some()) else { return (false, Vec::new()) };
        // The directory's times and link count.
        node.seen = ObservedAt::NEVER;
        let Some(slots) = &mut node.dir else { return (false, Vec::new()) };
        slots.generation += 1;
        if let Some(present) = &mut slots.present {
            present.names.insert(name.clone());
        }
        let known = slots.known;
        let mut nodes = vec![dir];
        if let Some(slot) = slots.slots.get_mut(name) {
            slot.seen = ObservedAt::NEVER;
            nodes.extend([slot.view(), slot.slow()].into_iter().flatten());
        }
        nodes.iter().skip(1).for_each(|ino| self.expire_node(*ino, applied));
        (known, nodes)
    }

    /// Expires what is known of a node that a foreign change may have changed on the slow tree.
    pub(crate) fn expire_node(&mut self, ino: Ino, applied: Lsn) {
        let Some(node) = self.get_mut(ino) else { return };
        node.seen = ObservedAt::NEVER;
        let (pending, holds_bytes) = (node.meta_lsn() > applied, node.holds_bytes());
        if let Some(dir) = node.dir.as_mut().filter(|_| !pending) {
            dir.forget_acls();
        }
        if holds_bytes {
            self.to_compare.insert(ino);
        }
    }

    pub(crate) fn is_to_compare(&self, ino: Ino) -> bool {
        self.to_compare.contains(&ino)
    }

    /// Sets whether the file is to be compared with the slow file at its next open.
    pub(crate) fn set_to_compare(&mut self, ino: Ino, to_compare: bool) {
        if to_compare {
            self.to_compare.insert(ino)
        } else {
            self.to_compare.remove(&ino)
        };
    }

    /// Expires everything that is known of the slow tree in the next `most` directories from `first` on. Returns the
    /// directory to continue with.
    pub(crate) fn expire_dirs(&mut self, first: Ino, most: usize, applied: Lsn) -> Option<Ino> {
        let dirs = self.dirs_from(first, most);
        for ino in &dirs {
            let Some(node) = self.get_mut(*ino).filter(|node| node.slow_id().is_some()) else { continue };
            let Some(dir) = &mut node.dir else { continue };
            dir.forget_others();
            let mut nodes = vec![*ino];
            for slot in dir.slots.values_mut() {
                slot.seen = ObservedAt::NEVER;
                nodes.extend([slot.view(), slot.slow()].into_iter().flatten());
            }
            nodes.into_iter().for_each(|ino| self.expire_node(ino, applied));
        }
        dirs.last().filter(|_| dirs.len() == most).map(|last| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tiers::model::view::tests::stat;

    fn name(name: &str) -> Name {
        Name::new(name.as_bytes()).expect("a name")
    }

    /// Member A publishes `d/x`; member B, which reads of it, has just moved `d` to `e` on the slow tree, or is about
    /// to.
    #[test]
    fn a_name_is_found_in_a_directory_that_has_moved_on_either_side() {
        let mut view = View::new(&stat(2, Kind::Dir), Duration::ZERO);
        let asked = view.asked(Duration::ZERO);
        let dir = view.learn(ROOT, &name("d"), Some(&stat(7, Kind::Dir)), asked, 0).expect("it is there");
        assert_eq!(view.slow_dirs(b"d", 7), [dir]);
        assert_eq!(view.slow_dirs(b"", 2), [ROOT]);
        view.set_view(ROOT, &name("d"), None);
        view.set_view(ROOT, &name("e"), Some(dir));
        assert_eq!(
            (view.slow_dirs(b"d", 0), view.slow_dirs(b"e", 0)),
            (vec![dir], vec![]),
            "by its path on the slow tree"
        );
        view.set_slow(ROOT, &name("e"), Some(dir));
        view.set_slow(ROOT, &name("d"), None);
        assert!(view.slow_dirs(b"d", 0).is_empty(), "nothing is known of it");
        assert_eq!(view.slow_dirs(b"d", 7), [dir], "by its number");
        // Another directory has the name now: either may be meant.
        let other = view.learn(ROOT, &name("d"), Some(&stat(8, Kind::Dir)), asked, 0).expect("it is there");
        assert_eq!(view.slow_dirs(b"d", 7), [other, dir]);
        view.learn(dir, &name("file"), Some(&stat(9, Kind::File)), asked, 0);
        assert!(view.slow_dirs(b"e/file", 9).is_empty(), "a file has no names in it");
    }

    #[test]
    fn what_has_expired_is_asked_for_and_a_pending_name_is_not() {
        use crate::tiers::model::view::Ages;

        let mut view = View::new(&stat(2, Kind::Dir), Duration::ZERO);
        let (now, hour) = (Duration::from_secs(9), Duration::from_secs(3600));
        let ages = Ages { ours: hour, slow: hour };
        let asked = view.asked(now);
        view.learn(ROOT, &name("absent"), None, asked, 0);
        let [file, moved] = [(7, "file"), (8, "moved")]
            .map(|(ino, at)| view.learn(ROOT, &name(at), Some(&stat(ino, Kind::File)), asked, 0).expect("it is there"));
        view.set_view(ROOT, &name("moved"), None);
        view.set_view(ROOT, &name("to"), Some(moved));
        let known = |view: &View, at: &str| view.known(ROOT, &name(at), now, ages, false);
        let shown = |view: &View| ["absent", "file", "moved", "to"].map(|at| known(view, at));
        assert_eq!(shown(&view), [Some(None), Some(Some(file)), Some(None), Some(Some(moved))]);
        let before = view.get(ROOT).and_then(|node| node.dir.as_ref()).map(|dir| dir.generation);
        for at in ["absent", "file", "moved", "to"] {
            view.expire_name(ROOT, &name(at), 0);
        }
        assert_eq!(shown(&view), [None, None, Some(None), Some(Some(moved))]);
        let after = view.get(ROOT).and_then(|node| node.dir.as_ref()).map(|dir| dir.generation);
        assert!(after > before, "an answer that is on its way does not count");
        assert_eq!(view.get(file).map(|node| node.seen), Some(ObservedAt::NEVER));

        view.learn(ROOT, &name("absent"), None, asked, 0);
        view.learn(ROOT, &name("file"), Some(&stat(7, Kind::File)), asked, 0);
        if let Some(dir) = view.get_mut(ROOT).and_then(|node| node.dir.as_mut()) {
            dir.known = true;
        }
        assert!(view.expire_name(ROOT, &name("file"), 0).0, "somebody has to ask at once");
        assert_eq!(known(&view, "other"), Some(None));
        assert_eq!(view.expire_dirs(ROOT, 9, 0), None);
        assert_eq!((shown(&view), known(&view, "other")), ([None, None, Some(None), Some(Some(moved))], None));
    }
}

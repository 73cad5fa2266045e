//! Changes of nodes that are set aside: a node becomes an event again, or is logged anew.

use std::sync::Arc;

use crate::error::Result;
use crate::tiers::log::record::{Attrs, Kept, Record};
use crate::tiers::model::event::Change;
use crate::tiers::model::state::EngineState;
use crate::tiers::{Cx, Ino, Lsn, ROOT, Tiers};

impl Tiers {
    /// Logs the nodes that are set aside (step 4 and repetitions); directories come before their contents. Returns the
    /// LSN of the last record, which follows those of the nodes, in their order.
    pub(crate) fn log_aside<'a>(
        &self,
        st: &EngineState,
        nodes: impl Iterator<Item = (Ino, u64, &'a Kept)>,
        events: Vec<(Lsn, Lsn)>,
    ) -> Result<Lsn> {
        let record = |(ino, since, kept): (Ino, u64, &Kept)| {
            let links = st.view.get(ino).map(|node| &node.links[..]).unwrap_or_default();
            let paths = links.iter().filter_map(|place| st.view.path_at(place)).map(Into::into).collect();
            Record::Saved { ino, since, paths, kept: kept.clone() }
        };
        let mut records: Vec<Record> = nodes.map(record).collect();
        records.push(Record::SetAside { count: records.len() as u64, events });
        self.log.append(&records)
    }

    /// A change of the attributes of a node that is set aside is not an event: the node is logged anew. `false`: it is
    /// not set aside.
    pub(crate) fn log_attrs_aside(
        &self,
        st: &mut EngineState,
        ino: Ino,
        change: impl FnOnce(&mut Attrs),
    ) -> Result<bool> {
        let Some(aside) = st.aside.get(ino) else { return Ok(false) };
        let mut new = aside.clone();
        change(new.kept.attrs_mut());
        let last = self.log_aside(st, [(ino, new.since, &new.kept)].into_iter(), Vec::new())?;
        new.again = Some(last - 1);
        st.aside.insert(ino, new);
        Ok(true)
    }

    /// Turns set-aside directories that are about to get an entry into events again, ahead of that change.
    pub(crate) fn take_up_dirs(&self, st: &mut EngineState, change: &Change) -> Result<()> {
        if st.aside.is_empty() {
            return Ok(());
        }
        let targets: Vec<Ino> = match change {
            Change::Make { at, .. } | Change::Content { at, .. } | Change::Link { at, .. } => vec![at.0],
            Change::Rename { to, .. } => vec![to.0],
            Change::Exchange { a_at, b_at, .. } => vec![a_at.0, b_at.0],
            Change::Remove { .. } | Change::SetAttr { .. } | Change::SetXattr { .. } => Vec::new(),
        };
        for target in targets {
            let mut above = Vec::new();
            let mut at = target;
            while at != ROOT {
                above.push(at);
                at = st.view.get(at).and_then(|node| node.links.first()).map_or(ROOT, |link| link.0);
            }
            for dir in above.into_iter().rev() {
                self.take_up_node(st, dir)?;
            }
        }
        Ok(())
    }

    pub(crate) fn take_up_node(&self, st: &mut EngineState, ino: Ino) -> Result<()> {
        let Some(Kept::Node(spec)) = st.aside.get(ino).map(|aside| aside.kept.clone()) else { return Ok(()) };
        let at = st.view.get(ino).and_then(|node| node.links.first().cloned());
        let Some((at, path)) = at.and_then(|at| Some((at.clone(), st.view.path_at(&at)?))) else { return Ok(()) };
        let change = Change::Make { ino, at, spec: Arc::new(spec.clone()) };
        let origin = self.origin(&Cx::internal(), st, &change);
        let lsn = self.log.append_event(&[Record::Make { path: path.into(), ino, spec }], origin)?;
        st.aside.take_up(ino, lsn);
        if let Some(node) = st.view.get_mut(ino) {
            node.set_meta_lsn(lsn);
        }
        st.queue.stamp(origin.stamps.map(|stamps| (lsn, stamps)));
        st.push(lsn, self.uptime(), origin.by, change);
        Ok(())
    }

    /// A set-aside file has become an event, `lsn`, under its first name. Its other names get events of their own.
    pub(crate) fn take_up(&self, cx: &Cx, st: &mut EngineState, ino: Ino, lsn: Lsn) -> Result<()> {
        if !st.aside.take_up(ino, lsn) {
            return Ok(());
        }
        let links = st.view.get(ino).map(|node| node.links.to_vec()).unwrap_or_default();
        for at in links.iter().skip(1) {
            let (Some(path), Some(to)) = (st.view.path(ino), st.view.path_at(at)) else { continue };
            if let Some(there) = st.slot(at).and_then(|slot| slot.slow()) {
                let record = Record::Remove { path: to.clone().into(), ino: there, dir: false };
                self.log_event_anyway(cx, st, record, Change::Remove { ino: there, at: at.clone() }, |_, _| ())?;
            }
            let change = Change::Link { ino, at: at.clone() };
            let slow = st.known_on_slow(ino);
            let record = Record::Link { path: path.into(), to: to.into(), ino, slow };
            self.log_event_anyway(cx, st, record, change, |_, _| ())?;
        }
        Ok(())
    }
}

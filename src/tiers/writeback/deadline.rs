//! Deadlines: what the drain skips while a deadline is set, and saving the newest checkpoint beside the user's tree.
//!
//! The slow tree is a prefix of what happened (P1), even if not everything arrives in time. So a checkpoint whose turn
//! would come too late is copied to `<slow>/.dlio-fs/saved/HOST-TIME/`, as plain files under their paths, and nothing
//! of it is published before its turn. The directory has that name only when it is whole and durable; only the user
//! removes it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::tiers::checkpoints::index::CheckpointStatus;
use crate::tiers::disk::layout::dirs_above;
use crate::tiers::disk::layout::{OURS, ensure_dir};
use crate::tiers::disk::saved::{SAVED, host_and_time, make_dir, move_to};
use crate::tiers::disk::{Dir, Kind, WHOLE};
use crate::tiers::log::record::Spec;
use crate::tiers::objects::copy::copy_data;
use crate::tiers::objects::version::Content;
use crate::tiers::{Cx, Ino, Tiers};

/// A checkpoint that is not wholly on the slow tier.
#[derive(Clone, Debug)]
pub struct Unsaved {
    pub number: u64,
    /// From the root, escaped.
    pub path: String,
}

/// A checkpoint that was saved.
#[derive(Clone, Debug)]
pub struct Saved {
    /// From the slow tier's root; `path` is the checkpoint's own.
    pub place: String,
    pub path: String,
    pub files: u64,
    pub bytes: u64,
    /// Files of it that the slow tree had already.
    pub published: u64,
}

/// The progress of a save, and whether it is still wanted.
#[derive(Debug, Default)]
pub struct Saving {
    cancelled: AtomicBool,
    bytes: AtomicU64,
}

impl Saving {
    /// Ends the save at the next piece.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Bytes that have arrived.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn go_on(&self, more: u64) -> std::io::Result<()> {
        self.bytes.fetch_add(more, Ordering::Relaxed);
        match self.cancelled.load(Ordering::Relaxed) {
            true => Err(std::io::Error::other("the deadline came first")),
            false => Ok(()),
        }
    }
}

/// A node that is to be saved.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SaveTask {
    pub(crate) path: Vec<u8>,
    pub(crate) ino: Ino,
    pub(crate) what: SaveWhat,
}

#[derive(Clone)]
pub(crate) enum SaveWhat {
    Version(Arc<Content>),
    /// Not a regular file.
    Node(Spec),
}

impl PartialEq for SaveWhat {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (SaveWhat::Version(one), SaveWhat::Version(other)) => Arc::ptr_eq(one, other),
            (SaveWhat::Node(one), SaveWhat::Node(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for SaveWhat {}

impl SaveTask {
    pub(crate) fn version(&self) -> Option<&Arc<Content>> {
        match &self.what {
            SaveWhat::Version(content) => Some(content),
            SaveWhat::Node(_) => None,
        }
    }
}

impl Tiers {
    /// The newest complete checkpoint, unless it is on the slow tier.
    pub fn newest_unsaved(&self) -> Option<Unsaved> {
        let CheckpointStatus { number, path, safe, .. } =
            self.checkpoint_statuses().into_iter().find(|one| one.current)?;
        (!safe).then(|| Unsaved { number, path: format!("/{}", escape(&path)) })
    }

    /// Copies the files of a checkpoint that the slow tree lacks to a directory of its own there. Waits for the slow
    /// tier as long as that takes; `saving` can end it between two pieces.
    pub fn save_checkpoint(&self, unsaved: &Unsaved, saving: &Saving) -> Result<Saved> {
        self.drain_control.set_saving(true);
        let done = self.save(unsaved, saving);
        self.drain_control.set_saving(false);
        self.wake();
        done
    }

    fn save(&self, unsaved: &Unsaved, saving: &Saving) -> Result<Saved> {
        let (wanted, all) = self.to_save(unsaved.number);
        let place = self.save_all(&wanted, saving)?;
        Ok(Saved {
            place,
            path: unsaved.path.clone(),
            files: wanted.len() as u64,
            bytes: wanted.iter().filter_map(SaveTask::version).map(|content| content.size).sum(),
            published: all.saturating_sub(wanted.len() as u64),
        })
    }

    /// Saves nodes under their paths, in a directory of their own, which gets its name once all of them are durable.
    /// Returns its path from the slow tier's root.
    pub(crate) fn save_all(&self, wanted: &[SaveTask], saving: &Saving) -> Result<String> {
        let ours = ensure_dir(&*self.slow.root, OURS)?;
        let above = ensure_dir(&*ours, SAVED)?;
        let (name, part) = new_name(&*above)?;
        let place = above.dir(&part).at("open", "saved on the slow tier")?;
        for one in wanted {
            self.save_one(&place, one, saving)?;
        }
        let mut dirs: HashSet<&[u8]> = HashSet::from([&b""[..]]);
        for one in wanted {
            dirs.extend(dirs_above(&one.path));
        }
        for dir in dirs {
            walk(place.clone(), dir).and_then(|dir| dir.sync()).at("fsync", "saved on the slow tier")?;
        }
        saving.go_on(0).at("save", "on the slow tier")?;
        move_to(&*above, &part, &*above, &name).at("rename", "saved on the slow tier")?;
        above.sync().at("fsync", "saved on the slow tier")?;
        Ok(format!(".dlio-fs/saved/{}", escape(&name)))
    }

    /// The unpublished versions of a checkpoint, and its number of files.
    fn to_save(&self, number: u64) -> (Vec<SaveTask>, u64) {
        let st = self.state.lock();
        let newest = st.queue.newest_versions().map(|(ino, (_, content))| (ino, content.clone()));
        let of_it = newest.filter(|(_, content)| content.burst() == number);
        let task = |(ino, content)| Some(SaveTask { path: st.view.path(ino)?, ino, what: SaveWhat::Version(content) });
        let wanted = of_it.filter_map(task).collect();
        (wanted, st.checkpoints.ask(|index| index.files_of(number)))
    }

    fn save_one(&self, place: &Arc<dyn Dir>, one: &SaveTask, saving: &Saving) -> Result<()> {
        let shown = || format!("/{}", escape(&one.path));
        let (dirs, name) = crate::tiers::disk::layout::split(&one.path);
        let mut dir = place.clone();
        for name in dirs.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            dir = make_dir(&*dir, name).at("create", shown())?;
        }
        let made = match &one.what {
            SaveWhat::Version(content) => return self.save_version(&*dir, name, one, (content, saving)),
            SaveWhat::Node(Spec { kind: Kind::Dir, .. }) => make_dir(&*dir, name).map(drop),
            SaveWhat::Node(Spec { kind: Kind::Symlink, target, .. }) => dir.symlink(name, target),
            SaveWhat::Node(spec) => dir.mknod(name, spec.kind, spec.attrs.perm, spec.rdev),
        };
        made.at("create", shown())
    }

    /// Saves a file with the bytes and attributes of a version.
    fn save_version(
        &self,
        dir: &dyn Dir,
        name: &[u8],
        one: &SaveTask,
        (content, saving): (&Content, &Saving),
    ) -> Result<()> {
        let shown = || format!("/{}", escape(&one.path));
        let source = self.open_object(&Cx::internal(), content.object())?;
        let file = dir.create(name, 0o600).at("create", shown())?;
        let born = file.stat().at("stat", shown())?;
        let mut watch = |_, bytes: &[u8]| saving.go_on(bytes.len() as u64);
        copy_data(&*source, &*file, 0..content.size, &mut watch)
            .map_err(std::io::Error::from)
            .and_then(|()| file.set_len(content.size))
            .and_then(|()| self.slow.set_attrs(&*file, &born, &content.attrs()))
            .and_then(|_| file.sync())
            .at("save", shown())?;
        file.forget_cached(WHOLE);
        if self.is_as_it_was(one.ino, content) {
            return Ok(());
        }
        Err(Error::refused(format!("{} was overwritten while it was saved", shown()), "try it again"))
    }

    /// Takes the lock exclusively, so that no earlier write is still on its way.
    fn is_as_it_was(&self, ino: Ino, content: &Content) -> bool {
        let file = self.state.lock().known_file(ino);
        let _io = file.as_ref().map(|file| file.io.write());
        content.is_intact()
    }
}

/// A free name, and its temporary name while it is being made.
fn new_name(above: &dyn Dir) -> Result<(Vec<u8>, Vec<u8>)> {
    let suffix = host_and_time();
    for attempt in 0..1000 {
        let name = if attempt == 0 { suffix.clone() } else { format!("{suffix}-{attempt}") };
        let part = format!("{name}.part").into_bytes();
        let name = name.into_bytes();
        if crate::tiers::disk::errors::absent_is_none(above.stat(&name)).at("stat", "saved on the slow tier")?.is_some()
        {
            continue;
        }
        match above.mkdir(&part, 0o700) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.at("create", "saved on the slow tier").map(|()| (name, part)),
        }
    }
    Err(Error::refused(
        ".dlio-fs/saved on the slow tier has a thousand directories of this second",
        "remove those that are not needed",
    ))
}

fn walk(mut dir: Arc<dyn Dir>, path: &[u8]) -> std::io::Result<Arc<dyn Dir>> {
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        dir = dir.dir(name)?;
    }
    Ok(dir)
}

//! What makes a fast tier one, and says which slow tree it belongs to (P7): the layout, the super block, and the slow tree's `id`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::disk::{Access, Dir, RenameMode};
use crate::tiers::drain::remove_leftover;
use crate::tiers::names::OURS;
use crate::tiers::slow::absent_is_none;

/// The format of everything under `<fast>/.dlio-fs`.
pub(crate) const FORMAT: u32 = 2;

/// `<fast>/.dlio-fs/super`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Super {
    pub(crate) format: u32,
    /// This fast tier.
    pub(crate) uuid: String,
    /// The slow tree it belongs to, as in `<slow>/.dlio-fs/id`.
    pub(crate) slow: String,
    /// CRC-32 of the three above, in hexadecimal. Older ones have none.
    #[serde(default)]
    pub(crate) sum: Option<String>,
}

impl Super {
    fn new(uuid: String, slow: String) -> Self {
        let unsigned = Super { format: FORMAT, uuid, slow, sum: None };
        Super { sum: Some(unsigned.right_sum()), ..unsigned }
    }

    fn right_sum(&self) -> String {
        let Super { format, uuid, slow, .. } = self;
        format!("{:08x}", crc32fast::hash(format!("{format} {uuid} {slow}").as_bytes()))
    }
}

/// Objects that did not fit may lie in the `tmp` of a slow tier that was writable once. One that never was has none: then
/// an empty directory on the fast tier stands for it.
pub(crate) fn existing_tmp(ours: &dyn Dir, slow: &dyn Dir, identity: &Super) -> Result<Arc<dyn Dir>> {
    let below = |dir: Arc<dyn Dir>, name: &[u8]| dir.dir(name);
    let there = slow.dir(OURS).and_then(|dir| below(dir, b"tmp")).and_then(|dir| below(dir, identity.uuid.as_bytes()));
    match absent_is_none(there).at("open", "tmp on the slow tier")? {
        Some(tmp) => Ok(tmp),
        None => ensure_dir(ours, b"tmp"),
    }
}

pub(crate) fn ensure_dir(parent: &dyn Dir, name: &[u8]) -> Result<Arc<dyn Dir>> {
    let what = || String::from_utf8_lossy(name).into_owned();
    match parent.dir(name) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            parent.mkdir(name, 0o700).at("create", what())?;
            parent.sync().at("fsync", what())?;
            parent.dir(name).at("open", what())
        }
        other => other.at("open", what()),
    }
}

/// `super` and `id` are a few lines, `pins` some thousand.
pub(crate) const TEXT_MAX: u64 = 64 << 10;

/// In `super`: the slow tree could not be written when the fast tier was first used with it, and has no `id`.
pub(crate) const UNIDENTIFIED: &str = "read-only";

/// Step 1: whether these two belong together.
pub(crate) fn identify(ours: &dyn Dir, slow: &dyn Dir, writable: bool) -> Result<Super> {
    let slow_id = read_slow_id(slow)?;
    let Some(text) = read_text(ours, b"super")? else {
        let used = !ours.dir(b"log").and_then(|dir| dir.list()).at("list", "log")?.is_empty();
        if used {
            return Err(Error::refused(
                "the fast tier has a log but no .dlio-fs/super",
                "save its files with `dlio-fs rescue`, then use an empty fast tier",
            ));
        }
        return write_super(ours, uuid::Uuid::new_v4().to_string(), slow, slow_id, writable);
    };
    let identity = read_super(&text)?;
    if identity.sum.is_none() {
        write_whole_super(ours, &Super::new(identity.uuid.clone(), identity.slow.clone()))?;
    }
    if identity.slow == UNIDENTIFIED {
        // Nothing was ever written through a mount over such a tree, so nothing is owed to it.
        return write_super(ours, identity.uuid, slow, slow_id, writable);
    }
    match slow_id {
        None => Err(Error::refused(
            "the slow tier has no .dlio-fs/id, but this fast tier has been used with one that has",
            "is the slow tier not mounted? If its tree was moved on purpose, move .dlio-fs with it",
        )),
        Some(id) if id != identity.slow => Err(Error::refused(
            format!("the fast tier belongs to the slow tree {}, this one is {id}", identity.slow),
            "mount it with its own slow tier, or use an empty fast tier for this one",
        )),
        Some(_) => Ok(identity),
    }
}

/// The format is looked at first: of another one nothing else is known.
pub(crate) fn read_super(text: &str) -> Result<Super> {
    #[derive(Deserialize)]
    struct OnlyFormat {
        format: u32,
    }
    let unreadable = |e: toml::de::Error| {
        Error::refused(
            format!("the fast tier's .dlio-fs/super is not readable: {}", e.message()),
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        )
    };
    let OnlyFormat { format } = toml::from_str(text).map_err(unreadable)?;
    if format != FORMAT {
        let age = if format > FORMAT { "a newer" } else { "an older" };
        return Err(Error::refused(
            format!("the fast tier was written by {age} dlio-fs: it has format {format}, this one reads {FORMAT}"),
            "mount it with the version of dlio-fs that wrote it and drain it there",
        ));
    }
    let identity: Super = toml::from_str(text).map_err(unreadable)?;
    let sum = identity.right_sum();
    if identity.sum.as_ref().is_some_and(|written| *written != sum) || uuid::Uuid::try_parse(&identity.uuid).is_err() {
        return Err(Error::refused(
            "the fast tier's .dlio-fs/super is damaged: its checksum does not fit what it says",
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        ));
    }
    Ok(identity)
}

fn write_super(ours: &dyn Dir, uuid: String, slow: &dyn Dir, id: Option<String>, writable: bool) -> Result<Super> {
    let slow = match id {
        Some(id) => id,
        None if writable => write_slow_id(slow)?,
        None => UNIDENTIFIED.to_owned(),
    };
    let identity = Super::new(uuid, slow);
    write_whole_super(ours, &identity)?;
    Ok(identity)
}

fn write_whole_super(ours: &dyn Dir, identity: &Super) -> Result<()> {
    let text = toml::to_string(identity).map_err(|e| Error::refused(e.to_string(), "report this"))?;
    replace_text(ours, b"super", &text)
}

pub(crate) fn read_slow_id(slow: &dyn Dir) -> Result<Option<String>> {
    // The first that is wanted of a slow tier, so this is where a broken one shows.
    let unusable = |error: Error| match error.errno() {
        Errno::EIO => Error::refused(
            format!(".dlio-fs/id on the slow tier cannot be read: {error}"),
            "see the kernel log for its device; unmount its file system and mount it again",
        ),
        _ => error,
    };
    let ours = absent_is_none(slow.dir(OURS)).at("open", ".dlio-fs on the slow tier").map_err(unusable)?;
    let text = ours.map_or(Ok(None), |ours| read_text(&*ours, b"id").map_err(unusable))?;
    Ok(text.map(|text| text.trim().to_string()))
}

fn write_slow_id(slow: &dyn Dir) -> Result<String> {
    let ours = ensure_dir(slow, OURS)?;
    let id = uuid::Uuid::new_v4().to_string();
    replace_text(&*ours, b"id", &format!("{id}\n"))?;
    Ok(id)
}

pub(crate) fn read_text(dir: &dyn Dir, name: &[u8]) -> Result<Option<String>> {
    let what = || String::from_utf8_lossy(name).into_owned();
    let Some(file) = absent_is_none(dir.open(name, Access::Read)).at("open", what())? else { return Ok(None) };
    let len = file.stat().at("stat", what())?.size;
    let mut bytes = vec![0; len.min(TEXT_MAX) as usize];
    let got = file.read_at(&mut bytes, 0).at("read", what())?;
    bytes.truncate(got);
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Written beside, synced, renamed, synced: there is always one whole file.
pub(crate) fn replace_text(dir: &dyn Dir, name: &[u8], text: &str) -> Result<()> {
    let what = || String::from_utf8_lossy(name).into_owned();
    let beside = [name, b".new"].concat();
    remove_leftover(dir, &beside)?;
    let file = dir.create(&beside, 0o600).at("create", what())?;
    file.write_at(text.as_bytes(), 0).at("write", what())?;
    file.sync().at("fsync", what())?;
    dir.rename(&beside, dir, name, RenameMode::Replace).at("rename", what())?;
    dir.sync().at("fsync", what())
}

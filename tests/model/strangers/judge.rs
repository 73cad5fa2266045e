//! What must be true whoever did what: no content is lost but by who saw it, and none is torn.
//!
//! A content is a block of bytes that is written once, as a whole, and has a number in it. A file is a row of blocks.

use std::collections::{BTreeMap, BTreeSet};

use dlio_fs::path::escape;
use dlio_fs::tiers::disk::{Access, Dir, Kind};

use super::acts::Path;
use crate::sim::image::{Body, Image, Shown};

/// A killed write ends behind a whole one.
const PAGE: usize = 4096;

const BESIDE: &[u8] = b".dlio-conflict-";

pub type Check<T = ()> = Result<T, String>;

/// The number of a block; 0: a hole.
pub type Block = u32;

/// Who wrote a block that must still be there.
#[derive(Clone, Debug)]
struct Kept {
    whose: String,
    /// A power cut does not take it.
    durable: bool,
    theirs: bool,
}

/// What is known of who wrote and saw what.
#[derive(Default)]
pub struct Ledger {
    /// Bytes of a block.
    pub len: usize,
    pub written: Block,
    kept: BTreeMap<Block, Kept>,
    /// Names that programs have removed, moved or replaced since the last rest: the file that the slow tree still has there goes, whatever is
    /// written into it.
    left: BTreeSet<String>,
    /// How much programs have done to each name since then. The log says what the slow file was of the first of it only.
    acts: BTreeMap<String, u32>,
    /// A directory was moved since then: what is under which name on the slow tree is another question than what the view has there.
    moved: bool,
    /// What programs did since then that the engine does not keep apart from what he does at the same time: see [`Ledger::is_spared`].
    exchanged: bool,
    /// What somebody else wrote into the file of this name: it goes with the file, if a program removes or replaces that, as anywhere.
    inside: BTreeMap<String, Vec<Block>>,
    /// What he had under a name for which something of ours waited when the machine stopped. The start that follows takes it for what ours is to
    /// replace, if more than one change of the name waits, or comes (docs/SEMANTICS.md, P11).
    unsure: BTreeMap<String, Vec<Block>>,
    /// Files that he made, by their only block: owner and mode. No program that has not seen them has changed that.
    made: BTreeMap<Block, (u32, u32)>,
    /// The machine has stopped since then.
    stopped: bool,
    /// Blocks of files whose attributes he has changed since then.
    changed: BTreeSet<Block>,
    /// Written where they are on the slow tier: no order, and a power cut may take or tear them, as on any disk.
    pub in_place: BTreeSet<Block>,
    /// A power cut may have torn what was written in place.
    pub torn: bool,
    /// Whose write a stop may have cut off between two pages.
    cut: BTreeSet<Block>,
    /// He has not done anything yet.
    pub idle: bool,
}

impl Ledger {
    pub fn new(len: usize) -> Ledger {
        Ledger { len, idle: true, ..Ledger::default() }
    }

    /// What nobody wrote before.
    pub fn content(&mut self, by: &str, path: &str, theirs: bool) -> (Block, Vec<u8>) {
        self.written += 1;
        let whose = format!("{by} wrote block {} to {path}", self.written);
        self.kept.insert(self.written, Kept { whose, durable: theirs, theirs });
        (self.written, bytes(self.written, self.len))
    }

    pub fn release(&mut self, blocks: impl IntoIterator<Item = Block>) {
        for block in blocks {
            self.kept.remove(&block);
        }
    }

    /// A program has been told that a file with these blocks is there.
    pub fn keep_again(&mut self, blocks: &[Block], path: &str) {
        for &block in blocks.iter().filter(|&&block| block > 0) {
            let whose = format!("a program changed an attribute of {path} with block {block}");
            self.kept.entry(block).or_insert(Kept { whose, durable: false, theirs: false });
        }
    }

    /// A program changes the file or the directory of this name.
    pub fn act_on(&mut self, path: Path) {
        *self.acts.entry(path.to_owned()).or_default() += 1;
        let unsure = self.unsure.remove(path).into_iter().flatten();
        unsure.for_each(|block| drop(self.kept.remove(&block)));
    }

    /// The machine has stopped, and the slow tree is this.
    pub fn stop(&mut self, slow: &Image) {
        self.stopped = true;
        for (path, acts) in self.acts.clone() {
            let there = self.blocks_below(slow, &path);
            let theirs = there.into_iter().filter(|block| self.kept.get(block).is_some_and(|kept| kept.theirs));
            let theirs: Vec<Block> = theirs.collect();
            if acts > 1 {
                self.release(theirs);
            } else {
                self.unsure.insert(path, theirs);
            }
        }
    }

    /// A program removes, moves or replaces it, if it succeeds.
    pub fn leave(&mut self, path: Path) {
        self.act_on(path);
        self.left.insert(path.to_owned());
        let inside: Vec<Block> = self.inside.remove(path).into_iter().flatten().collect();
        self.release(inside);
    }

    pub fn move_dir(&mut self) {
        self.moved = true;
        let inside: Vec<Block> = std::mem::take(&mut self.inside).into_values().flatten().collect();
        self.release(inside);
    }

    pub fn are_kept(&self, blocks: &[Block]) -> bool {
        blocks.iter().all(|block| *block == 0 || self.kept.contains_key(block))
    }

    /// A known fault of the engine, which he does not provoke (docs/internals/next-steps.md, item 13): an exchange of what is in a directory that
    /// he replaces stays undone in one half.
    pub fn is_spared(&self) -> bool {
        self.exchanged
    }

    pub fn exchange(&mut self) {
        self.exchanged = true;
    }

    pub fn is_left(&self, path: Path) -> bool {
        let above = |left: &String| path.starts_with(&format!("{left}/"));
        self.moved || self.left.contains(path) || self.left.iter().any(above)
    }

    /// Whether a start cannot tell what has become of the slow file of this name.
    pub fn is_unsure(&self, path: Path) -> bool {
        self.is_left(path) || self.acts.get(path).is_some_and(|acts| *acts > 1)
    }

    pub fn acts(&self, path: Path) -> u32 {
        self.acts.get(path).copied().unwrap_or(0)
    }

    pub fn write_inside(&mut self, path: Path, block: Block) {
        self.inside.entry(path.to_owned()).or_default().push(block);
    }

    pub fn make(&mut self, block: Block, owner: u32, perm: u32) {
        self.made.insert(block, (owner, perm));
    }

    /// Whoever saw these has changed their attributes.
    pub fn touch(&mut self, blocks: &[Block]) {
        self.made.retain(|block, _| !blocks.contains(block));
    }

    /// He has changed the attributes of the file with these blocks.
    pub fn change_attributes(&mut self, blocks: &[Block]) {
        self.touch(blocks);
        self.changed.extend(blocks);
    }

    /// The tree without two kinds of attributes (docs/internals/next-steps.md, item 13): those that he has changed, if programs have done something
    /// since then, because behind a step of ours that moves the file they are not seen; and what was on its way behind a conflict when the machine
    /// stopped, because no start finds the file.
    pub fn without_known_faults(&self, image: &Image) -> Image {
        let numbers: BTreeMap<&Vec<u8>, u64> = image.paths().zip(0..).collect();
        Image::new(image.paths().map(|path| {
            let entry = image.get(path).expect("a path of it");
            let body = entry.shown.body();
            let blocks = self.blocks(&body.bytes).unwrap_or_default();
            let is_changed = !self.acts.is_empty() && blocks.iter().any(|block| self.changed.contains(block));
            let is_beside = path.windows(BESIDE.len()).any(|part| part == BESIDE);
            let plain = || Body { perm: 0, uid: 0, gid: 0, mtime: None, xattrs: BTreeMap::new(), ..body.clone() };
            let shown =
                if is_changed || (is_beside && self.stopped) { Shown::new(plain()) } else { entry.shown.clone() };
            (path.clone(), numbers[entry.same_as.as_ref().unwrap_or(path)], shown)
        }))
    }

    /// All but these is durable.
    pub fn synced(&mut self, but: &BTreeSet<Block>) {
        let in_place = &self.in_place;
        let synced = self.kept.iter_mut().filter(|(block, _)| !but.contains(block) && !in_place.contains(block));
        synced.for_each(|(_, kept)| kept.durable = true);
    }

    pub fn synced_in_place(&mut self, block: Block) {
        if let Some(kept) = self.kept.get_mut(&block) {
            kept.durable = true;
        }
    }

    /// The machine has stopped while a program wrote its last block.
    pub fn cut_off(&mut self) {
        self.cut.insert(self.written);
    }

    pub fn power_cut(&mut self) {
        self.kept.retain(|_, kept| kept.durable);
        self.torn |= !self.in_place.is_empty();
    }

    pub fn rested(&mut self) {
        self.left.clear();
        self.acts.clear();
        self.inside.clear();
        self.unsure.clear();
        self.in_place.clear();
        self.changed.clear();
        (self.moved, self.exchanged, self.stopped) = (false, false, false);
    }

    /// The blocks of a file, if it is made of such.
    pub fn blocks(&self, bytes: &[u8]) -> Option<Vec<Block>> {
        let block = |part: &[u8]| {
            if part.iter().all(|b| *b == 0) {
                return Some(0);
            }
            let number = std::str::from_utf8(part.get(..8)?).ok()?.parse().ok()?;
            let whole = self::bytes(number, self.len);
            let begins = || whole.starts_with(part) || part.get(..PAGE).is_some_and(|page| whole.starts_with(page));
            (whole == part || (self.cut.contains(&number) && begins())).then_some(number)
        };
        bytes.chunks(self.len).map(block).collect()
    }

    /// All blocks under a name.
    pub fn blocks_below(&self, image: &Image, path: &str) -> Vec<Block> {
        let is_below = |at: &&Vec<u8>| **at == path.as_bytes() || at.starts_with(format!("{path}/").as_bytes());
        let bodies = image.paths().filter(is_below).filter_map(|path| image.get(path));
        bodies.flat_map(|entry| self.blocks(&entry.shown.body().bytes).unwrap_or_default()).collect()
    }

    /// P5: no file is a part of what somebody wrote.
    pub fn none_is_torn(&self, slow: &Image) -> Check {
        if self.torn {
            return Ok(());
        }
        for path in slow.paths() {
            let body = slow.get(path).map(|entry| entry.shown.body()).expect("a path of it");
            if body.kind == Kind::File && self.blocks(&body.bytes).is_none() {
                return Err(format!("torn: {} is {body:?}", escape(path)));
            }
        }
        Ok(())
    }

    /// Each block is in one of the files, under whatever name.
    pub fn all_is_there(&self, slow: &Image, beside: &[Vec<u8>], of_programs_only: bool) -> Check {
        let bodies = slow.paths().filter_map(|path| slow.get(path)).map(|entry| &**entry.shown.body().bytes);
        let there: BTreeSet<Block> = bodies
            .chain(beside.iter().map(Vec::as_slice))
            .flat_map(|bytes| bytes.chunks(self.len).flat_map(|part| self.blocks(part)).flatten().collect::<Vec<_>>())
            .collect();
        let is_judged = |kept: &Kept| !(of_programs_only && kept.theirs);
        match self.kept.iter().find(|(block, kept)| is_judged(kept) && !there.contains(block)) {
            None => Ok(()),
            Some((_, kept)) => Err(format!("lost: {}\n{slow:?}", kept.whose)),
        }
    }

    /// Nobody's file got what was meant for another one.
    pub fn attributes_are_his(&self, slow: &Image) -> Check {
        for path in slow.paths() {
            let body: &Body = slow.get(path).map(|entry| entry.shown.body()).expect("a path of it");
            let blocks = self.blocks(&body.bytes).unwrap_or_default();
            let Some(&(owner, perm)) =
                blocks.first().filter(|_| blocks.len() == 1).and_then(|block| self.made.get(block))
            else {
                continue;
            };
            if (body.uid, body.perm, body.xattrs.len()) != (owner, perm, 0) {
                return Err(format!("nobody changed his {}, made as {owner} {perm:o}: {body:?}", escape(path)));
            }
        }
        Ok(())
    }
}

fn bytes(block: Block, len: usize) -> Vec<u8> {
    format!("{block:08}-").into_bytes().into_iter().cycle().take(len).collect()
}

/// The bytes of all files below a directory.
pub fn files_below(dir: &dyn Dir, found: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    for entry in dir.list()? {
        match entry.kind {
            Kind::Dir => files_below(&*dir.dir(&entry.name)?, found)?,
            Kind::File => {
                let file = dir.open(&entry.name, Access::Read)?;
                let mut bytes = vec![0; file.stat()?.size as usize];
                let n = file.read_at(&mut bytes, 0)?;
                bytes.truncate(n);
                found.push(bytes);
            }
            _ => {}
        }
    }
    Ok(())
}

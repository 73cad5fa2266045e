//! A file's bytes in blocks, with every version that a power cut might leave behind.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rand::{Rng, RngExt};

pub const BLOCK: u64 = 4096;

pub type Block = Arc<[u8]>;

/// The newest versions of a block that are kept for a power cut to choose from.
const VERSIONS: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct Bytes {
    size: u64,
    blocks: BTreeMap<u64, Block>,
    /// Blocks that are allocated and not written; they read as zeros. Sorted, apart from each other and from `blocks`.
    reserved: Vec<Range<u64>>,
    /// Sizes the file had since it was last synced, and what its blocks held (`None`: no bytes).
    past_sizes: Vec<u64>,
    past_blocks: BTreeMap<u64, Vec<Option<Block>>>,
}

impl Bytes {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Allocated blocks.
    pub fn allocated(&self) -> u64 {
        self.blocks.len() as u64 + self.reserved.iter().map(|r| r.end - r.start).sum::<u64>()
    }

    /// Blocks that a write or allocation of this range would still have to allocate.
    pub fn missing(&self, offset: u64, len: u64) -> u64 {
        let range = indices(offset, len);
        let overlap = |r: &Range<u64>| r.end.min(range.end).saturating_sub(r.start.max(range.start));
        let reserved: u64 = self.reserved.iter().map(overlap).sum();
        range.end - range.start - self.blocks.range(range.clone()).count() as u64 - reserved
    }

    pub fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64);
        for i in indices(offset, len) {
            let (from, to) = (offset.max(i * BLOCK), (offset + len).min((i + 1) * BLOCK));
            let into = &mut buf[(from - offset) as usize..(to - offset) as usize];
            match self.blocks.get(&i) {
                Some(block) => into.copy_from_slice(&block[(from % BLOCK) as usize..][..into.len()]),
                None => into.fill(0),
            }
        }
        len as usize
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0; self.size as usize];
        self.read(&mut all, 0);
        all
    }

    pub fn write(&mut self, bytes: &[u8], offset: u64) {
        self.fill(offset, bytes.len() as u64, |block, at, pos, len| {
            block[at..at + len].copy_from_slice(&bytes[pos..pos + len]);
        });
        self.resize(self.size.max(offset + bytes.len() as u64));
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.size {
            let keep = len.div_ceil(BLOCK);
            let gone: Vec<u64> = self.blocks.range(keep..).map(|(&i, _)| i).collect();
            gone.into_iter().for_each(|i| self.put(i, None));
            self.unreserve(keep..u64::MAX);
            self.zero(len, keep * BLOCK - len);
        } else if len == self.size {
            // As ext4 and xfs do: what is allocated behind the end goes.
            self.unreserve(len.div_ceil(BLOCK)..u64::MAX);
        }
        self.resize(len);
    }

    pub fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) {
        self.reserve(indices(offset, len));
        if !keep_size {
            self.resize(self.size.max(offset + len));
        }
    }

    /// Whole blocks become holes; the rest of the range becomes zeros.
    pub fn punch(&mut self, offset: u64, len: u64) {
        let (first, last) = (offset.div_ceil(BLOCK), (offset + len) / BLOCK);
        if first > last {
            return self.zero(offset, len);
        }
        self.zero(offset, first * BLOCK - offset);
        self.zero(last * BLOCK, offset + len - last * BLOCK);
        self.unreserve(first..last);
        let gone: Vec<u64> = self.blocks.range(first..last).map(|(&i, _)| i).collect();
        gone.into_iter().for_each(|i| self.put(i, None));
    }

    /// The next offset with data (or without) at or after `offset`; `None` at or beyond the end of the file.
    pub fn seek(&self, data: bool, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        if data {
            let found = self.blocks.range(offset / BLOCK..).next().map(|(i, _)| offset.max(i * BLOCK));
            return found.filter(|at| *at < self.size);
        }
        let mut end = offset / BLOCK;
        for (i, _) in self.blocks.range(end..) {
            if *i > end {
                break;
            }
            end += 1;
        }
        Some(offset.max(end * BLOCK).min(self.size))
    }

    /// Everything is on the disk now: nothing of the past can come back.
    pub fn synced(&mut self) {
        self.past_sizes.clear();
        self.past_blocks.clear();
    }

    /// What a power cut leaves: each block written since the last sync as it was at any moment since, any size that the
    /// file had or passed through, zeros where a block did not arrive.
    pub fn torn(&self, durable: &Bytes, rng: &mut impl Rng) -> Bytes {
        let mut torn = Bytes { size: durable.size, blocks: durable.blocks.clone(), ..Bytes::default() };
        self.reserved.iter().for_each(|r| torn.reserve(r.clone()));
        for (&i, versions) in &self.past_blocks {
            let pick = rng.random_range(0..=versions.len());
            match versions.get(pick) {
                None => {}
                Some(block) => torn.put(i, block.clone()),
            }
        }
        if let (Some(&low), Some(&high)) = (self.past_sizes.iter().min(), self.past_sizes.iter().max()) {
            let sizes = &self.past_sizes;
            torn.size = match rng.random_range(0..4) {
                0 => durable.size,
                1 => rng.random_range(low.min(durable.size)..=high.max(durable.size)),
                _ => sizes[rng.random_range(0..sizes.len())],
            };
        }
        let size = torn.size;
        torn.size = u64::MAX;
        torn.set_len(size);
        torn.synced();
        torn
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let written: Vec<(u64, u64)> = indices(offset, len)
            .filter(|i| self.blocks.contains_key(i))
            .map(|i| (offset.max(i * BLOCK), (offset + len).min((i + 1) * BLOCK)))
            .collect();
        for (from, to) in written {
            self.fill(from, to - from, |block, at, _, len| block[at..at + len].fill(0));
        }
    }

    /// Calls `change(block, offset in the block, offset in the range, length)` for each block of a range.
    fn fill(&mut self, offset: u64, len: u64, mut change: impl FnMut(&mut [u8], usize, usize, usize)) {
        for i in indices(offset, len) {
            let (from, to) = (offset.max(i * BLOCK), (offset + len).min((i + 1) * BLOCK));
            let mut block = match self.blocks.get(&i) {
                Some(block) => block.to_vec(),
                None => vec![0; BLOCK as usize],
            };
            change(&mut block, (from % BLOCK) as usize, (from - offset) as usize, (to - from) as usize);
            self.put(i, Some(block.into()));
        }
    }

    fn put(&mut self, i: u64, block: Option<Block>) {
        match &block {
            Some(block) => {
                self.unreserve(i..i + 1);
                self.blocks.insert(i, block.clone());
            }
            None => drop(self.blocks.remove(&i)),
        }
        let versions = self.past_blocks.entry(i).or_default();
        if versions.len() == VERSIONS {
            versions.remove(0);
        }
        versions.push(block);
    }

    fn reserve(&mut self, range: Range<u64>) {
        self.unreserve(range.clone());
        let mut from = range.start;
        for &written in self.blocks.range(range.clone()).map(|(i, _)| i) {
            self.reserved.push(from..written);
            from = written + 1;
        }
        self.reserved.push(from..range.end);
        self.reserved.retain(|r| !r.is_empty());
        self.reserved.sort_by_key(|r| r.start);
    }

    fn unreserve(&mut self, range: Range<u64>) {
        let around = |r: &Range<u64>| [r.start..r.end.min(range.start), r.start.max(range.end)..r.end];
        self.reserved = self.reserved.iter().flat_map(around).filter(|r| !r.is_empty()).collect();
    }

    fn resize(&mut self, size: u64) {
        if self.size != size {
            self.size = size;
            self.past_sizes.push(size);
        }
    }
}

fn indices(offset: u64, len: u64) -> Range<u64> {
    if len == 0 { 0..0 } else { offset / BLOCK..(offset + len).div_ceil(BLOCK) }
}

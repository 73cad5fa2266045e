//! The records of many files at rest: packed, in bounded memory. Pure.
//!
//! The counters of a file come in pieces ([`Catalog::add`]); each is merged into its record. Past the limit no new file
//! gets its own record: the counters of further files go to one record for each class of them, and the report says so.
//! A class is a file name extension.

use std::collections::HashMap;
use std::ops::Range;

use parking_lot::Mutex;

use super::record::{FileRecord, read_number, write_number};
use crate::path::DirNumbers;

/// The number of parts, each with its own lock, which is taken for one merge at a time.
const SHARDS: usize = 16;
/// How many files with consecutive numbers share a page. The engine numbers files in the order in which it meets them,
/// so pages are usually full.
const PAGE: u64 = 64;
/// How many classes of files there are beyond the limit, besides one for all others.
const CLASSES_MAX: usize = 64;
/// The overhead of a page besides its bytes: its slot in a table that is usually three quarters full, and the
/// allocator's share.
const PAGE_ITSELF: usize = 80;
/// The same for a directory, besides its name, which is stored twice.
const DIRECTORY_ITSELF: usize = 112;
/// The number of the mount's root among the directories; 0 is none.
const ROOT: u64 = 1;

/// Records by inode number.
#[derive(Debug)]
pub struct Catalog {
    shards: [Mutex<CatalogShard>; SHARDS],
    directories: Mutex<Directories>,
    /// Bytes that one shard may take, with its share of the directories.
    limit: usize,
    /// All files without their own record, by class.
    rest: Mutex<Rest>,
}

#[derive(Debug, Default)]
struct CatalogShard {
    pages: HashMap<u64, CatalogPage>,
    files: usize,
    bytes: usize,
    /// A scratch buffer for packing.
    spare: Vec<u8>,
}

/// The entries of [`PAGE`] files, one after another, each preceded by its length. See [`CatalogEntry`].
#[derive(Debug, Default)]
struct CatalogPage {
    /// A bit for each file that has an entry.
    present: u64,
    bytes: Vec<u8>,
}

/// Directories, each stored once for all that is in it: a path may be as long as a tree is deep.
#[derive(Debug, Default)]
struct Directories {
    numbers: DirNumbers,
    /// The number of the directory above, and the name; those behind the root, in the order of their numbers.
    names: Vec<(u64, Box<str>)>,
    bytes: usize,
}

/// The path under which a file was first seen.
#[derive(Debug)]
pub struct FirstPath {
    /// 0 if there was no room for it.
    directory: u64,
    name: Box<str>,
}

#[derive(Debug, Default)]
struct Rest {
    classes: HashMap<Box<str>, FileRecord>,
    /// The number of pieces: a file that comes twice counts twice.
    pieces: u64,
}

/// The parsed bytes of an entry: the number of its directory, 0 for no path; the length of its name; the name; the
/// record.
struct CatalogEntry<'a> {
    directory: u64,
    name: &'a str,
    record: &'a [u8],
}

/// How much a catalog holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CatalogExtent {
    pub files: usize,
    /// The approximate memory they take.
    pub bytes: usize,
    pub limit_bytes: usize,
    /// How many pieces were counted for files without their own record.
    pub unnamed: u64,
}

impl Catalog {
    /// A catalog that takes at most about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Catalog {
            shards: std::array::from_fn(|_| Mutex::default()),
            directories: Mutex::default(),
            limit: limit / SHARDS,
            rest: Mutex::default(),
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<CatalogShard> {
        &self.shards[(ino / PAGE) as usize % SHARDS]
    }

    /// Merges the counters of a file since its last piece. `path` is used with the first one.
    pub fn add(&self, ino: u64, path: Option<&FirstPath>, piece: &FileRecord) {
        let mut shard = self.shard(ino).lock();
        let CatalogShard { pages, files, bytes, spare } = &mut *shard;
        let found = pages.get(&(ino / PAGE)).map(|page| page.find(ino)).filter(|place| !place.is_empty());
        spare.clear();
        if found.is_none() && *bytes + self.directories.lock().bytes / SHARDS >= self.limit {
            drop(shard);
            self.rest.lock().add(class_of(path.map(|path| &*path.name)), piece);
            return;
        }
        let page = pages.entry(ino / PAGE).or_insert_with(|| {
            *bytes += PAGE_ITSELF;
            CatalogPage::default()
        });
        if let Some(place) = found {
            let before = CatalogPage::entry(&page.bytes[place.clone()]);
            let entry = CatalogEntry::read(before);
            spare.extend_from_slice(&before[..before.len() - entry.record.len()]);
            let mut whole = entry.unpacked().unwrap_or_default();
            whole.add(piece);
            whole.pack(spare);
        } else {
            *files += 1;
            let (directory, name) = path.map_or((0, ""), |path| (path.directory, &path.name));
            write_number(spare, directory);
            write_number(spare, name.len() as u64);
            spare.extend_from_slice(name.as_bytes());
            piece.pack(spare);
        }
        let before = page.bytes.capacity();
        page.put(ino, spare);
        *bytes = *bytes + page.bytes.capacity() - before;
    }

    /// A path for [`Catalog::add`].
    pub fn first(&self, path: &str) -> FirstPath {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = self.directories.lock().number(directory, self.limit * SHARDS);
        FirstPath { directory: directory.unwrap_or(0), name: name.into() }
    }

    /// The whole path, if there was room for it.
    pub fn whole(&self, path: &FirstPath) -> Option<String> {
        self.directories.lock().path(path.directory, &path.name)
    }

    /// The counters of a file so far.
    pub fn get(&self, ino: u64) -> Option<FileRecord> {
        let shard = self.shard(ino).lock();
        let page = shard.pages.get(&(ino / PAGE))?;
        let place = page.find(ino);
        if place.is_empty() { None } else { CatalogEntry::read(CatalogPage::entry(&page.bytes[place])).unpacked() }
    }

    /// The path under which a file was first seen.
    pub fn path(&self, ino: u64) -> Option<String> {
        let shard = self.shard(ino).lock();
        let page = shard.pages.get(&(ino / PAGE))?;
        let place = page.find(ino);
        if place.is_empty() { None } else { self.path_of(&CatalogEntry::read(CatalogPage::entry(&page.bytes[place]))) }
    }

    fn path_of(&self, entry: &CatalogEntry<'_>) -> Option<String> {
        self.directories.lock().path(entry.directory, entry.name)
    }

    /// Passes all files to `look`: number, the path under which it was first seen, record. A part of the table is
    /// copied at a time.
    pub fn for_each(&self, mut look: impl FnMut(u64, Option<&str>, FileRecord)) {
        for shard in &self.shards {
            let pages: Vec<(u64, u64, Vec<u8>)> = {
                let shard = shard.lock();
                shard.pages.iter().map(|(number, page)| (*number, page.present, page.bytes.clone())).collect()
            };
            for (number, present, bytes) in pages {
                let mut bytes = &*bytes;
                for slot in (0..PAGE).filter(|slot| present >> slot & 1 != 0) {
                    let entry = CatalogEntry::read(split_entry(&mut bytes));
                    let path = self.path_of(&entry);
                    if let Some(record) = entry.unpacked() {
                        look(number * PAGE + slot, path.as_deref(), record);
                    }
                }
            }
        }
    }

    /// The counters of files without their own record, by class (`*.jpg`), in order.
    pub fn rest(&self) -> Vec<(String, FileRecord)> {
        let mut classes: Vec<_> =
            self.rest.lock().classes.iter().map(|(class, record)| (class.to_string(), record.clone())).collect();
        classes.sort_by(|a, b| a.0.cmp(&b.0));
        classes
    }

    pub fn extent(&self) -> CatalogExtent {
        let unnamed = self.rest.lock().pieces;
        let bytes = self.directories.lock().bytes;
        let mut extent = CatalogExtent { bytes, limit_bytes: self.limit * SHARDS, unnamed, ..CatalogExtent::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            extent.files += shard.files;
            extent.bytes += shard.bytes;
        }
        extent
    }
}

impl Rest {
    fn add(&mut self, class: String, piece: &FileRecord) {
        let full = self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(&*class);
        let class = if full { class_of(None) } else { class };
        self.classes.entry(class.into()).or_default().add(piece);
        self.pieces += 1;
    }
}

/// A file's class, as `*.jpg`; `*` without an extension or with an unusual one.
fn class_of(name: Option<&str>) -> String {
    let name = name.unwrap_or_default();
    let plain = |ending: &&str| (1..=15).contains(&ending.len()) && ending.bytes().all(|b| b.is_ascii_alphanumeric());
    match name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, ending)| ending).filter(plain) {
        Some(ending) => format!("*.{ending}"),
        None => "*".to_owned(),
    }
}

/// Takes an entry off the front.
fn split_entry<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let len = read_number(bytes).expect("written by this file") as usize;
    bytes.split_off(..len).expect("written by this file")
}

impl CatalogPage {
    /// Where a file's entry is, with its length; an empty range if it has none yet.
    fn find(&self, ino: u64) -> Range<usize> {
        let slot = ino % PAGE;
        let before = (self.present & ((1 << slot) - 1)).count_ones();
        let mut bytes = &*self.bytes;
        for _ in 0..before {
            split_entry(&mut bytes);
        }
        let from = self.bytes.len() - bytes.len();
        if self.present >> slot & 1 != 0 {
            split_entry(&mut bytes);
        }
        from..self.bytes.len() - bytes.len()
    }

    /// An entry without its length.
    fn entry(mut place: &[u8]) -> &[u8] {
        split_entry(&mut place)
    }

    fn put(&mut self, ino: u64, entry: &[u8]) {
        let place = self.find(ino);
        let mut len = Vec::with_capacity(10);
        write_number(&mut len, entry.len() as u64);
        // Reserve room for a few more, without doubling the size.
        let more = (len.len() + entry.len()).saturating_sub(place.len());
        if self.bytes.capacity() - self.bytes.len() < more {
            self.bytes.reserve_exact(more + self.bytes.len() / 16);
        }
        self.bytes.splice(place, len.iter().chain(entry).copied());
        self.present |= 1 << (ino % PAGE);
    }
}

impl Directories {
    /// The number of a directory; `None` if it is new and they take `limit` bytes already.
    fn number(&mut self, path: &str, limit: usize) -> Option<u64> {
        let mut number = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            number = match self.numbers.get(number, name.as_bytes()) {
                Some(number) => number,
                None if self.bytes >= limit => return None,
                None => self.add(number, name),
            };
        }
        Some(number)
    }

    fn add(&mut self, above: u64, name: &str) -> u64 {
        self.names.push((above, name.into()));
        self.bytes += 2 * name.len() + DIRECTORY_ITSELF;
        let number = ROOT + self.names.len() as u64;
        self.numbers.insert(above, name.as_bytes(), number);
        number
    }

    /// The path of a name in a directory; `None` without a directory.
    fn path(&self, directory: u64, name: &str) -> Option<String> {
        let (mut names, mut at) = (vec![name], directory);
        while at > ROOT {
            let (above, name) = self.names.get((at - ROOT - 1) as usize)?;
            names.push(name);
            at = *above;
        }
        names.push("");
        names.reverse();
        (at == ROOT).then(|| names.join("/"))
    }
}

impl<'a> CatalogEntry<'a> {
    /// Parses bytes that `add` has written.
    fn read(mut bytes: &'a [u8]) -> Self {
        let mut number = || read_number(&mut bytes).expect("written by this file") as usize;
        let (directory, len) = (number() as u64, number());
        let (name, record) = bytes.split_at(len);
        CatalogEntry { directory, name: std::str::from_utf8(name).expect("taken from a str"), record }
    }

    fn unpacked(&self) -> Option<FileRecord> {
        FileRecord::unpack(&mut { self.record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::record::Field;

    fn piece(bytes: u64) -> FileRecord {
        let mut record = FileRecord::default();
        record.opened_by(bytes, Some(0o640));
        record
    }

    fn add(catalog: &Catalog, ino: u64, path: Option<&str>, piece: &FileRecord) {
        catalog.add(ino, path.map(|path| catalog.first(path)).as_ref(), piece);
    }

    #[test]
    fn a_file_keeps_the_path_of_its_first_piece() {
        let catalog = Catalog::new(1 << 20);
        let inos = [0, 1, 63, 64, 5000, 7];
        let paths = [Some("/a/b"), Some("/a/c"), Some("/top"), Some("bare"), None, Some("/")];
        // Later files come before, between and after those that are there.
        inos.into_iter().zip(paths).for_each(|(ino, path)| add(&catalog, ino, path, &piece(1)));
        inos.into_iter().for_each(|ino| add(&catalog, ino, Some("/later"), &piece(1 << 40)));
        let mut found = Vec::new();
        catalog.for_each(|ino, path, record| found.push((ino, path.map(str::to_owned), record.processes.total())));
        found.sort();
        found.sort_by_key(|(ino, ..)| inos.iter().position(|one| one == ino));
        let wanted = [Some("/a/b"), Some("/a/c"), Some("/top"), Some("/bare"), None, Some("/")];
        let wanted: Vec<_> =
            inos.into_iter().zip(wanted).map(|(ino, path)| (ino, path.map(str::to_owned), 2)).collect();
        assert_eq!(found, wanted);
        assert_eq!(catalog.get(64).map(|record| record.get(Field::Mode)), Some(0o641));
        assert_eq!((catalog.get(2), catalog.get(77)), (None, None));
    }

    /// In any order, the catalog holds what a plain map would.
    #[test]
    fn it_holds_what_a_map_would() {
        use rand::rngs::SmallRng;
        use rand::{RngExt, SeedableRng};
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let (catalog, mut map) = (Catalog::new(1 << 30), std::collections::BTreeMap::<u64, u64>::new());
            let path = catalog.first("/d/name");
            for _ in 0..2_000 {
                let (ino, times) =
                    (random.random_range(0..300) * random.random_range(1..20), random.random_range(1..40));
                (0..times).for_each(|_| catalog.add(ino, Some(&path), &piece(random.random::<u64>() >> 20)));
                *map.entry(ino).or_default() += times;
            }
            let mut found = Vec::new();
            catalog.for_each(|ino, path, record| found.push((ino, path == Some("/d/name"), record.get(Field::Mode))));
            found.sort();
            assert_eq!(found, map.keys().map(|ino| (*ino, true, 0o641)).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(catalog.extent().files, map.len());
        }
    }

    #[test]
    fn a_directory_for_each_file_is_in_the_limit() {
        let catalog = Catalog::new(64 * 1024);
        let path = |ino: u64| format!("/{ino}{}/f", "d".repeat(500));
        (0..10_000).for_each(|ino| add(&catalog, ino, Some(&path(ino)), &piece(1)));
        assert!((10..100).contains(&catalog.extent().files), "{:?}", catalog.extent());
    }

    /// Each file had its whole path: 436 files in 1,000 nested directories took hundreds of megabytes.
    #[test]
    fn a_deep_tree_takes_no_more_than_its_names() {
        let catalog = Catalog::new(8 << 20);
        let path = |depth: usize| format!("{}/f", "/%FF".repeat(depth));
        (1..1000).for_each(|depth| add(&catalog, depth as u64, Some(&path(depth)), &piece(1)));
        assert!(catalog.extent().files == 999 && catalog.extent().bytes < 1 << 20, "{:?}", catalog.extent());
        assert_eq!(catalog.path(900), Some(path(900)));
        // As little of one that is beyond all limits.
        (1000..100_000).step_by(1000).for_each(|depth| add(&catalog, depth as u64, Some(&path(depth)), &piece(1)));
        let extent = catalog.extent();
        assert!(extent.bytes < 9 << 20 && extent.unnamed > 0, "{extent:?}");
    }

    #[test]
    fn beyond_the_limit_files_are_counted_by_what_their_names_end_in() {
        let catalog = Catalog::new(0);
        for (ino, path) in ["/a.jpg", "/d.e/b.jpg", "/c.tar.gz", "/.hidden", "/d.e/plain", "/x.", "/y.strange ending"]
            .iter()
            .enumerate()
        {
            add(&catalog, ino as u64, Some(path), &piece(1));
        }
        add(&catalog, 99, None, &piece(1));
        let told: Vec<_> =
            catalog.rest().into_iter().map(|(class, record)| (class, record.processes.total())).collect();
        assert_eq!(told, [("*".to_owned(), 5), ("*.gz".to_owned(), 1), ("*.jpg".to_owned(), 2)]);
        (0..1000).for_each(|n| add(&catalog, n, Some(&format!("/f.{n}")), &piece(1)));
        assert_eq!(catalog.rest().len(), CLASSES_MAX);
        assert_eq!(catalog.rest().iter().map(|(_, record)| record.processes.total()).sum::<u64>(), 1008);
    }

    #[test]
    fn the_limit_holds_and_those_that_are_in_go_on() {
        let catalog = Catalog::new(16 * 1024);
        (0..10_000).for_each(|ino| add(&catalog, ino, Some("/d/name"), &piece(1)));
        let full = catalog.extent();
        assert!(full.files > 100 && full.bytes < 16 * 1024 + SHARDS * 200, "{full:?}");
        let [(class, rest)] = &catalog.rest()[..] else { panic!("one class") };
        assert_eq!(
            (full.files as u64 + full.unnamed, class.as_str(), rest.processes.total()),
            (10_000, "*", full.unnamed)
        );
        add(&catalog, 0, None, &piece(1));
        assert_eq!(catalog.get(0).map(|record| record.processes.total()), Some(2));
        assert_eq!(catalog.extent().unnamed, full.unnamed);
    }
}

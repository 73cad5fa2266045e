//! The byte layout of a log of Darshan 3.4 and 3.5: a header, then regions that are compressed separately. Pure.
//!
//! The header says where each region is, so all of them are compressed in memory before it is written. That is about a
//! hundred bytes for a file and ten for a traced call, and the document may go to a pipe.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// The version of the format.
const VERSION: &str = "3.41";
const MAGIC: i64 = 6_567_223;
/// Bytes of the header.
const HEADER: usize = 1328;
/// Modules that the header has room for.
const MODULES: usize = 64;
/// Offsets in the header.
const PARTIAL_AT: usize = 24;
const NAMES_AT: usize = 32;
const MODULES_AT: usize = 48;
const VERSIONS_AT: usize = MODULES_AT + 16 * MODULES;

/// The modules for files and calls, in their order in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Module {
    Posix = 1,
    Dxt = 10,
    Heat = 15,
}

impl Module {
    /// The version of its records. Readers refuse a later one: PyDarshan 3.5 does not know DXT's second.
    fn version(self) -> u32 {
        match self {
            Module::Posix => 4,
            Module::Dxt | Module::Heat => 1,
        }
    }
}

/// The regions of a log, compressed.
#[derive(Debug, Default)]
pub(super) struct DarshanLog {
    pub(super) job: Vec<u8>,
    pub(super) names: Vec<u8>,
    /// In ascending order.
    pub(super) modules: Vec<(Module, Vec<u8>)>,
    /// Incomplete modules.
    pub(super) partial: Vec<Module>,
}

/// Compresses what is written to it into a region.
pub(super) fn region(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::fast());
    write(&mut out)?;
    out.finish()
}

impl DarshanLog {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.header())?;
        out.write_all(&self.job)?;
        out.write_all(&self.names)?;
        self.modules.iter().try_for_each(|(_, bytes)| out.write_all(bytes))
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
        let mut put = |at: usize, number: u64| header[at..at + 8].copy_from_slice(&number.to_le_bytes());
        put(8, MAGIC as u64);
        // After it comes a byte that is 0: zlib.
        put(PARTIAL_AT, self.partial.iter().fold(0, |bits, module| bits | 1 << *module as u64));
        let mut end = (HEADER + self.job.len()) as u64;
        let mut place = |at: usize, len: usize| {
            put(at, end);
            put(at + 8, len as u64);
            end += len as u64;
        };
        place(NAMES_AT, self.names.len());
        self.modules.iter().for_each(|(module, bytes)| place(MODULES_AT + 16 * *module as usize, bytes.len()));
        for (module, _) in &self.modules {
            let at = VERSIONS_AT + 4 * *module as usize;
            header[at..at + 4].copy_from_slice(&module.version().to_le_bytes());
        }
        header
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    /// What a reader finds in a log: the regions' bytes, and which modules are incomplete.
    pub(in super::super) struct Found {
        pub(in super::super) job: Vec<u8>,
        pub(in super::super) names: Vec<u8>,
        pub(in super::super) modules: BTreeMap<usize, Vec<u8>>,
        pub(in super::super) partial: u64,
    }

    /// Reads a log according to its header, and checks that the regions follow each other up to its end.
    pub(in super::super) fn found(log: &[u8]) -> Found {
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| log[at + n]));
        assert_eq!((&log[..8], eight(8) as i64, log[16]), (&b"3.41\0\0\0\0"[..], MAGIC, 0));
        let place = |at: usize| (eight(at) as usize, eight(at + 8) as usize);
        let open = |(at, len): (usize, usize)| {
            let mut bytes = Vec::new();
            flate2::read::ZlibDecoder::new(&log[at..at + len]).read_to_end(&mut bytes).expect("a region");
            bytes
        };
        let names = place(NAMES_AT);
        let mut end = names.0 + names.1;
        let mut modules = BTreeMap::new();
        for id in 0..MODULES {
            let (at, len) = place(MODULES_AT + 16 * id);
            let version = u32::from_le_bytes(std::array::from_fn(|n| log[VERSIONS_AT + 4 * id + n]));
            assert_eq!(len > 0, version > 0, "module {id}");
            if len > 0 {
                assert_eq!(at, end, "module {id} lies behind the one before");
                end += len;
                modules.insert(id, open((at, len)));
            }
        }
        assert_eq!(end, log.len(), "the regions add up to the log");
        Found { job: open((HEADER, names.0 - HEADER)), names: open(names), modules, partial: eight(PARTIAL_AT) }
    }

    #[test]
    fn the_header_says_where_everything_is() {
        assert_eq!(VERSIONS_AT + 4 * MODULES, HEADER);
        let part = |text: &'static str| region(|out| out.write_all(text.as_bytes())).expect("into memory");
        let modules = vec![(Module::Posix, part("p")), (Module::Heat, part(""))];
        let log = DarshanLog { job: part("job"), names: part("names"), modules, partial: vec![Module::Dxt] };
        let mut bytes = Vec::new();
        log.write(&mut bytes).expect("into memory");
        let found = found(&bytes);
        assert_eq!((&*found.job, &*found.names, found.partial), (&b"job"[..], &b"names"[..], 1 << 10));
        assert_eq!(found.modules, BTreeMap::from([(1, b"p".to_vec()), (15, Vec::new())]));
    }
}

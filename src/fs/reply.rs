//! Gives the kernel's replies one shape: each kind of reply knows its value type, and how to refuse. Only [`super`] and
//! this file see fuser's reply types.

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno as FuseErrno, FileHandle, Generation, INodeNo};

use super::convert::{file_attr, file_type};
use super::handles::{DirEntries, EntryReference, ListingPage, Opened};
use super::seen::{ObservedCall, is_root_s_getattr};
use crate::error::{Errno, Result};
use crate::stats;
use crate::tiers::disk::Space;
use crate::tiers::{Attr, Lsn, Tiers};

/// One request's answer: used exactly once.
pub(super) trait Answer: Send + 'static {
    type Value: Send + 'static;

    /// How many bytes of file content a value stands for.
    fn bytes(_: &Self::Value) -> u64 {
        0
    }

    /// The open file to count the call for, if the call itself opens it.
    fn opened(_: &Self::Value) -> Option<&stats::Handle> {
        None
    }

    /// What must be on the slow tier before the answer.
    fn awaits(_: &Self::Value) -> Option<Lsn> {
        None
    }

    /// The answer if the slow tier does not answer for a second: for the root's attributes the last known ones, because
    /// otherwise no user could reach `.dlio`.
    fn known(_: &Tiers, _: &ObservedCall) -> Option<Self::Value> {
        None
    }

    fn answer(self, value: Self::Value);

    fn refuse(self, errno: Errno);
}

/// Implements [`Answer`] for one of fuser's replies; `also` has the methods that are not the default.
macro_rules! answers {
    ($reply:ty, $value:ty, |$this:ident, $given:pat_param| $answer:expr $(, also { $($more:tt)* })?) => {
        impl Answer for $reply {
            type Value = $value;

            fn answer(self, $given: $value) {
                let $this = self;
                $answer
            }

            fn refuse(self, errno: Errno) {
                self.error(FuseErrno::from_i32(errno as i32));
            }

            $($($more)*)?
        }
    };
}

/// Inode numbers are never reused for another file while the kernel knows them.
const GENERATION: Generation = Generation(0);

answers!(fuser::ReplyEmpty, (), |reply, ()| reply.ok());
/// The answer to an `fsync`, which may have to wait for the slow tier.
pub(super) struct Synced(pub(super) fuser::ReplyEmpty);

impl Answer for Synced {
    type Value = Option<Lsn>;

    fn awaits(lsn: &Option<Lsn>) -> Option<Lsn> {
        *lsn
    }

    fn answer(self, _: Option<Lsn>) {
        self.0.ok();
    }

    fn refuse(self, errno: Errno) {
        self.0.refuse(errno);
    }
}

answers!(fuser::ReplyAttr, Attr, |reply, attr| reply.attr(&attr.ttl, &file_attr(&attr)), also {
    fn known(tiers: &Tiers, seen: &ObservedCall) -> Option<Attr> {
        is_root_s_getattr(seen).then(|| tiers.root_as_known())?
    }
});
answers!(fuser::ReplyData, ReplyBuffer, |reply, bytes| reply.data(bytes.get()), also {
    fn bytes(bytes: &ReplyBuffer) -> u64 {
        bytes.len as u64
    }
});
answers!(fuser::ReplyWrite, u32, |reply, written| reply.written(written), also {
    fn bytes(written: &u32) -> u64 {
        u64::from(*written)
    }
});
answers!(fuser::ReplyLseek, u64, |reply, offset| reply.offset(offset as i64));
answers!(fuser::ReplyEntry, EntryReference, |reply, entry| {
    let attr = entry.hand_over();
    reply.entry(&attr.ttl, &file_attr(&attr), GENERATION);
});
answers!(fuser::ReplyOpen, Opened, |reply, opened| {
    match opened.hand_over(|fd| reply.open_backing(fd)) {
        (fh, flags, None) => reply.opened(FileHandle(fh), flags),
        (fh, flags, Some(backing)) => reply.opened_passthrough(FileHandle(fh), flags, &backing),
    }
}, also {
    fn opened(opened: &Opened) -> Option<&stats::Handle> {
        opened.seen()
    }
});
answers!(fuser::ReplyCreate, (EntryReference, Opened), |reply, (entry, opened)| {
    // A new file is open for writing, which is never passthrough.
    let (attr, (fh, flags, _)) = (entry.hand_over(), opened.hand_over(|_| Err(std::io::ErrorKind::Unsupported.into())));
    reply.created(&attr.ttl, &file_attr(&attr), GENERATION, FileHandle(fh), flags);
}, also {
    fn opened((_, opened): &(EntryReference, Opened)) -> Option<&stats::Handle> {
        opened.seen()
    }
});
answers!(fuser::ReplyXattr, Value, |reply, value| match value {
    Value::Size(size) => reply.size(size),
    Value::Whole(bytes) => reply.data(&bytes),
});
answers!(fuser::ReplyStatfs, Space, |reply, space| {
    let block = u64::from(space.block.max(1));
    let (total, free, avail) = (space.total / block, space.free / block, space.avail / block);
    let block = block as u32;
    reply.statfs(total, free, avail, space.files, space.files_free, block, space.name_max, block);
});
answers!(fuser::ReplyDirectory, ListingPage, |reply, page| {
    let mut reply = reply;
    for entry in page.entries() {
        let name = OsStr::from_bytes(&entry.name);
        if reply.add(INodeNo(entry.ino), entry.at + 1, file_type(entry.kind), name) {
            break;
        }
    }
    reply.ok();
});
answers!(fuser::ReplyDirectoryPlus, DirEntries, |reply, batch| {
    let mut reply = reply;
    batch.hand_over(|at, name, attr| {
        let name = OsStr::from_bytes(name);
        reply.add(INodeNo(attr.ino), at + 1, name, &attr.ttl, &file_attr(attr), GENERATION)
    });
    reply.ok();
});
// Calls that are always refused have no value to answer with.
answers!(fuser::ReplyIoctl, Infallible, |_reply, never| match never {});
answers!(fuser::ReplyLock, Infallible, |_reply, never| match never {});
answers!(fuser::ReplyBmap, Infallible, |_reply, never| match never {});
answers!(fuser::ReplyPoll, Infallible, |_reply, never| match never {});

/// An extended attribute, or the list of their names, as the kernel asked for it.
#[derive(Debug)]
pub(super) enum Value {
    Size(u32),
    Whole(Vec<u8>),
}

impl Value {
    /// `room` 0 asks for the size only. ERANGE if it does not fit.
    pub(super) fn fitting(bytes: Vec<u8>, room: u32) -> Result<Self> {
        match u32::try_from(bytes.len()) {
            Ok(size) if room == 0 => Ok(Value::Size(size)),
            Ok(size) if size <= room => Ok(Value::Whole(bytes)),
            _ => Err(Errno::ERANGE.into()),
        }
    }
}

/// Bytes for one reply. Each thread keeps the buffer of its last read for its next one: the kernel would zero a fresh
/// megabyte, page by page, every time.
#[derive(Debug)]
pub(super) struct ReplyBuffer {
    buffer: Vec<u8>,
    len: usize,
}

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl ReplyBuffer {
    /// Fills a buffer of `size` bytes using `read`, which returns how many bytes are valid.
    pub(super) fn read<E>(size: usize, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<Self, E> {
        let mut bytes = ReplyBuffer { buffer: SPARE.take(), len: 0 };
        if bytes.buffer.len() < size {
            bytes.buffer.resize(size, 0);
        }
        bytes.len = read(bytes.buffer.get_mut(..size).unwrap_or_default())?.min(size);
        Ok(bytes)
    }

    fn get(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

impl From<Vec<u8>> for ReplyBuffer {
    fn from(buffer: Vec<u8>) -> Self {
        ReplyBuffer { len: buffer.len(), buffer }
    }
}

impl Drop for ReplyBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        // The larger buffer is kept. A thread that is ending has no place for it any more.
        SPARE
            .try_with(|spare| {
                let other = spare.take();
                spare.set(if other.len() > buffer.len() { other } else { buffer });
            })
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_shows_only_what_was_read_and_keeps_its_buffer() {
        let fill = |n: usize, byte: u8| {
            ReplyBuffer::read(n, |buf| {
                buf.fill(byte);
                Ok::<_, Errno>(n / 2)
            })
            .expect("no error")
        };
        let first = fill(4096, 1);
        assert_eq!(first.get(), &[1; 2048]);
        let at = first.get().as_ptr();
        drop(first);
        let second = fill(8, 2);
        assert_eq!(second.get(), &[2; 4], "nothing of the former read shows");
        assert_eq!(second.get().as_ptr(), at, "the same memory");
    }

    #[test]
    fn a_failed_read_is_an_error() {
        assert_eq!(ReplyBuffer::read(8, |_| Err(Errno::EIO)).err(), Some(Errno::EIO));
    }

    #[test]
    fn an_attribute_fits_or_is_erange() {
        assert!(matches!(Value::fitting(vec![1; 5], 0), Ok(Value::Size(5))));
        assert!(matches!(Value::fitting(vec![1; 5], 5), Ok(Value::Whole(bytes)) if bytes == [1; 5]));
        assert_eq!(Value::fitting(vec![1; 5], 4).expect_err("too large").errno(), Errno::ERANGE);
    }
}

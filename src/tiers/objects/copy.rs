//! Copying the bytes of a file, holes as holes.

use std::ops::Range;

use crate::error::Errno;
use crate::tiers::disk::{File, Seek};

/// Bytes copied at a time.
pub(crate) const CHUNK: usize = 1 << 20;

/// Bytes could not be copied: the read failed, or the write.
#[derive(Debug)]
pub(crate) enum NotCopied {
    Read(std::io::Error),
    Written(std::io::Error),
}

impl From<NotCopied> for std::io::Error {
    fn from((NotCopied::Read(why) | NotCopied::Written(why)): NotCopied) -> Self {
        why
    }
}

/// The offset of the next data in a range; its end if there is none. Skips only holes, which nobody needs to read.
pub(crate) fn next_data(file: &dyn File, range: Range<u64>) -> std::io::Result<u64> {
    if range.is_empty() {
        return Ok(range.end);
    }
    match file.seek(Seek::Data, range.start) {
        Ok(data) => Ok(data.min(range.end)),
        // No data behind this point, or a file system without holes.
        Err(e) if e.raw_os_error() == Some(Errno::ENXIO as i32) => Ok(range.end),
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(range.start),
        Err(e) => Err(e),
    }
}

/// Copies the data in a range to the same offsets. `watch` is called for each piece with its offset and bytes, and may
/// end the copy with an error. The target has a hole there.
pub(crate) fn copy_data(
    from: &dyn File,
    to: &dyn File,
    range: Range<u64>,
    watch: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
) -> Result<(), NotCopied> {
    use NotCopied::{Read, Written};
    let (mut at, len) = (range.start, range.end);
    let mut buf = vec![0; CHUNK.min(len.saturating_sub(at) as usize)];
    loop {
        at = next_data(from, at..len).map_err(Read)?;
        if at == len {
            break;
        }
        let end = from.seek(Seek::Hole, at).unwrap_or(len).min(len);
        while at < end {
            let want = buf.len().min((end - at) as usize);
            let got = from.read_at(&mut buf[..want], at).map_err(Read)?;
            if got == 0 {
                return Ok(());
            }
            to.write_at(&buf[..got], at).map_err(Written)?;
            watch(at, &buf[..got]).map_err(Written)?;
            let written = at..at + got as u64;
            at = written.end;
            if at < len {
                to.write_behind(written);
            }
        }
    }
    Ok(())
}

/// Copies the first `len` bytes, leaving holes as holes. The target is new or empty.
pub(crate) fn copy_bytes(from: &dyn File, to: &dyn File, len: u64) -> std::io::Result<()> {
    Ok(copy_data(from, to, 0..len, &mut |_, _| Ok(()))?)
}

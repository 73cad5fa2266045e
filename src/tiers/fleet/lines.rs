//! A line of the fleet's files on the slow tree: a CRC-32 of the rest of it, then the words. Pure.

pub(super) fn with_crc(words: &str) -> String {
    format!("{:08x} {words}", crc32fast::hash(words.as_bytes()))
}

/// The words. `None`: the line is incomplete, for example while it is being written.
pub(super) fn checked(line: &str) -> Option<&str> {
    let (crc, words) = line.split_once(' ')?;
    (u32::from_str_radix(crc, 16).ok()? == crc32fast::hash(words.as_bytes())).then_some(words)
}

//! Content that describes itself: a file is whole if and only if it is one or more whole records.
//!
//! A record is a header of four numbers (magic, generation, length of the payload, CRC of the payload) and the payload.

const MAGIC: u32 = 0x6b69_6c6c;
const HEADER: usize = 20;

/// A record whose payload is `len` bytes that depend on the generation and on `salt`.
pub(crate) fn record(generation: u64, salt: u64, len: usize) -> Vec<u8> {
    let mut word = generation.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt | 1;
    let next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    let payload: Vec<u8> = std::iter::repeat_with(next).flatten().take(len).collect();
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend(generation.to_le_bytes());
    bytes.extend((len as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(&payload).to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// The generations of the records that `bytes` consists of; `None` if anything is missing, left over or damaged.
pub(crate) fn generations(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (payload, rest) = rest.split_at_checked(number(12) as usize)?;
        if number(0) != MAGIC || number(16) != crc32fast::hash(payload) {
            return None;
        }
        found.push(u64::from(number(4)) | u64::from(number(8)) << 32);
        bytes = rest;
    }
    (!found.is_empty()).then_some(found)
}

#[test]
fn only_whole_records_have_generations() {
    let mut bytes = record(7, 1, 1000);
    assert_eq!(generations(&bytes), Some(vec![7]));
    let first = bytes.len();
    bytes.extend(record(8, 1, 0));
    assert_eq!(generations(&bytes), Some(vec![7, 8]));
    for torn in [&bytes[..first - 1], &bytes[..first + 5], &bytes[1..], &[]] {
        assert_eq!(generations(torn), None);
    }
    bytes[500] ^= 1;
    assert_eq!(generations(&bytes), None);
}

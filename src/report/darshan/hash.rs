//! Darshan's ids for files: Bob Jenkins' hash `lookup8` of a path's bytes. Pure.

const BLOCK: usize = 24;
/// The shift of each mixing step: to the right if positive, else to the left.
const SHIFTS: [i32; 12] = [43, -9, 8, 38, -23, 5, 35, -49, 11, 12, -18, 22];

/// The record id of a name.
pub(super) fn id(name: &[u8]) -> u64 {
    let mut state = [0, 0, 0x9E37_79B9_7F4A_7C13];
    let blocks = name.chunks_exact(BLOCK);
    let rest = blocks.remainder();
    for block in blocks {
        (0..3).for_each(|word| add(&mut state, word, number(&block[8 * word..][..8])));
        mix(&mut state);
    }
    // The lowest byte of the last word holds the length.
    let tail = |from: usize, to: usize| number(&rest[from.min(rest.len())..to.min(rest.len())]);
    add(&mut state, 0, tail(0, 8));
    add(&mut state, 1, tail(8, 16));
    add(&mut state, 2, (tail(16, BLOCK) << 8).wrapping_add(name.len() as u64));
    mix(&mut state);
    state[2]
}

/// Up to eight bytes, the lowest first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn add(state: &mut [u64; 3], word: usize, number: u64) {
    state[word] = state[word].wrapping_add(number);
}

/// Each step changes one word by the two others, and by the one changed before.
fn mix(state: &mut [u64; 3]) {
    for (step, shift) in SHIFTS.into_iter().enumerate() {
        let (own, next, before) = (step % 3, (step + 1) % 3, (step + 2) % 3);
        let shifted = if shift > 0 { state[before] >> shift } else { state[before] << -shift };
        state[own] = state[own].wrapping_sub(state[next]).wrapping_sub(state[before]) ^ shifted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values published by PyDarshan, and two computed with Darshan's own function.
    #[test]
    fn names_have_the_numbers_that_darshan_gives_them() {
        let known = [
            ("heatmap:POSIX", 16_592_106_915_301_738_621),
            ("heatmap:STDIO", 3_989_511_027_826_779_520),
            ("heatmap:MPIIO", 3_668_870_418_325_792_824),
            ("heatmap:DFS", 1_597_927_878_319_380_788),
            ("heatmap:DAOS", 4_131_494_093_108_637_317),
            ("", 10_211_412_111_675_192_767),
            ("/data/imagenet/train/n01440764/n01440764_10026.JPEG", 16_103_900_358_985_689_427),
        ];
        for (name, wanted) in known {
            assert_eq!(id(name.as_bytes()), wanted, "{name}");
        }
    }

    #[test]
    fn every_length_is_hashed() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut ids: Vec<u64> = (0..bytes.len()).map(|len| id(&bytes[..len])).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), bytes.len());
    }
}

//! The step of a checkpoint, read from the names of its files. Pure.

/// The step in a path, and the index of the component that contains it: the number after a word for a step; else a
/// component that is a number; else the last number in the file's name, or in its directory's. Names are bytes: any
/// bytes may stand beside the digits.
pub(crate) fn step_in(path: &[u8]) -> Option<(usize, u64)> {
    let names = components(path);
    let last = || names.iter().enumerate().rev().take(2).find_map(|(at, name)| Some((at, last_number(name)?)));
    by_word(&names).or_else(|| by_number(&names)).or_else(last)
}

/// The certain step of a file: files with two different ones belong to two checkpoints. A number in a file's name may
/// be a rank, a layer or a sample, unless a word says otherwise, or the format holds a whole model.
pub(crate) fn certain_step(path: &[u8]) -> Option<u64> {
    const WHOLE_MODEL: [&[u8]; 4] = [b".keras", b".h5", b".hdf5", b".ckpt"];
    let names = components(path);
    let (name, dirs) = names.split_last()?;
    let of_model = || last_number(name).filter(|_| WHOLE_MODEL.iter().any(|ending| name.ends_with(ending)));
    by_word(&names).or_else(|| by_number(dirs)).map(|(_, step)| step).or_else(of_model)
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').map(<[u8]>::to_ascii_lowercase).collect()
}

fn by_word(names: &[Vec<u8>]) -> Option<(usize, u64)> {
    const WORDS: [&str; 5] = ["step", "iter", "ckpt", "checkpoint", "epoch"];
    let innermost = || names.iter().enumerate().rev();
    WORDS.iter().find_map(|word| innermost().find_map(|(at, name)| Some((at, behind(name, word)?))))
}

fn by_number(names: &[Vec<u8>]) -> Option<(usize, u64)> {
    // Below `c` are the indices of an array's chunks (Zarr 3, "default" chunk key encoding).
    let before_chunks = names.iter().enumerate().take_while(|(_, name)| *name != b"c");
    before_chunks.filter_map(|(at, name)| Some((at, number(up_to(name, b".orbax"))?))).last()
}

/// The number after a word, with only `=`, `-`, `_`, `.` or the word's own ending between.
fn behind(name: &[u8], word: &str) -> Option<u64> {
    let tails = (0..name.len()).rev().filter_map(|at| name.get(at..)?.strip_prefix(word.as_bytes()));
    let mut numbers = tails.filter_map(|rest| {
        let endings = [&b"ation"[..], b"point", b"s"].into_iter();
        let rest = endings.filter_map(|ending| rest.strip_prefix(ending)).next().unwrap_or(rest);
        let begin = rest.iter().position(|byte| !b"=-_.".contains(byte))?;
        number(rest.get(begin..)?.split(|byte| !byte.is_ascii_digit()).next()?)
    });
    numbers.next()
}

/// The last number of a name without its extension and without `-00001-of-00005`, which is the number of a part.
fn last_number(name: &[u8]) -> Option<u64> {
    let stem = name.iter().rposition(|byte| *byte == b'.').and_then(|at| name.get(..at)).unwrap_or(name);
    let of_parts = stem.windows(4).rposition(|four| four == b"-of-").and_then(|at| stem.get(..at));
    let is_apart = |byte: &u8| !byte.is_ascii_digit();
    let stem = match of_parts {
        Some(part) => part.get(..part.iter().rposition(is_apart)? + 1)?,
        None => stem,
    };
    let end = stem.iter().rposition(u8::is_ascii_digit)? + 1;
    number(stem.get(..end)?.rsplit(is_apart).next()?)
}

/// A name up to the first of these endings.
fn up_to<'a>(name: &'a [u8], ending: &[u8]) -> &'a [u8] {
    name.windows(ending.len()).position(|some| some == ending).and_then(|at| name.get(..at)).unwrap_or(name)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::tiers::checkpoints::index::{is_temporary, place};

    #[test]
    fn the_step_is_read_from_the_names() {
        for (path, step) in [
            ("run/step=1200.ckpt", Some(1200)),
            ("run/ckpt-1200", Some(1200)),
            ("run/checkpoint-1200/model.safetensors", Some(1200)),
            ("run/checkpoint-1200/model-00002-of-00005.safetensors", Some(1200)),
            ("run/global_step1200/mp_rank_07_model_states.pt", Some(1200)),
            ("run/iter_0001200/mp_rank_00/model_optim_rng.pt", Some(1200)),
            ("run/epoch=3-step=1200.ckpt", Some(1200)),
            ("run/epoch=3.ckpt", Some(3)),
            ("run/steps_40/iteration_7.pt", Some(40)),
            ("v2/1200/default/d/4f2e", Some(1200)),
            ("v2/1200.orbax-checkpoint-tmp-17/state", Some(1200)),
            ("v2/1200/params.w/c/0/3", Some(1200)),
            ("run/ckpt-3.data-00000-of-00001", Some(3)),
            ("run/model-09.keras", Some(9)),
            ("run7/model.h5", Some(7)),
            ("run7/pytorch_model-00002-of-00003.bin", Some(7)),
            ("model.h5", None),
            ("data/99999999999999999999.pt", None),
            ("", None),
        ] {
            assert_eq!(step_in(path.as_bytes()).map(|(_, step)| step), step, "{path}");
        }
    }

    /// Any user's `é1` ended the daemon when it was removed: the search for its last number split a character.
    #[test]
    fn no_name_is_too_strange_to_look_for_its_step() {
        for (path, step) in [
            ("u/é1", Some(1)),
            ("模型3.pt", Some(3)),
            ("模型/\u{202e}12\u{7f}", Some(12)),
            ("é1-of-2", None),
            ("step模7", Some(7)),
            ("step_٣", None),
            ("ÉPOCH=5", Some(5)),
        ] {
            assert_eq!(step_in(path.as_bytes()).map(|(_, step)| step), step, "{path}");
        }
        let pieces: [&[u8]; 19] = [
            b"1",
            b"42",
            "é".as_bytes(),
            "模".as_bytes(),
            b"\xff",
            b"\xc3",
            b"\x80",
            b"\x1b",
            b"\n",
            "\u{202e}".as_bytes(),
            b"step",
            b"CKPT",
            b"ation",
            b".",
            b"-of-",
            b"=",
            b"+",
            b".orbax",
            b"/",
        ];
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        for _ in 0..20_000 {
            let mut name = Vec::new();
            let len = [3, 8, 255][random.random_range(0..3)];
            while name.len() < len {
                name.extend(pieces[random.random_range(0..pieces.len())]);
            }
            let step = step_in(&name).map(|(_, step)| step.to_string());
            let is_in_it = |step: String| name.windows(step.len()).any(|some| some == step.as_bytes());
            assert!(step.is_none_or(is_in_it), "{}", name.escape_ascii());
            certain_step(&name);
            is_temporary(&name);
            let (path, _) = place(&[(&name, 1 << 20), (b"a", 1)]);
            assert!(path.is_empty() || name.starts_with(&path), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn a_number_that_may_be_a_rank_s_is_no_certain_step() {
        for (path, step) in [
            ("run/step-5/__0_0.distcp", Some(5)),
            ("v2/1200/default/d/4f2e", Some(1200)),
            ("run/model-09.keras", Some(9)),
            ("run/model-09.weights.h5", Some(9)),
            ("run/ckpt-3.index", Some(3)),
            ("run/rank_3.pt", None),
            ("data/17", None),
            ("run/model-00002-of-00005.safetensors", None),
            ("run7/model.h5", None),
            ("run/checkpoint", None),
        ] {
            assert_eq!(certain_step(path.as_bytes()), step, "{path}");
        }
    }
}

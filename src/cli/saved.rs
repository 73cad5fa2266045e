//! `dlio-fs saved`: what the slow tier keeps in `.dlio-fs/saved`, its removal, and its way back into the tree.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;

use super::outcome::{Exit, Failure, Outcome, complain, say, say_json};
use super::tiers;
use crate::path::escape;
use crate::stats::render::{bytes, count, seconds};
use crate::tiers::disk::os::OsClock;
use crate::tiers::disk::{Clock as _, Dir};
use crate::tiers::{SavedDir, SavedKind, adopt, remove_saved, saved_dirs, sum_of_saved};

/// Show, remove or put back what the slow tier keeps in .dlio-fs/saved
///
/// There is what lost a race between the nodes of a fleet (each name once, under its path), the files of a deadline that came
/// before their turn, what was set aside, and what a forgotten node had copied. It counts towards the quotas of its owners. What
/// lost a race the daemon removes when it is older than saved_age; all else only you remove, with --purge.
///
/// --adopt gives files their names in the tree back where nothing newer has them; what is older there takes their place in
/// saved. Without PATH it leaves alone what lost a race, and what a node had been about to remove: name the directory if you want
/// that. Run it while nobody writes these files: to the mounts it is a change that somebody else made.
///
/// If the slow tier is another user's, root does all of this with the rights of that user.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs saved /shared/run7
  dlio-fs saved /shared/run7 --adopt                        # all but losers
  dlio-fs saved /shared/run7 --adopt n3-1795384262/step-700
  dlio-fs saved /shared/run7 --purge --older-than 7d")]
pub(super) struct SavedArgs {
    /// The slow tier
    #[arg(value_name = "SLOW")]
    slow: PathBuf,
    /// Remove all directories in saved that are old
    #[arg(long)]
    purge: bool,
    /// How old they must be
    #[arg(long, value_name = "TIME", requires = "purge", default_value = "30d", value_parser = super::duration::parse_duration)]
    older_than: Duration,
    /// Give files their names in the tree back: of all directories, or of this one, or what is at or below this path in it
    #[arg(long, value_name = "PATH", num_args = 0..=1, conflicts_with = "purge")]
    adopt: Option<Option<PathBuf>>,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["purge", "adopt"])]
    json: bool,
}

pub(super) fn run(args: &SavedArgs) -> Outcome {
    let held = tiers::open("SLOW", &args.slow)?;
    tiers::enter(&[(tiers::SLOW, &held)])?;
    let slow = tiers::slow_dir(&held)?;
    let dirs = saved_dirs(&*slow, &[])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    match &args.adopt {
        Some(path) => put_back(&slow, &dirs, path.as_deref()),
        None if args.purge => purge(&*slow, &dirs, now, args.older_than),
        None if args.json => list_as_json(&dirs, now),
        None => list(&dirs, now),
    }
}

fn what(kind: SavedKind) -> &'static str {
    match kind {
        SavedKind::Replaced => "lost a race between nodes",
        SavedKind::Removed => "a forgotten node was about to remove it",
        SavedKind::Kept => "of a deadline, set aside, or of a forgotten node",
        SavedKind::Part => "not whole: being made, or cut off",
    }
}

fn list(dirs: &[SavedDir], now: u64) -> Outcome {
    for dir in dirs {
        let (age, files, size) = (seconds(dir.age(now)), count(dir.files, "file"), bytes(dir.bytes));
        say(format!("{:<32} {age:>8} {files:>14} {size:>10}  {}", escape(&dir.name), what(dir.kind)))?;
    }
    let (files, size, _) = sum_of_saved(dirs);
    let files = count(files, "file");
    say(format!("{files} in all, {}", bytes(size)))?;
    Ok(Exit::Done)
}

fn list_as_json(dirs: &[SavedDir], now: u64) -> Outcome {
    let (files, bytes, _) = sum_of_saved(dirs);
    let one = |dir: &SavedDir| {
        let mut one = crate::json::text("name", &escape(&dir.name));
        let age = dir.age(now).as_secs();
        let rest = json!({ "kind": dir.kind, "age": age, "files": dir.files, "bytes": dir.bytes });
        one.extend(rest.as_object().cloned().unwrap_or_default());
        one
    };
    let saved: Vec<_> = dirs.iter().map(one).collect();
    say_json(&json!({ "saved": saved, "files": files, "bytes": bytes }))?;
    Ok(Exit::Done)
}

fn purge(slow: &dyn Dir, dirs: &[SavedDir], now: u64, older_than: Duration) -> Outcome {
    let mut old = dirs.iter().filter(|dir| dir.age(now) > older_than || older_than.is_zero()).peekable();
    if old.peek().is_none() {
        say(format!("nothing in saved is older than {}", humantime::format_duration(older_than)))?;
    }
    for dir in old {
        remove_saved(slow, &dir.name)?;
        say(format!("removed {}: {}, {}", escape(&dir.name), count(dir.files, "file"), bytes(dir.bytes)))?;
    }
    Ok(Exit::Done)
}

/// The newest first: an older one of the same name then stays where it is.
fn put_back(slow: &Arc<dyn Dir>, dirs: &[SavedDir], path: Option<&Path>) -> Outcome {
    let wanted: Vec<(Vec<u8>, Vec<u8>)> = match path {
        Some(path) => vec![in_saved(path)],
        None => {
            let kept = dirs.iter().rev().filter(|dir| dir.kind == SavedKind::Kept);
            kept.map(|dir| (dir.name.clone(), Vec::new())).collect()
        }
    };
    let (mut files, mut exchanged, mut left) = (0, 0, 0);
    for (name, below) in wanted {
        let adopted = adopt(slow, &name, &below, OsClock.now()).map_err(Failure::from)?;
        files += adopted.files;
        exchanged += adopted.exchanged;
        left += adopted.left.len() as u64;
        for (path, why) in adopted.left {
            say(format!("left: {}/{}: {why}", escape(&name), escape(&path)))?;
        }
    }
    let older = match exchanged {
        0 => String::new(),
        n => format!(", {n} of them in the place of an older one, which is in saved now"),
    };
    say(format!("adopted {}{older}; {left} left", count(files, "file")))?;
    if path.is_none() && dirs.iter().any(|dir| dir.kind != SavedKind::Kept) {
        complain(
            "what lost a race, was about to be removed, or is not whole was left alone; name a directory to adopt it",
        );
    }
    Ok(Exit::Done)
}

/// The directory in `saved` that a path names, and the path in it. The path may be a whole one.
fn in_saved(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let text = path.as_os_str().as_bytes();
    const MARK: &[u8] = b".dlio-fs/saved/";
    let at = text.windows(MARK.len()).position(|window| window == MARK).map_or(0, |at| at + MARK.len());
    let names = text.get(at..).unwrap_or_default().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let mut names = names.map(<[u8]>::to_vec);
    (names.next().unwrap_or_default(), names.collect::<Vec<_>>().join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_directory_in_saved_and_what_is_below_it() {
        let of = |path: &str| in_saved(Path::new(path));
        let both = |name: &str, path: &str| (name.as_bytes().to_vec(), path.as_bytes().to_vec());
        assert_eq!(of("n1-7"), both("n1-7", ""));
        assert_eq!(of("n1-7/run/ckpt/"), both("n1-7", "run/ckpt"));
        assert_eq!(of("/shared/.dlio-fs/saved/n1-7/run"), both("n1-7", "run"));
    }
}

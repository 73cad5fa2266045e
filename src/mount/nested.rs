//! Slow trees of which one lies in the other. Mounts of the two keep no order between each other, whatever their fleet,
//! and each mistakes what the other publishes for changes of another program. That is not refused, but reported.
//!
//! Above, each directory is checked by its path. Below, only what is cheap: mounts of this machine, and the tree's own
//! directories, if they are few.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::answer::within;
use super::lock::PRIVATE_DIR;
use super::table::{MountEntry, mounts};
use crate::path::Show as _;

/// A directory above may be on a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many names of the tree's root are looked at.
const NAMES_MAX: usize = 256;

/// What is wrong, and the remedy.
pub fn nested_trees(slow: &Path) -> Option<(String, &'static str)> {
    let what = match (outer(slow), inner(slow)) {
        (Some(outer), _) => format!("{} is in {}, which is a slow tier of dlio-fs, too", slow.shown(), outer.shown()),
        (None, Some(inner)) => format!("{} in {} is a slow tier of dlio-fs, too", inner.shown(), slow.shown()),
        (None, None) => return None,
    };
    let what = format!(
        "{what}: the two keep no order between each other, and changes through one are somebody else's for the other"
    );
    Some((what, "mount the outer directory for all, or keep each file to one of the two"))
}

/// The next one above.
fn outer(slow: &Path) -> Option<PathBuf> {
    let above: Vec<PathBuf> = slow.ancestors().skip(1).map(Path::to_path_buf).collect();
    within(PATIENCE, move || above.into_iter().find(|dir| is_slow_tier(dir))).flatten()
}

fn inner(slow: &Path) -> Option<PathBuf> {
    let mounted = mounts().ok().and_then(|mounts| mounted_below(slow, &mounts));
    mounted.or_else(|| {
        let root = slow.to_path_buf();
        within(PATIENCE, move || {
            let names = fs::read_dir(root).ok()?.take(NAMES_MAX).flatten();
            let dirs =
                names.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
            dirs.into_iter().find(|dir| is_slow_tier(dir))
        })
        .flatten()
    })
}

fn mounted_below(slow: &Path, mounts: &[MountEntry]) -> Option<PathBuf> {
    let sources = mounts.iter().filter(|mount| mount.is_ours()).map(|mount| &mount.source);
    sources.into_iter().find(|source| *source != slow && source.starts_with(slow)).cloned()
}

/// Of another user's tree only the existence of `.dlio-fs` can be seen.
fn is_slow_tier(dir: &Path) -> bool {
    match dir.join(PRIVATE_DIR).join("id").symlink_metadata() {
        Ok(found) => found.is_file(),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            dir.join(PRIVATE_DIR).symlink_metadata().is_ok_and(|found| found.is_dir())
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_slow_tier(dir: &Path) {
        fs::create_dir_all(dir.join(PRIVATE_DIR)).expect("made");
        fs::write(dir.join(PRIVATE_DIR).join("id"), "an id").expect("written");
    }

    #[test]
    fn a_slow_tree_in_another_one_is_seen_from_both() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (run, between, apart) = (dir.path().join("run"), dir.path().join("run/a/b"), dir.path().join("run-2"));
        make_slow_tier(&run);
        make_slow_tier(&apart);
        fs::create_dir_all(&between).expect("made");
        let told = |slow: &Path| nested_trees(slow).map(|(what, _)| what).unwrap_or_default();
        let shown = |path: &Path| path.display().to_string();
        assert_eq!((told(&run), told(&apart)), (String::new(), String::new()));
        assert!(told(&between).contains(&format!("is in {}, which is a slow tier", shown(&run))), "{}", told(&between));
        make_slow_tier(&run.join("a"));
        assert!(told(&between).contains(&format!("is in {}, ", shown(&run.join("a")))), "the next one above");
        assert!(told(&run).starts_with(&format!("{} in {} is", shown(&run.join("a")), shown(&run))), "{}", told(&run));
    }

    #[test]
    fn a_mount_of_this_machine_below_the_tree_is_seen_however_deep_it_is() {
        let mount = |source: &str, fs_type: &str| MountEntry {
            device: "0:51".to_owned(),
            root: PathBuf::from("/"),
            at: PathBuf::from("/mnt"),
            fs_type: fs_type.to_owned(),
            source: PathBuf::from(source),
            user: None,
            options: String::new(),
        };
        let below = |source, fs_type| mounted_below(Path::new("/shared/run"), &[mount(source, fs_type)]);
        assert_eq!(below("/shared/run/a/b", "fuse.dlio"), Some(PathBuf::from("/shared/run/a/b")));
        let others = [("/shared/run", "fuse.dlio"), ("/shared/run-2", "fuse.dlio"), ("/shared/run/a", "ext4")];
        assert_eq!(others.map(|(source, fs_type)| below(source, fs_type)), [None, None, None]);
    }
}

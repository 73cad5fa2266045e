//! A data set that is there before anything is mounted: written to each place once, and for a mount twice beneath, where one
//! copy stays on the slow tier and the other one is staged. What it consists of, and how it is read, is the caller's.

use std::fs;
use std::path::{Path, PathBuf};

use dlio_fs::cli::outcome::Failure;
use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;

use super::session::{Place, Session, stage_all};

/// Directories in the mount: the copy that stays on the slow tier, and the one that is staged.
const PLAIN: &str = "plain";
const STAGED: &str = "staged";

/// Writes it to each place, mounts, stages a copy, and makes that a place of its own. `write` fills a directory and returns
/// the paths below it, which are the same in each place: these are returned.
pub(super) fn prepare(
    session: &mut Session,
    what: &str,
    mut write: impl FnMut(&Path) -> Result<Vec<PathBuf>>,
) -> std::result::Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    // It is the first of all places.
    let slow = session.places[0].dir.clone();
    for place in session.places.clone() {
        session.step(&format!("writing {what}: {}", place.name))?;
        let dir = match place.mount() {
            Some(mount) => {
                link_all(&slow, &mount.slow.join(PLAIN), &paths)?;
                mount.slow.join(STAGED)
            }
            None => place.dir.clone(),
        };
        paths = write(&dir)?;
    }
    session.write_back()?;
    session.mount()?;
    stage_copies(session)?;
    Ok(paths)
}

/// Stages a copy in each mount, and makes two places of one: without, and with it.
fn stage_copies(session: &mut Session) -> std::result::Result<(), Failure> {
    let mut places = Vec::new();
    for place in std::mem::take(&mut session.places) {
        let Some(mount) = place.mount() else {
            places.push(place);
            continue;
        };
        session.step(&format!("staging: {}", place.name))?;
        stage_all(mount, &format!("/{STAGED}"), &session.stop())?;
        let below = |name: String, dir: &str| Place { name, dir: place.dir.join(dir), kind: place.kind.clone() };
        places.push(below(place.name.clone(), PLAIN));
        places.push(below(format!("{} staged", place.name), STAGED));
    }
    session.places = places;
    Ok(())
}

/// Links the files to where a mount shows them. A copy would lie elsewhere on the disk, and its position there affects
/// how fast it is read.
fn link_all(from: &Path, to: &Path, paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let [from, to] = [from, to].map(|dir| dir.join(path));
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).at("mkdir", dir.shown())?;
        }
        // Not every file system has links.
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).at("copy", from.shown())?;
    }
    Ok(())
}

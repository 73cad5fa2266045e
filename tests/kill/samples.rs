//! Files that the slow tier had before and that somebody else changes there: nobody writes to them through the mount, which stages some
//! of them by itself and promotes the others, because they are read all the time.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::daemon::{Mount, until};
use crate::traffic::is_dead;
use crate::traffic::record::record;

const PINNED: &str = "set/pinned";

/// By path, from the root: none in a test without them.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// So that no two versions are alike.
    versions: u64,
    /// The most of them that a start found on the fast tier.
    had_copies: usize,
}

impl Samples {
    pub(crate) fn fill(&mut self, slow: &Path) {
        fs::create_dir(slow.join("set")).unwrap();
        let names = (0..8).flat_map(|number| [format!("set/staged-{number}"), format!("set/read-{number}")]);
        for name in names.chain([PINNED.to_owned()]) {
            let bytes = self.version();
            fs::write(slow.join(&name), &bytes).unwrap();
            self.files.insert(name.into(), bytes);
        }
    }

    fn version(&mut self) -> Vec<u8> {
        self.versions += 1;
        record(self.versions, 0, 50_000)
    }

    pub(crate) fn stage_and_pin(&self, mount: &Mount) {
        let [set, data] = ["set", "data"].map(|dir| mount.point().join(dir));
        mount.program(&["stage".as_ref(), &set, &data, "--wait".as_ref()]);
        for path in [mount.point().join(PINNED), data.join("sample-00")] {
            mount.program(&["pin".as_ref(), &path]);
        }
    }

    /// Whatever tier they are read from meanwhile.
    pub(crate) fn read_until_killed(&self, point: &Path) {
        for (path, bytes) in self.files.iter().cycle() {
            match fs::read(point.join(path)) {
                Ok(found) => assert!(found == *bytes, "{} is not as on the slow tier", path.display()),
                Err(error) if is_dead(&error) => return,
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// Somebody else does while no daemon runs: bytes of the same length in a file, or another file.
    pub(crate) fn change_some(&mut self, slow: &Path, random: &mut SmallRng) {
        let names: Vec<PathBuf> = self.files.keys().filter(|path| *path != Path::new(PINNED)).cloned().collect();
        for path in names {
            if random.random_bool(0.8) {
                continue;
            }
            let (bytes, at) = (self.version(), slow.join(&path));
            if random.random_bool(0.5) {
                OpenOptions::new().write(true).open(&at).unwrap().write_all_at(&bytes, 0).unwrap();
            } else {
                fs::write(slow.join("set/new"), &bytes).unwrap();
                fs::rename(slow.join("set/new"), at).unwrap();
            }
            self.files.insert(path, bytes);
        }
    }

    /// What is read has the bytes of the slow tier, and what is pinned stays, across the kill too.
    pub(crate) fn are_as_on_slow(&mut self, mount: &Mount) {
        if self.files.is_empty() {
            return;
        }
        let pinned = mount.point().join(PINNED);
        assert_eq!(
            mount.program(&["pin".as_ref(), "--list".as_ref(), &mount.point()]),
            "/data/sample-00\n/set/pinned\n"
        );
        assert!(is_staged(&pinned), "its copy was durable");
        mount.program(&["evict".as_ref(), &pinned]);
        assert!(is_staged(&pinned), "it is pinned");
        let copies = self.files.keys().filter(|path| is_staged(&mount.point().join(path))).count();
        for (path, bytes) in &self.files {
            let (view, slow) =
                (fs::read(mount.point().join(path)).unwrap(), fs::read(mount.slow().join(path)).unwrap());
            assert!(slow == *bytes, "{}: nobody writes to it through the mount", path.display());
            assert!(view == slow, "{}: the view is not as the slow tier", path.display());
        }
        println!("{copies} of {} files were still staged", self.files.len());
        self.had_copies = self.had_copies.max(copies);
    }

    /// Otherwise nothing was tried.
    pub(crate) fn are_all_staged_in_the_end(&self, mount: &Mount) {
        assert!(self.had_copies > 3, "nothing of what was staged outlived a kill");
        until("all are staged or promoted", || {
            self.files.keys().map(|path| mount.point().join(path)).all(|path| {
                fs::read(&path).unwrap();
                is_staged(&path)
            })
        });
    }
}

/// After a start a copy is found when its file is opened; and nothing is promoted that was not read.
fn is_staged(path: &Path) -> bool {
    let _open = File::open(path).unwrap();
    xattr::get(path, "user.dlio.state").unwrap().is_some_and(|state| state == b"staged")
}

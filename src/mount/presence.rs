//! Other mounts of the same slow tree that keep no order with this one. They are not refused, but reported, at the
//! mount and in the statistics.
//!
//! Each daemon keeps a file of its own in `<slow>/.dlio-fs/mounts`, which names its owner, and holds a lock on it
//! (`fcntl(2)`, F_OFD_SETLK) that ends with the process. So an idle mount writes nothing, and the file of a killed
//! daemon does not count. Where locks do not reach other machines (Lustre with `localflock`, most servers behind FUSE),
//! mounts of other machines are not seen.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use tokio::runtime::Runtime;
use tokio::task::spawn_blocking;
use tracing::{debug, warn};
use uuid::Uuid;

use super::answer::within;
use super::lock::{Owner, PRIVATE_DIR};
use super::trust::{TrustedTier, check_top};
use crate::fs::OtherMounts;
use crate::path::{Show as _, harmless};
use crate::tiers::disk::held::HeldDir;

/// How often other mounts are looked for.
const LOOK: Duration = Duration::from_secs(60);
/// The first look of a mount command.
const PATIENCE: Duration = Duration::from_secs(5);
/// More files there are not looked at: each is a request to the server.
const FILES_MAX: usize = 256;
/// Longer text is not ours.
const TEXT_MAX: u64 = 4096;

/// Announces this daemon on the slow tree and looks for others, on threads of the background: the tree may hang.
pub(super) fn keep(runtime: &Runtime, root: File, owner: Owner, fleet: Option<String>, others: Arc<OtherMounts>) {
    runtime.spawn(async move {
        let announced = spawn_blocking(move || {
            let dir = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())).join(MOUNTS);
            Presence::announce(root, dir, &owner, fleet)
        });
        let presence = match announced.await {
            Ok(Ok(presence)) => Arc::new(presence),
            Ok(Err(error)) => return debug!(%error, "other mounts of the slow tree are not looked for"),
            Err(_) => return,
        };
        loop {
            let (presence, told) = (Arc::clone(&presence), Arc::clone(&others));
            drop(spawn_blocking(move || presence.look(&told)).await);
            tokio::time::sleep(LOOK).await;
        }
    });
}

/// What the user of a mount should know before it is made, if other mounts already use the slow tree.
pub fn note(slow: &Path, fleet: Option<&str>) -> Option<String> {
    let (path, fleet) = (slow.to_path_buf(), fleet.map(str::to_owned));
    let look = move || {
        let root = HeldDir::open(&path)?;
        // The mount refuses what other users may change there; before that, nothing is removed there.
        check_top(TrustedTier::Slow { writable: true }, &root).map_err(io::Error::other)?;
        let mounts = HeldDir::find(&root.at(MOUNTS), None)?;
        others(&mounts.by_descriptor(), fleet.as_deref(), None)
    };
    let found = within(PATIENCE, look)?.ok()?;
    let names: Vec<_> = found.iter().map(OtherMount::name).collect();
    (!names.is_empty()).then(|| {
        let (slow, names) = (slow.shown(), names.join(", "));
        format!(
            "--slow {slow} is mounted by {names}, too, and order is kept for each mount only: if they write files that \
             belong together, mount all with -o fleet=NAME,fleet_size=N"
        )
    })
}

/// The directory of these files, below the root of the slow tier.
const MOUNTS: &str = ".dlio-fs/mounts";

/// This daemon's file, locked. Released with the process.
#[derive(Debug)]
struct Presence {
    /// `dir` leads through its descriptor.
    _root: File,
    file: File,
    dir: PathBuf,
    name: String,
    fleet: Option<String>,
}

impl Presence {
    fn announce(root: File, dir: PathBuf, owner: &Owner, fleet: Option<String>) -> io::Result<Presence> {
        debug_assert!(dir.ends_with(Path::new(PRIVATE_DIR).join("mounts")));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let name = Uuid::new_v4().to_string();
        let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(&name))?;
        // The lock is on a descriptor that only reads: one that writes would keep the slow tier from becoming read-only.
        let file = File::open(dir.join(&name))?;
        // From here on a failure, as on a full slow tier, removes the file.
        let presence = Presence { _root: root, file, dir, name, fleet };
        fcntl(&presence.file, FcntlArg::F_OFD_SETLK(&all_of_it(libc::F_RDLCK)))?;
        // A reader that comes earlier sees no mount, and looks again in a minute.
        writeln!(written, "{owner} fleet={}", presence.fleet.as_deref().unwrap_or_default())?;
        Ok(presence)
    }

    fn look(&self, told: &OtherMounts) {
        match others(&self.dir, self.fleet.as_deref(), Some(&self.name)) {
            Ok(found) => {
                let names: Vec<_> = found.iter().map(OtherMount::name).collect();
                if told.replace(names.clone()) && !names.is_empty() {
                    warn!(
                        mounts = names.join(", "),
                        "the slow tree is mounted elsewhere, too: order is kept for each mount only"
                    );
                }
            }
            Err(error) => debug!(%error, "other mounts of the slow tree cannot be looked for"),
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(fs::remove_file(self.dir.join(&self.name)));
    }
}

/// Another daemon, on this machine or elsewhere.
#[derive(Debug, PartialEq, Eq)]
struct OtherMount {
    owner: Owner,
}

impl OtherMount {
    fn name(&self) -> String {
        harmless(&format!("{}:{}", self.owner.host, self.owner.mountpoint)).into_owned()
    }
}

/// The running daemons that keep no order with a member of `fleet`, or with a mount in none, except for the one whose
/// file is `own`. Removes files of killed daemons of this machine.
fn others(dir: &Path, fleet: Option<&str>, own: Option<&str>) -> io::Result<Vec<OtherMount>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)?.take(FILES_MAX) {
        let name = entry?.file_name();
        if name.to_str() == own {
            continue;
        }
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        // Gone meanwhile, or another user's.
        let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(dir.join(&name)) else {
            continue;
        };
        let mut text = String::new();
        if (&file).take(TEXT_MAX).read_to_string(&mut text).is_err() {
            continue;
        }
        let Some(owner) = Owner::parse(text.trim_end()) else { continue };
        let its = text.trim_end().rsplit_once(" fleet=").map(|(_, name)| name).filter(|name| !name.is_empty());
        if is_locked(&file)? {
            if fleet.is_none() || its != fleet {
                found.push(OtherMount { owner });
            }
        } else if owner.is_here() {
            // Each daemon has a file of its own, written once it is locked: this one will never be locked again.
            drop(fs::remove_file(dir.join(&name)));
        }
    }
    found.sort_by_key(OtherMount::name);
    Ok(found)
}

fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = all_of_it(libc::F_WRLCK);
    match fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)) {
        Ok(_) => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        // A file system without locks.
        Err(Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn all_of_it(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(slow: &Path, at: &str, fleet: Option<&str>) -> Presence {
        let owner = Owner::ourselves(Path::new(at), Some(slow), true);
        let dir = slow.join(MOUNTS);
        fs::create_dir_all(dir.parent().expect("it has one")).expect("made");
        Presence::announce(File::open(slow).expect("there"), dir, &owner, fleet.map(str::to_owned)).expect("announced")
    }

    fn seen(by: &Presence) -> Vec<String> {
        let told = OtherMounts::default();
        by.look(&told);
        told.names()
    }

    #[test]
    fn who_keeps_no_order_with_a_mount_is_named() {
        let slow = tempfile::tempdir().expect("a temporary directory");
        let slow = slow.path();
        assert_eq!(note(slow, None), None, "nobody was ever there");
        let (alone, one, two) =
            (present(slow, "/a", None), present(slow, "/b", Some("f")), present(slow, "/c", Some("f")));
        let host = nix::unistd::gethostname().expect("a name").into_string().expect("text");
        let named = |names: &[&str]| names.iter().map(|at| format!("{host}:{at}")).collect::<Vec<_>>();
        assert_eq!(seen(&alone), named(&["/b", "/c"]));
        assert_eq!((seen(&one), seen(&two)), (named(&["/a"]), named(&["/a"])), "a fleet keeps one order");
        let text = note(slow, Some("g")).expect("told");
        assert!(text.contains(&format!("{host}:/a, {host}:/b, {host}:/c")) && text.contains("fleet_size=N"), "{text}");
        drop(alone);
        assert_eq!((seen(&one), note(slow, Some("f"))), (vec![], None));
    }

    #[test]
    fn what_a_killed_daemon_left_names_nobody_and_goes() {
        let slow = tempfile::tempdir().expect("a temporary directory");
        let here = present(slow.path(), "/a", None);
        let left = slow.path().join(MOUNTS).join("left");
        fs::write(&left, format!("{} fleet=\n", Owner::ourselves(Path::new("/b"), Some(slow.path()), true)))
            .expect("written");
        let elsewhere = slow.path().join(MOUNTS).join("elsewhere");
        fs::write(&elsewhere, "host=another pid=1 mountpoint=/m slow=/s since=0 fleet=\n").expect("written");
        assert_eq!(seen(&here), [""; 0]);
        assert!(!left.exists() && elsewhere.exists(), "of another machine nobody knows whether locks reach it");
    }
}

//! Making and removing a FUSE mount: directly as root, through `fusermount3` otherwise.
//!
//! fuser's own mounting is not used: its teardown unmounts whatever is at the path by then, even a file system that was
//! below our mount, and it cannot give the mount its type `fuse.dlio`. A session gets the descriptor made here.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use fuser::SessionACL;
use nix::errno::Errno;
use nix::mount::MntFlags;
use nix::unistd::{getegid, geteuid};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, move_mount,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::error::{Context, Error, Result};
use crate::path::Show as _;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const SUBTYPE: &str = "dlio";

/// The `mount -o` options of any file system that mean something here.
pub type MountFlags = MountAttrFlags;

/// Their names, as mount(8) and the helper use them.
const FLAGS: [(&str, MountFlags); 5] = [
    ("ro", MountFlags::MOUNT_ATTR_RDONLY),
    ("nosuid", MountFlags::MOUNT_ATTR_NOSUID),
    ("nodev", MountFlags::MOUNT_ATTR_NODEV),
    ("noexec", MountFlags::MOUNT_ATTR_NOEXEC),
    ("noatime", MountFlags::MOUNT_ATTR_NOATIME),
];

/// The flag with this name.
pub fn flag(name: &str) -> Option<MountFlags> {
    FLAGS.iter().find(|(known, _)| *known == name).map(|(_, flag)| *flag)
}

/// The names of flags.
pub fn flag_names(flags: MountFlags) -> impl Iterator<Item = &'static str> {
    FLAGS.iter().filter(move |(_, flag)| flags.contains(*flag)).map(|(name, _)| *name)
}

/// What kind of mount to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct MountSpec<'a> {
    /// Shown as the mounted device: the slow tier, so that mount(8) recognizes its line of fstab.
    pub(super) source: &'a Path,
    pub(super) flags: MountFlags,
}

/// A mount whose requests no thread answers yet: the kernel's end of it, and which users may use it.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) device: OwnedFd,
    pub(super) acl: SessionACL,
}

/// Mounts, in place of a dead mount of ours if `replace` says that there is one.
///
/// A write to the path meanwhile waits for us or fails, but never lands hidden in the directory below (P3): the new
/// mount is put beneath the dead one, which is then removed. Before Linux 6.5, and through the helper, the directory is
/// bare for a moment.
pub(super) fn attach(mountpoint: &Path, wanted: MountSpec<'_>, replace: bool) -> Result<Attached> {
    let device = open_device()?;
    let mount = match detached_mount(&device, wanted) {
        // ENOSYS: some containers' system call filters know only the older calls, which the helper makes.
        Err(e) if [Some(Errno::EPERM as i32), Some(Errno::ENOSYS as i32)].contains(&e.raw_os_error()) => {
            if replace {
                take_away(mountpoint)?;
            }
            return attach_with_helper(mountpoint, wanted);
        }
        Err(e) if e.raw_os_error() == Some(Errno::ENODEV as i32) => {
            let remedy = "load it with `modprobe fuse`, or use a kernel built with CONFIG_FUSE_FS";
            return Err(Error::refused("this kernel has no FUSE file system", remedy));
        }
        mount => mount.at("mount", mountpoint.shown())?,
    };
    let place = |how| move_mount(&mount, "", CWD, mountpoint, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | how);
    let placed = match replace {
        true if place(MoveMountFlags::MOVE_MOUNT_BENEATH).is_ok() => return beneath(mountpoint, device),
        true => take_away(mountpoint).map(|()| place(MoveMountFlags::empty()))?,
        false => place(MoveMountFlags::empty()),
    };
    placed.map_err(io::Error::from).at("mount", mountpoint.shown())?;
    Ok(Attached { device: device.into(), acl: SessionACL::All })
}

fn beneath(mountpoint: &Path, device: File) -> Result<Attached> {
    take_away(mountpoint)?;
    Ok(Attached { device: device.into(), acl: SessionACL::All })
}

/// A mount that is not attached yet. `suid` and `dev` are on unless `wanted` says otherwise, as on any file system that
/// root mounts.
fn detached_mount(device: &File, wanted: MountSpec<'_>) -> io::Result<OwnedFd> {
    let config = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&config, "source", wanted.source)?;
    let options = [
        ("subtype", SUBTYPE.to_owned()),
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", geteuid().to_string()),
        ("group_id", getegid().to_string()),
    ];
    for (key, value) in options {
        fsconfig_set_string(&config, key, value)?;
    }
    for flag in ["default_permissions", "allow_other"] {
        fsconfig_set_flag(&config, flag)?;
    }
    // Set on the whole file system, so that bind mounts of it are read-only too; `mount -o remount` changes both.
    if wanted.flags.contains(MountFlags::MOUNT_ATTR_RDONLY) {
        fsconfig_set_flag(&config, "ro")?;
    }
    fsconfig_create(&config)?;
    Ok(fsmount(&config, FsMountFlags::FSMOUNT_CLOEXEC, wanted.flags)?)
}

pub(super) fn take_away(mountpoint: &Path) -> Result<()> {
    detach(mountpoint, Detach::Now).map_err(|errno| {
        let what = format!("the dead mount at {} cannot be unmounted: {}", mountpoint.shown(), errno.desc());
        Error::refused(what, format!("as root: umount -l {}", mountpoint.shown()))
    })
}

/// Opens the device, or says what to do about the error. The helper opens it as the user, so it would fail, too.
pub fn open_device() -> Result<File> {
    OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|e| match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => Error::refused(
            format!("{DEVICE} is missing"),
            "load the module with `modprobe fuse`; in a container, add `--device /dev/fuse --cap-add SYS_ADMIN`",
        ),
        _ => Error::refused(
            format!("{DEVICE} cannot be opened by user {}: {e}", geteuid()),
            "as root: chmod 666 /dev/fuse (udev's rules of the package fuse3 do it); in a container, `--device /dev/fuse`",
        ),
    })
}

/// The set-user-ID helper mounts for us and passes the descriptor back over a socket.
fn attach_with_helper(mountpoint: &Path, wanted: MountSpec<'_>) -> Result<Attached> {
    // /etc/fuse.conf does not restrict root.
    let acl = if others_allowed() || geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    let options = helper_options(acl, wanted);
    let failed = |e: io::Error| Error::io("run", HELPER, e);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    // The socket is the helper's standard input: the one descriptor number that is certain to be inherited.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(&options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let child = match child {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let what = format!("user {} may not mount, and {HELPER} is not installed", geteuid());
            let remedy =
                if geteuid().is_root() { helper_remedy() } else { "install the package fuse3, or run as root" };
            return Err(Error::refused(what, remedy));
        }
        child => child.map_err(failed)?,
    };
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).lines().collect::<Vec<_>>().join(" ");
        let what = format!("{HELPER} could not mount at {}: {}", mountpoint.shown(), why.trim());
        return Err(Error::refused(what, helper_remedy()));
    }
    match receive_descriptor(&ours).map_err(failed)? {
        Some(device) => Ok(Attached { device, acl }),
        None => Err(Error::refused(format!("{HELPER} passed no descriptor"), "update the package fuse3")),
    }
}

fn helper_options(acl: SessionACL, wanted: MountSpec<'_>) -> OsString {
    let mut options = b"fsname=".to_vec();
    for byte in wanted.source.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            options.push(b'\\');
        }
        options.push(*byte);
    }
    options.extend_from_slice(format!(",subtype={SUBTYPE},default_permissions").as_bytes());
    let allow_other = (acl == SessionACL::All).then_some("allow_other");
    for name in flag_names(wanted.flags).chain(allow_other) {
        options.push(b',');
        options.extend_from_slice(name.as_bytes());
    }
    OsString::from_vec(options)
}

/// The helper cannot do more than the kernel lets root do here.
fn helper_remedy() -> &'static str {
    match geteuid().is_root() {
        true => {
            "root lacks CAP_SYS_ADMIN here: give the container `--cap-add SYS_ADMIN --device /dev/fuse`, or mount on the \
             host and pass the mount in (`-v /mnt/train:/mnt/train:rslave`)"
        }
        false => "use a mount point that you own and may enter, or run as root",
    }
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received)
}

/// Whether users other than root may let other users into their mounts.
pub fn others_allowed() -> bool {
    std::fs::read_to_string("/etc/fuse.conf").is_ok_and(|text| text.lines().any(|l| l.trim() == "user_allow_other"))
}

/// How to remove a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Only when no process uses it; EBUSY otherwise.
    WhenFree,
    /// From the namespace at once; it ends when its last user has gone.
    Now,
}

/// Unmounts the topmost mount at `mountpoint`.
pub fn detach(mountpoint: &Path, how: Detach) -> Result<(), Errno> {
    let flags = match how {
        Detach::WhenFree => MntFlags::UMOUNT_NOFOLLOW,
        Detach::Now => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH,
    };
    match nix::mount::umount2(mountpoint, flags) {
        Err(Errno::EPERM) => detach_with_helper(mountpoint, how),
        done => done,
    }
}

/// Ends a mount that does not answer, even if it is in use: calls in progress fail with ECONNABORTED, and so does
/// everything on it from now on. Its daemon, if it can still run, makes everything durable and ends.
pub fn force(mountpoint: &Path) -> Result<(), Errno> {
    nix::mount::umount2(mountpoint, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_FORCE | MntFlags::MNT_DETACH)
}

fn detach_with_helper(mountpoint: &Path, how: Detach) -> Result<(), Errno> {
    let flags = if how == Detach::Now { "-uz" } else { "-u" };
    let output = Command::new(HELPER).args([flags, "--"]).arg(mountpoint).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        // The helper has one exit code for all failures; its text is the C library's.
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("busy") => Err(Errno::EBUSY),
        Ok(_) => Err(Errno::EPERM),
        Err(e) => Err(e.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
    }
}

/// What the helper reports as its version; `None` if it is not installed.
pub fn helper_version() -> Option<String> {
    let output = Command::new(HELPER).arg("-V").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use fuser::{Config, FileAttr, FileHandle, FileType, Filesystem, INodeNo, ReplyAttr, Request, Session};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::mount::Places;
    use crate::mount::table::{mounted_at, mounts};
    use crate::needs::{MOUNTS, needs};

    /// A root directory and nothing else.
    #[derive(Debug)]
    struct Bare;

    impl Filesystem for Bare {
        fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
            let now = SystemTime::now();
            let attr = FileAttr {
                ino,
                size: 0,
                blocks: 0,
                atime: now,
                mtime: now,
                ctime: now,
                crtime: now,
                kind: FileType::Directory,
                perm: 0o755,
                nlink: 2,
                uid: 0,
                gid: 0,
                rdev: 0,
                blksize: 4096,
                flags: 0,
            };
            reply.attr(&Duration::ZERO, &attr);
        }
    }

    fn mountpoint() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    /// Mounts, serves, reads, unmounts; both ways of mounting must give the same result.
    fn life(attach: impl Fn(&Path) -> Result<Attached>) {
        let dir = mountpoint();
        let path = dir.path().canonicalize().expect("it is there");
        let Attached { device, acl } = attach(&path).expect("this test needs /dev/fuse, and root or fusermount3");
        let mut config = Config::default();
        config.acl = acl;
        let session = Session::from_fd(Bare, device, acl, config).expect("the handshake");
        let served = std::thread::spawn(move || session.run());

        assert!(path.metadata().expect("the mount answers").is_dir());
        let table = mounts().expect("the table of mounts");
        assert!(mounted_at(&table, &path).expect("mounted").is_ours());
        let text = std::fs::read_to_string("/proc/self/mountinfo").expect("it is text");
        let line = text.lines().find(|line| line.contains(path.to_str().expect("ASCII"))).expect("mounted");
        assert!(line.contains("nosuid") && line.contains(" /a,b\\134c\\040d "), "{line}");
        let busy = File::open(&path).expect("the root directory");
        assert_eq!(detach(&path, Detach::WhenFree), Err(Errno::EBUSY));
        drop(busy);
        detach(&path, Detach::WhenFree).expect("free");
        served.join().expect("no panic").expect("the session ends well");
        assert!(mounted_at(&mounts().expect("the table of mounts"), &path).is_none());
    }

    fn wanted() -> MountSpec<'static> {
        MountSpec { source: Path::new("/a,b\\c d"), flags: MountFlags::MOUNT_ATTR_NOSUID }
    }

    #[test]
    fn a_mount_is_made_directly() {
        needs!(MOUNTS);
        life(|path| attach(path, wanted(), false));
    }

    #[test]
    fn a_mount_is_made_through_the_helper() {
        needs!(MOUNTS);
        life(|path| attach_with_helper(path, wanted()));
    }

    #[test]
    fn a_dead_mount_is_seen_replaced_and_taken_away() {
        needs!(MOUNTS);
        let dir = mountpoint();
        let path = dir.path().canonicalize().expect("it is there");
        let (fast, slow) = (mountpoint(), mountpoint());
        let dead = |replace| {
            let attached = attach(&path, wanted(), replace).expect("this test needs root and /dev/fuse");
            let served = Session::from_fd(Bare, attached.device, attached.acl, Config::default());
            drop(served.expect("the handshake"));
            let look = || path.metadata().expect_err("nobody serves it").raw_os_error();
            // A child that another test starts in parallel also holds the device until it has called exec: a look that
            // came before that was waiting for an answer.
            let gone = std::iter::repeat_with(look).find(|gone| *gone != Some(Errno::ECONNABORTED as i32));
            assert_eq!(gone, Some(Some(Errno::ENOTCONN as i32)));
        };
        dead(false);
        let places = Places::check(&path, fast.path(), slow.path(), false).expect("a dead mount is no hindrance");
        assert!(places.replaces_dead);
        dead(true);
        detach(&path, Detach::Now).expect("taken away");
        assert!(path.metadata().is_ok_and(|m| m.is_dir()), "the bare directory is back");
    }
}

//! The owner of a mount: the user who mounts, or the one that `owner` names. And how root continues as another user.

use std::ffi::CString;
use std::io;

use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, initgroups, setgroups, setresgid, setresuid, setuid};

use crate::error::{Context, Errno, Error, Result};

/// User and group of the mount's owner.
///
/// Errors: there is no such user, or it is another one and we are not root.
pub(super) fn of(owner: Option<&str>) -> Result<(u32, u32)> {
    let Some(named) = owner else { return Ok((geteuid().as_raw(), getegid().as_raw())) };
    let refused = |why: &str, remedy: &str| Error::refused(format!("owner = {named:?}: {why}"), remedy);
    let number = named.parse().ok().map(Uid::from_raw);
    let known = number.map_or_else(|| User::from_name(named), User::from_uid);
    let known = known.map_err(|errno| refused(&errno.to_string(), "write the number of the user"))?;
    let (uid, gid) = match (known, number) {
        (Some(user), _) => (user.uid, user.gid),
        // A number without a name here may have one elsewhere.
        (None, Some(uid)) => (uid, nobodys_group()),
        (None, None) => return Err(refused("there is no such user", "write a user's name or number")),
    };
    if !geteuid().is_root() && uid != geteuid() {
        return Err(refused("only root may give a mount to another user", "leave the key out, or mount as root"));
    }
    Ok((uid.as_raw(), gid.as_raw()))
}

/// Gives up the rights of root for those of a user, for good. A user whose name is unknown here gets only the group
/// nobody: the group of their files may be another's, inherited from a directory.
pub(super) fn become_user(uid: u32) -> Result<()> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let (gid, name) = user.map_or((nobodys_group(), None), |user| (user.gid, CString::new(user.name).ok()));
    let uid = Uid::from_raw(uid);
    let groups = name.map_or_else(|| setgroups(&[gid]), |name| initgroups(&name, gid));
    let gone = groups.and_then(|()| setresgid(gid, gid, gid)).and_then(|()| setresuid(uid, uid, uid));
    // The program may have been started with capabilities that remain.
    let gone = gone.and_then(|()| if setuid(Uid::from_raw(0)).is_ok() { Err(Errno::EPERM) } else { Ok(()) });
    gone.map_err(io::Error::from).at("go on", format!("with the rights of user {uid}"))
}

fn nobodys_group() -> Gid {
    const NOGROUP: u32 = 65_534;
    Group::from_name("nogroup").ok().flatten().map_or(Gid::from_raw(NOGROUP), |group| group.gid)
}

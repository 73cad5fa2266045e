//! The owner of a mount: the user who mounts, or the one that `owner` names.

use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid};

use crate::error::{Error, Result};

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
        // A number that has no name here may have one elsewhere.
        (None, Some(uid)) => (uid, nobodys_group()),
        (None, None) => return Err(refused("there is no such user", "write a user's name or number")),
    };
    if !geteuid().is_root() && uid != geteuid() {
        return Err(refused("only root may give a mount to another user", "leave the key out, or mount as root"));
    }
    Ok((uid.as_raw(), gid.as_raw()))
}

fn nobodys_group() -> Gid {
    const NOGROUP: u32 = 65_534;
    Group::from_name("nogroup").ok().flatten().map_or(Gid::from_raw(NOGROUP), |group| group.gid)
}

//! `.dlio/latest-safe`: a link to the newest checkpoint that is wholly on the slow tier.

use super::asker::Asker;
use super::node::VirtualNode;
use super::paths::walk;
use super::sources::Control;
use crate::error::{Errno, Result};
use crate::path::Name;
use crate::tiers::Ino;

impl Control {
    /// The link's target, relative to `.dlio`. ENOENT if there is no such checkpoint, or it no longer exists. EACCES
    /// for a user who could not reach the target: the path is not shown to them.
    pub(in crate::fs) fn latest_safe(&self, ino: Ino, asker: &Asker) -> Result<Vec<u8>> {
        if VirtualNode::of(ino)? != VirtualNode::LatestSafe {
            return Err(Errno::EINVAL.into());
        }
        let path = self.tiers.latest_safe().ok_or(Errno::ENOENT)?;
        let names: Vec<Name> = path.split(|byte| *byte == b'/').map(Name::new).collect::<Result<_, _>>()?;
        let asker = asker.clone();
        self.file_on_slow(move |tiers, cx| walk(tiers, cx, &names, |dir| asker.may(dir, 1)).map(drop))?;
        Ok([&b"../"[..], &path].concat())
    }
}

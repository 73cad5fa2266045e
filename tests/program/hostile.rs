//! What users do who mean harm, or do not care (P17). Root mounts; they are others. Needs root, /dev/fuse.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use crate::common::rig::{Rig, text};
use crate::needs::{MOUNTS, needs};

const SOMEBODY: u32 = 1001;

/// Whoever had made the directory before root mounted over it could swap the log between two mounts, and with it who owns what: the
/// next mount made a set-id program of root's. Or read and replace everybody's pending files.
#[test]
fn a_tier_that_somebody_else_prepared_is_refused_until_it_is_root_s() {
    needs!(MOUNTS);
    for place in ["fast/.dlio-fs/log", "fast/.dlio-fs/pool/00", "slow/.dlio-fs/tmp", "slow"] {
        let rig = Rig::new();
        rig.mount(&[]);
        rig.umount_safely();
        let theirs = rig.path(place);
        fs::create_dir_all(&theirs).unwrap();
        chown(&theirs, Some(SOMEBODY), None).unwrap();
        let refused = rig.mount_command().output().unwrap();
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("chown 0 {}", theirs.display())), "{said}");
        chown(&theirs, Some(0), None).unwrap();
        fs::set_permissions(&theirs, Permissions::from_mode(0o777)).unwrap();
        let said = text(&rig.mount_command().output().unwrap().stderr);
        assert!(said.contains(&format!("chmod go-w {}", theirs.display())), "{said}");
        fs::set_permissions(&theirs, Permissions::from_mode(0o755)).unwrap();
        rig.mount(&[]);
        rig.umount_safely();
    }
}

//! What a job leaves behind when its mount or its window ends.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::common::{Elsewhere, Mount, names, succeeded};
use crate::needs::{MOUNTS, needs};

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
const ALICE: u32 = 61_001;

/// A directory to which every user may write, as one for the logs of jobs.
fn reports() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o1777)).tempdir().unwrap()
}

#[test]
fn a_mount_and_its_windows_leave_a_record_of_the_job_to_its_user() {
    needs!(MOUNTS);
    let dir = reports();
    let into = format!("job_report={}", dir.path().display());
    let mut mount = Mount::with(&[&into, &format!("owner={ALICE}"), "job=4711"], |_| ());
    mount.put("before", "not the window's");
    assert!(mount.control("window start job inner").starts_with("ok: "));
    mount.put("inside", "the window's");
    let reply = mount.control("window stop");
    assert!(reply.contains("; report: ") && reply.contains("/inner-"), "{reply}");
    // Another one leaves nothing.
    assert!(mount.control("window start epoch").starts_with("ok: "));
    assert!(!mount.control("window stop").contains("report"));
    mount.stop();
    // Another one of the same job, by what Slurm says.
    let mut again = Mount::idle(Elsewhere::default(), &[&into]);
    again.through(&["env", "SLURM_JOB_ID=4711"]);
    again.start();
    again.stop();

    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let expected =
        ["4711-{}-2.dlio", "4711-{}-2.html", "4711-{}.dlio", "4711-{}.html", "inner-{}.dlio", "inner-{}.html"];
    let expected = expected.map(|name| OsString::from(name.replace("{}", &host)));
    assert_eq!(names(dir.path()), expected);
    for (name, owner) in expected.iter().zip([0, 0, ALICE, ALICE, ALICE, ALICE]) {
        let stat = fs::metadata(dir.path().join(name)).unwrap();
        assert_eq!((stat.uid(), stat.mode() & 0o777), (owner, 0o600), "{name:?}");
    }
    let report = |name: &OsString| {
        succeeded(Command::new(PROGRAM).args(["report", "--all"]).arg(dir.path().join(name)).output().unwrap())
    };
    assert!(report(&expected[2]).contains("/before") && report(&expected[2]).contains("/inside"));
    assert!(!report(&expected[4]).contains("/before") && report(&expected[4]).contains("/inside"));
    assert!(fs::read_to_string(dir.path().join(&expected[5])).unwrap().starts_with("<!doctype html>"));
}

#[test]
fn a_directory_that_cannot_be_is_refused_before_anything_is_mounted() {
    needs!(MOUNTS);
    for (below, why) in [("none", "No such file"), ("mnt", "inside the mount")] {
        let mut mount = Mount::idle(Elsewhere::default(), &[]);
        let dir = mount.root().with_file_name(below);
        mount.option(&format!("job_report={}", dir.display()));
        let (code, said) = mount.refused();
        assert!(code == Some(1) && said.contains(why) && said.contains("job_report"), "{code:?} {said}");
    }
    let mount = Mount::idle(Elsewhere::default(), &["owner=nobody-is-called-so"]);
    let (code, said) = mount.refused();
    assert!(code == Some(1) && said.contains("there is no such user"), "{code:?} {said}");
}

//! `packaging/slurm`: the scripts with the environment that slurmd gives them, on real mounts, and `burst_buffer.lua` as slurmctld calls
//! it. A Slurm that does all of this by itself is `tests/slurm/cluster.py` (`cargo xtask test slurm`).
//!
//! Needs root and /dev/fuse; Lua as Debian has it: Debian's Slurm brings 5.1, others a later one.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::rig::{NEVER_SETTLES, copy_program, text};
use crate::common::until;
use crate::needs::{MOUNTS, needs};

const JOB: &str = "17";
const NOBODY: u32 = 65534;
const LUAS: [&str; 2] = ["lua5.1", "lua5.4"];

/// The functions that Slurm demands, 22.05 and later.
const FUNCTIONS: [&str; 13] = [
    "slurm_bb_job_process",
    "slurm_bb_pools",
    "slurm_bb_job_teardown",
    "slurm_bb_setup",
    "slurm_bb_data_in",
    "slurm_bb_test_data_in",
    "slurm_bb_real_size",
    "slurm_bb_paths",
    "slurm_bb_pre_run",
    "slurm_bb_post_run",
    "slurm_bb_data_out",
    "slurm_bb_test_data_out",
    "slurm_bb_get_status",
];

/// Calls one function in a state of its own; prints its code, then what it says.
const DRIVER: &str = r#"
slurm = { SUCCESS = 0, ERROR = -1 }
for _, level in ipairs({ "error", "info", "verbose", "debug" }) do
    slurm["log_" .. level] = function() end
end
dofile(arg[1])
local code, said = _G[arg[2]]((table.unpack or unpack)(arg, 3))
io.write(tostring(code), "\n", said or "")
"#;

/// What a site has: tiers, a place for mounts, and the files of `packaging/slurm`, set to these.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        let site = Site { dir };
        for name in ["optane", "lustre/requests", "lustre/home", "mnt", "log", "bin"] {
            fs::create_dir_all(site.path(name)).unwrap();
        }
        chown(site.path("lustre/home"), Some(NOBODY), Some(NOBODY)).unwrap();
        copy_program(&site.path("bin/dlio-fs"));
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm");
        for file in fs::read_dir(packaging).unwrap().map(|file| file.unwrap()) {
            fs::copy(file.path(), site.path("bin").join(file.file_name())).unwrap();
        }
        let at = |name: &str| site.path(name).display().to_string();
        for (line, name) in [
            ("fast_root=/optane", "optane"),
            ("mount_root=/mnt/job", "mnt"),
            ("slow_root=/shared/jobs", "lustre/jobs"),
            ("requests=/shared/requests", "lustre/requests"),
            ("log_dir=/var/log", "log"),
        ] {
            let key = line.split('=').next().unwrap();
            site.edit("common.sh", &format!("\n{line}\n"), &format!("\n{key}={}\n", at(name)));
        }
        site.edit("common.sh", "PATH=", &format!("PATH={}:", at("bin")));
        // However full the disk of this machine is.
        site.edit("common.sh", " --job ", " -o high=98%,low=97%,reserve=0% --job ");
        site.edit("burst_buffer.lua", "\"/shared/requests\"", &format!("\"{}\"", at("lustre/requests")));
        site.edit("burst_buffer.lua", "\"/mnt/job\"", &format!("\"{}\"", at("mnt")));
        fs::write(site.path("driver.lua"), DRIVER).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Fails where a file does not have what is to be replaced.
    fn edit(&self, file: &str, what: &str, with: &str) {
        let path = self.path("bin").join(file);
        let was = fs::read_to_string(&path).unwrap();
        assert!(was.contains(what), "{file} has no {what:?}");
        fs::write(path, was.replacen(what, with, 1)).unwrap();
    }

    /// A script with what slurmd gives to it and nothing else.
    fn run(&self, script: &str) -> Output {
        slurmd_s(&mut Command::new(self.path("bin").join(script))).output().unwrap()
    }

    /// Runs a shell script with the scripts as commands and `as_user`, in a mount name space where everybody may open /dev/fuse.
    fn session(&self, script: &str) -> Output {
        let devices =
            "mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3
            mknod -m 666 /dev/urandom c 1 9
            as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"; }";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", &format!("{devices}\n{script}")]);
        slurmd_s(command.current_dir(self.dir.path())).env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().unwrap()
    }

    /// What Lua is to be called with.
    fn lua(&self, lua: &str, function: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(lua);
        command.arg(self.path("driver.lua")).arg(self.path("bin/burst_buffer.lua")).arg(function).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A function's code, and what it says.
    fn calls(&self, lua: &str, function: &str, arguments: &[&str]) -> (i32, String) {
        let output = self.lua(lua, function, arguments).output().unwrap();
        let said = text(&output.stdout);
        let (code, said) = said.split_once('\n').unwrap_or_else(|| panic!("{function}: {output:?}"));
        (code.parse().unwrap(), said.to_owned())
    }

    /// A job script with these lines.
    fn job(&self, lines: &str) -> String {
        let path = self.path("job.sh");
        fs::write(&path, format!("#!/bin/sh\n#SBATCH -n 1\n{lines}\nhostname\n#BB_LUA this is too late\n")).unwrap();
        path.display().to_string()
    }
}

impl Drop for Site {
    /// What a test that failed has left mounted, so that it is not gone through when the directory is removed.
    fn drop(&mut self) {
        let point = self.path("mnt").join(JOB);
        while nix::mount::umount2(&point, nix::mount::MntFlags::MNT_DETACH).is_ok() {}
    }
}

fn slurmd_s(command: &mut Command) -> &mut Command {
    command.env_clear().env("SLURM_JOB_ID", JOB).env("SLURM_JOB_UID", "65534").env("SLURM_JOB_USER", "nobody");
    command.env("SLURMD_NODENAME", "node1").env("SLURM_NODELIST", "node1");
    command.stdin(Stdio::null())
}

#[test]
fn the_scripts_for_slurm_mount_drain_and_tell_what_is_left() {
    needs!(MOUNTS);
    let site = Site::new();
    let [mountpoint, fast, slow] = ["mnt/17", "optane/17", "lustre/jobs/17"].map(|path| site.path(path));
    let in_time = |script: &str| site.run(script).status.code();

    // A slow tier that does not take anything in time: the files stay, are listed, and the node is noticed.
    site.edit("common.sh", " --job ", &format!(" {} --job ", NEVER_SETTLES.join(" ")));
    site.edit("epilog.sh", "--timeout \"$drain_timeout\"", "--now");
    assert_eq!(in_time("prolog.sh"), Some(0));
    fs::write(mountpoint.join("ckpt"), "weights").unwrap();
    let told = site.run("task_prolog.sh");
    assert_eq!(text(&told.stdout), format!("export DLIO_MOUNT={}\n", mountpoint.display()));
    let output = site.run("epilog.sh");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "ckpt\n"), "{output:?}");
    assert!(fast.exists(), "the only copy is not removed");

    // As the page says: the prolog once more, then the epilog.
    site.edit("common.sh", &format!(" {} --job ", NEVER_SETTLES.join(" ")), " --job ");
    site.edit("epilog.sh", "--now", "--timeout \"$drain_timeout\"");
    assert_eq!(in_time("prolog.sh"), Some(0));
    assert_eq!(fs::read_to_string(mountpoint.join("ckpt")).unwrap(), "weights");
    assert_eq!(in_time("epilog.sh"), Some(0));
    assert!(!fast.exists() && !mountpoint.exists());
    let node = fs::read_dir(&slow).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(node.join("ckpt")).unwrap(), "weights");
    // The daemon's own is safe from the job.
    assert_eq!((node.metadata().unwrap().uid(), node.metadata().unwrap().mode() & 0o7777), (0, 0o1770));
    assert_eq!(in_time("epilog.sh"), Some(0), "of a job that has nothing here");
}

#[test]
fn directives_are_checked_when_a_job_is_submitted() {
    needs!("lua5.1", "lua5.4", "setpriv");
    let site = Site::new();
    let takes = |lua: &str, lines: &str| site.calls(lua, "slurm_bb_job_process", &[&site.job(lines), "65534", "65534"]);
    for lua in LUAS {
        for taken in [
            "#BB_LUA jobdw slow=/lustre/home/run",
            "#BB_LUA jobdw slow=/lustre/home/run pool=dlio capacity=10GiB type=scratch access_mode=private",
            "#BB_LUA jobdw slow=/lustre/home/run\n\n#BB_LUA stage_in source=/lustre/home/run/data type=directory",
            "#BB_LUA jobdw slow=/l\n#BB_LUA stage_in source=/l/a_b-c+d@1,2=3 destination=$DLIO_MOUNT/a_b-c+d@1,2=3",
            "#BB_LUA stage_out source=$DLIO_MOUNT destination=/lustre/home\n#BB_LUA jobdw slow=/lustre/home",
        ] {
            assert_eq!(takes(lua, taken), (0, String::new()), "{lua}: {taken}");
        }
        for (refused, why) in [
            ("#BB_LUA", "a directive is jobdw, stage_in or stage_out"),
            ("#BB_LUA persistentdw name=x", "a directive is jobdw"),
            ("#BB_LUAjobdw slow=/l", "a directive is jobdw"),
            ("#BB_LUA stage_in source=/l/x", "jobdw is missing"),
            ("#BB_LUA jobdw slow=/l\n#BB_LUA jobdw slow=/m", "two jobdw"),
            ("#BB_LUA jobdw capacity=1GiB pool=dlio", "needs slow="),
            ("#BB_LUA jobdw slow=/l slow=/m", "slow= twice"),
            ("#BB_LUA jobdw slow=l", "absolute path"),
            ("#BB_LUA jobdw slow=/l/../etc", "absolute path"),
            ("#BB_LUA jobdw slow=/", "absolute path"),
            ("#BB_LUA jobdw slow=/l;reboot", "plain characters"),
            ("#BB_LUA jobdw slow=/l/$(reboot)", "are not expanded"),
            ("#BB_LUA jobdw slow=$HOME/run7", "jobdw: slow=$HOME/run7: no shell reads a directive"),
            ("#BB_LUA jobdw slow=${SCRATCH}/run7", "write them out"),
            ("#BB_LUA jobdw slow=~/run7", "~ and variables are not expanded"),
            ("#BB_LUA jobdw slow=/l pool=dlio capacity=$SIZE", "capacity=$SIZE: no shell"),
            ("#BB_LUA jobdw slow=/l\n#BB_LUA stage_in source=/l/$USER", "stage_in: source=/l/$USER: no shell"),
            (
                "#BB_LUA jobdw slow=/l\n#BB_LUA stage_in source=/l/x destination=$TMPDIR/x",
                "destination=$TMPDIR/x: no shell",
            ),
            ("#BB_LUA jobdw slow=$DLIO_MOUNT", "absolute path"),
            ("#BB_LUA jobdw slow=/l/`reboot`", "plain characters"),
            ("#BB_LUA jobdw slow=/l/*", "plain characters"),
            ("#BB_LUA jobdw slow=/l/%u", "plain characters"),
            ("#BB_LUA jobdw slow=\"/l\"", "plain characters"),
            ("#BB_LUA jobdw slow=/l access_mode=striped", "does not know access_mode=striped"),
            ("#BB_LUA jobdw slow=/l size=3", "does not know size=3"),
            ("#BB_LUA jobdw slow=/l \\", "does not know \\"),
            ("#BB_LUA jobdw slow=/l\n#BB_LUA stage_in destination=/l", "needs source="),
            ("#BB_LUA jobdw slow=/l\n#BB_LUA stage_in source=/lake/x", "/lake/x is not below slow=/l"),
            ("#BB_LUA jobdw slow=/l\n#BB_LUA stage_in source=/l/x destination=$DLIO_MOUNT/y", "is at $DLIO_MOUNT/x"),
            ("#BB_LUA jobdw slow=/l\n#BB_LUA stage_out destination=/etc", "/etc is not below slow=/l"),
        ] {
            let (code, said) = takes(lua, refused);
            assert!(code == -1 && said.starts_with("#BB_LUA: ") && said.contains(why), "{lua}: {refused}: {said}");
        }
        assert_eq!(site.calls(lua, "slurm_bb_job_process", &["/none", "1", "1"]).0, -1);
        let (code, pools) = site.calls(lua, "slurm_bb_pools", &[]);
        let pools: serde_json::Value = serde_json::from_str(&pools).unwrap();
        assert_eq!((code, &pools["pools"][0]["id"]), (0, &"dlio".into()));
        for function in FUNCTIONS {
            let there = format!("dofile(arg[1]); os.exit(type({function}) == 'function' and 0 or 1)");
            fs::write(site.path("there.lua"), there).unwrap();
            let mut command = Command::new(lua);
            let code = command.arg(site.path("there.lua")).arg(site.path("bin/burst_buffer.lua")).status().unwrap();
            assert!(code.success(), "{lua}: {function}");
        }
    }
}

/// In the order in which Slurm calls: directives, the note for the node, prolog, task prolog, the job, epilog; and the controller, which
/// waits meanwhile.
#[test]
fn a_job_with_directives_is_staged_and_drained_with_the_rights_of_its_user() {
    needs!(MOUNTS, "setpriv", "getfattr", "lua5.1", "lua5.4");
    for lua in LUAS {
        let site = Site::new();
        let (slow, request) = (site.path("lustre/home/run7"), site.path("lustre/requests/17"));
        let script = site.job(&format!(
            "#BB_LUA jobdw slow={0} pool=dlio capacity=1GiB\n#BB_LUA stage_in source={0}/data\n\
             #BB_LUA stage_out destination={0}/run",
            slow.display()
        ));
        let of_job = [JOB, &script, "65534", "65534"];
        let setup = [JOB, "65534", "65534", "dlio", "1073741824", &script];
        assert_eq!(site.calls(lua, "slurm_bb_setup", &setup), (0, String::new()));
        assert_eq!(fs::read_to_string(&request).unwrap(), format!("slow {}\nstage_in /data\n", slow.display()));
        assert_eq!(site.calls(lua, "slurm_bb_data_in", &of_job).0, 0);
        let paths = site.path("paths");
        fs::write(&paths, "").unwrap();
        let of_paths = [JOB, &script, paths.to_str().unwrap(), "65534", "65534"];
        assert_eq!(site.calls(lua, "slurm_bb_paths", &of_paths).0, 0);
        let mountpoint = site.path("mnt/17");
        let variables = format!("DLIO_MOUNT={}\nDLIO_SLOW={}\n", mountpoint.display(), slow.display());
        assert_eq!(fs::read_to_string(&paths).unwrap(), variables);
        let status = |site: &Site| site.calls(lua, "slurm_bb_get_status", &["0", "0"]).1;
        assert_eq!(status(&site), "job 17 waits, runs or drains\n");
        assert_eq!(site.calls(lua, "slurm_bb_pre_run", &of_job).0, 0);

        let mut waits = Waiting(site.lua(lua, "slurm_bb_data_out", &of_job).spawn().unwrap());
        let session = "as_user mkdir -p lustre/home/run7/data
            as_user sh -c 'head -c 100000 /dev/urandom > lustre/home/run7/data/samples'
            bin/prolog.sh
            as_user bin/task_prolog.sh
            # Nothing of a user's is there, and no other user may look into what is.
            ls log; stat -c %a optane/17
            # Not even root gets in: nothing of it was made by root.
            ! ls mnt/17 2> /dev/null
            as_user getfattr --only-values -n user.dlio.state mnt/17/data/samples; echo
            as_user sh -c 'mkdir mnt/17/run; cp mnt/17/data/samples mnt/17/run/ckpt'
            # As a job may do, and what it wrote stays.
            as_user kill -9 $(sed -n 's/.* pid=\\([0-9]*\\) .*/\\1/p' optane/17/.dlio-fs/lock)
            [ -e lustre/requests/17 ]
            grep -q 'State:.[RSD]' /proc/CONTROLLER/status
            bin/epilog.sh
            ! ls mnt/17 optane/17 mnt/17.failed lustre/requests/17 2> /dev/null";
        let output = site.session(&session.replace("CONTROLLER", &waits.0.id().to_string()));
        let said = format!("export DLIO_MOUNT={}\n700\nstaged\n", mountpoint.display());
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), said), "{output:?}");
        assert_eq!(fs::read(slow.join("run/ckpt")).unwrap(), fs::read(slow.join("data/samples")).unwrap());
        assert_eq!(slow.join("run/ckpt").metadata().unwrap().uid(), NOBODY);
        until("the controller has noticed", || waits.0.try_wait().unwrap().is_some());
        assert_eq!(site.calls(lua, "slurm_bb_job_teardown", &[JOB, &script, "false", "65534", "65534"]).0, 0);

        // Of a job that never ran nothing is left.
        assert_eq!(site.calls(lua, "slurm_bb_setup", &setup).0, 0);
        assert_eq!(site.calls(lua, "slurm_bb_job_teardown", &[JOB, &script, "true", "65534", "65534"]).0, 0);
        assert!(!request.exists());
        assert_eq!(status(&site), "no job has a burst buffer\n");
    }
}

/// What a job asks for wrongly is its own failure: the node stays in service, and the job is told.
#[test]
fn what_cannot_be_mounted_or_staged_fails_the_job_and_not_the_node() {
    needs!(MOUNTS, "setpriv");
    let site = Site::new();
    fs::create_dir(site.path("lustre/roots")).unwrap();
    // Everybody may write there, and only its owner may mount it: the node is not at fault either.
    fs::create_dir(site.path("lustre/theirs")).unwrap();
    chown(site.path("lustre/theirs"), Some(1001), None).unwrap();
    fs::set_permissions(site.path("lustre/theirs"), fs::Permissions::from_mode(0o1777)).unwrap();
    let home = site.path("lustre/home").display().to_string();
    for (request, why) in [
        (format!("slow {home}/none\n"), "none"),
        (format!("slow {}\n", site.path("lustre/roots").display()), "roots"),
        (format!("slow {}\n", site.path("lustre/theirs").display()), "theirs belongs to user 1001"),
        (format!("slow {home}\nstage_in /nothing\n"), "cannot stage /nothing: "),
    ] {
        fs::write(site.path("lustre/requests/17"), &request).unwrap();
        let output = site.session(
            "bin/prolog.sh
            find lustre/requests -type l -printf 'claimed\n'
            code=0; as_user bin/task_prolog.sh || code=$?
            bin/epilog.sh
            ! ls mnt/17 optane/17 mnt/17.failed lustre/requests/17 2> /dev/null
            exit $code",
        );
        assert_eq!(output.status.code(), Some(1), "{request}: {output:?}");
        let said = text(&output.stdout);
        // Whoever may not have a directory must not keep its owner's jobs from it.
        let (said, claimed) = said.strip_prefix("claimed\n").map_or((&*said, false), |rest| (rest, true));
        assert_eq!(claimed, request.contains("stage_in"), "{request}");
        assert!(said.starts_with("print dlio-fs: ") && said.contains(why), "{request}: {output:?}");
    }
    assert_eq!(fs::read_dir(site.path("lustre/roots")).unwrap().count(), 0, "nothing was made as root");

    // Here the node is at fault: nobody but root may mount.
    fs::write(site.path("lustre/requests/17"), format!("slow {home}\n")).unwrap();
    let output = site.session("chmod 600 /dev/fuse; code=0; bin/prolog.sh || code=$?; bin/epilog.sh; exit $code");
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("/dev/fuse"), "{output:?}");
}

/// Two mounts over one slow directory would not know of each other.
#[test]
fn a_slow_directory_is_one_jobs() {
    needs!(MOUNTS, "setpriv");
    let site = Site::new();
    let request = site.path("lustre/requests/17");
    let slow = site.path("lustre/home").display().to_string();
    let claim = site.path("lustre/requests").join(slow.replace('/', "%"));
    fs::write(&request, format!("slow {slow}\n")).unwrap();
    std::os::unix::fs::symlink("16", &claim).unwrap();
    fs::create_dir(site.path("lustre/requests/16.nodes")).unwrap();
    fs::write(site.path("lustre/requests/16.nodes/node3"), "").unwrap();
    let output = site
        .session("bin/prolog.sh; as_user bin/task_prolog.sh || :; bin/epilog.sh; ! ls optane/17 mnt/17 2> /dev/null");
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("is in use by job 16 on node3 "), "{output:?}");
    assert_eq!(fs::read_link(&claim).unwrap(), Path::new("16"), "it stays theirs");
    assert!(!request.exists());
    fs::remove_file(&claim).unwrap();
    // The other one claims it a moment later.
    fs::write(&request, format!("slow {slow}\n")).unwrap();
    site.edit("prolog.sh", "\nif ! ln -s ", &format!("\nln -s 16 '{}'\nif ! ln -s ", claim.display()));
    let session = "bin/prolog.sh; ls optane mnt; as_user bin/task_prolog.sh || :; bin/epilog.sh; ! ls optane/17 mnt/17 2> /dev/null";
    let output = site.session(session);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("is in use by job 16 on node3 "), "{output:?}");
    assert!(said.starts_with("mnt:\n17\n17.failed\n\noptane:\n17.nodes\n"), "nothing is mounted: {said}");
    site.edit("prolog.sh", &format!("\nln -s 16 '{}'", claim.display()), "");
    fs::remove_file(&claim).unwrap();
    fs::remove_dir_all(site.path("lustre/requests/16.nodes")).unwrap();
    fs::write(&request, format!("slow {slow}\n")).unwrap();
    let output = site.session("bin/prolog.sh; bin/prolog.sh; as_user bin/task_prolog.sh > told; as_user touch mnt/17/made; bin/epilog.sh; ls lustre/home");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "made\n"), "{output:?}");
    assert_eq!(fs::read_dir(site.path("lustre/requests")).unwrap().count(), 0, "nothing is in use");
    assert_eq!(fs::read_dir(site.path("optane")).unwrap().count(), 0);
}

/// Its nodes come one after the other here, and in the same directories. The controller waits until the request is gone.
#[test]
fn a_job_is_done_when_its_last_node_is() {
    needs!(MOUNTS, "setpriv");
    let site = Site::new();
    fs::write(site.path("lustre/requests/17"), format!("slow {}\n", site.path("lustre/home").display())).unwrap();
    fs::write(
        site.path("bin/scontrol"),
        "#!/bin/sh\n[ \"$*\" = 'show hostnames n[1-3]' ] && printf 'n1\\nn2\\nn3\\n'\n",
    )
    .unwrap();
    fs::set_permissions(site.path("bin/scontrol"), fs::Permissions::from_mode(0o755)).unwrap();
    let session = "export SLURM_NODELIST='n[1-3]'
        undone() { echo $(LC_ALL=C ls lustre/requests); echo $(ls lustre/requests/17.nodes); }
        export SLURMD_NODENAME=n1
        bin/prolog.sh
        head -1 lustre/home/.dlio-fs/fleet/17/fleet
        ! SLURMD_NODENAME=other bin/epilog.sh 2> told; cat told
        bin/epilog.sh
        undone
        export SLURMD_NODENAME=n2
        bin/prolog.sh
        bin/epilog.sh
        undone
        export SLURMD_NODENAME=n3
        bin/prolog.sh
        # After a reboot, without its disk.
        mount -t tmpfs none optane
        ! bin/epilog.sh 2> told; grep -c 'is the disk of the fast tier mounted' told
        umount optane
        undone
        # It was there before, and did not get to the end.
        rm -r lustre/requests/17.nodes
        bin/epilog.sh
        LC_ALL=C ls lustre/requests optane";
    let output = site.session(session);
    let claim = site.path("lustre/home").display().to_string().replace('/', "%");
    let said = [
        "fleet_size = 3",
        "no node of job 17 is called other: set SLURMD_NODENAME",
        &format!("{claim} 17 17.nodes"),
        "n2 n3",
        &format!("{claim} 17 17.nodes"),
        "n3",
        "1",
        &format!("{claim} 17 17.nodes"),
        "n3",
        "lustre/requests:",
        "",
        "optane:",
    ];
    assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), said, "{output:?}");
}

/// The controller's function that waits.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

"""A Slurm of one node, with the files of packaging/slurm, on real mounts: slurmctld, slurmd and munged from Debian's packages.

    python3 tests/slurm/cluster.py PROGRAM TOOLS

PROGRAM is dlio-fs; below TOOLS the packages are unpacked (/ if they are installed). Needs root. Everything is in a temporary directory, and taken down at the end.
Says what is as it should be, a line each, and what is not; the exit code is 1 then.
"""

import contextlib
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "slurm"
USER = "nobody"
# Reached only if something hangs.
PATIENCE = 120


def until(what, is_so):
    end = time.monotonic() + PATIENCE
    while not (found := is_so()):
        if time.monotonic() > end:
            raise AssertionError(f"never: {what}")
        time.sleep(0.1)
    return found


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Cluster:
    """The daemons, and the directories of a site: `optane`, `lustre`, `mnt`, `log`."""

    def __init__(self, program, tools, top):
        self.program, self.tools, self.top = program, tools, top
        self.node = socket.gethostname().split(".")[0]
        self.conf = top / "etc"
        self.user = pwd.getpwnam(USER)
        self.daemons = []
        self.plugins = next((tools / "usr/lib").glob("*/slurm-wlm"))
        libraries = f"{self.plugins}:{self.plugins.parent}"
        self.env = {
            "PATH": f"{tools}/usr/bin:{tools}/usr/sbin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LD_LIBRARY_PATH": libraries,
            "SLURM_CONF": str(self.conf / "slurm.conf"),
        }

    def configure(self):
        # Everybody's jobs and their user must get to their directories.
        self.top.chmod(0o755)
        for name in ["etc", "run", "state", "spool", "log", "optane", "lustre", "lustre/requests", "lustre/home", "mnt", "scripts", "bin"]:
            (self.top / name).mkdir()
        home = self.top / "lustre/home"
        os.chown(home, self.user.pw_uid, self.user.pw_gid)
        # Where its user may run it, too.
        shutil.copy(self.program, self.top / "bin/dlio-fs")
        places = {
            "/optane": "optane",
            "/mnt/job": "mnt",
            "/lustre/jobs": "lustre/jobs",
            "/lustre/requests": "lustre/requests",
            "/var/log": "log",
            "/usr/local/bin": "bin",
        }

        def ours(text):
            return re.sub(
                r"(?<![\w/.])(" + "|".join(map(re.escape, places)) + r")(?![\w-])",
                lambda found: str(self.top / places[found[1]]),
                text,
            )

        for file in PACKAGE.iterdir():
            to = (self.conf if file.suffix == ".lua" else self.top / "scripts") / file.name
            to.write_text(ours(file.read_text()))
            to.chmod(0o755)
        # An epilog that does not get done in time, while this file is there.
        self.held = self.top / "held"
        epilog = self.top / "scripts/epilog_unless_held.sh"
        epilog.write_text(f"#!/bin/sh\nif [ -e {self.held} ]; then exit 3; fi\nexec {self.top}/scripts/epilog.sh\n")
        epilog.chmod(0o755)
        (self.conf / "burst_buffer.conf").write_text("StageOutTimeout=100\nOtherTimeout=60\n")
        settings = {
            "ClusterName": "one",
            "SlurmctldHost": f"{self.node}(127.0.0.1)",
            "SlurmctldPort": free_port(),
            "SlurmdPort": free_port(),
            "SlurmUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.top}/run/munge",
            "CryptoType": "crypto/munge",
            "PluginDir": self.plugins,
            "StateSaveLocation": self.top / "state",
            "SlurmdSpoolDir": self.top / "spool",
            "SlurmctldPidFile": self.top / "run/slurmctld.pid",
            "SlurmdPidFile": self.top / "run/slurmd.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "MpiDefault": "none",
            "ReturnToService": 2,
            "SchedulerParameters": "sched_interval=1,batch_sched_delay=0",
            "MinJobAge": 300,
            "BurstBufferType": "burst_buffer/lua",
            "Prolog": self.top / "scripts/prolog.sh",
            "Epilog": self.top / "scripts/epilog_unless_held.sh",
            "TaskProlog": self.top / "scripts/task_prolog.sh",
            "PrologFlags": "Alloc",
            "DebugFlags": "BurstBuffer",
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        lines.append(f"NodeName={self.node} NodeAddr=127.0.0.1 CPUs={os.cpu_count()}")
        lines.append(f"PartitionName=all Nodes={self.node} Default=YES MaxTime=INFINITE")
        (self.conf / "slurm.conf").write_text("\n".join(lines) + "\n")

    def daemon(self, name, *arguments):
        log = open(self.top / f"log/{name}", "wb")
        found = self.tools / "usr/sbin" / name
        # They go by the name they are called by: a plugin takes `slurmctld-wlm` for another program than `slurmctld`. Debian has links.
        program = self.top / "bin" / name
        program.symlink_to(found if found.exists() else found.with_name(f"{name}-wlm"))
        process = subprocess.Popen([program, *arguments], env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.daemons.append((name, process))

    def start(self):
        key = self.top / "etc/munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        run = self.top / "run"
        self.daemon(
            "munged", "--foreground", "--force", f"--socket={run}/munge", f"--key-file={key}", f"--pid-file={run}/munged.pid",
            f"--seed-file={run}/seed", f"--log-file={self.top}/log/munged.log",
        )
        until("munged listens", (run / "munge").exists)
        self.daemon("slurmctld", "-D", "-c")
        self.daemon("slurmd", "-D", "-N", self.node, "-d", self.tools / "usr/sbin/slurmstepd-wlm")
        until("the node is idle", lambda: self.asks("sinfo", "-h", "-o", "%t") == "idle")

    def stop(self):
        for _, process in reversed(self.daemons):
            process.send_signal(signal.SIGTERM)
        for _, process in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()

    def run(self, *command, user=False):
        own = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if user else {}
        return subprocess.run(command, env=self.env, capture_output=True, text=True, cwd="/", timeout=PATIENCE, **own)

    def asks(self, *command):
        return self.run(*command).stdout.strip()

    def submit(self, name, script, *options):
        """As the user; its output goes to the slow tier's home directory, which the job need not have mounted."""
        path = self.top / "lustre/home" / f"{name}.sh"
        path.write_text(script)
        output = self.top / "lustre/home" / f"{name}.out"
        return self.run("sbatch", "--parsable", "--chdir=/", "-o", output, *options, path, user=True), output

    def ended(self, number):
        """The state, once node and burst buffer are done with it."""

        def state():
            state = self.asks("squeue", "-h", "-t", "all", "-j", number, "-o", "%T")
            return state if state in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"} else None

        return until(f"job {number} ends", state)

    def told(self):
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}\n" for path in sorted((self.top / "log").iterdir()))


def check(is_so, what, *details):
    if not is_so:
        raise AssertionError(f"{what}: {details}")
    print(f"ok {what}", flush=True)


def is_mounted(path):
    return f" {path} " in pathlib.Path("/proc/self/mountinfo").read_text()


def a_plain_job(cluster):
    """Without directives: a directory of its own."""
    said, output = cluster.submit(
        "plain", "#!/bin/sh\nhead -c 3000000 /dev/urandom >$DLIO_MOUNT/ckpt || exit\nsha256sum <$DLIO_MOUNT/ckpt\nfindmnt -n -o FSTYPE $DLIO_MOUNT\n"
    )
    number = said.stdout.strip()
    check(said.returncode == 0 and number.isdigit(), "a job of an ordinary user is taken", said)
    check(cluster.ended(number) == "COMPLETED", "it ends", output.read_text() if output.exists() else "")
    written, kind = output.read_text().split("\n")[:2]
    check("fuse" in kind, "it wrote to a mount", kind)
    checkpoint = cluster.top / "lustre/jobs" / number / cluster.node / "ckpt"
    until("the epilog has ended", lambda: not (cluster.top / "mnt" / number).exists())
    arrived = subprocess.run(["sha256sum"], stdin=checkpoint.open("rb"), capture_output=True, text=True).stdout
    check(arrived == written + "\n", "its checkpoint is on the slow tier, byte for byte", arrived, written)
    check(checkpoint.stat().st_uid == cluster.user.pw_uid, "it belongs to the user")
    check(not (cluster.top / "optane" / number).exists(), "nothing is left on the fast tier")
    check(cluster.asks("sinfo", "-h", "-o", "%t") in {"idle", "mix", "alloc"}, "the node stays in service")


def a_job_with_directives(cluster):
    run = cluster.top / "lustre/home/run7"
    said = cluster.run("mkdir", "-p", f"{run}/data", user=True)
    said = cluster.run("sh", "-c", f"head -c 500000 /dev/urandom >{run}/data/samples", user=True)
    check(said.returncode == 0, "the user has training data")
    said, output = cluster.submit(
        "staged",
        f"""#!/bin/sh
#BB_LUA jobdw slow={run} pool=dlio capacity=1GiB
#BB_LUA stage_in source={run}/data destination=$DLIO_MOUNT/data type=directory
#BB_LUA stage_out source=$DLIO_MOUNT/ckpt destination={run}/ckpt type=directory
getfattr --only-values -n user.dlio.state $DLIO_MOUNT/data/samples 2>/dev/null; echo
echo $DLIO_SLOW
mkdir $DLIO_MOUNT/ckpt
cp $DLIO_MOUNT/data/samples $DLIO_MOUNT/ckpt/model
""",
    )
    number = said.stdout.strip()
    check(said.returncode == 0, "a job with directives is taken", said)
    check(cluster.ended(number) == "COMPLETED", "it ends", output.read_text() if output.exists() else "")
    lines = output.read_text().split("\n")
    check(lines[:2] == ["staged", str(run)], "its data was staged before it ran, and it knows its slow directory", lines)
    check((run / "ckpt/model").read_bytes() == (run / "data/samples").read_bytes(), "its checkpoint is on the slow tier")
    check(not (cluster.top / "lustre/requests" / number).exists(), "the request is gone")


def an_epilog_that_fails(cluster):
    """What the page says: the node is taken out of service, whoever waits for the burst buffer waits, and by hand it goes on."""
    run = cluster.top / "lustre/home/run7"
    cluster.held.touch()
    said, _ = cluster.submit("held", f"#!/bin/sh\n#BB_LUA jobdw slow={run}\necho late >$DLIO_MOUNT/late\n")
    number = said.stdout.strip()
    said, output = cluster.submit("dependent", f"#!/bin/sh\ncat {run}/late\n", f"--dependency=afterburstbuffer:{number}")
    dependent = said.stdout.strip()
    until("the node is out of service", lambda: cluster.asks("sinfo", "-h", "-o", "%t") == "drain")
    check("Epilog error" in cluster.asks("sinfo", "-h", "-R", "-o", "%E"), "an epilog that fails takes the node out of service")
    cluster.held.unlink()
    said = cluster.run("scontrol", "show", "bbstat")
    check(said.stdout == f"job {number} waits, runs or drains\n", "scontrol show bbstat says that the job is not done", said)
    cluster.asks("scontrol", "update", f"nodename={cluster.node}", "state=resume")
    # Both could run now: whoever waits is in front of it.
    said, _ = cluster.submit("other", "#!/bin/sh\n")
    check(cluster.ended(said.stdout.strip()) == "COMPLETED", "another job runs")
    check(cluster.asks("squeue", "-h", "-j", dependent, "-o", "%T") == "PENDING", "the one that waits for the burst buffer does not")
    env = {"SLURM_JOB_ID": number, "SLURM_JOB_UID": str(cluster.user.pw_uid), "SLURM_JOB_USER": USER}
    for script in ["prolog.sh", "epilog.sh"]:
        done = subprocess.run([cluster.top / "scripts" / script], env=env, capture_output=True, text=True)
        check(done.returncode == 0, f"{script}, by hand", done)
    check(cluster.ended(dependent) == "COMPLETED" and output.read_text() == "late\n", "now it runs, and finds everything")
    check(cluster.ended(number) == "COMPLETED", "the burst buffer is done")


def jobs_that_ask_for_what_cannot_be(cluster):
    run = cluster.top / "lustre/home/run7"
    said, _ = cluster.submit("wrong", f"#!/bin/sh\n#BB_LUA jobdw slow={run}\n#BB_LUA stage_in source=/etc\n")
    check(said.returncode != 0 and "is not below slow=" in said.stderr, "sbatch says what is wrong with a directive", said)
    said, _ = cluster.submit("pool", f"#!/bin/sh\n#BB_LUA jobdw slow={run} pool=none capacity=1GiB\n")
    check(said.returncode != 0, "a pool that is not there is refused")
    for name, slow in [("missing", "/nowhere/at/all"), ("foreign", "/root")]:
        said, output = cluster.submit(name, f"#!/bin/sh\n#BB_LUA jobdw slow={slow}\ntouch $DLIO_MOUNT/ran\n")
        number = said.stdout.strip()
        check(cluster.ended(number) == "FAILED", f"a slow directory that is {name}: the job fails")
        check("dlio-fs: " in output.read_text(), "and its output says why", output.read_text())
    until("the node is in service", lambda: cluster.asks("sinfo", "-h", "-o", "%t") == "idle")


def two_jobs_over_one_directory(cluster):
    run = cluster.top / "lustre/home/run7"
    go_on = cluster.top / "lustre/home/go-on"
    first, _ = cluster.submit("first", f"#!/bin/sh\n#BB_LUA jobdw slow={run}\ntouch {go_on}.1; until [ -e {go_on} ]; do sleep 0.1; done\n")
    until("the first job runs", pathlib.Path(f"{go_on}.1").exists)
    second, output = cluster.submit("second", f"#!/bin/sh\n#BB_LUA jobdw slow={run}\ntouch $DLIO_MOUNT/ran\n")
    check(cluster.ended(second.stdout.strip()) == "FAILED", "a second job over the same directory fails")
    check(f"is in use by job {first.stdout.strip()} on" in output.read_text(), "and its output says who has it", output.read_text())
    go_on.touch()
    check(cluster.ended(first.stdout.strip()) == "COMPLETED", "the first one ends")
    check(not any((cluster.top / "lustre/requests").iterdir()), "nothing is in use")


def a_job_that_kills_its_daemon(cluster):
    run = cluster.top / "lustre/home/run7"
    said, output = cluster.submit(
        "killer",
        f"#!/bin/sh\n#BB_LUA jobdw slow={run}\necho last words >$DLIO_MOUNT/killed\n"
        f"kill -9 $(sed -n 's/.* pid=\\([0-9]*\\) .*/\\1/p' {cluster.top}/optane/$SLURM_JOB_ID/.dlio-fs/lock)\n",
    )
    check(cluster.ended(said.stdout.strip()) == "COMPLETED", "a job that kills the daemon of its mount ends", output.read_text())
    check((run / "killed").read_text() == "last words\n", "what it wrote is on the slow tier")
    check(cluster.asks("sinfo", "-h", "-o", "%t") == "idle", "and the node stays in service")


def let_users_mount(top):
    """As udev has it. In this name space only."""
    devices = top / "dev"
    devices.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,dev", "none", devices], check=True)
    subprocess.run(["mknod", "-m", "666", devices / "fuse", "c", "10", "229"], check=True)
    subprocess.run(["mount", "--bind", devices / "fuse", "/dev/fuse"], check=True)


def main():
    if sys.argv[1] != "--inside":
        # All mounts end with it, whatever happens.
        os.execvp("unshare", ["unshare", "--mount", sys.executable, __file__, "--inside", *sys.argv[1:]])
    program, tools = (pathlib.Path(path).resolve() for path in sys.argv[2:4])
    top = pathlib.Path(tempfile.mkdtemp(prefix="dlio-slurm-"))
    cluster = Cluster(program, tools, top)
    try:
        let_users_mount(top)
        cluster.configure()
        cluster.start()
        for tried in [a_plain_job, a_job_with_directives, an_epilog_that_fails, jobs_that_ask_for_what_cannot_be, two_jobs_over_one_directory, a_job_that_kills_its_daemon]:
            tried(cluster)
    except Exception as error:
        print(cluster.told())
        print(f"FAILED {error!r}".replace("\n", " "), flush=True)
        raise
    finally:
        cluster.stop()
        subprocess.run(["umount", "-l", "/dev/fuse", top / "dev"], check=False)
        for place in sorted((top / "mnt").glob("*")):
            if is_mounted(place):
                subprocess.run(["umount", "-l", place], check=False)
        # Never into a mount that is still there.
        subprocess.run(["rm", "-rf", "--one-file-system", top], check=False)


if __name__ == "__main__":
    main()

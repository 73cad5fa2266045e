"""A Slurm of three nodes on one machine, with the files of packaging/slurm, on real mounts: slurmctld, slurmd and munged from Debian's packages.

    python3 tests/slurm/cluster.py PROGRAM TOOLS

PROGRAM is dlio-fs; below TOOLS the packages are unpacked (/ if they are installed). Needs root. The second and the third node have mounts and a host name of their own. Everything is in a temporary directory, and taken down at the end.
Says what is as it should be, a line each, and what is not; the exit code is 1 then.
"""

import contextlib
import os
import pathlib
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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
        # Each of these has its own tiers and mounts in the places of the first one's, as on a machine of its own.
        self.others = ["second", "third"]
        self.slurmds = {}
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
            "/shared/jobs": "lustre/jobs",
            "/shared/requests": "lustre/requests",
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
            text = ours(file.read_text())
            if file.name == "common.sh":
                # One clock, so it is never off; and what a check wants of the mounts of one node.
                text = text.replace("\nclock_error=\n", "\nclock_error=2ms\n")
                text = text.replace(" --job ", f" $(cat {self.top}/options-$node 2>/dev/null) --job ")
            to.write_text(text)
            to.chmod(0o755)
        # The scripts find scontrol as on a node where Slurm is installed.
        scontrol = self.top / "bin/scontrol"
        settings = " ".join(f"{key}={shlex.quote(str(self.env[key]))}" for key in ["LD_LIBRARY_PATH", "SLURM_CONF"])
        scontrol.write_text(f"#!/bin/sh\n{settings} exec {self.tools}/usr/bin/scontrol \"$@\"\n")
        scontrol.chmod(0o755)
        for name in self.others:
            for place in ["optane", "mnt"]:
                (self.top / "nodes" / name / place).mkdir(parents=True)
        # An epilog that does not get done in time, while this file is there; or one of its own for a node.
        self.held = self.top / "held"
        epilog = self.top / "scripts/epilog_unless_held.sh"
        epilog.write_text(f"#!/bin/sh\nif [ -e {self.held} ] || [ -e {self.held}-$SLURMD_NODENAME ]; then exit 3; fi\nexec {self.top}/scripts/epilog.sh\n")
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
            "SlurmdSpoolDir": self.top / "spool/%n",
            "SlurmctldPidFile": self.top / "run/slurmctld.pid",
            "SlurmdPidFile": self.top / "run/slurmd-%n.pid",
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
        lines += [f"NodeName={name} NodeAddr=127.0.0.1 Port={free_port()} CPUs={os.cpu_count()}" for name in self.others]
        lines.append(f"PartitionName=one Nodes={self.node} Default=YES MaxTime=INFINITE")
        lines.append(f"PartitionName=all Nodes={','.join([self.node, *self.others])} MaxTime=INFINITE")
        (self.conf / "slurm.conf").write_text("\n".join(lines) + "\n")

    def daemon(self, name, *arguments, node=None):
        log = open(self.top / f"log/{name}{node or ''}", "wb")
        found = self.tools / "usr/sbin" / name
        # They go by the name they are called by: a plugin takes `slurmctld-wlm` for another program than `slurmctld`. Debian has links.
        program = self.top / "bin" / name
        if not program.is_symlink():
            program.symlink_to(found if found.exists() else found.with_name(f"{name}-wlm"))
        command = [program, *arguments]
        if node:
            binds = "".join(f"mount --bind {self.top}/nodes/{node}/{place} {self.top}/{place} && " for place in ["optane", "mnt"])
            command = ["unshare", "--mount", "--uts", "sh", "-c", f"{binds}hostname {node} && exec \"$@\"", "sh", *command]
        process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.daemons.append((name, process))
        return process

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
        for name in [None, *self.others]:
            process = self.daemon("slurmd", "-D", "-N", name or self.node, "-d", self.tools / "usr/sbin/slurmstepd-wlm", node=name)
            if name:
                self.slurmds[name] = process.pid
        until("the nodes are idle", lambda: self.asks("sinfo", "-h", "-p", "all", "-o", "%t") == "idle")

    def node_state(self):
        return self.asks("sinfo", "-h", "-p", "one", "-o", "%t")

    def stop(self):
        # What a check that failed has left mounted there: the first node's is `main`'s to end.
        for pid in self.slurmds.values():
            for place in (self.top / "mnt").parent.glob("nodes/*/mnt/*"):
                subprocess.run(["nsenter", "-t", str(pid), "-m", "umount", "-l", self.top / "mnt" / place.name], capture_output=True, check=False)
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
    check(cluster.node_state() in {"idle", "mix", "alloc"}, "the node stays in service")


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
    until("the node is out of service", lambda: cluster.node_state() == "drain")
    check("Epilog error" in cluster.asks("sinfo", "-h", "-p", "one", "-R", "-o", "%E"), "an epilog that fails takes the node out of service")
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
    until("the node is in service", lambda: cluster.node_state() == "idle")


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
    check(cluster.node_state() == "idle", "and the node stays in service")


SHARD = 600_000
STEPS = 3


def slow_down(cluster):
    """From now on the first node's shards come long after the others', unless they wait."""
    (cluster.top / f"options-{cluster.node}").write_text("-o drain_bandwidth=1MiB")


def shards_and_markers(cluster, nodes):
    """Each rank writes its shards, and one on a node with a fast drain a marker when all have: what a program without a library does."""
    return f"""
cat >$SHARED.rank <<'END'
rank=$SLURM_PROCID
for step in $(seq {STEPS}); do
    head -c {SHARD} /dev/zero >$DLIO_MOUNT/step-$step-rank-$rank || exit
    touch $SHARED-$step-$rank
    if [ $SLURMD_NODENAME = {cluster.others[0]} ]; then
        for other in $(seq 0 {nodes - 1}); do until [ -e $SHARED-$step-$other ]; do sleep 0.05; done; done
        echo $step >$DLIO_MOUNT/marker-$step || exit
    fi
done
END
srun -N {nodes} -n {nodes} sh $SHARED.rank || exit
"""


def watch(slow, nodes, ends):
    """Looks at the slow directory until it is told to end: which markers were there before a shard."""
    early = set()
    while not ends.is_set():
        # The marker first: what comes meanwhile is no fault.
        for step in [step for step in range(1, STEPS + 1) if (slow / f"marker-{step}").exists()]:
            for rank in range(nodes):
                shard = slow / f"step-{step}-rank-{rank}"
                if not shard.exists() or shard.stat().st_size != SHARD:
                    early.add(f"step {step} without rank {rank}")
        time.sleep(0.002)
    return early


def has_all(slow, nodes):
    names = {f"step-{step}-rank-{rank}" for step in range(1, STEPS + 1) for rank in range(nodes)}
    return {path.name for path in slow.iterdir()} - {".dlio-fs"} == names | {f"marker-{step}" for step in range(1, STEPS + 1)}


@contextlib.contextmanager
def watched(slow, nodes):
    ends, early = threading.Event(), set()
    thread = threading.Thread(target=lambda: early.update(watch(slow, nodes, ends)))
    thread.start()
    try:
        yield early
    finally:
        ends.set()
        thread.join()


def a_job_of_three_nodes(cluster):
    """Without directives: one directory for all nodes, and no marker comes before a shard of any of them."""
    slow_down(cluster)
    shared = cluster.top / "lustre/home/three"
    script = f"#!/bin/sh\nSHARED={shared}; export SHARED\n{shards_and_markers(cluster, 3)}dlio-fs sync --fleet $DLIO_MOUNT\necho synced\n"
    script = script.replace("dlio-fs sync", f"{cluster.top}/bin/dlio-fs sync")
    said, output = cluster.submit("three", script, "-p", "all", "-N", "3", "-n", "3", "--ntasks-per-node=1")
    number = said.stdout.strip()
    check(said.returncode == 0 and number.isdigit(), "a job of three nodes is taken", said)
    slow = cluster.top / "lustre/jobs" / number / "all"
    with watched(slow, 3) as early:
        state = cluster.ended(number)
        until("the epilogs have ended", lambda: cluster.asks("sinfo", "-h", "-p", "all", "-o", "%t") == "idle")
    check(state == "COMPLETED" and "synced" in output.read_text(), "it ends, and waited for all nodes", state, output.read_text())
    check(not early, "no marker came before a shard of another node", early)
    check(has_all(slow, 3), "everything of all nodes arrived in one directory", sorted(slow.iterdir()))
    fleets = [path.name for path in (slow / ".dlio-fs/fleet").iterdir()]
    check(fleets == [number], "the fleet has the number of the job", fleets)
    verdict = cluster.run(cluster.top / "bin/dlio-fs", "status", "--fleet", number, "--slow", slow)
    check(verdict.returncode == 0 and verdict.stdout.startswith("SAFE"), "its verdict, from the slow tier alone, is safe", verdict)
    left = [path for place in ["optane", "nodes/second/optane", "nodes/third/optane"] for path in (cluster.top / place).iterdir()]
    check(not left, "nothing is left on the fast tiers", left)


def a_job_with_directives_on_two_nodes(cluster):
    """The burst buffer is done when the last node is, which has to be helped here; the other one is done before."""
    slow_down(cluster)
    slow = cluster.top / "lustre/home/run8"
    cluster.run("mkdir", slow, user=True)
    requests, second = cluster.top / "lustre/requests", cluster.others[0]
    held = cluster.top / f"held-{second}"
    held.touch()
    script = f"#!/bin/sh\n#BB_LUA jobdw slow={slow}\nSHARED={cluster.top}/lustre/home/two; export SHARED\n{shards_and_markers(cluster, 2)}"
    nodes = f"{cluster.node},{second}"
    said, output = cluster.submit("two", script, "-p", "all", "-w", nodes, "-N", "2", "-n", "2", "--ntasks-per-node=1")
    number = said.stdout.strip()
    check(said.returncode == 0 and number.isdigit(), "a job with directives on two nodes is taken", said)

    def state():
        return cluster.asks("squeue", "-h", "-t", "all", "-j", number, "-o", "%T")

    with watched(slow, 2) as early:
        until("its epilogs have ended", lambda: cluster.asks("sinfo", "-h", "-n", nodes, "-p", "all", "-o", "%n %t").split("\n").count(f"{second} drain"))
        undone = requests / f"{number}.nodes"
        until("the first node is done", lambda: undone.exists() and [path.name for path in undone.iterdir()] == [second])
        until("the job is no longer Slurm's own to wait for", lambda: state() != "COMPLETING")
        # The controller has gone round since.
        other, _ = cluster.submit("after_one", "#!/bin/sh\n")
        check(cluster.ended(other.stdout.strip()) == "COMPLETED", "another job runs on the node that is done")
        check(state() == "STAGE_OUT", "with one of two nodes done the burst buffer is not", state())
        check((requests / number).exists(), "the request is there")
        held.unlink()
        # By hand, as the page says, of a daemon that is gone. Nobody tells the names of the nodes.
        lock = (cluster.top / "nodes" / second / "optane" / number / ".dlio-fs/lock").read_text()
        os.kill(int(re.search(r"pid=(\d+)", lock)[1]), signal.SIGKILL)
        env = {"SLURM_JOB_ID": number, "SLURM_JOB_UID": str(cluster.user.pw_uid), "SLURM_JOB_USER": USER, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        enter = ["nsenter", "-t", str(cluster.slurmds[second]), "-m", "-u"]
        for name in ["prolog.sh", "epilog.sh"]:
            done = subprocess.run([*enter, cluster.top / "scripts" / name], env=env, capture_output=True, text=True)
            check(done.returncode == 0, f"{name}, by hand on the other node", done)
        check(cluster.ended(number) == "COMPLETED", "it is once both are", output.read_text())
    check(not early, "no marker came before a shard of the other node", early)
    check(has_all(slow, 2), "everything of both nodes arrived", sorted(slow.iterdir()))
    verdict = cluster.run(cluster.top / "bin/dlio-fs", "status", "--fleet", number, "--slow", slow)
    check(verdict.returncode == 0, "the fleet is safe: all have left it", verdict)
    check(not any(requests.iterdir()), "nothing is in use")
    cluster.asks("scontrol", "update", f"nodename={second}", "state=resume")


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
        for tried in [a_plain_job, a_job_with_directives, an_epilog_that_fails, jobs_that_ask_for_what_cannot_be, two_jobs_over_one_directory, a_job_that_kills_its_daemon, a_job_of_three_nodes, a_job_with_directives_on_two_nodes]:
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

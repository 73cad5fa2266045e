"""A job of three ranks that saves with torch.distributed.checkpoint, each rank through a mount of its own: a fleet over one slow directory.

    python tests/fleet/dcp.py PROGRAM [SAVES]

PROGRAM is dlio-fs; the Python has torch. The last rank's node drains at a fraction of what the others do, and one daemon is killed and mounted
again in the middle. Somebody looks at the slow directory every 5 ms: no checkpoint may have its `.metadata`, and `latest` may name none, before all
shards are there. Everything is in a temporary directory, and taken down at the end. Says what is as it should be, a line each, and what is not; the
exit code is 1 then.
"""

import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 3
SAVES = 50
# Of them, in front of this one a daemon is killed.
KILLED_AT = 20
# Reached only if something hangs.
PATIENCE = 300


def state(step, rank):
    import torch

    values = torch.Generator().manual_seed(1000 * step + rank)
    return {f"layer{rank}": torch.rand((1000, 256), generator=values), "step": step}


def save_all(rank, mount, store, saves, killed):
    """One rank. What makes a checkpoint whole is DCP's; `latest` is what frameworks add."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    for step in range(saves):
        if step == KILLED_AT:
            dist.barrier()
            if rank == 0:
                killed.touch()
                wait_for(lambda: not killed.exists())
            dist.barrier()
        dcp.save(state(step, rank), checkpoint_id=mount / f"step-{step}")
        dist.barrier()
        if rank == 0:
            (mount / "latest.tmp").write_text(str(step))
            os.rename(mount / "latest.tmp", mount / "latest")
    dist.destroy_process_group()


def wait_for(is_so):
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError("waited for too long")
        time.sleep(0.02)


def shards_missing(checkpoint):
    """Shards that are not there, or not as long as the checkpoint's own metadata says."""
    from torch.distributed.checkpoint import FileSystemReader

    lengths = {}
    for info in FileSystemReader(checkpoint).read_metadata().storage_data.values():
        lengths[info.relative_path] = max(lengths.get(info.relative_path, 0), info.offset + info.length)
    sizes = {name: (checkpoint / name).stat().st_size if (checkpoint / name).exists() else -1 for name in lengths}
    return [name for name in lengths if sizes[name] < lengths[name]] if len(lengths) == RANKS else [f"{len(lengths)} shards"]


def watch(slow):
    """From when it says so until its standard input ends. Looks for the marker first: what comes meanwhile is no fault."""
    import torch.distributed.checkpoint  # noqa: F401 (takes seconds)

    print("watching", flush=True)
    seen, looks, early = set(), 0, []
    while not select.select([0], [], [], 0.005)[0]:
        looks += 1
        latest = slow / "latest"
        named = [f"step-{latest.read_text()}"] if latest.exists() else []
        whole = [entry.name for entry in os.scandir(slow) if entry.name.startswith("step-") and (slow / entry.name / ".metadata").exists()]
        early += [f"latest names {name}" for name in named if not (slow / name / ".metadata").exists()]
        for name in set(whole) - seen:
            early += [f"{name} lacks {shard}" for shard in shards_missing(slow / name)]
            seen.add(name)
    print(f"{len(seen)} {looks} {early}")


class Fleet:
    def __init__(self, program, top):
        self.program, self.top, self.slow = program, top, top / "slow"
        self.slow.mkdir()
        for rank in range(RANKS):
            (top / f"fast{rank}").mkdir()
            (top / f"mnt{rank}").mkdir()

    def mount_point(self, rank):
        return self.top / f"mnt{rank}"

    def run(self, *arguments):
        subprocess.run([self.program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)

    def mount(self, rank):
        options = ["fleet=dcp", f"fleet_size={RANKS}", "clock_error=2ms", "settle=0s", "high=98%,low=97%,reserve=0%,ballast=8MiB"]
        if rank == RANKS - 1:
            options.append("drain_bandwidth=2MiB")
        tiers = ["--fast", self.top / f"fast{rank}", "--slow", self.slow, "--log-file", self.top / f"log{rank}"]
        self.run("mount", self.mount_point(rank), *tiers, "-o", ",".join(options))

    def kill(self, rank):
        lock = (self.top / f"fast{rank}" / ".dlio-fs/lock").read_text()
        os.kill(int(lock.split(" pid=")[1].split()[0]), signal.SIGKILL)
        subprocess.run(["umount", "-l", self.mount_point(rank)], check=True)

    def end(self):
        """Also of a job that failed: a member that is missing holds the others, so nobody waits for the slow tier."""
        for rank in range(RANKS):
            subprocess.run([self.program, "umount", "--now", self.mount_point(rank)], capture_output=True)
            subprocess.run(["umount", "-l", self.mount_point(rank)], capture_output=True)


def job(program, saves, top):
    fleet = Fleet(program, top)
    children = []
    try:
        for rank in range(RANKS):
            fleet.mount(rank)
        me, killed = [sys.executable, __file__], top / "killed"
        watching = subprocess.Popen([*me, "watch", fleet.slow], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(watching)
        watching.stdout.readline()
        ranks = [
            subprocess.Popen([*me, "rank", str(rank), fleet.mount_point(rank), top / "store", str(saves), killed])
            for rank in range(RANKS)
        ]
        children += ranks
        while any(rank.poll() is None for rank in ranks):
            assert not any(rank.poll() for rank in ranks), "a rank has failed"
            if killed.exists():
                fleet.kill(1)
                fleet.mount(1)
                killed.unlink()
            time.sleep(0.05)
        fleet.run("sync", fleet.mount_point(0), "--fleet")
        at_once = sorted(path.name for path in fleet.slow.glob("step-*/.metadata"))
        told = watching.communicate()[0].split(" ", 2)
        codes = [rank.returncode for rank in ranks]
        return fleet.slow, codes, len(at_once), int(told[0]), int(told[1]), told[2].strip()
    finally:
        for child in children:
            child.kill()
        fleet.end()


def loads(slow, saves):
    """The last checkpoint, by a job of one, with no mount."""
    import torch
    import torch.distributed.checkpoint as dcp

    step = saves - 1
    found = {key: torch.zeros_like(value) if torch.is_tensor(value) else -1 for rank in range(RANKS) for key, value in state(step, rank).items()}
    dcp.load(found, checkpoint_id=slow / f"step-{step}", no_dist=True)
    wanted = {key: value for rank in range(RANKS) for key, value in state(step, rank).items()}
    return all(torch.equal(found[key], wanted[key]) if torch.is_tensor(wanted[key]) else found[key] == wanted[key] for key in wanted)


def main(program, saves):
    with tempfile.TemporaryDirectory(prefix="dlio-dcp-") as top:
        slow, codes, at_once, seen, looks, early = job(program, saves, pathlib.Path(top))
        checks = {
            "every rank has saved": codes == [0] * RANKS,
            "no marker is there before its shards": early == "[]",
            "sync --fleet comes back once every checkpoint is on the slow tier": at_once == saves,
            "the observer has seen checkpoints come": seen > saves // 2,
            "the last checkpoint loads equal from the slow tier": loads(slow, saves),
            "nothing is a conflict": not list(slow.rglob("*.dlio-conflict-*")),
        }
        print(f"{saves} saves, {looks} looks, {seen} checkpoints seen to come; {early}")
    for what, holds in checks.items():
        print(f"{'ok' if holds else 'FAILED'} fleet: {what}")
    sys.exit(0 if all(checks.values()) else 1)


if sys.argv[1] == "rank":
    save_all(int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]), pathlib.Path(sys.argv[6]))
elif sys.argv[1] == "watch":
    watch(pathlib.Path(sys.argv[2]))
else:
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else SAVES)

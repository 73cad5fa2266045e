"""How much of what a job does is observed: dlio-fs in each I/O path, and DFTracer, beside what strace sees.

    python tests/observe/observe.py PROGRAM TORCH_PYTHON KERAS_PYTHON

PROGRAM is dlio-fs; the Pythons have torch with DFTracer, and Keras. Counted are the opens, reads and writes of files of the mount, and the bytes of the
reads and writes. Darshan's runtime is left out: no registry has it. Everything is in a temporary directory, and taken down at the end. Says what is as
it should be, a line each, and what is not; the exit code is 1 then. How long each took is told, and is no check.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
FILES = 400
FILE_SIZE = 112 << 10
CALLS = "trace=open,openat,creat,read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2"
READS = ("read", "pread64", "readv", "preadv", "preadv2")
WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
# Of what strace saw, in `exact`.
CAUGHT = 0.999


class Mount:
    """Fresh tiers with the data set, mounted."""

    def __init__(self, program, place, io):
        self.program, self.point = program, place / "mnt"
        for name in ("mnt", "fast", "slow"):
            (place / name).mkdir(parents=True)
        for number in range(FILES):
            (place / f"slow/{number:04}.bin").write_bytes(os.urandom(FILE_SIZE))
        self.command("mount", self.point, "--fast", place / "fast", "--slow", place / "slow", "-o", f"io={io}", "--log-file", place / "log")

    def command(self, *words):
        subprocess.run([self.program, *map(str, words)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def counted(self):
        """What the mount has counted."""
        stats = json.loads((self.point / ".dlio/stats.json").read_text())
        of = {one["op"]: one for one in stats["operations"]}
        none = {"calls": 0, "bytes": 0}
        get = lambda op, key: of.get(op, none)[key]
        return {
            "opens": get("open", "calls") + get("create", "calls"),
            "reads": get("read", "calls"),
            "writes": get("write", "calls"),
            "bytes read": get("read", "bytes"),
            "bytes written": get("write", "bytes"),
        }

    def recording(self):
        """Bytes of everything that was observed."""
        return len((self.point / ".dlio/recording").read_bytes())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.command("umount", self.point)


def run(command, **more):
    begun = time.monotonic()
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if result.returncode != 0:
        raise AssertionError(f"{command[0]}: exit code {result.returncode}: {result.stdout[-2000:]}")
    return time.monotonic() - begun


def traced(lines, top):
    """What strace saw of files below `top`. A call that was interrupted by another thread's line stands in two lines: its name in both."""
    seen = dict.fromkeys(("opens", "reads", "writes", "bytes read", "bytes written"), 0)
    below = re.escape(f"{top}/")
    opened = re.compile(rf"(?:open|openat|creat)(?: resumed>|\().*= \d+<{below}(?!\.dlio)")
    begun = re.compile(rf"^\d+ +(\w+)\(\d+<{below}(?!\.dlio)")
    resumed = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>.* = (\d+)")
    waiting = set()
    for line in lines:
        if opened.search(line) and "O_DIRECTORY" not in line:
            seen["opens"] += 1
        call, end = begun.match(line), resumed.match(line)
        name, result = None, re.search(r"\) += (\d+)$", line.rstrip())
        if call and call[1] in READS + WRITES:
            name = call[1]
            seen["reads" if name in READS else "writes"] += 1
            if "<unfinished" in line:
                waiting.add((line.split()[0], name))
                continue
        elif end and (end[1], end[2]) in waiting:
            waiting.remove((end[1], end[2]))
            name, result = end[2], re.search(r"= (\d+)$", line.rstrip())
        if name and result:
            seen["bytes read" if name in READS else "bytes written"] += int(result[1])
    return seen


def share(counted, seen):
    return {what: counted[what] / count for what, count in seen.items() if count}


def text(shares):
    return ", ".join(f"{what} {100 * share:.1f} %" for what, share in shares.items())


def observe(program, place, io, python, script):
    """What strace saw and what the mount counted, of the same run."""
    with Mount(program, place, io) as mount:
        before = mount.counted()
        plain = run([python, "-W", "ignore", HERE / script, mount.point])
        middle = mount.counted()
        trace = place / "trace"
        run(["strace", "-f", "-y", "-e", CALLS, "-o", trace, python, "-W", "ignore", HERE / script, mount.point])
        counted = {what: count - middle[what] for what, count in mount.counted().items()}
        unseen = {what: middle[what] - before[what] for what in before}
        with trace.open(errors="replace") as lines:
            seen = traced(lines, mount.point)
        return counted, seen, unseen, plain, mount.recording()


def dftracer(program, place, python):
    """What DFTracer saw of an epoch, by its preloaded library."""
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, stdout=subprocess.PIPE, text=True)
    library = pathlib.Path(site.stdout.strip()) / "dftracer/lib64"
    logs = place / "dftracer"
    logs.mkdir(parents=True)
    with Mount(program, place / "tiers", "exact") as mount:
        plain = run([python, "-W", "ignore", HERE / "epoch.py", mount.point])
        environment = dict(
            os.environ, LD_LIBRARY_PATH=str(library), LD_PRELOAD=str(library / "libdftracer_preload.so"), DFTRACER_ENABLE="1",
            DFTRACER_INIT="PRELOAD", DFTRACER_LOG_FILE=str(logs / "log"), DFTRACER_DATA_DIR=str(mount.point), DFTRACER_TRACE_COMPRESSION="0",
        )
        took = run([python, "-W", "ignore", HERE / "epoch.py", mount.point], env=environment)
    lines = "".join(log.read_text(errors="replace") for log in logs.iterdir())
    count = lambda name: lines.count(f'"name":"{name}"')
    seen = {"opens": count("open64") + count("open"), "reads": count("read")}
    return seen, plain, took, len(lines)


def main(program, torch, keras):
    failed = 0

    def check(name, is_so, told):
        nonlocal failed
        failed += not is_so
        print(f"{'ok' if is_so else 'FAILED'} {name}: {told}", flush=True)

    with tempfile.TemporaryDirectory(prefix="dlio-observe-") as place:
        place = pathlib.Path(place)
        for script, python in (("epoch.py", torch), ("fit.py", keras)):
            for io in ("exact", "cached", "passthrough"):
                counted, seen, untraced, plain, recording = observe(program, place / f"{script}-{io}", io, python, script)
                shares = share(counted, seen)
                job = {"epoch.py": "DataLoader", "fit.py": "Keras"}[script]
                told = f"{text(shares)} of what strace saw ({sum(seen[what] for what in ('opens', 'reads', 'writes'))} calls); "
                told += f"{plain:.1f} s without strace, {recording} bytes recorded"
                # strace may be wrong by none: the same job without it does as much.
                caught = {what: CAUGHT <= shares[what] <= 1 / CAUGHT for what in shares}
                wanted = {"exact": caught, "cached": ["opens"], "passthrough": ["opens"]}[io]
                check(f"{job}, {io}", seen["reads"] > 0 and all(caught[what] for what in wanted), told)
                if io == "exact" and script == "epoch.py":
                    whole = {"opens": FILES, "bytes read": FILES * FILE_SIZE}
                    check(f"{job}, {io}, without strace", all(untraced[what] == whole[what] for what in whole), str(untraced))
        seen, plain, took, size = dftracer(program, place / "dftracer", torch)
        check("DFTracer", seen["opens"] > 0, f"of {FILES} opens {seen['opens']}, of {2 * FILES} reads {seen['reads']}; {took:.1f} s, {plain:.1f} s without it; {size} bytes of log")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

#!/usr/bin/env python3
"""Runs a training on a fast directory, a slow one and a mount, in turn, and prints medians and ratios.

    compare.py --fast /optane/try --slow /hdd/try --mount /mnt/train/try --runs 5 -- --fsync --width 6000

What follows -- is for the training. Each directory is made, and gets its images once. Neither the fast nor the slow one
may be in a tier of the mount: what is changed there behind its back is a conflict. Each round begins with the next
directory, and a ratio is the median of those of the rounds, so that what changes with time weighs on all.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

FIGURES = {
    "seconds": "in all, s",
    "iteration_median_seconds": "iteration, s",
    "input_wait_seconds": "input, s",
    "checkpoint_seconds": "checkpoints, s",
    "safe_seconds": "safe after, s",
}


def until_safe(directory):
    """Returns how long it took until all was on the disk: of a mount, on that of its slow tier."""
    start = time.perf_counter()
    for place in (directory, *directory.parents):
        control = place / ".dlio/control"
        if control.exists():
            with open(control, "r+b", buffering=0) as session:
                session.write(b"sync\n")
                answer = session.read().decode()
            if not answer.startswith("ok"):
                sys.exit(f"error: {place}: {answer}")
            break
    os.sync()
    return time.perf_counter() - start


def run(app, directory, more, is_cold):
    if is_cold:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    script = Path(__file__).with_name(f"{app}_alexnet.py")
    command = [sys.executable, script, directory, "--json", *more]
    # Lightning moves its checkpoints from there.
    temporary = directory / ".tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary.absolute())}
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout)
    told["safe_seconds"] = until_safe(directory)
    for made in (temporary, directory / "checkpoints"):
        shutil.rmtree(made)
    until_safe(directory)
    return told


def rounds(places, count):
    """Names of the places in the order of each round."""
    names = list(places)
    return [names[number % len(names) :] + names[: number % len(names)] for number in range(count)]


def ratio(told, figure, one, other):
    """The median, over the rounds, of one place's figure by another's; None where there is nothing to divide by."""
    found = [a[figure] / b[figure] for a, b in zip(told[one], told[other]) if b[figure]]
    return statistics.median(found) if found else None


def table(told):
    """`told` has for each place what its runs told, round by round."""
    pairs = list(combinations(told, 2))
    lines = [" " * 16 + "".join(f"{name:>12}" for name in [*told, *("/".join(pair) for pair in pairs)])]
    for figure, title in FIGURES.items():
        medians = [f"{statistics.median(run[figure] for run in runs):12.3f}" for runs in told.values()]
        ratios = [ratio(told, figure, *pair) for pair in pairs]
        lines.append(f"{title:16}" + "".join(medians + [f"{'-':>12}" if r is None else f"{r:12.2f}" for r in ratios]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for place in ("fast", "slow", "mount"):
        parser.add_argument(f"--{place}", type=Path, required=True, metavar="DIR")
    parser.add_argument("--app", choices=("keras", "lightning"), default="keras", help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="rounds (%(default)s)")
    parser.add_argument("--cold", action="store_true", help="empty the machine's page cache before each run (root)")
    parser.add_argument("more", nargs="*", help="options of the training, after --")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is at least 1")
    places = {"slow": options.slow, "fast": options.fast, "mount": options.mount}
    for directory in places.values():
        if (directory / "checkpoints").exists():
            parser.error(f"{directory} has checkpoints, which would be removed; name another")
        if not (directory / "images").exists():
            directory.mkdir(parents=True, exist_ok=True)
            make = [sys.executable, Path(__file__).with_name("make_images.py"), directory / "images"]
            subprocess.run(make, check=True)
        until_safe(directory)
    told = {name: [] for name in places}
    for number, names in enumerate(rounds(places, options.runs), 1):
        for name in names:
            told[name].append(run(options.app, places[name], options.more, options.cold))
            print(f"round {number}: {name} {told[name][-1]['seconds']:.2f} s", file=sys.stderr)
    print(table(told))


if __name__ == "__main__":
    main()

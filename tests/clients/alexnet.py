"""What both mini-applications in examples/ are held to: they begin and go on, through the mount and without it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from checks import check, expect, on_slow

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import compare
import make_images

IMAGES, MEDIAN, BATCH, EVERY = 20, 4000, 4, 5
# One run reads each image once; then a second goes on from its checkpoint.
STOPPED, ENDED = 5, 10


def make(directory, notes):
    """By the command, and once more by the function: the same bytes."""
    command = [sys.executable, EXAMPLES / "make_images.py", directory / "images", "--count", str(IMAGES)]
    directory.mkdir()
    subprocess.run([*command, "--size", str(MEDIAN), "--classes", "3"], check=True)
    make_images.make(notes / "images", IMAGES, MEDIAN, 3)
    expect(sums(directory / "images") == sums(notes / "images"), "images differ from those made again")
    sizes = sorted(path.stat().st_size for path in files(notes / "images"))
    expect(0.8 * MEDIAN < sizes[IMAGES // 2] < 1.2 * MEDIAN and sizes[0] < sizes[-1] / 2, f"their sizes are {sizes}")


def files(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


def sums(directory):
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files(directory)}


def train(app, directory, notes, *more):
    """What it tells."""
    command = [sys.executable, EXAMPLES / f"{app}_alexnet.py", directory, "--json", "--every", str(EVERY)]
    sizes = ["--batch", str(BATCH), "--width", "32", "--threads", "2"]
    temporary = directory / ".tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with open(notes / "errors.txt", "w") as errors:
        result = subprocess.run([*command, *sizes, *more], stdout=subprocess.PIPE, stderr=errors, env=environment)
    said = (notes / "errors.txt").read_text()
    expect(result.returncode == 0, f"exit code {result.returncode}: {said[-1000:]}")
    return json.loads(result.stdout), said


def checkpoint(directory, step, ending):
    return directory / "checkpoints" / f"step-{step:06d}.{ending}"


def begins(app, ending, directory, notes):
    told, _ = train(app, directory, notes, "--iterations", str(STOPPED))
    expect((told["resumed_after"], told["iterations_done"]) == (0, STOPPED), told)
    expect(told["images_read"] == IMAGES, told)
    expect(told["image_bytes"] == sum(path.stat().st_size for path in files(directory / "images")), told)
    saved = [(one["step"], one["bytes"]) for one in told["checkpoints"]]
    expect(saved == [(STOPPED, checkpoint(directory, STOPPED, ending).stat().st_size)], told)


def calls(mount, operation):
    told = json.loads((mount / ".dlio/stats.json").read_text())
    return sum(line["calls"] for line in told["operations"] if line["op"] == operation)


def goes_on(app, ending, directory, notes):
    """From the newest complete checkpoint: a newer one is torn. With an fsync of each, and of its directory."""
    torn = checkpoint(directory, ENDED, ending)
    content = checkpoint(directory, STOPPED, ending).read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    before = [calls(directory.parent, operation) for operation in ("fsync", "fsyncdir")]
    told, said = train(app, directory, notes, "--iterations", str(ENDED), "--resume", "--fsync", "--prefetch", "0")
    expect(f"{torn} is not complete" in said, said)
    expect((told["resumed_after"], told["iterations_done"]) == (STOPPED, ENDED - STOPPED), told)
    expect([one["step"] for one in told["checkpoints"]] == [ENDED], told)
    after = [calls(directory.parent, operation) for operation in ("fsync", "fsyncdir")]
    expect(after == [number + 1 for number in before], f"fsync and fsyncdir went from {before} to {after}")
    (notes / "sums.json").write_text(json.dumps(sums(directory)))


def is_as_written(ending, directory, notes):
    found = sums(directory)
    wanted = set(f"images/{name}" for name in sums(notes / "images"))
    wanted |= {f"checkpoints/step-{step:06d}.{ending}" for step in (STOPPED, ENDED)}
    expect(set(found) == wanted, f"missing {wanted - set(found)}, found besides {set(found) - wanted}")
    noted = json.loads((notes / "sums.json").read_text())
    expect(found == noted, f"other bytes in {[name for name in found if found[name] != noted[name]]}")


def goes_on_without_the_mount(app, directory, notes):
    told, _ = train(app, directory, notes, "--iterations", str(ENDED + 1), "--resume")
    expect((told["resumed_after"], told["iterations_done"]) == (ENDED, 1), told)


def pairs_are_compared_by_round():
    """A machine that gets slower from round to round: each round's ratio is 2, and so is their median."""
    told = {"slow": [{"seconds": 2.0}, {"seconds": 8.0}, {"seconds": 20.0}], "mount": [{"seconds": 1.0}, {"seconds": 4.0}]}
    told["mount"].append({"seconds": 10.0})
    expect(compare.ratio(told, "seconds", "slow", "mount") == 2.0, "not the median of the rounds' ratios")
    orders = [["slow", "fast", "mount"], ["fast", "mount", "slow"], ["mount", "slow", "fast"], ["slow", "fast", "mount"]]
    expect(compare.rounds({"slow": 1, "fast": 2, "mount": 3}, 4) == orders, "each round begins with the next")


def write(app, ending, directory, notes):
    check(f"{app}: images are made, the same each time", make, directory, notes)
    check(f"{app}: training begins and saves a checkpoint", begins, app, ending, directory, notes)
    check(f"{app}: it goes on from the newest complete one", goes_on, app, ending, directory, notes)
    check(f"{app}: runs are compared by round", pairs_are_compared_by_round)


def verify(app, ending, directory, notes):
    check(f"{app}: images and checkpoints are as written, and nothing else", is_as_written, ending, directory, notes)
    if directory == on_slow():
        check(f"{app}: it goes on without the mount", goes_on_without_the_mount, app, directory, notes)

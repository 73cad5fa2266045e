"""What both trainings have in common: options, the images and their order, checkpoints, and what took how long."""

import argparse
import json
import os
import random
import statistics
import sys
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import make_images

# AlexNet with a quarter of its filters, on images of its size: (filters, kernel, stride, whether a pooling follows).
PIXELS = 227
CONVOLUTIONS = [(24, 11, 4, True), (64, 5, 1, True), (96, 3, 1, False), (96, 3, 1, False), (64, 3, 1, True)]
DROPPED = 0.5
LEARNING_RATE = 1e-4


def at_least(least):
    def number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def options(about):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("directory", type=Path, help="has images/ (made if missing) and checkpoints/")
    add("--iterations", type=at_least(1), default=100, metavar="N", help="from the very first on (%(default)s)")
    add("--every", type=at_least(1), default=20, metavar="N", help="iterations between two checkpoints (%(default)s)")
    add("--batch", type=at_least(1), default=64, metavar="N", help="images of an iteration (%(default)s)")
    width = "of the two dense layers (%(default)s): 1024 makes checkpoints of 44 MB, 6000 of 600 MB"
    add("--width", type=at_least(1), default=1024, metavar="N", help=width)
    add("--prefetch", type=int, choices=(0, 1), default=1, help="batches loaded during an iteration (%(default)s)")
    add("--threads", type=at_least(1), default=4, metavar="N", help="that load images (%(default)s)")
    add("--resume", action="store_true", help="go on from the newest complete checkpoint")
    add("--fsync", action="store_true", help="fsync each checkpoint and its directory")
    add("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def images(directory):
    """The paths of all images, each with the number of its class."""
    place = directory / "images"
    if not place.exists():
        print(f"making {make_images.COUNT} images in {place}", file=sys.stderr)
        directory.mkdir(parents=True, exist_ok=True)
        make_images.make(place)
    classes = sorted(path for path in place.iterdir() if path.is_dir())
    found = [(str(path), kind) for kind, each in enumerate(classes) for path in sorted(each.glob("*.jpg"))]
    if not found:
        sys.exit(f"error: no */*.jpg in {place}; remove it to have some made")
    return found, len(classes)


def in_order(found, batch, first, last):
    """What iterations `first` to `last` - 1 read: all images over and over, in the same order in each run."""
    chance, result = random.Random(7), []
    while len(result) < last * batch:
        result += chance.sample(found, len(found))
    return result[first * batch : last * batch]


def checkpoint_path(directory, step, ending):
    return directory / "checkpoints" / f"step-{step:06d}.{ending}"


def is_whole(path):
    """Both frameworks write zip files, whose table of contents comes last; each content has a checksum."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (zipfile.BadZipFile, EOFError):
        return False


def newest(options, ending):
    """The checkpoint to go on from; None to begin."""
    place = options.directory / "checkpoints"
    place.mkdir(parents=True, exist_ok=True)
    paths = sorted(place.glob(f"step-*.{ending}"), reverse=True)
    if not options.resume:
        if paths:
            sys.exit(f"error: {place} has checkpoints of an earlier run; go on with --resume, or remove them")
        return None
    for path in paths:
        if is_whole(path):
            return path
        print(f"{path} is not complete; looking for the one before", file=sys.stderr)
    print(f"no complete checkpoint in {place}; beginning with the first iteration", file=sys.stderr)
    return None


def fsync(path):
    """Of a file, and of the directory with its name. What the paper used, syncfs, never reaches a FUSE file system."""
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Figures:
    """What took how long, in seconds, and how many bytes it was."""

    def __init__(self):
        self.waits, self.iterations, self.checkpoints = [], [], []
        self.images = self.image_bytes = 0
        self.first, self.begun, self.paused = time.perf_counter(), None, 0.0

    def batches(self, source):
        """Yields (images, classes) of batches (images, classes, bytes of the files); each begins an iteration."""
        source = iter(source)
        self.first = time.perf_counter()
        while True:
            self.end_iteration()
            self.begun, self.paused = time.perf_counter(), 0.0
            try:
                inputs, kinds, sizes = next(source)
            except StopIteration:
                self.begun = None
                return
            self.waits.append(time.perf_counter() - self.begun)
            self.images += len(sizes)
            self.image_bytes += int(sum(sizes))
            yield inputs, kinds

    def end_iteration(self):
        if self.begun is not None:
            self.iterations.append(time.perf_counter() - self.begun - self.paused)
            self.begun = None

    @contextmanager
    def checkpoint(self, step, path, is_fsynced):
        """Around what saves it to `path`."""
        start = time.perf_counter()
        yield
        if is_fsynced:
            fsync(path)
        seconds = time.perf_counter() - start
        self.paused += seconds
        self.checkpoints.append({"step": step, "seconds": seconds, "bytes": path.stat().st_size})

    def tell(self, app, options, resumed):
        """Prints them; `resumed` is the iteration that the run went on after, 0 if it began."""
        self.end_iteration()
        # Not the width: a run that goes on has that of its checkpoint.
        settings = ("iterations", "every", "batch", "prefetch", "threads", "fsync")
        told = {
            "app": app,
            "directory": str(options.directory),
            **{name: getattr(options, name) for name in settings},
            "resumed_after": resumed,
            "seconds": time.perf_counter() - self.first,
            "iterations_done": len(self.iterations),
            "iteration_median_seconds": statistics.median(self.iterations) if self.iterations else None,
            "input_wait_seconds": sum(self.waits),
            "checkpoint_seconds": sum(one["seconds"] for one in self.checkpoints),
            "checkpoints": self.checkpoints,
            "images_read": self.images,
            "image_bytes": self.image_bytes,
            "checkpoint_bytes": sum(one["bytes"] for one in self.checkpoints),
        }
        print(json.dumps(told, indent=2) if options.json else table(told))


def table(told):
    loading = f"batches of {told['batch']}, prefetch {told['prefetch']}, {told['threads']} threads"
    inputs = f"{told['image_bytes'] / 1e6:8.1f} MB, {told['images_read']} images"
    seconds = told["seconds"]
    part = lambda some: f"{some:10.2f} s  {100 * some / seconds:3.0f} %" if seconds else f"{some:10.2f} s"
    size = lambda count: f"{count / 1e6:8.1f} MB"
    median = told["iteration_median_seconds"]
    median = f"{median:10.3f} s" if median is not None else " none was left to do"
    lines = [
        f"{told['app']} on {told['directory']}: {loading}, {told['iterations_done']} iterations",
        f"in all                 {seconds:10.2f} s",
        f"  an iteration (median){median}",
        f"  waiting for input    {part(told['input_wait_seconds'])}  {inputs}",
        f"  saving checkpoints   {part(told['checkpoint_seconds'])}  {size(told['checkpoint_bytes'])}",
    ]
    for one in told["checkpoints"]:
        lines.append(f"    after {one['step']:<13d}{part(one['seconds'])}  {size(one['bytes'])}")
    return "\n".join(lines)

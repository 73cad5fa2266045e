#!/usr/bin/env python3
"""Makes JPEGs to train with: a directory of classes, the same bytes each time.

    make_images.py /mnt/train/images --count 1024 --size 112000

The sizes are spread around the median as those of photographs are: most are near it, a few are three times as large.
112 KB is the median of ImageNet's.
"""

import argparse
import io
import math
import random
from pathlib import Path
from statistics import NormalDist

import numpy as np
from PIL import Image

COUNT, SIZE, CLASSES = 1024, 112_000, 8
# Of the logarithm of a size.
SPREAD = 0.4
# What a JPEG of one colour takes, in bytes.
HEADER = 700


def jpeg(seed, kind, pixels):
    """A photograph's ratio of sides; noise, so that it does not compress well, over a pattern that its class has."""
    height = max(16, round(math.sqrt(pixels * 3 / 4)))
    width = max(16, round(pixels / height))
    rows, columns = np.indices((height, width)) / height * 2 * np.pi
    pattern = 128 + 50 * np.sin(rows * (1 + kind % 4))[..., None] * np.cos(columns * (1 + kind // 4))[..., None]
    noise = np.random.default_rng(seed).integers(-50, 50, (height, width, 3))
    content = io.BytesIO()
    Image.fromarray((pattern + noise).astype(np.uint8)).save(content, "JPEG", quality=85)
    return content.getvalue()


def sizes(count, size):
    """In bytes, in no order."""
    normal = NormalDist(math.log(size), SPREAD)
    result = [math.exp(normal.inv_cdf((number + 0.5) / count)) for number in range(count)]
    random.Random(count).shuffle(result)
    return result


def make(directory, count=COUNT, size=SIZE, classes=CLASSES):
    """Under its name only when it is complete."""
    if directory.exists():
        raise FileExistsError(f"{directory} is there already; remove it, or name another")
    trial = 400 * 300
    bytes_per_pixel = (len(jpeg(0, 0, trial)) - HEADER) / trial
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    for number, wanted in enumerate(sizes(count, size)):
        kind = number % classes
        path = unfinished / f"class-{kind}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, kind, max(1, wanted - HEADER) / bytes_per_pixel))
    unfinished.rename(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="which is made")
    parser.add_argument("--count", type=int, default=COUNT, help="how many (%(default)s)")
    parser.add_argument("--size", type=int, default=SIZE, help="the median of their sizes, in bytes (%(default)s)")
    parser.add_argument("--classes", type=int, default=CLASSES, help="how many directories (%(default)s)")
    options = parser.parse_args()
    if min(options.count, options.size, options.classes) < 1:
        parser.error("--count, --size and --classes are at least 1")
    try:
        make(options.directory, options.count, options.size, options.classes)
    except OSError as error:
        parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
    main()

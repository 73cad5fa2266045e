"""torch's DataLoader: forked workers read single files, images, and arrays that are mapped."""

import json
import mmap
import random
from zlib import crc32

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from checks import check, expect, main

SAMPLES = 100
WORKERS = 2
EPOCHS = 2


class Files(Dataset):
    """One file a sample; what it yields is its name and the checksum of what was read."""

    def __init__(self, directory, pattern, read):
        self.paths = sorted(directory.glob(pattern))
        self.read = read

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.paths[index].name, self.read(self.paths[index])


class Rows(Dataset):
    """An array mapped before the workers are forked."""

    def __init__(self, path):
        self.array = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        return str(index), crc32(self.array[index])


def read_raw(path):
    with open(path, "rb") as file:
        return crc32(file.read())


def read_mapped(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return crc32(content)


def read_image(path):
    with Image.open(path) as image:
        return crc32(np.asarray(image.convert("RGB")))


def make(directory, notes):
    directory.mkdir()
    choose = random.Random(7)
    values = np.random.default_rng(7)
    noted = {"raw": {}, "images": {}, "rows": {}}
    for number in range(SAMPLES):
        content = choose.randbytes(choose.randrange(1, 20_000))
        (directory / f"{number}.bin").write_bytes(content)
        noted["raw"][f"{number}.bin"] = crc32(content)
        pixels = values.integers(0, 256, (32 + number % 64, 48, 3), np.uint8)
        Image.fromarray(pixels).save(directory / f"{number}.png")
        noted["images"][f"{number}.png"] = crc32(pixels)
    rows = values.integers(0, 1000, (SAMPLES * 10, 128), np.int64)
    np.save(directory / "rows.npy", rows)
    noted["rows"] = {str(number): crc32(row) for number, row in enumerate(rows)}
    (notes / "checksums.json").write_text(json.dumps(noted))


def loads(dataset, notes, what):
    wanted = json.loads((notes / "checksums.json").read_text())[what]
    loader = DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=WORKERS,
        multiprocessing_context="fork",
        persistent_workers=True,
    )
    for _epoch in range(EPOCHS):
        found = {}
        for names, checksums in loader:
            found.update(zip(names, checksums.tolist()))
        expect(found == wanted, f"{len(found)} samples of {len(wanted)}, or others than written")


def write(directory, notes):
    check("dataloader: the data set is written", make, directory, notes)


def verify(directory, notes):
    torch.manual_seed(7)
    check("dataloader: files", loads, Files(directory, "*.bin", read_raw), notes, "raw")
    check("dataloader: mapped files", loads, Files(directory, "*.bin", read_mapped), notes, "raw")
    check("dataloader: images", loads, Files(directory, "*.png", read_image), notes, "images")
    check("dataloader: rows of a mapped array", loads, Rows(directory / "rows.npy"), notes, "rows")


main(write, verify)

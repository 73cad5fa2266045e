"""h5py: files that are made, appended to, changed in place, and read while they are written."""

import random
import subprocess
import sys

import h5py
import numpy as np

from checks import check, expect, is_safe, main, until

ROUNDS = 20
CHANGES = 300
SHAPE = (1024, 256)


def another_process(code, *arguments):
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    return result.stdout.strip() or result.stderr.strip().splitlines()[-1]


def make(path, notes):
    values = np.random.default_rng(7).random(SHAPE, np.float32)
    with h5py.File(path, "x") as file:
        file.create_dataset("fixed", data=values)
        file.create_dataset("growing", (0, 64), "int64", chunks=(16, 64), maxshape=(None, 64), compression="gzip")
        file.create_group("empty").attrs["made by"] = "h5py"
    np.save(notes / "fixed.npy", values)


def append(path):
    """One open and close each round, as a callback does at the end of an epoch."""
    for number in range(ROUNDS):
        with h5py.File(path, "a") as file:
            rows = file["growing"]
            rows.resize(16 * (number + 1), axis=0)
            rows[-16:] = number
            rows.attrs["rounds"] = number + 1


def change(path, notes, seed):
    """Writes rows and parts of rows anywhere, and reads each of them back."""
    values = np.load(notes / "fixed.npy")
    choose = random.Random(seed)
    with h5py.File(path, "r+") as file:
        for number in range(CHANGES):
            row, column = choose.randrange(SHAPE[0]), choose.randrange(SHAPE[1])
            file["fixed"][row, column:] = values[row, column:] = number + seed
            expect(np.array_equal(file["fixed"][row], values[row]), f"row {row} reads otherwise than written")
            if number % 50 == 0:
                file.flush()
    np.save(notes / "fixed.npy", values)


def change_once_safe(path, notes):
    until("the file to be on the slow tier", lambda: is_safe(path))
    change(path, notes, 1000)


def is_read_while_written(path):
    """HDF5's single writer and multiple readers: each flush is seen by another process."""
    reader = "import h5py, sys; print(h5py.File(sys.argv[1], swmr=True)['loss'][:].sum())"
    with h5py.File(path, "w", libver="latest") as file:
        losses = file.create_dataset("loss", (0,), "int64", chunks=(64,), maxshape=(None,))
        file.swmr_mode = True
        for number in range(1, 6):
            losses.resize((number * 100,))
            losses[-100:] = number
            losses.flush()
            found = another_process(reader, str(path))
            expect(found == str(100 * sum(range(number + 1))), f"after flush {number} the reader found {found}")


def second_writer_is_refused(path):
    writer = "import h5py, sys; h5py.File(sys.argv[1], 'r+'); print('opened')"
    with h5py.File(path, "r+"):
        found = another_process(writer, str(path))
        expect("unable to lock file" in found, found)
    found = another_process(writer, str(path))
    expect(found == "opened", found)


def fixed_is_as_noted(path, notes):
    with h5py.File(path, "r") as file:
        expect(np.array_equal(file["fixed"], np.load(notes / "fixed.npy")), "values differ")
        expect(file["empty"].attrs["made by"] == "h5py" and not list(file["empty"]), "the empty group differs")


def growing_is_complete(path):
    with h5py.File(path, "r") as file:
        wanted = np.repeat(np.arange(ROUNDS), 16)[:, np.newaxis].repeat(64, axis=1)
        expect(np.array_equal(file["growing"], wanted), "rows differ")
        expect(file["growing"].attrs["rounds"] == ROUNDS, "the attribute differs")


def log_is_complete(path):
    with h5py.File(path, "r") as file:
        expect(np.array_equal(file["loss"], np.arange(1, 6).repeat(100)), "values differ")


def write(directory, notes):
    directory.mkdir()
    path, log = directory / "data.h5", directory / "log.h5"
    check("h5py: a file is made", make, path, notes)
    check("h5py: rows are appended", append, path)
    check("h5py: values anywhere are changed", change, path, notes, 0)
    check("h5py: and once more when the file is on the slow tier", change_once_safe, path, notes)
    check("h5py: another process reads what is flushed", is_read_while_written, log)
    check("h5py: a second writer is refused", second_writer_is_refused, path)


def verify(directory, notes):
    check("h5py: changed values", fixed_is_as_noted, directory / "data.h5", notes)
    check("h5py: appended rows", growing_is_complete, directory / "data.h5")
    check("h5py: flushed values", log_is_complete, directory / "log.h5")


main(write, verify)

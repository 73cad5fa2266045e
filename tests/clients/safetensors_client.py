"""safetensors of NumPy arrays: the same file saved over each step, numbered files of which the newest are kept."""

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from checks import check, expect, main

STEPS = 6
KEPT = 2


def arrays(step):
    """What a model of two layers may have, and shapes at the edges of the format."""
    values = np.random.default_rng(step)
    return {
        "layer.weight": values.random((512, 512), np.float32),
        "layer.bias": values.random(512).astype(np.float16),
        "step": np.array(step),
        "empty": np.zeros((0, 4), np.int8),
    }


def numbered(directory, step):
    return directory / f"step-{step}.safetensors"


def save(directory):
    directory.mkdir()
    for step in range(1, STEPS + 1):
        for path in (directory / "last.safetensors", numbered(directory, step)):
            save_file(arrays(step), path, metadata={"step": str(step)})
        numbered(directory, step - KEPT).unlink(missing_ok=True)


def loads(path, step):
    found, wanted = load_file(path), arrays(step)
    expect(found.keys() == wanted.keys(), f"names are {sorted(found)}")
    for name in wanted:
        expect(found[name].dtype == wanted[name].dtype and np.array_equal(found[name], wanted[name]), f"{name} differs")


def slices_are_read(path, step):
    with safe_open(path, "np") as file:
        expect(file.metadata() == {"step": str(step)}, f"metadata is {file.metadata()}")
        rows = file.get_slice("layer.weight")[100:200]
        expect(np.array_equal(rows, arrays(step)["layer.weight"][100:200]), "rows differ")


def names_are_complete(directory):
    wanted = {"last.safetensors"} | {numbered(directory, STEPS - older).name for older in range(KEPT)}
    found = {path.name for path in directory.iterdir()}
    expect(found == wanted, f"found {sorted(found)}")
    # It makes its files private.
    modes = {path.stat().st_mode & 0o777 for path in directory.iterdir()}
    expect(modes == {0o600}, f"modes are {[oct(mode) for mode in modes]}")


def write(directory, _notes):
    check("safetensors: steps are saved", save, directory)


def verify(directory, _notes):
    check("safetensors: the kept files are listed, and nothing else", names_are_complete, directory)
    kept = {"last.safetensors": STEPS} | {numbered(directory, step).name: step for step in (STEPS - 1, STEPS)}
    for name, step in kept.items():
        check(f"safetensors: {name} has step {step}", loads, directory / name, step)
        check(f"safetensors: {name} is read in slices", slices_are_read, directory / name, step)


main(write, verify)

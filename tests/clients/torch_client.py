"""torch.save and torch.load: over an existing file, by way of a temporary one, mapped, in the old format; safetensors."""

import os

import safetensors.torch
import torch

from checks import check, expect, main
from tensors import same

STEPS = 5
# The last step, in these files.
SAVED = ["overwritten.pt", "replaced.pt", "legacy.pt"]


class Training:
    """A model and an optimizer with state."""

    def __init__(self):
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.rand(16, 256)).square().mean().backward()
        self.optimizer.step()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def noted(notes):
    return torch.load(notes / "state.pt")


def save_replacing(state, path):
    """As careful programs do it."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def train(directory, notes):
    directory.mkdir()
    training = Training()
    for _ in range(STEPS):
        training.step()
        torch.save(training.state(), directory / "overwritten.pt")
        save_replacing(training.state(), directory / "replaced.pt")
        torch.save(training.state(), directory / "legacy.pt", _use_new_zipfile_serialization=False)
        safetensors.torch.save_file(training.model.state_dict(), directory / "model.safetensors")
    torch.save(training.state(), notes / "state.pt")


def mapping_outlives_its_file(directory):
    """A mapped checkpoint keeps its content when a newer one takes its name, and when that is removed."""
    path = directory / "mapped.pt"
    torch.save(torch.full((1 << 20,), 1.0), path)
    first = torch.load(path, mmap=True)
    save_replacing(torch.full((1 << 20,), 2.0), path)
    second = torch.load(path, mmap=True)
    path.unlink()
    expect(bool((first == 1).all()) and bool((second == 2).all()), "a mapped tensor has changed")


def loads(path, notes, mmap):
    state = torch.load(path, mmap=mmap)
    same(state, noted(notes))
    training = Training()
    training.load(state)
    training.step()
    expect(all(torch.isfinite(values).all() for values in training.model.parameters()), "training does not go on")


def safetensors_loads(path, notes):
    wanted = noted(notes)["model"]
    same(safetensors.torch.load_file(path), wanted)
    with safetensors.safe_open(path, "pt") as file:
        same(file.get_slice("0.weight")[10:20], wanted["0.weight"][10:20], "a slice")


def names_are_complete(directory):
    found = {path.name for path in directory.iterdir()}
    expect(found == {*SAVED, "model.safetensors"}, f"found {sorted(found)}")


def write(directory, notes):
    check("torch: each step is saved", train, directory, notes)
    check("torch: a mapping outlives its file", mapping_outlives_its_file, directory)


def verify(directory, notes):
    check("torch: every file is listed, and nothing else", names_are_complete, directory)
    for name in SAVED:
        check(f"torch: {name} loads equal, and training goes on", loads, directory / name, notes, False)
        if name != "legacy.pt":
            check(f"torch: {name} loads equal, mapped", loads, directory / name, notes, True)
    check("torch: model.safetensors loads equal", safetensors_loads, directory / "model.safetensors", notes)


main(write, verify)

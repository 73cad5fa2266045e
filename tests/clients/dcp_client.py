"""torch.distributed.checkpoint: saved at once and in the background, to new directories and over an old one."""

import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from checks import check, expect, main
from tensors import same

STEPS = 5
KEPT = 2


def state(step):
    values = torch.Generator().manual_seed(step)
    return {
        "model": {f"layer{number}": torch.rand((256, 256), generator=values) for number in range(4)},
        "optimizer": {"momentum": torch.rand((1000,), generator=values), "step": torch.tensor(step)},
        "epoch": step,
    }


def save(directory):
    """Directories of their own; an old one goes once the new one has been saved."""
    for step in range(1, STEPS + 1):
        dcp.save(state(step), checkpoint_id=directory / f"step-{step}")
        shutil.rmtree(directory / f"step-{step - KEPT}", ignore_errors=True)


def save_over(directory):
    for step in range(1, STEPS + 1):
        dcp.save(state(step), checkpoint_id=directory / "last")


def save_in_background(directory):
    """Each save overlaps with the changes that the next one will have."""
    pending = None
    for step in range(1, STEPS + 1):
        values = state(step)
        if pending:
            pending.result()
        pending = dcp.async_save(values, checkpoint_id=directory / f"async-{step}")
        for tensor in values["model"].values():
            tensor.zero_()
    pending.result()


def loads(path, step):
    found = state(0)
    dcp.load(found, checkpoint_id=path)
    same(found, state(step))


def names_are_complete(directory):
    wanted = {"last"} | {f"async-{step}" for step in range(1, STEPS + 1)}
    wanted |= {f"step-{STEPS - older}" for older in range(KEPT)}
    found = {path.name for path in directory.iterdir()}
    expect(found == wanted, f"found {sorted(found)}")
    for path in directory.iterdir():
        names = sorted(file.name for file in path.iterdir())
        expect(names == [".metadata", "__0_0.distcp"], f"{path.name} has {names}")


def alone():
    """A process group of one: what async_save needs."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def write(directory, _notes):
    directory.mkdir()
    alone()
    check("dcp: saved, the newest two are kept", save, directory)
    check("dcp: saved over and over", save_over, directory)
    check("dcp: saved in the background", save_in_background, directory)
    dist.destroy_process_group()


def verify(directory, _notes):
    alone()
    check("dcp: the kept directories are whole, and nothing else is there", names_are_complete, directory)
    for step in range(STEPS - KEPT + 1, STEPS + 1):
        check(f"dcp: step-{step} loads equal", loads, directory / f"step-{step}", step)
    check("dcp: the one saved over loads the last step", loads, directory / "last", STEPS)
    for step in range(1, STEPS + 1):
        check(f"dcp: async-{step} loads equal", loads, directory / f"async-{step}", step)
    dist.destroy_process_group()


main(write, verify)

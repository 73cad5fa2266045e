"""What checkpoints of torch hold, compared."""

import torch

from checks import expect


def same(found, wanted, name="state"):
    """Compares nested dictionaries and lists down to every tensor."""
    if isinstance(wanted, torch.Tensor):
        expect(found.dtype == wanted.dtype and torch.equal(found, wanted), f"{name} differs")
    elif isinstance(wanted, dict):
        expect(found.keys() == wanted.keys(), f"{name} has the keys {list(found)}")
        for key in wanted:
            same(found[key], wanted[key], f"{name}.{key}")
    elif isinstance(wanted, list):
        expect(len(found) == len(wanted), f"{name} has {len(found)} parts")
        for number, part in enumerate(wanted):
            same(found[number], part, f"{name}.{number}")
    else:
        expect(found == wanted, f"{name} is {found}")

"""One rank of `dlio-fs-bench ranks --save torch|dcp`: keeps a shard in memory, and saves and loads it when it is told to."""

import os
import sys

# The answers go to where standard output went. What libraries print there, as Gloo does, goes to standard error.
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from datetime import timedelta

import torch

rank, ranks, size, how, meeting = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
torch.set_num_threads(1)
if how == "dcp":
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group(
        "gloo", init_method="file://" + meeting, rank=rank, world_size=ranks, timeout=timedelta(minutes=1)
    )

# Tensors of 16 MiB, with names and bytes of their own.
part = 16 << 20
generator = torch.Generator().manual_seed(rank)
state = {
    f"rank{rank}.{at // part}": torch.randint(0, 256, (min(part, size - at),), dtype=torch.uint8, generator=generator)
    for at in range(0, size, part)
}


def save(step):
    if how == "dcp":
        dcp.save(state, storage_writer=dcp.FileSystemWriter(step, sync_files=True))
        return
    with open(f"{step}/rank-{rank:03}.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def load(step):
    if how == "dcp":
        loaded = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        dcp.load(loaded, storage_reader=dcp.FileSystemReader(step))
    else:
        loaded = torch.load(f"{step}/rank-{rank:03}.pt", weights_only=True)
    return loaded


def same(loaded):
    return loaded.keys() == state.keys() and all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


loaded = None
print("ready", file=told, flush=True)
for line in sys.stdin:
    what, step = line.rstrip("\n").split(" ", 1)
    if what == "save":
        save(step)
    elif what == "load":
        loaded = load(step)
    elif same(loaded):
        loaded = None
    else:
        sys.exit(f"{step} does not hold what rank {rank} saved")
    print("done", file=told, flush=True)

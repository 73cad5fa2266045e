"""Lightning's ModelCheckpoint: the best two and the last, with TMPDIR inside of the mount and outside, and in the background.

Lightning writes a checkpoint to TMPDIR and moves it. Its AsyncCheckpointIO is tried with TMPDIR inside only: the move
from outside is a copy, on which Lightning's own removal of older checkpoints does not wait.
"""

import logging
import tempfile
import warnings

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

from checks import check, expect, main
from tensors import same

# Of each epoch; the lowest two are kept. The last checkpoint is the one that was among them last.
SCORES = [3.0, 1.0, 4.0, 2.0, 5.0]
BEST = [1, 3]
LAST = 3

# Whether TMPDIR is inside of the mount, what stands in for the last checkpoint, whether in the background.
RUNS = {
    "inside": (True, True, False),
    "inside-link": (True, "link", False),
    "inside-async": (True, True, True),
    "outside": (False, True, False),
    "outside-link": (False, "link", False),
}


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))

    def training_step(self, batch, _index):
        return self.layers(batch[0]).square().mean()

    def on_train_epoch_end(self):
        self.log("score", SCORES[self.current_epoch] if self.current_epoch < len(SCORES) else 0.0)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Notes(Callback):
    """Keeps what a checkpoint of each epoch must hold outside of the mount."""

    def __init__(self, notes, run):
        self.notes, self.run = notes, run

    def on_train_epoch_end(self, trainer, module):
        optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
        state = {"epoch": trainer.current_epoch, "state_dict": module.state_dict(), "optimizer_states": optimizers}
        torch.save(state, noted(self.notes, self.run, trainer.current_epoch))


def noted(notes, run, epoch):
    return notes / f"{run}-{epoch}.pt"


def fit(epochs, checkpoint=None, **options):
    torch.manual_seed(7)
    batches = DataLoader(TensorDataset(torch.rand(64, 256)), batch_size=32)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Module(), batches, ckpt_path=checkpoint)
    return trainer


def train(directory, notes, run):
    is_inside, save_last, is_async = RUNS[run]
    temporary = directory / ".tmp" if is_inside else notes / "tmp"
    temporary.mkdir(exist_ok=True)
    # What TMPDIR would have set at the start.
    tempfile.tempdir = str(temporary)
    keep = ModelCheckpoint(directory / run, "{epoch}", monitor="score", save_top_k=len(BEST), save_last=save_last)
    plugins = [AsyncCheckpointIO()] if is_async else []
    fit(len(SCORES), callbacks=[Notes(notes, run), keep], plugins=plugins)
    expect(not list(temporary.iterdir()), f"{temporary} is not empty")


def best(epoch):
    return f"epoch={epoch}.ckpt"


def names_are_complete(directory, run):
    found = {path.name for path in (directory / run).iterdir()}
    expect(found == {"last.ckpt", *map(best, BEST)}, f"found {sorted(found)}")
    is_link = (directory / run / "last.ckpt").is_symlink()
    expect(is_link == (RUNS[run][1] == "link"), f"last.ckpt is {'' if is_link else 'not '}a symbolic link")


def loads(path, notes, run, epoch):
    checkpoint, wanted = torch.load(path), torch.load(noted(notes, run, epoch))
    same({key: checkpoint[key] for key in wanted}, wanted)


def training_goes_on(path, epoch):
    trainer = fit(epoch + 2, path, enable_checkpointing=False)
    expect(trainer.global_step == 2 * (epoch + 2), f"it ended at step {trainer.global_step}")


def write(directory, notes):
    directory.mkdir()
    for run in RUNS:
        check(f"lightning {run}: training writes its checkpoints", train, directory, notes, run)


def verify(directory, notes):
    for run in RUNS:
        path = directory / run
        check(f"lightning {run}: the best and the last are listed, and nothing else", names_are_complete, directory, run)
        for epoch in BEST:
            check(f"lightning {run}: epoch {epoch} restores equal", loads, path / best(epoch), notes, run, epoch)
        check(f"lightning {run}: last.ckpt restores equal", loads, path / "last.ckpt", notes, run, LAST)
        check(f"lightning {run}: training goes on from there", training_goes_on, path / "last.ckpt", LAST)


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
main(write, verify)

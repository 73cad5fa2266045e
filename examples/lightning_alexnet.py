#!/usr/bin/env python3
"""Trains a small AlexNet with Lightning on JPEGs that a DataLoader reads, and saves a checkpoint every 20 iterations.

    mkdir -p /mnt/train/alexnet/.tmp
    TMPDIR=/mnt/train/alexnet/.tmp lightning_alexnet.py /mnt/train/alexnet

After "Characterizing Deep-Learning I/O Workloads in TensorFlow" (Chien et al. 2018): the mini-application. Lightning
writes a checkpoint to TMPDIR and moves it: in the same file system by one rename, from elsewhere by a second copy.
"""

import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import training
from training import PIXELS


class Images(Dataset):
    """(image, class, bytes of its file); a batch is loaded by so many threads."""

    def __init__(self, chosen, threads):
        self.chosen, self.threads = chosen, threads

    def __len__(self):
        return len(self.chosen)

    def __getitems__(self, indices):
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(self.__getitem__, indices))

    def __getitem__(self, index):
        path, kind = self.chosen[index]
        with open(path, "rb") as file, Image.open(file) as image:
            # Decodes no more than the size asks for.
            image.draft("RGB", (PIXELS, PIXELS))
            pixels = np.array(image.convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))
            return torch.from_numpy(pixels).permute(2, 0, 1), kind, file.seek(0, 2)


class Batches:
    """What is left of `total`. Lightning counts also those before the checkpoint that it goes on from."""

    def __init__(self, loader, figures, total):
        self.loader, self.figures, self.total = loader, figures, total

    def __len__(self):
        return self.total

    def __iter__(self):
        return self.figures.batches(self.loader)


def batches(chosen, options):
    images = Images(chosen, 1 if options.prefetch else options.threads)
    if not options.prefetch:
        return DataLoader(images, options.batch)
    # Workers cannot but load ahead: here, one batch each.
    return DataLoader(images, options.batch, num_workers=options.threads, prefetch_factor=1)


class AlexNet(LightningModule):
    def __init__(self, width, classes):
        super().__init__()
        self.save_hyperparameters()
        layers, channels = [], 3
        for filters, kernel, stride, is_pooled in training.CONVOLUTIONS:
            layers += [nn.Conv2d(channels, filters, kernel, stride, 0 if stride > 1 else kernel // 2), nn.ReLU()]
            layers += [nn.MaxPool2d(3, 2)] if is_pooled else []
            channels = filters
        layers += [nn.Flatten(), nn.Linear(6 * 6 * channels, width), nn.ReLU(), nn.Dropout(training.DROPPED)]
        layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(training.DROPPED), nn.Linear(width, classes)]
        self.layers = nn.Sequential(*layers)

    def training_step(self, batch, _index):
        images, kinds = batch
        return nn.functional.cross_entropy(self.layers(images / 255), kinds)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), training.LEARNING_RATE)


class Timed(TorchCheckpointIO):
    def __init__(self, figures, is_fsynced):
        self.figures, self.is_fsynced = figures, is_fsynced

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        with self.figures.checkpoint(checkpoint["global_step"], Path(path), self.is_fsynced):
            super().save_checkpoint(checkpoint, path, storage_options)


def new_trainer(options, figures):
    keep = ModelCheckpoint(
        dirpath=options.directory / "checkpoints",
        filename="step-{step:06d}",
        auto_insert_metric_name=False,
        every_n_train_steps=options.every,
        save_top_k=-1,
        # One that is there is not complete: the new one comes in its place, and not beside it.
        enable_version_counter=False,
    )
    return Trainer(
        max_steps=options.iterations,
        max_epochs=-1,
        callbacks=[keep],
        plugins=[Timed(figures, options.fsync)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main():
    options = training.options(__doc__)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # Of what they take for slow: more workers than cores, no GPU.
    warnings.filterwarnings("ignore", module="lightning|torch.utils.data")
    seed_everything(7, verbose=False)
    found, classes = training.images(options.directory)
    before = training.newest(options, "ckpt")
    saved = torch.load(before, weights_only=True, mmap=True) if before else {}
    model = AlexNet(**saved.get("hyper_parameters", {"width": options.width, "classes": classes}))
    first = saved.get("global_step", 0)
    figures = training.Figures()
    chosen = training.in_order(found, options.batch, first, options.iterations)
    source = Batches(batches(chosen, options), figures, options.iterations)
    new_trainer(options, figures).fit(model, source, ckpt_path=before)
    figures.tell("lightning_alexnet", options, first)


if __name__ == "__main__":
    main()

"""A fit of Keras: each step reads a file of the directory in the argument, each epoch saves the model there."""

import sys
from pathlib import Path

import keras
import numpy as np

STEPS = 40


class Batches(keras.utils.PyDataset):
    def __init__(self, directory):
        super().__init__()
        self.paths = sorted(Path(directory).glob("*.bin"))[:STEPS]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        pixels = np.fromfile(self.paths[index], dtype=np.uint8, count=32 * 64).reshape(32, 64) / 255
        return pixels, pixels.mean(axis=1)


if __name__ == "__main__":
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    saves = keras.callbacks.ModelCheckpoint(str(Path(sys.argv[1]) / "epoch-{epoch}.keras"))
    model.fit(Batches(sys.argv[1]), epochs=2, callbacks=[saves], verbose=0)

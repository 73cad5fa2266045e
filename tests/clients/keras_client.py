"""Keras ModelCheckpoint: the same file overwritten each epoch, whole model and weights only, and numbered files."""

import json

import keras
import numpy as np

from checks import check, expect, main

EPOCHS = 4
# Overwritten each epoch / one file for each epoch.
LAST = ["last.keras", "last.weights.h5"]
NUMBERED = ["numbered-{epoch:02d}.keras", "numbered-{epoch:02d}.weights.h5"]


def new_model():
    layers = [keras.layers.Input((64,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(optimizer=keras.optimizers.Adam(), loss=keras.losses.MeanSquaredError())
    return model


def same(found, wanted):
    expect(len(found) == len(wanted), f"{len(found)} arrays instead of {len(wanted)}")
    for number, (one, other) in enumerate(zip(found, wanted)):
        expect(np.array_equal(one, other), f"array {number} differs")


class Notes(keras.callbacks.Callback):
    """Keeps the weights of each epoch outside the mount; runs after the checkpoints of the epoch were written."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def on_epoch_end(self, epoch, logs=None):
        np.savez(self.notes / f"weights-{epoch + 1}.npz", *self.model.get_weights())
        state = [np.asarray(variable) for variable in self.model.optimizer.variables]
        np.savez(self.notes / f"optimizer-{epoch + 1}.npz", *state)


def noted(notes, what, epoch):
    with np.load(notes / f"{what}-{epoch}.npz") as arrays:
        return [arrays[name] for name in arrays.files]


def train(directory, notes):
    directory.mkdir()
    keras.utils.set_random_seed(7)
    inputs, targets = np.random.rand(256, 64), np.random.rand(256, 10)
    checkpoints = []
    for name in LAST + NUMBERED:
        only_weights = name.endswith(".weights.h5")
        path = str(directory / name)
        checkpoints.append(keras.callbacks.ModelCheckpoint(path, save_weights_only=only_weights))
    log = keras.callbacks.CSVLogger(str(directory / "log.csv"))
    history = new_model().fit(
        inputs, targets, epochs=EPOCHS, verbose=0, callbacks=checkpoints + [log, Notes(notes)]
    )
    (notes / "history.json").write_text(json.dumps(history.history))


def restores(path, notes, epoch):
    if path.name.endswith(".weights.h5"):
        model = new_model()
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
    else:
        model = keras.models.load_model(path)
    same(model.get_weights(), noted(notes, "weights", epoch))
    state = [np.asarray(variable) for variable in model.optimizer.variables]
    same(state, noted(notes, "optimizer", epoch))


def names_are_complete(directory):
    wanted = {"log.csv", *LAST}
    wanted |= {name.format(epoch=epoch) for name in NUMBERED for epoch in range(1, EPOCHS + 1)}
    found = {path.name for path in directory.iterdir()}
    expect(found == wanted, f"found {sorted(found)}")


def log_is_complete(directory, notes):
    rows = (directory / "log.csv").read_text().splitlines()[1:]
    losses = [float(row.split(",")[1]) for row in rows]
    expect(np.allclose(losses, json.loads((notes / "history.json").read_text())["loss"]), f"losses are {losses}")


def write(directory, notes):
    check("keras: training writes its checkpoints", train, directory, notes)


def verify(directory, notes):
    check("keras: every checkpoint is listed, and nothing else", names_are_complete, directory)
    check("keras: CSV log", log_is_complete, directory, notes)
    for name in LAST:
        check(f"keras: {name} restores the last epoch", restores, directory / name, notes, EPOCHS)
    for name in NUMBERED:
        for epoch in range(1, EPOCHS + 1):
            path = directory / name.format(epoch=epoch)
            check(f"keras: {path.name} restores epoch {epoch}", restores, path, notes, epoch)


main(write, verify)

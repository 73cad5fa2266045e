"""TensorFlow CheckpointManager with max_to_keep=2: what is kept is whole, what was dropped is gone."""

import numpy as np
import tensorflow as tf

from checks import check, expect, main

STEPS = 6
KEPT = 2


def new_state():
    """Variables and a step counter, as a training loop has them."""
    return tf.train.Checkpoint(
        step=tf.Variable(0, dtype=tf.int64),
        weights=tf.Variable(tf.random.normal([512, 512])),
        bias=tf.Variable(tf.zeros([512])),
    )


def arrays(state):
    return {name: getattr(state, name).numpy() for name in ("step", "weights", "bias")}


def train(directory, notes):
    state = new_state()
    manager = tf.train.CheckpointManager(state, str(directory), max_to_keep=KEPT)
    for step in range(1, STEPS + 1):
        state.step.assign(step)
        state.weights.assign_add(tf.random.normal([512, 512]))
        state.bias.assign_add(tf.random.normal([512]))
        manager.save()
        np.savez(notes / f"step-{step}.npz", **arrays(state))


def restores(path, notes, step):
    state = new_state()
    state.restore(path).assert_consumed()
    with np.load(notes / f"step-{step}.npz") as wanted:
        for name, found in arrays(state).items():
            expect(np.array_equal(found, wanted[name]), f"{name} differs")


def latest_restores(directory, notes):
    latest = tf.train.latest_checkpoint(str(directory))
    expect(latest == str(directory / f"ckpt-{STEPS}"), f"latest_checkpoint is {latest}")
    restores(latest, notes, STEPS)


def only_the_newest_are_kept(directory):
    wanted = {"checkpoint"}
    for step in range(STEPS - KEPT + 1, STEPS + 1):
        wanted |= {f"ckpt-{step}.index", f"ckpt-{step}.data-00000-of-00001"}
    found = {path.name for path in directory.iterdir()}
    expect(found == wanted, f"found {sorted(found)}")


def manager_goes_on(directory):
    """A restarted job's manager reads the manifest and knows what it may delete next."""
    manager = tf.train.CheckpointManager(new_state(), str(directory), max_to_keep=KEPT)
    expect([path.rsplit("-", 1)[1] for path in manager.checkpoints] == [str(STEPS - 1), str(STEPS)], manager.checkpoints)


def saved_model_restores(directory, notes):
    module = tf.saved_model.load(str(directory / "saved_model"))
    with np.load(notes / "saved_model.npz") as wanted:
        expect(np.array_equal(module.weights.numpy(), wanted["weights"]), "weights differ")


def export(directory, notes):
    module = tf.Module()
    module.weights = tf.Variable(tf.random.normal([64, 64]))
    tf.saved_model.save(module, str(directory / "saved_model"))
    np.savez(notes / "saved_model.npz", weights=module.weights.numpy())


def write(directory, notes):
    check("tensorflow: CheckpointManager saves", train, directory / "checkpoints", notes)
    check("tensorflow: SavedModel is exported", export, directory, notes)


def verify(directory, notes):
    checkpoints = directory / "checkpoints"
    check("tensorflow: only the newest two are kept", only_the_newest_are_kept, checkpoints)
    check("tensorflow: the latest restores equal", latest_restores, checkpoints, notes)
    before = str(checkpoints / f"ckpt-{STEPS - 1}")
    check("tensorflow: the one before restores equal", restores, before, notes, STEPS - 1)
    check("tensorflow: a new manager goes on from there", manager_goes_on, checkpoints)
    check("tensorflow: SavedModel restores equal", saved_model_restores, directory, notes)


main(write, verify)

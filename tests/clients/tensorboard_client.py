"""TensorBoard's event files: open for the whole run, appended to and flushed, while another program follows them.

The mount has a short `live_after`: what is open for longer is on the slow tier as it was at some moment.
"""

import subprocess
import tempfile
from pathlib import Path

import tensorflow as tf

from checks import check, expect, is_safe, main, on_slow, until

LOG = "train"
# Steps between two flushes.
INTERVAL = 10


def event_file(directory):
    return next((directory / LOG).glob("events.out.tfevents.*"))


def is_open(path):
    """Whether this process has it open."""
    return any(descriptor.resolve() == path for descriptor in Path("/proc/self/fd").iterdir())


def losses(path):
    """The scalars in an event file by step; every record has a checksum, and a torn one is an error."""
    found = {}
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            found[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def loss(step):
    # Exact in the file's 32 bits.
    return step / 4


def wanted(steps):
    return {step: loss(step) for step in range(steps)}


class Follower:
    """A program that shows what is appended, as TensorBoard does."""

    def __init__(self, path):
        self.shown = tempfile.NamedTemporaryFile()
        command = ["tail", "--bytes=+1", "--follow", "--sleep-interval=0.1", str(path)]
        self.tail = subprocess.Popen(command, stdout=self.shown)

    def has_seen(self, path):
        return Path(self.shown.name).read_bytes() == path.read_bytes()

    def end(self):
        self.tail.terminate()
        self.tail.wait()


class Run:
    """A writer that stays open over several checks."""

    def __init__(self, directory):
        self.writer = tf.summary.create_file_writer(str(directory / LOG))
        self.steps = 0
        self.log_and_flush()
        self.path = event_file(directory)
        self.follower = Follower(self.path)

    def log_and_flush(self):
        with self.writer.as_default():
            for step in range(self.steps, self.steps + INTERVAL):
                tf.summary.write("loss", tf.constant(loss(step)), step=step)
        self.writer.flush()
        self.steps += INTERVAL


def readers_see_each_flush(run):
    for _ in range(3):
        run.log_and_flush()
        expect(losses(run.path) == wanted(run.steps), "who opens it now does not see all that was flushed")
        until("the follower to see it", lambda: run.follower.has_seen(run.path))


def arrives_while_open(run):
    arrived = on_slow() / LOG / run.path.name
    until("a snapshot on the slow tier", lambda: arrived.exists() and losses(arrived) == wanted(run.steps))
    expect(is_open(run.path), "the writer has closed it")


def arrives_again(run):
    run.log_and_flush()
    arrives_while_open(run)


def holds_up_nothing(directory, run):
    """What is written after the log is on the slow tier while the log is open."""
    run.log_and_flush()
    later = directory / "checkpoint"
    later.write_bytes(b"weights")
    until("what was written later to be on the slow tier", lambda: is_safe(later))
    expect((on_slow() / "checkpoint").read_bytes() == b"weights", "it differs there")
    expect(is_open(run.path), "the writer has closed it")


def close(run, notes):
    run.log_and_flush()
    run.writer.close()
    expect(not is_open(run.path), "it is still open")
    until("the follower to see the end", lambda: run.follower.has_seen(run.path))
    run.follower.end()
    (notes / "steps").write_text(str(run.steps))


def is_complete(directory, notes):
    found = losses(event_file(directory))
    expect(found == wanted(int((notes / "steps").read_text())), f"{len(found)} steps, or others than written")


def only_these_files(directory):
    found = sorted(path.name for path in directory.rglob("*") if path.is_file())
    expect(found == ["checkpoint", event_file(directory).name], f"found {found}")


def write(directory, notes):
    directory.mkdir()
    run = Run(directory)
    check("tensorboard: readers see each flush", readers_see_each_flush, run)
    check("tensorboard: the open file is on the slow tier", arrives_while_open, run)
    check("tensorboard: and again with what came since", arrives_again, run)
    check("tensorboard: a later file is not held up", holds_up_nothing, directory, run)
    check("tensorboard: the file is closed", close, run, notes)


def verify(directory, notes):
    check("tensorboard: every step", is_complete, directory, notes)
    check("tensorboard: nothing else is there", only_these_files, directory)


main(write, verify)

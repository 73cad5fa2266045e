"""tf.data: a data set of single files and one of TFRecords are read, cached and saved."""

import hashlib
import json
import random

import tensorflow as tf

from checks import check, expect, main

FILES = 200
SHARDS = 4
RECORDS = 500


def content(seed, most):
    choose = random.Random(seed)
    return choose.randbytes(choose.randrange(most))


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def make_files(directory, notes):
    noted = {}
    for number in range(FILES):
        path = directory / f"class{number % 5}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number, 20_000))
        noted[str(path.relative_to(directory))] = sha256(path.read_bytes())
    (notes / "files.json").write_text(json.dumps(noted))


def record(shard, number):
    return content(f"{shard} {number}", 2_000)


def make_shards(directory, compression):
    directory.mkdir(parents=True)
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(directory / f"shard-{shard}"), compression) as writer:
            for number in range(RECORDS):
                writer.write(record(shard, number))


def read_files(directory):
    """Pairs of path and content, in no order, as training reads them."""
    paths = tf.data.Dataset.list_files(str(directory / "*/*.bin"), shuffle=True)
    read = lambda path: (path, tf.io.read_file(path))
    return paths.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).prefetch(16)


def read_shards(directory, compression):
    shards = tf.data.Dataset.list_files(str(directory / "shard-*"))
    open_shard = lambda path: tf.data.TFRecordDataset(path, compression, buffer_size=64 << 10)
    return shards.interleave(open_shard, cycle_length=SHARDS, num_parallel_calls=2)


def files_are_as_noted(directory, notes):
    for _epoch in range(2):
        pairs = read_files(directory).as_numpy_iterator()
        found = {path.decode().removeprefix(f"{directory}/"): sha256(content) for path, content in pairs}
        expect(found == json.loads((notes / "files.json").read_text()), f"{len(found)} files, or others than written")


def records_are_as_written(directory, compression):
    wanted = sorted(record(shard, number) for shard in range(SHARDS) for number in range(RECORDS))
    found = sorted(read_shards(directory, compression).as_numpy_iterator())
    expect(found == wanted, f"{len(found)} records, or others than written")


def wanted_lengths():
    return sorted(len(record(shard, number)) for shard in range(SHARDS) for number in range(RECORDS))


def keep(directory, shards):
    """A cache in files, filled by the first epoch, and a data set saved as a whole."""
    source = read_shards(shards, "").map(tf.strings.length)
    expect(sorted(source.cache(str(directory / "cache")).as_numpy_iterator()) == wanted_lengths(), "the first epoch differs")
    source.save(str(directory / "saved"))


def is_kept(directory):
    # A complete cache does not ask its source.
    nothing = tf.data.Dataset.from_tensors(tf.constant(0)).take(0)
    cached = nothing.cache(str(directory / "cache"))
    expect(sorted(cached.as_numpy_iterator()) == wanted_lengths(), "the cache differs")
    saved = tf.data.Dataset.load(str(directory / "saved"))
    expect(sorted(saved.as_numpy_iterator()) == wanted_lengths(), "the saved data set differs")


def write(directory, notes):
    check("tfdata: files are made", make_files, directory / "files", notes)
    check("tfdata: TFRecords are written", make_shards, directory / "plain", "")
    check("tfdata: compressed TFRecords are written", make_shards, directory / "gzip", "GZIP")
    check("tfdata: a data set is cached and saved", keep, directory, directory / "plain")


def verify(directory, notes):
    check("tfdata: list_files and read_file, two epochs", files_are_as_noted, directory / "files", notes)
    check("tfdata: TFRecords", records_are_as_written, directory / "plain", "")
    check("tfdata: compressed TFRecords", records_are_as_written, directory / "gzip", "GZIP")
    check("tfdata: cache and saved data set", is_kept, directory)


main(write, verify)

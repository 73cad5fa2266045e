#!/usr/bin/env python3
"""Trains a small AlexNet with Keras on JPEGs that tf.data reads, and saves the whole model every 20 iterations.

    keras_alexnet.py /mnt/train/alexnet

After "Characterizing Deep-Learning I/O Workloads in TensorFlow" (Chien et al. 2018): the mini-application.
"""

import os

# Before TensorFlow is imported, which tells at length what the machine has not.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import training
from training import PIXELS


def new_model(width, classes):
    layers = [keras.layers.Input((PIXELS, PIXELS, 3)), keras.layers.Rescaling(1 / 255)]
    for filters, kernel, stride, is_pooled in training.CONVOLUTIONS:
        padding = "valid" if stride > 1 else "same"
        layers.append(keras.layers.Conv2D(filters, kernel, stride, padding, activation="relu"))
        if is_pooled:
            layers.append(keras.layers.MaxPooling2D(3, 2))
    layers.append(keras.layers.Flatten())
    for _ in range(2):
        layers += [keras.layers.Dense(width, activation="relu"), keras.layers.Dropout(training.DROPPED)]
    model = keras.Sequential([*layers, keras.layers.Dense(classes)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(training.LEARNING_RATE), loss=loss)
    return model


def load(path, kind):
    content = tf.io.read_file(path)
    image = tf.image.resize(tf.io.decode_jpeg(content, channels=3), (PIXELS, PIXELS))
    return image, kind, tf.strings.length(content)


def batches(chosen, options):
    """Of (path, class)."""
    paths, kinds = zip(*chosen)
    source = tf.data.Dataset.from_tensor_slices((list(paths), list(kinds)))
    source = source.map(load, num_parallel_calls=options.threads).batch(options.batch)
    # Without asking, TensorFlow adds what --prefetch 0 is to leave out.
    without = tf.data.Options()
    without.experimental_optimization.inject_prefetch = False
    return (source.prefetch(1) if options.prefetch else source).with_options(without)


def main():
    options = training.options(__doc__)
    found, classes = training.images(options.directory)
    before = training.newest(options, "keras")
    model = keras.models.load_model(before) if before else new_model(options.width, classes)
    step = first = int(model.optimizer.iterations)
    figures = training.Figures()
    chosen = training.in_order(found, options.batch, first, options.iterations)
    for images, kinds in figures.batches(batches(chosen, options) if chosen else []):
        model.train_on_batch(images, kinds)
        step = int(model.optimizer.iterations)
        if step % options.every == 0:
            path = training.checkpoint_path(options.directory, step, "keras")
            with figures.checkpoint(step, path, options.fsync):
                model.save(path)
    figures.tell("keras_alexnet", options, first)


if __name__ == "__main__":
    main()

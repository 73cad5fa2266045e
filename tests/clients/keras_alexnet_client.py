"""The mini-application in Keras (examples/keras_alexnet.py): begun, stopped, and gone on with."""

from functools import partial

import alexnet
from checks import main

main(partial(alexnet.write, "keras", "keras"), partial(alexnet.verify, "keras", "keras"))

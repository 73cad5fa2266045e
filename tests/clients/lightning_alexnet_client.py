"""The mini-application in Lightning (examples/lightning_alexnet.py), with TMPDIR inside of the mount."""

from functools import partial

import alexnet
from checks import main

main(partial(alexnet.write, "lightning", "ckpt"), partial(alexnet.verify, "lightning", "ckpt"))

"""One result line per check, and the two verbs that every client script has.

    SCRIPT write DIR NOTES     do what users do below DIR; note in the directory NOTES what must be found again
    SCRIPT verify DIR NOTES    find it again, through the mount or in a copy

ON_SLOW in the environment is where DIR arrives on the slow tier.
"""

import os
import sys
import time
import traceback
from pathlib import Path

# For what happens in the background; seconds.
PATIENCE = 120

failed = 0


def check(name, work, *arguments):
    """Runs one check: it fails by raising, and says so by itself."""
    global failed
    try:
        work(*arguments)
        print(f"ok {name}", flush=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a client's error (not all are Exceptions) is a failed check; the next one still runs
        failed += 1
        traceback.print_exc()
        print(f"FAILED {name}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def until(what, condition):
    """Returns what `condition` returns once that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        expect(time.monotonic() < deadline, f"waited {PATIENCE} s for {what}")
        time.sleep(0.05)
    return result


def on_slow():
    return Path(os.environ["ON_SLOW"])


def is_safe(path):
    """Whether a file of the mount has arrived on the slow tier as it is."""
    return os.getxattr(path, "user.dlio.state") in (b"clean", b"slow")


def main(write, verify):
    verbs = {"write": write, "verify": verify}
    if len(sys.argv) != 4 or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    verbs[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
    sys.exit(1 if failed else 0)

"""One result line per check, and the two verbs that every client script has.

    SCRIPT write DIR NOTES     do what users do below DIR; note in the directory NOTES what must be found again
    SCRIPT verify DIR NOTES    find it again, through the mount or in a copy
"""

import sys
import traceback
from pathlib import Path

failed = 0


def check(name, work, *arguments):
    """Runs one check: it fails by raising, and says so by itself."""
    global failed
    try:
        work(*arguments)
        print(f"ok {name}", flush=True)
    except Exception as error:  # whatever a client library may raise is a failed check, and the next one still runs
        failed += 1
        traceback.print_exc()
        print(f"FAILED {name}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def main(write, verify):
    verbs = {"write": write, "verify": verify}
    if len(sys.argv) != 4 or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    verbs[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
    sys.exit(1 if failed else 0)

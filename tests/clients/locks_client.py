"""Locks between processes: POSIX's of ranges, BSD's of files, and those of open file descriptions."""

import fcntl
import multiprocessing
import os
import struct

from checks import PATIENCE, check, expect, main

TURNS = 200
PROCESSES = 3

context = multiprocessing.get_context("fork")


def posix(descriptor, how, start=0, length=0):
    fcntl.lockf(descriptor, how, length, start)


def bsd(descriptor, how, _start=0, _length=0):
    fcntl.flock(descriptor, how)


def ofd(descriptor, how, start=0, length=0):
    kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
    command = fcntl.F_OFD_SETLK if how & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
    # struct flock: kind, whence, start, length, and no process.
    fcntl.fcntl(descriptor, command, struct.pack("hhqqi4x", kinds[how & ~fcntl.LOCK_NB], os.SEEK_SET, start, length, 0))


KINDS = {"posix": posix, "bsd": bsd, "ofd": ofd}


def is_free(lock, path, how, start=0, length=0):
    """Whether another process can have it now."""

    def attempt(answer):
        with open(path, "r+b") as file:
            try:
                lock(file.fileno(), how | fcntl.LOCK_NB, start, length)
                answer.send(True)
            except BlockingIOError:
                answer.send(False)

    ours, theirs = context.Pipe()
    process = context.Process(target=attempt, args=(theirs,))
    process.start()
    expect(ours.poll(PATIENCE), "no answer from the other process")
    answer = ours.recv()
    process.join()
    return answer


def excludes(lock, path):
    path.write_bytes(b"0" * 100)
    with open(path, "r+b") as file:
        lock(file.fileno(), fcntl.LOCK_EX)
        expect(not is_free(lock, path, fcntl.LOCK_EX) and not is_free(lock, path, fcntl.LOCK_SH), "an exclusive lock was shared")
        # What is done to the bytes meanwhile is nothing to the lock.
        file.write(b"1" * 50)
        file.flush()
        os.fsync(file.fileno())
        expect(not is_free(lock, path, fcntl.LOCK_EX), "the lock went with an fsync")
        lock(file.fileno(), fcntl.LOCK_SH)
        expect(is_free(lock, path, fcntl.LOCK_SH) and not is_free(lock, path, fcntl.LOCK_EX), "a shared lock was none")
        lock(file.fileno(), fcntl.LOCK_UN)
        expect(is_free(lock, path, fcntl.LOCK_EX), "a lock that was given back is held")
        lock(file.fileno(), fcntl.LOCK_EX)
    expect(is_free(lock, path, fcntl.LOCK_EX), "a lock outlived its file")


def has_ranges(lock, path):
    with open(path, "r+b") as file:
        lock(file.fileno(), fcntl.LOCK_EX, 10, 20)
        expect(not is_free(lock, path, fcntl.LOCK_EX, 25, 1), "a range was shared")
        expect(is_free(lock, path, fcntl.LOCK_EX, 0, 10) and is_free(lock, path, fcntl.LOCK_EX, 30, 10), "beside the range")


def follows_its_file(lock, path):
    """A lock is the file's, under whatever name."""
    other = path.with_name(path.name + "-renamed")
    with open(path, "r+b") as file:
        lock(file.fileno(), fcntl.LOCK_EX)
        os.rename(path, other)
        path.write_bytes(b"another file")
        expect(not is_free(lock, other, fcntl.LOCK_EX), "the lock did not go with the file")
        expect(is_free(lock, path, fcntl.LOCK_EX), "the lock stayed with the name")


def goes_with_its_process(lock, path):
    def hold(ready):
        with open(path, "r+b") as file:
            lock(file.fileno(), fcntl.LOCK_EX)
            ready.send(True)
            ready.recv()

    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(theirs,))
    process.start()
    expect(ours.poll(PATIENCE) and ours.recv(), "the other process got no lock")
    expect(not is_free(lock, path, fcntl.LOCK_EX), "not held")
    process.kill()
    process.join()
    expect(is_free(lock, path, fcntl.LOCK_EX), "held by a process that was killed")


def count_up(lock, directory, name):
    for _ in range(TURNS):
        # Both are closed in between and may be evicted.
        with open(directory / f"{name}.lock", "r+b") as guard:
            lock(guard.fileno(), fcntl.LOCK_EX)
            with open(directory / f"{name}.count", "r+") as file:
                number = int(file.read())
                file.seek(0)
                file.write(str(number + 1))


def counts(lock, directory, name):
    """A lost turn is a lock that two had, or a read that did not see the last write."""
    (directory / f"{name}.lock").touch()
    (directory / f"{name}.count").write_text("0")
    processes = [context.Process(target=count_up, args=(lock, directory, name)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        expect(process.exitcode == 0, f"a process ended with {process.exitcode}")
    has_counted(directory, name)


def has_counted(directory, name):
    number = int((directory / f"{name}.count").read_text())
    expect(number == TURNS * PROCESSES, f"{number} instead of {TURNS * PROCESSES}")


def write(directory, _notes):
    directory.mkdir()
    for name, lock in KINDS.items():
        path = directory / f"{name}.file"
        check(f"locks {name}: exclusive, shared, given back", excludes, lock, path)
        if lock is not bsd:
            check(f"locks {name}: ranges", has_ranges, lock, path)
        check(f"locks {name}: stays with a file that is renamed", follows_its_file, lock, path)
        check(f"locks {name}: goes with its process", goes_with_its_process, lock, path)
        check(f"locks {name}: {PROCESSES} processes count", counts, lock, directory, name)


def verify(directory, _notes):
    for name in KINDS:
        check(f"locks {name}: all turns were counted", has_counted, directory, name)


main(write, verify)

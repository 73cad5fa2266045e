"""What its owner has closed: a module cache of directories of mode 0555 and files of mode 0444 copied, linked, replaced and removed."""

import hashlib
import os
import subprocess

from checks import check, expect, main

MODULES = 8
FILES = 12


def run(*command):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    expect(result.returncode == 0, f"{command}: {result.stderr.strip()}")


def close(top):
    """Files first: a directory that is closed can be walked, but not be written to."""
    for directory, _, files in os.walk(top, topdown=False):
        for file in files:
            os.chmod(os.path.join(directory, file), 0o444)
        os.chmod(directory, 0o555)


def cache(notes):
    """As `go mod download` leaves one, outside of the mount."""
    top = notes / "cache"
    if top.exists():
        return top
    for module in range(MODULES):
        for number in range(FILES):
            path = top / f"host/module{module}@v1.0.{module}" / f"package{number % 3}" / f"file{number}.go"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"package p{number}\n" * (1 + module * number * 40))
            os.utime(path, (900_000_000 + number, 900_000_000 + number))
    close(top)
    return top


def copy(directory, notes):
    directory.mkdir(parents=True)
    run("cp", "-a", cache(notes), directory / "copied")
    run("cp", "-a", notes / "cache", directory / "removed")
    run("cp", "-rl", directory / "copied/host", directory / "linked")


def move(directory):
    """What is closed itself can be renamed beside where it is, by who may write there."""
    os.rename(directory / "linked", directory / "moved")
    os.chmod(directory / "moved", 0o755)
    os.rename(directory / "moved" / "module1@v1.0.1", directory / "moved" / "module1")
    os.chmod(directory / "moved", 0o555)


def replace(directory):
    """As a package manager brings a file up to date that nobody may write."""
    package = directory / "copied/host/module2@v1.0.2/package0"
    os.chmod(package, 0o755)
    (package / "new").write_text("package replaced\n")
    os.chmod(package / "new", 0o400)
    os.rename(package / "new", package / "file0.go")
    os.chmod(package, 0o555)


def remove(directory):
    run("chmod", "-R", "u+w", directory / "removed")
    run("rm", "-r", directory / "removed")


def born_closed(directory):
    """Closed from the beginning, and filled through descriptors that were open before."""
    for mode in (0o444, 0o400, 0o200, 0):
        descriptor = os.open(directory / f"born{mode:o}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        os.write(descriptor, b"first " * 1000)
        os.fsync(descriptor)
        os.write(descriptor, b"second")
        os.close(descriptor)
    (directory / "hidden").mkdir()
    (directory / "hidden/key").write_text("key\n")
    os.chmod(directory / "hidden/key", 0)
    os.chmod(directory / "hidden", 0)
    (directory / "later").write_text("what comes behind all that\n")


def all_files(directory):
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        total.update(f"{path.relative_to(directory)} {path.lstat().st_mode:o} {path.lstat().st_nlink}\n".encode())
        if path.is_file() and path.stat().st_mode & 0o400:
            total.update(f"{path.stat().st_mtime_ns}\n".encode() + path.read_bytes())
    return total.hexdigest()


def note(directory, notes):
    (notes / "files").write_text(all_files(directory))


def is_as_noted(directory, notes):
    expect(all_files(directory) == (notes / "files").read_text(), "a file differs")


def write(directory, notes):
    check("closed: a module cache is copied and linked", copy, directory, notes)
    check("closed: directories of it are renamed", move, directory)
    check("closed: a file of it is replaced", replace, directory)
    check("closed: a copy of it is removed", remove, directory)
    check("closed: files are made closed, and written", born_closed, directory)
    check("closed: files are noted", note, directory, notes)


def verify(directory, notes):
    check("closed: every file is as it was", is_as_noted, directory, notes)


main(write, verify)

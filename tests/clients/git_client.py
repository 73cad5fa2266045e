"""git: a repository made, committed to, cloned, packed and checked."""

import hashlib
import os
import random
import subprocess

from checks import check, expect, main

FILES = 300
COMMITS = 5


def git(directory, *arguments):
    """Returns what git prints; knows no configuration but what stands here."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    # The same commits each time.
    environment |= {"GIT_AUTHOR_DATE": "1000000000 +0000", "GIT_COMMITTER_DATE": "1000000000 +0000"}
    options = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "safe.directory=*", "-c", "gc.auto=0"]
    options += ["-c", "pack.threads=1"]
    command = ["git", "-C", str(directory), *options, *arguments]
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    expect(result.returncode == 0, f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.strip()


def make(directory):
    directory.mkdir(parents=True)
    git(directory, "init", "--quiet", "--initial-branch=main", "origin")
    origin = directory / "origin"
    random_bytes = random.Random(7).randbytes
    for commit in range(COMMITS):
        for number in range(commit, FILES, COMMITS):
            path = origin / f"dir{number % 7}" / f"file{number}.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(random_bytes(200 + number * 37))
        os.chmod(path, 0o755)
        git(origin, "add", "--all")
        git(origin, "commit", "--quiet", "--message", f"commit {commit}")
    (origin / "link").symlink_to("dir0/file0.bin")
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--message", "a symbolic link")


def clone(directory):
    git(directory, "clone", "--quiet", "--no-hardlinks", "origin", "clone")
    git(directory, "clone", "--quiet", "--local", "origin", "hardlinked")


def branch_and_merge(directory):
    repository = directory / "clone"
    git(repository, "switch", "--quiet", "--create", "topic")
    (repository / "topic.txt").write_text("topic\n")
    git(repository, "add", "topic.txt")
    git(repository, "commit", "--quiet", "--message", "topic")
    git(repository, "switch", "--quiet", "main")
    git(repository, "merge", "--quiet", "--no-ff", "--message", "merge topic", "topic")


def pack(directory):
    git(directory / "clone", "gc", "--quiet", "--aggressive", "--prune=now")


def tree(directory):
    """Names, modes and content of the working tree, as one number."""
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if ".git" in path.relative_to(directory).parts:
            continue
        content = os.readlink(path).encode() if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        total.update(f"{path.relative_to(directory)} {path.lstat().st_mode:o} {len(content)}\n".encode() + content)
    return total.hexdigest()


def note(directory, notes):
    for name in ("origin", "clone", "hardlinked"):
        (notes / name).write_text(git(directory / name, "rev-parse", "HEAD") + " " + tree(directory / name))


def is_as_noted(directory, notes):
    wanted = (notes / directory.name).read_text().split()
    expect([git(directory, "rev-parse", "HEAD"), tree(directory)] == wanted, "HEAD or working tree differs")


def is_sound(directory):
    git(directory, "fsck", "--full", "--strict")


def is_clean(directory):
    # Stat data differ between two copies of a tree: let git look at the content.
    status = git(directory, "-c", "core.checkStat=minimal", "status", "--porcelain")
    expect(status == "", status)


def write(directory, notes):
    check("git: init and commit", make, directory)
    check("git: clone, copied and hard-linked", clone, directory)
    check("git: branch and merge", branch_and_merge, directory)
    check("git: gc", pack, directory)
    check("git: heads and trees are noted", note, directory, notes)


def verify(directory, notes):
    for name in ("origin", "clone", "hardlinked"):
        check(f"git: {name} passes fsck", is_sound, directory / name)
        check(f"git: {name} has its head and its files", is_as_noted, directory / name, notes)
        check(f"git: {name} has nothing to commit", is_clean, directory / name)


main(write, verify)

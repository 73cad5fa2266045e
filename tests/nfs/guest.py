"""What has to hold with an NFS server as the slow tier.

Each word of the command line is a mount: `4.2,none`, the protocol's version and whom the server takes for somebody else: `root`, `all` or
`none`.

Each check is told by a line `ok NAME` or `FAILED NAME: why`; a failed one is followed by what the daemon has said, and the next one gets
tiers of its own. In the guest's environment, that is, on its kernel's command line, `only=git+kill` names the checks that are run.
"""

import errno
import hashlib
import os
import random
import shutil
import stat
import sys
import threading
import time
import zipfile
from pathlib import Path

import checks
from checks import check, expect, until
from machine import LONG, Mount, OtherClient, Server, as_user, nfs_mount, run

ALICE = 1000
RANDOM = random.Random(7)


class Rig:
    """One export, mounted by two clients; over the first stands dlio-fs."""

    made = 0

    def __init__(self, server, other, word):
        self.word = word
        self.version, self.squash = word.split(",")
        self.server = server
        Rig.made += 1
        name = f"v{word.replace(',', '-')}-{Rig.made}"
        self.name = name
        squashes = {"none": "no_root_squash", "root": "root_squash", "all": f"all_squash,anonuid={ALICE},anongid={ALICE}"}
        self.path = server.export(name, squashes[self.squash])
        if self.squash != "none":
            os.chown(self.path, ALICE if self.squash == "all" else 65534, ALICE if self.squash == "all" else 65534)
        slow, self.there = Path("/slow") / name, Path("/other") / name
        for point in (slow, self.there):
            point.mkdir(parents=True)
        nfs_mount(self.path, slow, self.version)
        other.mount(self.path, self.there, self.version)
        self.slow = slow
        self.mount = Mount(name, slow)
        self.here = self.mount.point

    def conflicts(self):
        return self.mount.figures()["exceptions"]["conflicts"]

    def paused(self):
        return Paused(self.mount)

    def is_nobodys(self):
        return self.squash != "none"


class Paused:
    def __init__(self, mount):
        self.mount = mount

    def __enter__(self):
        self.mount.tell("pause")

    def __exit__(self, *_):
        self.mount.tell("resume")


def tree(root, owners=True):
    """Every name below a directory with what it is."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.split("/")[0] in (".dlio-fs", ".dlio"):
            continue
        is_ = path.lstat()
        about = [stat.filemode(is_.st_mode)] + ([is_.st_uid, is_.st_gid] if owners else [])
        if stat.S_ISLNK(is_.st_mode):
            about = [os.readlink(path)]
        elif stat.S_ISREG(is_.st_mode):
            about += [is_.st_size, is_.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()[:12]]
        found[name] = about
    return found


def same_trees(rig):
    """On the server there is what the mount shows."""
    rig.mount.drain()
    here, there = tree(rig.here), tree(rig.path)
    differ = {name: (here.get(name), there.get(name)) for name in here.keys() | there.keys() if here.get(name) != there.get(name)}
    expect(not differ, f"mount and server differ: {dict(sorted(differ.items())[:5])}")


def content(size=3000):
    return RANDOM.randbytes(size)


def replace(path, data):
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.rename(path)


def plain(rig):
    top = rig.here / "plain"
    top.mkdir()
    for number in range(60):
        path = top / f"d{number % 6}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(number * 97))
    replace(top / "ckpt", content())
    replace(top / "ckpt", content(90_000))
    (top / "d0/f0").unlink()
    (top / "d1/f1").rename(top / "d2/moved")
    (top / "link").symlink_to("d3/f3")
    os.link(top / "d3/f3", top / "d4/hard")
    (top / "d5/f5").chmod(0o600)
    if not rig.is_nobodys():
        os.chown(top / "d5/f11", ALICE, ALICE)
    same_trees(rig)


def changed_in_place(rig):
    (rig.path / "old").mkdir()
    run("chown", "-R", f"--reference={rig.path}", rig.path / "old")
    for name in ("overwrite", "append", "truncate", "evicted"):
        (rig.path / "old" / name).write_bytes(content())
        run("chown", f"--reference={rig.path}", rig.path / "old" / name)
    old = rig.here / "old"
    changes = {
        "overwrite": lambda file: file.write(b"XX"),
        "append": lambda file: (file.seek(0, 2), file.write(b"more")),
        "truncate": lambda file: file.truncate(7),
    }
    for name, change in changes.items():
        with open(old / name, "r+b") as file:
            change(file)
    own = old / "own"
    own.write_bytes(content())
    rig.mount.drain()
    run(rig.mount.PROGRAM, "evict", own)
    with open(own, "ab") as file:
        file.write(b"again")
    same_trees(rig)


def as_another_user(rig):
    top = rig.path / "shared"
    top.mkdir()
    (top / "open").write_bytes(b"open")
    (top / "closed").write_bytes(b"closed")
    (top / "closed").chmod(0o600)
    (top / "sub").mkdir()
    run("chown", "-R", f"--reference={rig.path}", top)
    here, bob = rig.here / "shared", 1001
    expect(as_user(bob, lambda: sorted(os.listdir(here))) == "['closed', 'open', 'sub']", "ls as another user")
    expect(as_user(bob, lambda: (here / "open").read_text()) == "open", "read as another user")
    expect(as_user(bob, lambda: os.listdir(here / "sub")) == "[]", "traverse as another user")
    expect(as_user(bob, lambda: os.access(here / "closed", os.R_OK)) == "False", "a closed file is readable")


def attributes(rig):
    """What the server cannot hold is refused at the call, and nothing is held."""
    new = rig.here / "attributes"
    new.mkdir()
    said = {}
    for what, set_it in (
        ("user.x", lambda path: os.setxattr(path, "user.x", b"1")),
        ("ACL", lambda path: run("setfacl", "-m", f"u:{ALICE}:r", path)),
        ("default ACL", lambda path: run("setfacl", "-d", "-m", f"u:{ALICE}:rwx", path)),
    ):
        path = new / what.replace(" ", "-")
        path.mkdir() if what == "default ACL" else path.write_bytes(content())
        try:
            set_it(path)
            said[what] = "taken"
        except (OSError, AssertionError) as error:
            expect("not supported" in str(error), f"{what}: {error}")
            said[what] = "refused"
    rig.mount.drain()
    there = rig.path / "attributes"
    if said["user.x"] == "taken":
        expect(os.getxattr(there / "user.x", "user.x") == b"1", "user.x has not arrived")
    if said["ACL"] == "taken":
        acl = run("getfacl", "-c", there / "ACL")
        expect(f"user:{ALICE}:r" in acl or "user:alice:r" in acl, f"the ACL has not arrived: {acl}")
    expect(rig.mount.figures()["exceptions"]["left_out"] == 0 or rig.is_nobodys(), "an attribute was taken and left out")
    print(f"-- {rig.word}: {said}")
    same_trees(rig)


def squash_is_found(rig):
    text = run(Mount.PROGRAM, "doctor", "--slow", rig.slow, code=None)
    abilities = rig.mount.figures()["slow_abilities"]
    owners = not rig.is_nobodys()
    expect(abilities["owners"] == owners, f"the mount found owners={abilities['owners']}")
    tells = any(line.startswith("warn") and "owners of files" in line for line in text.splitlines())
    expect(tells == rig.is_nobodys(), f"doctor says: {text}".replace("\n", "; "))


def conflict_names(directory):
    return [name for name in os.listdir(directory) if ".dlio-conflict-" in name]


def foreign(rig, what, act, theirs, at):
    """Somebody else does something to a file that has a version of ours pending: both are kept."""
    top = rig.here / f"foreign-{what}"
    top.mkdir()
    file, before = top / "file", rig.conflicts()
    file.write_bytes(b"first, of ours")
    rig.mount.drain()
    there = rig.there / top.name / "file"
    there.read_bytes()
    ours = b"second, of ours, and longer"
    with rig.paused():
        replace(file, ours) if at == "replaced" else file.write_bytes(ours)
        act(there)
    rig.mount.drain()
    where = rig.path / top.name
    names = conflict_names(where)
    if theirs is None:
        expect((where / "file").read_bytes() == ours, f"{os.listdir(where)}")
        return
    found = {name: (where / name).read_bytes() for name in os.listdir(where)}
    expect(len(names) == 1 and rig.conflicts() > before, f"expected a conflict, found {found} and {rig.conflicts() - before} conflicts")
    expect(found["file"] == theirs and found[names[0]] == ours, f"expected theirs under the name and ours beside, found {found}")
    beside = top / names[0]
    size, seen = beside.stat().st_size, beside.read_bytes()
    expect((size, seen) == (len(ours), ours), f"in the mount ours, beside theirs, has {size} bytes: {seen}")


def write_into(path):
    with open(path, "r+b") as file:
        file.write(b"THEIRS")


def append_to(path):
    with open(path, "ab") as file:
        file.write(b"THEIRS")


def removed_while_open(rig):
    """An NFS client keeps a file that is open when it is removed, as `.nfs...` in the same directory."""
    top = rig.here / "open"
    (top / "sub").mkdir(parents=True)
    for name in ("fast", "slow", "replaced"):
        (top / "sub" / name).write_bytes(content())
    rig.mount.drain()
    for name in ("slow", "replaced"):
        run(rig.mount.PROGRAM, "evict", top / "sub" / name)
    with open(top / "sub/fast", "rb") as fast, open(top / "sub/slow", "rb") as slow, open(top / "sub/replaced", "rb") as replaced:
        for file in (fast, slow, replaced):
            file.read(10)
        replace(top / "sub/replaced", content())
        rig.mount.drain()
        found = sorted(os.listdir(top / "sub"))
        expect(found == ["fast", "replaced", "slow"], f"behind a replacement the mount lists {found}")
        shutil.rmtree(top)
        rig.mount.drain()
        left = sorted(str(path.relative_to(rig.path)) for path in rig.path.glob("open*/**/*")) + sorted(map(str, rig.path.glob("open*")))
        expect(not left, f"left on the server while the files are open: {left}")
        for file in (fast, slow, replaced):
            rest = file.read()
            expect(len(rest) == 2990, f"{len(rest)} bytes can be read on of {file.name}, expected 2990")
    names = lambda: [str(path) for path in rig.path.rglob(".nfs*")]
    until(f"what was open to be gone from the server: {names()}", lambda: not names())
    expect(rig.conflicts() == 0 or rig.mount.figures()["safety"]["safe"], "not safe")


def removed_by_another(rig):
    """Whoever opens or makes what another client has removed is told so, and never ESTALE."""
    top = rig.here / "removed"
    top.mkdir()
    (top / "evicted").write_bytes(content())
    rig.mount.drain()
    run(rig.mount.PROGRAM, "evict", top / "evicted")
    (top / "evicted").read_bytes()
    theirs = rig.there / "removed"
    for name in ("read", "create", "append"):
        (theirs / name).write_bytes(content())
    until("their files to be seen", lambda: all((top / name).exists() for name in ("read", "create", "append")))
    (top / "read").read_bytes(), (top / "create").stat(), (top / "append").stat()
    for name in ("evicted", "read", "create", "append"):
        (theirs / name).unlink()
    said = {}

    def attempt(name, work):
        try:
            work()
            said[name] = "done"
        except OSError as error:
            said[name] = errno.errorcode[error.errno]

    attempt("evicted", (top / "evicted").read_bytes)
    attempt("read", (top / "read").read_bytes)
    attempt("create", lambda: (top / "create").write_bytes(b"anew"))
    attempt("append", lambda: open(top / "append", "ab").close())
    wanted = {"evicted": "ENOENT", "read": "ENOENT", "create": "done", "append": "done"}
    expect(said == wanted, f"expected {wanted}, found {said}")
    rig.mount.drain()
    expect((rig.path / "removed/create").read_bytes() == b"anew", "what was made anew has not arrived")


def git(rig):
    # In a file: of `-c` a clone tells the other end nothing, and with a squashed owner that end refuses to read what is not its own.
    config = Path("/run/gitconfig")
    config.write_text("[user]\n\tname = test\n\temail = test@example.org\n[safe]\n\tdirectory = *\n[gc]\n\tauto = 0\n")

    def git(where, *words):
        return run("git", "-C", where, *words, env={**os.environ, "GIT_CONFIG_GLOBAL": str(config), "HOME": "/tmp"})

    top = rig.here / "git"
    top.mkdir()
    git(top, "init", "--quiet", "--initial-branch=main", "origin")
    for commit in range(2):
        for number in range(6):
            path = top / "origin" / f"d{number % 3}" / f"f{number}-{commit}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content(100 + number * 31))
        git(top / "origin", "add", "--all")
        git(top / "origin", "commit", "--quiet", "--message", f"commit {commit}")
    git(top, "clone", "--quiet", "--local", "origin", "clone")
    git(top / "clone", "repack", "-a", "-d", "--quiet")
    rig.mount.drain()
    head = git(top / "origin", "rev-parse", "HEAD")
    for where in (top / "clone", rig.path / "git/clone"):
        git(where, "fsck", "--full", "--strict")
        found, status = git(where, "rev-parse", "HEAD"), git(where, "-c", "core.checkStat=minimal", "status", "--porcelain")
        expect((found, status) == (head, ""), f"{where}: expected {head} and nothing to commit, found {found} and {status!r}")
    same_trees(rig)


def keras_like(rig):
    """One HDF5 file that is written anew each epoch, its header at last, and a `.keras` archive beside."""
    top = rig.here / "keras"
    top.mkdir()
    for epoch in range(3):
        weights = content(60_000)
        with open(top / "last.weights.h5", "w+b") as file:
            file.write(bytes(2048))
            for at in range(2048, 2048 + len(weights), 8192):
                file.seek(at)
                file.write(weights[at - 2048 : at - 2048 + 8192])
                file.seek(96)
                file.write(at.to_bytes(8, "little"))
            file.seek(0)
            file.write(b"\x89HDF" + epoch.to_bytes(4, "little"))
        for path in (top / "last.keras", top / f"epoch-{epoch}.keras"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("config.json", f'{{"epoch": {epoch}}}')
                archive.writestr("model.weights.h5", weights)
    same_trees(rig)
    with zipfile.ZipFile(rig.path / "keras/last.keras") as archive:
        expect(archive.testzip() is None and archive.read("model.weights.h5") == weights, "last.keras on the server")
    expect((rig.path / "keras/last.weights.h5").read_bytes()[2048:] == weights, "last.weights.h5 on the server")


def torch_like(rig):
    """Archives under a temporary name that is renamed; a file that is synced before its rename; a link to the last."""
    top = rig.here / "torch"
    top.mkdir()
    for step in range(3):
        weights, temporary = content(80_000), top / f".tmp-{step}"
        with zipfile.ZipFile(temporary, "w") as archive:
            archive.writestr("archive/data.pkl", b"pickle")
            archive.writestr("archive/data/0", weights)
        temporary.rename(top / f"step-{step}.ckpt")
        with open(top / "model.safetensors.tmp", "wb") as file:
            file.write(weights)
            file.flush()
            os.fsync(file.fileno())
        (top / "model.safetensors.tmp").rename(top / "model.safetensors")
        (top / "last.tmp").symlink_to(f"step-{step}.ckpt")
        (top / "last.tmp").rename(top / "last.ckpt")
    same_trees(rig)
    with zipfile.ZipFile(rig.path / "torch/last.ckpt") as archive:
        expect(archive.testzip() is None and archive.read("archive/data/0") == weights, "last.ckpt on the server")


def rotation(rig):
    """The three newest are kept, and a `checkpoint` file names the newest: on the server it never names one that is not there."""
    top = rig.here / "rotation"
    top.mkdir()
    there, kept, dangling = rig.path / "rotation", [], []

    def look():
        try:
            named = (there / "checkpoint").read_text()
            # Since it was read a newer one may have taken its place.
            if not (there / named).exists() and (there / "checkpoint").read_text() == named:
                dangling.append(named)
        except FileNotFoundError:
            pass

    for step in range(12):
        kept.append(f"ckpt-{step}")
        (top / kept[-1]).write_bytes(content(20_000))
        replace(top / "checkpoint", kept[-1].encode())
        if len(kept) > 3:
            (top / kept.pop(0)).unlink()
        look()
    until("everything to be drained", lambda: look() or rig.mount.figures()["safety"]["safe"])
    found = sorted(os.listdir(there))
    expect(found == sorted([*kept, "checkpoint"]), f"expected {kept} on the server, found {found}")
    expect(not dangling, f"`checkpoint` on the server named what was not there: {dangling}")
    same_trees(rig)


def killed(rig):
    """In the middle of a drain."""
    top, wanted = rig.here / "killed", {}
    top.mkdir()
    before = rig.mount.figures()["pipeline"]["published_events"]
    for number in range(60):
        wanted[f"f{number}"] = content(2000 + number)
        (top / f"f{number}").write_bytes(wanted[f"f{number}"])
    until("the drain to be under way", lambda: rig.mount.figures()["pipeline"]["published_events"] > before + 3)
    rig.mount.kill()
    there = {path.name: path.read_bytes() for path in (rig.path / "killed").iterdir()}
    torn = [name for name, found in there.items() if found != wanted.get(name)]
    expect(not torn, f"on the server, behind the kill, with other bytes than were written: {torn}")
    rig.mount.start()
    found = {path.name: path.read_bytes() for path in top.iterdir()}
    lost = sorted(name for name in wanted if found.get(name) != wanted[name])
    expect(not lost and len(found) == 60, f"{len(found)} files of 60 behind the kill; missing or with other bytes: {lost}")
    print(f"-- {rig.word}: killed with {len(there)} of 60 files on the server")
    same_trees(rig)
    expect(rig.conflicts() == 0, f"{rig.conflicts()} conflicts")


# Nothing has to wait longer for a server that does not answer, if the answer can be known; seconds. A look-up takes 10.
WAITS = 25


def server_away(rig):
    """For half a minute. What is on the fast tier, what the mount has made and what a listing did not show goes on; nothing is lost."""
    top = rig.here
    (top / "away").mkdir()
    (top / "away/known").write_bytes(content())
    (rig.path / "theirs-dir").mkdir()
    (rig.path / "theirs-dir/a").write_bytes(b"a")
    run("chown", "-R", f"--reference={rig.path}", rig.path / "theirs-dir")
    rig.mount.drain()
    os.listdir(top), os.listdir(top / "theirs-dir"), (top / "theirs-dir/a").stat()
    said, threads = {}, []

    def attempt(what, work):
        def timed():
            began = time.monotonic()
            try:
                work()
                said[what] = f"{time.monotonic() - began:.1f} s"
            except OSError as error:
                said[what] = str(error)

        said[what] = "still waits"
        threads.append(threading.Thread(target=timed, daemon=True))
        threads[-1].start()
        threads[-1].join(WAITS)

    began = time.monotonic()
    rig.server.stop()
    try:
        attempt("read of a file on fast", (top / "away/known").read_bytes)
        attempt("checkpoint in a directory of ours", lambda: replace(top / "away/ckpt", content(50_000)))
        attempt("checkpoint at the root", lambda: replace(top / "ckpt-root", content(50_000)))
        attempt("directory at the root", lambda: (top / "dir-root").mkdir())
        attempt("file in a directory that was listed", lambda: (top / "theirs-dir/new").write_bytes(b"new"))
        while time.monotonic() - began < 30:
            attempt("later read", (top / "away/known").read_bytes)
            attempt("later checkpoint", lambda: replace(top / "away/ckpt2", content(5000)))
    finally:
        rig.server.start()
    waited = {what: found for what, found in said.items() if not found.endswith(" s")}
    for thread in threads:
        thread.join(LONG)
    attempt("read of a file on slow after the return", (top / "theirs-dir/a").read_bytes)
    threads[-1].join(LONG)
    print(f"-- {rig.word}: with the server away: {said}")
    expect(not waited, f"with the server away these waited or failed: {waited}")
    failed = {what: found for what, found in said.items() if not found.endswith(" s")}
    expect(not failed, f"these have failed: {failed}")
    same_trees(rig)


CHECKS = [
    ("plain", plain, []),
    ("git", git, []),
    ("keras", keras_like, []),
    ("torch", torch_like, []),
    ("rotation", rotation, []),
    ("changed in place", changed_in_place, []),
    ("another user", as_another_user, []),
    ("attributes", attributes, []),
    ("squash is found", squash_is_found, []),
]
for at in ("replaced", "written"):
    CHECKS += [
        (f"foreign write into, {at}", foreign, [f"write-{at}", write_into, b"THEIRS of ours", at]),
        (f"foreign append, {at}", foreign, [f"append-{at}", append_to, b"first, of oursTHEIRS", at]),
        (f"foreign replace, {at}", foreign, [f"replace-{at}", lambda path: replace(path, b"THEIRS, whole"), b"THEIRS, whole", at]),
        (f"foreign remove, {at}", foreign, [f"remove-{at}", os.unlink, None, at]),
    ]
CHECKS += [
    ("rm -r of what is open", removed_while_open, []),
    ("removed by another", removed_by_another, []),
    ("kill", killed, []),
    ("server away", server_away, []),
]


def main(words):
    server, other = Server(), OtherClient()
    for word in words:
        began, rig = time.monotonic(), None
        only = os.environ.get("only")
        for name, work, arguments in CHECKS:
            if only and not any(part in name for part in only.replace("_", " ").split("+")):
                continue
            if rig is None:
                rig = Rig(server, other, word)
                rig.mount.start()
            at, failed = time.monotonic(), checks.failed
            check(f"{word}: {name}", work, rig, *arguments)
            print(f"   {time.monotonic() - at:.1f} s", flush=True)
            if checks.failed > failed:
                print(rig.mount.tail())
                rig.mount.tell("umount", "--now", code=None)
                rig = None
        if rig:
            check(f"{word}: umount", rig.mount.stop)
        print(f"-- {word}: {time.monotonic() - began:.0f} s", flush=True)


main(sys.argv[1:])
sys.exit(1 if checks.failed else 0)

"""The guest as a machine: programs, the kernel's NFS server, and a second client that shares nothing with the first."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

from checks import expect, until

# For one program, and for a drain; seconds. Without the hardware's help a guest is slow, on a busy machine slower still.
LONG = 600
PATIENCE = int(os.environ.get("patience", "300"))


def run(*command, code=0, **options):
    """Returns what a program prints; it has to end with `code`, or with any if that is None."""
    line = " ".join(map(str, command))
    try:
        done = subprocess.run(
            [*map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONG, **options
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"`{line}` has not ended within {LONG} s; it printed: {late.output}") from late
    text = done.stdout.decode(errors="replace").strip()
    expect(code is None or done.returncode == code, f"`{line}` ended with {done.returncode}, expected {code}: {text}")
    return text


def as_user(uid, work):
    """Calls `work` as this user, in a process of its own, and returns what it returned, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(writing, f"+{work()}".encode())
        except BaseException as error:
            os.write(writing, f"-{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    expect(said.startswith("+"), f"as user {uid}: {said[1:]}")
    return said[1:]


class Server:
    """The kernel's server, with one export for each name."""

    GRACE = 10

    def __init__(self):
        self.exports = []
        run("rpcbind", "-w")
        run("nfsdcld")
        run("rpc.statd")
        run("rpc.mountd")
        self.start()

    def start(self):
        run("rpc.nfsd", "-G", self.GRACE, "-L", self.GRACE, "4")

    def stop(self):
        run("rpc.nfsd", "0")

    def export(self, name, options):
        """Exports a fresh directory, and returns its path on the server."""
        path = Path("/export") / name
        path.mkdir(parents=True)
        self.exports.append(f"{path} *(rw,sync,no_subtree_check,fsid={len(self.exports) + 1},{options})\n")
        Path("/etc/exports").write_text("".join(self.exports))
        run("exportfs", "-ra")
        return path


class OtherClient:
    """A network of its own, and another name: the server takes it for another machine."""

    def __init__(self):
        run("ip", "netns", "add", "other")
        run("ip", "link", "add", "here", "type", "veth", "peer", "name", "there", "netns", "other")
        run("ip", "address", "add", "10.9.0.1/24", "dev", "here")
        run("ip", "link", "set", "here", "up")
        for words in (["address", "add", "10.9.0.2/24", "dev", "there"], ["link", "set", "there", "up"], ["link", "set", "lo", "up"]):
            run("ip", "-n", "other", *words)

    def mount(self, path, point, version):
        options = f"vers={version},nolock,actimeo=0,lookupcache=none"
        mount = f"echo other > /proc/sys/kernel/hostname; exec mount -t nfs -o {options} 10.9.0.1:{path} {point}"
        run("nsenter", "--net=/run/netns/other", "unshare", "--uts", "sh", "-c", mount)


def nfs_mount(path, point, version):
    run("mount", "-t", "nfs", "-o", f"vers={version},nosharecache", f"localhost:{path}", point)
    # What was asked for, and not what the two could agree on.
    found = next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {point} " in line)
    expect(re.search(rf"\bvers={re.escape(version)}\b", found), f"mounted otherwise than as {version}: {found}")


class Mount:
    """dlio-fs over the first client's mount of an export."""

    PROGRAM = "/media/checks/dlio-fs"

    def __init__(self, name, slow, *options):
        self.point, self.fast, self.slow = (Path(base) / name for base in ("/mnt", "/fast", "/slow"))
        self.log = Path("/run") / f"{name}.log"
        self.options = [word for option in ("settle=0s", *options) for word in ("-o", option)]
        for directory in (self.point, self.fast):
            directory.mkdir(parents=True, exist_ok=True)
        self.slow = slow
        self.daemon = None

    def start(self):
        command = [self.PROGRAM, "mount", self.point, "--fast", self.fast, "--slow", self.slow, *self.options, "--foreground"]
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until("the mount to answer", lambda: self.is_answering() or self.daemon.poll() is not None)
        expect(self.daemon.poll() is None, f"the daemon ended with {self.daemon.returncode}: {self.tail()}")

    def is_answering(self):
        try:
            return (self.point / ".dlio/stats").read_bytes()
        except OSError:
            return False

    def tail(self):
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-30:])

    def tell(self, *words, code=0):
        verb, *rest = words
        return run(self.PROGRAM, verb, self.point, *rest, code=code)

    def figures(self):
        return json.loads((self.point / ".dlio/stats.json").read_text())

    def drain(self):
        """Returns once everything is on the slow tier."""
        deadline = time.monotonic() + PATIENCE
        while not (safety := self.figures()["safety"])["safe"]:
            late = time.monotonic() > deadline
            expect(not late, f"not all is on the slow tier after {PATIENCE} s: {safety}; the queue: {self.tell('queue', code=None)}")
            time.sleep(0.05)

    def stop(self):
        self.tell("umount")
        self.daemon.wait(LONG)

    def kill(self):
        self.daemon.kill()
        self.daemon.wait(LONG)

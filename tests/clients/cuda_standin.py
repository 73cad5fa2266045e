"""Lets torch be imported without CUDA's libraries, which are three times its size and of no use without a GPU.

Run by the Python that is to import it. One library takes the place of all: it has every symbol that torch asks of the
missing ones, and stands in torch's own directory of libraries under each of their names. Its functions do nothing, and
answer what CUDA means by "no device".
"""

import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path

NAME = "libcuda_standin.so"
NO_DEVICE = 100


def take_away_earlier(directory):
    """What an earlier run made would look like the real thing."""
    for path in directory.iterdir():
        if path.name == NAME or path.is_symlink() and os.readlink(path) == NAME:
            path.unlink()


def missing(directory):
    """The names of the libraries that the dynamic linker does not find when Python loads torch, and the symbols with
    the version, or "", under which they are asked for."""
    command = ["ldd", "-r", str(directory / "libtorch_python.so")]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    libraries = set(re.findall(r"^\s*(\S+) => not found", result.stdout, re.MULTILINE))
    symbols = dict(re.findall(r"^undefined symbol: (\w+)(?:, version (\S+))?", result.stdout, re.MULTILINE))
    # Python has its own.
    return libraries, {name: version for name, version in symbols.items() if not name.lstrip("_").startswith("Py")}


def build(path, symbols):
    source = "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in symbols)
    versions = ""
    for version in set(symbols.values()) - {""}:
        names = [name for name in symbols if symbols[name] == version]
        versions += f"{version} {{ {'; '.join(names)}; }};\n"
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        script.write(versions)
        script.flush()
        options = ["-shared", "-fPIC", "-nostdlib", "-w", f"-Wl,--version-script={script.name}", "-o", str(path)]
        subprocess.run(["gcc", *options, "-x", "c", "-"], input=source, text=True, check=True)


def main():
    # Where torch is; it cannot be imported yet.
    directory = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    take_away_earlier(directory)
    libraries, symbols = missing(directory)
    build(directory / NAME, symbols)
    for library in libraries:
        (directory / library).symlink_to(NAME)
    print(f"{len(symbols)} symbols of {len(libraries)} libraries: {' '.join(sorted(libraries))}")


main()

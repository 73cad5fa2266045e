"""pip: a virtual environment made, a package installed into it, replaced by its next version and run, with no network."""

import hashlib
import os
import subprocess
import sys
import zipfile

from checks import check, expect, main

NAME = "small"
MODULES = 40


def run(*command):
    # Compiled files that say what they were made of, and not when.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"SOURCE_DATE_EPOCH": "1000000000", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    expect(result.returncode == 0, f"{command}: {result.stderr.strip()}")
    return result.stdout.strip()


def wheel(directory, version):
    """What `pip wheel` would make of a project; some of its files are only to be read."""
    path = directory / f"{NAME}-{version}-py3-none-any.whl"
    info = f"{NAME}-{version}.dist-info"
    files = {f"{NAME}/m{number}.py": f"value = {number} * {version}\n" for number in range(MODULES)}
    modules = ", ".join(f"m{number}" for number in range(MODULES))
    values = " + ".join(f"m{number}.value" for number in range(MODULES))
    files[f"{NAME}/__init__.py"] = f"from . import {modules}\n\ndef main():\n    print({values})\n"
    files[f"{NAME}/data/table.bin"] = "\0" * 100_000
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{NAME} = {NAME}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100444 if file.endswith(".bin") else 0o100644) << 16
            archive.writestr(entry, text)
    return path


def wanted(version):
    return str(sum(number * version for number in range(MODULES)))


def make(directory):
    directory.mkdir(parents=True)
    run(sys.executable, "-m", "venv", directory / "venv")


def install(directory, notes, version):
    pip = [directory / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--upgrade"]
    run(*pip, wheel(notes, version))
    printed = run(directory / "venv/bin" / NAME)
    expect(printed == wanted(version), printed)



def all_files(directory):
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        total.update(f"{path.relative_to(directory)} {path.lstat().st_mode:o}\n".encode())
        if path.is_file() and not path.is_symlink():
            total.update(path.read_bytes())
    return total.hexdigest()


def note(directory, notes):
    (notes / "files").write_text(all_files(directory))


def is_as_noted(directory, notes):
    expect(all_files(directory) == (notes / "files").read_text(), "a file differs")


def runs(directory):
    """Its interpreter, wherever it is now."""
    [packages] = directory.glob("venv/lib/python3*/site-packages")
    printed = run(directory / "venv/bin/python", "-B", "-c", f"import sys; sys.path.insert(0, {str(packages)!r}); import {NAME}; {NAME}.main()")
    expect(printed == wanted(2), printed)


def write(directory, notes):
    check("pip: a virtual environment is made", make, directory)
    check("pip: a wheel is installed", install, directory, notes, 1)
    check("pip: its next version is installed", install, directory, notes, 2)
    check("pip: files are noted", note, directory, notes)


def verify(directory, notes):
    check("pip: every file is as it was", is_as_noted, directory, notes)
    check("pip: the package is there", runs, directory)


main(write, verify)

"""cargo: a small package built, changed, built again and run, with sources and target directory on the mount."""

import hashlib
import os
import subprocess

from checks import check, expect, main

MODULES = 12


def cargo(directory, *arguments):
    """Knows no configuration or target directory but those below `directory`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CARGO_")}
    command = [os.environ.get("CARGO", "cargo"), *arguments, "--offline", "--quiet"]
    result = subprocess.run(command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    expect(result.returncode == 0, f"cargo {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.strip()


def wanted(factor):
    return str(sum(number * factor for number in range(MODULES)))


def sources(directory, factor):
    """The first time all of it, then each module anew under a temporary name, as editors do."""
    source = directory / "src"
    source.mkdir(parents=True, exist_ok=True)
    # A workspace of its own, wherever the mount is.
    (directory / "Cargo.toml").write_text('[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n')
    for number in range(MODULES):
        text = f"pub fn value() -> u64 {{ {number} * {factor} }}\n#[test]\nfn holds() {{ assert_eq!(value(), {number * factor}); }}\n"
        (source / "new").write_text(text)
        os.rename(source / "new", source / f"m{number}.rs")
    modules = "".join(f"mod m{number};\n" for number in range(MODULES))
    total = " + ".join(f"m{number}::value()" for number in range(MODULES))
    (source / "main.rs").write_text(f'{modules}fn main() {{ println!("{{}}", {total}); }}\n')


def build(directory, factor):
    sources(directory, factor)
    cargo(directory, "build")
    expect(program(directory) == wanted(factor), program(directory))


def program(directory):
    result = subprocess.run([directory / "target/debug/small"], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def tested(directory):
    cargo(directory, "test")


def all_files(directory):
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            total.update(f"{path.relative_to(directory)} {path.stat().st_mode:o}\n".encode() + path.read_bytes())
    return total.hexdigest()


def note(directory, notes):
    (notes / "files").write_text(all_files(directory))


def is_as_noted(directory, notes):
    expect(all_files(directory) == (notes / "files").read_text(), "a file differs")


def runs(directory):
    expect(program(directory) == wanted(3), program(directory))


def write(directory, notes):
    check("cargo: build", build, directory, 2)
    check("cargo: change and build again", build, directory, 3)
    check("cargo: test", tested, directory)
    check("cargo: files are noted", note, directory, notes)


def verify(directory, notes):
    check("cargo: every file is as it was", is_as_noted, directory, notes)
    check("cargo: the program runs", runs, directory)


main(write, verify)

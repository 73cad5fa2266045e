//! `cargo xtask package`: the static programs, and what distributions, pip and containers install it from, in `target/package`.
//!
//! There is one list of what belongs to `dlio-fs`, with `dlio-fs-bench` beside it: all packages are made of what `dlio-fs install --root` places, by tools that
//! read `Cargo.toml` and `packaging`. `package/tried.rs` installs each and uses it.

pub(crate) mod tried;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::Context;
use crate::run::{cargo, run, run_and_read};
use crate::setup::{CARGO_DEB, Need, Setup, has_program, maturin, static_target, tool};

/// The program beside `dlio-fs`.
const BENCH: &str = "dlio-fs-bench";

/// The files that were made.
#[derive(Debug)]
struct Packages {
    version: String,
    program: PathBuf,
    tarball: PathBuf,
    deb: PathBuf,
    rpm: PathBuf,
    wheel: PathBuf,
    /// `None` without buildah.
    image: Option<PathBuf>,
}

/// `cargo xtask package`.
pub(crate) fn command(cx: &Context) -> Result<bool> {
    Setup::start(cx, &[Need::Package])?.wait(Need::Package)?;
    let made = make(cx)?;
    for file in [&made.program, &made.tarball, &made.deb, &made.rpm, &made.wheel].into_iter().chain(&made.image) {
        println!("{:>6.1} MB  {}", fs::metadata(file)?.len() as f64 / 1e6, file.display());
    }
    Ok(true)
}

fn make(cx: &Context) -> Result<Packages> {
    let about = about(cx)?;
    let program = build(cx)?;
    // Where `target/release/tree` of Cargo.toml is, for this target and profile.
    let tree = program.with_file_name("tree");
    let placed = place(&program, &tree, "/usr")?;
    let into = cx.target.join("package");
    remove_old(&into)?;
    let mut packages = Packages {
        tarball: tarball(&program, &about, &into)?,
        deb: deb(cx, &into)?,
        rpm: rpm(cx, &about, &tree, &placed, &into)?,
        wheel: wheel(cx, &program, &into)?,
        image: None,
        version: about.version.clone(),
        program,
    };
    packages.image = image(cx, &about, &tree, &into)?;
    Ok(packages)
}

/// What Cargo.toml says of the program.
#[derive(Debug)]
struct About {
    version: String,
    description: String,
}

fn about(cx: &Context) -> Result<About> {
    let output = cargo(cx).args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let ours = packages.iter().find(|package| package["name"] == "dlio-fs").context("there is no package dlio-fs")?;
    let text = |key: &str| ours[key].as_str().map(str::to_owned).with_context(|| format!("dlio-fs has no {key}"));
    Ok(About { version: text("version")?, description: text("description")? })
}

fn build(cx: &Context) -> Result<PathBuf> {
    let mut build = cargo(cx);
    build.args(["build", "--locked", "--profile", "dist", "--bins", "--target", &static_target()]);
    build.args(["--package", "dlio-fs", "--package", BENCH]);
    run(build.env(FLAGS, flags(cx)?))?;
    Ok(cx.target.join(static_target()).join("dist/dlio-fs"))
}

/// For the compiler, separated by 0x1f: a path may have spaces.
const FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// The program tells where a panic is by the path of the source: by that in the project or the registry, and not by this machine's.
fn flags(cx: &Context) -> Result<String> {
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    Ok([remap(&cx.root, "."), remap(&cargo_home()?, "cargo")].join("\x1f"))
}

fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("neither CARGO_HOME nor HOME is set")
}

/// Lays out below `tree` what the program installs below `prefix`, and returns the paths as it prints them.
fn place(program: &Path, tree: &Path, prefix: &str) -> Result<String> {
    remove_dir(tree)?;
    let (status, placed) =
        run_and_read(Command::new(program).args(["install", "--prefix", prefix, "--root"]).arg(tree))?;
    ensure!(status.success(), "dlio-fs install: {status}");
    Ok(placed)
}

fn remove_dir(dir: &Path) -> Result<()> {
    let removed = fs::remove_dir_all(dir);
    removed
        .or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
        .context(dir.display().to_string())
}

/// So that what is there afterwards is of this program. Other files are not ours: `cargo package` has the same directory.
fn remove_old(into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    for entry in fs::read_dir(into)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ["deb", "rpm", "whl", "gz", "tar"].iter().any(|ours| ending == *ours))
        {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// The file with this ending, whose tool has chosen its name.
fn made(into: &Path, ending: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(into)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == ending) {
            return Ok(path);
        }
    }
    bail!("no .{ending} was made in {}", into.display())
}

/// For a directory of its own or /usr/local: that is the program's path in the unit.
fn tarball(program: &Path, about: &About, into: &Path) -> Result<PathBuf> {
    let tree = program.with_file_name("tarball");
    place(program, &tree, "/usr/local")?;
    let name = format!("dlio-fs-{}-{}-linux", about.version, std::env::consts::ARCH);
    let file = into.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    // Whoever unpacks it as root does not want our owners.
    tar.args(["--create", "--gzip", "--sort=name", "--owner=root:0", "--group=root:0", "--file"]).arg(&file);
    // The names of files only: the links are relative.
    tar.arg(format!("--transform=flags=r;s,^local,{name},")).arg("--directory").arg(tree.join("usr")).arg("local");
    run(&mut tar)?;
    Ok(file)
}

fn deb(cx: &Context, into: &Path) -> Result<PathBuf> {
    let mut deb = Command::new(tool(cx, CARGO_DEB));
    deb.current_dir(&cx.root).args(["--no-build", "--no-strip", "--locked", "--profile", "dist"]);
    run(deb.args(["--target", &static_target(), "--output"]).arg(into))?;
    made(into, "deb")
}

fn rpm(cx: &Context, about: &About, tree: &Path, placed: &str, into: &Path) -> Result<PathBuf> {
    let work = tree.with_file_name("rpm");
    remove_dir(&work)?;
    fs::create_dir_all(&work)?;
    let list = work.join("list");
    fs::write(&list, placed)?;
    let mut rpm = Command::new("rpmbuild");
    for (name, value) in [
        ("_topdir", work.as_path()),
        ("_rpmdir", into),
        ("_rpmfilename", Path::new("%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm")),
        // Not the name of this machine.
        ("_buildhost", Path::new("localhost")),
        ("tree", tree),
        ("list", &list),
        ("number", Path::new(&about.version)),
        ("about", Path::new(&about.description)),
    ] {
        rpm.arg("--define").arg(format!("{name} {}", value.display()));
    }
    run(rpm.args(["-bb", "--quiet"]).arg(cx.root.join("packaging/dlio-fs.spec")))?;
    made(into, "rpm")
}

/// maturin takes no program that is there: it calls Cargo as [`build`] has done, and finds everything built. The tags say that the wheel
/// is for musl and for glibc.
fn wheel(cx: &Context, program: &Path, into: &Path) -> Result<PathBuf> {
    let project = cx.root.join("packaging/python");
    // It builds one package only: the other program is data to it.
    let scripts = project.join("data/scripts");
    fs::create_dir_all(&scripts)?;
    fs::copy(program.with_file_name(BENCH), scripts.join(BENCH))?;
    let mut wheel = Command::new(maturin(cx));
    wheel.current_dir(project).args(["build", "--locked", "--profile", "dist", "--target"]);
    wheel.arg(static_target()).args(["--compatibility", "manylinux2014", "musllinux_1_1", "--out"]).arg(into);
    run(wheel.arg("--target-dir").arg(&cx.target).env(FLAGS, flags(cx)?))?;
    made(into, "whl")
}

/// Neither a daemon nor root's own storage is needed.
fn image(cx: &Context, about: &About, tree: &Path, into: &Path) -> Result<Option<PathBuf>> {
    let file = cx.root.join("packaging/Dockerfile");
    // All that can be said without the tool.
    for line in fs::read_to_string(&file)?.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let source = line.split(' ').next().unwrap_or_default();
        ensure!(tree.join(source).exists(), "{}: there is no {source} to copy", file.display());
    }
    if !has_program("buildah") {
        println!("no image: buildah is not installed");
        return Ok(None);
    }
    let name = format!("dlio-fs:{}", about.version);
    let archive = into.join(format!("dlio-fs-{}.oci.tar", about.version));
    run(buildah(cx).args(["build", "--isolation", "chroot", "--tag", &name, "--file"]).arg(&file).arg(tree))?;
    run(buildah(cx).args(["push", &name]).arg(format!("oci-archive:{}:{name}", archive.display())))?;
    Ok(Some(archive))
}

fn buildah(cx: &Context) -> Command {
    let storage = cx.target.join("tools/buildah");
    let mut buildah = Command::new("buildah");
    buildah.args(["--storage-driver", "vfs", "--root"]).arg(storage.join("root"));
    buildah.arg("--runroot").arg(storage.join("run"));
    buildah
}

//! The stage `packages`: each package is complete, names no address, and is installed where it disturbs nobody and used there. So is what
//! `cargo package` packs.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::{BENCH, Packages, buildah, cargo_home, make, remove_dir};
use crate::run::{cargo, run, run_and_read};
use crate::setup::{ensure_can_mount, make_venv, work_dir};
use crate::{Context, Tally};

/// What the checks have in common.
struct Bench<'a> {
    cx: &'a Context,
    made: Packages,
    /// Gone afterwards. Outside of the project: Cargo would take what is unpacked in it for a part of its workspace.
    dir: PathBuf,
    /// What `dlio-fs install` placed, relative to its prefix.
    expected: Vec<PathBuf>,
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if let Err(error) = remove_dir(&self.dir) {
            println!("left behind: {error:#}");
        }
    }
}

type Check = fn(&Bench<'_>) -> Result<()>;

const CHECKS: [(&str, Check); 7] = [
    ("program", program),
    ("deb", deb),
    ("rpm", rpm),
    ("tarball", tarball),
    ("wheel", wheel),
    ("image", image),
    ("crate", packed),
];

pub(crate) fn packages(cx: &Context) -> Result<Tally> {
    ensure_can_mount()?;
    let made = make(cx)?;
    let dir = std::env::temp_dir().join(format!("dlio-packages-{}", std::process::id()));
    let mut bench = Bench { cx, made, dir, expected: Vec::new() };
    remove_dir(&bench.dir)?;
    bench.expected = installed(&bench.made.program, &bench.dir.join("installed"))?;
    let mut tally = Tally::default();
    if bench.made.image.is_none() {
        tally.note = "no image: buildah is not installed".to_owned();
    }
    for (name, check) in CHECKS {
        println!("-- {name}");
        match check(&bench) {
            Ok(()) => tally.passed += 1,
            Err(error) => {
                println!("FAILED {name}: {error:#}");
                tally.failed += 1;
                tally.failures.push(format!("{name}: {error:#}"));
            }
        }
    }
    Ok(tally)
}

/// What the program installs, as users call it: not by the way that packages are made.
fn installed(program: &Path, prefix: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(prefix)?;
    let (status, text) = run_and_read(Command::new(program).args(["install", "--prefix"]).arg(prefix))?;
    ensure!(status.success(), "dlio-fs install: {status}");
    let paths = text.lines().map(|line| Ok(Path::new(line).strip_prefix(prefix)?.to_path_buf()));
    let paths = paths.collect::<Result<Vec<_>>>()?;
    for part in [
        "bin/dlio-fs",
        "bin/dlio-fs-bench",
        "sbin/mount.fuse.dlio",
        "lib/systemd/system/dlio-fs@.service",
        "share/man/man1/dlio-fs.1",
    ] {
        ensure!(paths.iter().any(|path| path == Path::new(part)), "dlio-fs install has placed no {part}");
    }
    Ok(paths)
}

impl Bench<'_> {
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Everything is below `at`, belongs to root and leads to the program that is named `prefix` once it is installed.
    fn ensure_complete(&self, at: &Path, prefix: &str) -> Result<()> {
        for path in &self.expected {
            let plain = at.join(path);
            // Debian compresses manual pages.
            let file = if plain.exists() { plain } else { at.join(format!("{}.gz", path.display())) };
            let metadata = fs::metadata(&file).with_context(|| format!("{} is missing", path.display()))?;
            ensure!((metadata.uid(), metadata.gid()) == (0, 0), "{} belongs to {}", path.display(), metadata.uid());
        }
        let program = at.join("bin/dlio-fs");
        ensure!(fs::read(&program)? == fs::read(&self.made.program)?, "{}: another program", program.display());
        for name in ["mount.fuse.dlio", "umount.fuse.dlio"] {
            let helper = at.join("sbin").join(name);
            ensure!(fs::canonicalize(&helper)? == fs::canonicalize(&program)?, "{} leads elsewhere", helper.display());
        }
        let unit = fs::read_to_string(at.join("lib/systemd/system/dlio-fs@.service"))?;
        ensure!(unit.contains(&format!("ExecStart={prefix}/bin/dlio-fs mount")), "the unit starts another program");
        let list = at.join("share/dlio-fs/installed");
        ensure!(!list.exists(), "{}: `--uninstall` would remove the package's files", list.display());
        Ok(())
    }
}

/// Runs the program in `root`, where there is nothing but the package: no library, no shell, no other program.
fn use_in(root: &Path) -> Result<()> {
    for name in ["proc", "dev", "tmp"] {
        fs::create_dir_all(root.join(name))?;
    }
    // The mounts vanish with their name space.
    let script =
        r#"mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" /usr/bin/dlio-fs "$@""#;
    for what in ["--version", "doctor", "demo"] {
        let mut command = Command::new("unshare");
        command.env_remove("TMPDIR").args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(root);
        run(command.arg(what))?;
    }
    Ok(())
}

fn use_it(program: &Path, version: &str) -> Result<()> {
    ensure_version(program, version)?;
    run(Command::new(program).arg("demo"))
}

fn ensure_version(program: &Path, version: &str) -> Result<()> {
    let (status, text) = run_and_read(Command::new(program).arg("--version"))?;
    ensure!(status.success() && text.contains(version), "{}: {status}: {text}", program.display());
    Ok(())
}

/// The project has no address, so a package that names one names somebody else's.
fn ensure_no_address(of: &str, text: &str) -> Result<()> {
    let address = text.lines().find(|line| line.contains("://") || line.contains('@'));
    ensure!(address.is_none(), "{of} names an address: {}", address.unwrap_or_default());
    Ok(())
}

/// That it is static is seen where there is no library: see [`use_in`].
fn program(bench: &Bench<'_>) -> Result<()> {
    for path in [&bench.made.program, &bench.made.program.with_file_name(BENCH)] {
        let (program, shown) = (fs::read(path)?, path.display());
        let names = |piece: &[u8]| program.windows(piece.len()).any(|found| found == piece);
        ensure!(!names(b".symtab"), "{shown} is not stripped");
        for dir in [&bench.cx.root, &cargo_home()?] {
            ensure!(!names(dir.as_os_str().as_bytes()), "{shown} names {}", dir.display());
        }
    }
    Ok(())
}

fn deb(bench: &Bench<'_>) -> Result<()> {
    let root = bench.fresh("deb")?;
    for dir in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.join("var/lib/dpkg").join(dir))?;
    }
    fs::write(root.join("var/lib/dpkg/status"), "")?;
    let (status, text) = run_and_read(Command::new("dpkg-deb").arg("--field").arg(&bench.made.deb))?;
    ensure!(status.success(), "dpkg-deb: {status}");
    ensure_no_address("the package", &text)?;
    let mut dpkg = Command::new("dpkg");
    dpkg.arg(format!("--root={}", root.display())).args(["--force-depends", "--log=/dev/null", "--install"]);
    run(dpkg.arg(&bench.made.deb))?;
    bench.ensure_complete(&root.join("usr"), "/usr")?;
    use_in(&root)?;
    run(Command::new("dpkg").arg(format!("--root={}", root.display())).args([
        "--log=/dev/null",
        "--purge",
        "dlio-fs",
    ]))?;
    ensure!(!root.join("usr/bin/dlio-fs").exists(), "the program is there after the removal");
    Ok(())
}

fn rpm(bench: &Bench<'_>) -> Result<()> {
    let root = bench.fresh("rpm")?;
    let rpm = || {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(&root).args(["--dbpath", "/var/lib/rpm"]);
        rpm
    };
    let (status, text) = run_and_read(rpm().args(["--query", "--info", "--package"]).arg(&bench.made.rpm))?;
    ensure!(status.success(), "rpm: {status}");
    ensure_no_address("the package", &text)?;
    // Debian's rpm warns of packages from elsewhere; here is no package of Debian's.
    run(rpm().args(["--force-debian", "--install", "--nodeps"]).arg(&bench.made.rpm))?;
    bench.ensure_complete(&root.join("usr"), "/usr")?;
    use_in(&root)?;
    run(rpm().args(["--force-debian", "--erase", "dlio-fs"]))?;
    ensure!(!root.join("usr/bin/dlio-fs").exists(), "the program is there after the removal");
    Ok(())
}

fn tarball(bench: &Bench<'_>) -> Result<()> {
    let dir = bench.fresh("tarball")?;
    let unpack = ["--extract", "--gzip", "--strip-components=1", "--file"];
    run(Command::new("tar").arg("--directory").arg(&dir).args(unpack).arg(&bench.made.tarball))?;
    bench.ensure_complete(&dir, "/usr/local")?;
    use_it(&dir.join("bin/dlio-fs"), &bench.made.version)
}

fn wheel(bench: &Bench<'_>) -> Result<()> {
    let venv = bench.dir.join("venv");
    make_venv(&venv, &work_dir(bench.cx).join("packages-venv.log"))?;
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    run(pip.arg(&bench.made.wheel))?;
    let program = venv.join("bin/dlio-fs");
    ensure!(fs::read(&program)? == fs::read(&bench.made.program)?, "{}: another program", program.display());
    let (status, text) = run_and_read(Command::new(venv.join("bin/python")).args(["-m", "pip", "show", "dlio-fs"]))?;
    ensure!(status.success(), "pip show: {status}");
    ensure_no_address("the wheel", &text)?;
    ensure_version(&program.with_file_name(BENCH), &bench.made.version)?;
    use_it(&program, &bench.made.version)
}

/// As a container gets it: out of the archive.
fn image(bench: &Bench<'_>) -> Result<()> {
    let Some(archive) = &bench.made.image else { return Ok(()) };
    let mut from = buildah(bench.cx);
    from.args(["from", "--quiet"]).arg(format!("oci-archive:{}", archive.display()));
    let (status, name) = run_and_read(&mut from)?;
    ensure!(status.success(), "buildah from: {status}");
    let ran = run_and_read(buildah(bench.cx).args([
        "run",
        "--isolation",
        "chroot",
        name.trim(),
        "/usr/bin/dlio-fs",
        "--version",
    ]));
    run(buildah(bench.cx).args(["rm", name.trim()]))?;
    let (status, text) = ran?;
    ensure!(status.success() && text.contains(&bench.made.version), "the program in the image: {status}: {text}");
    Ok(())
}

/// What Cargo packs builds by itself, and installs. As for tests, so that the second build finds what the first one has built; in a
/// directory of its own, since the other stages run what is built in Cargo's.
fn packed(bench: &Bench<'_>) -> Result<()> {
    // Whoever tries a change has not committed it.
    let target = bench.cx.target.join("crate");
    let mut package = cargo(bench.cx);
    package.args(["package", "--locked", "--allow-dirty", "--package", "dlio-fs"]);
    run(package.arg("--target-dir").arg(&target))?;
    let name = format!("dlio-fs-{}", bench.made.version);
    let (packed, dir) = (target.join("package").join(format!("{name}.crate")), bench.fresh("crate")?);
    run(Command::new("tar").arg("--directory").arg(&dir).args(["--extract", "--gzip", "--file"]).arg(packed))?;
    let mut install = cargo(bench.cx);
    install
        .args(["install", "--locked", "--debug", "--no-track", "--path"])
        .arg(dir.join(name))
        .arg("--root")
        .arg(&dir);
    run(install.arg("--target-dir").arg(&target))?;
    use_it(&dir.join("bin/dlio-fs"), &bench.made.version)
}

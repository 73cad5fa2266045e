//! `dlio-fs install`: places the program, the helpers of mount(8), the unit, completions and manual pages, and removes
//! them again; or places them below a directory for a package.
//!
//! It keeps a list of the placed files, with their hashes, and of the directories it made. It replaces or removes only
//! files that are in this list and unchanged; a file from elsewhere, or an edited one, is named and left alone.
//!
//! The prefix may be in a directory of another user's than the one who runs this. So nothing is placed or removed through
//! a link of that user's, a list of that user's is refused, and no list reaches beyond what is placed with its prefix.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use nix::unistd::geteuid;
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::xxh3_64;

use super::completions;
use super::outcome::{Exit, Failure, Outcome, complain, say};
use crate::error::{Context, Error};
use crate::mount::this_program;
use crate::path::Show as _;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::held::{HeldDir, open_file};

/// The unit from the repository, for a program in `/usr/local/bin`.
const UNIT: &str = include_str!("../../systemd/dlio-fs@.service");
/// The files below `share/doc/dlio-fs`, arranged as in the repository, so that links between pages work.
const DOCS: [(&str, &str); 53] = [
    ("CHANGELOG.md", include_str!("../../CHANGELOG.md")),
    ("LICENSE", include_str!("../../LICENSE")),
    ("README.md", include_str!("../../README.md")),
    ("SECURITY.md", include_str!("../../SECURITY.md")),
    ("config.example.toml", include_str!("../../config.example.toml")),
    ("docs/RELIABILITY.md", include_str!("../../docs/RELIABILITY.md")),
    ("docs/SECURITY.md", include_str!("../../docs/SECURITY.md")),
    ("docs/SEMANTICS.md", include_str!("../../docs/SEMANTICS.md")),
    ("docs/alerts.md", include_str!("../../docs/alerts.md")),
    ("docs/benchmarking.md", include_str!("../../docs/benchmarking.md")),
    ("docs/checkpoints.md", include_str!("../../docs/checkpoints.md")),
    ("docs/commands.md", include_str!("../../docs/commands.md")),
    ("docs/configuration.md", include_str!("../../docs/configuration.md")),
    ("docs/defects.md", include_str!("../../docs/defects.md")),
    ("docs/dlio-files.md", include_str!("../../docs/dlio-files.md")),
    ("docs/frameworks.md", include_str!("../../docs/frameworks.md")),
    ("docs/install.md", include_str!("../../docs/install.md")),
    ("docs/json-commands.md", include_str!("../../docs/json-commands.md")),
    ("docs/json.md", include_str!("../../docs/json.md")),
    ("docs/kubernetes.md", include_str!("../../docs/kubernetes.md")),
    ("docs/lost-nodes.md", include_str!("../../docs/lost-nodes.md")),
    ("docs/metrics.md", include_str!("../../docs/metrics.md")),
    ("docs/many-nodes.md", include_str!("../../docs/many-nodes.md")),
    ("docs/mounting.md", include_str!("../../docs/mounting.md")),
    ("docs/observation.md", include_str!("../../docs/observation.md")),
    ("docs/recovery.md", include_str!("../../docs/recovery.md")),
    ("docs/reports.md", include_str!("../../docs/reports.md")),
    ("docs/sizing.md", include_str!("../../docs/sizing.md")),
    ("docs/slurm.md", include_str!("../../docs/slurm.md")),
    ("docs/training-data.md", include_str!("../../docs/training-data.md")),
    ("docs/troubleshooting.md", include_str!("../../docs/troubleshooting.md")),
    ("docs/tuning.md", include_str!("../../docs/tuning.md")),
    ("docs/upgrade.md", include_str!("../../docs/upgrade.md")),
    ("examples/README.md", include_str!("../../examples/README.md")),
    ("examples/compare.py", include_str!("../../examples/compare.py")),
    ("examples/keras_alexnet.py", include_str!("../../examples/keras_alexnet.py")),
    ("examples/lightning_alexnet.py", include_str!("../../examples/lightning_alexnet.py")),
    ("examples/make_images.py", include_str!("../../examples/make_images.py")),
    ("examples/training.py", include_str!("../../examples/training.py")),
    ("monitoring/alerts.yml", include_str!("../../monitoring/alerts.yml")),
    ("monitoring/grafana.json", include_str!("../../monitoring/grafana.json")),
    ("packaging/kubernetes/claims.yaml", include_str!("../../packaging/kubernetes/claims.yaml")),
    ("packaging/kubernetes/daemonset.yaml", include_str!("../../packaging/kubernetes/daemonset.yaml")),
    ("packaging/kubernetes/fleet.yaml", include_str!("../../packaging/kubernetes/fleet.yaml")),
    ("packaging/kubernetes/sidecar.yaml", include_str!("../../packaging/kubernetes/sidecar.yaml")),
    ("packaging/slurm/burst_buffer.lua", include_str!("../../packaging/slurm/burst_buffer.lua")),
    ("packaging/slurm/common.sh", include_str!("../../packaging/slurm/common.sh")),
    ("packaging/slurm/epilog.sh", include_str!("../../packaging/slurm/epilog.sh")),
    ("packaging/slurm/prolog.sh", include_str!("../../packaging/slurm/prolog.sh")),
    ("packaging/slurm/task_prolog.sh", include_str!("../../packaging/slurm/task_prolog.sh")),
    ("systemd/dlio-fs-drain@.service", include_str!("../../systemd/dlio-fs-drain@.service")),
    ("systemd/dlio-fs-pause.timer", include_str!("../../systemd/dlio-fs-pause.timer")),
    ("systemd/dlio-fs-resume.timer", include_str!("../../systemd/dlio-fs-resume.timer")),
];
/// Installed, too, where it is beside this program.
const BENCH: &str = "dlio-fs-bench";
/// The program's path in a unit of the repository.
const UNIT_PROGRAM: &str = "/usr/local/bin/dlio-fs";
/// mount(8) looks for its helpers only here.
const SBIN: &str = "/sbin";
const HELPERS: [&str; 2] = ["mount.fuse.dlio", "umount.fuse.dlio"];
/// Prefixes for the whole machine: their helpers go to [`SBIN`].
const SYSTEM_PREFIXES: [&str; 3] = ["/", "/usr", "/usr/local"];

/// Install the program, dlio-fs-bench if it is beside it, the helpers of mount(8), the systemd unit, completions, manual pages and documentation
///
/// With the default prefix /usr/local, or with /usr, the helpers mount.fuse.dlio and umount.fuse.dlio go to /sbin,
/// where mount(8) looks for them; with any other prefix they go to DIR/sbin, where it does not. Prints the placed
/// files. Installing again replaces them. If a file there is not from dlio-fs, or was changed since, it is named and
/// nothing is touched (exit code 1).
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs install                              # as root, for the whole machine
  dlio-fs install --prefix ~/.local            # for one user
  dlio-fs install --root tree --prefix /usr    # what a package contains
  dlio-fs install --prefix ~/.local --uninstall")]
pub(super) struct InstallArgs {
    /// Where to install
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Remove exactly the installed files
    #[arg(long)]
    uninstall: bool,
    /// Place everything below DIR, which must be empty, to build a package
    ///
    /// No list of placed files is written: the package manager keeps its own. The helpers go to PREFIX/sbin.
    #[arg(long, value_name = "DIR", conflicts_with = "uninstall")]
    root: Option<PathBuf>,
}

/// `program`: the whole command line, from which the man pages are made.
pub(super) fn run(args: &InstallArgs, program: &clap::Command) -> Outcome {
    let prefix = std::path::absolute(&args.prefix).at("find", args.prefix.shown())?;
    let list = prefix.join("share/dlio-fs/installed");
    match &args.root {
        Some(root) => place_below(root, &prefix, program),
        None if args.uninstall => uninstall(&prefix, &list),
        None => install(&prefix, &list, program),
    }
}

/// Writes no list: with one, `--uninstall` would remove files of the package. The helpers are relative links to the
/// program, which are valid before the package is installed, too.
fn place_below(root: &Path, prefix: &Path, program: &clap::Command) -> Outcome {
    let is_empty = match fs::read_dir(root) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => true,
        Err(e) => return Err(Error::io("list", root.shown().to_string(), e).into()),
    };
    if !is_empty {
        let what = format!("{} is not empty", root.shown());
        return Err(Error::refused(what, "name an empty directory, or one that does not exist yet").into());
    }
    for (path, content) in &contents(prefix, &prefix.join("sbin"), Path::new("../bin/dlio-fs"), program)? {
        place(&root.join(path.strip_prefix("/").unwrap_or(path)), content)?;
        say(path.shown())?;
    }
    Ok(Exit::Done)
}

/// What to place at a path.
#[derive(Debug)]
enum Payload {
    File { bytes: Vec<u8>, mode: u32 },
    Link(PathBuf),
}

impl Payload {
    fn hash(&self) -> u64 {
        match self {
            Payload::File { bytes, .. } => xxh3_64(bytes),
            Payload::Link(target) => hash_of_link(target),
        }
    }
}

fn hash_of_link(target: &Path) -> u64 {
    xxh3_64(&[b"link to ", target.as_os_str().as_bytes()].concat())
}

/// What is in a directory under a name.
#[derive(Clone, Copy, Debug)]
struct Placed {
    hash: u64,
    /// The user whose it is.
    uid: u32,
}

/// The directory that a file is in, without following links of others', and its name there. `None`: there is no such
/// directory.
fn place_of(path: &Path) -> Result<Option<(HeldDir, &OsStr)>, Error> {
    let (dir, name) = split(path);
    Ok(absent_is_none(HeldDir::find(dir, None)).at("open", dir.shown())?.map(|held| (held, name)))
}

fn split(path: &Path) -> (&Path, &OsStr) {
    (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default())
}

/// `None` if nothing is there.
fn found(dir: &HeldDir, name: &OsStr) -> io::Result<Option<Placed>> {
    let Some(stat) = absent_is_none(dir.at(name).symlink_metadata())? else { return Ok(None) };
    let hash = match stat.is_symlink() {
        true => hash_of_link(&fs::read_link(dir.at(name))?),
        false => {
            let mut bytes = Vec::new();
            open_file(dir, name)?.read_to_end(&mut bytes)?;
            xxh3_64(&bytes)
        }
    };
    Ok(Some(Placed { hash, uid: stat.uid() }))
}

fn install(prefix: &Path, list: &Path, program: &clap::Command) -> Outcome {
    let wanted = contents(prefix, &helpers_dir(prefix), &program_in(prefix), program)?;
    let before = Manifest::read(list)?;
    let foreign = before.not_ours(wanted.keys())?;
    if !foreign.is_empty() {
        let what = format!("not placed by dlio-fs, or changed since: {}", foreign.join(", "));
        return Err(Error::refused(what, "nothing was touched; move these away, or use another --prefix").into());
    }
    // Before the first file: if this ends halfway, all placed files are in the list.
    let mut listed = before;
    wanted.iter().for_each(|(path, content)| listed.add(path, content.hash()));
    let missing = wanted.keys().map(PathBuf::as_path).chain([list]).flat_map(|path| path.ancestors().skip(1));
    listed.dirs.extend(missing.filter(|dir| !dir.exists()).map(Path::to_path_buf));
    listed.write(list)?;
    for (path, content) in &wanted {
        place(path, content)?;
        say(path.shown())?;
    }
    // Files of an older version that this one does not have.
    let left = listed.remove_all(&Reach::of(prefix)?, |path| !wanted.contains_key(path))?;
    listed.entries = wanted.iter().map(|(path, content)| (path.clone(), vec![content.hash()])).collect();
    listed.write(list)?;
    for (path, why) in left {
        complain(format_args!("{} is from an older version and {why}: left as it is", path.shown()));
    }
    if !SYSTEM_PREFIXES.iter().any(|system| prefix == Path::new(system)) {
        complain(format_args!(
            "note: mount(8) looks for helpers in {SBIN} only; for mount -t fuse.dlio and fstab link those of {} there",
            helpers_dir(prefix).shown()
        ));
    }
    let bin = prefix.join("bin");
    if !std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir == bin)) {
        complain(format_args!("note: {} is not in your PATH", bin.shown()));
    }
    Ok(Exit::Done)
}

fn uninstall(prefix: &Path, list: &Path) -> Outcome {
    let listed = Manifest::read(list)?;
    if listed.entries.is_empty() {
        let what = format!("nothing was installed with this prefix: there is no {}", list.shown());
        return Err(Error::refused(what, "name the --prefix that it was installed with").into());
    }
    let reach = Reach::of(prefix)?;
    let left = listed.remove_all(&reach, |_| true)?;
    remove(list).at("remove", list.shown())?;
    // Subdirectories sort behind their parents, so go backwards. A directory that has other files stays.
    for dir in listed.dirs.iter().rev() {
        if let Some((above, name)) = place_of(dir)?.filter(|(above, name)| reach.has_dir(above, name)) {
            drop(fs::remove_dir(above.at(name)));
        }
    }
    listed.entries.keys().filter(|path| !left.contains_key(*path)).try_for_each(|path| say(path.shown()))?;
    for (path, why) in &left {
        complain(format_args!("{} {why}: left as it is", path.shown()));
    }
    Ok(if left.is_empty() { Exit::Done } else { Exit::Failure })
}

fn program_in(prefix: &Path) -> PathBuf {
    prefix.join("bin/dlio-fs")
}

/// Everything to place, by path. The helpers are links in `helpers` to `target`.
fn contents(
    prefix: &Path,
    helpers: &Path,
    target: &Path,
    command_line: &clap::Command,
) -> Result<BTreeMap<PathBuf, Payload>, Failure> {
    let text = |bytes: Vec<u8>| Payload::File { bytes, mode: 0o644 };
    let program = program_in(prefix);
    let ourselves = this_program()?;
    let bytes = fs::read(&ourselves).at("read", ourselves.shown())?;
    let path = unit_path(&program)?.to_owned();
    let mut all = BTreeMap::from([
        (program, Payload::File { bytes, mode: 0o755 }),
        (prefix.join("lib/systemd/system/dlio-fs@.service"), text(UNIT.replace(UNIT_PROGRAM, &path).into_bytes())),
    ]);
    for (name, page) in DOCS {
        // `common.sh` and `training.py` are read by the others.
        let mode = if page.starts_with("#!") { 0o755 } else { 0o644 };
        let page = match name.rsplit_once('.') {
            Some((_, "md")) => as_installed(name, page),
            Some((_, "service")) => page.replace(UNIT_PROGRAM, &path),
            _ => page.to_owned(),
        };
        let page = Payload::File { bytes: page.into_bytes(), mode };
        all.insert(prefix.join("share/doc/dlio-fs").join(name), page);
    }
    for name in HELPERS {
        all.insert(helpers.join(name), Payload::Link(target.to_path_buf()));
    }
    let mut pages = completions::installed_files(command_line)?;
    let bench = ourselves.with_file_name(BENCH);
    if bench.exists() {
        let bytes = fs::read(&bench).at("read", bench.shown())?;
        all.insert(prefix.join("bin").join(BENCH), Payload::File { bytes, mode: 0o755 });
        pages.append(&mut files_of(&bench)?);
    }
    all.extend(pages.into_iter().map(|(path, page)| (prefix.join(path), text(page.into_bytes()))));
    Ok(all)
}

/// The completions and manual pages of another program, which prints them itself.
fn files_of(program: &Path) -> Result<BTreeMap<String, String>, Error> {
    let output = Command::new(program).arg(completions::FILES_COMMAND).output().at("run", program.shown())?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let what = format!("{} does not print its manual pages", program.shown());
        Error::refused(what, "remove it, or put the one of this version there")
    })
}

/// What is only for people who change the program is not installed: an installed page names it without a link.
fn as_installed(name: &str, page: &str) -> String {
    let mut pieces = page.split("](");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match (text.rfind('['), piece.split_once(')')) {
            (Some(start), Some((target, rest))) if !is_installed(name, target) => {
                text.replace_range(start..=start, "");
                text.push_str(rest);
            }
            _ => text.extend(["](", piece]),
        }
    }
    text
}

/// Whether there is what the page `name`, in the top directory or in one below it, leads to.
fn is_installed(name: &str, target: &str) -> bool {
    let file = target.split('#').next().unwrap_or_default();
    let path = match (name.split_once('/'), file.strip_prefix("../")) {
        (None, _) => file.to_owned(),
        (Some(_), Some(from_top)) => from_top.to_owned(),
        (Some((dir, _)), None) => format!("{dir}/{file}"),
    };
    file.is_empty() || target.contains("://") || DOCS.iter().any(|(installed, _)| *installed == path)
}

fn helpers_dir(prefix: &Path) -> PathBuf {
    match SYSTEM_PREFIXES.iter().any(|system| prefix == Path::new(system)) {
        true => PathBuf::from(SBIN),
        false => prefix.join("sbin"),
    }
}

/// The program's path as a unit may have it.
fn unit_path(program: &Path) -> Result<&str, Failure> {
    program.to_str().filter(|path| !path.contains([' ', '%', '"', '\\', '$'])).ok_or_else(|| {
        let what = format!("{} has characters that a systemd unit cannot contain", program.shown());
        Failure::usage(Error::refused(what, "choose a --prefix of plain characters"))
    })
}

/// Writes a temporary file and renames it: a running program keeps its file.
fn place(path: &Path, content: &Payload) -> Result<(), Error> {
    let (dir, name) = split(path);
    let held = HeldDir::find(dir, Some(0o755)).map_err(|e| denied("mkdir", dir, e))?;
    match content {
        Payload::File { bytes, mode } => {
            let mut file = NamedTempFile::new_in(held.by_descriptor()).map_err(|e| denied("write to", dir, e))?;
            file.write_all(bytes).at("write", path.shown())?;
            file.as_file().set_permissions(Permissions::from_mode(*mode)).at("chmod", path.shown())?;
            file.as_file().sync_all().at("fsync", path.shown())?;
            file.persist(held.at(name)).map_err(|e| denied("write", path, e.error)).map(drop)
        }
        Payload::Link(target) => {
            let beside = held.at(name).with_extension("new");
            let fresh = absent_is_none(fs::remove_file(&beside)).and_then(|_| symlink(target, &beside));
            fresh.and_then(|()| fs::rename(&beside, held.at(name))).map_err(|e| denied("link", path, e))
        }
    }
}

fn denied(op: &'static str, path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::refused(
            format!("cannot {op} {}: {error}", path.shown()),
            "run it as root, or choose a --prefix of your own (~/.local)",
        ),
        _ => Error::io(op, path.shown().to_string(), error),
    }
}

/// The list. `None`: there is none.
fn text_of_list(file: &Path) -> Result<Option<String>, Error> {
    let Some((dir, name)) = place_of(file)? else { return Ok(None) };
    let opened = absent_is_none(open_file(&dir, name)).at("open", file.shown())?;
    let Some(opened) = opened else { return Ok(None) };
    let stat = opened.metadata().at("stat", file.shown())?;
    let is_writable = stat.mode() & 0o022 != 0;
    if ![0, geteuid().as_raw()].contains(&stat.uid()) || is_writable {
        let what = format!(
            "{}, the list of what was installed, may be changed by others (user {}, mode {:04o})",
            file.shown(),
            stat.uid(),
            stat.mode() & 0o7777
        );
        return Err(Error::refused(what, "nothing was touched; run this as the user who installed"));
    }
    io::read_to_string(opened).map(Some).at("read", file.shown())
}

/// Removes what is at a path, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    let (dir, name) = split(path);
    let held = absent_is_none(HeldDir::find(dir, None))?;
    held.map_or(Ok(()), |held| absent_is_none(fs::remove_file(held.at(name))).map(drop))
}

/// The placed files: paths and valid hashes. During an installation a path may have more than one.
#[derive(Debug, Default)]
struct Manifest {
    entries: BTreeMap<PathBuf, Vec<u64>>,
    /// Directories that `install` made.
    dirs: BTreeSet<PathBuf>,
}

impl Manifest {
    /// Lines of `HASH PATH` and `dir PATH`, the paths escaped. Empty if there is no such file.
    ///
    /// Errors: it is another user's.
    fn read(file: &Path) -> Result<Manifest, Error> {
        let Some(text) = text_of_list(file)? else { return Ok(Manifest::default()) };
        let mut list = Manifest::default();
        for line in text.lines() {
            let words = line.split_once(' ').and_then(|(kind, path)| Some((kind, crate::path::unescape(path)?)));
            let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
            match words {
                Some(("dir", bytes)) => drop(list.dirs.insert(path(&bytes))),
                Some((hash, bytes)) if let Ok(hash) = u64::from_str_radix(hash, 16) => list.add(&path(&bytes), hash),
                _ => {
                    let what = format!("{}: \"{line}\" is not a line of this list", file.shown());
                    return Err(Error::refused(what, "remove what was installed by hand, and this file"));
                }
            }
        }
        Ok(list)
    }

    fn write(&self, file: &Path) -> Result<(), Error> {
        let mut text = String::new();
        for (path, hashes) in &self.entries {
            for hash in hashes {
                text.push_str(&format!("{hash:016x} {}\n", crate::path::escape(path.as_os_str().as_bytes())));
            }
        }
        for dir in &self.dirs {
            text.push_str(&format!("dir {}\n", crate::path::escape(dir.as_os_str().as_bytes())));
        }
        place(file, &Payload::File { bytes: text.into_bytes(), mode: 0o644 })
    }

    fn add(&mut self, path: &Path, hash: u64) {
        self.entries.entry(path.to_path_buf()).or_default().push(hash);
    }

    /// Which of these paths hold something other than what was placed there.
    fn not_ours<'a>(&self, paths: impl Iterator<Item = &'a PathBuf>) -> Result<Vec<String>, Error> {
        let mut foreign = Vec::new();
        for path in paths {
            let Some((dir, name)) = place_of(path)? else { continue };
            if found(&dir, name).at("read", path.shown())?.is_some_and(|there| !self.has(path, there.hash)) {
                foreign.push(path.shown().to_string());
            }
        }
        Ok(foreign)
    }

    fn has(&self, path: &Path, hash: u64) -> bool {
        self.entries.get(path).is_some_and(|hashes| hashes.contains(&hash))
    }

    /// Removes the chosen files that are listed and unchanged. Returns the others, and why they stay.
    fn remove_all(
        &self,
        reach: &Reach,
        chosen: impl Fn(&Path) -> bool,
    ) -> Result<BTreeMap<PathBuf, &'static str>, Error> {
        let mut left = BTreeMap::new();
        for path in self.entries.keys().filter(|path| chosen(path)) {
            let Some((dir, name)) = place_of(path)? else { continue };
            if !reach.has(&dir, name) {
                left.insert(path.clone(), "is not of this prefix");
                continue;
            }
            let Some(there) = found(&dir, name).at("read", path.shown())? else { continue };
            let why = match there {
                Placed { uid, .. } if uid != geteuid().as_raw() => Some("belongs to another user"),
                Placed { hash, .. } if !self.has(path, hash) => Some("was changed since it was placed"),
                _ => None,
            };
            match why {
                Some(why) => drop(left.insert(path.clone(), why)),
                None => fs::remove_file(dir.at(name)).map_err(|e| denied("remove", path, e))?,
            }
        }
        Ok(left)
    }
}

/// What may be removed, whatever a list says: what is below the prefix, and the helpers.
struct Reach {
    prefix: PathBuf,
    helpers: PathBuf,
}

impl Reach {
    fn of(prefix: &Path) -> Result<Reach, Error> {
        let real = |dir: &Path| match HeldDir::find(dir, None) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(dir.to_path_buf()),
            found => found.map(|held| held.path().to_path_buf()).at("open", dir.shown()),
        };
        Ok(Reach { prefix: real(prefix)?, helpers: real(&helpers_dir(prefix))? })
    }

    fn has(&self, dir: &HeldDir, name: &OsStr) -> bool {
        dir.path().starts_with(&self.prefix)
            || (dir.path() == self.helpers && HELPERS.iter().any(|helper| *helper == name))
    }

    /// The prefix was made with the directories above it.
    fn has_dir(&self, above: &HeldDir, name: &OsStr) -> bool {
        above.path().starts_with(&self.prefix) || self.prefix.starts_with(above.path().join(name))
    }
}

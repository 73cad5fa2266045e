//! `dlio-fs mount`: turns flags and configuration into a checked request, then runs the daemon, here or in the
//! background.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;

use super::options::MountOptions;
use super::outcome::{Exit, Failure, Outcome, complain, unusable};
use super::remount::remount;
use super::tiers;
use crate::config::{Config, Listen, SettingSources, Settings};
use crate::error::{Context, Error};
use crate::mount::{self, Daemon, LogTo, MountFlags, Places, Request, Started};
use crate::path::Show as _;

/// Mount the slow tier's tree at MOUNTPOINT; the fast tier absorbs what is written
///
/// Returns once the mount answers; the daemon runs in the background and logs to --log-file or syslog. With
/// --foreground it stays, logs to standard error, and unmounts at Ctrl-C: changes that have not reached the slow tier
/// stay on the fast tier (exit code 3), and the next mount continues with them.
///
/// The mount point may be the slow tier itself: then its tree is visible only through the mount, at unchanged paths.
/// Without root, fusermount3 (package fuse3) makes the mount, and only you can use it.
#[derive(Debug, Default, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs mount /mnt/train --fast /optane --slow /hdd
  dlio-fs mount /hdd --fast /optane --slow /hdd     # over the slow tier itself
  dlio-fs mount --config /etc/dlio-fs/train.toml    # everything from a file
  dlio-fs mount /mnt/train --fast /optane --slow /hdd -o settle=5s,io=cached
  dlio-fs mount /mnt/train --fast /optane --slow /hdd --read-only

A mount whose daemon died is replaced by the same command. Leave a mount with dlio-fs umount.")]
pub(super) struct MountArgs {
    /// Where the tree appears: an existing directory outside the fast tier, or the slow tier itself
    mountpoint: Option<PathBuf>,
    /// The fast tier: an existing directory on fast storage, used by one mount only
    #[arg(long, value_name = "DIR")]
    fast: Option<PathBuf>,
    /// The slow tier: the directory that owns the tree
    #[arg(long, value_name = "DIR")]
    slow: Option<PathBuf>,
    /// Stay in the foreground, for a service manager or a container
    #[arg(long)]
    foreground: bool,
    /// Read the configuration from FILE; flags override it (config.example.toml in share/doc/dlio-fs has every key)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Append log lines to FILE, which must be outside the mount
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Refuse changes; what the fast tier still has is copied to the slow tier anyway, if that can be written
    #[arg(long)]
    read_only: bool,
    /// Copy matching files to the fast tier after mounting: a pattern of paths from the mount's root, such as 'data/**'
    #[arg(long, value_name = "GLOB")]
    stage: Vec<String>,
    /// Count no operations (profile = false), to measure the cost of counting
    #[arg(long)]
    no_profile: bool,
    /// Give the mount to USER, by name or number, who may then do with it whatever root may
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// The job that the mount serves; part of the names of its reports in job_report [default: $SLURM_JOB_ID]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Serve metrics for Prometheus at http://ADDR/metrics: HOST:PORT, or only a port for this machine alone
    ///
    /// Port 0 chooses a free one; .dlio/stats says which. There is no password and no TLS.
    #[arg(long, value_name = "ADDR")]
    metrics_addr: Option<Listen>,
    /// Set keys of the configuration (KEY=VALUE,...), or flags: ro, nosuid, nodev, noexec, noatime
    ///
    /// May be given several times; write a comma inside a value as "\,". Words of fstab for other programs (nofail,
    /// _netdev, x-systemd.automount ...) are ignored. remount with ro or rw changes an existing mount.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Used by `mount` itself to start the daemon: report on standard output when the mount answers
    #[arg(long, hide = true, requires = "foreground")]
    announce: bool,
}

/// What to do about a configuration file that cannot be read.
pub(super) const CONFIG_REMEDY: &str =
    "name a readable text file; config.example.toml (share/doc/dlio-fs) has every key";

pub(super) fn run(args: &MountArgs) -> Outcome {
    let options = MountOptions::sort(&args.options, false).map_err(Failure::usage)?;
    if options.remount {
        let Some(mountpoint) = &args.mountpoint else {
            let error = Error::refused("-o remount without a mount point", "name the mount to change");
            return Err(Failure::usage(error));
        };
        let read_only = args.read_only.then(|| "ro".to_owned());
        return remount(mountpoint, &options.vfs.into_iter().chain(read_only).collect::<Vec<_>>());
    }
    let flags = args.flags(&options);
    let settings = args.settings(options)?;
    let config = settings.config();
    mount::check_address_space(&config)?;
    let places = check_places(&config, flags).map_err(Failure::usage)?;
    // Before anything is created: without the device there is no mount.
    mount::open_device()?;
    if !args.announce {
        // Once: the daemon in the background checks again.
        places.notes.iter().for_each(|note| complain(format_args!("note: {note}")));
    }
    if args.foreground {
        // It looks for other mounts itself.
        return serve(args, settings, flags, places);
    }
    let fleet = config.fleet().map_err(Failure::usage)?.map(|fleet| fleet.name);
    // Before this one is among them; told once it is.
    let others = places.slow_is_writable.then(|| mount::note_of_other_mounts(&places.slow, fleet.as_deref()));
    // A mount over the slow tier itself hides this.
    let slow = fleet.as_ref().and_then(|_| tiers::open("--slow", &places.slow).ok());
    let started = start(args, &config, &places)?;
    // Which bound the fleet has is known once this one is in it.
    let clock = || tiers::fleet_reader(&slow?, &fleet?).ok()?.clock_trouble();
    let notes = matches!(started, Exit::Done).then(|| [others.flatten(), clock()]);
    notes.into_iter().flatten().flatten().for_each(|note| complain(format_args!("note: {note}")));
    Ok(started)
}

impl MountArgs {
    /// A request of mount(8), which calls `slow` the device.
    pub(super) fn for_helper(mountpoint: PathBuf, slow: PathBuf, options: MountOptions) -> MountArgs {
        let MountOptions { settings, flags, config, .. } = options;
        // The daemon gets these as they are, so commas in values are escaped again.
        let settings = settings.iter().map(|setting| setting.replace(',', "\\,"));
        MountArgs {
            mountpoint: Some(mountpoint),
            slow: Some(slow),
            config,
            options: settings.chain(flags.into_iter().map(str::to_owned)).collect(),
            ..MountArgs::default()
        }
    }

    /// All checks before anything is made.
    pub(super) fn check(&self) -> Outcome {
        let options = MountOptions::sort(&self.options, false).map_err(Failure::usage)?;
        let flags = self.flags(&options);
        let settings = self.settings(options)?;
        check_places(&settings.config(), flags).map_err(Failure::usage)?;
        mount::open_device()?;
        Ok(Exit::Done)
    }

    fn flags(&self, options: &MountOptions) -> MountFlags {
        let read_only = mount::flag("ro").filter(|_| self.read_only).unwrap_or(MountFlags::empty());
        options.flags() | read_only
    }

    /// Defaults, then the file, then the environment, then `-o`, then the flags.
    fn settings(&self, options: MountOptions) -> Result<Settings, Failure> {
        let unreadable = |file: &Path, e: &dyn Display| unusable("--config", file, e, CONFIG_REMEDY);
        let file = self
            .config
            .as_ref()
            .or(options.config.as_ref())
            .map(|file| std::path::absolute(file).map_err(|e| unreadable(file, &e)));
        let file = file.transpose()?;
        let text = file.as_ref().map(|file| std::fs::read_to_string(file).map_err(|e| unreadable(file, &e)));
        // As `.dlio/config` will show them; invalid paths are refused later.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let no_profile = self.no_profile.then(|| "profile=false".to_owned());
        let metrics_addr = self.metrics_addr.as_ref().map(|addr| format!("metrics_addr={addr}"));
        let named = |key: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("{key}={}", toml::Value::from(value.clone())))
        };
        let names = named("owner", &self.owner).into_iter().chain(named("job", &self.job));
        let patterns = toml::Value::from(self.stage.clone());
        let stage = (!self.stage.is_empty()).then(|| format!("stage={patterns}"));
        let sources = SettingSources {
            file: file.clone(),
            job: std::env::var("SLURM_JOB_ID").ok().filter(|job| !job.is_empty()),
            log: std::env::var(mount::FILTER_VAR).ok().filter(|log| !log.is_empty()),
            options: options
                .settings
                .into_iter()
                .chain(no_profile)
                .chain(metrics_addr)
                .chain(names)
                .chain(stage)
                .collect(),
            mountpoint: self.mountpoint.as_ref().map(absolute),
            fast: self.fast.as_ref().map(absolute),
            slow: self.slow.as_ref().map(absolute),
            log_file: self.log_file.as_ref().map(absolute),
        };
        Settings::new(sources, text.transpose()?.as_deref()).map_err(Failure::usage)
    }

    /// The same request as arguments for the daemon.
    fn for_daemon(&self) -> Vec<OsString> {
        let with = |flag: &str, value: &Path| {
            let mut argument = OsString::from(flag);
            argument.push("=");
            argument.push(value);
            argument
        };
        let mut arguments: Vec<OsString> = ["mount", "--foreground", "--announce"].map(OsString::from).into();
        let flags = [
            ("--fast", &self.fast),
            ("--slow", &self.slow),
            ("--config", &self.config),
            ("--log-file", &self.log_file),
        ];
        arguments.extend(flags.into_iter().filter_map(|(flag, value)| Some(with(flag, value.as_ref()?))));
        arguments.extend(self.read_only.then(|| "--read-only".into()));
        arguments.extend(self.no_profile.then(|| "--no-profile".into()));
        arguments.extend(self.owner.iter().map(|user| OsString::from(format!("--owner={user}"))));
        arguments.extend(self.job.iter().map(|job| OsString::from(format!("--job={job}"))));
        arguments.extend(self.metrics_addr.iter().map(|addr| OsString::from(format!("--metrics-addr={addr}"))));
        arguments.extend(self.stage.iter().map(|pattern| OsString::from(format!("--stage={pattern}"))));
        arguments.extend(self.options.iter().map(|option| OsString::from(format!("-o{option}"))));
        if let Some(mountpoint) = &self.mountpoint {
            arguments.extend(["--".into(), mountpoint.into()]);
        }
        arguments
    }
}

fn check_places(config: &Config, flags: MountFlags) -> crate::error::Result<Places> {
    let given = |key: &str, value: &Option<PathBuf>, remedy: &str| match value {
        Some(path) if !path.as_os_str().is_empty() => Ok(path.clone()),
        _ => Err(Error::refused(format!("no {key} is given"), remedy)),
    };
    let mountpoint = given("mount point", &config.mountpoint, "write dlio-fs mount MOUNTPOINT --fast DIR --slow DIR")?;
    let fast = given("fast tier", &config.fast, "add --fast DIR: a directory on fast storage")?;
    let slow = given("slow tier", &config.slow, "add --slow DIR: the directory that owns the tree")?;
    let places = Places::check(&mountpoint, &fast, &slow, flags.contains(MountFlags::MOUNT_ATTR_RDONLY))?;
    config.log_file.iter().try_for_each(|file| places.refuse_inside(mount::LOG_FILE_KEY, file))?;
    Ok(places)
}

/// Runs the daemon in this process.
fn serve(args: &MountArgs, settings: Settings, flags: MountFlags, places: Places) -> Outcome {
    let config = settings.config();
    let log = match &config.log_file {
        // The daemon changes its working directory later.
        Some(file) => LogTo::File(std::path::absolute(file).at("find", file.shown())?),
        None if args.announce => LogTo::Syslog,
        None => LogTo::Stderr,
    };
    mount::start_logging(&log, &config.log).map_err(Failure::usage)?;
    let request = Request { places, settings, flags, in_background: args.announce };
    let opened = mount::open_roots(&request)?;
    opened.check().map_err(Failure::usage)?;
    // What is refused from here on may be mended by somebody, a slow tier that is not mounted: it is worth trying again.
    let left = mount::serve(request, opened)?;
    Ok(if left.is_nothing() { Exit::Done } else { Exit::Undrained })
}

/// Runs the daemon in the background and waits until its mount answers.
fn start(args: &MountArgs, config: &Config, places: &Places) -> Outcome {
    match mount::start_in_background(&mount::this_program()?, args.for_daemon(), &places.mountpoint)? {
        Started::Up => {
            if config.log_file.is_none() && !mount::has_syslog() {
                complain("note: there is no syslog here, so the daemon's log is lost; use --log-file FILE to keep it");
            }
            let takes_changes = Daemon::of(&places.mountpoint).is_none_or(|daemon| daemon.slow_is_writable());
            if places.slow_is_writable && !takes_changes {
                complain(
                    "note: the fast tier is full, even for this start: the mount is read-only; dlio-fs status says what it takes",
                );
            }
            Ok(Exit::Done)
        }
        Started::Failed(status) => match (mount::describe(status), status.code()) {
            (Some(killed), _) => Err(Failure::new(Exit::Failure, format!("{killed}; see its log"))),
            // The daemon has printed the reason on our shared standard error.
            (None, Some(2)) => Ok(Exit::Usage),
            (None, _) => Ok(Exit::Failure),
        },
    }
}

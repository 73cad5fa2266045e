//! The user's settings, their defaults, and their checks.
//!
//! One struct for the configuration file, `-o key=value` and the example file. Keys are set one by one, so that every
//! error can name its key, its value and the remedy. No I/O: the caller reads the file. `settings` records the origin
//! of each value and applies reloads.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::io_path::IoPath;
use super::listen::Listen;
use super::rules::{DrainPolicy, FullSlow, OnTerm, PathRule, Pattern, Rules, Verify};
use super::size;
use super::streams::DrainStreams;
use crate::error::{Error, Result};
use crate::path::Show as _;

/// When a key that was changed in the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadEffect {
    /// At a reload.
    AtOnce,
    /// At the next mount: the running mount was made with the value.
    Remount,
}

/// One table for the keys: `key: type = default, when a change takes effect`.
macro_rules! config {
    ($($(#[$about:meta])* $key:ident: $of:ty = $default:expr, $change:ident;)*) => {
        /// The configuration of one mount. Only keys that do something are here.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Config {
            $($(#[$about])* pub $key: $of,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($key: $default,)* }
            }
        }

        /// Every key, in the order of [`Config`] and of the example file, and when a change takes effect.
        pub const KEYS: [(&str, ReloadEffect); [$(stringify!($key)),*].len()] = [$((stringify!($key), ReloadEffect::$change)),*];
    };
}

config! {
    /// The directory at which the view appears.
    mountpoint: Option<PathBuf> = None, Remount;
    /// The fast tier: a directory on fast storage.
    fast: Option<PathBuf> = None, Remount;
    /// The slow tier: the directory that owns the tree.
    slow: Option<PathBuf> = None, Remount;
    /// Where a daemon in the background logs to; without it, syslog.
    log_file: Option<PathBuf> = None, Remount;
    /// What to log: a level, or `target=level` separated by commas, as `tracing_subscriber::EnvFilter` reads it.
    log: String = "info".to_owned(), AtOnce;
    /// How the daemon sees reads and writes.
    io: IoPath = IoPath::Exact, Remount;
    /// Settings for some files only; the first matching rule decides.
    rules: Vec<PathRule> = Vec::new(), Remount;
    /// How long a version stays untouched before it is drained.
    #[serde(with = "duration")]
    settle: Duration = Duration::from_secs(1), AtOnce;
    /// How long a file that is always being written may hold up the order; then a snapshot of it is published.
    #[serde(with = "duration")]
    live_after: Duration = Duration::from_secs(60), AtOnce;
    /// Bytes. A slow file larger than this is written in place instead of being copied up first.
    #[serde(with = "size")]
    copy_up_max: u64 = 64 << 20, AtOnce;
    /// The shortest interval at which opens check whether a slow file was changed behind the mount.
    #[serde(with = "duration")]
    revalidate: Duration = Duration::from_secs(30), AtOnce;
    /// How long an operation waits for the slow tier before it answers EIO. One whose program is being killed does not
    /// wait.
    #[serde(with = "duration")]
    slow_wait: Duration = Duration::from_secs(600), Remount;
    /// The most bytes per second that the drain copies; without it, as fast as the slow tier takes them.
    #[serde(with = "optional_size")]
    drain_bandwidth: Option<u64> = None, AtOnce;
    /// How many files the drain copies at the same time.
    drain_streams: DrainStreams = DrainStreams::Auto, AtOnce;
    /// Which versions of a file are copied to the slow tier, from those written next on.
    drain_policy: DrainPolicy = DrainPolicy::default(), AtOnce;
    /// Which changes wait when the slow tier is full.
    full_slow: FullSlow = FullSlow::default(), AtOnce;
    /// How long what lost a race between the members of a fleet stays in `saved` on the slow tier; zero: for ever.
    #[serde(with = "duration")]
    saved_age: Duration = Duration::from_secs(30 * 86_400), AtOnce;
    /// Whether SIGTERM waits for the slow tier.
    on_term: OnTerm = OnTerm::default(), Remount;
    /// The user, by name or number, who may do with the mount whatever root may; without it, whoever mounts.
    #[serde(with = "word")]
    owner: Option<String> = None, Remount;
    /// What is compared before a copy on the slow tier is published.
    verify: Verify = Verify::default(), AtOnce;
    /// Patterns of files to copy to the fast tier after mounting.
    stage: Vec<String> = Vec::new(), Remount;
    /// Whether files that are read from the slow tier get a copy on the fast tier.
    promote: bool = false, AtOnce;
    /// The most bytes that copies of slow files may take; without it, what the watermarks leave.
    #[serde(with = "optional_size")]
    staged_max: Option<u64> = None, AtOnce;
    /// The most bytes per second that staging jobs copy; without it, as fast as the slow tier reads them.
    #[serde(with = "optional_size")]
    stage_bandwidth: Option<u64> = None, AtOnce;
    /// How many of the newest checkpoints are not evicted.
    keep: u32 = 1, AtOnce;
    /// Share of the fast tier that staging never takes.
    #[serde(with = "share")]
    reserve: f64 = 0.10, AtOnce;
    /// Share of the fast tier in use at which eviction starts.
    #[serde(with = "share")]
    high: f64 = 0.85, AtOnce;
    /// Share of the fast tier in use at which eviction stops.
    #[serde(with = "share")]
    low: f64 = 0.70, AtOnce;
    /// Bytes reserved for the log, released when the fast tier is full.
    #[serde(with = "size")]
    ballast: u64 = 64 << 20, Remount;
    /// Events not yet on the slow tier at which further changes are refused with ENOSPC.
    max_pending: u64 = 1_000_000, AtOnce;
    /// Bytes of memory and log that these may take, with the same effect: names, and extended attributes.
    #[serde(with = "size")]
    max_pending_bytes: u64 = 512 << 20, AtOnce;
    /// How long the kernel may cache attributes of files that were changed through this mount.
    #[serde(with = "duration")]
    attribute_lifetime: Duration = Duration::from_secs(60), AtOnce;
    /// The same for files that are known only from the slow tier.
    #[serde(with = "duration")]
    attribute_lifetime_slow: Duration = Duration::from_secs(1), AtOnce;
    /// Whether operations are counted.
    profile: bool = true, Remount;
    /// The most bytes that the counters of files may take; beyond it, new files are counted together by their suffix.
    #[serde(with = "size")]
    profile_memory: u64 = 256 << 20, Remount;
    /// The directory for recordings of all operations; without it, none are written.
    trace: Option<PathBuf> = None, Remount;
    /// The most bytes that all recordings in that directory may take; then the oldest is deleted.
    #[serde(with = "size")]
    trace_max: u64 = 10 << 30, Remount;
    /// The job that the mount serves.
    #[serde(with = "word")]
    job: Option<String> = None, Remount;
    /// The directory for the recording and report of a job.
    job_report: Option<PathBuf> = None, Remount;
    /// Where metrics are served over HTTP; without it, nowhere.
    metrics_addr: Option<Listen> = None, Remount;
    /// The fleet that this mount keeps one order with; `auto`: the one of its Slurm job.
    #[serde(with = "word")]
    fleet: Option<String> = None, Remount;
    /// How many mounts the fleet has.
    fleet_size: Option<u32> = None, Remount;
    /// The bound for the errors of all the fleet's clocks; without it 20 ms, and each machine is asked whether it keeps it.
    #[serde(with = "optional_duration")]
    clock_error: Option<Duration> = None, Remount;
    /// A second directory for what only the fast tier has, which another node can reach; without it, there is no copy.
    partner_dir: Option<PathBuf> = None, Remount;
}

/// The keys whose values are names, which may look like numbers.
const WORDS: [&str; 3] = ["owner", "job", "fleet"];

/// The most mounts in a fleet: what it costs was counted up to there (`tiers/fleet/periods.rs`).
pub(crate) const FLEET_MAX: u32 = 4096;

/// A fleet to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    pub name: String,
    pub size: u32,
    /// The bound for the errors of all its clocks, if somebody has written it down.
    pub error: Option<Duration>,
}

impl Rules {
    /// Errors: an invalid pattern, with its rule.
    pub fn new(config: &Config) -> Result<Rules> {
        Rules::of(&config.rules, (config.io, config.promote), (config.verify, config.drain_policy))
    }
}

impl Config {
    /// Applies the keys that a configuration file sets, and returns their names. `origin` names the file in errors.
    pub fn apply_toml(&mut self, text: &str, origin: &str) -> Result<Vec<String>> {
        let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let table: BTreeMap<Spanned<String>, toml::Value> = toml::from_str(text).map_err(|e: toml::de::Error| {
            let line = line(e.span().map_or(0, |span| span.start));
            let what = format!("config file {origin}, line {line}: {}", one_line(e.message()));
            Error::refused(what, "write it as TOML: key = value, text in double quotes")
        })?;
        // In the order of the file: the first of two mistakes is reported.
        let mut keys: Vec<_> =
            table.into_iter().map(|(key, value)| (key.span().start, key.into_inner(), value)).collect();
        keys.sort_by_key(|(at, ..)| *at);
        let mut set = Vec::new();
        for (at, key, value) in keys {
            self.set(&key, value, &format!("config file {origin}, line {}", line(at)))?;
            set.push(key);
        }
        Ok(set)
    }

    /// Applies one `key=value` from a command line, and returns its key; quotes around text may be left out.
    pub fn apply_option(&mut self, option: &str) -> Result<String> {
        let Some((key, value)) = option.split_once('=') else {
            let what = format!("option -o {option}: no value");
            return Err(Error::refused(what, "write -o key=value"));
        };
        let value = match value.parse::<toml::Value>() {
            Ok(toml::Value::String(text)) => toml::Value::String(text),
            // As a number the name of an array job and its task, 12_34, would be 1234.
            Ok(_) if WORDS.contains(&key) => toml::Value::String(value.to_owned()),
            Ok(
                value @ (toml::Value::Integer(_)
                | toml::Value::Float(_)
                | toml::Value::Boolean(_)
                | toml::Value::Array(_)),
            ) => value,
            _ => toml::Value::String(value.to_owned()),
        };
        self.set(key, value, "option -o")?;
        Ok(key.to_owned())
    }

    /// Sets one key. `origin` says in an error where the key was.
    fn set(&mut self, key: &str, value: toml::Value, origin: &str) -> Result<()> {
        if !KEYS.iter().any(|(known, _)| *known == key) {
            return Err(Error::refused(format!("{origin}: unknown key \"{key}\""), nearest(key)));
        }
        let shown = value.to_string();
        let mut whole = toml::Table::try_from(&*self).map_err(|e| Error::refused(e.to_string(), "report this"))?;
        let mut with = |value| {
            whole.insert(key.to_owned(), value);
            whole.clone().try_into().map_err(|e: toml::de::Error| one_line(e.message()))
        };
        *self = with(value).map_err(|told| {
            // Of a number where a word belongs it does not say which words there are.
            let other =
                with(toml::Value::String(String::new())).err().filter(|_| told.contains("expected string only"));
            let (why, remedy) = in_plain_words(&other.unwrap_or(told));
            Error::refused(format!("{origin}: {key} = {}: {why}", one_line(&shown)), remedy)
        })?;
        Ok(())
    }

    /// Refuses values that are out of range or contradict each other.
    pub fn validate(&self) -> Result<()> {
        self.validate_shares()?;
        Rules::new(self)?;
        self.patterns_to_stage()?;
        check_log(&self.log, &format!("log = {:?}", self.log))?;
        let durations = [
            ("settle", self.settle, Duration::ZERO, Duration::from_secs(3600)),
            ("live_after", self.live_after, Duration::from_secs(1), Duration::from_secs(86_400)),
            ("revalidate", self.revalidate, Duration::ZERO, Duration::from_secs(86_400)),
            ("slow_wait", self.slow_wait, Duration::from_millis(100), Duration::from_secs(86_400)),
            ("saved_age", self.saved_age, Duration::ZERO, Duration::from_secs(10 * 365 * 86_400)),
            ("attribute_lifetime", self.attribute_lifetime, Duration::ZERO, Duration::from_secs(86_400)),
            ("attribute_lifetime_slow", self.attribute_lifetime_slow, Duration::ZERO, Duration::from_secs(86_400)),
        ];
        for (key, value, least, most) in durations {
            check_range(key, value, least, most, |d| humantime::format_duration(*d).to_string())?;
        }
        let size = |bytes: &u64| bytesize::ByteSize(*bytes).to_string();
        check_range("ballast", self.ballast, 1 << 20, 64 << 30, size)?;
        check_range("profile_memory", self.profile_memory, 1 << 20, 1 << 40, size)?;
        for (key, dir) in [("trace", &self.trace), ("job_report", &self.job_report)] {
            if let Some(dir) = dir.as_ref().filter(|dir| !dir.is_absolute()) {
                let what = format!("{key} = \"{}\" is not an absolute path", dir.shown());
                return Err(Error::refused(what, "write an absolute path: the daemon's working directory is /"));
            }
        }
        if let Some(job) = self.job.as_ref().filter(|job| !is_job(job)) {
            let what = format!("job = {job:?} cannot be part of a file name");
            return Err(Error::refused(what, "write at most 100 letters and digits, with . _ - between them"));
        }
        check_range("trace_max", self.trace_max, 1 << 20, 1 << 60, size)?;
        check_range("max_pending", self.max_pending, 1_000, 100_000_000, u64::to_string)?;
        check_range("max_pending_bytes", self.max_pending_bytes, 1 << 20, 1 << 40, size)?;
        self.fleet()?;
        self.validate_partner()?;
        if self.settle > self.live_after {
            let (settle, live) = (humantime::format_duration(self.settle), humantime::format_duration(self.live_after));
            let what = format!("settle = {settle} is longer than live_after = {live}, so no file would ever settle");
            return Err(Error::refused(what, "make settle shorter than live_after"));
        }
        Ok(())
    }

    /// The fleet to join. Errors: a setting that it lacks, or that it excludes.
    pub fn fleet(&self) -> Result<Option<FleetSettings>> {
        let Some(name) = &self.fleet else {
            return match self.fleet_size {
                Some(size) => Err(Error::refused(format!("fleet_size = {size} without a fleet"), "set fleet, too")),
                None => Ok(None),
            };
        };
        let name = match (name.as_str(), &self.job) {
            ("auto", Some(job)) => job.clone(),
            ("auto", None) => {
                let what = "fleet = \"auto\", but there is no SLURM_JOB_ID";
                return Err(Error::refused(what, "mount inside of the job, or give the fleet a name"));
            }
            (name, _) => name.to_owned(),
        };
        if !is_job(&name) {
            let what = format!("fleet = {name:?} cannot be a file's name");
            return Err(Error::refused(what, "write at most 100 letters and digits, with . _ - between them"));
        }
        let Some(size) = self.fleet_size else {
            let remedy = "set fleet_size to the number of its mounts: none publishes before all have begun";
            return Err(Error::refused(format!("fleet = {name:?} without its size"), remedy));
        };
        check_range("fleet_size", size, 1, FLEET_MAX, u32::to_string)?;
        self.clock_error.map_or(Ok(()), check_clock_error)?;
        if self.full_slow == FullSlow::RemoveFirst {
            let what = "full_slow = \"remove-first\" changes the order that a fleet keeps";
            return Err(Error::refused(what, "write full_slow = \"hold\", or mount without a fleet"));
        }
        let newest = Some(DrainPolicy::Newest);
        if Some(self.drain_policy) == newest || self.rules.iter().any(|rule| rule.drain_policy == newest) {
            let what = "drain_policy = \"newest\" publishes together what a fleet orders one by one";
            return Err(Error::refused(what, "choose \"all\", or mount without a fleet"));
        }
        let passes = |io: Option<IoPath>| io == Some(IoPath::Passthrough);
        if passes(Some(self.io)) || self.rules.iter().any(|rule| passes(rule.io)) {
            let what =
                "io = \"passthrough\" lets a pending version be changed unseen, which a fleet's order does not allow";
            return Err(Error::refused(what, "choose another I/O path, or mount without a fleet"));
        }
        Ok(Some(FleetSettings { name, size, error: self.clock_error }))
    }

    fn validate_partner(&self) -> Result<()> {
        let Some(dir) = &self.partner_dir else { return Ok(()) };
        let refused =
            |why: &str, remedy: &str| Err(Error::refused(format!("partner_dir = \"{}\" {why}", dir.shown()), remedy));
        if !dir.is_absolute() {
            return refused("is not an absolute path", "write an absolute path: the daemon's working directory is /");
        }
        if self.fleet.is_none() {
            return refused(
                "without a fleet",
                "set fleet and fleet_size, too: with fleet_size = 1 a mount has one alone",
            );
        }
        let places = [("mountpoint", &self.mountpoint), ("fast", &self.fast), ("slow", &self.slow)];
        for (key, place) in places {
            if place.as_ref().is_some_and(|place| dir.starts_with(place)) {
                return refused(&format!("is in {key}"), "choose a directory that another node can reach");
            }
        }
        Ok(())
    }

    /// Errors: an invalid pattern.
    pub fn patterns_to_stage(&self) -> Result<Vec<Pattern>> {
        let pattern = |text: &String| {
            let refused =
                |why| Error::refused(format!("stage: {text:?}: {why}"), "write a pattern such as \"data/**\"");
            Pattern::new(text).map_err(refused)
        };
        self.stage.iter().map(pattern).collect()
    }

    fn validate_shares(&self) -> Result<()> {
        let percent = |share: &f64| share::text(*share);
        check_range("high", self.high, 0.02, 0.98, percent)?;
        check_range("low", self.low, 0.01, 0.97, percent)?;
        check_range("reserve", self.reserve, 0.0, 0.95, percent)?;
        if self.low >= self.high {
            let what = format!("low = {} is not below high = {}", percent(&self.low), percent(&self.high));
            return Err(Error::refused(what, "eviction runs from high down to low: choose low below high"));
        }
        Ok(())
    }
}

/// Whether a job's files can have this name.
pub fn is_job(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.len() <= 100 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain)
}

/// Refuses a filter without a valid level. `shown` says in the error where it was.
pub(super) fn check_log(log: &str, shown: &str) -> Result<()> {
    let refused = |why: String| {
        let remedy = "write a level (off, error, warn, info, debug, trace) or target=level, separated by commas";
        Error::refused(format!("{shown}: {why}"), remedy)
    };
    EnvFilter::try_new(log).map_err(|e| refused(e.to_string()))?;
    // The filter takes any single word for a target, and then logs all of it.
    let is_word = |part: &&str| !part.is_empty() && part.chars().all(char::is_alphanumeric);
    match log.split(',').map(str::trim).filter(is_word).find(|word| word.parse::<LevelFilter>().is_err()) {
        Some(word) => Err(refused(format!("{word} is no level"))),
        None => Ok(()),
    }
}

fn check_range<T: PartialOrd>(key: &str, value: T, least: T, most: T, text: impl Fn(&T) -> String) -> Result<()> {
    if value >= least && value <= most {
        return Ok(());
    }
    let what = format!("{key} = {} is out of range", text(&value));
    Err(Error::refused(what, format!("choose {} to {}", text(&least), text(&most))))
}

/// The known key that an unknown one was probably meant to be, or the list of all of them.
fn nearest(key: &str) -> String {
    let known = || KEYS.iter().map(|(known, _)| *known);
    let close = known().map(|known| (strsim::jaro_winkler(key, known), known)).max_by(|a, b| a.0.total_cmp(&b.0));
    match close {
        Some((score, known)) if score > 0.75 => format!("did you mean \"{known}\"?"),
        _ => format!("known keys: {}", known().collect::<Vec<_>>().join(", ")),
    }
}

/// Why a value is refused, and what to write. Errors of the value parsers below have the form `why; remedy`; those of serde speak of
/// types.
fn in_plain_words(message: &str) -> (String, String) {
    if let Some((why, remedy)) = message.split_once("; ") {
        return (why.to_owned(), remedy.to_owned());
    }
    let expected = message.split_once("expected ").map_or("", |(_, expected)| expected);
    let words = || {
        let words = expected.split('`').skip(1).step_by(2).map(|word| format!("{word:?}"));
        format!("write {}", words.collect::<Vec<_>>().join(" or "))
    };
    let write = match expected {
        _ if message.starts_with("unknown variant") => return ("there is no such value".to_owned(), words()),
        _ if message.starts_with("unknown field") => return ("a part of it is unknown".to_owned(), words()),
        "a boolean" => "write true or false",
        "u32" | "u64" => "write a whole number that is not negative",
        "a string" | "path string" => "write text in double quotes",
        "a sequence" => "write a list in brackets, as in config.example.toml",
        _ => return (message.to_owned(), "see config.example.toml for what this key takes".to_owned()),
    };
    ("it is of the wrong kind".to_owned(), write.to_owned())
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A duration as text: `500ms`, `1s`, `10min`.
mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_duration(*value))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let error =
            || de::Error::custom("not a duration; write a number and a unit, as \"500ms\", \"1s\" or \"10min\"");
        let text = String::deserialize(d).map_err(|_| error())?;
        humantime::parse_duration(&text).map_err(|_| error())
    }
}

/// Bytes as text; an absent value means no limit.
mod optional_size {
    use serde::{Deserializer, Serializer};

    #[allow(clippy::ref_option, reason = "as serde calls it")]
    pub(super) fn serialize<S: Serializer>(value: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => crate::config::size::serialize(bytes, s),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        crate::config::size::deserialize(d).map(Some)
    }
}

/// A duration as text; an absent value means that none was chosen.
mod optional_duration {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    #[allow(clippy::ref_option, reason = "as serde calls it")]
    pub(super) fn serialize<S: Serializer>(value: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(time) => crate::config::values::duration::serialize(time, s),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        crate::config::values::duration::deserialize(d).map(Some)
    }
}

/// A share of the fast tier as text, `85%`, or as a number from 0 to 1.
mod share {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn text(value: f64) -> String {
        // Rounded to what a person would have written: 0.07 * 100 is not exactly 7.
        format!("{}%", (value * 1e6).round() / 1e4)
    }

    pub(super) fn serialize<S: Serializer>(value: &f64, s: S) -> Result<S::Ok, S::Error> {
        let text = text(*value);
        // A number that a person would not have written as a percentage stays a number.
        if parse(&text) == Some(*value) { s.collect_str(&text) } else { s.serialize_f64(*value) }
    }

    fn parse(text: &str) -> Option<f64> {
        text.trim().strip_suffix('%')?.trim().parse::<f64>().ok().map(|percent| percent / 100.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Share {
            Number(f64),
            Text(String),
        }
        let error = || de::Error::custom("not a share of the fast tier; write it as \"85%\"");
        let share = match Share::deserialize(d).map_err(|_| error())? {
            Share::Number(share) => share,
            Share::Text(text) => parse(&text).ok_or_else(error)?,
        };
        // Also refuses NaN, which every later comparison would let through.
        if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(error()) }
    }
}

/// A name that may be a number.
mod word {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &Option<String>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(word) => s.serialize_some(word),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Word {
            Number(u64),
            Text(String),
        }
        let word = match Word::deserialize(d).map_err(|_| de::Error::custom("not a name; write it as \"alice\""))? {
            Word::Number(number) => number.to_string(),
            Word::Text(text) => text,
        };
        if word.is_empty() { Err(de::Error::custom("no name; write it as \"alice\"")) } else { Ok(Some(word)) }
    }
}

/// Errors: no clocks can be kept as well, or an answer would wait for too long.
pub fn check_clock_error(error: Duration) -> Result<()> {
    let (least, most) = (Duration::from_micros(1), Duration::from_secs(10));
    check_range("clock_error", error, least, most, |d| humantime::format_duration(*d).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../config.example.toml");

    fn refusal(result: Result<()>) -> String {
        let text = result.expect_err("must be refused").to_string();
        assert!(!text.contains('\n'), "not one line: {text}");
        text
    }

    fn from_toml(text: &str) -> Result<Config> {
        let mut config = Config::default();
        config.apply_toml(text, "x.toml")?;
        config.validate().map(|()| config)
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_told_in_plain_words() {
        for (line, write) in [
            ("verify = true", "write \"length\" or \"bytes\""),
            ("on_term = 3", "write \"leave\" or \"drain\""),
            ("full_slow = \"x\"", "write \"hold\" or \"remove-first\""),
            ("keep = -1", "write a whole number"),
            ("keep = \"abc\"", "write a whole number"),
            ("max_pending = 1.5", "write a whole number"),
            ("promote = \"yes\"", "write true or false"),
            ("stage = \"x\"", "write a list in brackets"),
            ("rules = 4", "write a list in brackets"),
            ("fast = 3", "write text in double quotes"),
            ("log = 3", "write text in double quotes"),
            ("rules = [{ match = \"a\", verify = 1 }]", "write "),
            ("rules = [{ of = \"a\" }]", "write \"path\" or "),
        ] {
            let told = refusal(from_toml(line).map(drop));
            let of_types = ["variant", "u32", "u64", "sequence", "invalid type", "path string", "unknown field"];
            assert!(told.contains(write) && !of_types.iter().any(|word| told.contains(word)), "{told}");
        }
    }

    #[test]
    fn a_fleet_needs_its_size_and_what_keeps_its_order() {
        let fleet = |text: &str| from_toml(text).and_then(|config| config.fleet());
        let refused = |text: &str| refusal(fleet(text).map(drop));
        let named = fleet("fleet = \"a.b\"\nfleet_size = 4096").expect("valid").expect("a fleet");
        assert_eq!((&*named.name, named.size, named.error), ("a.b", 4096, None));
        let of_job = fleet("fleet = \"auto\"\nfleet_size = 1\njob = 4711\nclock_error = \"1ms\"").expect("valid");
        let of_job = of_job.expect("a fleet");
        assert_eq!((&*of_job.name, of_job.error), ("4711", Some(Duration::from_millis(1))));
        assert_eq!(fleet("").expect("valid"), None);
        for (text, why) in [
            ("fleet = \"a\"", "without its size"),
            ("fleet_size = 2", "without a fleet"),
            ("fleet = \"a\"\nfleet_size = 0", "choose 1 to 4096"),
            ("fleet = \"a\"\nfleet_size = 4097", "choose 1 to 4096"),
            ("fleet = \"a/b\"\nfleet_size = 2", "cannot be a file's name"),
            ("fleet = \"auto\"\nfleet_size = 2", "no SLURM_JOB_ID"),
            ("fleet = \"a\"\nfleet_size = 2\nclock_error = \"0s\"", "clock_error = 0s is out of range"),
            ("fleet = \"a\"\nfleet_size = 2\nio = \"passthrough\"", "which a fleet's order does not allow"),
            ("fleet = \"a\"\nfleet_size = 2\nrules = [{path=\"a\", drain_policy=\"newest\"}]", "orders one by one"),
            ("partner_dir = \"/p\"", "without a fleet"),
            ("fleet = \"a\"\nfleet_size = 2\npartner_dir = \"p\"", "is not an absolute path"),
            ("fleet = \"a\"\nfleet_size = 2\nslow = \"/s\"\npartner_dir = \"/s/p\"", "is in slow; choose a directory"),
            ("fleet = \"a\"\nfleet_size = 2\nfull_slow = \"remove-first\"", "the order that a fleet keeps"),
        ] {
            let said = refused(text);
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn the_example_file_is_exactly_the_defaults() {
        assert_eq!(from_toml(EXAMPLE).expect("the example is valid"), Config::default());
    }

    #[test]
    fn the_example_file_has_every_key_once() {
        let lines = EXAMPLE.lines().map(|line| line.strip_prefix("# ").unwrap_or(line));
        let keys: Vec<_> = lines.filter_map(|line| line.split_once(" = ")).map(|(key, _)| key).collect();
        assert_eq!(keys, KEYS.map(|(key, _)| key), "in the same order, too");
    }

    #[test]
    fn the_table_of_keys_is_the_struct_s() {
        let some = || Some(PathBuf::from("/x"));
        let metrics_addr = Some("[::1]:9464".parse().expect("an address"));
        let paths = Config { mountpoint: some(), fast: some(), slow: some(), log_file: some(), ..Config::default() };
        let bytes = Some(200 << 30);
        let full = Config {
            metrics_addr,
            trace: some(),
            owner: Some("alice".to_owned()),
            job: Some("4711".to_owned()),
            job_report: some(),
            staged_max: bytes,
            stage_bandwidth: bytes,
            drain_bandwidth: bytes,
            fleet: Some("job".to_owned()),
            fleet_size: Some(2),
            clock_error: Some(Duration::from_millis(5)),
            partner_dir: Some(PathBuf::from("/y")),
            ..paths
        };
        let text = toml::to_string(&full).expect("plain values");
        let keys: Vec<_> = text.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key).collect();
        assert_eq!(keys, KEYS.map(|(key, _)| key));
        assert_eq!(from_toml(&text).expect("what is written can be read"), full);
    }

    #[test]
    fn sizes_and_shares_are_written_as_people_do_and_exactly() {
        let odd = Config { high: 0.1 + 0.2, low: 0.07, copy_up_max: 1025, ballast: 3 << 19, ..Config::default() };
        let text = toml::to_string(&odd).expect("plain values");
        for line in ["low = \"7%\"", "high = 0.30000000000000004", "copy_up_max = 1025", "ballast = \"1536KiB\""] {
            assert!(text.lines().any(|l| l == line), "no {line} in {text}");
        }
        assert_eq!(from_toml(&text).expect("what is written can be read"), odd);
    }

    #[test]
    fn every_key_of_the_example_that_is_commented_out_parses_too() {
        let uncommented: String = EXAMPLE
            .lines()
            .filter_map(|l| l.strip_prefix("# "))
            .filter(|l| l.contains(" = "))
            .collect::<Vec<_>>()
            .join("\n");
        let config = from_toml(&uncommented).expect("valid once the comment sign is removed");
        assert!(config.mountpoint.is_some() && config.fast.is_some() && config.slow.is_some());
        assert!(config.log_file.is_some() && config.metrics_addr.is_some());
        assert!(config.owner.is_some() && config.job.is_some() && config.job_report.is_some());
    }

    #[test]
    fn human_units_are_understood() {
        let config =
            from_toml("settle = \"250ms\"\ncopy_up_max = \"2GiB\"\nballast = 1048576\nhigh = 0.5\nlow = \"12.5%\"")
                .expect("valid");
        assert_eq!(config.settle, Duration::from_millis(250));
        assert_eq!(config.copy_up_max, 2 << 30);
        assert_eq!(config.ballast, 1 << 20);
        assert_eq!((config.high, config.low), (0.5, 0.125));
    }

    #[test]
    fn options_override_the_file() {
        let mut config = from_toml("settle = \"3s\"\nmax_pending = 5000").expect("valid");
        config.apply_option("settle=2s").expect("bare text");
        config.apply_option("fast=/a b").expect("a path with a blank");
        config.apply_option("high=90%").expect("a share");
        config.apply_option("job=4711").expect("a name that is a number");
        assert_eq!(config.job.as_deref(), Some("4711"));
        // Two tasks of array jobs became the same number, and one fleet.
        for word in ["4711_3", "0x10", "+7", "1e3", "true", "[1]"] {
            for key in ["owner", "job", "fleet"] {
                config.apply_option(&format!("{key}={word}")).expect(word);
            }
            let words = [&config.owner, &config.job, &config.fleet];
            assert!(words.iter().all(|told| told.as_deref() == Some(word)), "{word}: {words:?}");
        }
        config.apply_option("job=\"4711_3\"").expect("quoted");
        assert_eq!(config.job.as_deref(), Some("4711_3"));
        assert_eq!((config.settle, config.max_pending, config.high), (Duration::from_secs(2), 5000, 0.9));
        assert_eq!(config.fast, Some("/a b".into()));
        for (option, address) in [("9464", "127.0.0.1:9464"), ("[::1]:80", "[::1]:80"), ("a.b:80", "a.b:80")] {
            config.apply_option(&format!("metrics_addr={option}")).expect(option);
            assert_eq!(config.metrics_addr.as_ref().map(Listen::to_string).as_deref(), Some(address));
        }
    }

    #[test]
    fn an_unknown_key_names_the_nearest_one() {
        let text = refusal(from_toml("setle = \"1s\"").map(drop));
        assert_eq!(text, "config file x.toml, line 1: unknown key \"setle\"; did you mean \"settle\"?");
        let text = refusal(Config::default().apply_option("copy-up-max=1").map(drop));
        assert!(text.contains("did you mean \"copy_up_max\"?"), "{text}");
        let text = refusal(Config::default().apply_option("zzz=1").map(drop));
        assert!(text.contains("known keys: ") && text.contains("slow_wait"), "{text}");
    }

    #[test]
    fn a_bad_value_names_key_value_and_remedy() {
        for (line, parts) in [
            ("settle = 5", ["settle = 5", "\"1s\""]),
            ("settle = \"soon\"", ["settle = \"soon\"", "\"1s\""]),
            ("copy_up_max = \"64 Mangos\"", ["64 Mangos", "\"64MiB\""]),
            ("copy_up_max = -1", ["-1", "\"64MiB\""]),
            ("high = \"85\"", ["\"85\"", "\"85%\""]),
            ("high = 85", ["high = 85", "\"85%\""]),
            ("low = nan", ["low = nan", "\"85%\""]),
            ("copy_up_max = \"12EiB\"", ["12EiB", "\"64MiB\""]),
            ("io = \"fast\"", ["io = \"fast\"", "write \"exact\""]),
            ("owner = true", ["owner = true", "\"alice\""]),
            ("job = \"../x\"", ["job = \"../x\"", "letters and digits"]),
            ("job_report = \"x\"", ["job_report = \"x\"", "absolute path"]),
            ("max_pending = 5", ["max_pending = 5", "choose 1000 to"]),
            ("slow_wait = \"0s\"", ["slow_wait = 0s", "choose 100ms to"]),
            ("low = \"90%\"", ["low = 90%", "high = 85%"]),
            ("settle = \"2min\"", ["settle = 2m", "live_after = 1m"]),
            ("log = \"loud=x\"", ["log = \"loud=x\"", "write a level"]),
            ("settle = \"2s\"\n\nhigh = 85\n", ["x.toml, line 3: high = 85", "\"85%\""]),
            ("metrics_addr = 70000", ["metrics_addr = 70000", "HOST:PORT"]),
            ("metrics_addr = true", ["metrics_addr = true", "HOST:PORT"]),
            ("settle = \"1s", ["line 1", "TOML"]),
            ("a = 1\n[[", ["line 2", "TOML"]),
        ] {
            let text = refusal(from_toml(line).map(drop));
            for part in parts {
                assert!(text.contains(part), "{line}: no {part:?} in {text:?}");
            }
        }
    }

    #[test]
    fn an_option_without_a_value_is_refused() {
        let text = refusal(Config::default().apply_option("settle").map(drop));
        assert_eq!(text, "option -o settle: no value; write -o key=value");
    }
}

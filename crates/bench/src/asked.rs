//! The arguments of all benchmarks: where, on which I/O paths, how often, and where the results go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use dlio_fs::cli::duration::parse_duration;
use dlio_fs::cli::options::MountOptions;
use dlio_fs::cli::outcome::{Exit, Failure};
use dlio_fs::config::{IoPath, SettingSources, Settings};
use dlio_fs::error::{Context, Error};
use dlio_fs::path::Show as _;

use crate::loads::caches::Caches;
use crate::loads::results::Results;
use crate::loads::{markdown, page, text};

/// The prefix of the temporary directories.
pub(super) const PREFIX: &str = "dlio-fs-bench-";

/// Longer than any step of training.
const COMPUTE_MAX: Duration = Duration::from_secs(60);

/// How many `cp` run side by side in `drain`, beside one alone, and how many large files they copy.
pub(super) const COPY_STREAMS: usize = 8;

#[derive(Clone, Debug, Args)]
pub(super) struct Common {
    /// A directory on the fast tier
    #[arg(long, value_name = "DIR")]
    pub(super) fast: PathBuf,
    /// A directory on the slow tier
    #[arg(long, value_name = "DIR")]
    pub(super) slow: PathBuf,
    /// The I/O paths to measure, each with its own mount: exact, cached, passthrough
    #[arg(long, value_name = "PATHS", value_delimiter = ',', default_value = "exact", value_parser = parse_io)]
    pub(super) io: Vec<IoPath>,
    /// Set keys of the configuration of these mounts, as `dlio-fs mount -o` (KEY=VALUE,...)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Also measure this directory on another mounted file system; may be given several times
    #[arg(long, value_name = "NAME=DIR", value_parser = parse_also)]
    also: Vec<(String, PathBuf)>,
    /// How often each place is measured; the places take turns, so that runs can be compared in pairs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Touch this much memory before timing: a virtual machine may be slow to get memory the first time. Default: the
    /// smaller of 4 GiB and a quarter of the available memory; 0 for none
    #[arg(long, value_name = "SIZE")]
    touch: Option<ByteSize>,
    /// Which caches are cold when a measurement begins. Default: `dropped`, or `file` without root. `files`,
    /// `blocks`, `metadata` and `drain` are hot
    #[arg(long, value_enum)]
    caches: Option<Cold>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Also write the results to this file, in the format of its ending: .html, .svg, .md, .json or .txt; may be given
    /// several times
    #[arg(long, value_name = "FILE")]
    output: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cold {
    /// All caches of the kernel; needs root
    Dropped,
    /// Only the content of the benchmark's own files, for a machine that others use
    File,
}

/// The checked arguments: everything here can be measured.
#[derive(Clone, Debug)]
pub(super) struct BenchSetup {
    pub(super) fast: PathBuf,
    pub(super) slow: PathBuf,
    pub(super) io: Vec<IoPath>,
    pub(super) options: Vec<String>,
    pub(super) also: Vec<(String, PathBuf)>,
    /// Bytes of memory to touch; `None` for the default.
    pub(super) touch: Option<u64>,
}

impl Common {
    pub(super) fn runs(&self, default: usize) -> usize {
        self.runs.map_or(default, |runs| runs as usize)
    }

    /// The state of the caches when a measurement begins.
    pub(super) fn cold(&self) -> Result<Caches, Failure> {
        match (self.caches, Caches::coldest()) {
            (Some(Cold::File), _) => Ok(Caches::FileData),
            (Some(Cold::Dropped), Caches::FileData) => {
                Err(usage("--caches dropped: only root may drop them", "be root, or leave it out"))
            }
            (_, coldest) => Ok(coldest),
        }
    }

    /// The same for a benchmark with everything in memory.
    pub(super) fn hot(&self) -> Result<Caches, Failure> {
        match self.caches {
            None => Ok(Caches::Hot),
            Some(_) => Err(usage("--caches: this is measured with everything in memory", "leave it out")),
        }
    }

    /// How many places there are.
    pub(super) fn places(&self) -> usize {
        2 + self.io.len() + self.also.len()
    }

    /// Where the results go, checked before anything is measured.
    pub(super) fn documents(&self) -> Result<Vec<ResultFile>, Failure> {
        documents(&self.output)
    }

    /// Refuses what cannot work.
    pub(super) fn check(&self) -> Result<BenchSetup, Failure> {
        let options = check_options(&self.options)?;
        if let Some(option) = options.iter().find(|option| option.starts_with("io=")) {
            return Err(usage(format!("-o {option}: the I/O paths are what is compared"), "name them with --io"));
        }
        check_tiers(&self.fast, &self.slow)?;
        let mut io: Vec<IoPath> = Vec::new();
        for path in &self.io {
            if io.contains(path) {
                return Err(usage(format!("--io names {} twice", path.name()), "name each once"));
            }
            io.push(*path);
        }
        let mut names: Vec<String> = ["slow", "fast"].map(str::to_owned).into();
        names.extend([1, COPY_STREAMS].map(copies_name));
        let of_mount = |io: &IoPath| {
            let name = mount_name(*io);
            [format!("{name} staged"), paused_name(&name), name]
        };
        names.extend(io.iter().flat_map(of_mount));
        for (name, dir) in &self.also {
            if names.contains(name) {
                return Err(usage(format!("--also {name}: there is such a place already"), "give it another name"));
            }
            names.push(name.clone());
            let dir = directory("--also", dir)?;
            if dir.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
                let what = format!("--also {name}={} is inside another benchmark's directory", dir.shown());
                return Err(usage(what, "name a directory that stays"));
            }
        }
        let (also, options, touch) = (self.also.clone(), self.options.clone(), self.touch.map(|size| size.as_u64()));
        Ok(BenchSetup { fast: self.fast.clone(), slow: self.slow.clone(), io, options, also, touch })
    }
}

/// The settings in `-o`, checked here: the daemons would find a mistake only when half of the work is done.
pub(super) fn check_options(options: &[String]) -> Result<Vec<String>, Failure> {
    let settings = MountOptions::sort(options, false).map_err(Failure::usage)?.settings;
    let sources = SettingSources { options: settings.clone(), ..SettingSources::default() };
    Settings::new(sources, None).map_err(Failure::usage)?;
    Ok(settings)
}

/// Two existing directories.
pub(super) fn check_tiers(fast: &Path, slow: &Path) -> Result<(), Failure> {
    let (fast, slow) = (directory("--fast", fast)?, directory("--slow", slow)?);
    match fast == slow {
        false => Ok(()),
        true => {
            let what = format!("--fast and --slow are both {}", fast.shown());
            Err(usage(what, "name a directory on faster storage with --fast"))
        }
    }
}

pub(super) fn mount_name(io: IoPath) -> String {
    format!("mount {}", io.name())
}

/// The same mount with its drain paused.
pub(super) fn paused_name(mount: &str) -> String {
    format!("{mount} paused")
}

/// `cp`, as many at once as named.
pub(super) fn copies_name(streams: usize) -> String {
    if streams == 1 { "cp".to_owned() } else { format!("cp x {streams}") }
}

pub(super) fn usage(what: impl Into<String>, remedy: &str) -> Failure {
    Failure::usage(Error::refused(what, remedy))
}

/// The path without symbolic links.
pub(super) fn directory(option: &str, path: &Path) -> Result<PathBuf, Failure> {
    let unusable = |e: Error| Failure::new(Exit::Usage, format!("{option}: {e}; name an existing directory"));
    let canonical = path.canonicalize().at("find", path.shown()).map_err(unusable)?;
    match canonical.is_dir() {
        true => Ok(canonical),
        false => Err(usage(format!("{option} {} is no directory", path.shown()), "name an existing directory")),
    }
}

fn parse_io(word: &str) -> Result<IoPath, &'static str> {
    IoPath::try_from(word.to_owned())
}

fn parse_also(text: &str) -> Result<(String, PathBuf), &'static str> {
    match text.split_once('=') {
        Some((name, dir)) if !name.trim().is_empty() && !dir.is_empty() => Ok((name.trim().to_owned(), dir.into())),
        _ => Err("write a name for the results and a directory: NAME=DIR"),
    }
}

/// A size above zero.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        Ok(ByteSize(0)) => Err("write a size above 0".to_owned()),
        Ok(ByteSize(size)) if size > 1 << 44 => Err("that is more than 16 TiB".to_owned()),
        Ok(ByteSize(size)) => Ok(size),
        Err(_) => Err("write a number and a unit, as \"600MB\" or \"1GiB\"".to_owned()),
    }
}

/// How long a step of training computes.
pub(super) fn parse_compute(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if time <= COMPUTE_MAX => Ok(time),
        _ => Err("a step computes for a minute at most".to_owned()),
    }
}

/// A size as text: in units in which it is a whole number, if there are any.
pub(super) fn size_text(size: u64) -> String {
    let units =
        [("GiB", 1 << 30), ("GB", 1_000_000_000), ("MiB", 1 << 20), ("MB", 1_000_000), ("KiB", 1 << 10), ("kB", 1_000)];
    let whole = units.iter().find(|(_, unit)| size.is_multiple_of(*unit));
    whole.map_or_else(|| ByteSize(size).to_string(), |(name, unit)| format!("{} {name}", size / unit))
}

/// A file to write the results to.
#[derive(Debug)]
pub(super) struct ResultFile {
    pub(super) path: PathBuf,
    pub(super) kind: ResultFormat,
}

/// By the file's ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultFormat {
    Html,
    Svg,
    Markdown,
    Json,
    Text,
}

pub(super) fn documents(paths: &[PathBuf]) -> Result<Vec<ResultFile>, Failure> {
    let document = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let kind = ResultFormat::of_ending(ending).ok_or_else(|| {
            let what = format!("--output {}: its ending names no format", path.shown());
            usage(what, "end it with .html, .svg, .md, .json or .txt")
        })?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        directory("--output", dir).map(|_| ResultFile { path: path.clone(), kind })
    };
    paths.iter().map(document).collect()
}

impl ResultFormat {
    fn of_ending(ending: &str) -> Option<ResultFormat> {
        match ending {
            "html" | "htm" => Some(ResultFormat::Html),
            "svg" => Some(ResultFormat::Svg),
            "md" => Some(ResultFormat::Markdown),
            "json" => Some(ResultFormat::Json),
            "txt" => Some(ResultFormat::Text),
            _ => None,
        }
    }

    pub(super) fn render(self, results: &Results) -> String {
        match self {
            ResultFormat::Html => page::report(results),
            ResultFormat::Svg => page::pictures(results),
            ResultFormat::Markdown => markdown::report(results),
            ResultFormat::Json => results.json(),
            ResultFormat::Text => text::report(results, 120),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_as_they_were_written() {
        for text in ["600 MB", "1 GiB", "112 KiB", "12 kB", "4 KiB"] {
            assert_eq!(size_text(parse_size(text).expect("a size")), text);
        }
        assert!(parse_size("0").is_err() && parse_size("x").is_err() && parse_size("100TiB").is_err());
    }

    #[test]
    fn other_places_have_a_name_and_a_directory() {
        assert_eq!(parse_also("moose=/mnt/x=y"), Ok(("moose".to_owned(), "/mnt/x=y".into())));
        for wrong in ["/mnt", "=/mnt", "moose="] {
            assert!(parse_also(wrong).is_err(), "{wrong}");
        }
    }
}

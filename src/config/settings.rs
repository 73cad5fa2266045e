//! The configuration in force: where each value came from, and what a reload changes.
//!
//! Layers, each overriding the one before: defaults, file, environment, options, flags. A reload reads the file again
//! and puts the other layers over it, so that the command line still wins.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::PathBuf;

use super::values::{Config, KEYS, ReloadEffect, check_log, is_job, one_line};
use crate::error::{Error, Result};
use crate::json;
use crate::path::Show as _;

/// Which layer a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Origin {
    Default,
    File,
    Environment,
    /// `-o key=value`, or a flag.
    Option,
    /// The file, as read by a reload.
    Reload,
}

/// The sources of a mount's settings, besides the text of its file.
#[derive(Clone, Debug, Default)]
pub struct SettingSources {
    /// Absolute: the daemon changes its working directory.
    pub file: Option<PathBuf>,
    /// The value of `DLIO_LOG`.
    pub log: Option<String>,
    /// The value of `SLURM_JOB_ID`.
    pub job: Option<String>,
    /// As `key=value`.
    pub options: Vec<String>,
    pub mountpoint: Option<PathBuf>,
    pub fast: Option<PathBuf>,
    pub slow: Option<PathBuf>,
    pub log_file: Option<PathBuf>,
}

/// A valid configuration, and where each of its values came from.
#[derive(Clone, Debug)]
pub struct Settings {
    sources: SettingSources,
    /// Without the flags, whose paths need not be UTF-8.
    layered: Config,
    origins: BTreeMap<String, Origin>,
}

/// What a reload did. Keys, in the order of [`KEYS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub changed: Vec<&'static str>,
    /// Keys whose value in the file differs from the one in force, which stays.
    pub needs_remount: Vec<&'static str>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.changed.is_empty() {
            true => f.write_str("nothing changed")?,
            false => write!(f, "changed: {}", self.changed.join(", "))?,
        }
        match self.needs_remount.is_empty() {
            true => Ok(()),
            false => write!(f, "; needs a remount: {}", self.needs_remount.join(", ")),
        }
    }
}

impl Settings {
    /// Combines the layers and validates the result. `text` is the content of the file.
    pub fn new(sources: SettingSources, text: Option<&str>) -> Result<Settings> {
        let mut layered = Config::default();
        let mut origins = BTreeMap::new();
        if let (Some(file), Some(text)) = (&sources.file, text) {
            let keys = layered.apply_toml(text, &file.shown().to_string())?;
            origins.extend(keys.into_iter().map(|key| (key, Origin::File)));
        }
        if let Some(log) = &sources.log {
            check_log(log, &format!("DLIO_LOG={log}"))?;
            layered.log.clone_from(log);
            origins.insert("log".to_owned(), Origin::Environment);
        }
        // Another scheduler's job may have a name that is invalid here, and it was not meant for us.
        if let Some(job) = sources.job.as_ref().filter(|job| is_job(job)) {
            layered.job = Some(job.clone());
            origins.insert("job".to_owned(), Origin::Environment);
        }
        for option in &sources.options {
            origins.insert(layered.apply_option(option)?, Origin::Option);
        }
        let settings = Settings { sources, layered, origins };
        settings.config().validate()?;
        Ok(settings)
    }

    /// The configuration in force.
    pub fn config(&self) -> Config {
        let mut config = self.layered.clone();
        for (_, flag, value) in flags(&self.sources, &mut config) {
            if flag.is_some() {
                value.clone_from(flag);
            }
        }
        config
    }

    /// The file that a reload reads.
    pub fn file(&self) -> Option<&PathBuf> {
        self.sources.file.as_ref()
    }

    pub fn origin(&self, key: &str) -> Origin {
        if self.is_flag(key) {
            return Origin::Option;
        }
        self.origins.get(key).copied().unwrap_or(Origin::Default)
    }

    /// The settings with `text` as the file's content, and the differences. Errors leave everything as it is.
    pub fn reloaded(&self, text: &str) -> Result<(Settings, Reloaded)> {
        let wanted = Settings::new(self.sources.clone(), Some(text))?;
        let table = |config: &Config| {
            toml::Table::try_from(config).map_err(|e| Error::refused(one_line(&e.to_string()), "report this"))
        };
        let (mut now, mut new) = (table(&self.layered)?, table(&wanted.layered)?);
        let (mut origins, mut reloaded) = (self.origins.clone(), Reloaded::default());
        for (key, change) in KEYS {
            if now.get(key) == new.get(key) || wanted.is_flag(key) {
                continue;
            }
            if change == ReloadEffect::Remount {
                reloaded.needs_remount.push(key);
                continue;
            }
            reloaded.changed.push(key);
            origins.insert(key.to_owned(), Origin::Reload);
            match new.remove(key) {
                Some(value) => drop(now.insert(key.to_owned(), value)),
                None => drop(now.remove(key)),
            }
        }
        let layered: Config =
            now.try_into().map_err(|e: toml::de::Error| Error::refused(one_line(e.message()), "report this"))?;
        // The result mixes new values with old ones.
        layered.validate()?;
        Ok((Settings { sources: self.sources.clone(), layered, origins }, reloaded))
    }

    /// The settings with these options, `key=value`, behind those of the mount, and the differences. Errors leave
    /// everything as it is.
    pub fn changed(&self, options: &[String]) -> Result<(Settings, Reloaded)> {
        let mut changed = self.clone();
        let mut keys = Vec::new();
        for option in options {
            let key = changed.layered.apply_option(option)?;
            if let Some((key, _)) =
                KEYS.iter().find(|(known, change)| *known == key && *change == ReloadEffect::Remount)
            {
                let what = format!("{key} does not change while mounted");
                return Err(Error::refused(what, "unmount, and mount with the new value"));
            }
            changed.origins.insert(key.clone(), Origin::Option);
            keys.push(key);
        }
        changed.layered.validate()?;
        // A reload of the file puts them over it again.
        changed.sources.options.extend_from_slice(options);
        let known = KEYS.iter().map(|(key, _)| *key).filter(|key| keys.iter().any(|changed| changed == key));
        Ok((changed, Reloaded { changed: known.collect(), needs_remount: Vec::new() }))
    }

    fn is_flag(&self, key: &str) -> bool {
        flags(&self.sources, &mut Config::default()).iter().any(|(name, flag, _)| *name == key && flag.is_some())
    }

    /// The text of `.dlio/config`: a configuration file with a remark on each line. Ends with a newline.
    pub fn text(&self) -> String {
        let mut config = self.config();
        for path in [&mut config.mountpoint, &mut config.fast, &mut config.slow, &mut config.log_file] {
            // Shown lossily: TOML is UTF-8.
            *path = path.take().map(|path| json::lossy(&path).into());
        }
        let table = toml::Table::try_from(&config).unwrap_or_default();
        let mut out = match self.file() {
            Some(file) => {
                format!("# In force at this mount. dlio-fs reload reads {} again.\n", file.shown())
            }
            None => "# In force at this mount, which has no configuration file.\n".to_owned(),
        };
        for (key, change) in KEYS {
            let line = match table.get(key) {
                // As JSON: in TOML a text with a line break has several lines.
                Some(toml::Value::String(text)) => format!("{key} = {}", json::string(text)),
                Some(value) => format!("{key} = {value}"),
                None => format!("# {key} is not set"),
            };
            let remount = if change == ReloadEffect::Remount { "; a change needs a remount" } else { "" };
            // Writing to a String cannot fail.
            writeln!(out, "{line:<40} # {}{remount}", self.origin(key)).expect("formatting into memory");
        }
        json::plain(out)
    }
}

/// The keys that have flags: name, the flag's value, and its place in the configuration.
fn flags<'a>(
    sources: &'a SettingSources,
    config: &'a mut Config,
) -> [(&'static str, &'a Option<PathBuf>, &'a mut Option<PathBuf>); 4] {
    [
        ("mountpoint", &sources.mountpoint, &mut config.mountpoint),
        ("fast", &sources.fast, &mut config.fast),
        ("slow", &sources.slow, &mut config.slow),
        ("log_file", &sources.log_file, &mut config.log_file),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sources() -> SettingSources {
        SettingSources {
            file: Some("/etc/dlio.toml".into()),
            options: vec!["high=90%".into()],
            mountpoint: Some("/mnt/train".into()),
            slow: Some("/hdd".into()),
            ..SettingSources::default()
        }
    }

    fn settings(text: &str) -> Settings {
        Settings::new(sources(), Some(text)).expect("valid")
    }

    #[test]
    fn each_layer_overrides_the_one_before() {
        let settings = settings("settle = \"3s\"\nhigh = \"80%\"\nslow = \"/other\"\nfast = \"/optane\"");
        let config = settings.config();
        assert_eq!((config.settle, config.high), (Duration::from_secs(3), 0.9));
        assert_eq!((config.slow, config.fast), (Some("/hdd".into()), Some("/optane".into())));
        let origins = ["live_after", "settle", "high", "slow", "fast"].map(|key| settings.origin(key));
        assert_eq!(origins, [Origin::Default, Origin::File, Origin::Option, Origin::Option, Origin::File]);
        let from_environment = SettingSources { log: Some("debug".into()), ..sources() };
        let settings = Settings::new(from_environment, Some("log = \"warn\"")).expect("valid");
        assert_eq!((settings.config().log.as_str(), settings.origin("log")), ("debug", Origin::Environment));
    }

    #[test]
    fn a_reload_changes_what_can_change_and_names_the_rest() {
        let before = settings("settle = \"3s\"\nballast = \"128MiB\"\nfast = \"/optane\"");
        let text = "live_after = \"2min\"\nhigh = \"75%\"\nslow = \"/x\"\nfast = \"/y\"\nmax_pending = 5000";
        let (after, reloaded) = before.reloaded(text).expect("valid");
        assert_eq!(reloaded.changed, ["settle", "live_after", "max_pending"]);
        assert_eq!(reloaded.needs_remount, ["fast", "ballast"], "an option or a flag still overrides the file");
        let said = "changed: settle, live_after, max_pending; needs a remount: fast, ballast";
        assert_eq!(reloaded.to_string(), said);
        let config = after.config();
        assert_eq!((config.settle, config.live_after), (Duration::from_secs(1), Duration::from_secs(120)));
        assert_eq!((config.ballast, config.fast, config.high), (128 << 20, Some("/optane".into()), 0.9));
        assert_eq!((after.origin("settle"), after.origin("ballast")), (Origin::Reload, Origin::File));

        let (again, reloaded) = after.reloaded(text).expect("valid");
        assert_eq!((reloaded.changed.len(), reloaded.needs_remount), (0, vec!["fast", "ballast"]));
        assert_eq!(again.origin("settle"), Origin::Reload);
    }

    #[test]
    fn an_option_changes_a_mount_that_has_no_file_and_stays() {
        let before = Settings::new(SettingSources { file: None, ..sources() }, None).expect("valid");
        let (after, reloaded) = before.changed(&["high=80%".into(), "settle=5s".into()]).expect("valid");
        assert_eq!(reloaded.to_string(), "changed: settle, high");
        assert_eq!((after.config().high, after.config().settle), (0.8, Duration::from_secs(5)));
        assert_eq!(after.origin("settle"), Origin::Option);
        let (again, _) = after.reloaded("high = \"70%\"").expect("valid");
        assert_eq!(again.config().high, 0.8, "as an option of the mount");
        for (option, part) in
            [("ballast=1GiB", "ballast does not change while mounted"), ("high", "no value"), ("low=95%", "low = 95%")]
        {
            let text = after.changed(&[option.into()]).expect_err("must be refused").to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_broken_file_is_refused_with_its_line() {
        let before = settings("");
        for (text, part) in [
            ("\nsettle = \"soon\"", "/etc/dlio.toml, line 2: settle = \"soon\""),
            ("settle = ", "/etc/dlio.toml, line 1"),
            ("low = \"95%\"", "low = 95%"),
            ("setle = 1", "did you mean \"settle\"?"),
        ] {
            let text = before.reloaded(text).expect_err("must be refused").to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_text_is_a_configuration_with_the_origin_of_each_value() {
        let settings = settings("settle = \"3s\"");
        let text = settings.text();
        let mut read = Config::default();
        read.apply_toml(&text, "config").expect("it is a configuration file");
        assert_eq!(read, settings.config());
        let line = |key: &str| text.lines().find(|line| line.starts_with(key)).map(str::to_owned);
        assert_eq!(line("settle =").as_deref(), Some("settle = \"3s\"                            # file"));
        assert!(line("slow =").is_some_and(|line| line.ends_with("# option; a change needs a remount")), "{text}");
        assert_eq!(text.lines().count(), 1 + KEYS.len());
    }

    #[test]
    fn flags_may_hold_any_bytes() {
        use std::os::unix::ffi::OsStrExt;
        let fast: PathBuf = std::ffi::OsStr::from_bytes(b"/fast\xff").into();
        let settings = Settings::new(SettingSources { fast: Some(fast.clone()), ..sources() }, None).expect("valid");
        assert_eq!(settings.config().fast, Some(fast.clone()));
        assert!(settings.text().contains("fast = \"/fast\u{fffd}\""));
        let (settings, _) = settings.reloaded("settle = \"2s\"").expect("valid");
        assert_eq!(settings.config().fast, Some(fast));
    }
}

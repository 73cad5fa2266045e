//! Settings for some files only: the first rule whose pattern matches a file's path, else the mount's own value.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::{Candidate, GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};

use super::io_path::IoPath;
use crate::error::{Error, Result};

/// One entry of `rules`. For settings it leaves out, the mount's own value applies, whatever later rules say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathRule {
    /// A pattern for paths from the mount's root: `*` and `?` stay within a name, `**` spans several.
    pub path: String,
    /// How its reads and writes travel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoPath>,
    /// `false`: writes go directly to the slow tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absorb: Option<bool>,
    /// Whether files that are read are promoted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promote: Option<bool>,
    /// Whether the files stay on the fast tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<bool>,
    /// What an `fsync` waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsync: Option<Durable>,
    /// What is compared before its copy on the slow tier is published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// Which of its versions are copied to the slow tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_policy: Option<DrainPolicy>,
}

/// Which versions of a file are copied to the slow tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPolicy {
    /// Each one.
    #[default]
    All,
    /// All but those whose name was replaced or removed before their turn to be copied.
    Newest,
}

/// What is compared before a copy on the slow tier is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Its length, owner and mode.
    #[default]
    Length,
    /// Its bytes, too: they are read back.
    Bytes,
}

/// Which changes wait when the slow tier is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullSlow {
    /// All changes behind the one that does not fit.
    #[default]
    Hold,
    /// All except removals of files, which make room.
    RemoveFirst,
}

/// What a daemon does at SIGTERM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTerm {
    /// Unmounts at once; files that only the fast tier has stay there for the next mount.
    #[default]
    Leave,
    /// Serves until everything is on the slow tier, or a second signal comes.
    Drain,
}

/// Where something is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durable {
    /// D1.
    Fast,
    /// D2.
    Slow,
}

/// Matches paths from the mount's root: `*` and `?` stay within a name, `**` spans several.
#[derive(Clone, derive_more::Debug)]
#[debug("{:?}", self.text())]
pub struct Pattern(GlobMatcher);

impl Pattern {
    /// A leading slash makes no difference. Errors: why it is not a pattern.
    pub fn new(text: &str) -> Result<Pattern, String> {
        let glob =
            GlobBuilder::new(text.trim_start_matches('/')).literal_separator(true).empty_alternates(true).build();
        glob.map(|glob| Pattern(glob.compile_matcher())).map_err(|e| e.kind().to_string())
    }

    pub fn text(&self) -> &str {
        self.0.glob().glob()
    }

    pub fn fits(&self, path: &[u8]) -> bool {
        self.0.is_match(OsStr::from_bytes(path))
    }

    /// The directory, or the file, that all matching paths are at or below.
    pub fn root(&self) -> &str {
        let text = self.text();
        let Some((plain, _)) = text.split_once(['*', '?', '[', '{', '\\']) else { return text };
        plain.rsplit_once('/').map_or("", |(above, _)| above)
    }
}

/// The rules of one mount, compiled. Paths begin at the mount's root, with or without a slash; a `path` function is
/// called only if some rule has the setting.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<(Pattern, PathRule)>,
    io: IoPath,
    promote: bool,
    verify: Verify,
    drain_policy: DrainPolicy,
}

impl Rules {
    /// The mount's own values apply where no rule has the setting. Errors: an invalid pattern, with its rule.
    pub(super) fn of(
        rules: &[PathRule],
        (io, promote): (IoPath, bool),
        (verify, drain_policy): (Verify, DrainPolicy),
    ) -> Result<Rules> {
        let rules = rules.iter().map(|rule| {
            let pattern = Pattern::new(&rule.path).map_err(|why| {
                let what = format!("rules: path = {:?}: {why}", rule.path);
                Error::refused(what, "write a pattern such as \"data/**\" or \"*.rec\"")
            })?;
            Ok((pattern, rule.clone()))
        });
        let rules = rules.collect::<Result<_>>()?;
        Ok(Rules { rules, io, promote, verify, drain_policy })
    }

    /// The I/O path of files without a rule for it.
    pub fn io_otherwise(&self) -> IoPath {
        self.io
    }

    /// A file's I/O path.
    pub fn io<P: AsRef<[u8]>>(&self, path: impl FnOnce() -> Option<P>) -> IoPath {
        self.word(path, |rule| rule.io).unwrap_or(self.io)
    }

    /// Whether any file may take this path.
    pub fn uses_io(&self, path: IoPath) -> bool {
        self.io == path || self.rules.iter().any(|(_, rule)| rule.io == Some(path))
    }

    /// Whether writes to a file go to the fast tier.
    pub fn absorbs<P: AsRef<[u8]>>(&self, path: impl FnOnce() -> Option<P>) -> bool {
        self.word(path, |rule| rule.absorb).unwrap_or(true)
    }

    /// Whether files that are read are promoted.
    pub fn promotes<P: AsRef<[u8]>>(&self, path: impl FnOnce() -> Option<P>) -> bool {
        self.word(path, |rule| rule.promote).unwrap_or(self.promote)
    }

    /// Whether any file is promoted.
    pub fn promotes_any(&self) -> bool {
        self.promote || self.rules.iter().any(|(_, rule)| rule.promote == Some(true))
    }

    /// Whether a file stays on the fast tier.
    pub fn pins<P: AsRef<[u8]>>(&self, path: impl FnOnce() -> Option<P>) -> bool {
        self.word(path, |rule| rule.pin).unwrap_or(false)
    }

    /// Whether any file does.
    pub fn pins_any(&self) -> bool {
        self.rules.iter().any(|(_, rule)| rule.pin == Some(true))
    }

    /// The patterns of pinned files.
    pub fn pinned(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().filter(|(_, rule)| rule.pin == Some(true)).map(|(pattern, _)| pattern.text())
    }

    /// Whether an `fsync` of a file waits until the slow tier has it.
    pub fn syncs_to_slow<P: AsRef<[u8]>>(&self, path: impl FnOnce() -> Option<P>) -> bool {
        self.word(path, |rule| rule.fsync) == Some(Durable::Slow)
    }

    /// Whether the bytes of a file's copy on the slow tier are compared.
    pub fn reads_back<P: AsRef<[u8]>>(&self, path: impl FnOnce() -> Option<P>) -> bool {
        self.word(path, |rule| rule.verify).unwrap_or(self.verify) == Verify::Bytes
    }

    /// Whether a version is skipped if its name was replaced or removed before its turn to be copied.
    pub fn drains_newest<P: AsRef<[u8]>>(&self, path: impl FnOnce() -> Option<P>) -> bool {
        self.word(path, |rule| rule.drain_policy).unwrap_or(self.drain_policy) == DrainPolicy::Newest
    }

    /// The value of one setting in the first matching rule. No rule matches a file without a path, that is, a removed
    /// one.
    fn word<P: AsRef<[u8]>, T>(
        &self,
        path: impl FnOnce() -> Option<P>,
        of: impl Fn(&PathRule) -> Option<T>,
    ) -> Option<T> {
        if !self.rules.iter().any(|(_, rule)| of(rule).is_some()) {
            return None;
        }
        let path = path()?;
        let path = path.as_ref();
        let candidate = Candidate::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        let (_, rule) = self.rules.iter().find(|(pattern, _)| pattern.0.is_match_candidate(&candidate))?;
        of(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Parsed from configuration text.
    fn rules(text: &str) -> Result<Rules> {
        let config: Config = toml::from_str(text).expect("a configuration");
        Rules::new(&config)
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = rules(
            r#"rules = [
                {path="data/raw/**"}, {path="/data/**", io="passthrough", promote=true, pin=true},
                {path="*.csv", io="cached", absorb=false}, {path="data/**", fsync="slow"}, {path="final{,/**}", fsync="slow"},
            ]"#,
        );
        let rules = rules.expect("good patterns");
        for (path, io, [absorbs, promotes, pins, syncs]) in [
            ("/data/raw/a/b.rec", IoPath::Exact, [true, false, false, false]),
            ("data/train/0.rec", IoPath::Passthrough, [true, true, true, false]),
            ("log.csv", IoPath::Cached, [false, false, false, false]),
            ("runs/log.csv", IoPath::Exact, [true, false, false, false]),
            ("database", IoPath::Exact, [true, false, false, false]),
            ("final", IoPath::Exact, [true, false, false, true]),
            ("final/model", IoPath::Exact, [true, false, false, true]),
        ] {
            let named = || Some(path);
            let said = [rules.absorbs(named), rules.promotes(named), rules.pins(named), rules.syncs_to_slow(named)];
            assert_eq!((rules.io(named), said), (io, [absorbs, promotes, pins, syncs]), "{path}");
        }
        assert!(rules.uses_io(IoPath::Cached) && rules.promotes_any());
        assert!(!rules.pins(|| None::<&[u8]>), "a file that was removed");
        let rules =
            self::rules("verify = \"bytes\"\nrules = [{path=\"logs/**\", verify=\"length\"}]").expect("a pattern");
        assert!(rules.reads_back(|| Some("model.pt")) && !rules.reads_back(|| Some("logs/a")));
        let text = "drain_policy = \"newest\"\nrules = [{path=\"best/**\", drain_policy=\"all\"}]";
        let rules = self::rules(text).expect("a pattern");
        assert!(rules.drains_newest(|| Some("last.ckpt")) && !rules.drains_newest(|| Some("best/a")));
        assert!(!Rules::default().drains_newest(|| Some("last.ckpt")), "each version is copied by default");
    }

    #[test]
    fn without_a_word_the_mount_decides_and_no_path_is_asked_for() {
        let rules =
            rules("io = \"cached\"\npromote = true\nrules = [{path=\"**\", fsync=\"fast\"}]").expect("a pattern");
        let nobody = || -> Option<&[u8]> { unreachable!("no rule has a word on it") };
        assert_eq!((rules.io(nobody), rules.io_otherwise()), (IoPath::Cached, IoPath::Cached));
        assert!(rules.promotes(nobody) && rules.absorbs(nobody) && !rules.pins(nobody));
        assert!(!rules.syncs_to_slow(|| Some(b"x\xff")));
        assert!(!rules.uses_io(IoPath::Exact));
    }

    #[test]
    fn a_pattern_knows_where_to_look() {
        let root = |text: &str| Pattern::new(text).expect("a pattern").root().to_owned();
        assert_eq!(root("/data/train/**/*.jpg"), "data/train");
        assert_eq!(root("data/tr*"), "data");
        assert_eq!(root("*.rec"), "");
        assert_eq!(root("data/one.rec"), "data/one.rec");
        let pattern = Pattern::new("data/*.rec").expect("a pattern");
        assert!(pattern.fits(b"data/a.rec") && !pattern.fits(b"data/b/a.rec") && !pattern.fits(b"a.rec"));
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let text = rules("rules = [{path=\"a[\", pin=true}]").expect_err("not a pattern").to_string();
        assert!(text.contains("rules: path = \"a[\""), "{text}");
    }
}

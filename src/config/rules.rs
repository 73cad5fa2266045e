//! Which I/O path a file takes: the first rule whose pattern fits its path, else the mount's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::{Candidate, GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};

use super::{Config, IoPath};
use crate::error::{Error, Result};

/// One entry of `io_rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoRule {
    /// A pattern for paths from the mount's root: `*` and `?` stay within a name, `**` goes over several.
    pub path: String,
    pub io: IoPath,
}

/// Fits paths from the mount's root: `*` and `?` stay within a name, `**` goes over several.
#[derive(Clone, Debug)]
pub struct Pattern(GlobMatcher);

impl Pattern {
    /// A slash at its beginning makes no difference. Errors: why it is none.
    pub fn new(text: &str) -> Result<Pattern, String> {
        let glob = GlobBuilder::new(text.trim_start_matches('/')).literal_separator(true).build();
        glob.map(|glob| Pattern(glob.compile_matcher())).map_err(|e| e.kind().to_string())
    }

    pub fn text(&self) -> &str {
        self.0.glob().glob()
    }

    pub fn fits(&self, path: &[u8]) -> bool {
        self.0.is_match(OsStr::from_bytes(path))
    }

    /// The directory, or the file, below which all that fits lies.
    pub fn root(&self) -> &str {
        let text = self.text();
        let Some(wildcard) = text.find(['*', '?', '[', '{', '\\']) else { return text };
        text[..wildcard].rfind('/').map_or("", |slash| &text[..slash])
    }
}

/// The rules of one mount, ready to be asked.
#[derive(Clone, Debug)]
pub struct IoRules {
    rules: Vec<(Pattern, IoPath)>,
    otherwise: IoPath,
}

impl IoRules {
    /// Errors: a pattern that is none, with its rule.
    pub fn new(config: &Config) -> Result<IoRules> {
        let rules = config.io_rules.iter().map(|rule| {
            let pattern = Pattern::new(&rule.path).map_err(|why| {
                let what = format!("io_rules: path = {:?}: {why}", rule.path);
                Error::refused(what, "write a pattern such as \"data/**\" or \"*.rec\"")
            })?;
            Ok((pattern, rule.io))
        });
        Ok(IoRules { rules: rules.collect::<Result<_>>()?, otherwise: config.io })
    }

    /// The mount's own.
    pub fn otherwise(&self) -> IoPath {
        self.otherwise
    }

    /// Whether a file's path decides.
    pub fn by_path(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The I/O path of the file at `path`, which begins at the mount's root, with or without a slash.
    pub fn choose(&self, path: &[u8]) -> IoPath {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let candidate = Candidate::new(OsStr::from_bytes(path));
        let fitting = self.rules.iter().find(|(pattern, _)| pattern.0.is_match_candidate(&candidate));
        fitting.map_or(self.otherwise, |(_, io)| *io)
    }

    /// Whether any file may take this path.
    pub fn uses(&self, path: IoPath) -> bool {
        self.otherwise == path || self.rules.iter().any(|(_, io)| *io == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(io: IoPath, rules: &[(&str, IoPath)]) -> Result<IoRules> {
        let io_rules = rules.iter().map(|(path, io)| IoRule { path: (*path).to_owned(), io: *io }).collect();
        IoRules::new(&Config { io, io_rules, ..Config::default() })
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = rules(
            IoPath::Exact,
            &[("data/raw/**", IoPath::Exact), ("/data/**", IoPath::Passthrough), ("*.csv", IoPath::Cached)],
        );
        let rules = rules.expect("good patterns");
        for (path, io) in [
            ("/data/raw/a/b.rec", IoPath::Exact),
            ("data/train/0.rec", IoPath::Passthrough),
            ("log.csv", IoPath::Cached),
            ("runs/log.csv", IoPath::Exact),
            ("database", IoPath::Exact),
        ] {
            assert_eq!(rules.choose(path.as_bytes()), io, "{path}");
        }
        assert!(rules.uses(IoPath::Cached) && rules.by_path());
    }

    #[test]
    fn without_rules_the_mount_decides() {
        let rules = rules(IoPath::Cached, &[]).expect("no pattern");
        assert_eq!(rules.choose(b"x\xff"), IoPath::Cached);
        assert!(!rules.uses(IoPath::Exact) && !rules.by_path());
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
        let text = rules(IoPath::Exact, &[("a[", IoPath::Exact)]).expect_err("not a pattern").to_string();
        assert!(text.contains("io_rules: path = \"a[\""), "{text}");
    }
}

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

/// The rules of one mount, ready to be asked.
#[derive(Clone, Debug)]
pub struct IoRules {
    rules: Vec<(GlobMatcher, IoPath)>,
    otherwise: IoPath,
}

impl IoRules {
    /// Errors: a pattern that is none, with its rule.
    pub fn new(config: &Config) -> Result<IoRules> {
        let rules = config.io_rules.iter().map(|rule| {
            let glob = GlobBuilder::new(rule.path.trim_start_matches('/')).literal_separator(true).build();
            let glob = glob.map_err(|e| {
                let what = format!("io_rules: path = {:?}: {}", rule.path, e.kind());
                Error::refused(what, "write a pattern such as \"data/**\" or \"*.rec\"")
            })?;
            Ok((glob.compile_matcher(), rule.io))
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
        let fitting = self.rules.iter().find(|(glob, _)| glob.is_match_candidate(&candidate));
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
    fn a_bad_pattern_is_named() {
        let text = rules(IoPath::Exact, &[("a[", IoPath::Exact)]).expect_err("not a pattern").to_string();
        assert!(text.contains("io_rules: path = \"a[\""), "{text}");
    }
}

//! The words after `-o`: settings of the daemon, flags of the mount, and words of fstab for other programs.

use std::path::PathBuf;

use crate::config::KEYS;
use crate::error::Error;
use crate::mount::{self, MountFlags};

/// Words of fstab for mount(8), the boot or the service manager, and flags that are always on or have no effect here:
/// access times are the slow tier's, and who may use the mount depends on who mounts.
#[rustfmt::skip]
const FOR_OTHERS: [&str; 28] = [
    "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup",
    "nofail", "fail", "_netdev", "_rnetdev", "async", "diratime", "nodiratime",
    "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime", "silent", "loud",
    "allow_other", "default_permissions",
];
/// The same as prefixes, followed by a value or another ending.
const FOR_OTHERS_PREFIXES: [&str; 7] = ["x-", "X-", "comment=", "user=", "uhelper=", "helper=", "nofail="];

/// All `-o` arguments, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// `key=value` for the configuration.
    pub settings: Vec<String>,
    pub(super) flags: Vec<&'static str>,
    /// Whether an existing mount gets these flags.
    pub(super) remount: bool,
    /// The flags for `mount -o remount`, set or cleared.
    pub(super) vfs: Vec<String>,
    pub(super) config: Option<PathBuf>,
}

impl MountOptions {
    /// Sorts comma-separated lists; `\,` is a comma inside a value, and so is one in square brackets. With `sloppy`, as
    /// in mount(8), unknown words are left out.
    pub fn sort(lists: &[String], sloppy: bool) -> Result<MountOptions, Error> {
        let mut options = MountOptions::default();
        for word in lists.iter().flat_map(|list| split(list)).filter(|word| !word.is_empty()) {
            options.add(word, sloppy)?;
        }
        Ok(options)
    }

    pub(super) fn flags(&self) -> MountFlags {
        self.flags.iter().filter_map(|name| mount::flag(name)).collect()
    }

    fn add(&mut self, word: String, sloppy: bool) -> Result<(), Error> {
        if let Some(name) = mount::flag(&word).and_then(|flag| mount::flag_names(flag).next()) {
            self.flags.push(name);
            self.vfs.push(word);
        } else if word == "remount" {
            self.remount = true;
        } else if matches!(word.as_str(), "sync" | "dirsync") {
            let remedy = "leave it out; fsync is durable on the fast tier, and dlio-fs sync waits for the slow one";
            return Err(Error::refused(format!("-o {word} is not supported"), remedy));
        } else if matches!(word.as_str(), "rw" | "suid" | "dev" | "exec" | "atime") {
            // Of two contradicting flags the later counts.
            let opposite = if word == "rw" { "ro".to_owned() } else { format!("no{word}") };
            self.flags.retain(|flag| *flag != opposite);
            self.vfs.push(word);
        } else if let Some(file) = word.strip_prefix("config=") {
            self.config = Some(file.into());
        } else if is_setting(&word) || !(sloppy || is_for_others(&word)) {
            self.settings.push(word);
        }
        Ok(())
    }
}

fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(key, _)| KEYS.iter().any(|(known, _)| *known == key))
}

fn is_for_others(word: &str) -> bool {
    FOR_OTHERS.contains(&word) || FOR_OTHERS_PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

fn split(list: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut characters = list.chars().peekable();
    let mut brackets = 0_u32;
    while let Some(character) = characters.next() {
        match character {
            '[' => brackets += 1,
            ']' => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        match character {
            ',' if brackets == 0 => words.push(std::mem::take(&mut word)),
            '\\' if characters.next_if_eq(&',').is_some() => word.push(','),
            _ => word.push(character),
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(list: &str) -> MountOptions {
        MountOptions::sort(&[list.to_owned()], false).expect("fine")
    }

    #[test]
    fn a_line_of_fstab_is_sorted_out() {
        let options = sorted(
            "rw,nosuid,nodev,noauto,nofail,_netdev,user,user=root,x-systemd.mount-timeout=10min,fast=/a\\,b,settle=2s",
        );
        assert_eq!(options.settings, ["fast=/a,b", "settle=2s"]);
        assert_eq!(options.flags, ["nosuid", "nodev"]);
        assert_eq!(options.flags(), MountFlags::MOUNT_ATTR_NOSUID | MountFlags::MOUNT_ATTR_NODEV);
        assert!(!options.remount && options.config.is_none());
    }

    #[test]
    fn the_later_of_two_opposites_counts() {
        assert_eq!(sorted("ro,rw").flags, [""; 0]);
        assert_eq!(sorted("rw,ro").flags, ["ro"]);
        assert_eq!(sorted("noexec,exec,nosuid").flags, ["nosuid"]);
        assert_eq!(sorted("remount,rw,fast=/x").vfs, ["rw"]);
    }

    #[test]
    fn what_cannot_be_kept_is_refused_and_what_nobody_knows_is_passed_on() {
        let refused = MountOptions::sort(&["fast=/x,sync".to_owned()], false).expect_err("not supported").to_string();
        assert!(refused.contains("-o sync"), "{refused}");
        assert_eq!(sorted("fats=/x").settings, ["fats=/x"], "the configuration names the nearest key");
        assert_eq!(MountOptions::sort(&["fats=/x,whim".to_owned()], true).expect("sloppy").settings, [""; 0]);
    }
}

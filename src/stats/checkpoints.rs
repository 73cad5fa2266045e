//! The checkpoints of a mount, as `.dlio/checkpoints` shows them. Pure: filled by the engine, a string out.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::render::{bytes, count, seconds};
use crate::json;
use crate::path::readable;

/// A burst of writes that the engine takes for a checkpoint (`src/tiers/checkpoints/bursts.rs`). Moments are seconds
/// since the mount was made, negative before it; sizes are bytes; the JSON keys are the field names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// From 1 on; not every number belongs to a checkpoint.
    pub number: u64,
    /// According to its names.
    pub step: Option<u64>,
    /// From the mount's root, escaped: its directory, or its file.
    #[serde(flatten, with = "json::path")]
    pub path: String,
    pub files: u64,
    pub bytes: u64,
    /// The first open of one of its files, and the end of the last close or fsync: the program waited that long.
    pub began: f64,
    pub absorbed: f64,
    /// When all of it was durable on the fast tier (D1), and published on the slow one (D2).
    pub durable: Option<f64>,
    pub drained: Option<f64>,
    /// In a fleet: all of it, whichever member wrote it, has been on the slow tier since then at the latest.
    pub elsewhere: Option<f64>,
    /// Nobody writes to it any more.
    pub complete: bool,
    /// All its files exist, and none is being rewritten.
    pub whole: bool,
    /// An operator has set part of it aside: it will not reach the slow tier as a whole.
    pub incomplete: bool,
    /// All of it is on the slow tier, under the current names.
    pub safe: bool,
    /// `dlio-fs verify` has compared both copies of each of its files.
    pub verified: bool,
    /// The newest one that is complete and whole.
    pub current: bool,
}

impl Checkpoint {
    /// The word for it in lists.
    pub fn state(&self) -> &'static str {
        match self {
            Checkpoint { incomplete: true, .. } => "incomplete",
            Checkpoint { whole: false, .. } => "replaced",
            Checkpoint { complete: false, .. } => "writing",
            Checkpoint { safe: false, .. } => "dirty",
            Checkpoint { verified: false, .. } => "safe",
            Checkpoint { verified: true, .. } => "verified",
        }
    }
}

/// The JSON of `.dlio/checkpoints`. `mounted`: since 1970. Ends with a newline.
pub fn json(checkpoints: &[Checkpoint], mounted: Duration) -> String {
    let at = |seconds: f64| json::moment(mounted, seconds);
    let dated = |one: &Checkpoint| DatedCheckpoint {
        began_at: at(one.began),
        absorbed_at: at(one.absorbed),
        durable_at: one.durable.and_then(at),
        drained_at: one.drained.and_then(at),
        elsewhere_at: one.elsewhere.and_then(at),
        checkpoint: one.clone(),
    };
    let all: Vec<DatedCheckpoint> = checkpoints.iter().map(dated).collect();
    json::document(&serde_json::json!({ "checkpoints": all }))
}

/// A checkpoint with its moments as dates.
#[derive(Serialize)]
struct DatedCheckpoint {
    #[serde(flatten)]
    checkpoint: Checkpoint,
    began_at: Option<String>,
    absorbed_at: Option<String>,
    durable_at: Option<String>,
    drained_at: Option<String>,
    elsewhere_at: Option<String>,
}

/// The text of `.dlio/checkpoints`. Ends with a newline. `now`: on the same clock as the moments.
pub fn text(checkpoints: &[Checkpoint], now: f64) -> String {
    let mut out = match (checkpoints.len(), checkpoints.iter().find(|one| one.current)) {
        (0, _) => "no checkpoint of 1.0 MiB or more yet\n".to_owned(),
        (n, None) => format!("{}; none of them is complete and still there\n", count(n as u64, "checkpoint")),
        (n, Some(Checkpoint { path, safe: true, .. })) => {
            format!("{}; the newest, {}, is on the slow tier\n", count(n as u64, "checkpoint"), readable(path))
        }
        (n, Some(Checkpoint { path, .. })) => {
            format!("{}; the newest, {}, is not yet on the slow tier\n", count(n as u64, "checkpoint"), readable(path))
        }
    };
    if !checkpoints.is_empty() {
        out.push_str("\n    no      step      age  absorb       D1       D2  files       size  state     path\n");
    }
    checkpoints.iter().for_each(|one| line(one, now, &mut out));
    out
}

/// D1, D2 and the age are measured from the last close.
fn line(one: &Checkpoint, now: f64, out: &mut String) {
    let after = |moment: Option<f64>| match moment {
        Some(moment) => format!("{:.2}s", (moment - one.absorbed).max(0.0)),
        None => format!(">{:.1}s", (now - one.absorbed).max(0.0)),
    };
    let current = if one.current { '*' } else { ' ' };
    let step = one.step.map_or_else(|| "-".to_owned(), |step| step.to_string());
    let absorb = format!("{:.2}s", (one.absorbed - one.began).max(0.0));
    let age = seconds(Duration::try_from_secs_f64(now - one.absorbed).unwrap_or_default());
    let Checkpoint { number, files, bytes: size, path, .. } = one;
    let (d1, d2, size, state) = (after(one.durable), after(one.drained), bytes(*size), one.state());
    let path = readable(path);
    writeln!(
        out,
        "{current}{number:>5}{step:>10}{age:>9}{absorb:>8}{d1:>9}{d2:>9}{files:>7}{size:>11}  {state:<10}{path}"
    )
    .expect("formatting into memory");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_whether_the_newest_is_safe() {
        assert_eq!(text(&[], 1.0), "no checkpoint of 1.0 MiB or more yet\n");
        let old = Checkpoint {
            number: 1,
            step: Some(1200),
            path: "/run/ckpt-1200".to_owned(),
            files: 2,
            bytes: 3 << 30,
            began: 10.0,
            absorbed: 12.5,
            durable: Some(12.75),
            drained: Some(20.0),
            complete: true,
            whole: true,
            safe: true,
            ..Checkpoint::default()
        };
        let path = "/run/ckpt-1400".to_owned();
        let mut new = Checkpoint { number: 7, current: true, safe: false, drained: None, path, ..old.clone() };
        let told = text(&[old.clone(), new.clone()], 14.0);
        assert_eq!(
            told,
            "\
2 checkpoints; the newest, /run/ckpt-1400, is not yet on the slow tier

    no      step      age  absorb       D1       D2  files       size  state     path
     1      1200      1 s   2.50s    0.25s    7.50s      2    3.0 GiB  safe      /run/ckpt-1200
*    7      1200      1 s   2.50s    0.25s    >1.5s      2    3.0 GiB  dirty     /run/ckpt-1400
"
        );
        // People read `/%C3%A9t%C3%A9 1`; scripts get what it is.
        let named = |name: &str| Checkpoint { path: crate::path::escape(name.as_bytes()), ..new.clone() };
        let told = text(&[named("/été 1/模型")], 14.0);
        assert!(told.contains("the newest, /été 1/模型, is") && told.ends_with("dirty     /été 1/模型\n"), "{told}");
        let told = text(&[named("/a\n\u{202e}b")], 14.0);
        assert!(told.contains("the newest, /a\\n\\u{202e}b, is") && told.lines().count() == 4, "{told}");
        (new.safe, new.verified) = (true, true);
        let told = text(&[new], 14.0);
        assert!(told.starts_with("1 checkpoint; the newest, /run/ckpt-1400, is on the slow tier\n"), "{told}");
        assert!(told.contains("verified"));
        let replaced = text(&[Checkpoint { whole: false, ..old }], 14.0);
        assert!(replaced.contains("none of them") && replaced.contains(" replaced "), "{replaced}");
    }
}

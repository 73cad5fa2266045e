//! Which start of a fast tier this is. Two daemons may have one id, as on a machine that was made from an image of
//! another one, or after `cp -a`: only the one that started last continues, and an older state of the fast tier is
//! refused.
//!
//! `<slow>/.dlio-fs/starts/<uuid>` names the last start, `super` those that it may name. A start that may write to the
//! slow tree:
//!
//! 1. reads the named start, and refuses a fast tier whose `super` does not know it: it is a copy made before that
//!    start;
//! 2. writes `super`, durably, with that start and the new one;
//! 3. names the new one on the slow tree, durably.
//!
//! A crash before or after step 3 leaves a start that `super` knows. A copy made while the tier is mounted knows its
//! start and can be mounted: then the first daemon finds another start before it publishes again, a second later at the
//! latest, and stops. In a fleet the lease names the start as well (`fleet/step.rs`).
//!
//! A tier that refuses this, or has no room for it, does not prevent mounting: then the previous start stays valid.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Context, Error, Result};
use crate::tiers::Tiers;
use crate::tiers::disk::Dir;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, ensure_dir, read_text, replace_text};
use crate::tiers::disk::sync::{Mutex, Rank};

const STARTS: &[u8] = b"starts";
/// How often the slow tree is read.
const LOOK: Duration = Duration::from_secs(1);

/// A start, as the file on the slow tree names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedStart {
    pub(crate) start: String,
    /// How often a copy took the place of the fast tier; it knows none of the earlier starts.
    pub(crate) turn: u32,
    pub(crate) host: String,
}

impl NamedStart {
    pub(crate) fn new(turn: u32) -> NamedStart {
        let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok()).unwrap_or_default();
        NamedStart { start: Uuid::new_v4().to_string(), turn, host }
    }

    fn decode(text: &str) -> Option<NamedStart> {
        let mut words = text.split_ascii_whitespace();
        let (start, turn) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(NamedStart { start, turn, host: words.next().unwrap_or_default().to_owned() })
    }
}

/// The last start of a fast tier, as the slow tree names it.
pub(crate) fn last_start(slow: &dyn Dir, uuid: &str) -> Result<Option<NamedStart>> {
    let starts = absent_is_none(slow.dir(OURS).and_then(|ours| ours.dir(STARTS))).at("open", ".dlio-fs/starts")?;
    let text = starts.map(|starts| read_text(&*starts, uuid.as_bytes())).transpose()?.flatten();
    Ok(text.and_then(|text| NamedStart::decode(&text)))
}

/// The file of one fast tier.
#[derive(Debug)]
pub(crate) struct Incarnation {
    starts: Arc<dyn Dir>,
    uuid: String,
    pub(crate) own: NamedStart,
    state: Mutex<SeenStart>,
}

#[derive(Debug, Default)]
struct SeenStart {
    at: Option<Duration>,
    lost: Option<String>,
}

impl Incarnation {
    /// Steps 1 to 3. `known`: the starts in `super`; `remember` is step 2, with the starts to store there.
    pub(crate) fn begin(
        slow: &dyn Dir,
        uuid: &str,
        (turn, known): (u32, &[String]),
        remember: impl FnOnce(Vec<String>) -> Result<()>,
    ) -> Result<Option<Incarnation>> {
        let starts = match ensure_dir(slow, OURS).and_then(|ours| ensure_dir(&*ours, STARTS)) {
            Err(error) => {
                tracing::warn!(%error, "a copy of this fast tier would not be noticed");
                return Ok(None);
            }
            Ok(starts) => starts,
        };
        let before = read_text(&*starts, uuid.as_bytes())?.and_then(|text| NamedStart::decode(&text));
        let is_old = |before: &&NamedStart| before.turn >= turn && !known.contains(&before.start);
        let is_left_out =
            |before: &NamedStart| if before.turn > turn { left_out!(PartnerTurn) } else { left_out!(OneStart) };
        if let Some(before) = before.as_ref().filter(is_old).filter(|before| !is_left_out(before)) {
            let what = if before.turn > turn {
                "a copy of this fast tier has taken its place (dlio-fs forget --partner)".to_owned()
            } else {
                format!("this is an old copy of a fast tier that was mounted since, on {}", before.host)
            };
            return Err(Error::refused(
                what,
                format!(
                    "save what it has pending with `dlio-fs rescue`, then use an empty fast tier; if the slow tree was restored \
                     from a backup, remove .dlio-fs/starts/{uuid} there"
                ),
            ));
        } // 1
        let own = NamedStart::new(turn);
        let last = before.map(|before| before.start);
        let named = remember(last.into_iter().chain([own.start.clone()]).collect()); // 2
        let NamedStart { start, host, .. } = &own;
        let line = format!("{start} {turn} {host}\n");
        // A tier's refusal does not prevent a start (P15).
        if let Err(error) = named.and_then(|()| replace_text(&*starts, uuid.as_bytes(), &line)) {
            tracing::warn!(%error, "a copy of this fast tier would not be noticed");
        } // 3
        // As actually stored.
        let named = read_text(&*starts, uuid.as_bytes())?.and_then(|text| NamedStart::decode(&text));
        let state = Mutex::new(Rank::Leaf, SeenStart::default());
        Ok(Some(Incarnation { starts, uuid: uuid.to_owned(), own: named.unwrap_or(own), state }))
    }

    /// Reads from the slow tree, at most once per [`LOOK`], whether this is the last start. An error: it does not
    /// answer.
    pub(crate) fn look(&self, now: Duration) -> Result<()> {
        if self.state.lock().at.is_some_and(|at| now.saturating_sub(at) < LOOK) {
            return Ok(());
        }
        let named = read_text(&*self.starts, self.uuid.as_bytes())?.and_then(|text| NamedStart::decode(&text));
        let mut state = self.state.lock();
        state.at = Some(now);
        if let Some(other) =
            named.filter(|named| named.start != self.own.start && !left_out!(OneStart) && !left_out!(PartnerTurn))
        {
            state.lost.get_or_insert_with(|| mounted_elsewhere(&other.host));
        }
        Ok(())
    }

    /// Why this daemon no longer publishes.
    pub(crate) fn lost(&self) -> Option<String> {
        self.state.lock().lost.clone()
    }
}

impl Tiers {
    /// The reason, once another daemon has started after this one.
    pub(crate) fn held_by_copy(&self) -> Option<String> {
        self.incarnation.as_ref()?.lost()
    }
}

/// The reason, if another host has mounted a copy of this fast tier.
pub(crate) fn mounted_elsewhere(host: &str) -> String {
    format!(
        "a copy of this fast tier has been mounted on {host}, and goes on in its place; unmount one of them, and save what it has \
         pending with `dlio-fs rescue`"
    )
}

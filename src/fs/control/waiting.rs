//! Waiting for operations that may take long, or hang.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::error::Result;
use crate::tiers::Tiers;

/// How often the result is checked.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// Runs an operation that may hang. If no thread can be started, no result ever comes; the deadline covers that.
pub(super) fn apart<T: Send + 'static>(
    tiers: &Arc<Tiers>,
    name: &str,
    run: impl FnOnce(&Tiers) -> Result<T> + Send + 'static,
) -> Receiver<Result<T>> {
    let (tell, told) = mpsc::sync_channel(1);
    let tiers = Arc::clone(tiers);
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // If the time is up, the receiver is gone.
        drop(tell.try_send(run(&tiers)));
    });
    if let Err(error) = started {
        tracing::warn!(%error, name, "no thread to look the files up");
    }
    told
}

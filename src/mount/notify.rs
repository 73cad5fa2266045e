//! Messages to a service manager (`sd_notify(3)`): ready, stopping, and that leaving takes longer.
//!
//! Nothing is sent unless the environment names a socket; a socket without a listener is no failure.

use std::time::Duration;

use sd_notify::NotifyState;

/// How much longer leaving may take; sent again about once a second while it lasts.
const LONGER: Duration = Duration::from_secs(60);

/// The mount answers.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The mount is leaving.
pub fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status), longer()]);
}

/// Leaving takes longer.
pub fn still_leaving(status: &str) {
    notify(&[NotifyState::Status(status), longer()]);
}

fn longer() -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(LONGER.as_micros().try_into().unwrap_or(u32::MAX))
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

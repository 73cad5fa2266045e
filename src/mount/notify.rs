//! What a service manager is told (`sd_notify(3)`): ready, stopping, and that leaving takes longer.
//!
//! Nothing is said unless the environment names a socket, and one that nobody listens to is no reason to fail.

use std::time::Duration;

use sd_notify::NotifyState;

/// How much longer leaving may take, said again about once a second for as long as it does.
const LONGER: Duration = Duration::from_secs(60);

/// The mount answers.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The mount is being left.
pub fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status), longer()]);
}

/// Leaving goes on.
pub fn still_leaving(status: &str) {
    tell(&[NotifyState::Status(status), longer()]);
}

fn longer() -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(LONGER.as_micros().try_into().unwrap_or(u32::MAX))
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

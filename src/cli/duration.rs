//! Durations in arguments.

use std::time::Duration;

/// A number without a unit is seconds, as for sleep(1).
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|_| "write seconds, or a number and a unit, as \"30s\" or \"10min\"".to_owned())
}

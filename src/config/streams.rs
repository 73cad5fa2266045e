//! How many streams the drain has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The most streams of the drain. Eight parallel copies are as fast as most shared file systems get.
pub const STREAMS_MAX: u32 = 8;

/// The key `drain_streams`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DrainStreams {
    /// As many as the slow tier rewards, found out while they run.
    #[default]
    Auto,
    /// From 1 to [`STREAMS_MAX`].
    Exactly(u32),
}

impl fmt::Display for DrainStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrainStreams::Auto => f.write_str("auto"),
            DrainStreams::Exactly(count) => count.fmt(f),
        }
    }
}

impl FromStr for DrainStreams {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(count) if (1..=STREAMS_MAX).contains(&count) => Ok(DrainStreams::Exactly(count)),
            _ if text == "auto" => Ok(DrainStreams::Auto),
            _ => Err(format!("not a number of streams; write \"auto\" or a number from 1 to {STREAMS_MAX}")),
        }
    }
}

impl Serialize for DrainStreams {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            DrainStreams::Auto => s.serialize_str("auto"),
            DrainStreams::Exactly(count) => s.serialize_u32(*count),
        }
    }
}

impl<'de> Deserialize<'de> for DrainStreams {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(d)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_a_number_or_found_out() {
        for (text, streams) in [("auto", DrainStreams::Auto), ("1", DrainStreams::Exactly(1))] {
            assert_eq!((text.parse(), streams.to_string().as_str()), (Ok(streams), text));
        }
        assert_eq!(STREAMS_MAX.to_string().parse(), Ok(DrainStreams::Exactly(STREAMS_MAX)));
        for bad in ["0", "9", "-1", "", "many", "1.5"] {
            assert!(bad.parse::<DrainStreams>().is_err(), "{bad}");
        }
    }
}

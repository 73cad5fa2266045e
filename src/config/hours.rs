//! Hours of the day as text: `22:00-06:00`, several separated by commas. Local time; the current time is an argument.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const HOUR: u32 = 3600;
const DAY: u32 = 24 * HOUR;

/// Spans of each day. No span means always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hours(Vec<DaySpan>);

/// From one time of day to another, which may be on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DaySpan {
    from: TimeOfDay,
    to: TimeOfDay,
}

/// Seconds since midnight, of whole minutes; shown as `06:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay(u32);

/// Outside all spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// When the next span begins, and how long until then on a day of 24 hours.
    pub until: TimeOfDay,
    pub left: Duration,
}

impl Hours {
    /// `None` inside a span. `second`: of the day.
    pub fn closed(&self, second: u32) -> Option<Closed> {
        let second = second % DAY;
        if self.0.is_empty() || self.0.iter().any(|span| span.has(second)) {
            return None;
        }
        let until = self.0.iter().map(|span| span.from).min_by_key(|from| from.after(second))?;
        Some(Closed { until, left: Duration::from_secs(until.after(second).into()) })
    }
}

impl DaySpan {
    fn has(self, second: u32) -> bool {
        let (from, to) = (self.from.0, self.to.0);
        if from < to { (from..to).contains(&second) } else { second >= from || second < to }
    }
}

impl TimeOfDay {
    /// Seconds from that second of the day to the next occurrence of this time.
    fn after(self, second: u32) -> u32 {
        (self.0 % DAY + DAY - second) % DAY
    }
}

impl FromStr for TimeOfDay {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (hour, minute) = text.split_once(':').ok_or(())?;
        // Digits only: parsing a number would also accept a sign.
        let number =
            |text: &str| text.parse().ok().filter(|_| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit()));
        match (number(hour), number(minute)) {
            (Some(hour @ 0..24), Some(minute @ 0..60)) | (Some(hour @ 24), Some(minute @ 0)) => {
                Ok(TimeOfDay(hour * HOUR + minute * 60))
            }
            _ => Err(()),
        }
    }
}

impl FromStr for Hours {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let span = |text: &str| {
            let (from, to) = text.trim().split_once('-')?;
            let span = DaySpan { from: from.parse().ok()?, to: to.parse().ok()? };
            // If both times are equal, it could mean never or always.
            (span.from.0 != span.to.0 && span.from.0 < DAY).then_some(span)
        };
        let spans = text.split(',').filter(|_| !text.trim().is_empty());
        spans
            .map(span)
            .collect::<Option<_>>()
            .map(Hours)
            .ok_or("not hours of the day; write \"22:00-06:00\", several separated by commas, or \"\" for always")
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / HOUR, self.0 % HOUR / 60)
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, DaySpan { from, to }) in self.0.iter().enumerate() {
            write!(f, "{}{from}-{to}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Serialize for Hours {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hours {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        // A value that is not text is refused like an invalid time.
        let text = String::deserialize(d).unwrap_or_else(|_| "?".to_owned());
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn hours(text: &str) -> Hours {
        text.parse().expect(text)
    }

    fn at(text: &str) -> u32 {
        text.parse::<TimeOfDay>().expect(text).0
    }

    fn until(hours: &Hours, second: u32) -> Option<(String, u64)> {
        hours.closed(second).map(|closed| (closed.until.to_string(), closed.left.as_secs()))
    }

    #[test]
    fn a_night_goes_over_midnight() {
        let night = hours("22:00-06:00");
        for open in ["22:00", "23:59", "00:00", "05:59"] {
            assert_eq!(until(&night, at(open)), None, "{open}");
        }
        assert_eq!(until(&night, at("06:00")), Some(("22:00".into(), 16 * 3600)));
        assert_eq!(until(&night, at("22:00") - 1), Some(("22:00".into(), 1)));
        assert_eq!(until(&hours("12:00-13:00, 22:00-24:00"), at("13:00")), Some(("22:00".into(), 9 * 3600)));
        assert_eq!(until(&hours("12:00-13:00,22:00-24:00"), 0), Some(("12:00".into(), 12 * 3600)));
        for always in ["", "  ", "00:00-24:00"] {
            assert!((0..DAY).step_by(977).all(|second| hours(always).closed(second).is_none()), "{always:?}");
        }
    }

    #[test]
    fn what_is_no_hours_is_refused() {
        for text in [
            "22",
            "22:00",
            "22:00-",
            "-06:00",
            "22-6",
            "22:00-6:00",
            "22:00-06:60",
            "25:00-26:00",
            "24:00-06:00",
            "22:00-24:01",
            "06:00-06:00",
            "22:00-06:00,",
            ",",
            "22:00-06:00;12:00-13:00",
            "+2:00-03:00",
            "a:00-b:00",
            "22:00--6:00",
        ] {
            assert!(text.parse::<Hours>().is_err(), "{text:?}");
        }
    }

    /// Checked minute by minute.
    #[test]
    fn it_opens_when_it_says_and_not_before() {
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..500 {
            let time = |random: &mut SmallRng| TimeOfDay(60 * random.random_range(0..24 * 60));
            let mut spans = Vec::new();
            for _ in 0..random.random_range(1..4) {
                let (from, to) = (time(&mut random), time(&mut random));
                spans.extend((from != to).then_some(DaySpan { from, to }));
            }
            let hours = Hours(spans.clone());
            assert_eq!(hours.to_string().parse(), Ok(hours.clone()), "what is written can be read");
            let mut open = [spans.is_empty(); 24 * 60];
            for DaySpan { from, to } in spans {
                let mut minute = from.0 / 60;
                while minute != to.0 / 60 {
                    open[minute as usize] = true;
                    minute = (minute + 1) % (24 * 60);
                }
            }
            for minute in 0..24 * 60 {
                let second = minute * 60 + random.random_range(0..60);
                let closed = hours.closed(second);
                assert_eq!(closed.is_none(), open[minute as usize], "{hours} at minute {minute}");
                if let Some(Closed { until, left }) = closed {
                    let opens = second + left.as_secs() as u32;
                    assert_eq!(opens % DAY, until.0);
                    assert!(hours.closed(opens).is_none() && hours.closed(opens - 1).is_some());
                    let between = (minute + 1..opens / 60).all(|minute| !open[(minute % (24 * 60)) as usize]);
                    assert!(between, "{hours} at minute {minute} opens before");
                }
            }
        }
    }
}

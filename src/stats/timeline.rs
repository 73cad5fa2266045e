//! What moved over time: bytes read, written and drained in spans of equal length. Pure; totals come in, with their
//! time.
//!
//! A span is a tenth of a second at first: bursts of a second can be told from a steady flow. When there are more than
//! [`SPANS_MAX`] spans, pairs are merged, as often as needed: 6.8 minutes in tenths of a second, a day in spans of 26
//! s.

use std::time::Duration;

use serde_json::json;

use super::recording;
use crate::json;

/// The initial length of a span.
pub const FINEST: Duration = Duration::from_millis(100);
/// How many spans are kept.
pub const SPANS_MAX: usize = 4096;

/// Amounts that only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Read by applications, from the fast tier and from the slow one.
    pub read: [u64; 2],
    /// Written by them.
    pub written: [u64; 2],
    /// Copied to the slow tier in the background.
    pub drained: u64,
    /// Calls of all operations.
    pub calls: u64,
}

impl Amounts {
    const NAMES: [&str; 6] = ["read_fast", "read_slow", "written_fast", "written_slow", "drained", "calls"];

    fn all(&self) -> [u64; 6] {
        [self.read[0], self.read[1], self.written[0], self.written[1], self.drained, self.calls]
    }

    fn each(&self, other: &Amounts, join: impl Fn(u64, u64) -> u64) -> Amounts {
        let two = |a: [u64; 2], b: [u64; 2]| [join(a[0], b[0]), join(a[1], b[1])];
        Amounts {
            read: two(self.read, other.read),
            written: two(self.written, other.written),
            drained: join(self.drained, other.drained),
            calls: join(self.calls, other.calls),
        }
    }

    fn plus(&self, other: &Amounts) -> Amounts {
        self.each(other, u64::saturating_add)
    }

    fn minus(&self, other: &Amounts) -> Amounts {
        self.each(other, u64::saturating_sub)
    }

    /// The fraction `part` / `whole` of it, rounded down.
    fn share(&self, part: Duration, whole: Duration) -> Amounts {
        let share = |amount: u64| (u128::from(amount) * part.as_nanos() / whole.as_nanos().max(1)) as u64;
        self.each(self, |amount, _| share(amount))
    }
}

/// What moved, span by span since the mount was made.
#[derive(Clone, Debug)]
pub struct Timeline {
    width: Duration,
    spans: Vec<Amounts>,
    /// The last totals, and their time.
    last: (Duration, Amounts),
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline { width: FINEST, spans: Vec::new(), last: (Duration::ZERO, Amounts::default()) }
    }
}

impl Timeline {
    /// Takes the totals at a moment: the difference to the last ones is spread evenly over the time since.
    pub fn sample(&mut self, now: Duration, totals: Amounts) {
        let (from, before) = self.last;
        if now <= from {
            return;
        }
        // A copy that is restarted resets its total: it counts again only once it gets further than before.
        let totals = totals.each(&before, u64::max);
        self.last = (now, totals);
        let (moved, whole) = (totals.minus(&before), now - from);
        while self.index(now) >= SPANS_MAX {
            self.fold();
        }
        let (first, last) = (self.index(from), self.index(now));
        self.spans.resize(last + 1, Amounts::default());
        let mut left = moved;
        for at in first..last {
            let end = self.width * (at as u32 + 1);
            let share = moved.share(end - from.max(self.width * at as u32), whole);
            self.spans[at] = self.spans[at].plus(&share);
            left = left.minus(&share);
        }
        self.spans[last] = self.spans[last].plus(&left);
    }

    fn index(&self, moment: Duration) -> usize {
        (moment.as_nanos() / self.width.as_nanos()) as usize
    }

    fn fold(&mut self) {
        self.width *= 2;
        self.spans = self.spans.chunks(2).map(|two| two[1..].iter().fold(two[0], |sum, next| sum.plus(next))).collect();
    }

    /// From the mount on; the last span has not ended yet.
    pub fn spans(&self) -> &[Amounts] {
        &self.spans
    }

    /// The form in a recording.
    pub fn recorded(&self) -> recording::RecordedTimeline {
        let list = |at: usize| self.spans.iter().map(|span| span.all()[at]).collect();
        recording::RecordedTimeline {
            span: self.width.as_secs_f64(),
            read_fast: list(0),
            read_slow: list(1),
            written_fast: list(2),
            written_slow: list(3),
            drained: list(4),
            calls: list(5),
        }
    }

    /// The text of `.dlio/timeline.json`: seconds of a span, and a list for each amount. Ends with a newline.
    pub fn json(&self, mounted: Duration) -> String {
        let list = |at: usize| self.spans.iter().map(|span| span.all()[at]).collect::<Vec<_>>();
        let until = self.last.0.as_secs_f64();
        let mut value =
            json!({ "span": self.width.as_secs_f64(), "until": until, "until_at": json::moment(mounted, until) });
        for (at, name) in Amounts::NAMES.into_iter().enumerate() {
            value[name] = json!(list(at));
        }
        json::line(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn drained(n: u64) -> Amounts {
        Amounts { drained: n, ..Amounts::default() }
    }

    fn amounts(timeline: &Timeline) -> Vec<u64> {
        timeline.spans().iter().map(|span| span.drained).collect()
    }

    #[test]
    fn what_came_between_two_looks_is_spread_over_the_time_between() {
        let mut timeline = Timeline::default();
        timeline.sample(ms(50), drained(10));
        timeline.sample(ms(350), drained(310));
        assert_eq!(amounts(&timeline), [60, 100, 100, 50]);
        timeline.sample(ms(350), drained(999));
        timeline.sample(ms(360), drained(311));
        assert_eq!(amounts(&timeline), [60, 100, 100, 51], "a look at the same moment tells nothing");
    }

    #[test]
    fn what_falls_back_is_counted_once() {
        let mut timeline = Timeline::default();
        for (at, total) in [(10, 100), (20, 0), (30, 90), (40, 130)] {
            timeline.sample(ms(at), drained(total));
        }
        assert_eq!(amounts(&timeline), [130]);
    }

    #[test]
    fn nothing_is_lost_however_long_it_lasts() {
        use rand::rngs::SmallRng;
        use rand::{RngExt, SeedableRng};
        let mut random = SmallRng::seed_from_u64(1);
        let (mut timeline, mut now, mut total) = (Timeline::default(), Duration::ZERO, Amounts::default());
        for _ in 0..20_000 {
            now += ms(random.random_range(1..500));
            let more = Amounts {
                read: [random.random_range(0..1000), 3],
                written: [1, random.random_range(0..9)],
                drained: random.random_range(0..1 << 30),
                calls: 1,
            };
            total = total.plus(&more);
            timeline.sample(now, total);
        }
        let sum = timeline.spans().iter().fold(Amounts::default(), |sum, span| sum.plus(span));
        assert_eq!(sum, total);
        let spans = timeline.spans().len();
        assert!((SPANS_MAX / 2..=SPANS_MAX).contains(&spans), "{spans}");
        assert_eq!(timeline.index(now), spans - 1);
    }

    #[test]
    fn the_json_has_a_list_for_each_amount() {
        let mut timeline = Timeline::default();
        let totals = Amounts { read: [7, 8], calls: 3, ..Amounts::default() };
        timeline.sample(ms(90), totals);
        let value: serde_json::Value = serde_json::from_str(&timeline.json(Duration::ZERO)).expect("valid");
        assert_eq!((&value["span"], &value["read_slow"], &value["calls"]), (&json!(0.1), &json!([8]), &json!([3])));
        assert_eq!(value["drained"], json!([0]));
    }
}

//! How a background copy leaves the disks to others (rest and rate), and how fast it is. Pure; moments are passed in.

use std::collections::VecDeque;
use std::time::Duration;

/// What a copy does before its next piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backoff {
    None,
    /// Waits this long; if that is long, ask again meanwhile.
    For(Duration),
    /// Waits until nothing is being drained. Tell callers that wait for the copy.
    Drain,
}

impl Backoff {
    /// The backoff after a piece that took `took`. `reads`: a caller has lately waited for a read from the slow tier.
    /// `drains`: there is something to drain. Checkpoints come first: until they are on the slow tier they are at risk.
    pub(crate) fn after(took: Duration, reads: bool, drains: bool) -> Self {
        match (reads, drains) {
            (_, true) => Backoff::Drain,
            // The copy takes a quarter of the time.
            (true, false) => Backoff::For(took.saturating_mul(3)),
            (false, false) => Backoff::None,
        }
    }
}

/// How much time's worth of bytes may go at once after a pause.
const BURST: Duration = Duration::from_secs(1);

/// A limit of bytes per second, as a token bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBucket {
    rate: u64,
    /// When the bytes taken so far are paid for.
    paid: Duration,
}

impl TokenBucket {
    /// Sets the limit from now on; `None` or 0: no limit. Bytes already taken are paid for at the former rate.
    pub(crate) fn set_rate(&mut self, rate: Option<u64>) {
        self.rate = rate.unwrap_or(0);
    }

    /// Takes any number of bytes and returns how long to wait before they are moved.
    pub(crate) fn take(&mut self, now: Duration, bytes: u64) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let costs = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.paid = self.paid.max(now.saturating_sub(BURST)).saturating_add(costs);
        self.paid.saturating_sub(now)
    }
}

/// The speed is measured over the newest bytes, back to this much transfer time.
const MEASURED: Duration = Duration::from_secs(10);
/// A gap this long says nothing about the disk.
const GAP: Duration = Duration::from_secs(30);
/// A shorter transfer time is no measurement.
const TOO_SHORT: Duration = Duration::from_millis(100);

/// How fast bytes, or anything that is counted, arrive while any are in transit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speed {
    /// Transfer times of about a second each, and the bytes that arrived in each. The newest last.
    pieces: VecDeque<(Duration, u64)>,
    /// Until when transfer time is counted; `None`: nothing is in transit.
    since: Option<Duration>,
}

impl Speed {
    /// Starts to count transfer time.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    pub(crate) fn arrived(&mut self, now: Duration, bytes: u64) {
        let took = now.saturating_sub(self.since.unwrap_or(now));
        let took = if took > GAP { Duration::ZERO } else { took };
        self.since = Some(now);
        match self.pieces.back_mut().filter(|piece| piece.0 + took <= Duration::from_secs(1)) {
            Some(piece) => *piece = (piece.0 + took, piece.1 + bytes),
            None => self.pieces.push_back((took, bytes)),
        }
        let is_surplus =
            |speed: &Self| speed.pieces.front().is_some_and(|(took, _)| speed.measured() - *took >= MEASURED);
        while self.pieces.len() > 1 && is_surplus(self) {
            self.pieces.pop_front();
        }
    }

    /// Stops counting: nothing is in transit any more.
    pub(crate) fn rest(&mut self) {
        self.since = None;
    }

    fn measured(&self) -> Duration {
        self.pieces.iter().map(|piece| piece.0).sum()
    }

    /// `None`: not known yet.
    pub(crate) fn per_second(&self) -> Option<f64> {
        let (measured, bytes) = (self.measured(), self.pieces.iter().map(|piece| piece.1).sum::<u64>());
        (measured >= TOO_SHORT && bytes > 0).then(|| bytes as f64 / measured.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn limited(rate: Option<u64>) -> TokenBucket {
        let mut bucket = TokenBucket::default();
        bucket.set_rate(rate);
        bucket
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_copy_rests_for_readers_and_waits_for_the_drain() {
        assert_eq!(Backoff::after(ms(10), false, false), Backoff::None);
        assert_eq!(Backoff::after(ms(10), true, false), Backoff::For(ms(30)));
        assert_eq!(Backoff::after(ms(10), true, true), Backoff::Drain);
        assert_eq!(Backoff::after(ms(10), false, true), Backoff::Drain);
        assert_eq!(Backoff::after(Duration::MAX, true, false), Backoff::For(Duration::MAX));
    }

    #[test]
    fn a_speed_is_that_of_what_was_on_its_way() {
        let mut speed = Speed::default();
        speed.begin(ms(1_000));
        speed.arrived(ms(1_050), 50);
        assert_eq!(speed.per_second(), None, "too short to say");
        (2..=60).for_each(|n| speed.arrived(ms(1_000 + 50 * n), 50));
        let near = |speed: &Speed, wanted: f64| speed.per_second().is_some_and(|it| (it / wanted - 1.0).abs() < 0.01);
        assert!(near(&speed, 1_000.0), "{speed:?}");
        // An idle hour says nothing about the disk.
        speed.rest();
        speed.begin(ms(3_600_000));
        speed.arrived(ms(3_600_500), 500);
        assert!(near(&speed, 1_000.0), "{speed:?}");
        // Nor does an hour in which the order was held.
        speed.arrived(ms(7_200_000), 0);
        assert!(near(&speed, 1_000.0), "{speed:?}");
        speed.rest();
        speed.begin(ms(3_600_500));
        // Other programs use the disk now: after ten seconds the new speed is known.
        (1..=110).for_each(|n| speed.arrived(ms(3_600_500 + 100 * n), 10));
        assert!(near(&speed, 100.0), "{speed:?}");
    }

    #[test]
    fn a_bucket_lets_through_what_it_should_over_any_time() {
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..200 {
            let rate = random.random_range(1..1_000_000);
            let mut bucket = limited(Some(rate));
            let (mut now, mut moved) = (ms(random.random_range(0..5_000)), Vec::new());
            for _ in 0..100 {
                let bytes = random.random_range(0..rate * 2);
                now += bucket.take(now, bytes);
                moved.push((now, bytes));
                now += if random.random_bool(0.3) { ms(random.random_range(0..3_000)) } else { Duration::ZERO };
            }
            for first in 0..moved.len() {
                let sum: u64 = moved[first..].iter().map(|(_, bytes)| bytes).sum();
                // A piece is moved at the end of its wait, so the first one was paid for before.
                let time = (moved[moved.len() - 1].0 - moved[first].0 + BURST).as_secs_f64();
                assert!((sum - moved[first].1) as f64 <= rate as f64 * time + 1.0, "{rate} B/s: {sum} in {time} s");
            }
            let (total, time): (u64, _) = (moved.iter().map(|(_, bytes)| bytes).sum(), now.as_secs_f64());
            assert!(total as f64 >= 0.3 * rate as f64 * (time - 5.0), "it is not slower than asked for by far");
        }
    }

    #[test]
    fn a_bucket_without_a_limit_never_waits_and_any_figure_will_do() {
        for rate in [None, Some(0)] {
            assert_eq!(limited(rate).take(ms(1), u64::MAX), Duration::ZERO);
        }
        let mut bucket = limited(Some(1_000));
        assert_eq!((bucket.take(ms(0), 500), bucket.take(ms(100), 500)), (ms(500), ms(900)));
        bucket.set_rate(Some(500));
        assert_eq!(bucket.take(ms(200), 500), ms(1_800), "what was taken is paid for");
        assert_eq!(bucket.take(ms(60_000), 500), Duration::ZERO, "a second's worth after a pause");
        assert_eq!(bucket.take(ms(60_000), 500), ms(1_000));
        bucket.set_rate(None);
        assert_eq!(bucket.take(ms(60_000), 500), Duration::ZERO);
        let mut slow = limited(Some(1));
        (0..3).for_each(|_| assert!(slow.take(Duration::MAX - ms(5), u64::MAX) <= Duration::MAX));
    }
}

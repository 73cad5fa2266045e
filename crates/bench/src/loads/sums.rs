//! One figure from several runs, and its confidence. Pure.
//!
//! Nothing is assumed about the distribution of times. A median's interval comes from order statistics: of `n`
//! independent values, the `k`-th smallest and the `k`-th largest enclose the true median unless fewer than `k` fall on
//! one side of it, which is a matter of `n` coin flips (the sign test; Conover, Practical Nonparametric Statistics,
//! 3.2).

use serde::{Deserialize, Serialize};

/// The confidence of an interval, if there are enough runs.
const LEVEL: f64 = 0.95;

/// A median, and an interval that covers the true one with the probability `level`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// 0 for a single value, which gives no confidence.
    pub(crate) level: f64,
}

/// The middle value, or the mean of the middle two. `None` without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// The median with its interval: at least 95 % from 6 values on, else the whole range. `None` without values.
pub(crate) fn estimate(values: &[f64]) -> Option<Estimate> {
    let (median, sorted) = (median(values)?, sorted(values));
    let (outside, level) = order(sorted.len());
    Some(Estimate { median, low: sorted[outside], high: sorted[sorted.len() - 1 - outside], level })
}

/// The ratio of paired runs: `ours[i] / others[i]`. `None` without pairs; a measurement of zero has no ratio.
pub(crate) fn ratio(ours: &[f64], others: &[f64]) -> Option<Estimate> {
    let pairs = ours.iter().zip(others).filter(|(_, other)| **other > 0.0);
    estimate(&pairs.map(|(our, other)| our / other).collect::<Vec<_>>())
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// How many values may be left out at either end, and the probability that the rest covers the median.
fn order(n: usize) -> (usize, f64) {
    // The chance of exactly `k` heads in `n` flips, for k from 0 on. In logarithms, because 2^-n soon becomes 0.
    let mut chance = -(n as f64) * 2f64.ln();
    let (mut below, mut best) = (0.0, None);
    for k in 0..n.div_ceil(2) {
        below += chance.exp();
        let level = (1.0 - 2.0 * below).max(0.0);
        if best.is_some() && level < LEVEL {
            break;
        }
        best = Some((k, level));
        chance += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    best.unwrap_or((0, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn medians_of_few_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    }

    /// The table of order statistics for the median, 95 %: Conover's A3 gives the same ranks.
    #[test]
    fn intervals_are_those_of_the_binomial_table() {
        let table = [
            (1, 1, 0.0),
            (2, 1, 0.5),
            (3, 1, 0.75),
            (5, 1, 0.9375),
            (6, 1, 0.96875),
            (8, 1, 0.9921875),
            (9, 2, 0.9609375),
            (10, 2, 0.978515625),
            (12, 3, 0.96142578125),
            (15, 4, 0.96484375),
            (20, 6, 0.958610534668),
            (25, 8, 0.95671474934),
            (30, 10, 0.957226),
            (100, 40, 0.964800),
        ];
        for (n, rank, level) in table {
            let (outside, covers) = order(n);
            assert_eq!(outside + 1, rank, "{n}");
            assert!((covers - level).abs() < 1e-6, "{n}: {covers}");
        }
    }

    #[test]
    fn a_known_ratio_is_found_though_the_runs_differ_more() {
        let others = [10.0, 20.0, 40.0, 80.0, 160.0, 320.0];
        let ours: Vec<_> = others.iter().zip([1.4, 1.5, 1.6, 1.5, 1.45, 1.55]).map(|(other, by)| other * by).collect();
        let Estimate { median, low, high, level } = ratio(&ours, &others).expect("six pairs");
        assert!((median - 1.5).abs() < 1e-12 && (low - 1.4).abs() < 1e-12 && (high - 1.6).abs() < 1e-12);
        assert_eq!(level, 0.96875);
        assert_eq!(ratio(&ours, &[]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }

    /// For any values: the interval contains the median, lies within them, and does not depend on their order.
    #[test]
    fn an_interval_holds_its_median() {
        let mut random = SmallRng::seed_from_u64(5);
        for _ in 0..2_000 {
            let n = random.random_range(1..60);
            let mut values: Vec<f64> = (0..n).map(|_| random.random_range(0.0..100.0f64).powi(3)).collect();
            let one = estimate(&values).expect("some");
            assert!(one.low <= one.median && one.median <= one.high, "{values:?}: {one:?}");
            assert!(values.contains(&one.low) && values.contains(&one.high));
            assert!(n < 6 || one.level >= LEVEL, "{n}: {one:?}");
            values.reverse();
            assert_eq!(estimate(&values), Some(one));
        }
    }

    /// The level is right: even for skewed values, the true median is covered about as often.
    #[test]
    fn the_interval_covers_the_true_median_as_often_as_it_says() {
        let mut random = SmallRng::seed_from_u64(6);
        for n in [6, 9, 15] {
            let tries = 20_000;
            let mut covered = 0;
            for _ in 0..tries {
                // Its median is 0.5 squared.
                let values: Vec<f64> = (0..n).map(|_| random.random_range(0.0..1.0f64).powi(2)).collect();
                let one = estimate(&values).expect("some");
                covered += u32::from(one.low <= 0.25 && 0.25 <= one.high);
            }
            let share = f64::from(covered) / f64::from(tries);
            assert!((share - order(n).1).abs() < 0.008, "{n}: {share}");
        }
    }
}

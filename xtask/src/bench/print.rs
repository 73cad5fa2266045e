//! Figures as the pages show them; a limit is compared with these. Pure.

use super::figures::{Ratio, Row};

const MIB: f64 = 1_048_576.0;

pub(super) fn range(row: &Row) -> String {
    let (scale, _) = shown_in(&row.unit, row.median);
    format!("{} to {}", digits(row.least / scale), digits(row.most / scale))
}

pub(super) fn figure(row: &Row) -> String {
    with_unit(row.median, &row.unit)
}

pub(super) fn with_unit(value: f64, unit: &str) -> String {
    let (scale, unit) = shown_in(unit, value);
    format!("{} {unit}", digits(value / scale))
}

/// Of a single run there is no interval.
pub(super) fn with_interval(ratio: &Ratio) -> String {
    if ratio.level == 0.0 {
        return digits(ratio.median);
    }
    format!("{} ({} to {})", digits(ratio.median), digits(ratio.low), digits(ratio.high))
}

/// The value that is read from the page.
pub(super) fn rounded(value: f64, unit: &str) -> f64 {
    let (scale, _) = shown_in(unit, value);
    digits(value / scale).parse().map_or(value, |read: f64| read * scale)
}

/// What a figure in `unit` is divided by, and the unit that it has then.
fn shown_in(unit: &str, value: f64) -> (f64, &str) {
    match unit {
        "B/s" => (1e6, "MB/s"),
        "B" if value >= MIB => (MIB, "MiB"),
        "us" => (1.0, "µs"),
        other => (1.0, other),
    }
}

/// Three that say something.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let texts: Vec<_> = [5704.4, 100.0, 57.04, 5.704, 0.05704].into_iter().map(digits).collect();
        assert_eq!(texts, ["5704", "100", "57.0", "5.70", "0.057"]);
        assert_eq!(with_unit(268_435_456.0, "B"), "256 MiB");
        assert_eq!(with_unit(307.4, "B"), "307 B");
        assert_eq!(rounded(23.68, "s"), 23.7);
        assert_eq!(rounded(133_449_000.0, "B/s"), 133e6);
    }
}

//! Figures for people: one unit for everything compared, three digits. Pure.

use super::results::Unit;

/// A unit to show figures in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    pub(crate) name: &'static str,
    /// The factor from a figure to this unit.
    pub(crate) by: f64,
}

impl Scale {
    /// For figures of which `typical` is one. Sizes are in powers of ten, as for disks.
    pub(crate) fn of(unit: Unit, typical: f64) -> Scale {
        let (units, figure): (&[(&'static str, f64)], f64) = match unit {
            Unit::Seconds => (&[("us", 1e6), ("ms", 1e3), ("s", 1.0)], typical),
            Unit::Microseconds => (&[("us", 1.0), ("ms", 1e-3), ("s", 1e-6)], typical),
            Unit::Bytes => (&[("B/s", 1.0), ("kB/s", 1e-3), ("MB/s", 1e-6), ("GB/s", 1e-9)], typical),
            Unit::Files => (&[("files/s", 1.0)], typical),
            Unit::Size => (&[("B", 1.0), ("kB", 1e-3), ("MB", 1e-6)], typical),
            Unit::Events => (&[("events/s", 1.0)], typical),
            Unit::Operations => (&[("operations/s", 1.0)], typical),
            Unit::Steps => (&[("steps/s", 1.0)], typical),
            Unit::Accelerators => (&[("accelerators", 1.0)], typical),
            Unit::Utilisation => (&[("%", 1.0)], typical),
            Unit::Slowdown => (&[("% slower", 1.0)], typical),
        };
        // The largest unit in which it is at least one; MB/s up to ten thousand, because disks differ by that much.
        let least = |name: &str| if name == "GB/s" { 10.0 } else { 1.0 };
        let fits = units.iter().filter(|(name, by)| figure * by >= least(name)).min_by(|a, b| a.1.total_cmp(&b.1));
        let (name, by) = *fits.unwrap_or(&units[0]);
        Scale { name, by }
    }

    pub(crate) fn text(&self, figure: f64) -> String {
        digits(figure * self.by)
    }
}

/// Three digits: `0.0331`, `1.04`, `30.1`, `152`, `12300`.
pub(crate) fn digits(figure: f64) -> String {
    let size = figure.abs();
    let decimals = match size {
        s if s == 0.0 || !s.is_finite() => 0,
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s => (2.0 - s.log10().floor()).min(6.0) as usize,
    };
    format!("{figure:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.033_12, "0.0331"),
            (0.999_9, "1.00"),
            (1.044, "1.04"),
            (9.999, "10.0"),
            (30.12, "30.1"),
            (99.96, "100"),
            (12_300.4, "12300"),
        ];
        for (figure, text) in cases {
            assert_eq!(digits(figure), text);
        }
    }

    #[test]
    fn a_unit_is_the_one_of_the_typical_figure() {
        let name = |unit, typical| Scale::of(unit, typical).name;
        assert_eq!(name(Unit::Seconds, 18.2), "s");
        assert_eq!(name(Unit::Seconds, 0.012), "ms");
        assert_eq!(name(Unit::Microseconds, 12.0), "us");
        assert_eq!(name(Unit::Microseconds, 2e6), "s");
        assert_eq!(name(Unit::Bytes, 1.6e9), "MB/s");
        assert_eq!(name(Unit::Bytes, 1.6e10), "GB/s");
        assert_eq!(name(Unit::Bytes, 0.0), "B/s");
        assert_eq!(Scale::of(Unit::Bytes, 163e6).text(133e6), "133");
        assert_eq!(Scale::of(Unit::Files, 0.5).text(0.5), "0.500");
        assert_eq!((name(Unit::Size, 312.0), name(Unit::Size, 1_800.0)), ("B", "kB"));
        assert_eq!(Scale::of(Unit::Events, 123_456.0).text(123_456.0), "123456");
        assert_eq!(name(Unit::Operations, 12.0), "operations/s");
    }
}

//! Numbers and paths for narrow columns. Pure.

use ratatui::text::Span;

/// A size or a rate in at most five characters, in binary units: `0`, `812`, `1.2K`, `34M`, `1.0G`.
pub(super) fn size(n: f64) -> String {
    scaled(n, 1024.0)
}

/// The same for counts, in thousands: `812`, `1.2k`, `34M`.
pub(super) fn count(n: f64) -> String {
    scaled(n, 1000.0).replace('K', "k")
}

fn scaled(n: f64, base: f64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (n.max(0.0), 0);
    // 999.6 would print as 1000, one character too many.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / base, unit + 1);
    }
    let text = format!("{value:.*}", usize::from(value < 9.95));
    // Less than one per second is not zero, but 1 is not printed as 1.0.
    let text = if unit == 0 { text.trim_end_matches(".0") } else { &text };
    format!("{text}{}", UNITS[unit])
}

/// A latency in at most five characters: `8us`, `1.5ms`, `2.1s`.
pub(super) fn latency(seconds: f64) -> String {
    let in_unit = |value: f64, unit: &str| format!("{value:.*}{unit}", usize::from(value < 9.95));
    match seconds {
        s if s < 999.5e-6 => format!("{:.0}us", s * 1e6),
        s if s < 999.5e-3 => in_unit(s * 1e3, "ms"),
        s => in_unit(s, "s"),
    }
}

/// A percentage in at most four characters.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", (share * 100.0).clamp(0.0, 9999.0))
}

/// The value, or a dash.
pub(super) fn or_dash<T>(value: Option<T>, shown: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), shown)
}

/// `text`, or dots and its end if it has more than `width` characters: the end of a path says most.
pub(super) fn end_of(text: &str, width: usize) -> String {
    // Some letters take two columns.
    let columns = |text: &str| Span::raw(text).width();
    if columns(text) <= width {
        return text.to_owned();
    }
    let Some(mut room) = width.checked_sub(1) else { return String::new() };
    let fits = |(_, c): &(usize, char)| match room.checked_sub(columns(c.encode_utf8(&mut [0; 4]))) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    let start = text.char_indices().rev().take_while(fits).last().map_or(text.len(), |(at, _)| at);
    format!("…{}", text.get(start..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        let k = 1024.0;
        for (n, text) in [
            (0.0, "0"),
            (0.01, "0"),
            (0.4, "0.4"),
            (6.98, "7"),
            (812.0, "812"),
            (999.6, "1.0K"),
            (9.96 * k, "10K"),
            (1.25 * k * k, "1.2M"),
            (u64::MAX as f64, "16E"),
        ] {
            assert_eq!(size(n), text, "{n}");
        }
        assert_eq!([count(999.0), count(1_000.0), count(12_345_678.0)], ["999", "1.0k", "12M"]);
        let times = [0.0, 8e-6, 999.4e-6, 1.5e-3, 0.0167, 0.9999, 2.13, 1042.0].map(latency);
        assert_eq!(times, ["0us", "8us", "999us", "1.5ms", "17ms", "1.0s", "2.1s", "1042s"]);
        assert_eq!([0.0, 0.154, 1.0, 3.9].map(percent), ["0%", "15%", "100%", "390%"]);
    }

    #[test]
    fn a_long_path_shows_its_end() {
        assert_eq!(end_of("/run/epoch-1", 12), "/run/epoch-1");
        assert_eq!(end_of("/run/épöch-1", 8), "…épöch-1");
        assert_eq!((end_of("/run/模型", 6), end_of("/run/模型", 9)), ("…/模型".into(), "/run/模型".into()));
        assert_eq!(end_of("/run/模型", 4), "…型", "half a letter has no room");
        assert_eq!((end_of("/run", 1), end_of("/run", 0)), ("…".into(), String::new()));
    }
}

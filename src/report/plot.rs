//! The parts of all pictures: the frame, axes with round steps, areas over time, the legend. Pure.
//!
//! Colours are classes that the page's style defines, for light and for dark.

use std::fmt::{Display, Write};

/// The width of a picture in its own units; it is scaled to the page.
pub const WIDTH: f64 = 1000.0;
/// The width of an axis' figures.
pub const LEFT: f64 = 74.0;
pub const RIGHT: f64 = 14.0;

/// Text between tags or in a quoted attribute.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Appends to a text, which cannot fail.
#[macro_export]
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        write!($out, $($arg)*).expect("formatting into memory")
    };
}

pub use put;

/// The number, or zero if it is not finite.
pub fn finite(x: f64) -> f64 {
    if x.is_finite() { x } else { 0.0 }
}

/// A round step of an axis: 1, 2 or 5 times a power of ten, at least a `parts`th of the whole.
pub fn step(whole: f64, parts: f64) -> f64 {
    let least = (whole / parts).max(1e-9);
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= least).unwrap_or(10.0 * power)
}

/// A number without trailing zeros.
pub fn plain(n: f64) -> String {
    let text = format!("{n:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The units for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Powers {
    /// KiB, MiB: of 1024.
    Binary,
    /// kB, MB: of 1000, as for disk speeds.
    Decimal,
}

/// A unit for bytes per second: its name and its size.
fn unit(most: f64, powers: Powers) -> (&'static str, f64) {
    let (names, power) = match powers {
        Powers::Binary => (["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024f64),
        Powers::Decimal => (["B", "kB", "MB", "GB", "TB", "PB"], 1000f64),
    };
    let size = |at: usize| power.powi(at as i32);
    let fits = (0..names.len()).rev().find(|at| most >= 1.5 * size(*at)).unwrap_or(0);
    (names[fits], size(fits))
}

/// Time from left to right.
#[derive(Clone, Debug)]
pub struct Axis {
    /// In order; the time between two of them is left out. At least one.
    stretches: Vec<(f64, f64)>,
    pub left: f64,
    /// What the seconds count from.
    pub name: &'static str,
}

impl Axis {
    pub fn new((from, until): (f64, f64), left: f64, name: &'static str) -> Self {
        Axis { stretches: vec![(from, until)], left, name }
    }

    /// An axis of several stretches of time, in order.
    pub fn folded(stretches: Vec<(f64, f64)>, left: f64, name: &'static str) -> Self {
        if stretches.is_empty() { Axis::new((0.0, 0.0), left, name) } else { Axis { stretches, left, name } }
    }

    pub fn stretches(&self) -> &[(f64, f64)] {
        &self.stretches
    }

    pub fn from(&self) -> f64 {
        self.stretches[0].0
    }

    pub fn until(&self) -> f64 {
        self.stretches[self.stretches.len() - 1].1
    }

    /// Seconds that are shown.
    fn shown(&self) -> f64 {
        self.stretches.iter().map(|(from, until)| until - from).sum::<f64>()
    }

    /// The position of a moment, always within the picture.
    pub fn x(&self, seconds: f64) -> f64 {
        let before: f64 = self.stretches.iter().map(|(from, until)| (seconds.min(*until) - from).max(0.0)).sum();
        self.at(before / self.shown().max(1e-9))
    }

    /// The position of a fraction of the shown time.
    fn at(&self, part: f64) -> f64 {
        finite(self.left + part.clamp(0.0, 1.0) * (WIDTH - self.left - RIGHT))
    }

    /// Ticks with their labels below `y`, and lines from `top` on.
    pub fn ticks(&self, out: &mut String, top: f64, y: f64) {
        let step = step(self.shown(), 9.0);
        let (mut ticks, mut free_from) = (0, f64::NEG_INFINITY);
        for (from, until) in &self.stretches {
            let mut at = (from / step).ceil() * step;
            while at <= until + step * 1e-6 && ticks < 24 {
                let (x, label) = (self.x(at), plain(at));
                put!(out, r#"<path class="grid" d="M{x:.1} {top:.1}V{y:.1}"/>"#);
                let half = 4.0 * label.len() as f64;
                // After a fold the next label may be too close.
                if x - half >= free_from {
                    free_from = x + half;
                    self::label(out, "tick", (x, y + 16.0), "middle", label);
                }
                (at, ticks) = (at + step, ticks + 1);
            }
        }
        for two in self.stretches.windows(2) {
            let (x, idle) = (self.x(two[0].1), plain((two[1].0 - two[0].1).round()));
            put!(
                out,
                r#"<path class="fold" d="M{x:.1} {top:.1}V{y:.1}"><title>{idle} s without a call</title></path>"#
            );
        }
        let middle = (self.left + WIDTH - RIGHT) / 2.0;
        label(out, "unit", (middle, y + 33.0), "middle", self.name);
    }
}

/// A text at a point: `anchor` is the end of it that lies there, `start`, `middle` or `end`.
pub fn label(out: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, text: impl Display) {
    put!(out, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}

/// A rectangle that tells its title under the pointer.
pub fn block(out: &mut String, class: &str, (x, y): (f64, f64), (wide, high): (f64, f64), title: impl Display) {
    put!(
        out,
        r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{wide:.1}" height="{high:.1}"><title>{title}</title></rect>"#
    );
}

/// A picture of this height. `more`: further attributes.
pub fn svg(height: f64, label: &str, more: &str, body: &str) -> String {
    format!(
        r#"<div class="wide"><svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{}"{more}>{body}</svg></div>"#,
        escaped(label)
    )
}

/// What the colours stand for.
pub fn legend(entries: &[(&str, &str)]) -> String {
    let entry = |(class, name): &(&str, &str)| format!(r#"<li><i class="{class}"></i>{}</li>"#, escaped(name));
    format!(r#"<ul class="legend">{}</ul>"#, entries.iter().map(entry).collect::<String>())
}

/// A line of the timeline: its class, its name, bytes per second.
pub type PlotLine = (&'static str, &'static str, Vec<f64>);

/// Where areas are drawn, and their name.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    pub top: f64,
    pub height: f64,
    pub name: &'a str,
    pub powers: Powers,
}

/// Stacked areas, the first on top, and a line over them. All have the same number of figures.
pub fn panel(out: &mut String, axis: &Axis, place: Panel, areas: &[PlotLine; 2], line: Option<&PlotLine>) {
    let Panel { top, height, name, powers } = place;
    let columns = areas[0].2.len();
    let sum = |at: usize| areas[0].2[at] + areas[1].2[at];
    let most = (0..columns).map(|at| sum(at).max(line.map_or(0.0, |line| line.2[at]))).fold(1.0, f64::max);
    let (unit, size) = unit(most, powers);
    let step = step(most / size, 4.0);
    let whole = (most / size / step).ceil() * step * size;
    let y = |rate: f64| top + height - finite(rate / whole).clamp(0.0, 1.0) * height;
    for n in 0..=(whole / size / step).round() as usize {
        let value = n as f64 * step;
        put!(out, r#"<path class="grid" d="M{LEFT} {0:.1}H{1:.1}"/>"#, y(value * size), WIDTH - RIGHT);
        label(out, "tick", (LEFT - 7.0, y(value * size) + 4.0), "end", plain(value));
    }
    put!(out, r#"<text class="unit" x="{LEFT}" y="{:.1}">{name}, {unit}/s</text>"#, top - 8.0);
    let x = |column: usize| axis.at(column as f64 / columns as f64);
    let path = |from: &dyn Fn(usize) -> f64, to: &dyn Fn(usize) -> f64| {
        let mut path = format!("M{:.1} {:.1}", x(0), y(from(0)));
        (0..columns).for_each(|at| put!(path, "V{:.1}H{:.1}", y(to(at)), x(at + 1)));
        (0..columns).rev().for_each(|at| put!(path, "V{:.1}H{:.1}", y(from(at)), x(at)));
        path + "z"
    };
    let (lower, upper) = (&areas[1].2, &areas[0].2);
    put!(out, r#"<path class="{}" d="{}"/>"#, areas[1].0, path(&|_| 0.0, &|at| lower[at]));
    put!(out, r#"<path class="{}" d="{}"/>"#, areas[0].0, path(&|at| lower[at], &|at| lower[at] + upper[at]));
    if let Some((class, _, rates)) = line {
        let mut path = format!("M{:.1} {:.1}", x(0), y(rates[0]));
        (0..columns).for_each(|at| put!(path, "V{:.1}H{:.1}", y(rates[at]), x(at + 1)));
        put!(out, r#"<path class="line {class}" d="{path}"/>"#);
    }
}

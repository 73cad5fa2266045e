//! Results as one page, and its pictures alone: bars for each case with the range of the runs, and the traffic of
//! devices over time. Pure.

use std::fmt::Write;

use dlio_fs::report::html::{STYLE, frame};
use dlio_fs::report::page::{shortened, shown};
use dlio_fs::report::plot::{
    self, Axis, LEFT, Panel, Powers, RIGHT, WIDTH, block, escaped, finite, panel, plain, put, step, svg,
};

use super::results::{Course, Results, Row, Unit, distinct};
use super::sums;
use super::text::{cells, heading};
use super::units::{Scale, digits};

/// The number of colours for places: `p0` to `p7` of the style, then from the first again.
const COLOURS: usize = 8;
const BAR_MAX: f64 = 64.0;
/// The height of a bar chart, without its legend and labels.
const BARS_HIGH: f64 = 190.0;
/// The gap between the legend and the chart, where the unit is written.
const UNDER: f64 = 34.0;
/// The most cases in one picture.
const CASES_MAX: usize = 6;
/// The largest ratio of figures in one picture: small ones must stay visible.
const SPREAD_MAX: f64 = 25.0;
const SINCE: &str = "seconds since it began";

/// A picture without its frame.
struct Picture {
    title: String,
    height: f64,
    body: String,
}

/// Cases shown together.
struct Group {
    title: String,
    /// The case, and its name within the group.
    cases: Vec<(String, String)>,
}

/// The whole page.
pub(crate) fn report(results: &Results) -> String {
    let name = escaped(&shown(&results.bench));
    let mut body = format!(
        "<header><p class=\"brand\"><b>dlio-fs</b> bench</p><h1>{name}</h1></header>\n<main>\n<section id=\"how\"><h2>How it was measured</h2><dl>"
    );
    for (label, value) in results.facts() {
        put!(body, "<dt>{}</dt><dd>{}</dd>", escaped(&shown(&label)), escaped(&shown(&value)));
    }
    body.push_str("</dl></section>\n");
    for group in groups(results) {
        put!(body, "<section><h2>{}</h2>", escaped(&shown(&group.title)));
        let picture = bars(results, &group);
        body.push_str(&svg(picture.height, &picture.title, "", &picture.body));
        group.cases.iter().for_each(|(case, _)| table(&mut body, results, case));
        body.push_str("</section>\n");
    }
    for picture in courses(results) {
        put!(body, "<section><h2>{}</h2>", escaped(&picture.title));
        body.push_str(&svg(picture.height, &picture.title, "", &picture.body));
        body.push_str("</section>\n");
    }
    let note = results.note().map(|note| note + " ").unwrap_or_default();
    put!(body, "</main>\n<footer>{}Made by dlio-fs {}.</footer>\n", escaped(&note), escaped(&shown(&results.version)));
    frame(&format!("{name} - dlio-fs-bench"), &body)
}

/// Only the pictures, one below the other, as self-contained SVG.
pub(crate) fn pictures(results: &Results) -> String {
    const TITLE: f64 = 34.0;
    let groups = groups(results);
    let all: Vec<_> = groups.iter().map(|group| bars(results, group)).chain(courses(results)).collect();
    let (mut body, mut y) = (String::new(), 6.0);
    for picture in &all {
        let title = escaped(&shown(&picture.title));
        put!(body, r#"<text class="title" x="14" y="{:.1}">{title}</text>"#, y + 20.0);
        put!(body, r#"<g transform="translate(0 {:.1})">{}</g>"#, y + TITLE, picture.body);
        y += TITLE + picture.height + 12.0;
    }
    let name = escaped(&shown(&results.bench));
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0}" width="{WIDTH}" height="{y:.0}" role="img" aria-label="{name}">
<style>
{STYLE}</style>
<rect class="paper" width="{WIDTH}" height="{y:.0}"/>
{body}
</svg>
"#
    )
}

fn table(out: &mut String, results: &Results, case: &str) {
    let rows: Vec<_> = results.rows_of(case).collect();
    let (title, scale) = heading(case, &rows);
    let (head, lines) = cells(&rows, scale);
    put!(out, "<h3>{}</h3><div class=\"table\"><table><thead><tr>", escaped(&shown(&title)));
    let class = |at: usize| if at > 0 { " class=\"n\"" } else { "" };
    head.iter().enumerate().for_each(|(at, name)| put!(out, "<th{} scope=\"col\">{name}</th>", class(at)));
    out.push_str("</tr></thead><tbody>");
    for (line, row) in lines.iter().zip(&rows) {
        out.push_str("<tr>");
        for (at, cell) in line.iter().enumerate() {
            let key = if head[at] == "median" { format!(" data-k=\"{}\"", finite(row.median)) } else { String::new() };
            put!(out, "<td{}{key}>{}</td>", class(at), escaped(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

/// Groups cases of one kind; cases without a kind are grouped by unit, as long as all of them are visible.
fn groups(results: &Results) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for case in results.cases() {
        let (kind, label) = case.split_once(", ").unwrap_or((&case, &case));
        let fits = groups.last().is_some_and(|last| {
            let same_kind = last.title == kind && last.cases.iter().all(|(case, label)| case != label);
            let both_alone = kind == case && last.cases.iter().all(|(case, label)| case == label);
            let is_alike = same_kind || (both_alone && hides_nothing(results, last, &case));
            last.cases.len() < CASES_MAX && is_alike && belongs(results, last, &case)
        });
        match groups.last_mut().filter(|_| fits) {
            Some(last) => {
                if kind == case {
                    last.title = format!("{}; {case}", last.title);
                }
                last.cases.push((case.clone(), label.to_owned()));
            }
            None => groups.push(Group { title: kind.to_owned(), cases: vec![(case.clone(), label.to_owned())] }),
        }
    }
    groups
}

/// Whether a case can be drawn on the axis of a group.
fn belongs(results: &Results, group: &Group, case: &str) -> bool {
    let typical = |case: &str| {
        let rows: Vec<_> = results.rows_of(case).collect();
        let unit = rows.first().map(|row| row.unit);
        (unit, rows.iter().map(|row| row.median).fold(0.0, f64::max))
    };
    let (unit, most) = typical(case);
    group.cases.iter().map(|(case, _)| typical(case)).all(|(other, much)| {
        let apart = (most / much).max(much / most);
        other == unit && apart <= SPREAD_MAX
    })
}

/// Whether each bar is as easily seen with the others as it is in a picture of its own case.
fn hides_nothing(results: &Results, group: &Group, case: &str) -> bool {
    let medians = |case: &str| results.rows_of(case).map(|row| row.median).collect::<Vec<f64>>();
    let most = |medians: &[f64]| medians.iter().copied().fold(0.0, f64::max);
    let all: Vec<_> = group.cases.iter().map(|(case, _)| medians(case)).chain([medians(case)]).collect();
    let highest = all.iter().map(|medians| most(medians)).fold(0.0, f64::max);
    let is_seen = |medians: &[f64], median: f64| highest / median <= SPREAD_MAX.max(most(medians) / median);
    all.iter().all(|medians| medians.iter().all(|median| *median <= 0.0 || is_seen(medians, *median)))
}

/// The colour of a place, the same in all pictures.
fn colour(places: &[String], place: &str) -> usize {
    places.iter().position(|one| one == place).unwrap_or(0) % COLOURS
}

/// Bars side by side for the places of each case, with a line from the least to the most of the runs.
fn bars(results: &Results, group: &Group) -> Picture {
    let rows: Vec<&Row> = group.cases.iter().flat_map(|(case, _)| results.rows_of(case)).collect();
    let places = results.places();
    let unit = rows.first().map_or(Unit::Seconds, |row| row.unit);
    let most = axis_end(unit, &rows);
    let medians: Vec<_> = rows.iter().map(|row| row.median).collect();
    let scale = Scale::of(unit, sums::median(&medians).unwrap_or_default());
    let mut body = String::new();
    let shown_places = distinct(rows.iter().map(|row| row.place.as_str()));
    let entries: Vec<_> =
        shown_places.iter().map(|place| (format!("p{}", colour(&places, place)), shown(place))).collect();
    let top = legend(&mut body, &entries) + UNDER;
    let bottom = top + BARS_HIGH;
    let whole = ruler(&mut body, most * scale.by, top, bottom, scale.name) / scale.by;
    let y = |figure: f64| bottom - finite(figure / whole).clamp(0.0, 1.0) * BARS_HIGH;
    let wide = (WIDTH - LEFT - RIGHT) / group.cases.len() as f64;
    for (at, (case, label)) in group.cases.iter().enumerate() {
        let rows: Vec<_> = results.rows_of(case).collect();
        let bar = (wide * 0.8 / rows.len().max(1) as f64).min(BAR_MAX);
        let middle = LEFT + wide * (at as f64 + 0.5);
        let from = middle - bar * rows.len() as f64 / 2.0;
        for (n, row) in rows.iter().enumerate() {
            let x = from + bar * n as f64;
            one_bar(&mut body, row, scale, (x, bar), &y, colour(&places, &row.place));
        }
        let label = escaped(&shortened(&shown(label), (wide / 6.5) as usize));
        plot::label(&mut body, "tick", (middle, bottom + 17.0), "middle", label);
    }
    Picture { title: shown(&group.title), height: bottom + 26.0, body }
}

/// Above it there is no figure. A slowdown may be nothing, or less: the axis then has room for as much, and for a percent at least.
fn axis_end(unit: Unit, rows: &[&Row]) -> f64 {
    let ends = rows.iter().flat_map(|row| [row.least, row.most].map(finite));
    match unit {
        Unit::Slowdown => ends.map(f64::abs).fold(1.0, f64::max),
        _ => ends.fold(1e-12, f64::max),
    }
}

fn one_bar(out: &mut String, row: &Row, scale: Scale, (x, wide): (f64, f64), y: &impl Fn(f64) -> f64, colour: usize) {
    let (high, low, middle) = (y(row.median), y(0.0), x + wide / 2.0);
    let Row { place, median, least, most, .. } = row;
    let said = format!(
        "{}, {}: {} {} ({} to {})",
        shown(&row.case),
        shown(place),
        scale.text(*median),
        scale.name,
        scale.text(*least),
        scale.text(*most)
    );
    let size = ((wide - 2.0).max(1.0), (low - high).max(0.5));
    block(out, &format!("p{colour}"), (x + 1.0, high), size, escaped(&said));
    let tick = (wide / 5.0).min(5.0);
    if row.runs.len() > 1 {
        let (from, to) = (y(*least), y(*most));
        put!(
            out,
            r#"<path class="whisker" d="M{0:.1} {to:.1}H{1:.1}M{middle:.1} {to:.1}V{from:.1}M{0:.1} {from:.1}H{1:.1}"/>"#,
            middle - tick,
            middle + tick
        );
    }
    let text = scale.text(*median);
    // Only if the digits are not wider than the bar.
    if text.len() as f64 * 6.6 < wide + 6.0 {
        let over = y(*most).min(high) - 5.0;
        put!(out, r#"<text class="value" x="{middle:.1}" y="{over:.1}" text-anchor="middle">{text}</text>"#);
    }
}

/// Draws the legend, in as many lines as needed; returns where it ends.
fn legend(out: &mut String, entries: &[(String, String)]) -> f64 {
    let (mut x, mut y) = (LEFT, 14.0);
    for (class, name) in entries {
        let wide = 34.0 + name.chars().count() as f64 * 6.8;
        if x + wide > WIDTH - RIGHT && x > LEFT {
            (x, y) = (LEFT, y + 18.0);
        }
        put!(out, r#"<rect class="{class}" x="{x:.1}" y="{:.1}" width="11" height="11" rx="3"/>"#, y - 10.0);
        put!(out, r#"<text x="{:.1}" y="{y:.1}">{}</text>"#, x + 17.0, escaped(name));
        x += wide;
    }
    y
}

/// Draws grid lines with their figures, from zero to at least `most`; returns where the axis ends, in its unit.
fn ruler(out: &mut String, most: f64, top: f64, bottom: f64, unit: &str) -> f64 {
    let step = step(most, 5.0);
    // Leave room above the highest bar.
    let parts = (most * 1.06 / step).ceil().max(1.0);
    for n in 0..=parts as usize {
        let y = bottom - (bottom - top) * n as f64 / parts;
        put!(out, r#"<path class="grid" d="M{LEFT} {y:.1}H{:.1}"/>"#, WIDTH - RIGHT);
        let figure = plain(n as f64 * step);
        put!(out, r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{figure}</text>"#, LEFT - 7.0, y + 4.0);
    }
    put!(out, r#"<text class="unit" x="{LEFT}" y="{:.1}">{unit}</text>"#, top - 8.0);
    step * parts
}

/// The traffic of the devices, one picture for each place.
fn courses(results: &Results) -> Vec<Picture> {
    let places = distinct(results.devices.iter().map(|course| course.place.as_str()));
    let picture = |place: &String| {
        let of: Vec<_> = results.devices.iter().filter(|course| course.place == *place).collect();
        over_time(place, &of)
    };
    places.iter().filter_map(picture).collect()
}

fn over_time(place: &str, courses: &[&Course]) -> Option<Picture> {
    const HIGH: f64 = 130.0;
    let until = courses.iter().map(|course| course.every * course.read.len() as f64).fold(0.0, f64::max);
    let some: Vec<_> = courses.iter().filter(|course| !course.read.is_empty()).collect();
    let first = some.first()?;
    let mut body = String::new();
    let (spans, moments) = spans(&first.marks);
    let mut entries = vec![("read", "read"), ("write", "written")];
    entries.extend((!spans.is_empty()).then_some(("span", "a checkpoint is written")));
    let entries: Vec<_> = entries.iter().map(|(class, name)| ((*class).to_owned(), (*name).to_owned())).collect();
    let begin = legend(&mut body, &entries);
    let axis = Axis::new((0.0, until.max(1e-3)), LEFT, SINCE);
    let panels = some.len() as f64;
    let (top, bottom) = (begin + UNDER, begin + UNDER - 24.0 + panels * (HIGH + 24.0));
    for (from, until, name) in spans.iter().take(500) {
        let (from, until) = (axis.x(*from), axis.x(*until));
        block(&mut body, "span", (from, top), ((until - from).max(0.5), bottom - top), escaped(&shown(name)));
    }
    axis.ticks(&mut body, top, bottom);
    for (at, course) in some.iter().enumerate() {
        let top = top + at as f64 * (HIGH + 24.0);
        let name = escaped(&shown(&format!("{} ({})", course.tier, course.device)));
        let place = Panel { top, height: HIGH, name: &name, powers: Powers::Decimal };
        // Many figures are averaged into columns.
        let areas = [("write", "written", columns(&course.written)), ("read", "read", columns(&course.read))];
        panel(&mut body, &axis, place, &areas, None);
    }
    for (moment, text) in moments.iter().take(50) {
        let (x, text) = (axis.x(*moment), escaped(&shown(text)));
        put!(body, r#"<path class="mark" d="M{x:.1} {top:.1}V{bottom:.1}"><title>{text}</title></path>"#);
        let (side, x) = if x > WIDTH / 2.0 { ("end", x - 4.0) } else { ("start", x + 4.0) };
        put!(body, r#"<text class="unit" x="{x:.1}" y="{:.1}" text-anchor="{side}">{text}</text>"#, top + 12.0);
    }
    let seconds = digits(until);
    let title = match place {
        "" => format!("The devices over {seconds} s"),
        place => format!("The devices in the last run of {} ({seconds} s)", shown(place)),
    };
    Some(Picture { title, height: bottom + 42.0, body })
}

/// A beginning, an end and a name.
type NamedSpan = (f64, f64, String);

/// Pairs marks into spans; returns these and the other moments.
fn spans(marks: &[(f64, String)]) -> (Vec<NamedSpan>, Vec<(f64, String)>) {
    let (mut spans, mut moments): (Vec<NamedSpan>, Vec<_>) = (Vec::new(), Vec::new());
    for (moment, text) in marks {
        match (text.strip_suffix(" begins"), text.strip_suffix(" ends")) {
            (Some(name), _) => spans.push((*moment, *moment, name.to_owned())),
            (_, Some(name)) if spans.last().is_some_and(|last| last.2 == name) => {
                spans.iter_mut().rev().take(1).for_each(|last| last.1 = *moment);
            }
            _ => moments.push((*moment, text.clone())),
        }
    }
    (spans, moments)
}

fn columns(rates: &[f64]) -> Vec<f64> {
    const MOST: usize = 480;
    let columns = rates.len().min(MOST);
    let mean = |at: usize| {
        let part = &rates[at * rates.len() / columns..(at + 1) * rates.len() / columns];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    (0..columns).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::super::results::ResultTable;
    use super::super::text::tests::made;
    use super::*;

    #[test]
    fn pages_and_pictures_are_whole_and_names_are_no_markup() {
        for runs in [1, 6] {
            let results = made(runs);
            for text in [report(&results), pictures(&results)] {
                assert!(!text.contains("<b>&|x") && text.contains("&lt;b&gt;&amp;|x"));
                assert!(!text.contains("checkpoint <1>") && text.contains("checkpoint &lt;1&gt;"));
                for none in ["NaN", "inf\"", "=\"-"] {
                    assert!(!text.contains(none), "a figure that is none");
                }
                for tag in ["svg", "g", "text", "section", "table", "figure"] {
                    let open = text.matches(&format!("<{tag} ")).count() + text.matches(&format!("<{tag}>")).count();
                    assert_eq!(open, text.matches(&format!("</{tag}>")).count(), "{tag}");
                }
                let whiskers = text.matches("class=\"whisker\"").count();
                assert_eq!(whiskers > 0, runs > 1, "one run has no spread");
            }
        }
        assert!(report(&made(6)).contains("default-src 'none'"));
        assert!(pictures(&made(6)).contains("seconds since it began"));
    }

    #[test]
    fn cases_of_a_kind_are_one_picture_and_what_is_far_apart_is_not() {
        let titles = |results: &Results| groups(results).into_iter().map(|group| group.title).collect::<Vec<_>>();
        let mut results = made(3);
        assert_eq!(titles(&results), ["application blocked", "read"]);
        assert_eq!(groups(&results)[1].cases[1], ("read, 4 threads".to_owned(), "4 threads".to_owned()));
        let mut table = ResultTable::default();
        let cases = [("stat, first", 2.0), ("stat, again", 1.0), ("rename", 3.0), ("unlink", 2.0), ("walk", 900.0)];
        cases.iter().for_each(|(case, figure)| table.add("fast", case, Unit::Microseconds, *figure));
        results.rows = table.rows(&["fast".to_owned()]);
        assert_eq!(titles(&results), ["stat", "rename; unlink", "walk"]);
        // A low bar is not set beside high ones of other cases, though each case has a high one.
        let mut table = ResultTable::default();
        for (case, fast, mount) in
            [("write", 100.0, 10.0), ("read", 90.0, 9.0), ("stat", 900.0, 90.0), ("list", 900.0, 10.0)]
        {
            table.add("fast", case, Unit::Operations, fast);
            table.add("mount", case, Unit::Operations, mount);
        }
        results.rows = table.rows(&["fast".to_owned(), "mount".to_owned()]);
        assert_eq!(titles(&results), ["write; read", "stat; list"]);
    }

    #[test]
    fn slowdowns_that_are_none_have_an_axis() {
        let end = |unit, figures: &[f64]| {
            let mut table = ResultTable::default();
            figures.iter().for_each(|figure| table.add("fast", "some", unit, *figure));
            let rows = table.rows(&["fast".to_owned()]);
            axis_end(unit, &rows.iter().collect::<Vec<_>>())
        };
        let ends = [&[-0.2, 0.0][..], &[-3.0, 2.0], &[4.0, 7.0]].map(|figures| end(Unit::Slowdown, figures));
        assert_eq!(ends, [1.0, 3.0, 7.0]);
        assert_eq!(end(Unit::Seconds, &[0.1, 0.2]), 0.2);
    }

    #[test]
    fn what_begins_and_ends_is_a_span() {
        let marks =
            [(0.1, "one begins"), (0.4, "one ends"), (0.5, "two begins"), (0.9, "all is there"), (1.0, "x ends")];
        let (spans, moments) = spans(&marks.map(|(at, text)| (at, text.to_owned())));
        assert_eq!(spans, [(0.1, 0.4, "one".to_owned()), (0.5, 0.5, "two".to_owned())]);
        assert_eq!(moments, [(0.9, "all is there".to_owned()), (1.0, "x ends".to_owned())]);
    }

    #[test]
    fn nothing_at_all_is_a_page_too() {
        let mut results = made(1);
        (results.rows, results.devices) = (Vec::new(), vec![Course::default()]);
        assert!(report(&results).contains("How it was measured"));
        assert!(pictures(&results).ends_with("</svg>\n"));
    }
}

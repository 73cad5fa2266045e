//! The report as one self-contained page: no network, no library, light and dark, printable. Pure.
//!
//! Everything can be read without its script, which only sorts and searches tables, shows the numbers under the pointer
//! and copies commands. The page forbids its browser to load anything.

use std::fmt::Write;

use super::chart::draw;
use super::page::{self, PageBlock, Section, Table, shown};
use super::plot::{escaped, put};
use super::summary::{Summary, grouped, percent, render_count, seconds_text, share};
use crate::stats::render::bytes;

/// The style of all pages, and of standalone pictures.
pub const STYLE: &str = include_str!("html.css");
const SCRIPT: &str = include_str!("html.js");
/// Forbids loading anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'";

/// The whole page.
pub fn report(summary: &Summary) -> String {
    let (mount, sections) = (escaped(&shown(&summary.job.mountpoint)), page::sections(summary));
    let mut body = String::new();
    head(&mut body, summary, &mount);
    navigation(&mut body, &sections);
    body.push_str("<main>\n");
    advice(&mut body, summary);
    put!(body, r#"<div class="pair"><section id="job"><h2>The run</h2>"#);
    facts(&mut body, &page::job(summary));
    put!(body, r#"</section><section id="holds"><h2>What these figures hold</h2>"#);
    facts(&mut body, &page::completeness(summary));
    body.push_str("</section></div>\n");
    sections.iter().for_each(|section| one(&mut body, summary, section));
    put!(
        body,
        "</main>\n<footer>Made by dlio-fs {} from what its mount saw. The same as numbers: <code>--format json</code>; all files with \
         all counters: <code>--format csv</code>.</footer>\n",
        escaped(&shown(&summary.job.version))
    );
    frame(&format!("{mount} - dlio-fs report"), &body)
}

/// A page with this content; title and body are markup.
pub fn frame(title: &str, body: &str) -> String {
    format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{STYLE}</style>
</head>
<body>
{body}<script>
{SCRIPT}</script>
</body>
</html>
"#
    )
}

fn head(out: &mut String, summary: &Summary, mount: &str) {
    let window = summary.job.window.as_ref();
    let window = window.map(|name| format!(" <span>window {}</span>", escaped(&shown(name)))).unwrap_or_default();
    put!(out, r#"<header><p class="brand"><b>dlio-fs</b> report <code>{mount}</code>{window}</p>"#);
    // The cause, before a colon, must be seen first.
    let verdict = shown(&summary.verdict);
    match verdict.split_once(": ") {
        Some((cause, rest)) => {
            put!(out, "<h1>{}</h1><p class=\"verdict\">{}</p>", escaped(cause), escaped(&capital(rest)))
        }
        None => put!(out, "<h1>{}</h1>", escaped(&verdict)),
    }
    out.push_str(r#"<ul class="tiles">"#);
    let moved = &summary.moved;
    let slow = share(moved.slow_bytes_read, moved.bytes_read);
    tile(out, "read", &bytes(moved.bytes_read), &format!("{} from the slow tier", percent(slow)));
    tile(out, "written", &bytes(moved.bytes_written), &format!("{} drained", bytes(moved.drained)));
    tile(out, "files used", &grouped(summary.files.used), &format!("median size {}", bytes(summary.files.median)));
    tile(out, "calls", &grouped(moved.calls), &format!("{} failed", grouped(moved.errors)));
    let lasted = summary.lasted();
    tile(out, "time", &seconds_text(lasted), &rate(moved.bytes_read, lasted));
    if let Some(cost) = &summary.cost {
        tile(
            out,
            "in calls",
            &percent(cost.share(cost.any)),
            &format!("of its time, mean of {}", render_count(cost.processes, "process", "processes")),
        );
    }
    out.push_str("</ul></header>\n");
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn rate(n: u64, seconds: f64) -> String {
    if seconds > 0.0 { format!("{}/s read", bytes((n as f64 / seconds) as u64)) } else { String::new() }
}

fn tile(out: &mut String, name: &str, value: &str, more: &str) {
    put!(out, "<li><span>{}</span><b>{}</b><em>{}</em></li>", escaped(name), escaped(value), escaped(more));
}

fn navigation(out: &mut String, sections: &[Section]) {
    out.push_str("<nav aria-label=\"Sections\"><a href=\"#advice\">Advice</a><a href=\"#holds\">What it holds</a>");
    sections.iter().for_each(|section| put!(out, "<a href=\"#{0}\">{1}</a>", section.id, capital(section.id)));
    out.push_str("</nav>\n");
}

fn advice(out: &mut String, summary: &Summary) {
    out.push_str("<section id=\"advice\"><h2>Advice</h2>");
    if summary.advice.is_empty() {
        out.push_str("<p class=\"lead\">Nothing: no rule found its threshold passed.</p>");
    }
    out.push_str("<div class=\"cards\">");
    for advice in &summary.advice {
        put!(
            out,
            "<article><h3>{}</h3><p>{}.</p>",
            escaped(&shown(&advice.what)),
            escaped(&capital(&shown(&advice.evidence)))
        );
        if let Some(gain) = &advice.gain {
            put!(out, "<p class=\"gain\"><b>Predicted</b> {}</p>", escaped(&shown(gain)));
        }
        let (command, comment) = page::command(advice);
        put!(out, "<pre><code>{}</code></pre>", escaped(&command));
        if let Some(comment) = comment {
            put!(out, "<p class=\"how\">{}.</p>", escaped(&capital(&comment)));
        }
        put!(out, "<p class=\"when\">Told when: {}.</p></article>", escaped(&shown(&advice.threshold)));
    }
    out.push_str("</div></section>\n");
}

fn one(out: &mut String, summary: &Summary, section: &Section) {
    put!(
        out,
        "<section id=\"{}\"><h2>{}</h2><p class=\"lead\">{}</p>",
        section.id,
        escaped(section.title),
        lead(&section.lead)
    );
    for block in &section.blocks {
        match block {
            PageBlock::Facts(all) => facts(out, all),
            PageBlock::Table(all) => table(out, all),
            PageBlock::Chart(chart) => out.push_str(&draw(*chart, summary)),
        }
    }
    out.push_str("</section>\n");
}

/// Renders text between backquotes as code.
fn lead(text: &str) -> String {
    let tagged = |(at, part): (usize, &str)| match at % 2 {
        0 => escaped(part),
        _ => format!("<code>{}</code>", escaped(part)),
    };
    text.split('`').enumerate().map(tagged).collect()
}

fn facts(out: &mut String, facts: &[(&'static str, String)]) {
    out.push_str("<dl>");
    let mut before = "";
    for (label, value) in facts {
        if *label != before {
            put!(out, "<dt>{}</dt>", escaped(label));
        }
        before = label;
        let class = if matches!(*label, "Flaw" | "Cut off") { " class=\"bad\"" } else { "" };
        put!(out, "<dd{class}>{}</dd>", escaped(value));
    }
    out.push_str("</dl>");
}

fn table(out: &mut String, table: &Table) {
    if !table.title.is_empty() {
        put!(out, "<h3>{}</h3>", escaped(table.title));
    }
    if table.is_searched {
        out.push_str("<p class=\"search\"><input type=\"search\" placeholder=\"Part of a path\" aria-label=\"Show rows with\"><span></span></p>");
    }
    put!(out, "<div class=\"table{}\"><table><thead><tr>", if table.is_searched { " long" } else { "" });
    for column in &table.columns {
        let class = if column.is_number { " class=\"n\"" } else { "" };
        put!(out, "<th{class} scope=\"col\">{}</th>", escaped(column.name));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        out.push_str("<tr>");
        for (cell, column) in row.iter().zip(&table.columns) {
            let class = if column.is_number { " class=\"n\"" } else { "" };
            match cell.key {
                Some(key) if key.is_finite() => put!(out, "<td{class} data-k=\"{key}\">{}</td>", escaped(&cell.text)),
                _ => put!(out, "<td{class}>{}</td>", escaped(&cell.text)),
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    if let Some(note) = &table.note {
        put!(out, "<p class=\"when\">{}</p>", escaped(note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{Made, empty, hostile, made};

    fn page(made: &Made) -> String {
        report(&Summary::of(&mut made.recording()))
    }

    /// Tags in order, without the content of scripts and styles; a tag that is never closed is left out.
    fn tags(page: &str) -> Vec<&str> {
        let (mut tags, mut rest) = (Vec::new(), page);
        while let Some(at) = rest.find('<') {
            let end = rest[at..].find('>').expect("a tag ends") + at;
            let tag = &rest[at + 1..end];
            tags.push(tag);
            rest = &rest[end + 1..];
            for raw in ["script", "style"] {
                if tag.split([' ', '>']).next() == Some(raw) {
                    rest = &rest[rest.find(&format!("</{raw}")).expect("it ends")..];
                }
            }
        }
        tags
    }

    fn is_balanced(page: &str) {
        const VOID: [&str; 4] = ["!doctype", "meta", "input", "br"];
        let mut open = Vec::new();
        for tag in tags(page) {
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            match tag {
                tag if VOID.contains(&name) || tag.ends_with('/') => {}
                tag if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "{tag}"),
                _ => open.push(name),
            }
        }
        assert_eq!(open, [""; 0]);
    }

    #[test]
    fn a_page_is_whole_and_asks_nobody() {
        for made in [made(), empty(), hostile()] {
            let page = page(&made);
            is_balanced(&page);
            assert!(page.contains(POLICY) && page.contains("prefers-color-scheme: dark"));
            for tag in tags(&page) {
                let loads =
                    ["src=", "href=\"h", "href=\"/", "@import", "url("].iter().find(|what| tag.contains(**what));
                assert_eq!(loads, None, "{tag}");
            }
            assert!(!STYLE.contains("url(") && !STYLE.contains("@import") && !SCRIPT.contains("fetch"));
            for none in ["NaN", "inf\"", "=\"-"] {
                let around =
                    page.find(none).map(|at| page[at.saturating_sub(80)..].chars().take(160).collect::<String>());
                assert_eq!(around, None, "a figure that is none");
            }
        }
    }

    /// A name is text everywhere; and however many there are of everything, the page stays small.
    #[test]
    fn names_are_no_markup_and_the_page_is_bounded() {
        let page = page(&hostile());
        assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(1)"), "the names are there");
        assert_eq!(
            page.matches("alert(1)").count(),
            page.matches("&gt;alert(1)").count() + page.matches("\\u003cscript>alert(1)").count()
        );
        let scripts = tags(&page).iter().filter(|tag| tag.starts_with("script")).count();
        assert_eq!((scripts, page.matches("<b>&").count()), (3, 0), "two pictures and the page have one each");
        assert!(!page.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'));
        assert!(page.len() < 5_000_000, "{} bytes", page.len());
    }

    #[test]
    fn what_is_known_is_drawn_and_axes_have_their_units() {
        let page = page(&made());
        for part in [
            "read, MiB/s",
            "written, MiB/s",
            "seconds since the mount",
            "files of at most this size",
            "bytes by process",
            "calls by access size",
            "time of a call, logarithmic",
            "worker 102",
            "step 100",
            "epoch 1",
        ] {
            assert!(page.contains(part), "{part:?} is not there");
        }
        let mut cached = made();
        cached.meta.io_path.name = "cached".into();
        let page = self::page(&cached);
        assert!(
            page.contains("calls by request size") && page.contains("Request sizes") && !page.contains("ccess size")
        );
    }
}

//! The JSON documents for scripts: one object each, whose first key gives the schema. Described in `docs/json.md`.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::path::{is_harmless, unescape};

/// Increased when a key is removed or changes its meaning. A new key does not change it.
pub const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a, T: Serialize> {
    schema: u32,
    #[serde(flatten)]
    body: &'a T,
}

/// A document over several lines, ending with a newline. `body` is an object.
pub fn document(body: &impl Serialize) -> String {
    ended(serde_json::to_string_pretty(&Document { schema: SCHEMA, body }))
}

/// The same on one line.
pub fn line(body: &impl Serialize) -> String {
    ended(serde_json::to_string(&Document { schema: SCHEMA, body }))
}

fn ended(text: serde_json::Result<String>) -> String {
    let mut text = plain(text.expect("plain numbers and strings have a JSON form"));
    text.push('\n');
    text
}

/// The same JSON without what a terminal would follow: JSON itself escapes less. Only strings have such characters.
pub fn plain(json: String) -> String {
    let stays = |c: char| c == '\n' || is_harmless(c);
    if json.chars().all(stays) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match stays(c) {
            true => out.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out
}

/// A text as a JSON string.
pub fn string(text: &str) -> String {
    plain(Value::from(text).to_string())
}

/// A path as a value of a document. What is no text in it is lost: where that would matter, see [`text`].
pub fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A moment since 1970 in RFC 3339 form: `2026-11-26T05:24:41.120Z`.
pub fn timestamp(since_1970: Duration) -> Option<String> {
    let moment = UNIX_EPOCH.checked_add(since_1970)?;
    // Dates with more than four digits for the year are not real moments.
    (since_1970 < Duration::from_secs(253_402_300_800)).then(|| humantime::format_rfc3339_millis(moment).to_string())
}

/// A moment `seconds` after the mount was made, which was `mounted` after 1970 began.
pub fn moment(mounted: Duration, seconds: f64) -> Option<String> {
    Duration::try_from_secs_f64(mounted.as_secs_f64() + seconds).ok().and_then(timestamp)
}

/// Serializes a field that counts since 1970.
pub fn as_timestamp<S: serde::Serializer>(since_1970: &Duration, to: S) -> Result<S::Ok, S::Error> {
    timestamp(*since_1970).serialize(to)
}

/// A field that counts since 1970, in milliseconds.
pub mod date {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(since_1970: &Duration, to: S) -> Result<S::Ok, S::Error> {
        super::as_timestamp(since_1970, to)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        super::from_timestamp(&String::deserialize(from)?)
    }
}

/// The same, or `null`.
pub mod optional_date {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(since_1970: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        since_1970.and_then(super::timestamp).serialize(to)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.as_deref().map(super::from_timestamp).transpose()
    }
}

fn from_timestamp<E: serde::de::Error>(text: &str) -> Result<Duration, E> {
    let moment = humantime::parse_rfc3339(text).map_err(E::custom)?;
    moment.duration_since(UNIX_EPOCH).map_err(E::custom)
}

/// The unescaped form of an escaped text for a document, if that is UTF-8. Otherwise it stays escaped, and the key
/// `NAME_escaped` is true.
pub fn text(name: &str, escaped: &str) -> Map<String, Value> {
    let plain = unescape(escaped).and_then(|bytes| String::from_utf8(bytes).ok());
    let is_escaped = plain.is_none().then(|| (format!("{name}_escaped"), Value::Bool(true)));
    let text = (name.to_owned(), Value::String(plain.unwrap_or_else(|| escaped.to_owned())));
    [text].into_iter().chain(is_escaped).collect()
}

/// Such a text alone, as an element of a list.
pub fn path_of(escaped: &str) -> Value {
    Value::Object(text("path", escaped))
}

/// A text from a document, escaped for a terminal.
pub fn escaped<'a, D: serde::Deserializer<'a>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    Ok(crate::path::escape(text.as_bytes()))
}

/// A span that a document gives in seconds.
pub mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(span.as_secs_f64())
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// The same, or `null`.
pub mod optional_seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        span.map(|span| span.as_secs_f64()).serialize(to)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(from)?;
        seconds.map(Duration::try_from_secs_f64).transpose().map_err(D::Error::custom)
    }
}

/// The field `path` of a structure, which holds it escaped. Use with `flatten`.
pub mod path {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// As [`text`](super::text).
    pub fn serialize<S: Serializer>(escaped: &str, to: S) -> Result<S::Ok, S::Error> {
        super::text("path", escaped).serialize(to)
    }

    #[derive(Deserialize)]
    struct Path {
        path: String,
        #[serde(default)]
        path_escaped: bool,
    }

    /// Escapes it again.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<String, D::Error> {
        let Path { path, path_escaped } = Path::deserialize(from)?;
        Ok(if path_escaped { path } else { crate::path::escape(path.as_bytes()) })
    }
}

/// A field that is a list of paths, which are held escaped.
pub mod paths {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Each as [`path_of`](super::path_of).
    pub fn serialize<S: Serializer>(escaped: &[String], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(escaped.iter().map(|path| super::path_of(path)))
    }

    #[derive(Deserialize)]
    struct Element(#[serde(with = "super::path")] String);

    /// Escapes them again.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<String>, D::Error> {
        Vec::<Element>::deserialize(from).map(|all| all.into_iter().map(|Element(path)| path).collect())
    }
}

/// The field `to`, if there is one.
pub mod to {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// As [`text`](super::text).
    pub fn serialize<S: Serializer>(escaped: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
        match escaped {
            Some(escaped) => super::text("to", escaped).serialize(to),
            None => serde_json::json!({ "to": null }).serialize(to),
        }
    }

    #[derive(Deserialize)]
    struct To {
        to: Option<String>,
        #[serde(default)]
        to_escaped: bool,
    }

    /// Escapes it again.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<String>, D::Error> {
        let To { to, to_escaped } = To::deserialize(from)?;
        Ok(to.map(|to| if to_escaped { to } else { crate::path::escape(to.as_bytes()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_says_first_which_form_it_has() {
        let body = serde_json::json!({ "a": 1 });
        assert_eq!(
            (line(&body).as_str(), document(&body).lines().nth(1)),
            ("{\"schema\":1,\"a\":1}\n", Some("  \"schema\": 1,"))
        );
    }

    #[test]
    fn a_document_has_nothing_that_a_terminal_follows_and_says_the_same() {
        let name = "a\u{1b}[2J\u{7f}\u{9b}31m\u{202e}\u{e0041}\n模型";
        let text = document(&serde_json::json!({ "name": name }));
        assert!(text.chars().all(|c| c == '\n' || is_harmless(c)), "{text:?}");
        assert!(text.contains(r"\u009b31m\u202e\udb40\udc41\n模型"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["name"], name);
    }

    #[test]
    fn a_moment_is_a_date_or_none() {
        assert_eq!(timestamp(Duration::from_millis(1_764_134_681_120)).as_deref(), Some("2025-11-26T05:24:41.120Z"));
        assert_eq!((timestamp(Duration::MAX), timestamp(Duration::from_secs(1 << 50))), (None, None));
    }

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Named {
        #[serde(flatten, with = "path")]
        path: String,
        #[serde(flatten, with = "to")]
        to: Option<String>,
        size: u64,
    }

    #[test]
    fn a_path_is_as_it_is_where_that_is_text() {
        let named = |path: &str, to: Option<&str>| Named { path: path.into(), to: to.map(str::to_owned), size: 1 };
        for (named, text) in [
            (named("/a%20b", None), r#"{"path":"/a b","to":null,"size":1}"#),
            (named("/%C3%A9%25", Some("/c")), r#"{"path":"/é%","to":"/c","size":1}"#),
            (
                named("/%FF%20", Some("/%FE")),
                r#"{"path":"/%FF%20","path_escaped":true,"to":"/%FE","to_escaped":true,"size":1}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&named).expect("a form"), text);
            assert_eq!(serde_json::from_str::<Named>(text).expect("our own"), named);
        }
    }
}

//! Names and paths as bytes: any byte but `/` and NUL; and the one escape by which texts from outside reach people.
//!
//! Users name files, processes, mount points, hosts, marks. A terminal, a log or a page gets such a name as one of two
//! forms: [`escape`] makes one ASCII word of it, which is read back where the name is; [`Printable`], [`readable`] and
//! [`harmless`] leave letters of all languages as they are, and escape only what would be followed instead of shown. `display()` and lossy
//! texts of names are refused in `src` by `tests/architecture.rs`.
//!
//! The engine never hands a path to the kernel: it walks names one by one beneath a directory descriptor, so nothing
//! here normalises `..` or follows links.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crate::error::Errno;

/// One component of a path. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Debug)]
#[debug("\"{self}\"")]
pub struct Name(Arc<[u8]>);

/// The longest name Linux file systems take, in bytes.
pub const NAME_MAX: usize = 255;

impl Name {
    /// Checks a component that came from outside.
    ///
    /// Errors: ENAMETOOLONG beyond 255 bytes; EINVAL for an empty name, `.`, `..`, or one with `/` or NUL in it.
    pub fn new(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(Errno::EINVAL);
        }
        Ok(Name(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Allows map look-ups by unchecked bytes.
impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

/// Numbers of directories, by the number of the one above and the name in it. Hashed by SipHash, because users choose the
/// names.
#[derive(Debug, Default)]
pub struct DirNumbers(HashMap<Box<[u8]>, u64>);

impl DirNumbers {
    fn key(above: u64, name: &[u8]) -> Box<[u8]> {
        [&above.to_ne_bytes()[..], name].concat().into()
    }

    pub fn get(&self, above: u64, name: &[u8]) -> Option<u64> {
        self.0.get(&*Self::key(above, name)).copied()
    }

    pub fn insert(&mut self, above: u64, name: &[u8], number: u64) {
        self.0.insert(Self::key(above, name), number);
    }

    pub fn remove(&mut self, above: u64, name: &[u8]) {
        self.0.remove(&*Self::key(above, name));
    }
}

/// Bytes as one printable ASCII word: everything but letters, digits and `-_./+,:@~` becomes `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    escape_into(&mut out, bytes);
    out
}

/// The same, behind what is there.
pub fn escape_into(out: &mut String, bytes: &[u8]) {
    let hex = |digit: u8| char::from(if digit < 10 { b'0' + digit } else { b'A' + digit - 10 });
    for &b in bytes {
        if is_plain(b) {
            out.push(b as char);
        } else {
            out.extend(['%', hex(b >> 4), hex(b & 15)]);
        }
    }
}

/// Whether a terminal, a browser or a reader of lines shows the character instead of following it: no control character,
/// none that reorders or hides others, and none that ends a line.
pub fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}')
        && !matches!(c, '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

/// A text from outside as one harmless line: `\n` and `\u{9b}` stand for what would be followed.
pub fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmless)
}

/// The same for a text of ours, whose lines and columns stay.
pub fn harmless_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t') || is_harmless(c))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&stays) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if stays(c) { out.push(c) } else { out.extend(c.escape_default()) }
    }
    out.into()
}

/// A name or path for people, on one line: see [`harmless`]. A byte that is no text is `\xff`.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(&'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            out.push_str(&harmless(chunk.valid()));
            chunk.invalid().iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))?;
        }
        f.pad(&out)
    }
}

/// An [`escape`]d name or path for people, as [`Printable`] shows it. What `escape` cannot have written stays, but for what would be
/// followed.
pub fn readable(escaped: &str) -> String {
    match unescape(escaped) {
        Some(bytes) => Printable(&bytes).to_string(),
        None => harmless(escaped).into_owned(),
    }
}

/// What names something outside, and is shown to people by no other way.
pub trait Show {
    fn shown(&self) -> Printable<'_>;
}

impl Show for [u8] {
    fn shown(&self) -> Printable<'_> {
        Printable(self)
    }
}

impl Show for OsStr {
    fn shown(&self) -> Printable<'_> {
        Printable(self.as_encoded_bytes())
    }
}

impl Show for Path {
    fn shown(&self) -> Printable<'_> {
        self.as_os_str().shown()
    }
}

/// How long [`escape`] makes them.
pub fn escaped_len(bytes: &[u8]) -> usize {
    bytes.iter().map(|b| if is_plain(*b) { 1 } else { 3 }).sum()
}

fn is_plain(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-_./+,:@~".contains(&b)
}

/// The inverse of [`escape`]; `None` for anything `escape` cannot have written.
pub fn unescape(word: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(word.len());
    let mut bytes = word.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let hex = |d: u8| (d as char).to_digit(16);
            let (high, low) = (hex(bytes.next()?)?, hex(bytes.next()?)?);
            out.push((high * 16 + low) as u8);
        } else if b.is_ascii_graphic() {
            out.push(b);
        } else {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_round_trips_every_byte() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)).expect("own output"), all);
        assert!(escape(&all).is_ascii());
        assert!(!escape(&all).contains([' ', '=', '\n']));
    }

    #[test]
    fn unescape_refuses_what_escape_cannot_write() {
        for bad in ["%", "%4", "%zz", "a b", "\u{e9}"] {
            assert_eq!(unescape(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_is_shown_is_one_line_that_nothing_follows() {
        for (text, shown) in [
            ("模型 3.pt\u{e9}\\", "模型 3.pt\u{e9}\\"),
            ("a\nSAFE: all\r\t\u{1b}[31m\u{7f}", "a\\nSAFE: all\\r\\t\\u{1b}[31m\\u{7f}"),
            ("a\u{9b}31m\u{202e}b\u{2028}c", "a\\u{9b}31m\\u{202e}b\\u{2028}c"),
        ] {
            assert_eq!((&*harmless(text), Path::new(text).shown().to_string().as_str()), (shown, shown));
        }
        assert_eq!(harmless_lines("a\tb\n\u{1b}\u{85}"), "a\tb\n\\u{1b}\\u{85}");
        assert_eq!(Printable(b"a\xff\xe6\xa8b").to_string(), "a\\xff\\xe6\\xa8b");
        assert_eq!(format!("{:<4}|{:>4}", Printable(b"ab"), Printable(b"ab")), "ab  |  ab");
        for (name, shown) in [("/模型 %C3/é", "/模型 %C3/é"), ("/a\n\u{202e}b", "/a\\n\\u{202e}b")] {
            assert_eq!(readable(&escape(name.as_bytes())), shown);
        }
        assert_eq!((readable("/%FF"), readable("no name\t")), ("/\\xff".to_owned(), "no name\\t".to_owned()));
        let all: String = (0..=char::MAX as u32).filter_map(char::from_u32).collect();
        assert!(harmless(&all).chars().all(is_harmless));
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(Name::new(&[b'a'; 256]), Err(Errno::ENAMETOOLONG));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(bad), Err(Errno::EINVAL));
        }
        assert!(Name::new(b"\xff\n=").is_ok());
    }
}

//! Names and paths as bytes: any byte but `/` and NUL, escaped for the log and for people.
//!
//! The engine never hands a path to the kernel: it walks names one by one beneath a directory descriptor, so nothing
//! here normalises `..` or follows links.

use std::borrow::Borrow;
use std::fmt;
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

/// Bytes as one printable ASCII word: everything but letters, digits and `-_./+,:@~` becomes `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &b in bytes {
        if b.is_ascii_alphanumeric() || b"-_./+,:@~".contains(&b) {
            out.push(b as char);
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
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
    fn names_are_checked() {
        assert_eq!(Name::new(&[b'a'; 256]), Err(Errno::ENAMETOOLONG));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(bad), Err(Errno::EINVAL));
        }
        assert!(Name::new(b"\xff\n=").is_ok());
    }
}

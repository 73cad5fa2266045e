//! An address to listen on, as text: `HOST:PORT`, or only a port.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The host if only a port is given: reachable from this machine only.
const LOOPBACK: &str = "127.0.0.1";

/// A host, by name or number, and a port; 0 for any free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = "not an address; write HOST:PORT, [IPV6]:PORT, or only a port for this machine alone";
        let (host, port) = text.rsplit_once(':').unwrap_or((LOOPBACK, text));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // Digits only: parsing a number would also accept a sign.
        let port = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()));
        let host = bare.or(Some(host).filter(|host| !host.contains([':', '[', ']'])));
        let host = host.filter(|host| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/'));
        match (host, port) {
            (Some(host), Some(port)) => Ok(Listen { host: host.to_owned(), port }),
            _ => Err(error),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Port(i64),
            Text(String),
        }
        let text = match Written::deserialize(d) {
            Ok(Written::Port(port)) => port.to_string(),
            Ok(Written::Text(text)) => text,
            // Refused like an invalid address.
            Err(_) => String::new(),
        };
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, host, port, shown) in [
            ("9464", "127.0.0.1", 9464, "127.0.0.1:9464"),
            ("0", "127.0.0.1", 0, "127.0.0.1:0"),
            ("0.0.0.0:80", "0.0.0.0", 80, "0.0.0.0:80"),
            ("node-7.cluster:9464", "node-7.cluster", 9464, "node-7.cluster:9464"),
            ("[::1]:9464", "::1", 9464, "[::1]:9464"),
        ] {
            let read: Listen = text.parse().expect(text);
            assert_eq!((read.host.as_str(), read.port), (host, port));
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse(), Ok(read), "what is written can be read");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", ":", ":9464", "host", "host:", "host:+1", "host:65536", "-1", "::1:9464", "a b:1", "http://a:1"]
        {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}

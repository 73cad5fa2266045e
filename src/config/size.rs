//! Bytes as text, `64MiB`, or as a plain number.

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serializer, de};

pub(super) fn serialize<S: Serializer>(value: &u64, s: S) -> Result<S::Ok, S::Error> {
    // Exact, unlike `ByteSize`'s own text, which rounds: a value that is written and read again must not change.
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| *value >= *unit && value.is_multiple_of(*unit)) {
        Some((unit, name)) => s.collect_str(&format_args!("{}{name}", *value / unit)),
        None => s.serialize_u64(*value),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    let error = || de::Error::custom("not a size; write bytes, or a number and a unit, as \"64MiB\" or \"2GiB\"");
    let bytes = match Size::deserialize(d).map_err(|_| error())? {
        Size::Bytes(bytes) => bytes,
        Size::Text(text) => text.parse::<ByteSize>().map_err(|_| error())?.0,
    };
    // TOML has signed numbers only, and no tier has an exbibyte.
    if bytes <= 1 << 60 { Ok(bytes) } else { Err(error()) }
}

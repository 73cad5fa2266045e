//! How reads and writes travel.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// How reads and writes travel, and with that how much of them the daemon sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(into = "&str", try_from = "String")]
#[strum(serialize_all = "lowercase")]
pub enum IoPath {
    /// The daemon sees every read and write as it was issued.
    #[default]
    Exact,
    /// Through the kernel's page cache: the daemon sees writes, and reads that the cache could not answer.
    Cached,
    /// Files that nobody writes are read by the kernel itself; the daemon sees their opens and closes.
    Passthrough,
}

impl IoPath {
    pub const ALL: [IoPath; 3] = [IoPath::Exact, IoPath::Cached, IoPath::Passthrough];

    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl TryFrom<String> for IoPath {
    type Error = &'static str;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        let found = IoPath::ALL.into_iter().find(|path| path.name() == word);
        found.ok_or("no such I/O path; write \"exact\", \"cached\" or \"passthrough\"")
    }
}

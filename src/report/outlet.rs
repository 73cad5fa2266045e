//! Where documents go.

use std::io::{self, Write};

/// Where a document goes: as one part at first.
pub trait Outlet: Write + Send {
    /// Ends the part and begins another, of the same document.
    fn next(&mut self) -> io::Result<()>;
    /// Ends the part, if it is not empty, and begins that of a table.
    fn table(&mut self, name: &str) -> io::Result<()>;
}

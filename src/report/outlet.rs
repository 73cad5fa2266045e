//! Where documents go.

use std::io::{self, Write};

/// Where a document goes: to begin with as one part.
pub trait Outlet: Write + Send {
    /// Ends the part and begins another, of the same document.
    fn next(&mut self) -> io::Result<()>;
    /// Ends the part, if anything is in it, and begins that of a table.
    fn table(&mut self, name: &str) -> io::Result<()>;
}

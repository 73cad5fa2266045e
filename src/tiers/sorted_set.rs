//! A set that is made once and asked often, usually for values near the last one: they lie side by side. Pure.

/// Ascending, without duplicates.
#[derive(Debug)]
pub(crate) struct SortedSet<T>(Vec<T>);

impl<T: Ord> SortedSet<T> {
    pub(crate) fn contains(&self, one: &T) -> bool {
        self.0.binary_search(one).is_ok()
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all: Vec<T> = all.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        SortedSet(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found_and_nothing_else() {
        let sorted: SortedSet<u32> = [5, 1, 5, 3].into_iter().collect();
        let found: Vec<_> = (0..7).filter(|one| sorted.contains(one)).collect();
        assert_eq!(found, [1, 3, 5]);
        assert!(!SortedSet::from_iter([0_u32; 0]).contains(&0));
    }
}

//! Sorted lists, made once and searched often. Pure.

/// Ascending, without duplicates. A search usually asks for a value near the last one, which lies beside it.
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

/// The value of a key in a list of pairs that is sorted by key.
pub(crate) fn beside<K: Ord + Copy, V>(sorted: &[(K, V)], key: K) -> Option<&V> {
    let at = sorted.binary_search_by_key(&key, |(key, _)| *key).ok()?;
    sorted.get(at).map(|(_, value)| value)
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

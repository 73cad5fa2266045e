//! A deque that stores a single element inline. Pure.

use std::collections::VecDeque;

/// Elements in the order in which they came.
#[derive(Debug, Default)]
pub(crate) enum SmallDeque<T> {
    #[default]
    None,
    One(T),
    /// Boxed so that this variant is one word wide.
    #[allow(clippy::box_collection, reason = "in 8 bytes, no more than one takes as a rule")]
    More(Box<VecDeque<T>>),
}

impl<T> SmallDeque<T> {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, SmallDeque::None)
    }

    /// The latest element.
    pub(crate) fn back(&self) -> Option<&T> {
        match self {
            SmallDeque::None => None,
            SmallDeque::One(one) => Some(one),
            SmallDeque::More(more) => more.back(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        let (one, more) = match self {
            SmallDeque::None => (None, None),
            SmallDeque::One(one) => (Some(one), None),
            SmallDeque::More(more) => (None, Some(more.iter())),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    /// The elements after the leading ones for which `before` is true.
    pub(crate) fn behind(&self, before: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
        let (one, more) = match self {
            SmallDeque::None => (None, None),
            SmallDeque::One(one) => (Some(one).filter(|one| !before(one)), None),
            SmallDeque::More(more) => (None, Some(more.range(more.partition_point(&before)..))),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    pub(crate) fn push_back(&mut self, new: T) {
        *self = match std::mem::take(self) {
            SmallDeque::None => SmallDeque::One(new),
            SmallDeque::One(one) => SmallDeque::More(Box::new(VecDeque::from([one, new]))),
            SmallDeque::More(mut more) => {
                more.push_back(new);
                SmallDeque::More(more)
            }
        };
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let SmallDeque::More(more) = self else {
            return match std::mem::take(self) {
                SmallDeque::One(one) => Some(one),
                _ => None,
            };
        };
        let front = more.pop_front();
        self.settle();
        front
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        match self {
            SmallDeque::One(one) if !keep(one) => *self = SmallDeque::None,
            SmallDeque::More(more) => {
                more.retain(keep);
                self.settle();
            }
            _ => {}
        }
    }

    /// Frees the box once fewer than two elements are left.
    fn settle(&mut self) {
        if let SmallDeque::More(more) = self
            && more.len() < 2
        {
            *self = more.pop_front().map_or(SmallDeque::None, SmallDeque::One);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_a_list() {
        let mut few = SmallDeque::default();
        let mut all = VecDeque::new();
        for number in 0..5 {
            assert_eq!((few.is_empty(), few.back()), (all.is_empty(), all.back()));
            few.push_back(number);
            all.push_back(number);
            assert!(few.iter().eq(&all), "{few:?}");
            for first in 0..=5 {
                assert!(few.behind(|number| *number < first).eq(all.iter().skip(first)), "{few:?}");
            }
        }
        few.retain(|number| number % 2 == 0);
        all.retain(|number| number % 2 == 0);
        while !all.is_empty() {
            assert!(few.iter().eq(&all), "{few:?}");
            assert_eq!(few.pop_front(), all.pop_front());
        }
        assert!(few.is_empty() && few.pop_front().is_none());
        few.push_back(7);
        few.retain(|_| false);
        assert!(few.is_empty());
    }
}

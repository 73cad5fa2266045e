//! Requests to a tier that need not wait for each other: looks at names of a slow server, syncs that share a commit of
//! the disk's journal.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// At most so many requests are under way.
const AT_ONCE: usize = 8;
/// A request that takes at least this long is worth a thread.
const SLOW: Duration = Duration::from_micros(500);

/// Asks for each item, and returns the answers in their order. The first request shows how long one takes: if the tier
/// is slow, the others are made side by side. `uptime` tells the time.
pub(crate) fn ask_each<T: Sync, R: Send>(
    uptime: impl Fn() -> Duration,
    items: &[T],
    ask: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let Some((first, rest)) = items.split_first() else { return Vec::new() };
    let began = uptime();
    let mut answers = vec![ask(first)];
    if rest.len() < 2 || uptime().saturating_sub(began) < SLOW {
        answers.extend(rest.iter().map(ask));
        return answers;
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, rest.get(at)?)));
        std::iter::from_fn(take).map(|(at, item)| (at, ask(item))).collect::<Vec<_>>()
    };
    let mut found: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (1..rest.len().min(AT_ONCE)).map(|_| scope.spawn(work)).collect();
        let mine = work();
        let theirs = threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|e| resume_unwind(e)));
        theirs.chain(mine).collect()
    });
    found.sort_by_key(|(at, _)| *at);
    answers.extend(found.into_iter().map(|(_, answer)| answer));
    answers
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    fn ask_on(tier: Duration, ask: impl Fn(&u32) -> u32 + Sync) -> (Vec<u32>, usize) {
        let (items, threads): (Vec<u32>, _) = ((0..40).collect(), Mutex::new(HashSet::new()));
        let clock = std::cell::Cell::new(Duration::ZERO);
        let uptime = || {
            clock.set(clock.get() + tier);
            clock.get()
        };
        let answers = ask_each(uptime, &items, |item| {
            threads.lock().expect("no panic").insert(thread::current().id());
            ask(item)
        });
        (answers, threads.into_inner().expect("no panic").len())
    }

    #[test]
    fn a_fast_tier_is_asked_by_one_thread() {
        let (answers, threads) = ask_on(Duration::from_micros(20), |item| item * 2);
        assert_eq!((answers, threads), ((0..40).map(|item| item * 2).collect(), 1));
    }

    /// The second to ninth requests wait for each other: one thread alone would never end.
    #[test]
    fn a_slow_tier_is_asked_side_by_side_and_the_answers_keep_their_order() {
        let together = Barrier::new(AT_ONCE);
        let (answers, threads) = ask_on(SLOW, |item| {
            if (1..=AT_ONCE as u32).contains(item) {
                together.wait();
            }
            item * 2
        });
        assert_eq!((answers, threads), ((0..40).map(|item| item * 2).collect(), AT_ONCE));
    }
}

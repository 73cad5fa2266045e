//! Parallel requests to a tier: lookups of names on a slow server, syncs that share a commit of the disk's journal.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// At most this many requests are in flight.
const AT_ONCE: usize = 8;
/// A request that takes at least this long is worth a thread.
const SLOW: Duration = Duration::from_micros(500);

/// Makes a request for each item, and returns the answers in their order. The first request shows how long one takes:
/// on a slow tier the others run in parallel. `uptime` returns the time.
///
/// Errors: the first one. Then no more requests are made: a tier that does not answer blocks each of them.
pub(crate) fn ask_each<T: Sync, R: Send, E: Send>(
    uptime: impl Fn() -> Duration,
    items: &[T],
    ask: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let Some((first, rest)) = items.split_first() else { return Ok(Vec::new()) };
    let began = uptime();
    let mut answers = vec![ask(first)?];
    if rest.len() < 2 || uptime().saturating_sub(began) < SLOW {
        for item in rest {
            answers.push(ask(item)?);
        }
        return Ok(answers);
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<Vec<(usize, R)>, E> {
        let mut found = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = rest.get(at) else { break };
            found.push((at, ask(item).inspect_err(|_| failed.store(true, Ordering::Relaxed))?));
        }
        Ok(found)
    };
    let shares = thread::scope(|scope| {
        // If threads cannot be started, this one does the rest.
        let spawn = |_| thread::Builder::new().name("dlio-ask".to_owned()).spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..rest.len().min(AT_ONCE)).filter_map(spawn).collect();
        let mine = work();
        let theirs = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        theirs.chain([mine]).collect::<Result<Vec<_>, E>>()
    });
    let mut found: Vec<(usize, R)> = shares?.into_iter().flatten().collect();
    found.sort_by_key(|(at, _)| *at);
    answers.extend(found.into_iter().map(|(_, answer)| answer));
    Ok(answers)
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
            Ok::<_, ()>(ask(item))
        });
        (answers.expect("no error"), threads.into_inner().expect("no panic").len())
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

    /// However many requests hang, no further one is made.
    #[test]
    fn after_an_error_nothing_more_is_asked() {
        let asked = AtomicUsize::new(0);
        let items: Vec<u32> = (0..1000).collect();
        for first_bad in [0, 1, 500] {
            asked.store(0, Ordering::Relaxed);
            let clock = std::cell::Cell::new(Duration::ZERO);
            let uptime = || {
                clock.set(clock.get() + SLOW);
                clock.get()
            };
            let answers = ask_each(uptime, &items, |item| {
                asked.fetch_add(1, Ordering::Relaxed);
                if *item < first_bad { Ok(()) } else { Err(*item) }
            });
            assert!(answers.is_err_and(|item| item >= first_bad));
            assert!(asked.load(Ordering::Relaxed) <= first_bad as usize + AT_ONCE, "{asked:?}");
        }
    }
}

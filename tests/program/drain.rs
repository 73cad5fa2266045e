//! How long the drain says that it will take, beside how long it takes.

use std::time::{Duration, Instant};

use crate::common::{Mount, Relay, pattern, until};
use crate::needs::{MOUNTS, needs};

/// Writes files of so many MiB in all, and looks at the ETA until they are on the slow tier: from the third second on it is within 30 % of
/// what was, or a second.
fn expect_true_etas(mount: &Mount, files: usize, mib: usize) {
    let bytes = pattern(mib << 20);
    (0..files).for_each(|n| drop(mount.put(&format!("ckpt-{n}"), &bytes)));
    let (begun, mut told) = (Instant::now(), Vec::new());
    until("all is on the slow tier", || {
        let safety = mount.stats_json()["safety"].clone();
        told.push((begun.elapsed(), safety["eta"].as_f64()));
        std::thread::sleep(Duration::from_millis(200));
        safety["safe"] == true
    });
    let end = told.last().unwrap().0;
    assert!(end > Duration::from_secs(6), "too short to say anything: {end:?}");
    for (at, eta) in &told {
        let left = (end - *at).as_secs_f64();
        let is_true = eta.is_some_and(|eta| (eta - left).abs() <= 1.0f64.max(0.3 * left));
        assert!(is_true || *at < Duration::from_secs(3), "{eta:?} at {at:?} of {end:?}: {told:?}");
    }
}

#[test]
#[ignore = "compares times, and so needs a machine that does nothing else: cargo test --test program -- --ignored drain::"]
fn with_a_limit_the_eta_is_that_of_the_limit() {
    needs!(MOUNTS);
    let mount = Mount::with(&["drain_bandwidth=24MiB", "settle=0s"], |_| ());
    expect_true_etas(&mount, 3, 80);
}

/// One large file: what has arrived of it counts.
#[test]
#[ignore = "compares times, and so needs a machine that does nothing else: cargo test --test program -- --ignored drain::"]
fn on_a_slow_tier_the_eta_is_that_of_what_arrives() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::showing(&["--write-rate=20M"], |_| ());
    let mount = Mount::over(below.shown(), &["settle=0s"]);
    expect_true_etas(&mount, 1, 200);
}

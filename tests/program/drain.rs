//! What the drain tells of itself: how long it will take, beside how long it takes, and what it costs.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::rig::{program, wait};
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

#[test]
fn what_draining_costs_is_told_once_something_was_drained() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s"], |_| ());
    let told = || {
        let lines = |name: &str| -> Vec<String> {
            fs::read_to_string(mount.at(".dlio").join(name)).unwrap().lines().map(str::to_owned).collect()
        };
        let line = lines("stats").into_iter().find(|line| line.contains("CPU seconds per GiB drained")).unwrap();
        let is_sample = |line: &String| line.starts_with("dliofs_drain_cpu_seconds_per_gib");
        let metric = lines("metrics").into_iter().find(is_sample);
        let cost = mount.stats_json()["pipeline"]["drain_cpu_per_gib"].as_f64();
        (cost, line, metric)
    };
    let (cost, line, metric) = told();
    assert_eq!((cost, metric), (None, None), "nothing was measured");
    assert!(line.trim_start().starts_with("unknown "), "{line}");
    mount.put("checkpoint", pattern(8 << 20));
    until("it is on the slow tier", || mount.stats_json()["safety"]["safe"] == true);
    let (cost, line, metric) = told();
    let cost = cost.expect("it was measured");
    assert!(cost > 0.0 && cost < 1000.0, "{cost}");
    assert!(line.trim_start().starts_with(&format!("{cost:.2} ")), "{cost}: {line}");
    let metric = metric.expect("a sample");
    // Both are made of the same nanoseconds, and not with the same last bit.
    let of_metric: f64 = metric.split(' ').next_back().unwrap().parse().unwrap();
    assert!((of_metric - cost).abs() < 1e-9, "{metric} {cost}");
}

/// It said only that a read had failed with "os error 103".
#[test]
fn whoever_waits_for_a_daemon_that_dies_learns_the_remedy() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=30min,live_after=1h"], |_| ());
    mount.put("ckpt", "weights");
    mount.control("pause");
    let sync = program().arg("sync").arg(mount.root()).stderr(Stdio::piped()).spawn().unwrap();
    let files = format!("/proc/{}/fd", sync.id());
    until("it has opened the control file", || {
        let open = fs::read_dir(&files).unwrap().filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        open.into_iter().any(|file| file == mount.at(".dlio/control"))
    });
    mount.signal(Signal::SIGKILL);
    let (code, said) = wait(sync);
    assert!(code == Some(1) && said.contains("is gone; mount it again with the same tiers"), "{code:?} {said}");
    mount.kill();
}

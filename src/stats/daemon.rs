//! The machine resources that the daemon itself uses, as the system counts them.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use procfs::process::Process;

use super::status::DaemonFigures;

/// The current usage.
pub fn usage() -> DaemonFigures {
    let time = |time: TimeVal| Duration::from_micros(time.num_microseconds().unsigned_abs());
    let used = getrusage(UsageWho::RUSAGE_SELF).ok();
    let status = Process::myself().and_then(|process| process.status()).ok();
    DaemonFigures {
        cpu: used.map(|used| time(used.user_time()) + time(used.system_time())),
        resident_bytes: status.and_then(|status| status.vmrss).map(|kib| kib << 10),
        // Without the one that counts them.
        descriptors: fs::read_dir("/proc/self/fd").ok().map(|all| (all.count() as u64).saturating_sub(1)),
        descriptors_max: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_takes_is_told() {
        let before = usage();
        let held: Vec<_> = (0..3).map(|_| fs::File::open("/proc/self/stat").expect("there is one")).collect();
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        // Other tests of this process open and close files meanwhile, so the exact number is not known.
        let now = usage();
        assert!(now.descriptors.expect("known") >= 3 + held.len() as u64, "{now:?}");
        assert!(now.descriptors_max >= now.descriptors && now.cpu.expect("known") >= before.cpu.expect("known"));
        assert!(now.resident_bytes.expect("known") >= memory.len() as u64, "{now:?}");
        assert!(now.cpu > Some(Duration::ZERO));
    }
}

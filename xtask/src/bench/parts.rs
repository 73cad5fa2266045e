//! What `cargo xtask bench` measures: a row for each section of the document.

use super::peers::{
    BARE, BARE_1MIN, BARE_1S, BELIEVED, BINDFS, BINDFS_FAST, Beside, FLEET, FLEET_MORE, JUICEFS, LOGGEDFS, MERGERFS,
    MERGERFS_CACHED, NO_PROFILE, OBSERVED, RCLONE,
};
use crate::testbed::Device;

/// The summary; the page of each part is in [`FIGURES`].
pub(super) const DOCUMENT: &str = "BENCHMARKS.md";
/// Where figures, plots and notes are, from the document on.
pub(super) const FIGURES: &str = "docs/benchmarks";

/// A page: one `dlio-fs-bench` with Optane as its fast tier.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Its first paragraph.
    pub(super) about: &'static str,
    /// Of `dlio-fs-bench`.
    pub(super) bench: &'static str,
    pub(super) args: &'static str,
    /// In place of `args`, with `--quick`.
    pub(super) quick: &'static str,
    pub(super) slow: Device,
    pub(super) beside: &'static [Beside],
    /// On disks of its own, as `--many-inodes` of the testbed has them.
    pub(super) many_inodes: bool,
    /// However many are asked for: where one makes millions of files.
    pub(super) runs_max: Option<u32>,
}

pub(super) const PARTS: &[Part] = &[
    Part {
        name: "tiers",
        about: "The disks as the paper's Table I has them, and the mount over them: one large file written, with its \
                fsync, and read cold; small files read cold.",
        bench: "tiers",
        args: "--io exact,passthrough",
        quick: "--io exact,passthrough --size 64MiB",
        slow: Device::Hdd,
        beside: &[Beside::Disk(Device::Ssd)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "checkpoint",
        about: "The paper's Fig. 9: five checkpoints of 600 MB, each fsynced and moved into its place. How long the \
                application is blocked, and when the last byte is on the slow tier.",
        bench: "checkpoint",
        args: "--count 5 --size 600MB",
        quick: "--count 2 --size 20MB",
        slow: Device::Hdd,
        beside: &[
            Beside::Disk(Device::Ssd),
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&RCLONE, Device::Hdd),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ranks",
        about: "Eight ranks save three checkpoints of 0.84 GB at once, a shard of 105 MB each, with an fsync, a barrier and a marker; then \
                they read them, cold. DLIO shape, scaled: a Llama 3 model of 60 million parameters, 14 bytes each; not an MLPerf result. \
                Ranks are threads, and each writes plain bytes; of each checkpoint the slowest one counts.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB",
        quick: "--ranks 4 --count 2 --shard 2MB",
        slow: Device::Hdd,
        beside: &[
            Beside::Disk(Device::Ssd),
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&JUICEFS, Device::Hdd),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "pace",
        about: "As `ranks`, with 8 s of training between the checkpoints, which the slow tier sustains: what the mount tells of that, beside what \
                happens.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB --interval 8s",
        quick: "--ranks 4 --count 2 --shard 2MB --interval 4s",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ranks-torch",
        about: "As `ranks`, with a process for each rank, which saves tensors of 16 MiB by `torch.save` and an fsync.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB --save torch",
        quick: "--ranks 2 --count 2 --shard 2MB --save torch",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ranks-dcp",
        about: "As `ranks`, by `torch.distributed.checkpoint`, all ranks together.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB --save dcp",
        quick: "--ranks 2 --count 2 --shard 2MB --save dcp",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ingest",
        about: "The paper's Figs. 4 to 7: an epoch of a data set of JPEGs, cold, shuffled, by 1 to 8 threads: read \
                only, decoded, and with batches prepared ahead; of files that are on the slow tier only, and of files \
                staged before.",
        bench: "ingest",
        // The HDD gives 150 of them a second: an epoch takes it two seconds, and there are a hundred in a run.
        args: "--files 256",
        quick: "--files 64",
        slow: Device::Hdd,
        beside: &[
            Beside::Disk(Device::Ssd),
            Beside::Peer(&MERGERFS, Device::Hdd),
            Beside::Peer(&BINDFS, Device::Hdd),
            Beside::Peer(&RCLONE, Device::Hdd),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "epoch",
        about: "Two data sets read for simulated accelerators, cold: 64 files of 8 MB, as of unet3d, and 512 of 112 KiB, as of resnet. First by \
                4 threads as fast as it goes; from that follows how many H100 (MLPerf Storage v1.0) a place feeds at a utilisation of \
                90 %. That many, rounded down and at least one, are then simulated: each sleeps for as long as it would compute, and four \
                readers serve all. DLIO shape, scaled; not an MLPerf \
                result.",
        bench: "epoch",
        args: "--large-files 64 --large-size 8MB --small-files 512",
        quick: "--large-files 4 --large-size 4MB --small-files 32",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "interference",
        about: "How much a training loop slows down: 40 steps of 100 ms on one of the two processors, each with 8 files of 112 KiB that 4 \
                threads read ahead, cold. With nothing beside it; with 3 saves of 100 MB for which it waits; with the same saves by a \
                thread beside it; and, in the mount, while 1 GB that was saved before is drained at full speed. A slowdown is of the \
                steps in the same time, with nothing beside them, in the same place and run.",
        bench: "interference",
        args: "--steps 40 --compute 100ms --every 10 --size 100MB --backlog 1GB",
        quick: "--steps 20 --compute 50ms --every 10 --size 10MB --backlog 200MB",
        slow: Device::Hdd,
        beside: &[Beside::Peer(&MERGERFS, Device::Optane)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "files",
        about: "What the file system itself costs: the page cache is hot and no disk is waited for. A large file by block \
                size, small files, metadata; all peers are over Optane. `slow files` of a mount are on the slow tier only and not staged; the \
                others were written through it.",
        bench: "files",
        // All of them, twice over with rclone, and the log of LoggedFS fit on Optane.
        args: "--io exact,cached,passthrough --size 128MiB --listing 1000",
        quick: "--io exact,cached,passthrough --size 16MiB --files 64 --entries 200 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&MERGERFS_CACHED, Device::Optane),
            Beside::Peer(&BINDFS, Device::Optane),
            Beside::Peer(&BINDFS_FAST, Device::Optane),
            Beside::Peer(&RCLONE, Device::Optane),
            Beside::Peer(&LOGGEDFS, Device::Optane),
            Beside::Peer(&BARE, Device::Optane),
            Beside::Peer(&BARE_1MIN, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "listing",
        about: "As `files`, with many files: find over a tree of 100,000, and ls of one directory with as many. Without rclone \
                and LoggedFS, which would be writing for longer than the others are measured.",
        bench: "files",
        // The HDD has to find 100,000 inodes should the kernel have let go of some: no figure, but no error either.
        args: "--size 1MiB --files 16 --entries 100 --listing 100000 -o slow_wait=60s",
        quick: "--size 1MiB --files 16 --entries 100 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&MERGERFS_CACHED, Device::Optane),
            Beside::Peer(&BINDFS, Device::Optane),
            Beside::Peer(&BINDFS_FAST, Device::Optane),
            Beside::Peer(&BELIEVED, Device::Optane),
            Beside::Peer(&BARE, Device::Optane),
            Beside::Peer(&BARE_1S, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "cost",
        about: "What observation costs: the figures of `files`, of dlio-fs as it comes, and of one that counts nothing; both are \
                mounted beside, and before each of them something is measured that leaves nothing to be drained.",
        bench: "files",
        args: "--listing 10000",
        quick: "--size 16MiB --files 64 --entries 200 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&OBSERVED, Device::Optane),
            Beside::Disk(Device::Optane),
            Beside::Peer(&NO_PROFILE, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "fleet",
        about: "What keeping one order with others costs: the figures of `files`, of dlio-fs as it comes, and of the first of three mounts that are \
                a fleet; all are mounted beside, and before each of them something is measured that leaves nothing to be drained.",
        bench: "files",
        args: "--listing 1000",
        quick: "--size 16MiB --files 64 --entries 200 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&OBSERVED, Device::Optane),
            Beside::Disk(Device::Optane),
            Beside::Peer(&FLEET, Device::Optane),
            Beside::Unmeasured(&FLEET_MORE[0], Device::Optane),
            Beside::Unmeasured(&FLEET_MORE[1], Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "blocks",
        about: "Blocks of 4 KiB and of 1 MiB at random places, by fio: by 1 and 4 jobs, each with a file of 64 MiB; with psync through the \
                page cache and past it (`buffered`, `direct`), with libaio and io_uring, 16 blocks under way at a time, past it. They \
                are written while the drain runs and while it is paused, and read. `p50`, `p99` and `p99.9` are the times within which \
                a half of the blocks, all but one of a hundred, and all but one of a thousand were done; they are left out of fewer than \
                100 and 1,000 blocks. What the daemon takes counts until all is durable on the fast tier; beside a running drain that \
                contains the drain's work. (`dlio-fs-bench blocks` as it comes measures blocks of 64 KiB, too.)",
        bench: "blocks",
        args: "--io exact,passthrough --blocks 4KiB,1MiB --time 200ms",
        quick: "--io exact,passthrough --blocks 1MiB --time 50ms --size 8MiB",
        slow: Device::Hdd,
        beside: &[Beside::Peer(&MERGERFS, Device::Optane)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "metadata",
        about: "The phases and names of IO500's mdtest, by a driver of our own: no IO500 result. Four ranks, which are threads of one \
                process, write 4,000 files each that are easy (empty, each rank's in a directory of its own) and 4,000 \
                that are hard (3901 bytes, all in one directory). Rank 0 stats the files of rank 1, reads those of rank 2, deletes those \
                of rank 3, and so on (mdtest's `-N 1`). Everything is in memory; all peers are over Optane.",
        bench: "metadata",
        args: "--io exact,passthrough --ranks 4 --files 4000",
        quick: "--io exact,passthrough --ranks 2 --files 50",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&BINDFS_FAST, Device::Optane),
            Beside::Peer(&BARE, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "drain",
        about: "The background. Files created while the drain copies, and while it is paused. Until all is on the slow tier: 2,000 files \
                of 4 KiB, and eight of 256 MB at once, copied into the mount and waited for; beside `cp -a` from Optane to the slow tier \
                and a sync, alone and eight at a time.",
        bench: "drain",
        args: "--entries 2000 --files 2000 --size 256MB",
        quick: "--entries 200 --files 200 --size 4MB",
        slow: Device::Hdd,
        beside: &[Beside::Peer(&MERGERFS, Device::Optane), Beside::Peer(&BARE, Device::Optane)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "growth",
        about: "Whether it stays as it is with more files: memory for each, latency, the time until a mount is ready, and \
                recovery after a kill, with a thousand to a million files of 25 bytes in directories of a thousand. Places are the numbers of \
                files. The disks are made anew for it, with more inodes, in which such files fit; the slow tier is the SSD. A run takes half an hour, \
                so there are at most three, an hour and a half: they show a range, no interval of 95 %.",
        bench: "growth",
        args: "--files 1000,10000,100000,1000000 -o slow_wait=60s",
        // As many as a bar is about.
        quick: "--files 1000,10000 -o slow_wait=60s",
        // Of so many the kernel keeps no inodes, and the HDD finds them again at 150 reads a second: hours for the disk's figure.
        slow: Device::Ssd,
        beside: &[],
        many_inodes: true,
        // An hour and a half, which shows a range; an interval of 95 % needs six.
        runs_max: Some(3),
    },
];

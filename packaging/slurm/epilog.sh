#!/bin/sh
# Slurm's `Epilog`: run as root on each node when all processes of a job have ended, waits until everything is on the slow tier,
# unmounts, and removes the job's directories here. Exit code 3: not everything arrived in time. It is on this node only, nothing of it
# is deleted, and Slurm takes the node out of service.
#
# The nodes of a job come here at about the same time, in any order. Each drains what it has, in the order of the fleet: a mount that has
# nothing left and still waits lets the others go on, and so does one that has left. One whose node died holds them for `drain_timeout`.
#
# What a job asked for (`#BB_LUA stage_out`) has arrived when its request is gone: slurm_bb_data_out waits for that.

. "$(dirname "$0")/common.sh"
cd / || exit

# Never goes into a mount, nor into what a mount point is if something is still mounted there.
remove() { rm -r --one-file-system --preserve-root=all "$1"; }

# After a reboot, for example. Whoever takes that for a job without a mount says too early that it is done.
if [ -s "$undone/$node" ] && [ ! -e "$nodes" ]; then
    echo "the job had a mount here, and $nodes is missing: is the disk of the fast tier mounted?" >&2
    exit 1
fi
if [ -d "$fast" ]; then
    mount_job || exit
    as_owner dlio-fs umount --timeout "$drain_timeout" "$mountpoint" || exit
    remove "$fast" || exit
fi
if [ -d "$mountpoint" ]; then remove "$mountpoint" || exit; fi
rm -f "$failure"

# 1. This node is done.
rm -f "$undone/$node"
# 2. The last one of the job removes the directory: it can while it is empty only. Whoever has been here before, and did not get to the end,
# knows by its note that the directory was there.
if rmdir "$undone" 2>/dev/null || { [ -e "$nodes" ] && [ ! -e "$undone" ]; }; then
    # 3. The slow directory is free: before the controller knows, which may have taken the request back already.
    if [ -d "$requests" ]; then
        find "$requests" -maxdepth 1 -type l -lname "$SLURM_JOB_ID" -delete && rm -f "$request" || exit
    fi
fi
rm -f "$nodes"

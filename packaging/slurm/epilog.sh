#!/bin/sh
# Slurm's `Epilog`: run as root on each node when all processes of a job have ended, waits until everything is on the slow tier,
# unmounts, and removes the job's directories here. Exit code 3: not everything arrived in time. It is on this node only, nothing of it
# is deleted, and Slurm takes the node out of service.
#
# What a job asked for (`#BB_LUA stage_out`) has arrived when its request is gone: slurm_bb_data_out waits for that.

. "$(dirname "$0")/common.sh"
cd / || exit

# Never goes into a mount, nor into what a mount point is if something is still mounted there.
remove() { rm -r --one-file-system --preserve-root=all "$1"; }

if [ -d "$fast" ]; then
    mount_job || exit
    as_owner dlio-fs umount --timeout "$drain_timeout" "$mountpoint" || exit
    remove "$fast" || exit
fi
if [ -d "$mountpoint" ]; then remove "$mountpoint" || exit; fi
rm -f "$failure"
case $(readlink "$claim") in
"$us") rm -f "$claim" "$request" ;;
# Another node of this job still needs it.
"$SLURM_JOB_ID".*) ;;
*) rm -f "$request" ;;
esac

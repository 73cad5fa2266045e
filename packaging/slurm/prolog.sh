#!/bin/sh
# Slurm's `Prolog`: run as root on each node of a job, makes the job's mount and stages what the job asks for.
#
# A job without `#BB_LUA` lines gets a mount by root over a directory of its own. A job with such lines names its slow directory, and
# the mount is made by the job's user: nothing that a job names is opened, made or read with the rights of root.
#
# It fails, and Slurm takes the node out of service, where something is wrong with the node. If something is wrong with what the job
# asks for, that job fails in task_prolog.sh, which says why.

. "$(dirname "$0")/common.sh"
cd / || exit
umask 022

fail() {
    echo "$1" >"$failure"
    exit 0
}

# Nothing to do where it is there already, maybe under a mount that root does not see into.
make() { mkdir -m "$1" "$2" 2>/dev/null && chown "$owner" "$2"; }

mkdir -p "$fast_root" "$mount_root" || exit
rm -f "$failure"
owner=0
if [ -e "$request" ]; then owner=$SLURM_JOB_UID; fi
make 755 "$mountpoint"
if [ -e "$request" ] && ! ln -s "$us" "$claim" 2>/dev/null; then
    holder=$(readlink "$claim") || exit
    if [ "$holder" != "$us" ]; then fail "$(slow_directory) is in use by job ${holder%%.*} on ${holder#*.} ($claim)"; fi
fi
fresh=false
if make 700 "$fast"; then fresh=true; fi
[ -d "$fast" ] || exit

if [ ! -e "$request" ]; then
    slow=$(slow_directory)
    mkdir -p "$slow" || exit
    # Sticky: the job makes files there, and cannot take away what the daemon keeps there.
    chgrp "$(id -g "$SLURM_JOB_USER")" "$slow" && chmod 1770 "$slow" || exit
    mount_job
    exit
fi

# Root's directory: the daemon of a user finds a file there, and cannot make one.
: >>"$log" && chown "$owner" "$log" && chmod 600 "$log" || exit

said=$(mount_job 2>&1)
code=$?
if [ $code != 0 ]; then
    # Nothing was written to it yet. One that was there before may hold the only copy of something.
    if $fresh; then rm -r "$fast"; fi
    # The directory that the job named is at fault; otherwise the node.
    if [ $code = 2 ]; then fail "$said"; fi
    echo "$said" >&2
    exit 1
fi
sed -n 's/^stage_in //p' "$request" | while read -r path; do
    said=$(as_owner dlio-fs stage --wait "$mountpoint$path" 2>&1 </dev/null) || fail "cannot stage $path: $said"
done

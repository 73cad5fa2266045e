#!/bin/sh
# Slurm's `Prolog`: run as root on each node of a job, makes the job's mount and stages what the job asks for.
#
# A job without `#BB_LUA` lines gets a mount by root over a directory of its own. A job with such lines names its slow directory, and
# the mount is made by the job's user: nothing that a job names is opened, made or read with the rights of root. The mounts of a job of
# several nodes are a fleet, which has the number of the job.
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
mode=755
if [ -e "$request" ]; then
    owner=$SLURM_JOB_UID
    mode=700
fi
make $mode "$mountpoint"

# 1. The nodes' names are known: by hand they are those of before. A list of one needs no scontrol.
list=${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}
case $list in
'') names=$(cat "$nodes") ;;
*[[,]*) names=$(scontrol show hostnames "$list") ;;
*) names=$list ;;
esac
if [ -z "$names" ]; then
    echo "the names of the job's nodes ($list) are not known: PATH in common.sh must have scontrol" >&2
    exit 1
fi
# 2. All of them are undone, before any of them can be done: whoever finds none left removes the request. If this node is, all are.
if [ -e "$request" ] && [ ! -e "$undone/$node" ]; then
    mkdir -p "$undone" && (cd "$undone" && touch $names) || exit
fi
# 3. They are noted, all at once and durably: a mount that went on without its fleet would break the order.
echo "$names" >"$nodes.new" && sync "$nodes.new" && mv "$nodes.new" "$nodes" && sync "$fast_root" || exit
# From now on an epilog that finds no note has another disk before it.
if [ -e "$request" ]; then echo begun >"$undone/$node" || exit; fi
# 4. The slow directory that the job names is its own: a link to the job claims it. Two mounts over one directory that are no fleet would
# not know of each other. No path that burst_buffer.lua takes has a `%`.
claim=$requests/$(slow_directory | tr / %)
is_anothers() { holder=$(readlink "$claim") && [ "$holder" != "$SLURM_JOB_ID" ]; }
in_use() { fail "$(slow_directory) is in use by job $holder on $(ls "$requests/$holder.nodes" | tr '\n' ' ')($claim)"; }
if [ -e "$request" ] && is_anothers; then in_use; fi
fresh=false
if make 700 "$fast"; then fresh=true; fi
[ -d "$fast" ] || exit

if [ ! -e "$request" ]; then
    slow=$(slow_directory)
    mkdir -p "$slow" || exit
    # Sticky: the job makes files there, and cannot take away what the daemon keeps there.
    chgrp "$(id -g "$SLURM_JOB_USER")" "$slow" && chmod 1770 "$slow" || exit
fi

said=$(mount_job 2>&1)
code=$?
if [ $code != 0 ]; then
    # Nothing was written to it yet. One that was there before may hold the only copy of something.
    if $fresh; then rm -r "$fast"; fi
    # The directory that the job named is at fault, or another run of the job has left its fleet unfinished; otherwise the node.
    if [ $code = 2 ] && { [ -e "$request" ] || is_fleet; }; then fail "$said"; fi
    echo "$said" >&2
    exit 1
fi
if [ ! -e "$request" ]; then exit; fi
# 5. Claimed by a mount that stands, so the job's user may have it: whoever could claim a directory of somebody else's would make that
# one's jobs fail. Of two jobs that come here at once the second one leaves, before it has written anything.
if ! ln -s "$SLURM_JOB_ID" "$claim" 2>/dev/null; then
    [ -L "$claim" ] || exit
    if is_anothers; then
        as_owner dlio-fs umount --now "$mountpoint" || exit
        if $fresh; then rm -r "$fast"; fi
        in_use
    fi
fi
sed -n 's/^stage_in //p' "$request" | while read -r path; do
    said=$(as_owner dlio-fs stage --wait "$mountpoint$path" 2>&1 </dev/null) || fail "cannot stage $path: $said"
done

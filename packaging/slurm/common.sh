# What prolog.sh, epilog.sh and task_prolog.sh share; they look for it beside themselves. The first part is the site's to change.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Each job gets a directory in both. They belong to root, and nobody else may write to them.
fast_root=/optane
mount_root=/mnt/job
# The slow directories of jobs that name none.
slow_root=/lustre/jobs
# Where burst_buffer.lua notes what jobs ask for (`requests` there), and the nodes which slow directories they have in use: slurmctld and
# the root of all nodes write to it, nobody else.
requests=/lustre/requests
log_dir=/var/log
# For so long the epilog waits until everything is on the slow tier.
drain_timeout=30min

case ${SLURM_JOB_ID:-} in
'' | *[!0-9]*)
    echo 'SLURM_JOB_ID is not the number of a job' >&2
    exit 1
    ;;
esac
fast=$fast_root/$SLURM_JOB_ID
mountpoint=$mount_root/$SLURM_JOB_ID
request=$requests/$SLURM_JOB_ID
log=$log_dir/dlio-fs-$SLURM_JOB_ID.log
# Why the job's directives could not be carried out. Root writes it; task_prolog.sh shows it to the job.
failure=$mountpoint.failed

# Runs a command as whoever makes the job's mount: the owner of its fast tier, which is root or the job's user.
as_owner() {
    owner=$(stat -c %u "$fast") || return
    if [ "$owner" = 0 ]; then
        "$@"
    else
        env -i PATH="$PATH" setpriv --reuid "$owner" --regid "$(id -g "$owner")" --init-groups -- "$@"
    fi
}

# The slow directory of the job: the one that it names, or one of its own on each node.
slow_directory() {
    if [ -e "$request" ]; then
        sed -n 's/^slow //p' "$request"
    else
        echo "$slow_root/$SLURM_JOB_ID/$(hostname -s)"
    fi
}

# Who has a slow directory that a job has named: a link to the job and the node. Two mounts over one directory would not know of each other.
# No path that burst_buffer.lua takes has a `%`.
claim=$requests/$(slow_directory | tr / %)
us=$SLURM_JOB_ID.$(hostname -s)

# Makes the job's mount unless it is there. Replaces it if its daemon was killed, maybe by the job: what it has taken is on the fast tier.
mount_job() {
    as_owner dlio-fs status "$mountpoint" >/dev/null 2>&1
    [ $? = 1 ] || return 0
    as_owner dlio-fs mount "$mountpoint" --fast "$fast" --slow "$(slow_directory)" --log-file "$log" --job "$SLURM_JOB_ID"
}

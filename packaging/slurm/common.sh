# What prolog.sh, epilog.sh and task_prolog.sh share; they look for it beside themselves. The first part is the site's to change.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Each job gets a directory in both. They belong to root, and nobody else may write to them.
fast_root=/optane
mount_root=/mnt/job
# The slow directories of jobs that name none. All nodes see it.
slow_root=/shared/jobs
# Where burst_buffer.lua notes what jobs ask for (`requests` there), and the nodes which slow directories they have in use: slurmctld and
# the root of all nodes write to it, nobody else.
requests=/shared/requests
log_dir=/var/log
# What the clocks of all nodes keep, for jobs of several nodes. Empty: 20ms, and each node's kernel must know that its clock keeps it.
clock_error=
# For so long the epilog waits until everything is on the slow tier.
drain_timeout=30min

case ${SLURM_JOB_ID:-} in
'' | *[!0-9]*)
    echo 'SLURM_JOB_ID is not the number of a job' >&2
    exit 1
    ;;
esac
# As Slurm names it.
node=${SLURMD_NODENAME:-$(hostname -s)}
fast=$fast_root/$SLURM_JOB_ID
mountpoint=$mount_root/$SLURM_JOB_ID
request=$requests/$SLURM_JOB_ID
# A file for each node that is not done with what the job asks for.
undone=$request.nodes
# The job's nodes, a line each. Slurm tells them to the prolog only, so it notes them.
nodes=$fast.nodes
# Of the mounts that root makes. Those of users log to syslog: no file in there is a user's.
log=$log_dir/dlio-fs-$SLURM_JOB_ID.log
# Why the job's directives could not be carried out. Root writes it; task_prolog.sh shows it to the job.
failure=$mountpoint.failed

# By hand, a wrong name would leave the right one undone.
if [ -e "$nodes" ] && ! grep -qxF "$node" "$nodes"; then
    echo "no node of job $SLURM_JOB_ID is called $node: set SLURMD_NODENAME" >&2
    exit 1
fi

# Runs a command as whoever makes the job's mount: the owner of its fast tier, which is root or the job's user.
as_owner() {
    owner=$(stat -c %u "$fast") || return
    if [ "$owner" = 0 ]; then
        "$@"
    else
        env -i PATH="$PATH" setpriv --reuid "$owner" --regid "$(id -g "$owner")" --init-groups -- "$@"
    fi
}

# Whether the job's nodes share a slow directory, as one fleet. Up to 64 nodes do. A larger job has a directory for each node, unless it
# names one: a fleet takes up to 4,096 nodes.
is_fleet() {
    count=$(wc -l <"$nodes") || return
    [ "$count" -gt 1 ] && { [ "$count" -le 64 ] || [ -e "$request" ]; }
}

# The one that the job names. Otherwise of its own: what a node that failed has left must not come between the files of the next one if
# Slurm starts the job again with one node.
slow_directory() {
    if [ -e "$request" ]; then
        sed -n 's/^slow //p' "$request"
    elif is_fleet; then
        echo "$slow_root/$SLURM_JOB_ID/all"
    else
        echo "$slow_root/$SLURM_JOB_ID/$node"
    fi
}

# Makes the job's mount unless it is there. Replaces it if its daemon was killed, maybe by the job: what it has taken is on the fast tier.
# Does not wait for the job's other nodes.
mount_job() {
    as_owner dlio-fs status "$mountpoint" >/dev/null 2>&1
    [ $? = 1 ] || return 0
    if [ ! -s "$nodes" ]; then
        echo "$nodes is missing, so nobody knows whether the job's mount is in a fleet; write the names of its nodes there, a line each" >&2
        return 1
    fi
    set --
    if is_fleet; then set -- -o "fleet=$SLURM_JOB_ID,fleet_size=$count${clock_error:+,clock_error=$clock_error}"; fi
    if [ ! -e "$request" ]; then set -- --log-file "$log" "$@"; fi
    as_owner dlio-fs mount "$mountpoint" --fast "$fast" --slow "$(slow_directory)" --job "$SLURM_JOB_ID" "$@"
}

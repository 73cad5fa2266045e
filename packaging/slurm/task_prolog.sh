#!/bin/sh
# Slurm's `TaskProlog`: run as the job's user before each task. Slurm reads what it prints: `export` sets a variable of the task,
# `print` shows a line on the task's standard output.

. "$(dirname "$0")/common.sh"

if [ -e "$failure" ]; then
    sed 's/^/print dlio-fs: /' "$failure"
    exit 1
fi
if [ -d "$mountpoint" ]; then
    echo "export DLIO_MOUNT=$mountpoint"
fi

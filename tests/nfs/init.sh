#!/bin/sh
# The guest's first process: what a kernel server and its clients need, then the checks. What they print goes to the console.
PATH=/usr/sbin:/usr/bin
export PATH
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mkdir -p /dev/shm /dev/pts /run/rpcbind /run/lock
mount -t tmpfs shm /dev/shm
mount -t devpts devpts /dev/pts
echo guest > /proc/sys/kernel/hostname
dmesg -n 1
echo "guest begins"
ulimit -n 65536
ip link set lo up
for module in fuse nfsd nfsv3 nfsv4 veth; do
    modprobe "$module"
done
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
mount -t nfsd nfsd /proc/fs/nfsd
words=$(cat /proc/cmdline)
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/media/checks/clients python3 /media/checks/nfs/guest.py ${words##* -- }
echo "guest ended: $?"
sync
echo o > /proc/sysrq-trigger
sleep 600

#!/bin/bash
# Assembles in the directory $1 a machine that a kernel server of NFS and its clients can be tried in, from Debian's packages, and qemu to run
# it with. Nothing is installed on this machine, and apt's own state stays as it is. Leaves there:
#
#     vmlinuz, initrd.gz, root.img    Debian's kernel for virtual machines, newest that this release has; what it boots
#     qemu/                           qemu with all of its libraries
set -euo pipefail
umask 022
place=$1
guest=(nfs-kernel-server nfs-common rpcbind acl attr bash coreutils dash e2fsprogs findutils fuse3 git grep iproute2 kmod
    libpython3-stdlib mount procps python3-minimal sed util-linux busybox-static base-passwd netbase)
# What is only there because a package asks for it.
useless='systemd|udev|perl-modules|libperl|git-man|linux-base|initramfs'

. /etc/os-release
release=$VERSION_CODENAME
mkdir -p "$place" && cd "$place" && place=$PWD

# 1. A state of apt's own, with nothing installed: so all that a package needs comes with it, and none of it from this machine.
mkdir -p apt/lists/partial apt/archives/partial apt/parts
: > apt/status
find_source() { apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$release //p" | head -n 1; }
source=$(find_source)
if [ -z "$source" ]; then
    apt-get -q update
    source=$(find_source)
fi
if [ -z "$source" ]; then
    echo "apt knows no source of $release: is this Debian, and is it in /etc/apt/sources.list.d?" >&2
    exit 1
fi
for suite in "$release" "$release-updates" "$release-backports"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $source $suite main"
done > apt/sources.list
apt=(apt-get -q -y --no-install-recommends -o Dir::Etc::sourcelist="$place/apt/sources.list" -o Dir::Etc::sourceparts="$place/apt/parts"
    -o Dir::State::lists="$place/apt/lists" -o Dir::State::status="$place/apt/status" -o Dir::Cache="$place/apt"
    -o Dir::Cache::archives="$place/apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
"${apt[@]}" update

# 2. The guest's tree. Its /bin, /sbin and /lib are links, as on an installed system.
mkdir -p root/usr/bin root/usr/sbin root/usr/lib root/usr/lib64
for name in bin sbin lib lib64; do ln -s "usr/$name" "root/$name"; done
"${apt[@]}" --download-only install "linux-image-cloud-amd64/$release-backports" "${guest[@]}"
for package in apt/archives/*.deb; do
    [[ ${package##*/} =~ ^($useless) ]] && continue
    dpkg-deb --fsys-tarfile "$package" |
        tar --extract --keep-directory-symlink --directory root --exclude './usr/share/doc' --exclude './usr/share/man' --exclude './usr/share/locale'
done
rm apt/archives/*.deb
mv root/boot/vmlinuz-* vmlinuz
rm root/boot/*
mkdir -p root/media/checks root/fast root/export root/mnt root/slow root/other root/var/lib/nfs/{rpc_pipefs,v4recovery,sm,sm.bak,nfsdcld}
touch root/etc/exports root/etc/fstab root/var/lib/nfs/{etab,rmtab,state}
ln -sf /proc/self/mounts root/etc/mtab
cat > root/etc/passwd <<'END'
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
_rpc:x:101:65534::/run/rpcbind:/usr/sbin/nologin
statd:x:102:65534::/var/lib/nfs:/usr/sbin/nologin
alice:x:1000:1000::/tmp:/bin/sh
bob:x:1001:1001::/tmp:/bin/sh
END
printf '%s\n' root:x:0: nogroup:x:65534: alice:x:1000: bob:x:1001: > root/etc/group
printf '%s: files\n' passwd group hosts rpc services protocols > root/etc/nsswitch.conf
echo '127.0.0.1 localhost guest' > root/etc/hosts

# 3. Its own programs, run by its own loader: this machine need not have them.
libraries=root/usr/lib/x86_64-linux-gnu
kernel=$(ls root/usr/lib/modules)
"$libraries/ld-linux-x86-64.so.2" --argv0 depmod --library-path "$libraries" root/usr/bin/kmod -b "$place/root" "$kernel"

# 4. What is needed to get to the disk.
mkdir -p first/bin first/dev first/root
cp root/usr/bin/busybox first/bin/
xz --decompress --stdout "root/usr/lib/modules/$kernel/kernel/drivers/block/virtio_blk.ko.xz" > first/virtio_blk.ko
cat > first/init <<'END'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox insmod /virtio_blk.ko
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount -t ext4 -o ro /dev/vdb /root/media/checks
exec /bin/busybox switch_root /root /bin/sh /media/checks/nfs/init.sh
END
chmod +x first/init
(cd first && find . | ./bin/busybox cpio -o -H newc -R 0:0) | gzip > initrd.gz
mke2fs -q -t ext4 -m 0 -E root_owner=0:0 -d root root.img 4G

# 5. qemu, with its loader and its libraries.
mkdir qemu
"${apt[@]}" --download-only -t "$release-backports" install qemu-system-x86
for package in apt/archives/*.deb; do dpkg-deb --extract "$package" qemu; done
rm -r apt first root qemu/usr/share/doc qemu/usr/share/man

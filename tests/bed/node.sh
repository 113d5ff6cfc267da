#!/usr/bin/env bash
# usage: node.sh BED TEMPLATE
# Process 1 of the stand-in Proxmox node, in fresh namespaces. Makes them look like one, then reaps whatever dies.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bed=$1 template=$2

# /proc is still the machine's: it tells what the machine calls us.
stat=$(</proc/self/stat) # a builtin reads it, so "self" is this shell
pid=${stat%% *}
read -ra words <<<"${stat##*) }"
start=${words[19]}

hostname pve1
mount --make-rprivate /
mount -t proc -o nosuid,nodev,noexec proc /proc
umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t sysfs sysfs /sys # another network namespace has other interfaces
mount -t cgroup2 cgroup2 /sys/fs/cgroup

# What is written goes to a tmpfs and is gone with the node. The bed's folder, too, is used from here on below /mnt: where
# it lies may be covered in a moment.
mount -t tmpfs tmpfs /mnt
mkdir /mnt/bed
mount --bind "$bed" /mnt/bed
for folder in etc usr var root; do
    mkdir "/mnt/$folder.upper" "/mnt/$folder.work"
    mount -t overlay "node-$folder" \
        -o "lowerdir=/$folder,upperdir=/mnt/$folder.upper,workdir=/mnt/$folder.work" "/$folder"
done

# A second /proc that nothing lies over (gpus.sh covers parts of the first): only beside such a one does the kernel let
# an unprivileged container mount its own.
mkdir /mnt/proc
mount -t proc -o nosuid,nodev,noexec proc /mnt/proc

# Not devtmpfs, which all namespaces of the machine share.
mkdir /mnt/dev
mount -t tmpfs -o mode=755 tmpfs /mnt/dev
mount --move /mnt/dev /dev
while read -r name major minor; do
    mknod -m 666 "/dev/$name" c "$major" "$minor"
done <<'NODES'
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse 10 229
NODES
for pair in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "/proc/self/${pair#*:}" "/dev/${pair%:*}"; done
mkdir /dev/pts /dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

# What Proxmox has. Containers lie on a tmpfs: an overlay cannot be mapped to their user ids.
mkdir -p /etc/pve/nodes/pve1/lxc /var/lib/lxc /var/lib/vz/template/cache /var/lib/pve
ln -sfn nodes/pve1 /etc/pve/local
ln -sfn nodes/pve1/lxc /etc/pve/lxc
mount -t tmpfs -o mode=755 tmpfs /var/lib/lxc
ln -s "$template" /var/lib/vz/template/cache/debian-13-standard_amd64.tar
for program in pct pvesh pveversion; do
    rm -f "/usr/sbin/$program" "/usr/bin/$program"
    printf '#!/bin/sh\nexec python3 -ES %q "$@"\n' "$here/pve/$program.py" >"/usr/bin/$program"
    chmod 755 "/usr/bin/$program"
done
ln -sf ../bin/pct /usr/sbin/pct
printf '#!/bin/sh\nexec %q again\n' "$here/gpus.sh" >/usr/bin/nvidia-modprobe
chmod 755 /usr/bin/nvidia-modprobe
printf 'root:100000:65536\n' | tee /etc/subuid >/etc/subgid
printf '127.0.0.1 localhost\n10.203.0.1 pve1\n' >/etc/hosts

ip link set lo up
ip link add vmbr0 type bridge
ip addr add 10.203.0.1/24 dev vmbr0
ip link set vmbr0 up

mkdir /mnt/run
mount -t tmpfs -o mode=755 tmpfs /mnt/run
mkdir /mnt/run/{lock,lxc,mount,sshd}
mount --move /mnt/run /run

mkdir -p /root/.ssh
install -m 600 /mnt/bed/key.pub /root/.ssh/authorized_keys
rm -f /root/.ssh/known_hosts
ssh-keygen -q -t ed25519 -N '' -f /run/sshd/host_key
/usr/sbin/sshd -f /dev/null -h /run/sshd/host_key -o ListenAddress=10.203.0.1 -o UsePAM=no -o StrictModes=no \
    -o PidFile=/run/sshd/pid -o Subsystem='sftp internal-sftp' -o AcceptEnv='LANG LC_*'

"$here/gpus.sh" 2 511

echo "$pid $start" >/mnt/bed/node
: >/mnt/bed/ready
# bash waits for children that others left to it; wait returns at each signal and with no child left.
while true; do sleep infinity & wait; done

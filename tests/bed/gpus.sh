#!/usr/bin/env bash
# usage: gpus.sh COUNT UVM_MAJOR [open]     (on the node)
#        gpus.sh again                      what nvidia-modprobe does: make the nodes that are not there
# Stand-in GPUs: the device nodes, /proc/devices and /proc/driver/nvidia as the driver makes them. No driver stands
# behind the nodes, so opening one that is allowed gives ENXIO; with "open" they lead to /dev/zero and can be held.
set -euo pipefail

told=/run/groundstate-gpus
if [[ ${1:-} == again ]]; then
    read -r count uvm kind <"$told"
else
    count=$1 uvm=$2 kind=${3:-real}
    echo "$count $uvm $kind" >"$told"
    rm -rf /dev/nvidia*
fi

node() {
    local path=$1 major=$2 minor=$3
    [[ $kind == real ]] || { major=1 minor=5; }
    [[ -c $path ]] || mknod -m 666 "$path" c "$major" "$minor"
}
for ((gpu = 0; gpu < count; gpu++)); do node "/dev/nvidia$gpu" 195 "$gpu"; done
node /dev/nvidiactl 195 255
node /dev/nvidia-uvm "$uvm" 0
node /dev/nvidia-uvm-tools "$uvm" 1
# A directory that a careless /dev/nvidia* would pass on as a device.
mkdir -p /dev/nvidia-caps
node /dev/nvidia-caps/nvidia-cap1 $((uvm - 1)) 1
node /dev/nvidia-caps/nvidia-cap2 $((uvm - 1)) 2

[[ ${1:-} != again ]] || exit 0

# A second look at /proc without what lies over it.
umount /proc/devices 2>/dev/null || true
{
    sed '/^Block devices/,$d; /nvidia/d; /^$/d' /proc/devices
    printf '195 nvidia\n195 nvidiactl\n%s nvidia-caps\n%s nvidia-uvm\n\n' $((uvm - 1)) "$uvm"
    sed -n '/^Block devices/,$p' /proc/devices
} >/run/groundstate-devices
mount --bind /run/groundstate-devices /proc/devices

umount /proc/driver 2>/dev/null || true
mount -t tmpfs -o mode=555 tmpfs /proc/driver
mkdir -p /proc/driver/nvidia/gpus
printf 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.45.04  stand-in\nGCC version:  none\n' \
    >/proc/driver/nvidia/version
for ((gpu = 0; gpu < count; gpu++)); do
    address=$(printf '0000:%02x:00.0' $((gpu + 1)))
    mkdir "/proc/driver/nvidia/gpus/$address"
    printf 'Model: \t\t Stand-in\nIRQ:   \t\t 0\nGPU UUID: \t GPU-00000000-0000-0000-0000-%012d\nBus Location: \t %s\nDevice Minor: \t %d\n' \
        "$gpu" "$address" "$gpu" >"/proc/driver/nvidia/gpus/$address/information"
done

#!/usr/bin/env bash
# usage: rootfs.sh
# Prints the path of the root file system of the test bed's containers, a tar, and builds it when it is not there.
#
# Debian 13 with systemd, sshd and Python, as a template of Proxmox has it. Built once (about two minutes) and kept in
# GROUNDSTATE_BED_CACHE (default ~/.cache/groundstate-bed), under the hash of this recipe.
set -euo pipefail

suite=trixie
packages=systemd-sysv,dbus,openssh-server,python3,python3-venv,iproute2,procps,ca-certificates,libgomp1
recipe=$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-12)
cache=${GROUNDSTATE_BED_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/groundstate-bed}
tar=$cache/debian-$suite-$recipe.tar

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
if [[ ! -s $tar ]]; then
    new=$(mktemp -d "$cache/.new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    # Masked: what has nothing to do in a container, and would leave systemd "degraded". Proxmox masks the like when it
    # makes a container from a template. An image has no identity: machine id and keys are made at the first boot.
    # shellcheck disable=SC2016  # $1 is mmdebstrap's
    mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" \
        --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt=force-unsafe-io \
        --customize-hook='chroot "$1" systemctl mask sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount systemd-modules-load.service systemd-journald-audit.socket proc-sys-fs-binfmt_misc.automount' \
        --customize-hook='chroot "$1" systemctl disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer' \
        --customize-hook='rm -f "$1"/etc/ssh/ssh_host_*_key* "$1"/etc/hostname; : > "$1"/etc/machine-id' \
        "$suite" "$new/rootfs.tar" >&2
    mv "$new/rootfs.tar" "$tar"
fi
# Those of recipes that nobody has used for a month; another checkout may have another recipe.
touch "$tar"
find "$cache" -maxdepth 1 -name 'debian-*.tar' -mtime +30 -delete
echo "$tar"

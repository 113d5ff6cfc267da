#!/usr/bin/env bash
# usage: check.sh
# Says what this machine lacks for the test bed, one a line with the remedy; status 1 when something does.
set -euo pipefail

missing=()
((EUID == 0)) || missing+=("root: namespaces, device nodes and bridges are made (run it as root)")
for pair in unshare:util-linux nsenter:util-linux ip:iproute2 lxc-start:lxc newuidmap:uidmap mmdebstrap:mmdebstrap \
    sshd:openssh-server ssh:openssh-client ssh-keygen:openssh-client python3:python3; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%:*}" >/dev/null ||
        missing+=("${pair%:*}: apt-get install ${pair#*:}")
done

# Tried for real, in namespaces that are gone at once.
try() {
    local what=$1
    shift
    local said
    said=$("$@" 2>&1) || missing+=("$what (${said//$'\n'/; })")
}
if ((EUID == 0 && ${#missing[@]} == 0)); then
    room=$(mktemp -d)
    trap 'rmdir "$room"' EXIT
    all=(unshare --mount --net --uts --ipc --pid --cgroup --fork --propagation private)
    if said=$("${all[@]}" true 2>&1); then
        inside() { "${all[@]}" sh -euc "$1" sh "$room"; }
        # shellcheck disable=SC2016  # $1 is the inner shell's
        {
            try "cgroup2: the kernel cannot mount it" inside 'mount -t cgroup2 x "$1"'
            try "overlay: the kernel cannot mount it on this root file system" inside \
                'mount -t tmpfs x "$1"; mkdir "$1/u" "$1/w"; mount -t overlay x -o "lowerdir=/etc,upperdir=$1/u,workdir=$1/w" /etc'
            try "device nodes: mknod is not allowed here" inside 'mount -t tmpfs x "$1"; mknod "$1/n" c 1 3; : <"$1/n"'
            try "a bridge: the kernel has none" inside 'ip link add name bed0 type bridge'
            try "veth: the kernel has none" inside 'ip link add name bed0 type veth peer name bed1'
        }
    else
        missing+=("namespaces: $said (a container needs CAP_SYS_ADMIN for them)")
    fi
fi

((${#missing[@]} == 0)) || { printf 'missing: %s\n' "${missing[@]}" >&2; exit 1; }

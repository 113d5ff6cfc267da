#!/usr/bin/env bash
# A stand-in Proxmox node with real LXC containers, in private namespaces: nothing of the machine changes.
#
# usage: bed.sh check              what this machine lacks for it, one a line; status 1 when something does
#        bed.sh up                 bring the node up (and build the containers' root file system when it is not cached)
#        bed.sh run COMMAND...     run a command on the node, as root
#        bed.sh gpus COUNT [...]   give the node other stand-in GPUs: see gpus.sh
#        bed.sh down               end all of it, and forget it
#
# Its state (pid, ssh key, log) is in the folder GROUNDSTATE_BED, default /run/groundstate-bed: one node a folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bed=${GROUNDSTATE_BED:-/run/groundstate-bed}

# The node's process 1 as "pid start-time", which no other process can have; nothing when it does not run.
node() {
    local pid start line words
    [[ -s $bed/node ]] || return 0
    read -r pid start <"$bed/node"
    line=$(cat "/proc/$pid/stat" 2>/dev/null) || return 0
    # The name of the program, in brackets, may hold spaces; after it the state, and as the 20th word the start time.
    read -ra words <<<"${line##*) }"
    [[ ${words[0]} == Z || ${words[19]} != "$start" ]] || echo "$pid"
}

enter() {
    local pid
    pid=$(node)
    [[ -n $pid ]] || { echo "no node is up in $bed: run $0 up first" >&2; return 1; }
    # env -i: the node is another machine, which does not know what this shell was told.
    nsenter --target "$pid" --mount --uts --ipc --net --pid --cgroup --wdns=/root \
        /usr/bin/env -i HOME=/root USER=root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

up() {
    [[ -z $(node) ]] || { echo "the node in $bed is up already" >&2; return 0; }
    "$here/check.sh"
    local template
    template=$("$here/rootfs.sh")
    down
    mkdir -p "$bed/cp"
    chmod 700 "$bed" "$bed/cp"
    ssh-keygen -q -t ed25519 -N '' -C groundstate-bed -f "$bed/key"
    ln -s "$here/ssh.sh" "$bed/ssh"
    setsid "$here/outside.sh" "$bed" "$template" </dev/null >"$bed/log" 2>&1 &
    local outside=$!
    # At most a minute, on a machine that is busy with other things; it takes less than a second.
    local turn
    for ((turn = 0; turn < 1200; turn++)); do
        [[ ! -e $bed/ready ]] || return 0
        kill -0 "$outside" 2>/dev/null || break
        sleep 0.05
    done
    echo "the node did not come up:" >&2
    cat "$bed/log" >&2
    return 1
}

down() {
    local socket
    # Connections that ssh keeps for later would keep the node's network alive.
    for socket in "$bed"/cp/*; do
        [[ ! -S $socket ]] || ssh -o ControlPath="$socket" -O exit node 2>/dev/null || true
    done
    [[ ! -s $bed/group ]] || unshare --mount --propagation private "$here/end_group.sh" "$bed"
    rm -rf "$bed"
}

case ${1:-} in
check) "$here/check.sh" ;;
up) up ;;
run) shift && enter "$@" ;;
gpus) shift && enter "$here/gpus.sh" "$@" ;;
down) down ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac

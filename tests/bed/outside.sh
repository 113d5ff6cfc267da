#!/usr/bin/env bash
# usage: outside.sh BED TEMPLATE
# The step out of this machine: a control group of the node's own, then all namespaces; node.sh goes on from there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bed=$1

# A mount namespace first, so that the second look at the control groups is gone with the node.
# shellcheck disable=SC2016  # the inner shell's
exec unshare --mount --propagation private bash -euc '
    here=$1 bed=$2 template=$3
    mkdir "$bed/cgroup"
    mount -t cgroup2 bed "$bed/cgroup"
    group=groundstate-bed-$$
    mkdir "$bed/cgroup/$group"
    echo "$group" >"$bed/group"
    echo $$ >"$bed/cgroup/$group/cgroup.procs"
    exec unshare --mount --net --uts --ipc --pid --cgroup --fork --kill-child "$here/node.sh" "$bed" "$template"
' outside "$here" "$bed" "$2"

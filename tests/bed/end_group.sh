#!/usr/bin/env bash
# usage: end_group.sh BED
# Ends everything in a node's control group, containers included, also of a node that never came up; removes the group.
# Wants a mount namespace of its own.
set -euo pipefail

bed=$1
group=$bed/cgroup/$(<"$bed/group")
mkdir -p "$bed/cgroup"
mount -t cgroup2 bed "$bed/cgroup"
[[ -d $group ]] || exit 0 # the machine was started anew since
for ((turn = 0; turn < 200; turn++)); do
    echo 1 >"$group/cgroup.kill"
    # The dead are gone from their groups a moment after they are gone from the list of processes.
    find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    [[ -d $group ]] || exit 0
    sleep 0.05
done
echo "processes are left in the control group $group: $(find "$group" -name cgroup.procs -exec cat {} +)" >&2
exit 1

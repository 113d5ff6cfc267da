#!/usr/bin/env bash
# usage: forget_group.sh BED
# Removes the control groups that a node left behind. Wants a mount namespace of its own.
set -euo pipefail

bed=$1
group=$bed/cgroup/$(<"$bed/group")
mkdir -p "$bed/cgroup"
mount -t cgroup2 bed "$bed/cgroup"
for ((turn = 0; turn < 100; turn++)); do
    # The dead are gone from their groups a moment after they are gone from the list of processes.
    find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    [[ -d $group ]] || exit 0
    sleep 0.05
done
echo "processes are left in the control group $group: $(find "$group" -name cgroup.procs -exec cat {} +)" >&2
exit 1

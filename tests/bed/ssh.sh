#!/bin/sh
# ssh from within the node's network, which nothing else reaches. Ansible's ssh_executable; needs GROUNDSTATE_BED.
read -r pid _start <"${GROUNDSTATE_BED:-/run/groundstate-bed}/node" || exit 255
exec nsenter --target "$pid" --net ssh "$@"

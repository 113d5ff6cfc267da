#!/usr/bin/env bash
# Copy the work tree (what git tracks and what it does not ignore, changes included) into a folder, which may be missing.
# usage: scripts/export.sh FOLDER
set -euo pipefail
mkdir -p "$1"
target=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do
        # A file that is tracked and deleted but not yet committed is on git's list.
        if [[ -e $file || -L $file ]]; then printf '%s\0' "$file"; fi
    done | tar -c --null --no-recursion -T - | tar -x -C "$target"

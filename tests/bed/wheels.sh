#!/usr/bin/env bash
# usage: wheels.sh PYTHON REQUIREMENTS
# Prints a folder with the wheels of a lock (hashes and all) for the containers' Python, and fetches them when it is not
# there: the containers cannot reach a package index, and need not know the settings that this machine has for one.
set -euo pipefail

python=$1 requirements=$2
version=3.13 # of Debian 13
key=$(printf '%s\n' "$version" "$(uname -m)" | cat - "$requirements" | sha256sum | cut -c1-12)
cache=${GROUNDSTATE_BED_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/groundstate-bed}
wheels=$cache/wheels-$key

mkdir -p "$cache"
exec 9>"$cache/.wheels.lock"
flock 9
if [[ ! -d $wheels ]]; then
    new=$(mktemp -d "$cache/.new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    # Not every environment has a pip (uv makes them without), and only pip downloads for another Python.
    "$python" -m venv "$new/venv"
    "$new/venv/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps --only-binary :all: \
        --python-version "$version" --require-hashes --requirement "$requirements" --dest "$new/wheels" >&2
    chmod -R a+rX "$new/wheels"
    mv "$new/wheels" "$wheels"
fi
echo "$wheels"

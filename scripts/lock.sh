#!/bin/sh
# Renew the developer lock: requirements/runtime.txt (what running the playbooks needs) and requirements/test.txt (that
# and the test tools, the same versions). One file serves every Python from 3.11 up and every platform, by markers.
# Not a uv.lock: that one writes down which registry it was made from, and everybody has another mirror.
# Needs uv. usage: scripts/lock.sh [--upgrade] [--upgrade-package NAME]
set -eu
cd "$(dirname "$0")/.."
compile() {
    output=$1
    shift
    CUSTOM_COMPILE_COMMAND=scripts/lock.sh UV_CUSTOM_COMPILE_COMMAND=scripts/lock.sh uv pip compile --quiet --universal \
        --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --output-file "$output" \
        "$@" pyproject.toml
}
compile requirements/test.txt --extra test "$@"
compile requirements/runtime.txt --constraints requirements/test.txt

#!/bin/sh
# Make or update the virtual environment that everything here runs in, from the lock in requirements/.
# usage: scripts/setup.sh [runtime|test]     (test: the runtime and the test tools)
# PYTHON names the interpreter to make it with; without, the newest that fits.
# It says nothing and takes no time when there is nothing to do.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
want=${1:-runtime}
venv=$root/.venv
lock=$root/requirements/$want.txt

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
[ -f "$lock" ] || die "no set of packages is called '$want': there are runtime and test"

# The place is part of the stamp: scripts in a virtual environment name their interpreter, so a moved one is dead.
stamp="$venv $(cat "$root/requirements/runtime.txt" "$root/requirements/test.txt" | cksum)"
done_for() { [ "$(cat "$venv/.groundstate-$1" 2>/dev/null)" = "$stamp" ]; }
if { done_for "$want" || done_for test; } && [ -x "$venv/bin/python" ]; then
    exit 0
fi

suitable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }
find_python() {
    for name in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
        if suitable "$name"; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not a Python from 3.11 to 3.14"
    found=$(python3 --version 2>/dev/null || echo "no python3")
    die "this needs Python 3.11 to 3.14 and finds $found; on Debian 12+ 'apt-get install python3-venv', on Ubuntu 22.04" \
        "'apt-get install python3.11-venv', then run this again (or name one: PYTHON=/path/to/python3.12)"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null; }; then
        sudo "$@"
    else
        return 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    say "installing the package $1"
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get install -qq -y --no-install-recommends "$1" >&2 ||
        { as_root apt-get update -qq >&2 && as_root apt-get install -qq -y --no-install-recommends "$1" >&2; }
}

# Debian and Ubuntu leave ensurepip out of python3 and ship it as pythonX.Y-venv.
need_ensurepip() {
    "$1" -c 'import ensurepip' 2>/dev/null && return
    package=python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
    apt_install "$package" ||
        die "$1 cannot make virtual environments: 'apt-get install $package' as root, then run this again"
}

# The engine of the local default (llama.cpp) is linked with GCC's OpenMP, which a minimal Debian does not have.
need_openmp() {
    "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || apt_install libgomp1 ||
        say "libgomp.so.1 is missing, which llama.cpp needs: 'apt-get install libgomp1' as root"
}

install() {
    if [ -n "$uv" ] && "$uv" pip install --quiet --python "$venv/bin/python" --require-hashes -r "$lock"; then
        return
    fi
    # uv does not read pip's settings (a company's mirror, say), pip does.
    [ -x "$venv/bin/pip" ] || "$venv/bin/python" -m ensurepip >/dev/null
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock" ||
        die "the packages of requirements/$want.txt could not be installed (see above); is a package index reachable?"
}

uv=
if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
    uv=uv
fi
if [ ! -x "$venv/bin/python" ] || ! suitable "$venv/bin/python" || ! grep -qsF "$venv " "$venv/.groundstate-place"; then
    python=$(find_python)
    [ ! -e "$venv" ] || [ -e "$venv/pyvenv.cfg" ] || die "$venv is in the way: it is no virtual environment"
    say "making $venv with $python"
    rm -rf "$venv"
    if [ -n "$uv" ]; then
        uv venv --quiet --python "$python" "$venv"
    else
        need_ensurepip "$python"
        "$python" -m venv "$venv"
    fi
    printf '%s \n' "$venv" >"$venv/.groundstate-place"
fi
if [ -z "$uv" ]; then
    # pip alone takes 30 s for the test tools, uv 2 s. Where it is not to be had, pip does it.
    [ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv || true
    [ ! -x "$venv/bin/uv" ] || uv=$venv/bin/uv
fi
say "installing requirements/$want.txt"
install
need_openmp
printf '%s\n' "$stamp" >"$venv/.groundstate-$want"

#!/bin/sh
# Run ansible-test (the one on PATH) on a copy of the work tree, uncommitted changes included.
# It wants a real path .../ansible_collections/NAMESPACE/NAME: a link is resolved and refused. Its sanity tests get what
# is published and no more: the tests, scripts and the command line have ruff and mypy.
# usage: scripts/ansible-test.sh sanity [TEST] ...
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(dirname "$(command -v ansible-test)")/python
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/ansible_collections/groundstate/llm
"$root/scripts/export.sh" "$copy"

# Its own virtual environments, kept for the next run (2 minutes against 20 s), but not in the user's home folder.
home=$root/.venv/ansible-test-home
mkdir -p "$home/.ansible/test/cache"
export XDG_CONFIG_HOME="${XDG_CONFIG_HOME:-$HOME/.config}" XDG_CACHE_HOME="${XDG_CACHE_HOME:-$HOME/.cache}" HOME="$home"
# ansible-test fetches get-pip from a host of its own, which a machine behind a mirror may not reach. Python brings a
# pip: this stands where the fetched file would be kept, under the name that this version of ansible-test looks for.
for pip in $("$python" - <<'PYTHON'
import pathlib, re
import ansible_test
source = pathlib.Path(ansible_test.__file__).parent / "_internal" / "python_requirements.py"
print(*sorted({v.replace(".", "_") for v in re.findall(r"pip='([0-9.]+)'", source.read_text())}))
PYTHON
); do
    printf 'import ensurepip\n\nensurepip.bootstrap()\n' >"$home/.ansible/test/cache/get_pip_$pip.py"
done

cd "$copy"
command=$1
shift
if [ "$command" = sanity ]; then
    find src scripts tests -mindepth 1 -maxdepth 1 ! -path tests/sanity -exec rm -rf {} +
    rm -f hatch_build.py
fi
git init -q
git add -A
ansible-test "$command" --requirements --python "$version" --color no "$@"

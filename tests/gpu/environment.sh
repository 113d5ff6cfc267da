#!/usr/bin/env bash
# The environment of the engine from its bundle ($GPU_LOCK, $GPU_BUNDLE): made, again, looked at, and one edited file of it
# put back. GPU_VENV is where it will be, GPU_PYTHON a Python that is there.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" environment
: "${GPU_LOCK:?the folder of the lock}" "${GPU_BUNDLE:?its bundle}"

[ -z "${DRY:-}" ] || GPU_VENV=$GPU_HOME/envs/dry # the one of common.sh is no environment of ours
EDITED=${GPU_EDITED:-sglang/srt/server_args.py} # in site-packages
made() { # made TITLE WORDS...: the role alone
  say "$1"
  local began=${EPOCHREALTIME/./}
  play deploy_baseline --tags ml_env --skip-tags preflight "${@:2}" | tail -24
  echo "took $(((${EPOCHREALTIME/./} - began) / 1000)) ms"
}

made "from the bundle"
made "again"
say "looked at"
module python_env_info "{\"home\": \"$GPU_HOME\", \"path\": \"$GPU_VENV\", \"engine\": \"$GPU_ENGINE\",
  \"environment\": $GPU_ENVIRONMENT, \"verify_files\": true, \"policy\": \"warn\"}" > "$OUT/info.json"
"$GPU_PYTHON" -c 'import json, sys; print(*json.load(open(sys.argv[1]))["table"], sep="\n")' "$OUT/info.json"
site=$("$GPU_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp "$site/$EDITED" "$OUT/before"
echo "# an edit that nobody remembers" >> "$site/$EDITED"
made "a file of the engine was edited: repair" -e ml_env_pristine=repair
cmp "$site/$EDITED" "$OUT/before" && echo "$EDITED is as it was installed"
rm -f "$OUT/before"
cat "$GPU_HOME"/patches-kept/*/*.patch

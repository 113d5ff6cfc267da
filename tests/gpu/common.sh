#!/usr/bin/env bash
# Sourced by the scripts of this folder with their name: settings, output, and a server to start, ask and stop.
set -uo pipefail
NAME=$1
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$HERE/../.." || exit 1
BEGIN=$SECONDS
LIMIT=${LIMIT:-540} # seconds for all
OUT=$(realpath -m "${OUT:-tests/output/gpu/$NAME}")
# KEEP names a folder that stays, so that the next call finds what this one has done.
GPU_HOME=${KEEP:-$(mktemp -d "${TMPDIR:-/tmp}/groundstate-gpu.XXXXXX")}
export RECORD=$GPU_HOME/servers/$NAME # the server's folder
KEPT=$GPU_HOME/kept # in one archive at the end: only a few files come back from a lent machine
mkdir -p "$OUT" "$GPU_HOME" "$KEPT"
rm -f "$OUT"/*
exec > >(tee "$OUT/summary.txt") 2>&1

if [ -n "${DRY:-}" ]; then # the script itself, without GPUs: a script brings the program in place of the engine
  export GPU_DRAFT=some/draft
  GPU_VENV=$GPU_HOME/env GPU_MODEL=some/model GPU_ARGUMENTS='{}' GPU_ENVIRONMENT='{}'
  mkdir -p "$GPU_VENV/bin"
  printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v python3)" > "$GPU_VENV/bin/python"
  chmod 755 "$GPU_VENV/bin/python"
fi
: "${GPU_VENV:?the environment that has the engine}" "${GPU_MODEL:?the path of a model}"
FAST='{"load-format": "dummy", "disable-custom-all-reduce": true, "enable-metrics": true, "cuda-graph-max-bs": 4}'
NONE='{}'
export GPU_HOME GPU_VENV GPU_MODEL GPU_SERVER=$NAME GPU_PYTHON=${GPU_PYTHON:-$GPU_VENV/bin/python} GPU_TP=${GPU_TP:-2}
export GPU_LOCK=${GPU_LOCK:-} GPU_BUNDLE=${GPU_BUNDLE:-} GPU_PROFILE=${GPU_PROFILE:-stock}
export GPU_ENGINE=${GPU_ENGINE:-sglang} GPU_SERVED_NAME=${GPU_SERVED_NAME:-} GPU_LIST=${GPU_LIST:-\"all\"}
export GPU_MEMORY_FRACTION=${GPU_MEMORY_FRACTION:-0.5} GPU_ARGUMENTS=${GPU_ARGUMENTS:-$FAST}
export GPU_ENVIRONMENT=${GPU_ENVIRONMENT:-$NONE}
export ANSIBLE_COLLECTIONS_PATH=$PWD/playbooks/collections ANSIBLE_NOCOLOR=1 ANSIBLE_LOCALHOST_WARNING=False
export PYTHONPATH=$PWD/playbooks/collections PYTHONUNBUFFERED=1
EXTRA=() # words for every call of Ansible, and what comes from outside last
GIVEN=()
[ -z "${GPU_EXTRA:-}" ] || GIVEN=(-e "$GPU_EXTRA")

say() { printf '\n=== [%4d s] %s\n' $((SECONDS - BEGIN)) "$*"; }
left() { echo $((LIMIT - (SECONDS - BEGIN))); }
play() { # play PLAYBOOK WORDS...
  local playbook=$1
  shift
  timeout -k 10 300 ansible-playbook "playbooks/$playbook.yml" -i "$HERE/inventory" "${EXTRA[@]}" "${GIVEN[@]}" "$@" | grep -v '^$'
}
module() { # module NAME ARGUMENTS: its result as JSON
  timeout -k 10 180 ansible -i "$HERE/inventory" groundstate "${EXTRA[@]}" -m "groundstate.llm.$1" -a "$2" \
    2> /dev/null | sed -n '/ => {$/,$p' | sed '1s/.* => {/{/'
}
on_server() { # on_server NAME [ARGUMENTS, as JSON without the braces]
  module "$1" "{\"home\": \"$GPU_HOME\", \"server\": \"$NAME\"${2:+, $2}}"
}
stop() { on_server llm_server '"state": "stopped"'; }
start() { # start NAME WORDS...: bring the server up as declared. What fails is shown, and no end of the script
  say "start: $1"
  play deploy_baseline --tags nccl_profile,llm_server --skip-tags preflight "${@:2}" | tail -40
}
compared() { # compared PLAYBOOK TITLE: a comparison, its results, and what it has come to
  say "$2"
  # Ended in time, it leaves what is finished, and the server goes with the trap below.
  timeout -k 10 "$(($(left) - 40))" ansible-playbook "playbooks/$1.yml" -i "$HERE/inventory" "${EXTRA[@]}" "${GIVEN[@]}" |
    grep -v -e '^$' -e '^TASK' -e '^ok:' -e '^skipping:' -e '^included:' -e '^changed:'
  say "what is there"
  local one
  for one in "$GPU_HOME"/records/gpu/comparisons/*/comparison.json; do cp "$one" "$OUT/comparison.json"; done
  for one in "$GPU_HOME"/records/gpu/comparisons/*/result.html; do [ -e "$one" ] && cp "$one" "$OUT/result.html"; done
  (cd "$GPU_HOME/records/gpu" && tar czf "$OUT/records.tgz" ./2*.json)
  tool comparison_state "$OUT/comparison.json"
}
stand_in() { # stand_in SCRIPT: variables that put a stand-in of this script in the place of the engine
  printf '{"gpu_command": ["%s", "%s", "--script", "%s"]}' "$GPU_PYTHON" "$PWD/tests/integration/stand_in_engine.py" \
    "${1//\"/\\\"}"
}
failing() { # failing NAME WORDS...: a start that must fail; seconds and words, the module's view and the log in $KEPT
  [ "$(left)" -gt 75 ] || { say "no time left for the drill $1"; return; }
  stop > /dev/null
  rm -f "$RECORD/server.log" # what is kept is of this start
  say "drill: $1"
  local began=${EPOCHREALTIME/./}
  play deploy_baseline --tags ml_env,nccl_profile,llm_server "${@:2}" > "$KEPT/drill.$1.txt" && echo "IT DID NOT FAIL"
  echo "said after $(((${EPOCHREALTIME/./} - began) / 1000)) ms"
  grep -A30 -m1 ': failed: ' "$KEPT/drill.$1.txt"
  on_server llm_server_info > "$KEPT/drill.$1.json"
  grep -E '"(state|status|running)"' "$KEPT/drill.$1.json" | sort | uniq -c
  if [ -e "$RECORD/server.log" ]; then cp "$RECORD/server.log" "$KEPT/drill.$1.log"; fi
}
tool() { "$GPU_PYTHON" "$HERE/$1.py" "${@:2}"; }
finish() {
  stop > /dev/null
  say "end"
  nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader 2> /dev/null
  [ -n "${KEEP:-}" ] || rm -rf "$GPU_HOME"
}
trap finish EXIT

#!/usr/bin/env bash
# Readiness and death on two GPUs: phases of a first start, of one with EAGLE-3 ($GPU_DRAFT) and of a repeated one; what
# health, models and our module say after a kill -9 of the launcher and of a rank.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" ready

if [ -n "${DRY:-}" ]; then
  EXTRA=(-e "{\"gpu_command\": [\"$GPU_PYTHON\", \"$PWD/tests/integration/stand_in_engine.py\", \"--script\",
    \"{\\\"step_s\\\": 0.3}\"]}")
fi

keep() { # keep NAME: report and log of a start; progress bars take most of the log
  cp "$RECORD/ready.json" "$OUT/ready.$1.json"
  tr '\r' '\n' < "$RECORD/server.log" | grep -v '^$' > "$OUT/server.$1.log"
}
kill_one() { # kill_one PART: launcher or worker
  say "kill -9 of the $1"
  timeout 60 "$GPU_PYTHON" "$HERE/kill_and_watch.py" "$GPU_HOME" "$NAME" "$1" "$OUT/kill.$1.jsonl"
}

start base
keep base
say "asked again: already ready"
on_server llm_server_ready | sed -n 1,4p
say "stop: drain, and nothing is left"
stop | grep -E '"(how|gone|action)"' | sort | uniq -c
ls /dev/shm

SPECULATION=()
if [ -n "${GPU_DRAFT:-}" ]; then
  SPECULATION=(-e "{\"gpu_speculation\": {\"algorithm\": \"EAGLE3\", \"draft_model\": \"$GPU_DRAFT\", \"num_steps\": 2,
    \"topk\": 1, \"draft_tokens\": 3}}")
fi
start second "${SPECULATION[@]}"
keep second
kill_one launcher

start again
keep again
kill_one worker
say "what the module says of it"
on_server llm_server_ready | tee "$OUT/death.json" | sed -n 1,30p
keep again

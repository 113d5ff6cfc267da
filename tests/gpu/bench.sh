#!/usr/bin/env bash
# Three starts with three repeats each by the main job, their spread, and what GPU sampling costs (on, off, off, on).
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" bench

TOKENS=512 CAP=15
if [ -n "${DRY:-}" ]; then
  TOKENS=64 CAP=2
  export GPU_ENGINE=generic GPU_TP=1 GPU_LIST='[]' GPU_MEMORY_FRACTION=0 GPU_MODEL=mock GPU_SERVED_NAME=mock
  EXTRA=(-e "{\"gpu_command\": [\"$GPU_PYTHON\", \"$PWD/tests/tools/mock_llm.py\", \"--port\", \"{port}\", \"--step\",
    \"0.005\"]}")
fi
EXTRA+=(-e "{\"baseline_workload\": {\"prompt_tokens\": 128, \"output_tokens\": $TOKENS, \"repeats\": 3,
  \"warmup_cap_s\": $CAP}}")

one_start() { # one_start NUMBER: a start of its own, and its measurement
  say "start $1"
  stop > /dev/null
  play deploy_baseline | tail -24
  local records=("$GPU_HOME"/records/gpu/2*.json) # named by their time
  cp "${records[-1]}" "$OUT/record.$1.json"
}

one_start 1
one_start 2
say "sampling on, off, off, on, within this start"
timeout 400 "$GPU_PYTHON" "$HERE/sampling_cost.py" "$GPU_HOME" "$NAME" "${BLOCKS:-3}" "$TOKENS" "$OUT/sampling.json"
if [ "$(left)" -gt 115 ]; then one_start 3; else say "no time left for the third start"; fi
say "within and between the starts"
tool spread "$OUT"/record.*.json

#!/usr/bin/env bash
# NCCL on two GPUs: the proof of a profile by three ways in, what its log costs, and the collective with two profiles.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" nccl

if [ -n "${DRY:-}" ]; then
  EXTRA=(-e "{\"gpu_command\": [\"$GPU_PYTHON\", \"$PWD/tests/integration/stand_in_engine.py\", \"--script\",
    \"{\\\"nccl_logs\\\": [0, 1], \\\"step_s\\\": 0.01}\"]}")
fi
VARIABLES='"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_MAX_NCHANNELS": "16",
  "NCCL_BUFFSIZE": "16777216", "NCCL_NTHREADS": "512"'
CONF=$GPU_HOME/story.conf
tr -d '" \n' <<< "$VARIABLES" | tr ',:' '\n=' > "$CONF"

prove() { # prove NAME VARIABLES WORDS...: the table, and the whole result
  say "proof: $1"
  play verify "${@:3}" | tail -40
  on_server nccl_proof "\"policy\": \"warn\", \"variables\": {$2}" > "$OUT/proof.$1.json"
}
keep_logs() { # keep_logs NAME: NCCL's log of each rank, without the lines of single collectives
  local file rank
  for file in "$RECORD"/nccl/*.log; do
    [ -e "$file" ] || continue
    echo "$1, $(basename "$file"): $(wc -l < "$file") lines, $(wc -c < "$file") bytes"
    rank=$(grep -m1 -o 'rank [0-9]* nranks' "$file" | cut -d' ' -f2)
    grep -v opCount "$file" | head -n 500 > "$OUT/nccl.$1.rank${rank:-x}.log"
  done
}
speed() { say "decode and prefill with the log: $1"; tool decode_rate "$GPU_HOME" "$NAME" | tee "$OUT/speed.$2.json"; }

LL=(-e nccl_profile_name=pcie_ll_ring)
start "from the environment" "${LL[@]}"
keep_logs story
prove story "$VARIABLES" "${LL[@]}"
speed INIT,ENV start

FILE=(-e "{\"gpu_env\": {\"NCCL_CONF_FILE\": \"$CONF\"}}")
start "from an nccl.conf" "${FILE[@]}"
prove conf "$VARIABLES" "${FILE[@]}" -e nccl_profile_name=pcie_ll_ring

WRONG=("${LL[@]}" -e '{"gpu_env": {"NCCL_P2P_LEVEL": "sys", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING,COLL"}}')
start "with a word that NCCL does not know, and every collective in its log" "${WRONG[@]}"
prove wrong "${VARIABLES/SYS/sys}" "${WRONG[@]}"
speed INIT,ENV,GRAPH,TUNING,COLL tuning
keep_logs wrong

if [ "$(left)" -gt 110 ]; then
  start "without a log" "${LL[@]}" -e nccl_profile_log=off
  speed none off
fi
stop > /dev/null
for profile in stock pcie_ll_ring; do
  [ "$(left)" -gt 30 ] || continue
  say "collective: $profile"
  module nccl_preflight "{\"env_path\": \"$GPU_VENV\", \"timeout\": 60, \"profile\": \"$profile\",
    \"environment\": $GPU_ENVIRONMENT, \"sizes_kib\": [4, 64, 1024, 4096, 32768, 262144],
    \"profiles\": {\"stock\": {}, \"pcie_ll_ring\": {\"variables\": {$VARIABLES}}}}" > "$OUT/preflight.$profile.json"
  tail -40 "$OUT/preflight.$profile.json"
done

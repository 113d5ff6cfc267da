#!/usr/bin/env bash
# The main job on a machine as it is found: stale jobs and a protected one on its GPUs. Twice, then the reset, then starts
# that must fail and servers that are killed: how long until it is said, what is said, and what is left.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" job

TOKENS=512 CAP=15 FIRST=0 LAST=$((GPU_TP - 1)) PORT=19990
OOM='{"gpu_memory_fraction": 0.999}'
BACKEND='{"gpu_extra_args": {"attention-backend": "fa3"}}' # the kit leaves its binary out
if [ -n "${DRY:-}" ]; then
  TOKENS=32 CAP=2 FIRST=none LAST=none
  # Each start is one of a script; its completions have two tokens, too few to be measured.
  EXTRA=(-e "$(stand_in '{"step_s": 0.05, "nccl_logs": [0, 1]}')" --skip-tags "preflight,baseline")
  OOM=$(stand_in '{"die_in": "allocating KV cache", "how": 1, "said": ["torch.OutOfMemoryError: CUDA out of memory."]}')
  BACKEND=$(stand_in '{"die_in": "capturing graphs", "how": 1}')
fi
EXTRA+=(-e "{\"gpu_state_grace_s\": 3, \"gpu_state_protected\": [\"gs-keeper\", \"nvidia-*\", \"nv-*\", \"dcgm*\"]}")
EXTRA+=(-e "{\"baseline_workload\": {\"prompt_tokens\": 128, \"output_tokens\": $TOKENS, \"repeats\": 3,
  \"warmup_cap_s\": $CAP}}")

PLANTED=()
plant() { # plant WORDS...: a process that holds a GPU
  local said
  exec {said}< <(exec setsid "$GPU_PYTHON" "$HERE/hold_gpu.py" "$@")
  PLANTED+=($!)
  timeout 60 head -1 <&"$said"
  exec {said}<&-
}
look() { # who lives, and what the driver tells
  local names=("stale job" "stale job that ignores SIGTERM" "protected job") number
  for number in "${!PLANTED[@]}"; do
    if kill -0 "${PLANTED[number]}" 2> /dev/null; then echo "${names[number]}: lives"; else echo "${names[number]}: gone"; fi
  done
  nvidia-smi --query-gpu=index,memory.used --format=csv,noheader 2> /dev/null
}
uproot() {
  kill -KILL "${PLANTED[@]}" "${SQUATTER:-}" 2> /dev/null
  finish
}
trap uproot EXIT
whole() { # whole NAME PLAYBOOK: a play, kept, its end shown
  say "$1"
  play "$2" "${@:3}" > "$KEPT/$1.txt"
  tail -32 "$KEPT/$1.txt"
  look
}
drill() { # drill NAME WORDS...: a start that must fail, and what is left of it
  failing "$@"
  look
}

say "two stale jobs and a protected one"
plant "$FIRST" 2048
plant "$LAST" 2048 --ignore-term
plant "$FIRST" 512 --name gs-keeper
look
whole first deploy_baseline
whole second deploy_baseline
say "reset of a machine whose server runs"
whole reset reset_gpus
whole again reset_gpus

drill memory -e "$OOM"
"$GPU_PYTHON" -m http.server "$PORT" --bind 127.0.0.1 > /dev/null 2>&1 &
SQUATTER=$!
drill port -e "{\"gpu_port\": $PORT}"
kill "$SQUATTER"
drill backend -e "$BACKEND"
mkdir -p "$GPU_HOME/broken"
cat > "$GPU_HOME/broken/model.safetensors.index.json" << 'JSON'
{"metadata": {"total_size": 16}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors", "model.norm.weight": "model-00002-of-00002.safetensors"}}
JSON
printf '\x08\0\0\0\0\0\0\0{}      ' > "$GPU_HOME/broken/model-00001-of-00002.safetensors"
cp "$GPU_MODEL"/*.json "$GPU_HOME/broken" 2> /dev/null || echo '{"model_type": "llama"}' > "$GPU_HOME/broken/config.json"
drill shard -e "{\"ml_env_models\": [{\"path\": \"$GPU_HOME/broken\"}]}"

for victim in worker launcher; do
  [ "$(left)" -gt 100 ] || { say "no time left for the kill of the $victim"; continue; }
  start "to be killed: $victim"
  say "kill -9 of the $victim while it answers"
  timeout 60 "$GPU_PYTHON" "$HERE/kill_and_watch.py" "$GPU_HOME" "$NAME" "$victim" "$KEPT/kill.$victim.jsonl"
  whole "after.$victim" reset_gpus
done
say "what is kept"
for record in "$GPU_HOME"/records/gpu/2*.json; do [ -e "$record" ] && cp "$record" "$KEPT/"; done
ls "$KEPT"
tar -C "$KEPT" -czf "$OUT/job.tgz" .

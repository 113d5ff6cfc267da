#!/usr/bin/env bash
# Does EAGLE-3 with the draft $GPU_DRAFT pay? Base and EAGLE-3 in turn, three blocks, by playbooks/speculation.yml. Six
# starts take longer than most loans of a GPU: with KEEP=/some/folder it stops in time, and the next call goes on there.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" speculation

TOKENS=512 CAP=${CAP:-15} BLOCKS=${BLOCKS:-3}
if [ -n "${DRY:-}" ]; then
  TOKENS=101 CAP=2 BLOCKS=2
  export GPU_TP=1 GPU_LIST='[]' GPU_MEMORY_FRACTION=0
  EXTRA=(-e "{\"gpu_command\": [\"$GPU_PYTHON\", \"$PWD/tests/integration/speculating_engine.py\"]}")
fi
: "${GPU_DRAFT:?the path of an EAGLE-3 draft of the model}"
# What EAGLE sets silently is declared for both arms: one limit of requests.
EXTRA+=(-e '{"gpu_extra_args": {"max-running-requests": 48}}')
EXTRA+=(-e "{\"baseline_workload\": {\"prompt_tokens\": 128, \"output_tokens\": $TOKENS, \"repeats\": 3,
  \"warmup_cap_s\": $CAP, \"steady_share\": 0.05}, \"compare_looks\": [$BLOCKS], \"compare_leave\": \"stopped\"}")
EXTRA+=(-e "{\"speculation_configurations\": [{\"name\": \"eagle3\", \"speculation\": {\"algorithm\": \"EAGLE3\",
  \"draft_model\": \"$GPU_DRAFT\", \"num_steps\": 2, \"topk\": 1, \"draft_tokens\": 3}}]}")

compared speculation "base and EAGLE-3, $BLOCKS blocks"

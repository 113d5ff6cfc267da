#!/usr/bin/env bash
# Two profiles in turn on the same GPUs, three blocks, by playbooks/compare.yml; or what COMPARE says, as JSON. Six starts
# take longer than most calls: with KEEP=/some/folder it stops in time, and the next call goes on there.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" compare

TOKENS=512 CAP=${CAP:-15} BLOCKS=${BLOCKS:-3}
PROFILES='{"compare_profiles": ["stock", "pcie_ll_ring"]}'
COMPARE=${COMPARE:-$PROFILES}
if [ -n "${DRY:-}" ]; then
  TOKENS=64 CAP=2 BLOCKS=2
  export GPU_ENGINE=generic GPU_TP=1 GPU_LIST='[]' GPU_MEMORY_FRACTION=0 GPU_MODEL=mock GPU_SERVED_NAME=mock
  EXTRA=(-e "{\"gpu_command\": [\"$GPU_PYTHON\", \"$PWD/tests/tools/mock_llm.py\", \"--port\", \"{port}\", \"--step\",
    \"0.005\"]}")
fi
EXTRA+=(-e "{\"baseline_workload\": {\"prompt_tokens\": 128, \"output_tokens\": $TOKENS, \"repeats\": 3,
  \"warmup_cap_s\": $CAP, \"steady_share\": 0.05}, \"compare_looks\": [$BLOCKS], \"compare_leave\": \"stopped\"}"
  -e "$COMPARE")
compared compare "$COMPARE, $BLOCKS blocks"

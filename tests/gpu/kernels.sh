#!/usr/bin/env bash
# Kernels that cannot be compiled at the start: a compiler told of a GPU that it has forgotten, none at all, an assembler
# that fails. Each with empty caches, so that everything would have to be compiled. What is said, and the whole log.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" kernels

FORGOTTEN="-gencode=arch=compute_50,code=sm_50" # CUDA 13 has dropped it
if [ -n "${DRY:-}" ]; then EXTRA=(-e "$(stand_in '{"die_in": "capturing graphs", "how": 1}')" --skip-tags preflight); fi
try() { # try NAME BACKEND VARIABLES, as JSON without the braces
  local cache=$GPU_HOME/caches/$1
  mkdir -p "$cache"
  failing "$1" -e "{\"gpu_extra_args\": {\"attention-backend\": \"$2\"}, \"gpu_env\": {$3, \"HOME\": \"$cache\",
    \"XDG_CACHE_HOME\": \"$cache\", \"TRITON_CACHE_DIR\": \"$cache/triton\"}}"
}

try flashinfer flashinfer "\"NVCC_APPEND_FLAGS\": \"$FORGOTTEN\""
try triton triton "\"NVCC_APPEND_FLAGS\": \"$FORGOTTEN\""
try no-nvcc flashinfer '"CUDA_HOME": "/nonexistent", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"'
try ptxas triton '"TRITON_PTXAS_PATH": "/usr/bin/false"'
tar -C "$KEPT" -czf "$OUT/kernels.tgz" .

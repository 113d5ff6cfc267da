#!/usr/bin/env bash
# Locked clocks on real GPUs: what the driver tells, what is refused, and with CHANGE=1 what a lock does to a server.
# Without CHANGE=1 nothing is set: a machine that is lent with its settings stays as it is.
# shellcheck source=tests/gpu/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" clocks

if [ -n "${DRY:-}" ]; then
  EXTRA=(-e "{\"gpu_command\": [\"$GPU_PYTHON\", \"$PWD/tests/integration/stand_in_engine.py\", \"--script\",
    \"{\\\"step_s\\\": 0.01}\"]}")
  mkdir "$GPU_HOME/bin"
  cp tests/data/gpu_host/nvidia-smi "$GPU_HOME/bin"
  echo '{}' > "$GPU_HOME/bin/smi.json"
  PATH=$GPU_HOME/bin:$PATH
  CHANGE=1
fi
clocks() { module gpu_clocks "{\"home\": \"$GPU_HOME/clocks\"${1:+, $1}}"; }
planned() { # planned ARGUMENTS: the same in check mode
  timeout -k 10 180 ansible -i "$HERE/inventory" groundstate --check -m groundstate.llm.gpu_clocks \
    -a "{\"home\": \"$GPU_HOME/clocks\", $1}" 2>&1
}
put_back() {
  [ -e "$GPU_HOME/clocks/gpu_clocks.json" ] && clocks '"state": "restored"'
  finish
}
trap put_back EXIT
asked() { nvidia-smi -q -x; } # all that the driver tells

say "what the driver tells before"
asked > "$OUT/before.xml"
read -r LEAST MOST < <("$GPU_PYTHON" - "$OUT/before.xml" <<'PY'
import sys

from ansible_collections.groundstate.llm.plugins.module_utils import gpu_settings

for gpu in gpu_settings.parse(open(sys.argv[1], encoding="utf-8").read()):
    listed = f"SM {gpu.sm_clocks[:1]}-{gpu.sm_clocks[-1:]}, memory {gpu.memory_clocks}"
    print(gpu_settings.line(gpu, {item: gpu.told(item) for item in gpu_settings.ITEMS}), listed, file=sys.stderr)
print(gpu.sm_clocks[0], gpu.sm_clocks[-1])
PY
)
LOCK=$((LEAST + (MOST - LEAST) * 6 / 10))
say "planned: a lock at $LOCK of $LEAST-$MOST MHz; and what is refused"
planned "\"persistence\": true, \"sm_mhz\": $LOCK" | tee "$OUT/planned.txt"
planned "\"persistence\": true, \"sm_mhz\": $((MOST + 1)), \"power_limit_w\": 1" | tee "$OUT/refused.txt"
asked > "$OUT/after.xml"
settings() { grep -E '<(persistence_mode|requested_power_limit|min_power_limit|max_power_limit)>' "$1"; }
diff <(settings "$OUT/before.xml") <(settings "$OUT/after.xml") && echo "nothing was set"
[ -n "${CHANGE:-}" ] || exit 0

run() { # run NAME: speed and clocks with a server under load
  say "speed: $1"
  [ -n "${DRY:-}" ] || nvidia-smi --query-gpu=index,clocks.sm,clocks.mem,power.draw,clocks_event_reasons.active \
    --format=csv,noheader -lms 200 > "$OUT/clocks.$1.csv" &
  local watch=$!
  tool decode_rate "$GPU_HOME" "$NAME" | tee "$OUT/speed.$1.json"
  kill "$watch" 2> /dev/null
  wait "$watch" 2> /dev/null
  [ -e "$OUT/clocks.$1.csv" ] && sort -t, -k2,2n "$OUT/clocks.$1.csv" | sed -n '1p;$p'
  asked > "$OUT/asked.$1.xml"
}
start "as it is"
run free
say "locked"
clocks "\"persistence\": true, \"sm_mhz\": $LOCK" | tee "$OUT/locked.json"
run locked
say "once more: unchanged"
clocks "\"persistence\": true, \"sm_mhz\": $LOCK" | tee "$OUT/again.json"
say "put back"
clocks '"state": "restored"' | tee "$OUT/restored.json"
run restored

#!/usr/bin/env python3
"""What sampling the GPUs costs: measurements within one start, on and off in the order on, off, off, on.

usage: sampling_cost.py HOME SERVER BLOCKS TOKENS RESULT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible_collections.groundstate.llm.plugins.module_utils import benchmark, stats

ORDER = (True, False, False, True)


def measure(home: str, name: str, tokens: int, sample: bool) -> dict[str, Any]:
    workload = {"prompt_tokens": 128, "output_tokens": tokens, "repeats": 3, "warmup_requests": 1, "warmup_cap_s": 0}
    target = benchmark.Target.ours(home, benchmark.running(home, name), model="")
    found = benchmark.Benchmark(target, benchmark.Plan.make(workload, sample=sample)).measure()
    level = found["levels"][0]
    return {
        "sample": sample,
        "decode_tok_s": found["headline"]["value"],
        "rates": [one["decode_tok_s"] for one in level["repeats"]],
        "ttft_s": level["ttft_s"]["mean"],
        "gap_p99_s": level["chunk_gap_s"]["p99"],
        "machine": level["machine"],
        "client": found["client"],
    }


def main(home: str, name: str, blocks: str, tokens: str, result: str) -> None:
    runs: list[dict[str, Any]] = []
    effects = []
    for _block in range(int(blocks)):
        block = []
        for sample in ORDER:
            block.append(measure(home, name, int(tokens), sample))
            print("on " if sample else "off", f"{block[-1]['decode_tok_s']:.1f} tok/s", flush=True)
        runs += block
        mean = {
            on: stats.mean(stats.log_rates(one["decode_tok_s"] for one in block if one["sample"] is on)) for on in ORDER
        }
        effects.append(mean[True] - mean[False])
        # After each block: a run that is cut short keeps what it has.
        effect = stats.mean_interval(effects).as_dict()
        Path(result).write_text(
            json.dumps({"blocks_of": len(ORDER), "effect_ln": effect, "runs": runs}, indent=1) + "\n"
        )
    print("effect of sampling on the decode rate (ln):", effect)


if __name__ == "__main__":
    main(*sys.argv[1:])

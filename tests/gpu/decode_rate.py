#!/usr/bin/env python3
"""Decode rate and prefill time of one stream, as JSON, by requests that are not streamed.

usage: decode_rate.py HOME SERVER
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
import urllib.request

from ansible_collections.groundstate.llm.plugins.module_utils import servers


def main(home: str, name: str) -> None:
    record = servers.load(home, name)
    dice = random.Random(7)

    def ask(prompt: str, tokens: int) -> tuple[float, int]:
        body = {"model": record.served_model_name, "prompt": prompt, "max_tokens": tokens}
        body.update({"temperature": 0, "ignore_eos": True})
        request = urllib.request.Request(
            f"{record.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.load(reply)
        return time.perf_counter() - begin, answer["usage"].get("completion_tokens", tokens)

    def new_text() -> str:
        return " ".join(str(dice.randrange(1000)) for _ in range(500))

    ask("1 2 3 4", 256)
    ask(new_text(), 1)
    decode = [round(tokens / seconds, 2) for seconds, tokens in (ask("1 2 3 4", 512) for _ in range(5))]
    prefill = [round(1000 * ask(new_text(), 1)[0], 2) for _ in range(12)]
    print(
        json.dumps(
            {
                "decode_tok_s": decode,
                "decode_median": statistics.median(decode),
                "prefill_ms": prefill,
                "prefill_median": statistics.median(prefill),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What the statistics promise, checked on made starts whose truth is known: false alarms, coverage, power.

usage: python tests/bench/statistics_simulation.py [--trials 4000] [--seed 1]

The model is that of docs/statistics.md: y = mu + b + e, starts differ by sigma 1.5 %, repeats within one by 0.3 %, five
repeats a start, tolerance 2 %. Each line is a share of the trials with its own 95 % interval. Ends with status 1 when a
promise is broken (further off than chance explains).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "playbooks" / "collections"))

from ansible_collections.groundstate.llm.plugins.module_utils import comparison, stats  # noqa: E402
from ansible_collections.groundstate.llm.plugins.plugin_utils.verdict import position  # noqa: E402

BETWEEN, WITHIN, REPEATS, TOLERANCE = 0.015, 0.003, 5, 0.02


class Table:
    """Prints shares and remembers which broke a promise."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.broken: list[str] = []

    def row(self, what: str, trial: Callable[[], bool], least: float = 0.0, most: float = 1.0, part: int = 1) -> None:
        """The share of trials in which ``trial`` is true; ``part``: only every part-th of them (slow ones)."""
        number = self.trials // part
        share = sum(trial() for _ in range(number)) / number
        error = 1.96 * math.sqrt(max(share * (1 - share), 1 / number) / number)
        kept = share + error >= least and share - error <= most
        wanted = f"{100 * least:g} to {100 * most:g}" if (least, most) != (0.0, 1.0) else ""
        print(f"| {what} | {100 * share:.1f} ± {100 * error:.1f} | {wanted} |{'' if kept else ' BROKEN'}", flush=True)
        if not kept:
            self.broken.append(what)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    table = Table(options.trials)

    def starts(count: int, shift: float = 0.0) -> list[list[float]]:
        luck = [shift + dice.gauss(0, BETWEEN) for _ in range(count)]
        return [[one + dice.gauss(0, WITHIN) for _ in range(REPEATS)] for one in luck]

    def compare(n: int, k: int, shift: float = 0.0, alpha: float = 0.05) -> comparison.Difference:
        return comparison.difference(starts(n), starts(k, shift), alpha)

    def covers(found: comparison.Difference, truth: float) -> bool:
        return found.low <= truth <= found.high

    def verdict(found: comparison.Difference, tolerance: float = TOLERANCE) -> str:
        return position(found.low, found.high, tolerance)

    print("| what | share % | promised % |\n| --- | --- | --- |")
    designs = [(3, 1), (5, 1), (8, 1), (3, 3), (5, 5), (8, 3)]
    for n, k in designs:
        wrong = ("faster", "slower")
        table.row(f"false alarm, tolerance 0: {n} against {k}", lambda n=n, k=k: verdict(compare(n, k), 1e-9) in wrong,
                  0.0, 0.05)  # fmt: skip
    table.row("false alarm, tolerance 2 %: 5 against 1", lambda: verdict(compare(5, 1)) != "same"
              and verdict(compare(5, 1)) in ("faster", "slower"), 0.0, 0.05)  # fmt: skip
    for n, k in designs:
        table.row(f"interval of the difference covers it: {n} against {k}",
                  lambda n=n, k=k: covers(compare(n, k, -0.04), -0.04), 0.93, 0.97)  # fmt: skip
    for n in (8, 12):
        table.row(f"bootstrap of the difference covers it: {n} against {n}",
                  lambda n=n: covers(compare(n, n, -0.04), -0.04), 0.93, 0.97, part=8)  # fmt: skip
    for n, part in ((3, 1), (5, 1), (8, 4), (12, 4)):
        table.row(f"interval of a baseline's mean covers it: {n} starts",
                  lambda n=n: covers(comparison.interval(starts(n)), 0.0), 0.93, 0.97, part=part)  # fmt: skip
    true_sd = math.hypot(BETWEEN, WITHIN / math.sqrt(REPEATS))
    for n, k in [(3, 3), (5, 5), (5, 1), (8, 1), (8, 3)]:
        effect = stats.mde(true_sd, n, k)
        table.row(f"power at the minimal detectable effect, {100 * effect:.1f} %: {n} against {k}",
                  lambda n=n, k=k, effect=effect: compare(n, k, -effect).high < 0, 0.75, 0.85)  # fmt: skip
    table.row("the story, -7.3 %, is slower: 5 against 1", lambda: verdict(compare(5, 1, math.log(82.7 / 89))) == "slower")
    table.row("the story, -7.3 %, is slower: 5 against 3", lambda: verdict(compare(5, 3, math.log(82.7 / 89))) == "slower")

    def looks(plan: tuple[int, ...], alpha: float) -> bool:
        old, new = starts(5), starts(plan[-1])
        return any(
            verdict(comparison.difference(old, new[:count], alpha), 1e-9) in ("faster", "slower") for count in plan
        )

    table.row("false alarm in any of four planned looks (3, 5, 7 of 5, alpha / 3)", lambda: looks((3, 5, 7), 0.05 / 3),
              0.0, 0.05)  # fmt: skip
    table.row("false alarm when looking after every start, 1 to 7 (not offered)", lambda: looks(tuple(range(1, 8)), 0.05))

    def series(count: int, shifted: int = 0, shift: float = 0.0) -> list[float]:
        return comparison.cluster_means(starts(count) + starts(shifted, shift))

    table.row("CUSUM alarm within 20 starts without a drift", lambda: comparison.cusum(series(20)) is not None, 0.0, 0.05)
    table.row("CUSUM finds -3 % after 10 starts within 10 more",
              lambda: comparison.cusum(series(10, 10, -0.03)) is not None)  # fmt: skip
    family = [f"m{number}" for number in range(6)]
    table.row("Holm: any of six metrics without a change is called changed",
              lambda: min(comparison.holm({one: compare(5, 1).p for one in family}).values()) <= 0.05, 0.0, 0.05)  # fmt: skip
    print(f"\n{options.trials} trials, seed {options.seed}, sigma between starts {100 * BETWEEN:g} %, within "
          f"{100 * WITHIN:g} %, {REPEATS} repeats")  # fmt: skip
    if table.broken:
        print(f"broken: {'; '.join(table.broken)}", file=sys.stderr)
    return 1 if table.broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the statistics promise, checked on made starts whose truth is known: false alarms, coverage, power.

usage: python tests/bench/statistics_simulation.py [--trials 4000] [--seed 1] [--part baselines|comparisons]

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
from ansible_collections.groundstate.llm.plugins.plugin_utils import comparison_verdict, comparisons  # noqa: E402
from ansible_collections.groundstate.llm.plugins.plugin_utils.verdict import position  # noqa: E402

BETWEEN, WITHIN, REPEATS, TOLERANCE = 0.015, 0.003, 5, 0.02
MOVED = ("faster", "slower")


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
        # 1.5 times the interval: with this many rows one is outside its own by chance.
        kept = share + 1.5 * error >= least and share - 1.5 * error <= most
        wanted = f"{100 * least:g} to {100 * most:g}" if (least, most) != (0.0, 1.0) else ""
        print(f"| {what} | {100 * share:.1f} ± {100 * error:.1f} | {wanted} |{'' if kept else ' BROKEN'}", flush=True)
        if not kept:
            self.broken.append(what)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=sorted(PARTS))
    options = parser.parse_args()
    table = Table(options.trials)
    print("| what | share % | promised % |\n| --- | --- | --- |")
    for name, part in PARTS.items():
        if options.part in (None, name):
            part(table, random.Random(options.seed))
    print(
        f"\n{options.trials} trials, seed {options.seed}, sigma between starts {100 * BETWEEN:g} %, within "
        f"{100 * WITHIN:g} %, {REPEATS} repeats"
    )
    if table.broken:
        print(f"broken: {'; '.join(table.broken)}", file=sys.stderr)
    return 1 if table.broken else 0


def of_baselines(table: Table, dice: random.Random) -> None:
    """One start or a few against a baseline: docs/statistics.md."""

    def starts(count: int, shift: float = 0.0) -> list[list[float]]:
        luck = [shift + dice.gauss(0, BETWEEN) for _ in range(count)]
        return [[one + dice.gauss(0, WITHIN) for _ in range(REPEATS)] for one in luck]

    def compare(n: int, k: int, shift: float = 0.0, alpha: float = 0.05) -> comparison.Difference:
        return comparison.difference(starts(n), starts(k, shift), alpha)

    def covers(found: comparison.Difference, truth: float) -> bool:
        return found.low <= truth <= found.high

    def verdict(found: comparison.Difference, tolerance: float = TOLERANCE) -> str:
        return position(found.low, found.high, tolerance)

    designs = [(3, 1), (5, 1), (8, 1), (3, 3), (5, 5), (8, 3)]
    for n, k in designs:

        def alarm(tolerance: float, n: int = n, k: int = k) -> bool:
            return verdict(compare(n, k), tolerance) in MOVED

        table.row(f"false alarm, tolerance 0, {n} against {k}", lambda alarm=alarm: alarm(1e-9), 0.0, 0.05)
        table.row(f"false alarm, tolerance 2 %, {n} against {k}", lambda alarm=alarm: alarm(TOLERANCE), 0.0, 0.05)
    for n, k in [*designs, (8, 8), (12, 12)]:

        def covered(n: int = n, k: int = k) -> bool:
            return covers(compare(n, k, -0.04), -0.04)

        slow = min(n, k) >= comparison.BOOTSTRAP_FROM
        label = "bootstrap interval" if slow else "interval"
        table.row(f"{label} of the difference covers it, {n} against {k}", covered, 0.93, 0.97, part=4 if slow else 1)
    for n in (3, 5, 8, 12):

        def holds(n: int = n) -> bool:
            found = comparison.interval(starts(n))
            return found.low <= 0.0 <= found.high

        slow = n >= comparison.BOOTSTRAP_FROM
        label = "bootstrap interval" if slow else "interval"
        table.row(f"{label} of a baseline's mean covers it, {n} starts", holds, 0.93, 0.97, part=4 if slow else 1)
    true_sd = math.hypot(BETWEEN, WITHIN / math.sqrt(REPEATS))
    for n, k in designs:
        effect = stats.mde(true_sd, n, k)

        def detected(n: int = n, k: int = k, effect: float = effect) -> bool:
            return compare(n, k, -effect).high < 0

        table.row(f"power at the MDE, {100 * effect:.1f} %, {n} against {k}", detected, 0.75, 0.85)
    story = math.log(82.7 / 89)
    for k in (1, 3):
        table.row(f"the story, -7.3 %, is slower, 5 against {k}", lambda k=k: verdict(compare(5, k, story)) == "slower")

    def looks(plan: tuple[int, ...], alpha: float) -> bool:
        old, new = starts(5), starts(plan[-1])
        seen = (comparison.difference(old, new[:count], alpha) for count in plan)
        return any(verdict(one, 1e-9) in MOVED for one in seen)

    planned, greedy = (3, 5, 7), tuple(range(1, 8))
    table.row("false alarm in any of the planned looks at 3, 5, 7 starts", lambda: looks(planned, 0.05 / 3), 0.0, 0.05)
    table.row("the same, looking after every start at 5 % (not offered)", lambda: looks(greedy, 0.05))

    def drifts(calm: int, shifted: int = 0, shift: float = 0.0) -> bool:
        return comparison.cusum(comparison.cluster_means(starts(calm) + starts(shifted, shift))) is not None

    table.row("CUSUM alarm within 20 starts without a drift", lambda: drifts(20), 0.0, 0.05)
    table.row("CUSUM finds -3 % after 10 starts within 10 more", lambda: drifts(10, 10, -0.03))

    def family() -> bool:
        return min(comparison.holm({str(one): compare(5, 1).p for one in range(6)}).values()) < 0.05

    table.row("Holm: any of six unchanged metrics is called changed", family, 0.0, 0.05)


def of_comparisons(table: Table, dice: random.Random) -> None:
    """Arms in blocks, at all planned looks: docs/compare.md."""
    blocks: list[int] = []

    def compared(effects: dict[str, float], drift: float = 0.0, tolerance: float = TOLERANCE) -> list[str]:
        """The verdicts of a comparison of arms with these true effects; ``drift``: share from start to start."""
        told = [{"name": name, "declared": {}} for name in effects]
        document = comparisons.new("h", "compare", "", told, {}, tolerance, comparisons.LOOKS)
        for start in comparisons.planned(document):
            level = effects[start["arm"]] + drift * start["number"] + dice.gauss(0, BETWEEN)
            repeats = [math.exp(level + dice.gauss(0, WITHIN)) for _ in range(REPEATS)]
            comparisons.add(document, {**start, "repeats": repeats})
            if comparison_verdict.look(document):
                break
        blocks.append(comparisons.complete_blocks(document))
        return [one["verdict"] for one in document["result"]["pairs"]]

    def alarmed(effects: dict[str, float], drift: float) -> bool:
        return bool(set(MOVED) & set(compared(effects, drift, 1e-9)))

    two, three = {"A": 0.0, "B": 0.0}, {"A": 0.0, "B": 0.0, "C": 0.0}
    for drift in (0.0, 0.005, -0.01):
        label = f"comparison of 2 equal arms, drift {100 * drift:g} % a start: called changed at any look, tolerance 0"
        table.row(label, lambda drift=drift: alarmed(two, drift), 0.0, 0.05, part=4)
    table.row("the same of 3 equal arms, any of them", lambda: alarmed(three, 0.0), 0.0, 0.05, part=4)
    for effect in (-0.05, -0.10):
        for drift in (0.0, -0.01):
            effects = {"A": 0.0, "B": math.log1p(effect)}
            label = f"comparison finds {100 * effect:g} % at some look, drift {100 * drift:g} % a start"
            blocks.clear()
            table.row(label, lambda e=effects, d=drift: compared(e, d) == ["slower"], part=4)
            print(f"|   blocks until it was over, on average | {sum(blocks) / len(blocks):.1f} | |", flush=True)


PARTS = {"baselines": of_baselines, "comparisons": of_comparisons}

if __name__ == "__main__":
    sys.exit(main())

"""Run groups of checks and end with one line: how many passed, how many failed.

usage: .venv/bin/python scripts/check.py [--list] [--jobs N] GROUP...

A check is a command that passes or fails, or a run of pytest, whose tests count one by one. They begin in the order
of the groups, N at a time: what takes longest goes first; what has to be alone goes last, one by one. The output is
shown as it comes, each line with the name of its check where several run, and kept in tests/output/checks/. A check
that cannot run has failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "tests" / "output" / "checks"


@dataclass(frozen=True)
class Check:
    """A command with a name.

    `pytest` says that it is one, with tests to count; `alone` that nothing else may run beside it.
    """

    name: str
    command: tuple[str, ...]
    pytest: bool = False
    alone: bool = False


@dataclass
class Counts:
    """How many passed, failed and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        """Add another count to this one."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


# A file's tests stay together: they share environments, and some look at the order in which things happened.
TWO_AT_A_TIME = ("-n", "2", "--dist", "loadfile")


def pytest(name: str, *arguments: str, alone: bool = False) -> Check:
    """A run of pytest with a report that can be counted."""
    return Check(name, (sys.executable, "-m", "pytest", "-q", "--durations=25", *arguments), pytest=True, alone=alone)


def shell_scripts() -> tuple[str, ...]:
    """The shell scripts of the repository, relative to its root."""
    found = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("tests/**/*.sh"), ROOT / ".ci" / "run"]
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found))


GROUPS: dict[str, tuple[Check, ...]] = {
    "lint": (
        Check("ruff", ("ruff", "check", ".")),
        Check("ruff-format", ("ruff", "format", "--check", ".")),
        Check("yamllint", ("yamllint", "--strict", ".")),
        Check("mypy", ("mypy",)),
        Check("shellcheck", ("shellcheck", *shell_scripts())),
        Check("changelog", ("antsibull-changelog", "lint")),
        Check("ansible-lint", ("ansible-lint", "--offline", "--strict")),
    ),
    "sanity": (Check("ansible-test-sanity", ("scripts/ansible-test.sh", "sanity")),),
    "unit": (pytest("unit", "tests/unit", "-m", "not slow"),),
    "integration": (pytest("integration", "tests/integration", "-m", "not slow", *TWO_AT_A_TIME),),
    "docs": (
        pytest("docs-links", "tests/docs"),
        Check("collection-docs", ("antsibull-docs", "lint-collection-docs", "--plugin-docs", ".")),
    ),
    "slow": (
        # A playbook keeps one core busy, and a test is mostly one playbook.
        pytest("slow", "tests/unit", "tests/integration", "-m", "slow and not alone", *TWO_AT_A_TIME),
        Check("molecule", ("molecule", "test")),
        pytest("alone", "tests/unit", "tests/integration", "-m", "slow and alone", alone=True),
    ),
}


def count_tests(report: Path, code: int) -> Counts:
    """The counts of a pytest run from its JUnit report and exit code.

    A run that ended badly with no failed test to show for it (no test found, a crash, no report) counts as one failure.
    """
    counts = Counts()
    if report.exists():
        for suite in ElementTree.parse(report).iter("testsuite"):
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped = int(suite.get("skipped", 0))
            counts.add(Counts(int(suite.get("tests", 0)) - failed - skipped, failed, skipped))
    if code != 0 and counts.failed == 0:
        counts.failed = 1
    return counts


def say(text: str) -> None:
    """Print in one piece, so that lines of checks that run at the same time stay whole."""
    sys.stdout.write(text)
    sys.stdout.flush()


def run(check: Check, prefix: str = "") -> Counts:
    """Run one check, showing its output (each line after the prefix) and keeping it, and count."""
    report = OUTPUT / f"{check.name}.xml"
    report.unlink(missing_ok=True)
    command = [*check.command, f"--junit-xml={report}"] if check.pytest else list(check.command)
    say(f"\n=== {check.name}: {' '.join(command).replace(f'{ROOT}{os.sep}', '')}\n")
    started = time.monotonic()
    with (OUTPUT / f"{check.name}.log").open("w", encoding="utf-8") as log:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "NO_COLOR": "1", "ANSIBLE_NOCOLOR": "1", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            print(f"cannot run {command[0]}: {error.strerror}; scripts/setup.sh test installs it", file=sys.stderr)
            return Counts(failed=1)
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                say(prefix + line)
                log.write(line)
    code = process.returncode
    counts = count_tests(report, code) if check.pytest else Counts(passed=int(code == 0), failed=int(code != 0))
    say(f"--- {check.name}: {counts} in {time.monotonic() - started:.1f} s\n")
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 0 when all of it passed."""
    parser = argparse.ArgumentParser(description="Run groups of checks and count them.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of: {', '.join(GROUPS)}")
    parser.add_argument("--list", action="store_true", help="show the commands and run nothing")
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="how many checks run at once (default: %(default)s; the tests wait a lot, but two already fill two cores)",
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.groups) - set(GROUPS))
    if unknown or not (options.groups or options.list):
        parser.error(f"unknown group {', '.join(unknown)}" if unknown else "name a group")
    checks = [check for group in options.groups or GROUPS for check in GROUPS[group]]
    if options.list:
        for check in checks:
            print(f"{check.name}: {' '.join(check.command)}")
        return 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    several = options.jobs > 1 and len(checks) > 1
    results: dict[str, Counts] = {}
    for alone, jobs in ((False, options.jobs), (True, 1)):
        part = [check for check in checks if check.alone is alone]
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            made = pool.map(lambda check: run(check, f"{check.name}: " if several else ""), part)
            results.update(zip((check.name for check in part), made, strict=True))
    total = Counts()
    for counts in results.values():
        total.add(counts)
    failed = [name for name, counts in results.items() if counts.failed]
    print()
    if failed:
        print(f"failed: {', '.join(failed)} (output in {OUTPUT.relative_to(ROOT)})")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())

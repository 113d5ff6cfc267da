# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which lines of an engine's log say something about a failure: not progress bars, not the echo of our own probes."""

from __future__ import annotations

import re

#: A bar as tqdm draws it ("Capturing: 25%|██▌   | 1/4 [00:02<00:07,  2.54s/it]", vLLM: "50% Completed | 1/2 [...]").
#: What follows on the same line was written by somebody else.
_BAR = re.compile(r"^.*?\d+%(?:\|| Completed \|).*?\d+/\d+ \[[^]]*(?:it/s|s/it)[^]]*\]")
#: The request lines of uvicorn and llama.cpp for what readiness itself asks, and empty lines.
_NOISE = re.compile(r"\"GET /(?:health|v1/models|ping)\b[^\"]*\" \d+|done request: GET /(?:health|v1/models)|^\s*$")
#: What a log writer puts before the text, that differs between two lines that say the same.
_PREFIX = re.compile(r"^\s*(?:\(\S+ pid=\d+\) )?(?:\[[^]]*\] ?|(?:INFO|ERROR|WARNING) [\d-]+ [\d:]+ \[[^]]*\] ?)*")
#: How Python, C++ and the interpreter itself say what ended a program.
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Exit)\b: .+|what\(\):\s+.+|Fatal Python error: .+")


def last_exception(lines: list[str]) -> str:
    """The last line that names an exception, without its prefix; "" when there is none.

    What follows it in a log is often advice (SGLang: "Possible solutions: ...") that fits another failure.
    """
    bare = (_bare(line) for line in reversed(lines))
    return next((line for line in bare if _EXCEPTION.match(line)), "")[:500]


def relevant(lines: list[str], count: int = 0) -> list[str]:
    """The lines without noise and without immediate repetitions (of other ranks); ``count`` > 0: the last so many."""
    kept: list[str] = []
    for raw in lines:
        line = _BAR.sub("", raw)
        if _NOISE.search(line):
            continue
        if kept and (line == kept[-1] or _bare(line) == _bare(kept[-1]) != ""):
            continue
        kept.append(line)
    return kept[-count:] if count else kept


def _bare(line: str) -> str:
    return _PREFIX.sub("", line).strip()

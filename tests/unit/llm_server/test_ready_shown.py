"""What the controller shows of a wait: each phase once, marked differences, a sign of life; and nothing twice."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.action import llm_server_ready


@pytest.fixture
def said(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(llm_server_ready.display, "display", lines.append)
    return lines


def phase(name, at_s, seconds=None, was_s=None, note=""):
    return {"name": name, "at_s": at_s, "seconds": seconds, "was_s": was_s, "note": note}


def answer(*phases, elapsed_s=0.0, **more):
    return {"ready": False, "phases": list(phases), "elapsed_s": elapsed_s, **more}


def test_a_wait_as_it_is_shown(said):
    shown = llm_server_ready.Shown("h1")
    loading = phase("loading weights", 20.0, was_s=96.0)
    shown.show(answer(phase("starting", 0.0, 20.0), loading, elapsed_s=24.0))
    shown.show(answer(phase("starting", 0.0, 20.0), loading, elapsed_s=65.0, progress="12/62", waiting_for="8 workers"))
    note = "loading weights 214 s, was 96 s: page cache cold (57.0 GiB read from disk, was 0.0)"
    done = phase("loading weights", 20.0, 214.0, 96.0, note)
    shown.show(answer(done, phase("ready", 234.0), elapsed_s=234.0) | {"ready": True})
    assert said == [
        "h1: starting (at 0.0 s)",
        "h1: loading weights (at 20.0 s)",
        "h1: loading weights 12/62 (19 %) for 45 s, last time 96 s, waiting for 8 workers",
        f"h1:   {note}",
        "h1: ready (at 234.0 s)",
    ]


def test_a_failure_in_a_phase_that_was_shown_adds_nothing(said):
    shown = llm_server_ready.Shown("h1")
    shown.show(answer(phase("starting", 0.0), elapsed_s=4.0))
    shown.show({"failed": True, "msg": "it has stalled", "phases": [phase("starting", 0.0)]})
    assert said == ["h1: starting (at 0.0 s)"]


@pytest.mark.parametrize(("progress", "text"), [("", ""), ("3/8", " 3/8 (37 %)"), ("0/0", " 0/0"), ("half", " half")])
def test_progress_in_words(progress, text):
    assert llm_server_ready._share(progress) == text

"""Ended processes in words: five of a server's, and its compile workers in one line."""

from __future__ import annotations

from ansible_collections.groundstate.llm.plugins.module_utils import ended_lines


def process(pid: int, cmdline: str, how: str = "exited on TERM") -> dict:
    return {"pid": pid, "cmdline": cmdline, "how": how, "why": "holds GPU 0"}


def worker(pid: int, parent: int, how: str = "killed") -> dict:
    words = f"/srv/python /srv/torch/compile_worker/__main__.py --workers=32 --parent={parent} --read-fd={pid}"
    return process(pid, words, how)


def test_what_differs_in_numbers_alone_shares_a_line():
    """Two ranks of SGLang on two H200 had 64 of them."""
    parts = [process(2832, "sglang::scheduler_TP0"), process(2833, "sglang::scheduler_TP1")]
    found = ended_lines.lines([*parts, *(worker(4000 + number, 30656) for number in range(64))])
    assert found == [
        "2832 and 1 like it  sglang::scheduler_TP0  exited on TERM",
        "4000 and 63 like it  /srv/python /srv/torch/compile_worker/__main__.py --workers=32 --parent=30656 "
        "--read-fd=4000  killed",
    ]


def test_what_ended_in_another_way_has_its_own_line():
    found = ended_lines.lines([worker(1, 9), worker(2, 9, "exited with its parent"), worker(3, 9)])
    assert [line.split("  ")[0] for line in found] == ["1 and 1 like it", "2"]
    assert ended_lines.planned([process(1, "job 1", "killed"), process(2, "job 2")]) == [
        "process 1 and 1 like it: job 1 (holds GPU 0)"
    ]


def test_an_endless_command_line_is_cut():
    [line] = ended_lines.lines([process(7, "python " + "x" * 5000)])
    assert line.startswith("7  python xxx")
    assert line.endswith("x...  exited on TERM")
    assert len(line) < 300

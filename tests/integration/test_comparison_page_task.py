"""The task that writes the page of a comparison, in a real playbook: written once, and refused in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import page_data

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each task returns for the host ``gpu1``; one that fails does not end the play."""
    results = folder / "results.json"
    play = [
        {
            **{"groundstate.llm.comparison_page": {"records_dir": str(folder), **one["page"]}},
            **{"check_mode": one.get("check", False), "ignore_errors": True, "register": f"result_{number}"},
        }
        for number, one in enumerate(tasks)
    ]
    told = ", ".join(f"result_{number}" for number in range(len(tasks)))
    keep = {"content": "{{ [%s] | to_json }}" % told, "dest": str(results)}  # noqa: UP031 - braces of Jinja
    play.append({"ansible.builtin.copy": {**keep, "mode": "0600"}})
    book = folder / "play.yml"
    book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "connection": "local", "tasks": play}]))
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("ansible-playbook"), "-i", "gpu1,", book),
            *("-e", json.dumps({"ansible_python_interpreter": sys.executable})),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(json.loads(results.read_text()))


def test_the_page_is_written_once_in_words_and_not_in_check_mode(tmp_path: Path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.1})
    damaged = {**document, "id": page_data.identifier(950), "arms": [None]}
    place = tmp_path / "gpu1" / "comparisons" / damaged["id"] / "comparison.json"
    place.parent.mkdir()
    place.write_text(json.dumps(damaged))
    page = tmp_path / "gpu1" / "comparisons" / document["id"] / "result.html"
    elsewhere = tmp_path / "web" / "index.html"
    this = {"id": document["id"]}
    check, first, second, gone, no_id, bad = run(
        tmp_path,
        [
            {"page": {**this, "path": str(elsewhere)}, "check": True},
            {"page": this},
            {"page": this},
            {"page": {"id": page_data.identifier(1)}},
            {"page": {"id": "../../x"}},
            {"page": {"id": damaged["id"]}},
        ],
    )
    assert (check["changed"], check["path"], elsewhere.exists()) == (True, str(elsewhere), False)
    assert (first["changed"], first["path"], first["charts"]) == (True, str(page), True)
    assert second["changed"] is False
    assert "other is faster than base" in page.read_text()
    assert gone["msg"].startswith("there is no comparison ")
    assert "is not of the form" in no_id["msg"]
    assert bad["msg"].endswith("move its folder away")

"""What llm_server_info says of a real engine, and of one that hangs, loses a worker, or is gone."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import ports, server_info
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine

STAND_IN = Path(__file__).with_name("stand_in_engine.py")

# An OpenAI server whose health is always good; what else it does is told by files in its folder, so that a test can
# change it while the server runs: "hang" (completions do not end), "running" and "tokens" (its counters).
SWITCHED = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
port, folder = int(sys.argv[1]), Path(sys.argv[2])

class Handler(BaseHTTPRequestHandler):
    def reply(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def do_GET(self):
        if self.path == "/metrics":
            if (folder / "moves").exists():
                count = int((folder / "tokens").read_text()) + 7
                (folder / "tokens").write_text(str(count))
            values = {name: (folder / name).read_text() for name in ("running", "tokens")}
            self.reply("vllm:num_requests_running %(running)s\\nvllm:generation_tokens_total %(tokens)s\\n" % values)
        else:
            self.reply(json.dumps({"data": [{"id": "m", "max_model_len": 512}], "version": "9.9"}))
    def do_POST(self):
        while (folder / "hang").exists():
            time.sleep(0.05)
        self.reply(json.dumps({"choices": [{"text": "x"}], "usage": {"completion_tokens": 2}}))
    def log_message(self, *_words):
        pass

print("WARNING 11-29 13:37:28 [config.py:7] Overriding block size from 16 to 128", flush=True)
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def info(host, **arguments):
    return host.run("llm_server_info", server="local", **{"timeout_s": 20, **arguments})


def test_a_real_engine_from_absent_to_stopped(host, llama_env, llama_model):
    assert info(host)["health"] == "absent"
    declared = {"name": "local", "engine": "llama_cpp", "model": str(llama_model), "served_model_name": "smol"}
    declared.update({"port_from": 19560, "threads": 1, "context_length": 256, "gpus": []})
    made = host.run("llm_server", env_path=str(llama_env), launcher="process", declaration=declared)
    early = info(host, completion=False)
    assert early["health"] in ("starting", "healthy"), early
    assert host.run("llm_server_ready", server="local", timeout_s=60, slice_s=0)["ready"] is True
    found = info(host, require_healthy=True)
    assert (found["health"], found["why"], found["state"]) == ("healthy", [], "launched")
    assert (found["engine"], found["pid"], found["start_id"]) == ("llama_cpp", made["pid"], made["start_id"])
    assert found["version"].startswith("20")
    assert found["uptime_s"] > 0
    [worker] = found["workers"]
    assert (worker["rank"], worker["pid"], found["workers_expected"]) == (0, made["pid"], 1)
    assert worker["memory_mib"] > 50
    assert found["requests"] == {"running": 0, "queued": 0}
    assert found["metrics"]["generated_tokens"] >= 2
    assert found["accept_length"] is None
    assert {one["status"] for one in found["probes"].values()} == {200}
    assert found["differences"] == []
    host.run("llm_server", server="local", state="stopped")
    gone = info(host)
    assert (gone["health"], gone["why"], gone["uptime_s"]) == ("stopped", [], None)
    failed = info(host, require_healthy=True)
    assert failed["failed"] is True
    assert "server 'local' is stopped" in failed["msg"]


@pytest.fixture
def switched(host, tmp_path):
    """A server whose behaviour is switched by files; returns their folder."""
    folder = tmp_path / "switches"
    folder.mkdir()
    (folder / "running").write_text("0")
    (folder / "tokens").write_text("0")
    declared = {"name": "local", "engine": "vllm", "model": "m", "served_model_name": "m", "gpus": [], "port": 0}
    # It is no vLLM: it has the words of vLLM's metrics, and no workers that could be counted by their titles.
    declared.update(
        {"port_from": 19570, "command": [sys.executable, "-c", SWITCHED.replace("int(sys.argv[1])", "PORT")]}
    )
    port = ports.free_port(19570)
    declared["command"][2] = declared["command"][2].replace("PORT", str(port)).replace("sys.argv[2]", repr(str(folder)))
    declared.update({"port": port, "context_length": 1024})
    made = host.run("llm_server", launcher="process", declaration=declared)
    assert not made["failed"], made
    return folder


def test_health_200_and_no_completion_is_a_hang_unless_others_are_served(host, switched, monkeypatch):
    # In this process, so that the engine without worker titles counts as complete.
    monkeypatch.setattr(type(get_engine("vllm")), "expected_workers", lambda _self, _declaration: 0)

    def look(complete=True, timeout_s=1.0, watch_s=0.3):
        return server_info.gather(str(host.home), "local", complete, timeout_s, watch_s)

    deadline = time.monotonic() + 20
    while look()["health"] == "starting":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    good = look()
    assert (good["health"], good["version"]) == ("healthy", "9.9")
    cut = {"what": "context_length", "declared": "1024", "resolved": "512 tokens at most"}
    assert good["differences"] == [cut]
    assert good["adjustments"] == ["Overriding block size from 16 to 128"]

    (switched / "running").write_text("1")
    frozen = look(complete=False)
    assert frozen["health"] == "hung"
    assert "1 requests run, and no token was made in" in frozen["why"][0]
    assert frozen["requests"]["running"] == 1
    assert look()["health"] == "healthy"  # the completion came: whatever the counters say, it serves

    (switched / "hang").touch()
    hung = look(timeout_s=0.4)
    assert hung["health"] == "hung"
    assert "health answers 200, and a completion of our own: no reply within 0.4 s; no token" in hung["why"][0]
    (switched / "moves").touch()
    assert look(complete=False)["health"] == "healthy"
    busy = look(timeout_s=0.4)
    assert busy["health"] == "busy"
    assert "7 tokens were made for other requests meanwhile" in busy["why"][0]
    (switched / "hang").unlink()


def test_a_lost_worker_and_a_death_are_told(host):
    declared = {"name": "local", "engine": "sglang", "model": str(STAND_IN), "served_model_name": str(STAND_IN)}
    declared.update({"tensor_parallel": 2, "port_from": 19580, "gpus": [], "command": [sys.executable, str(STAND_IN)]})
    declared["extra_args"] = {"script": json.dumps({})}
    host.run("llm_server", launcher="process", declaration=declared)
    assert host.run("llm_server_ready", server="local", timeout_s=60, slice_s=0)["ready"] is True
    found = info(host)
    assert [one["rank"] for one in found["workers"]] == [0, 1]
    assert found["workers_expected"] == 2
    os.kill(found["workers"][1]["pid"], signal.SIGKILL)
    lost = info(host)
    assert lost["health"] == "incomplete"
    assert lost["why"] == ["1 of 2 workers are gone; the server process still runs"]
    os.kill(found["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while info(host)["health"] != "dead":
        assert time.monotonic() < deadline
    assert "killed by SIGKILL" in info(host)["why"][0]

"""Models on a host: refused when they are cut off, fetched from a hub and a peer, measured once."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import tiny_llama

TOKEN = "not-a-real-token"
COMMIT = "0" * 39 + "1"


@pytest.fixture
def content() -> dict[str, bytes]:
    return tiny_llama.model_files(tiny_llama.Shape())


@pytest.fixture
def model(tmp_path, content) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, raw in content.items():
        (folder / name).write_bytes(raw)
    return folder


def ask(module, tmp_path: Path, path: Path, check: bool = False, model: dict | None = None, **more) -> dict:
    return module(
        "model_files", check=check, models=[{"path": str(path), **(model or {})}], home=str(tmp_path / "home"), **more
    )


def test_a_whole_model_is_measured_once_and_one_that_was_cut_off_refused(module, tmp_path, model):
    first = ask(module, tmp_path, model, warm=True)
    (found,) = first["models"]
    assert (first["changed"], found["complete"], found["cached_share"]) == (False, True, 1.0)
    assert found["total_mib"] == 1
    # On a filesystem in memory there is no disk to measure.
    speeds = tmp_path / "home" / "cache" / "model-speed.json"
    assert (found["read_mib_s"] is not None) == speeds.exists()
    if speeds.exists():
        before = speeds.read_bytes()
        assert ask(module, tmp_path, model)["models"][0]["read_mib_s"] == found["read_mib_s"]
        assert speeds.read_bytes() == before

    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    refused = ask(module, tmp_path, model)
    assert refused["failed"] is True
    assert "model.safetensors was cut off" in refused["msg"]
    assert ask(module, tmp_path, model, policy="report")["models"][0]["complete"] is False
    weights.unlink()
    assert "there are no weights" in ask(module, tmp_path, model)["msg"]
    assert ask(module, tmp_path, model, dummy=True)["models"][0]["complete"] is True


def test_the_real_model_of_the_default_environment(module, tmp_path, llama_model):
    (found,) = ask(module, tmp_path, llama_model)["models"]
    assert (found["complete"], found["shards"]) == (True, [llama_model.name])
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(llama_model.read_bytes()[:-4096])
    size = llama_model.stat().st_size
    assert f"cut.gguf was cut off: {size - 4096} of {size} bytes" in ask(module, tmp_path, cut)["msg"]


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not on this machine")
def test_what_is_missing_comes_from_a_peer(module, tmp_path, model, content):
    here = tmp_path / "copy"
    source = {"rsync_from": str(model)}
    wanted = ask(module, tmp_path, here, check=True, model=source)
    assert (wanted["failed"], wanted["changed"], here.exists()) == (False, True, False)
    assert ask(module, tmp_path, here, model=source)["changed"] is True
    assert {one.name: one.read_bytes() for one in here.iterdir()} == content
    assert ask(module, tmp_path, here, model=source)["changed"] is False
    (here / "model.safetensors").write_bytes(b"cut")
    assert ask(module, tmp_path, here, model=source)["changed"] is True
    assert (here / "model.safetensors").read_bytes() == content["model.safetensors"]


NEEDS_RSYNC = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not on this machine")


def gguf() -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(32)


@NEEDS_RSYNC
@pytest.mark.parametrize("names_file", [True, False])
def test_a_file_comes_from_a_peer_without_what_lies_beside_it(module, tmp_path, names_file):
    there, here = tmp_path / "peer", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    for name in ("m.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "other.gguf"):
        (there / name).write_bytes(gguf())
    (here / "m.gguf").mkdir()  # what an earlier fetch left
    for name in ("m.gguf", "b-00001-of-00002.gguf"):
        source = {"rsync_from": str(there / name if names_file else there)}
        for damage in (None, b"GGUF"):
            if damage:
                (here / name).write_bytes(damage)
            got = ask(module, tmp_path, here / name, model=source)
            assert (got["changed"], got["models"][0]["complete"]) == (True, True)
        assert ask(module, tmp_path, here / name, model=source)["changed"] is False
    assert sorted(one.name for one in here.iterdir()) == ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "m.gguf"]
    absent = ask(module, tmp_path, here / "no.gguf", model={"rsync_from": str(there)})
    assert f"{there} has nothing better" in absent["msg"]
    assert not (here / "no.gguf").exists()


@NEEDS_RSYNC
def test_a_snapshot_of_the_hubs_cache_is_a_peer_like_any_other(module, tmp_path, model, content):
    snapshot, here = tmp_path / "hub" / "snapshots" / COMMIT, tmp_path / "copy"
    blobs = tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    model.rename(blobs)
    for name in content:
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    (snapshot / "again").symlink_to(".")  # would be copied into itself for ever
    here.mkdir()
    (here / "config.json").symlink_to("../../blobs/config.json")  # what an earlier fetch left
    assert ask(module, tmp_path, here, model={"rsync_from": str(snapshot)})["models"][0]["complete"] is True
    assert {name: (here / name).read_bytes() for name in content} == content
    assert not any((here / name).is_symlink() for name in content)
    assert (here / "again").is_symlink()
    assert ask(module, tmp_path, here, model={"rsync_from": str(snapshot)})["changed"] is False


@NEEDS_RSYNC
def test_a_file_that_is_wrong_comes_again_though_its_size_and_time_are_right(module, tmp_path, model, content):
    name = "model.safetensors"
    here = tmp_path / "copy"
    shutil.copytree(model, here)
    right = (here / name).stat()
    (here / name).write_bytes(content[name][:-1] + bytes([content[name][-1] ^ 1]))
    os.utime(here / name, ns=(right.st_atime_ns, right.st_mtime_ns))
    (here / "notes.txt").write_text("mine")
    asked = {"rsync_from": str(model), "sha256": {name: hashlib.sha256(content[name]).hexdigest()}}
    got = ask(module, tmp_path, here, model=asked)
    assert (got["changed"], got["models"][0]["complete"]) == (True, True)
    assert (here / "notes.txt").read_text() == "mine"
    assert ask(module, tmp_path, here, model=asked)["changed"] is False

    # What the peer has is not what is declared either.
    asked["sha256"] = {name: "0" * 64}
    got = ask(module, tmp_path, here, model=asked)
    assert (got["failed"], got["changed"]) == (True, False)
    assert f"{model} has nothing better" in got["msg"]
    assert "name where it comes from" not in got["msg"]
    assert (here / name).read_bytes() == content[name]


@NEEDS_RSYNC
def test_a_copy_that_fails_says_why_and_leaves_what_is_there(module, tmp_path, model):
    failed = ask(module, tmp_path, tmp_path / "copy", model={"rsync_from": str(tmp_path / "nowhere")})
    assert "It is not there: check the path on the peer" in failed["msg"]
    (model / "dead").symlink_to("/nowhere")
    failed = ask(module, tmp_path, tmp_path / "copy", model={"rsync_from": str(model)})
    assert "a link there leads nowhere" in failed["msg"]
    assert [one.name for one in (tmp_path / "home" / "cache").glob("fetch*")] == ["fetch.lock"]


def test_a_host_that_cannot_fetch_says_what_it_lacks(module, tmp_path):
    failed = ask(module, tmp_path, tmp_path / "no", model={"repo": "some/model"}, env_path=str(tmp_path))
    assert "name an environment that has huggingface_hub" in failed["msg"]
    both = ask(module, tmp_path, tmp_path / "no", model={"repo": "some/model", "rsync_from": "a:/b"})
    assert "not both" in both["msg"]


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub's interface that a download uses."""

    content: dict[str, bytes]
    tokens: set[str]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        self.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.partition("?")[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        raw = self.content.get(path.rpartition("/")[2])
        headers = {"X-Repo-Commit": COMMIT}
        if path.startswith("/api/models/some/model"):
            files = [{"rfilename": name} for name in self.content]
            raw = json.dumps({"id": "some/model", "sha": COMMIT, "siblings": files}).encode()
            if "/tree/" in path:
                entries = [
                    {"type": "file", "path": name, "size": len(one), "oid": hashlib.sha256(one).hexdigest()}
                    for name, one in self.content.items()
                ]
                raw = json.dumps(entries).encode()
            headers["Content-Type"] = "application/json"
        elif raw is not None:
            headers["ETag"] = f'"{hashlib.sha256(raw).hexdigest()}"'
        if raw is None:
            self.send_error(404)
            return
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(raw)

    def log_message(self, *_arguments) -> None:
        pass


@pytest.mark.slow  # installs huggingface_hub from an index
def test_what_is_missing_comes_from_the_hub(module, tmp_path, content, monkeypatch):
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True, capture_output=True)
    subprocess.run([str(env / "bin" / "python"), "-m", "pip", "install", "-q", "huggingface_hub"], check=True)
    handler = type("Content", (Hub,), {"content": content, "tokens": set()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        here = tmp_path / "model"
        asked = {"model": {"repo": "some/model"}, "env_path": str(env)}
        refused = ask(module, tmp_path, here, token="another-token", **asked)
        assert "ml_env_hub_token" in refused["msg"]
        assert "another-token" not in json.dumps(refused)
        done = ask(module, tmp_path, here, token=TOKEN, **asked)
        assert done["failed"] is False, done["msg"]
        assert (done["changed"], done["models"][0]["complete"]) == (True, True)
        assert TOKEN not in json.dumps(done)
        assert {name: (here / name).read_bytes() for name in content} == content
        assert ask(module, tmp_path, here, token=TOKEN, **asked)["changed"] is False
        # Cut off here: fetched again.
        (here / "model.safetensors").write_bytes(content["model.safetensors"][:-1])
        assert ask(module, tmp_path, here, token=TOKEN, **asked)["models"][0]["complete"] is True
        # A model that is a file comes without what lies beside it.
        alone = tmp_path / "alone" / "model.safetensors"
        assert ask(module, tmp_path, alone, token=TOKEN, **asked)["models"][0]["complete"] is True
        assert [one.name for one in alone.parent.iterdir() if one.is_file()] == [alone.name]
    finally:
        server.shutdown()
        server.server_close()

"""Environments from an index that wants a password, and on hosts whose pip is set in ways of its own."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build, installers
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources
from made_wheels import wheel

INSTALLERS = ["pip", pytest.param("uv", marks=pytest.mark.skipif(installers.find_uv() is None, reason="no uv here"))]


@pytest.fixture
def wheels(tmp_path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def spec(tmp_path, wheels, monkeypatch) -> build.Spec:
    """A small environment; the host's own settings are none."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    lock = wheel(wheels, "engine", "1.0", "NAME = 'engine'\n") + wheel(wheels, "helper_cpu", "2.1")
    no_index = Sources(find_links=(str(wheels),), no_index=True)
    return build.Spec(
        str(tmp_path / "envs" / "small"), lock, sys.executable, imports=("engine:NAME",), sources=no_index
    )


def say(path: str) -> str:
    """What the environment's own Python says of the engine."""
    asked = [f"{path}/bin/python", "-c", "import engine; print(engine.NAME)"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def protected_index(spec, wheels, monkeypatch):
    """An index that wants a password, on a host whose pip is set to another one."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/of-the-host")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = "Basic " + base64.b64encode(b"user:S3cretPw").decode()
            words = [word for word in self.path.split("/") if word]
            allowed = self.headers.get("Authorization") == wanted
            self.send_response(200 if allowed else 401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.end_headers()
            if not allowed:
                return
            if self.path.endswith("/"):
                found = sorted(one.name for one in wheels.iterdir() if one.name.startswith(words[-1].replace("-", "_")))
                self.wfile.write("".join(f'<a href="{name}">{name}</a>' for name in found).encode())
            else:
                self.wfile.write((wheels / words[-1]).read_bytes())

        def log_message(self, *_words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://user:S3cretPw@127.0.0.1:{server.server_port}/simple"
        server.shutdown()


@pytest.mark.parametrize("installer", INSTALLERS)
def test_the_declared_index_is_used_and_its_password_stays_out_of_the_log(spec, installer, protected_index):
    plan = build.ensure(replace(spec, installer=installer, sources=Sources(index_url=protected_index)))
    assert say(spec.path) == "engine"
    log = Path(plan.folder, "install.log").read_text()
    assert "***@127.0.0.1" in log
    assert "S3cretPw" not in log


def test_a_host_whose_pip_is_set_to_install_elsewhere_gets_the_environment_all_the_same(spec, tmp_path, monkeypatch):
    settings = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    for number, text in enumerate(("[install]\nuser = true\n", f"[global]\ntarget = {tmp_path}/elsewhere\n")):
        settings.write_text(text)
        build.ensure(replace(spec, installer="pip", path=f"{spec.path}{number}"))
        assert say(f"{spec.path}{number}") == "engine"

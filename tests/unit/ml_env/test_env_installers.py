"""Command lines, settings and errors of uv and pip."""

from __future__ import annotations

import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import installers
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.requirements import parse

ITEMS = parse("a==1 --hash=sha256:00\nb==2+cpu\n")
SOURCES = Sources("https://main/simple", ("https://more/simple",), ("/wheels",), "https://torch/simple")


def test_pip_gets_lines_with_and_without_hashes_in_runs_of_their_own():
    # With one hash in a run pip wants one for every line.
    assert installers.inputs("/e", "pip", ITEMS) == {
        "/e/lock-hashed.txt": "a==1 --hash=sha256:00\n",
        "/e/lock-plain.txt": "b==2+cpu\n",
    }
    assert list(installers.inputs("/e", "pip", ITEMS[:1])) == ["/e/lock-hashed.txt"]
    assert list(installers.inputs("/e", "uv", ITEMS)) == ["/e/lock.txt"]


@pytest.mark.parametrize("kind", ["uv", "pip"])
def test_no_resolver_no_compiler_and_the_declared_places(kind):
    steps = installers.steps(kind, "/bin/uv", "/bin/python3", "/e", ITEMS, SOURCES)
    assert steps[0].argv[-1] == "/e"
    for step in steps[1:]:
        text = " ".join(step.argv)
        assert "--no-deps --only-binary :all:" in text
        assert "--index-url https://main/simple --extra-index-url https://more/simple" in text
        assert "--extra-index-url https://torch/simple --find-links /wheels -r /e/lock" in text
    assert len(steps) == (2 if kind == "uv" else 3)


PLACES = {"index_url": "none", "extra_index_urls": [], "find_links": ["/wheels"], "torch_index": ""}


@pytest.mark.parametrize("kind", ["uv", "pip"])
def test_no_index_at_all_can_be_asked_for(kind):
    for step in installers.steps(kind, "/bin/uv", "/bin/python3", "/e", ITEMS, installers.sources(PLACES))[1:]:
        text = " ".join(step.argv)
        assert "--no-index --find-links /wheels" in text
        assert "index-url" not in text


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"extra_index_urls": ["https://user:secret@more/simple"]}, "extra_index_urls"),
        ({"torch_index": "https://torch/simple"}, "torch_index"),
        ({"find_links": []}, "find_links"),
    ],
)
def test_no_index_and_an_index_contradict_each_other(more, word):
    with pytest.raises(ValueError, match=word) as refused:
        installers.sources({**PLACES, **more})
    assert "secret" not in str(refused.value)
    assert installers.sources({**PLACES, "find_links": [], "bundle": "/srv/one.tar"}).no_index


def test_uv_downloads_no_python():
    steps = installers.steps("uv", "/bin/uv", "/bin/python3", "/e", ITEMS, Sources())
    assert all(step.environment["UV_PYTHON_DOWNLOADS"] == "never" for step in steps)


def test_pips_settings_are_read_with_their_precedence():
    text = (
        "global.index-url='https://one'\ninstall.index-url='https://two'\n:env:.cert='/ca.pem'\nglobal.cert='/no'\n"
        "global.extra-index-url='file:///a\\nfile:///b'\nuser.x='y'\nnonsense\nglobal.bad=[\n"
    )
    assert installers.parse_pip_config(text) == {
        "index-url": "https://two",
        "cert": "/ca.pem",
        "extra-index-url": "file:///a file:///b",
    }


def test_uv_is_told_what_pip_knows_but_what_the_host_tells_uv_stays():
    settings = {
        "index-url": "https://two",
        "extra-index-url": "file:///a file:///b",
        "find-links": "/w /x",
        "proxy": "p",
    }
    assert installers.uv_environment(settings, {}) == {
        "UV_DEFAULT_INDEX": "https://two",
        "UV_INDEX": "file:///a file:///b",
        "UV_FIND_LINKS": "/w,/x",
        "ALL_PROXY": "p",
    }
    present = {"UV_INDEX_URL": "u", "UV_EXTRA_INDEX_URL": "v", "HTTPS_PROXY": "q", "UV_FIND_LINKS": "/z"}
    assert installers.uv_environment(settings, present) == {}


def test_without_a_pip_its_variables_still_count(monkeypatch):
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://more")
    assert installers.pip_settings("/does/not/exist")["extra-index-url"] == "https://more"


def test_pip_itself_is_asked(monkeypatch, tmp_path):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://from-a-file\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    # uv's environments have no pip: then only variables are known.
    settings = installers.pip_settings(sys.executable)
    base = installers.pip_settings(sys._base_executable)
    assert "https://from-a-file" in (settings.get("index-url"), base.get("index-url"))


@pytest.mark.parametrize(
    ("output", "word"),
    [
        ("error: Failed to install: x\n  cause: No space left on device (os error 28)", "disk is full"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("The virtual environment was not created successfully because ensurepip is not available.", "venv package"),
        ("cause: Hash mismatch for `engine==1.0`", "another file than the one locked"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "another file than the one locked",
        ),
        ("Because there is no version of torch==2.13.0+cpu and you require torch==2.13.0+cpu", "ml_env_torch_index"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "ml_env_torch_index"),
        ("ERROR: No matching distribution found for xllamacpp==1", "ml_env_extra_index_urls"),
        ("Because xllamacpp was not found in the package registry", "ml_env_extra_index_urls"),
        ("error: Request failed\n cause: dns error: failed to lookup address information", "HTTPS_PROXY"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError: Failed to establish a new connection'\n"
            "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n"
            "ERROR: No matching distribution found for x==1",
            "HTTPS_PROXY",
        ),
        ("something new", "installer's words above"),
    ],
)
def test_the_remedy_fits_the_error(output, word):
    assert word in installers.remedy(output)


def test_passwords_in_urls_are_known_and_hidden():
    sources = Sources("https://u:p1@host/simple", ("https://host/",), ("/wheels",), "https://token:p2@torch/")
    assert sources.secrets() == ["p1", "p2"]
    said = installers.describe(sources, {"extra-index-url": "https://x:p3@y/"})
    assert not any(secret in said for secret in ("p1", "p2", "p3"))
    assert "https://***@host/simple" in said


def test_the_installer_is_chosen(monkeypatch, tmp_path):
    assert installers.choose("pip") == ("pip", "")
    # A shim that leads nowhere is not a uv.
    shim = tmp_path / "uv"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert installers.choose("auto") == ("pip", "")
    with pytest.raises(ValueError, match="uv is not on this host"):
        installers.choose("uv")
    shim.write_text("#!/bin/sh\necho uv 1\n")
    assert installers.choose("auto") == ("uv", str(shim))
    assert installers.choose(str(shim)) == ("uv", str(shim))
    with pytest.raises(ValueError, match="no such program"):
        installers.choose("/nowhere/uv")

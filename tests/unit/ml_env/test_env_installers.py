"""Command lines, settings and errors of uv and pip."""

from __future__ import annotations

import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import installers, running
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
        assert "--find-links /wheels -r /e/lock" in text
        assert sorted(step.places.values()) == ["https://main/simple", "https://more/simple https://torch/simple"]
    assert len(steps) == (2 if kind == "uv" else 3)


PLACES = {"index_url": "none", "extra_index_urls": [], "find_links": ["/wheels"], "torch_index": ""}


@pytest.mark.parametrize("kind", ["uv", "pip"])
def test_no_index_at_all_can_be_asked_for(kind):
    for step in installers.steps(kind, "/bin/uv", "/bin/python3", "/e", ITEMS, installers.sources(PLACES))[1:]:
        text = " ".join(step.argv)
        assert "--no-index --find-links /wheels" in text
        assert "index-url" not in text
        assert step.places == {}


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


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://u:p1@host/simple", ["p1"]),
        ("HTTPS://u:p1@host/simple", ["p1"]),
        ("https://t0ken@host/simple", ["t0ken"]),
        ("https://t0ken:@host/simple", ["t0ken"]),
        ("https://u:p@1@host/simple", ["p@1"]),
        ("https://u:p/1@host/simple", ["p/1"]),
        ("https://u:p%401@host/simple", ["p%401", "p@1"]),
        ("git+https://u:p1@host/x", ["p1"]),
        ("https://host:8080/simple/@scope/", []),
        ("https://host/", []),
        ("/wheels/a@b", []),
        ("", []),
    ],
)
def test_passwords_and_tokens_in_urls_are_known_and_hidden(url, secrets):
    assert installers.url_secrets(url) == secrets
    said = installers.describe(Sources(find_links=(url,)), {"extra-index-url": url})
    assert not any(secret in said for secret in secrets)


def test_secrets_are_known_of_every_option_that_names_a_place():
    params = {"index_url": "https://a:p1@h", "extra_index_urls": ["https://a:p2@h"], "find_links": ["https://a:p3@h"]}
    assert installers.secrets({**params, "torch_index": "https://p4@h"}) == ["p1", "p2", "p3", "p4"]


SECRET = Sources("https://u:p1@a/", ("https://p2@b/",), ("/some, wheels", "https://u:p3@c/x,y"), "https://u:p4@d/")


@pytest.mark.parametrize("kind", ["uv", "pip"])
def test_no_password_is_in_a_command_line(kind, monkeypatch):
    monkeypatch.setattr(installers, "has_pip", lambda python: True)
    made = installers.steps(kind, "/bin/uv", "/bin/python3", "/e", ITEMS, SECRET)
    made += installers.again(kind, "/bin/uv", "/e/bin/python", "/s", ITEMS, SECRET)
    for step in made:
        assert not any(f"p{n}" in word for word in step.argv[1:] for n in (1, 2, 3, 4) if not word.startswith("-")), (
            step
        )
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS")
    main, more, links = names if kind == "uv" else ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
    assert made[1].places == {
        main: "https://u:p1@a/",
        more: "https://p2@b/ https://u:p4@d/",
        links: ("," if kind == "uv" else " ").join(["file:///some%2C%20wheels", "https://u:p3@c/x%2Cy"]),
    }


def test_declared_places_come_before_the_hosts_and_its_further_ones_stay(monkeypatch):
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://of-the-host")
    settings = {"index-url": "https://of-the-host", "extra-index-url": "https://more-of-the-host"}
    pip = installers.environment("pip", installers.Step("", [], {}, installers.variables("pip", SOURCES)), settings)
    assert pip["PIP_INDEX_URL"] == "https://main/simple"
    assert pip["PIP_EXTRA_INDEX_URL"] == "https://more/simple https://torch/simple https://more-of-the-host"
    uv = installers.environment("uv", installers.Step("", [], {}, installers.variables("uv", SOURCES)), settings)
    assert uv["UV_DEFAULT_INDEX"] == "https://main/simple"
    assert uv["UV_INDEX"] == "https://more/simple https://torch/simple https://more-of-the-host"
    plain = installers.environment("uv", installers.Step("", []), settings)
    assert plain["UV_DEFAULT_INDEX"] == "https://of-the-host"


def test_a_log_holds_the_command_and_its_indexes_without_passwords(tmp_path):
    log = tmp_path / "log"
    environment = {"UV_DEFAULT_INDEX": "https://u:s3cret@a/simple", "OTHER": "x"}
    running.run([sys.executable, "-c", "0", "https://t0ken@b/"], environment, str(log), 60, 2)
    said = log.read_text()
    assert said == f"$ UV_DEFAULT_INDEX=https://***@a/simple {sys.executable} -c 0 https://***@b/\n"


def test_what_was_not_asked_is_not_said():
    said = installers.describe(installers.sources(PLACES), {"index-url": "https://x", "extra-index-url": "https://y"})
    assert said == "no index; files in /wheels"


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

"""The section python_env as a whole."""

from __future__ import annotations

import os
import sys

from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import python_env


def interpreter(site) -> None:
    (site.root / "bin").mkdir(exist_ok=True)
    (site.root / "bin" / "python").symlink_to(sys.executable)


def test_the_lists_are_cut_and_the_hash_is_of_all(site, monkeypatch):
    monkeypatch.setattr(python_env, "SHOWN", 2)
    for number in range(5):
        (site.path / "sglang" / f"p{number}.py").write_text("p")
    first = python_env.read(str(site.root), None, {})
    assert first["added"] == ["sglang/p0.py", "sglang/p1.py"]
    assert first["counts"] == {"edited": 0, "missing": 0, "added": 5}
    assert first["owners"] == {"sglang/p0.py": "sglang", "sglang/p1.py": "sglang"}
    (site.path / "sglang" / "p4.py").write_text("q")
    second = python_env.read(str(site.root), None, {})
    assert second["added"] == first["added"]
    assert second["difference_hash"] != first["difference_hash"]


def test_without_verification_the_versions_are_there_and_the_rest_is_unknown(site):
    unknown: dict[str, str] = {}
    found = python_env.read(str(site.root), None, unknown, verify_files=False)
    assert found["count"] == 4
    assert found["edited"] is None
    assert unknown["python_env.edited"] == "verify_files is false"


def test_python_itself_answers_for_its_version(site):
    interpreter(site)
    unknown: dict[str, str] = {}
    found = python_env.read(str(site.root), None, unknown)
    assert found["python"] == ".".join(str(one) for one in sys.version_info[:3])
    # Debian's own Python comes with one.
    beside = os.path.dirname(os.__file__)
    present = {name for name in ("sitecustomize.py", "usercustomize.py") if os.path.exists(os.path.join(beside, name))}
    assert set(found["customised"]) == present
    assert unknown == {}


def test_a_script_that_starts_the_python_of_another_environment_is_followed(site, tmp_path):
    real = site.root / "bin" / "python3"
    real.parent.mkdir(exist_ok=True)
    real.symlink_to(sys.executable)
    for name in ("python", "python3"):
        script = tmp_path / name / "bin" / name
        script.parent.mkdir(parents=True)
        script.write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
        script.chmod(0o755)
        found = python_env.read(str(script.parent.parent), None, {})
        assert found["distributions"]["sglang"] == "0.5.23"
        assert found == python_env.read(str(site.root), None, {})


def test_a_sitecustomize_beside_the_standard_library_is_seen(site, tmp_path, monkeypatch):
    library = tmp_path / "library"
    library.mkdir()
    monkeypatch.setattr(
        python_env, "interpreter", lambda path: python_env.Interpreter("3.12.3", "CPython", str(library), "/")
    )
    before = python_env.read(str(site.root), None, {})["customised"]
    (library / "sitecustomize.py").write_text("import os\n")
    after = python_env.read(str(site.root), None, {})["customised"]
    assert before == {}
    assert list(after) == ["sitecustomize.py"]


def test_two_versions_of_one_distribution_are_both_shown(site):
    site.install("sglang", "0.5.11", {})
    found = python_env.read(str(site.root), None, {})
    assert found["distributions"]["sglang"] == "0.5.11, 0.5.23"


def test_lib64_as_a_link_to_lib_is_read_once(site):
    (site.root / "lib64").symlink_to("lib")
    assert python_env.site_folders(str(site.root)) == [str(site.path)]


def test_no_environment_is_unknown_not_empty(tmp_path):
    unknown: dict[str, str] = {}
    assert python_env.read("", None, unknown)["edited"] is None
    assert "no environment was named" in unknown["python_env"]
    python_env.read(str(tmp_path), None, unknown)
    assert "no lib/python3*/site-packages" in unknown["python_env.distributions"]

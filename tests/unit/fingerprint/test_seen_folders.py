"""Packages that an environment sees outside of itself, as in containers that bring a torch of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import engine_parser
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import compare, python_env, seen_folders
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def outside(tmp_path, site):
    """Where torch is, and an older sglang that the environment's own one hides."""
    made = type(site)(tmp_path / "opt" / "torch")
    made.install("torch", "2.11.0", {"torch/__init__.py": "", "torch/cuda.py": "c = 1\n"})
    made.install("sglang", "0.4.0", {"sglang/__init__.py": "old"})
    return made


def read(site) -> dict:
    return python_env.read(str(site.root), None, {})


def name_in_pth(site, *lines: str) -> None:
    (site.path / "host.pth").write_text("\n".join(lines))


def test_what_a_pth_file_names_is_the_environment_s_as_well(site, outside):
    name_in_pth(site, "# torch of the host", "import os; os.environ", "/not/there", str(outside.path))
    found = read(site)
    assert found["seen"] == [str(outside.path)]
    assert (found["distributions"]["torch"], found["distributions"]["sglang"]) == ("2.11.0", "0.5.23")
    assert found["count"] == 5
    assert found["counts"] == {"edited": 0, "missing": 0, "added": 1}  # the .pth file


def test_a_torch_that_changes_there_and_files_of_it_are_told(site, outside):
    name_in_pth(site, str(outside.path))
    before = read(site)
    (outside.path / "torch" / "cuda.py").write_text("c = 2\n")
    (outside.path / "torch" / "mine.py").write_text("")  # a system's folder has much that no wheel brought
    outside.install("torch-more", "1.0", {})
    after = read(site)
    assert compare.differences({"sections": {"python_env": before}}, {"sections": {"python_env": after}}) == [
        f"1 file of torch differs from the wheel: {outside.path}/torch/cuda.py",
        "packages: torch-more not there -> 1.0",
    ]


def test_an_environment_on_its_own_has_no_such_folders(site):
    assert "seen" not in read(site)
    (site.root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    name_in_pth(site, "/src/checkout", "..", ".")
    assert "seen" not in read(site)


def test_a_checkout_that_an_editable_install_names_is_none(site, tmp_path):
    (tmp_path / "checkout").mkdir()
    name_in_pth(site, str(tmp_path / "checkout"))
    assert "seen" not in read(site)


@pytest.mark.parametrize(
    ("below", "seen"),
    [
        ("lib/python3.11/site-packages", True),
        ("lib/python3/dist-packages", True),
        ("local/lib/python3.11/dist-packages", True),
        ("lib/python3.12/site-packages", False),
    ],
)
def test_the_system_s_packages_are_seen_where_the_environment_says_so(site, tmp_path, below, seen):
    system = type(site)(tmp_path / "usr", below)
    system.install("torch", "2.11.0", {"torch/__init__.py": ""})
    (tmp_path / "usr" / "bin").mkdir()
    (site.root / "pyvenv.cfg").write_text(
        f"home = {tmp_path}/usr/bin\ninclude-system-site-packages = TRUE\nversion = 3.11\n"
    )
    found = seen_folders.find(str(site.root), [str(site.path)])
    assert found == ([str(system.path)] if seen else [])


def test_a_real_environment_of_both_kinds_sees_what_its_python_does(tmp_path):
    """The folders are read, not asked for; Python's own answer is the truth."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", folder], check=True)
    [site] = first.glob("lib/python3*/site-packages")
    [other] = second.glob("lib/python3*/site-packages")
    (other / "more-1.0.dist-info").mkdir()
    (site / "other.pth").write_text(f"{other}\n")
    asked = "import sys; print(*sys.path, sep='\\n')"
    python = str(first / "bin" / "python")
    said = subprocess.run([python, "-I", "-c", asked], check=True, capture_output=True, text=True).stdout.splitlines()
    expected = [
        str(Path(one).resolve())
        for one in said
        if one.endswith("-packages") and one != str(site) and list(Path(one).glob("*.dist-info"))
    ]
    assert str(other) in expected
    assert seen_folders.find(str(first), [str(site)]) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=200))
def test_whatever_is_in_a_pth_file_or_a_pyvenv_cfg(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("hostile")
    site = folder / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (site / "x.pth").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    (folder / "pyvenv.cfg").write_text(text + "\ninclude-system-site-packages = true\n", errors="surrogatepass")
    found = seen_folders.find(str(folder), [str(site)])
    assert len(set(found)) == len(found)
    for one in map(Path, found):
        assert one == one.resolve() != site.resolve()
        assert list(one.glob("*.dist-info"))


def test_an_engine_that_is_seen_elsewhere_has_a_version_and_its_own_one_comes_first(site, outside):
    """Whose arguments are checked before a launch is the engine that will be imported."""
    outside.install("vllm", "0.33.0", {"vllm/__init__.py": ""})
    name_in_pth(site, str(outside.path))
    there = engine_parser.installed(str(site.root))
    assert (there["vllm"], there["sglang"]) == ("0.33.0", "0.5.23")

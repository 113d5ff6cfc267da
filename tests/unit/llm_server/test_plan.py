"""What a declaration comes to, when it is the same, and how a change is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import nvidia, plan, server_env
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from ansible_collections.groundstate.llm.plugins.module_utils.obstacles import mixed_names, shared_gpus
from hypothesis import given
from hypothesis import strategies as st

BASE = {"PATH": "/bin", "HOME": "/root"}


def make(base=BASE, nccl=None, env_hash="h1", launcher="process", port=18000, **fields):
    declared = complete({"name": "s", "engine": "llama_cpp", "model": "/m/model.gguf", **fields})
    return plan.make_plan(declared, "/e", port, base, nccl or {}, env_hash, launcher)


def recorded(of):
    return plan.record_of(of, "id", "/log", "")


def changes(before, after):
    return plan.differences(recorded(before), after)


def test_the_same_declaration_from_another_shell_is_the_same():
    one = make()
    other = make(base={"PATH": "/usr/bin", "HOME": "/home/u", "LD_LIBRARY_PATH": "/cuda"})
    assert one.hash == other.hash
    assert changes(one, other) == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"context_length": 4096}, "argument --context-length: unset -> 4096"),
        ({"extra_args": {"no-prompt-cache": True}}, "argument --no-prompt-cache: unset -> set"),
        ({"env": {"OMP_NUM_THREADS": "2"}}, "environment OMP_NUM_THREADS: unset -> 2"),
        ({"nccl": {"NCCL_PROTO": "LL"}}, "environment NCCL_PROTO: unset -> LL"),
        ({"env": {"PATH": "/x"}}, "environment PATH: /bin -> /x"),
        ({"api_key": "k3y"}, "environment GROUNDSTATE_API_KEY: the secret changed"),
        ({"env_hash": "h2"}, "packages of the environment: h1 -> h2"),
        ({"launcher": "systemd"}, "launcher: process -> systemd"),
        ({"port": 18001}, "argument --port: 18000 -> 18001"),
    ],
)
def test_a_change_is_told(fields, told):
    found = changes(make(), make(**fields))
    assert found == [told]


def test_another_secret_is_a_change_and_is_not_shown():
    one, other = make(secret_env={"T": "aaa"}), make(secret_env={"T": "bbb"})
    assert changes(one, other) == ["environment T: the secret changed"]
    assert "aaa" not in str(recorded(one).as_dict())
    assert one.environment["T"] == "aaa"


def test_what_wins_in_the_environment():
    made = make(nccl={"NCCL_PROTO": "LL", "X": "nccl"}, env={"X": "declared", "HOME": "/h"})
    assert made.environment["X"] == "declared"
    assert made.environment["HOME"] == "/h"
    assert made.environment["NCCL_PROTO"] == "LL"
    assert made.environment["SPT_NOENV"] == "1"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("gpu7", "http://gpu7:80"),
    ],
)
def test_base_url(host, url):
    assert plan.base_url(host, 80) == url


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("all", "all", "all"),
        ("all", ["0"], "all"),
        ("all", [], ""),
        (["0", "1"], "all", "0, 1"),
        (["0", "1"], ["1", "2"], "1"),
        (["0"], ["1"], ""),
    ],
)
def test_shared_gpus(one, other, shared):
    assert shared_gpus(one, other) == shared


def test_gpus_named_by_index_and_by_uuid_are_compared_with_what_the_driver_says():
    xml = Path(__file__).resolve().parents[2] / "data" / "nvidia_smi" / "blackwell.xml"
    known = nvidia.parse(xml.read_text()).gpus
    assert len(known) > 1
    assert mixed_names(["0"], [known[0].uuid])
    assert not mixed_names(["0"], ["1"])
    assert not mixed_names("all", ["0"])
    assert shared_gpus(["0", "1"], [known[1].uuid.upper()], known) == "1"
    assert shared_gpus([known[1].uuid], ["1"], known) == known[1].uuid
    assert shared_gpus(["0"], [known[1].uuid], known) == ""


NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(st.characters(blacklist_characters="\n\0", codec="utf-8"))


@given(st.dictionaries(NAMES, VALUES))
def test_an_environment_file_gives_back_what_was_written(variables):
    assert server_env.parse(server_env.render(variables)) == variables


def test_environment_files_of_others():
    assert server_env.parse("# comment\n\n; other\nA=1\n B = x\nC='a b'\nnothing\n") == {
        "A": "1",
        "B": "x",
        "C": "a b",
    }


def test_an_environment_file_on_the_disk(tmp_path):
    path = tmp_path / "environment"
    assert server_env.read(str(path)) == {}
    path.write_bytes(server_env.render({"A": "a\rb", "B": " ü "}).encode())
    assert server_env.read(str(path)) == {"A": "a\rb", "B": " ü "}
    path.write_bytes(b"A=\xff")
    with pytest.raises(ValueError, match="environment is damaged"):
        server_env.read(str(path))


def test_a_line_break_is_in_no_environment_file():
    with pytest.raises(ValueError, match="A has a line break"):
        server_env.render({"A": "1\n2"})


SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.parametrize(
    ("env_path", "program", "first"),
    [
        ("/e", "", "/e/bin:"),
        ("", "", ""),
        ("/e", "{env}/bin/python", "/e/bin:"),
        ("/e", "python3", "/e/bin:"),
        ("/e", "/usr/bin/python3", "/e/bin:"),
        ("/e", "/e/bin/python", "/e/bin:"),
        ("/e", "/other/bin/python", "/e/bin:/other/bin:"),
    ],
)
def test_the_path_has_what_lies_beside_the_program(env_path, program, first, tmp_path):
    assert server_env.search_path(env_path, program, cuda=str(tmp_path / "none")) == first + SYSTEM
    assert server_env.search_path(env_path, program, cuda=str(tmp_path)) == f"{first}{SYSTEM}:{tmp_path}"


def test_a_declared_path_wins():
    wanted = plan.make_plan(
        complete({"name": "x", "engine": "generic", "model": "m", "command": ["/o/bin/p"], "env": {"PATH": "/mine"}}),
        *("/e", 1, server_env.base_environment("/e", {}, "/o/bin/p"), {}, "", "process"),
    )
    assert wanted.environment["PATH"] == "/mine"


def test_nothing_of_ours_leaks_into_a_server():
    found = server_env.base_environment("/e", {"HTTP_PROXY": "p", "ANSIBLE_X": "1", "TMPDIR": "/t", "PATH": "/mine"})
    assert set(found) == {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR"}
    assert found["PATH"].startswith("/e/bin:/usr/local/sbin:")

"""The inventories: every variable renders and is one that a role knows; the example of the story is complete."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.groundstate.llm.plugins.module_utils import declaration, nccl_profiles
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.pve.declared import declare

ROOT = Path(__file__).parents[3]
SPECS = {
    path.parents[1].name: yaml.safe_load(path.read_text())["argument_specs"]
    for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
}
HOSTS = {
    "local": ["local"],
    "local_vllm": ["local"],
    "pcie8": ["pcie8"],
    "fleet": ["nvlink-1", "nvlink-2", "pcie-1", "pcie-2", "pcie-3", "single-1", "single-2", "single-3"],
}


def ansible(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), program), *arguments],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_DEPRECATION_WARNINGS": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return done.stdout


def render(inventory: str, *more: str, **environment: str) -> dict[str, dict]:
    """Host -> all variables that the inventory gives it, rendered; nothing is connected to."""
    names = "hostvars[inventory_hostname] | select('match', '" + "|".join([*SPECS, "groundstate", "proxmox"]) + "')"
    message = (
        "{% set found = {} %}{% for name in "
        + names
        + " %}{% set _ = found.update({name: lookup('vars', name)}) %}{% endfor %}{{ found }}"
    )
    arguments = [
        "groundstate",
        "-i",
        f"inventories/{inventory}",
        "-m",
        "debug",
        "-a",
        json.dumps({"msg": message}),
        "-o",
    ]
    lines = ansible("ansible", *arguments, *more, **environment).splitlines()
    return {line.partition(" | ")[0]: json.loads(line.partition(" => ")[2])["msg"] for line in lines if " => " in line}


@pytest.fixture(scope="module")
def rendered() -> dict[str, dict[str, dict]]:
    return {inventory: render(inventory) for inventory in HOSTS}


def declared(variables: dict) -> dict:
    """The server of a host, completed and checked."""
    made = declaration.complete(variables["llm_server"])
    assert declaration.problems(made) == []
    return made


@pytest.mark.parametrize("inventory", HOSTS)
def test_the_hosts_are_those_that_are_meant(rendered, inventory):
    assert sorted(rendered[inventory]) == HOSTS[inventory]


@pytest.mark.parametrize("inventory", HOSTS)
def test_every_variable_is_known_to_a_role_and_fits_its_spec(rendered, inventory):
    options: dict[str, dict] = {}
    for role in SPECS.values():
        for entry in role.values():
            for name, option in entry["options"].items():
                # Of two specs of one name the one that knows the keys of the dictionary says more.
                if name not in options or option.get("options"):
                    options[name] = option
    required = {name for name, option in options.items() if option.get("required")}
    for host, variables in rendered[inventory].items():
        ours = dict(variables)
        assert set(ours) <= set(options), f"{host}: unknown {sorted(set(ours) - set(options))}"
        assert required <= set(ours), f"{host}: missing {sorted(required - set(ours))}"
        result = ArgumentSpecValidator({name: options[name] for name in ours}).validate(ours)
        assert result.error_messages == [], host


@pytest.mark.parametrize("inventory", HOSTS)
def test_every_server_has_a_command_line_and_its_profile_exists(rendered, inventory):
    shipped = yaml.safe_load((ROOT / "roles/nccl_profile/vars/main.yml").read_text())["nccl_profile_shipped"]
    for variables in rendered[inventory].values():
        made = declared(variables)
        words = get_engine(made["engine"]).argv(made, variables["ml_env_path"], made["port"] or 18000)
        assert made["model"] in words
        nccl_profiles.resolve(variables["nccl_profile_name"], shipped)


def test_the_storys_server_gets_the_storys_command_line(rendered):
    variables = rendered["pcie8"]["pcie8"]
    made = declared(variables)
    expected = """
        /root/ml-env/bin/python -m sglang.launch_server --model-path /shared/kimi-k2.5-int4 --trust-remote-code
        --tp-size 8 --mem-fraction-static 0.88 --port 8000 --host 127.0.0.1
        --num-continuous-decode-steps 4 --disable-custom-all-reduce
    """
    assert sorted(pairs(get_engine("sglang").argv(made, variables["ml_env_path"], made["port"]))) == sorted(
        pairs(shlex.split(expected))
    )
    assert made["env"] == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert get_engine("sglang").expected_workers(made) == 8
    container = variables["proxmox_lxc"]
    assert [container[key] for key in ("node", "vmid", "gpus", "mounts")] == [
        "pve1",
        129,
        ["all"],
        ["/shared", "/data"],
    ]
    # What preflight cannot know of property strings, the module's own reader does.
    assert [one["mp"] for one in declare(container).mounts or []] == ["/shared", "/data"]
    shipped = yaml.safe_load((ROOT / "roles/nccl_profile/vars/main.yml").read_text())["nccl_profile_shipped"]
    assert dict(nccl_profiles.resolve(variables["nccl_profile_name"], shipped).variables) == {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_MAX_NCHANNELS": "16",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_NTHREADS": "512",
    }


def pairs(words: list[str]) -> list[tuple[str, ...]]:
    """Command line in pieces that belong together, so that their order does not count."""
    pieces: list[tuple[str, ...]] = []
    for word in words:
        if word.startswith("--") or not pieces or not pieces[-1][0].startswith("--") or len(pieces[-1]) == 2:
            pieces.append((word,))
        else:
            pieces[-1] = (*pieces[-1], word)
    return pieces


def test_the_alternative_differs_in_speculation_only(rendered):
    base = rendered["pcie8"]["pcie8"]
    other = render("pcie8", "-e", "@inventories/pcie8-eagle3.yml")["pcie8"]
    assert [name for name in base if base[name] != other[name]] == ["llm_server"]
    plain = pairs(get_engine("sglang").argv(declared(base), "/root/ml-env", 8000))
    eagle = pairs(get_engine("sglang").argv(declared(other), "/root/ml-env", 8000))
    assert [piece for piece in eagle if piece not in plain] == [
        ("--speculative-algorithm", "EAGLE3"),
        ("--speculative-draft-model-path", "/shared/kimi-k2.5-eagle3"),
        ("--speculative-num-steps", "2"),
        ("--speculative-eagle-topk", "1"),
        ("--speculative-num-draft-tokens", "3"),
    ]
    assert [piece for piece in plain if piece not in eagle] == []


def test_real_vllm_gets_what_it_needs_on_a_cpu(rendered):
    variables = rendered["local_vllm"]["local"]
    made = declared(variables)
    words = get_engine("vllm").argv(made, "/e", 18000)
    joined = " ".join(words)
    for piece in (
        "--tensor-parallel-size 2",
        "--max-model-len 1024",
        "--kv-cache-memory-bytes 134217728",
        "--enforce-eager",
        "--max-num-seqs 8",
    ):
        assert piece in joined
    assert made["env"] == {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    assert made["model"] == variables["ml_env_tiny_model"]["path"]


def test_state_and_records_go_where_the_environment_says(tmp_path):
    found = render("local", GROUNDSTATE_HOME="~/elsewhere", GROUNDSTATE_RECORDS=str(tmp_path), HOME=str(tmp_path))
    assert found["local"]["groundstate_home"] == str(tmp_path / "elsewhere")
    assert found["local"]["groundstate_records_dir"] == str(tmp_path)
    assert found["local"]["baseline_local_fact"] == str(tmp_path / "elsewhere/facts.d/groundstate.fact")


@pytest.mark.parametrize("checkout", [True, False])
def test_records_lie_in_a_checkout_or_in_the_current_folder(tmp_path, checkout):
    """The file stands alone: without an inventory a playbook loads it as it is, from wherever it was installed."""
    project = tmp_path / "project"
    (project / "playbooks").mkdir(parents=True)
    if checkout:
        (project / "pyproject.toml").touch()
    current = tmp_path / "current"
    current.mkdir()
    variables = ROOT / "inventories/local/group_vars/groundstate.yml"
    task = {
        "ansible.builtin.assert": {
            "that": ["groundstate_records_dir == expected"],
            "fail_msg": "{{ groundstate_records_dir }}",
        }
    }
    play = [{"hosts": "localhost", "gather_facts": False, "vars_files": [str(variables)], "tasks": [task]}]
    book = project / "playbooks" / "play.yml"
    book.write_text(yaml.safe_dump(play))
    expected = (project if checkout else current) / "records"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "GROUNDSTATE_"))}
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), str(book), "-e", f"expected={expected}"],
        cwd=current,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_canaries_are_one_of_each_kind():
    tree = json.loads(ansible("ansible-inventory", "-i", "inventories/fleet", "--list"))
    kinds = tree["groundstate"]["children"]
    assert len(kinds) == 3
    canaries = set(tree["groundstate_canaries"]["hosts"])
    assert [len(canaries & set(tree[kind]["hosts"])) for kind in kinds] == [1, 1, 1]
    assert len(canaries) == 3


@pytest.mark.parametrize("inventory", ["pcie8", "fleet"])
def test_examples_name_only_addresses_that_are_reserved_for_documentation(inventory):
    tree = json.loads(ansible("ansible-inventory", "-i", f"inventories/{inventory}", "--list"))
    addresses = [variables["ansible_host"] for variables in tree["_meta"]["hostvars"].values()]
    assert all(address.startswith(("192.0.2.", "198.51.100.", "203.0.113.")) for address in addresses)
    assert len(set(addresses)) == len(addresses) > 1

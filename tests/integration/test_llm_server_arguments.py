"""Arguments held against the parser of the engine that is really installed, before anything is changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import engine_parser
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete


@pytest.fixture
def launch(host, llama_env, llama_model):
    def run(check=False, env=llama_env, **fields):
        declared = {"name": "local", "engine": "llama_cpp", "model": str(llama_model), "port_from": 19360, "threads": 1}
        declared.update({"context_length": 256, "gpus": [], **fields})
        return host.run("llm_server", check=check, env_path=str(env), launcher="process", declaration=declared)

    return run


def test_a_wrong_argument_is_refused_while_the_server_runs_on(launch, host):
    first = launch()
    assert first["arguments"]["checked"] is True, first
    assert first["arguments"]["version"]
    wrong = {"ctx-size": 4096, "paralel": 2, "speculation": "medusa"}
    refused = launch(extra_args=wrong)
    assert refused["failed"] is True
    for told in (
        "extra_args.ctx-size: llama.cpp",
        "declare llm_server.context_length",
        "has no argument --paralel; did you mean --parallel?",
        "does not know 'medusa' for --speculation (one of none, ngram, draft)",
    ):
        assert told in refused["msg"]
    assert host.record("local").start_id == first["start_id"]
    assert host.record("local").running()
    in_check = launch(check=True, extra_args=wrong)
    assert (in_check["changed"], in_check["action"]) == (True, "restarted")
    assert "did you mean --parallel?" in str(in_check["warnings"])


def test_the_parser_is_asked_once_for_an_environment_and_again_when_its_files_change(host, llama_env, tmp_path):
    env = tmp_path / "env"
    (env / "bin").mkdir(parents=True)
    shutil.copy(llama_env / "bin" / "groundstate-llama-cpp", env / "bin")
    asked = tmp_path / "asked"
    python = env / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho asked >> {asked}\nexec {llama_env}/bin/python "$@"\n')
    python.chmod(0o755)
    declared = complete({"name": "local", "engine": "llama_cpp", "model": "/m"})

    def parser():
        return engine_parser.parser_of(str(host.home), declared, str(env), {"PATH": os.environ["PATH"]})

    first = parser()
    assert first.why == ""
    assert first.find("--context-length")["type"] == ""
    assert parser() == first
    assert asked.read_text().split() == ["asked"]
    # A flag that somebody adds to the engine is known at once.
    script = env / "bin" / "groundstate-llama-cpp"
    script.write_text(script.read_text().replace('"--no-prompt-cache",', '"--no-prompt-cache", "--patched",'))
    assert parser().find("--patched")
    # What was kept and is damaged counts as nothing.
    for kept in (Path(host.home) / "cache").glob("parser-*.json"):
        kept.write_text("[")
    assert parser().find("--patched")
    assert asked.read_text().split() == ["asked"] * 3


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import no_such_module", "before it parsed: ModuleNotFoundError: No module named 'no_such_module'"),
        ("import time; time.sleep(600)", "it did not say within 2 s what it knows"),
        ("import argparse; argparse.ArgumentParser().parse_args()", "before it parsed"),
    ],
)
def test_where_it_cannot_be_asked_it_is_said(host, llama_env, tmp_path, script, told):
    env = tmp_path / "env"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").symlink_to(llama_env / "bin" / "python")
    (env / "bin" / "groundstate-llama-cpp").write_text(script)
    declared = complete({"name": "local", "engine": "llama_cpp", "model": "/m"})
    found = engine_parser.parser_of(str(host.home), declared, str(env), {}, timeout_s=2)
    assert told in found.why
    assert found.flags == []


def test_a_program_of_the_user_s_is_not_run_to_be_asked(host, llama_env):
    declared = complete({"name": "local", "engine": "llama_cpp", "model": "/m", "command": ["/bin/false"]})
    found = engine_parser.parser_of(str(host.home), declared, str(llama_env), {})
    assert "llm_server.command is run in place" in found.why
    generic = complete({"name": "local", "engine": "generic", "model": "/m", "command": ["/bin/false"]})
    assert "no parser" in engine_parser.parser_of(str(host.home), generic, str(llama_env), {}).why

"""The server as it runs: resolved arguments, mapped NCCL, who else is on the machine. Real logs, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import conditions, gpus, running

DATA = Path(__file__).parents[2] / "data"
LOG = DATA / "server_logs" / "sglang.tp2.base.log"


def record(log: Path, engine: str = "sglang") -> servers.ServerRecord:
    return servers.ServerRecord(name="s", engine=engine, log=str(log))


def test_sglangs_own_line_tells_what_it_resolved():
    found = running.resolved(record(LOG), {})
    assert found["model_path"] == "'/models/tiny-llama'"
    assert found["max_prefill_tokens"] == "16384"
    assert found["api_key"] == "None"
    assert len(found) > 100
    # Drawn anew by every start, or our own choice: the same server would never be in the same state again.
    assert not {"random_seed", "port", "nccl_port"} & set(found)


def test_vllms_own_line_tells_what_it_resolved():
    found = running.resolved(record(DATA / "fingerprint" / "vllm-0.32.0.cpu.start.log", "vllm"), {})
    assert (found["model"], found["dtype"], found["max_seq_len"]) == ("'/models/tiny'", "torch.bfloat16", "1024")
    assert found["enable_chunked_prefill"] == "True"
    assert found["compilation_config"].startswith("{'mode': <CompilationMode.NONE: 0>, 'debug_dump_path': None")
    assert found["kernel_config"].startswith("KernelConfig(ir_op_priority=IrOpPriorityConfig(rms_norm=['native']")
    assert len(found) == 33


def test_llama_cpps_own_line_tells_what_it_resolved():
    found = running.resolved(record(DATA / "fingerprint" / "llama_cpp.start.log", "llama_cpp"), {})
    assert found == {"kv_unified": "'false'", "n_ctx_slot": "2048", "n_slots": "2"}


def test_values_that_are_no_python_are_kept_as_they_are(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "server_args=ServerArgs(a=<Mode.X: 1>, b=C(x=1, y=[1, 2]), c={'k': 'v, w=1'}, d=" + "(" * 400 + ")\n"
    )
    found = running.resolved(record(log), {})
    assert found["a"] == "<Mode.X: 1>"
    assert found["b"] == "C(x=1, y=[1, 2])"
    assert found["c"] == "{'k': 'v, w=1'}"
    assert found["d"].startswith("((((")


def test_addresses_of_objects_are_no_difference(tmp_path):
    log = tmp_path / "server.log"
    told = []
    for address in ("0x7f0a", "0x7f0b"):
        log.write_text(f"server_args=ServerArgs(quantization=<x.Fp8Config object at {address}>, a=1)\n")
        told.append(running.resolved(record(log), {}))
    assert told[0] == told[1] == {"a": "1", "quantization": "<x.Fp8Config object>"}


def test_secrets_in_the_line_become_hashes(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("[x] server_args=ServerArgs(api_key='geheim', ssl_keyfile_password='p', tokenizer_path='/t', a=1)\n")
    found = running.resolved(record(log), {})
    assert found["api_key"].startswith("sha256:")
    assert found["ssl_keyfile_password"].startswith("sha256:")
    assert (found["tokenizer_path"], found["a"]) == ("'/t'", "1")
    assert "geheim" not in str(found)


@pytest.mark.parametrize("text", ["", "server_args=None\n", "other=ServerArgs(a=1)\n"])
def test_a_log_that_does_not_tell_is_unknown(tmp_path, text):
    log = tmp_path / "server.log"
    log.write_text(text)
    unknown: dict[str, str] = {}
    assert running.resolved(record(log), unknown) is None
    assert "does not show the arguments" in unknown["server.resolved"]
    assert running.resolved(record(tmp_path / "none"), unknown) is None
    assert "No such file" in unknown["server.resolved"]
    assert running.resolved(record(log, "generic"), unknown) is None
    assert "does not print" in unknown["server.resolved"]


@pytest.fixture
def process(tmp_path):
    """A process that has mapped a library and waits."""
    library = tmp_path / "nccl" / "libnccl.so.2"
    library.parent.mkdir()
    library.write_bytes(bytes(5000) + b"\0NCCL version 2.29.7+cuda13.2\0NCCL version %d\0" + bytes(5000))
    code = (
        f"import mmap, time; f = open({str(library)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ);"
        "print('ready', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    yield procfs.process(child.pid), library
    child.kill()
    child.communicate()


def test_the_mapped_nccl_is_found_with_its_version(process):
    item, library = process
    assert running.nccl([item], {}) == {str(library): "2.29.7+cuda13.2"}


def test_a_server_that_does_not_run_has_mapped_nothing_known():
    unknown: dict[str, str] = {}
    assert running.nccl([], unknown) is None
    assert unknown["server.nccl_mapped"] == "the server does not run"


def test_a_process_without_nccl_is_not_unknown():
    assert running.nccl([procfs.process(os.getpid())], {}) == {}


def test_the_version_of_what_is_no_library(tmp_path):
    empty = tmp_path / "libnccl.so"
    empty.touch()
    assert running.library_version(str(empty)) is None
    assert running.library_version(str(tmp_path / "none")) is None


def test_a_busy_stranger_is_a_tenant_and_the_server_is_none():
    def spin():
        return subprocess.Popen([sys.executable, "-c", "while True: pass"])

    stranger, ours = spin(), spin()
    try:
        table = procfs.processes()
        tenants = running.Tenants(table, [table[ours.pid]])
        deadline = time.monotonic() + 30
        found: list[dict] = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.2)
            name = table[stranger.pid].comm
            found = [one for one in tenants.read([])["cpu"] if one["name"] == name]
        [one] = found
        assert one["cores"] >= 0.1
        assert all(key[0] != ours.pid for key in tenants.ticks)
    finally:
        for child in (stranger, ours):
            child.kill()
            child.communicate()


def test_who_shares_a_gpu():
    _stable, passing = gpus.parse((DATA / "fingerprint" / "nvidia-smi.q.h200.loaded.xml").read_text())
    alone = running.Tenants({}, [])
    assert alone.read(passing)["gpus"] == [{"gpu": 0, "name": "sglang::scheduler", "memory_mib": 72222}]
    # In a container the driver may tell pids of the host: the title is enough to know our own.
    worker = procfs.Process(pid=9, start=1, ppid=1, session=1, state="S", comm="x", uid=0, cmdline="sglang::scheduler")
    assert running.Tenants({}, [worker]).read(passing)["gpus"] == []


def test_counters_of_what_held_the_clocks_down():
    _stable, [gpu] = gpus.parse((DATA / "fingerprint" / "nvidia-smi.q.h200.loaded.xml").read_text())
    assert gpu["event_counters"] == {
        "sw_power_cap": 0,
        "sync_boost": 0,
        "sw_therm_slowdown": 0,
        "hw_therm_slowdown": 0,
        "hw_power_brake": 0,
    }


def test_the_container_may_be_younger_than_the_host(tmp_path):
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "uptime").write_text("1000.00 1.0\n")
    ticks = 400 * os.sysconf("SC_CLK_TCK")
    (tmp_path / "proc" / "1" / "stat").write_text("1 (in it) S " + "0 " * 18 + f"{ticks} 0 0\n")
    assert conditions.read(str(tmp_path), [])["container_uptime_s"] == 600.0

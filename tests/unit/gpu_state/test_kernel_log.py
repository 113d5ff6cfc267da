"""The Xid lines of the kernel log."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import kernel_log, nvidia

LOG = """6,1,100,-;Linux version 6.18
4,2,200,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault
 SUBSYSTEM=pci
6,3,300,-;eth0: link up
3,4,400,-;NVRM: GPU at PCI:0000:43:00: GPU-00000000
4,5,500,-;NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus.
"""


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(LOG, encoding="utf-8")
    return path


def test_xid_lines_and_nothing_else(kmsg: Path):
    first, second = kernel_log.xid_lines(str(kmsg))
    assert first == ("NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault")
    assert second == "NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus."


def test_only_the_last_ones(kmsg: Path):
    kmsg.write_text("".join(f"4,{n},{n},-;NVRM: Xid (PCI): {n}\n" for n in range(100)), encoding="utf-8")
    assert kernel_log.xid_lines(str(kmsg), 2) == ["NVRM: Xid (PCI): 98", "NVRM: Xid (PCI): 99"]


def test_dmesg_where_the_device_is_not_there(tmp_path: Path, monkeypatch):
    program = tmp_path / "dmesg"
    program.write_text("#!/bin/sh\necho '[ 1.0] x'; echo '[ 2.0] NVRM: Xid (PCI:0000:1b:00): 13'\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr(nvidia, "find_program", lambda name: str(program))
    assert kernel_log.xid_lines(str(tmp_path / "none")) == ["[ 2.0] NVRM: Xid (PCI:0000:1b:00): 13"]
    program.write_text("#!/bin/sh\necho 'read kernel buffer failed: Operation not permitted' >&2; exit 1\n")
    assert kernel_log.xid_lines(str(tmp_path / "none")) is None
    monkeypatch.setattr(nvidia, "find_program", lambda name: str(tmp_path / "none"))
    assert kernel_log.xid_lines(str(tmp_path / "none")) is None


def test_the_words_of_a_message():
    assert kernel_log.told(["a", "b"]) == "; kernel log: a | b"
    assert kernel_log.told([]) == "; the kernel log has no Xid lines"
    assert "cannot be read here" in kernel_log.told(None)


def test_the_kernel_log_of_this_machine_ends():
    found = kernel_log.xid_lines()
    assert found is None or all("NVRM" in line for line in found)

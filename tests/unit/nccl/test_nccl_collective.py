"""Bandwidths, words for a hang, and what may keep GPUs from reaching each other."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import collective, collective_worker, nccl_preflight
from ansible_collections.groundstate.llm.plugins.module_utils.p2p_advice import (
    Findings,
    acs_redirects,
    advice,
    iommu_of,
)

LSPCI = """\
00:01.0 PCI bridge: Intel Corporation Device 1901 (prog-if 00 [Normal decode])
\tCapabilities: [140 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{} CmpltRedir{} UpstreamFwd+ EgressCtrl- DirectTrans-

0000:41:00.0 3D controller: NVIDIA Corporation Device 2bb1 (rev a1)
\tKernel driver in use: nvidia
"""


def test_acs_that_redirects_is_found_by_its_control_bits_and_not_by_its_abilities():
    # T6
    assert acs_redirects(LSPCI.format("+", "+")) == ["00:01.0"]
    assert acs_redirects(LSPCI.format("-", "+")) == ["00:01.0"]
    assert acs_redirects(LSPCI.format("-", "-")) == []
    assert acs_redirects("00:01.0 PCI bridge: Intel\n\tCapabilities: <access denied>\n") is None
    assert acs_redirects("") is None


@pytest.mark.parametrize(
    ("command_line", "groups", "on"),
    [
        ("ro quiet intel_iommu=on", True, True),
        ("ro iommu=pt intel_iommu=on", True, False),
        ("ro amd_iommu=off", None, False),
        ("ro quiet", False, False),
        ("ro quiet", None, None),
    ],
)
def test_whether_the_iommu_translates(command_line, groups, on):
    assert iommu_of(command_line, groups) is on


def test_advice_names_what_was_found():
    said = advice(Findings(["00:01.0"], True, "", 64 << 20))
    assert [text.partition(":")[0] for text in said[:2]] == ["ACS redirects P2P at 00", "the IOMMU translates"]
    assert "/dev/shm has 64 MiB free" in said[2]
    assert len(advice(Findings([], False, "", 8 << 30))) == 1, "only the test that always helps"
    assert "could not be told" in advice(Findings(None, None, "", None))[-1]


def test_the_bus_bandwidth_of_an_all_reduce():
    assert collective.bandwidths(10**9, 0.1, 2) == pytest.approx((10.0, 10.0))
    assert collective.bandwidths(10**9, 0.1, 8) == pytest.approx((10.0, 17.5))


def test_sizes_in_words_and_repetitions():
    assert [collective.human(size) for size in (4, 8192, 1 << 20, (1 << 20) + 4096)] == [
        *("4 B", "8 KiB", "1 MiB", "1028 KiB")
    ]
    assert [collective_worker.iterations(size) for size in (4096, 1 << 20, 1 << 30)] == [200, 64, 5]


def test_gpus_as_they_are_declared():
    assert nccl_preflight.gpu_numbers("all") is None
    assert nccl_preflight.gpu_numbers(["0", 3]) == [0, 3]
    assert nccl_preflight.gpu_numbers([]) == []
    with pytest.raises(ValueError, match="use all or a list of numbers"):
        nccl_preflight.gpu_numbers("0,1")


@pytest.mark.parametrize("wrong", [{"sizes_kib": []}, {"sizes_kib": [0]}, {"cpu_ranks": 1}, {"timeout_s": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong):
    given = {"sizes_kib": [8], "cpu_ranks": 2, "timeout_s": 60, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong)).partition("_s")[0].rstrip("s")):
        nccl_preflight.Wanted("/env", None, variables={}, environment={}, **given)

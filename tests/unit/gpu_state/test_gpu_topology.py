"""How GPUs are linked, and which profiles do not fit that."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import gpu_topology, nccl_profiles

# As nvidia-smi topo -m prints it: tabs, and the header underlined.
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNODE\tPIX\t0-31\t0\t\tN/A\n"
    "GPU1\tNODE\t X \tSYS\t0-31\t0\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
)


def test_the_topology_matrix():
    assert gpu_topology.parse(TOPOLOGY) == {
        "GPU0-GPU1": "NODE",
        "GPU0-NIC0": "PIX",
        "GPU1-NIC0": "SYS",
        "GPU0 CPU Affinity": "0-31",
        "GPU0 NUMA Affinity": "0",
        "GPU1 CPU Affinity": "0-31",
        "GPU1 NUMA Affinity": "0",
    }
    assert gpu_topology.parse("No devices were found\n") == {}


PAIRS = {"GPU0-GPU1": "NV18", "GPU0-GPU2": "SYS", "GPU0-NIC0": "PIX", "GPU0 NUMA Affinity": "0"}


def test_a_pair_is_linked_by_nvlink_or_over_pcie():
    assert gpu_topology.links(PAIRS) == {"GPU0-GPU1": "nvlink", "GPU0-GPU2": "pcie"}
    assert gpu_topology.links(gpu_topology.parse(TOPOLOGY)) == {"GPU0-GPU1": "pcie"}


@pytest.mark.parametrize(
    ("applies_to", "links", "told"),
    [
        (["pcie"], {"GPU0-GPU1": "nvlink"}, "it is for pcie, but the GPUs here are linked by nvlink (GPU0-GPU1)"),
        (["nvlink"], {"GPU0-GPU1": "pcie", "GPU0-GPU2": "pcie"}, "linked by pcie (GPU0-GPU1 and all others)"),
        (["pcie"], {"GPU0-GPU1": "nvlink", "GPU0-GPU2": "pcie"}, ""),
        (["pcie", "nvlink"], {"GPU0-GPU1": "nvlink"}, ""),
        (["multi_node"], {"GPU0-GPU1": "nvlink"}, ""),
        ([], {"GPU0-GPU1": "nvlink"}, ""),
        (["pcie"], {}, ""),
    ],
)
def test_a_profile_for_other_links_is_told(applies_to, links, told):
    profile = nccl_profiles.resolve("p", {"p": {"applies_to": applies_to}})
    said = nccl_profiles.misfit(profile, links)
    assert told in said
    assert bool(told) == bool(said)


@pytest.mark.parametrize("said", ["exit 1", "echo No devices were found", "echo broken >&2; exit 9"])
def test_a_driver_that_tells_nothing(tmp_path, said):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    with pytest.raises(gpu_topology.TopologyError, match="topo -m"):
        gpu_topology.read(str(program))

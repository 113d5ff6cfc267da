"""Profiles: the shipped ones, what they extend, and the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils import nccl_profiles, server_env

ROLE = Path(__file__).parents[3] / "roles" / "nccl_profile"
SHIPPED = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["nccl_profile_shipped"]


def test_the_shipped_profiles_are_right():
    assert sorted(SHIPPED) == ["debug", "nvlink", "pcie_ll_ring", "stock"]
    for name, profile in SHIPPED.items():
        assert nccl_profiles.resolve(name, SHIPPED).comment, name
        assert isinstance(profile.get("variables", {}), dict)
    assert nccl_profiles.resolve("stock", SHIPPED).variables == {}
    assert [one.level for one in nccl_profiles.resolve("nvlink", SHIPPED).findings] == []
    assert [one.level for one in nccl_profiles.resolve("debug", SHIPPED).findings] == []


def test_the_storys_profile():
    resolved = nccl_profiles.resolve("pcie_ll_ring", SHIPPED)
    assert resolved.variables == {
        "NCCL_ALGO": "Ring",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_MAX_NCHANNELS": "16",
        "NCCL_NTHREADS": "512",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_PROTO": "LL",
    }
    assert resolved.applies_to == ("pcie",)
    assert resolved.chain == ("pcie_ll_ring",)


def test_a_child_goes_over_its_parents_and_takes_away_with_null():
    profiles = {
        **SHIPPED,
        "lean": {"extends": "pcie_ll_ring", "variables": {"NCCL_BUFFSIZE": None, "NCCL_NTHREADS": None}},
        "mine": {"extends": "lean", "comment": "mine", "variables": {"NCCL_MAX_CTAS": 8, "NCCL_MAX_NCHANNELS": None}},
    }
    resolved = nccl_profiles.resolve("mine", profiles)
    assert resolved.variables == {
        "NCCL_ALGO": "Ring",
        "NCCL_MAX_CTAS": "8",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_PROTO": "LL",
    }
    assert resolved.comment == "mine"
    assert resolved.applies_to == ("pcie",), "the nearest that is given"
    assert resolved.chain == ("mine", "lean", "pcie_ll_ring")


def test_a_conflict_between_child_and_parent_is_found_and_can_be_resolved():
    child = {"extends": "pcie_ll_ring", "variables": {"NCCL_P2P_DISABLE": 1}}
    with pytest.raises(
        ValueError, match="'no_p2p' \\(no_p2p extends pcie_ll_ring\\): NCCL_P2P_LEVEL: SYS has no effect"
    ):
        nccl_profiles.resolve("no_p2p", {**SHIPPED, "no_p2p": child})
    child["variables"]["NCCL_P2P_LEVEL"] = None
    assert "NCCL_P2P_LEVEL" not in nccl_profiles.resolve("no_p2p", {**SHIPPED, "no_p2p": child}).variables


@pytest.mark.parametrize(
    ("profiles", "says"),
    [
        ({}, "'p' is not declared; there are: none"),
        ({"q": {}}, "'p' is not declared; there are: q"),
        ({"p": {"extends": "q"}}, "'q', which 'p' extends, is not declared; there are: p"),
        ({"p": {"extends": "p"}}, "in a circle: p -> p"),
        ({"p": {"extends": "q"}, "q": {"extends": "r"}, "r": {"extends": "q"}}, "in a circle: p -> q -> r -> q"),
        ({"p": {"extends": ["q"]}}, "which 'p' extends, is not declared"),
        ({"p": {"variabels": {}}}, "unknown fields variabels; use variables, comment, applies_to, extends"),
        ({"p": {"NCCL_PROTO": "LL"}}, "variables belong below 'variables'"),
        ({"p": {"variables": ["NCCL_PROTO=LL"]}}, "variables is no dictionary"),
        ({"p": {"applies_to": "pcie"}}, "applies_to 'pcie': use a list of pcie, nvlink, multi_node"),
        ({"p": {"applies_to": ["pci"]}}, "use a list of"),
        ({"p": "NCCL_PROTO=LL"}, "'p' is no dictionary"),
        ({"p": None}, "'p' is no dictionary"),
        ({"p": {"extends": "q"}, "q": {"variables": {"NCCL_PROTO": "LL64"}}}, "'ll64' is none of"),
    ],
)
def test_one_clear_error(profiles, says):
    with pytest.raises(ValueError, match=r"^NCCL profile") as caught:
        nccl_profiles.resolve("p", profiles)
    assert says in str(caught.value)


def test_all_mistakes_of_a_profile_in_one_error():
    with pytest.raises(ValueError, match=r"NCCL_FOO.*NCCL_P2P_LEVEL"):
        nccl_profiles.resolve("p", {"p": {"variables": {"NCCL_P2P_LEVEL": "sys", "NCCL_FOO": 1}}})


def test_the_file_is_sorted_and_the_same_for_the_same_profile():
    text = nccl_profiles.render("p", {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})
    assert text == nccl_profiles.render("p", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
    assert text.splitlines()[0] == "# NCCL profile: p"
    assert [line for line in text.splitlines() if line[0] != "#"] == ["NCCL_ALGO=Ring", "NCCL_PROTO=LL"]
    assert server_env.parse(text) == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, "what llm_server reads"


def test_stock_sets_nothing_and_says_so():
    text = nccl_profiles.render("stock", {})
    assert all(line.startswith("#") for line in text.splitlines())
    assert "Nothing is set" in text
    assert nccl_profiles.parse(text) == ("stock", {})


def test_loading(tmp_path):
    assert nccl_profiles.load(str(tmp_path), "s") is None
    path = Path(nccl_profiles.path(str(tmp_path), "s"))
    path.parent.mkdir(parents=True)
    path.write_text(nccl_profiles.render("p", {"NCCL_PROTO": "^LL"}))
    assert nccl_profiles.load(str(tmp_path), "s") == ("p", {"NCCL_PROTO": "^LL"})
    path.write_text("NCCL_PROTO=LL\n")
    assert nccl_profiles.load(str(tmp_path), "s") == ("", {"NCCL_PROTO": "LL"}), "written by hand"
    path.write_bytes(b"NCCL_PROTO=\xff")
    with pytest.raises(ValueError, match=r"nccl\.env is damaged"):
        nccl_profiles.load(str(tmp_path), "s")
    with pytest.raises(ValueError, match="server name"):
        nccl_profiles.path(str(tmp_path), "../etc")

"""The linter: what NCCL would ignore, misread or never use is said before a server starts."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import nccl_lint, nccl_profiles, nccl_variables
from hypothesis import given
from hypothesis import strategies as st

STORY = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": 16,
    "NCCL_BUFFSIZE": 16777216,
    "NCCL_NTHREADS": 512,
}


def found(variables):
    """(level, variable) pairs."""
    return [(one.level, one.variable) for one in nccl_lint.lint(variables)]


def message(variables, name):
    """The one message about a variable."""
    (text,) = [one.message for one in nccl_lint.lint(variables) if one.variable == name]
    return text


def test_the_story_is_accepted_with_what_is_wrong_with_it():
    assert found(STORY) == [
        ("warning", "NCCL_MAX_NCHANNELS"),
        ("warning", "NCCL_PROTO"),
        ("inert", "NCCL_BUFFSIZE"),
        ("inert", "NCCL_NTHREADS"),
    ]
    assert "NCCL_MAX_CTAS; where both are set the lower wins" in message(STORY, "NCCL_MAX_NCHANNELS")
    cost = message(STORY, "NCCL_BUFFSIZE")
    assert "21.19 MiB instead of 9.19 MiB per connection and channel" in cost
    assert "339 MiB instead of 147 MiB per connection with 16 channels" in cost


def test_buffers_agree_with_the_shared_memory_that_was_seen():
    # Segments of 9637888 bytes in reports: the three buffers and one page of bookkeeping.
    assert nccl_lint.connection_bytes({}) == 9637888 - 4096


def test_nothing_to_say_about_nothing():
    assert nccl_lint.lint({}) == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("NCCL_PROTOCOL", "NCCL_PROTO"),
        ("NCCL_BUFSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_BUFF_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_MAX_CHANNELS", "NCCL_MAX_NCHANNELS"),
        ("NCCL_P2PLEVEL", "NCCL_P2P_LEVEL"),
        ("NCCL_P2P-LEVEL", "NCCL_P2P_LEVEL"),
        ("nccl_algo", "NCCL_ALGO"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ("NCC_PROTO", "NCCL_PROTO"),
        ("NCCL_PROTO ", "NCCL_PROTO"),
        ("export NCCL_PROTO", "NCCL_PROTO"),
    ],
)
def test_a_misspelt_name_is_an_error_that_names_the_real_one(name, nearest):
    (finding,) = nccl_lint.lint({name: "LL"})
    assert (finding.level, finding.variable) == ("error", name)
    assert nearest in finding.message


@pytest.mark.parametrize("name", ["PATH", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", ""])
def test_other_variables_do_not_belong_into_a_profile(name):
    (finding,) = nccl_lint.lint({name: "1"})
    assert finding.level == "error"
    assert "llm_server.env" in finding.message


def test_variables_of_pytorch_and_removed_ones():
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" in message({"NCCL_ASYNC_ERROR_HANDLING": 1}, "NCCL_ASYNC_ERROR_HANDLING")
    assert "since 2.5; use NCCL_PROTO" in message({"NCCL_LL_THRESHOLD": 0}, "NCCL_LL_THRESHOLD")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NCCL_P2P_LEVEL", "sys", "NCCL ignores it silently; the case matters: write SYS"),
        ("NCCL_P2P_LEVEL", "PCI", "none of LOC, NVL, PIX, PXB, PHB, SYS"),
        ("NCCL_P2P_LEVEL", "5", "none of LOC"),
        ("NCCL_BUFFSIZE", "16M", "NCCL reads it as 16"),
        ("NCCL_BUFFSIZE", "big", "NCCL reads it as 0"),
        ("NCCL_BUFFSIZE", "0x1g", "NCCL reads it as 0"),
        ("NCCL_BUFFSIZE", 0, "from 1 up"),
        ("NCCL_BUFFSIZE", 2**63, "does not fit into 64 bits"),
        ("NCCL_BUFFSIZE", "9" * 3000, "does not fit into 64 bits"),
        ("NCCL_BUFFSIZE", "0" + "7" * 3000, "octal"),
        ("NCCL_BUFFSIZE", "0" + "7" * 6000, "has 6001 characters"),
        ("NCCL_IB_TIMEOUT", "022", "octal: 18"),
        ("NCCL_IB_TIMEOUT", 32, "from 0 to 31"),
        ("NCCL_NTHREADS", 100, "not a multiple of 32"),
        ("NCCL_NTHREADS", 1024, "from 64 to 512"),
        ("NCCL_NTHREADS", 32, "from 64 to 512"),
        ("NCCL_NTHREADS", 256.0, "not an integer"),
        ("NCCL_P2P_DISABLE", True, "YAML reads it as true; write 1"),
        ("NCCL_P2P_DISABLE", "true", "NCCL reads it as 0"),
        ("NCCL_P2P_DISABLE", 2, "from 0 to 1"),
        ("NCCL_PROTO", "LL, Simple", "has a space"),
        ("NCCL_PROTO", "LL256", "'ll256' is none of LL, LL128, Simple"),
        ("NCCL_PROTO", " LL", "begins or ends with a space"),
        ("NCCL_PROTO", "", "empty"),
        ("NCCL_PROTO", '"LL"', "quote"),
        ("NCCL_PROTO", "'LL'", "quote"),
        ("NCCL_PROTO", "$PROTO", "dollar"),
        ("NCCL_PROTO", "LL\nLD_PRELOAD=/x", "line break"),
        ("NCCL_PROTO", ["LL"], "a list is no value"),
        ("NCCL_PROTO", None, "NoneType"),
        ("NCCL_ALGO", "Rings", "'rings' is none of Ring, Tree"),
        ("NCCL_ALGO", "allreduces:tree", "none of the functions"),
        ("NCCL_DEBUG", "VERBOSE", "none of VERSION, WARN"),
        ("NCCL_SOCKET_FAMILY", "af_inet", "write AF_INET"),
        ("NCCL_DEBUG_FILE", "~/nccl.%h.%p", "does not expand '~'"),
        ("NCCL_PSK", "0123456789abcdef0123456789abcdef", "secret_env"),
    ],
)
def test_a_value_that_nccl_would_ignore_or_misread_is_an_error(name, value, says):
    (finding,) = [one for one in nccl_lint.lint({name: value}) if one.level == "error"]
    assert finding.variable == name
    assert says in finding.message


def test_a_number_that_python_itself_refuses_to_print():
    assert found({"NCCL_BUFFSIZE": 10**5000}) == [("error", "NCCL_BUFFSIZE")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_PROTO", "ll,simple"),
        ("NCCL_ALGO", "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring"),
        ("NCCL_ALGO", "allreduce:^tree"),
        ("NCCL_IB_HCA", "^=mlx5_1,mlx5_4"),
        ("NCCL_SOCKET_IFNAME", "=eth0,eth1"),
        ("NCCL_IB_GID_INDEX", -1),
        ("NCCL_DEBUG", "info"),
        ("NCCL_TOPO_FILE", "/srv/my topology.xml"),
        ("NCCL_MAX_CTAS", "0x10"),
        ("NCCL_NTHREADS", 96),
        ("NCCL_NVLS_ENABLE", 0),
        ("NCCL_RAS_TIMEOUT_FACTOR", 0.5),
        ("NCCL_SYM_CTAS", 4),
    ],
)
def test_good_values_pass_without_a_word(name, value):
    assert nccl_lint.lint({name: value}) == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NCCL_P2P_DISABLE": 1, "NCCL_P2P_LEVEL": "SYS"}, ("error", "NCCL_P2P_LEVEL")),
        ({"NCCL_MIN_CTAS": 32, "NCCL_MAX_CTAS": 16}, ("error", "NCCL_MIN_CTAS")),
        ({"NCCL_PROTO": "^LL,LL128,Simple"}, ("error", "NCCL_PROTO")),
        ({"NCCL_P2P_DISABLE": 1, "NCCL_SHM_DISABLE": 1}, ("warning", "NCCL_SHM_DISABLE")),
        ({"NCCL_P2P_LEVEL": "4"}, ("warning", "NCCL_P2P_LEVEL")),
        ({"NCCL_PROTO": "LL128,Simple"}, ("warning", "NCCL_PROTO")),
        ({"NCCL_BUFFSIZE": 5000000}, ("warning", "NCCL_BUFFSIZE")),
        ({"NCCL_CONF_FILE": "nccl.conf"}, ("warning", "NCCL_CONF_FILE")),
        ({"NCCL_DEBUG": "ATTN"}, ("warning", "NCCL_DEBUG")),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}, ("warning", "NCCL_DEBUG")),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/run/nccl.log"}, ("warning", "NCCL_DEBUG_FILE")),
        ({"NCCL_DEBUG_FILE": "/run/nccl.%p.log"}, ("inert", "NCCL_DEBUG_FILE")),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT"}, ("inert", "NCCL_DEBUG_SUBSYS")),
        ({"NCCL_PROTO": "^LL128", "NCCL_LL128_BUFFSIZE": 4194304}, ("inert", "NCCL_LL128_BUFFSIZE")),
        ({"NCCL_PROTO": "Simple", "NCCL_LL_BUFFSIZE": 65536}, ("inert", "NCCL_LL_BUFFSIZE")),
        ({"NCCL_PROTO": "Simple", "NCCL_LL128_NTHREADS": 640}, ("inert", "NCCL_LL128_NTHREADS")),
        ({"NCCL_IB_DISABLE": 1, "NCCL_IB_HCA": "mlx5_0"}, ("inert", "NCCL_IB_HCA")),
        ({"NCCL_NVLS_ENABLE": 0, "NCCL_NVLS_CHUNKSIZE": 131072}, ("inert", "NCCL_NVLS_CHUNKSIZE")),
        ({"NCCL_NVLS_ENABLE": 0, "NCCL_ALGO": "NVLS,NVLSTree"}, ("error", "NCCL_ALGO")),
    ],
)
def test_variables_that_do_not_go_together(variables, expected):
    assert found(variables) == [expected]


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_P2P_DISABLE": 1, "NCCL_P2P_LEVEL": "LOC"},
        {"NCCL_P2P_DISABLE": 0, "NCCL_P2P_LEVEL": "SYS"},
        {"NCCL_PROTO": "Simple", "NCCL_BUFFSIZE": 16777216},
        {"NCCL_PROTO": "allreduce:ll", "NCCL_BUFFSIZE": 16777216},
        {"NCCL_BUFFSIZE": 16777216, "NCCL_NTHREADS": 512},
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH"},
        {"NCCL_IB_DISABLE": 0, "NCCL_IB_HCA": "mlx5_0"},
        {"NCCL_NVLS_ENABLE": 0, "NCCL_ALGO": "NVLS,Ring"},
        {"NCCL_NVLS_ENABLE": 0, "NCCL_ALGO": "^NVLS,NVLSTree"},
    ],
)
def test_variables_that_do_go_together(variables):
    assert nccl_lint.lint(variables) == []


def test_all_mistakes_come_at_once_and_errors_first():
    levels = [level for level, _name in found({**STORY, "NCCL_P2P_LEVEL": "sys", "NCCL_FOO": 1})]
    assert levels == ["error", "error", "warning", "warning", "inert", "inert"]


def test_every_known_variable_is_spelt_as_nccl_spells_it():
    assert len(nccl_variables.KNOWN) > 250
    for name, about in nccl_variables.KNOWN.items():
        assert name.startswith("NCCL_")
        assert name == name.upper()
        assert not about.instead or about.instead in nccl_variables.KNOWN


NAMES = st.one_of(st.sampled_from(sorted(nccl_variables.KNOWN)), st.text(max_size=30), st.integers(), st.none())
VALUES = st.one_of(
    st.text(max_size=30),
    st.text("0123456789xLMSYS^,;: ", max_size=12),
    st.sampled_from(["LL", "Ring", "SYS", "16", "512", "INFO", "1"]),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.binary(max_size=5),
)


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_nothing_makes_it_fail_and_what_it_accepts_survives_the_file(variables):
    findings = nccl_lint.lint(variables)
    refused = {one.variable for one in findings if one.level == "error"}
    for one in findings:
        assert one.message.isprintable(), "a message must be fit to be shown"
        assert not one.message.endswith(".")
    good = {
        name: nccl_lint.value_text(value)
        for name, value in variables.items()
        if isinstance(name, str) and name not in refused and repr(name) not in refused
    }
    assert set(good) <= set(nccl_variables.KNOWN)
    text = nccl_profiles.render("any", good)
    assert nccl_profiles.parse(text) == ("any", good)
    assert text.count("\n") <= len(good) + 3, "no value may smuggle in a line"

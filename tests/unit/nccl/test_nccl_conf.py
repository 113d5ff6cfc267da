"""nccl.conf as NCCL reads it, and our block in a file of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import marked_block, nccl_conf
from hypothesis import given
from hypothesis import strategies as st

STORY = {
    "NCCL_ALGO": "Ring",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_NTHREADS": "512",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_PROTO": "LL",
}


def as_nccl(raw: bytes, version: tuple[int, ...]) -> dict[bytes, bytes]:
    """NCCL's own loop, byte by byte, as its source has it: getline, '#', the line's end, up to '=', setenv(..., 0)."""
    found: dict[bytes, bytes] = {}
    for line in raw.split(b"\n"):
        if version >= (2, 26, 2) and line[:1] == b"#":
            continue
        line = line.split(b"\0")[0]
        if version >= (2, 30) and line[-1:] == b"\r":
            line = line[:-1]
        line = line + b"\0"
        size = 0
        while line[size] not in b"\0=":
            size += 1
        if line[size] == 0:
            continue
        name, value = line[: min(1023, size)], line[size + 1 : -1][:1023]
        if name:  # setenv refuses an empty name
            found.setdefault(name, value)
    return found


TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.sampled_from(
            [
                "NCCL_PROTO=LL",
                "NCCL_PROTO = LL",
                'NCCL_ALGO="Ring"',
                "# NCCL_ALGO=Tree",
                " # A=B",
                "export NCCL_X=1",
                "=5",
            ]
        ),
        st.sampled_from(["NCCL_A=1\r", "NCCL_B==", "\r", "#", "NCCL_C=" + "x" * 1100, "N" * 1100 + "=1", "A=\0B=2"]),
    ),
    max_size=8,
).map("\n".join)


@given(TEXTS, st.sampled_from([(2, 19, 3), (2, 26, 2), (2, 28, 9), (2, 32, 3)]))
def test_it_is_read_as_nccl_reads_it(text, version):
    ours = {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in nccl_conf.parse(text, version).items()
    }
    assert ours == as_nccl(text.encode("utf-8"), version)


def test_it_is_read_as_the_libraries_did():
    # What the libraries themselves put into the environment at their first call (it needs no GPU).
    captured = json.loads((Path(__file__).parents[2] / "data" / "nccl" / "conf-files.json").read_text())
    assert len(captured) > 20
    versions = set()
    for one in captured:
        for result in one["results"]:
            for version in result["versions"]:
                versions.add(version)
                number = tuple(int(part) for part in version.split("."))
                assert nccl_conf.parse(one["text"], number) == result["variables"], (version, one["text"])
    assert {"2.25.1", "2.26.2", "2.28.9", "2.29.7", "2.30.7", "2.32.3"} == versions


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        ("A = B", {"A ": " B"}, {"A ": " B"}),
        ('NCCL_ALGO="Ring"', {"NCCL_ALGO": '"Ring"'}, {"NCCL_ALGO": '"Ring"'}),
        ("export NCCL_ALGO=Ring", {"export NCCL_ALGO": "Ring"}, {"export NCCL_ALGO": "Ring"}),
        ("# NCCL_ALGO=Ring", {"# NCCL_ALGO": "Ring"}, {}),
        (" # NCCL_ALGO=Ring", {" # NCCL_ALGO": "Ring"}, {" # NCCL_ALGO": "Ring"}),
        ("NCCL_ALGO=Ring # fast", {"NCCL_ALGO": "Ring # fast"}, {"NCCL_ALGO": "Ring # fast"}),
        ("NCCL_ALGO=Ring\r", {"NCCL_ALGO": "Ring\r"}, {"NCCL_ALGO": "Ring"}),
        ("NCCL_ALGO=Ring\nNCCL_ALGO=Tree", {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Ring"}),
        ("NCCL_ALGO", {}, {}),
    ],
)
def test_traps_of_the_parser(line, old, new):
    assert nccl_conf.parse(line, (2, 26, 1)) == old
    assert nccl_conf.parse(line) == new


VALUES = st.text(st.characters(codec="utf-8"), max_size=40)
VARIABLES = st.dictionaries(st.from_regex(r"NCCL_[A-Z0-9_]{1,12}", fullmatch=True), VALUES, max_size=6)


@given(TEXTS, VARIABLES, st.sampled_from([(2, 19, 3), (2, 28, 9), None]))
def test_our_block_wins_is_read_back_and_leaves_no_trace(others, variables, version):
    if any("\n" in value or "\0" in value or value.endswith("\r") for value in variables.values()):
        with pytest.raises(ValueError, match="NCCL would not read"):
            nccl_conf.merge(others, variables, "kimi")
        return
    merged = nccl_conf.merge(others, variables, "kimi")
    seen = nccl_conf.parse(merged, version)
    assert {name: seen[name] for name in variables} == variables
    assert {**nccl_conf.parse(others, version), **variables} == seen, "nothing of others is lost, nothing is added"
    assert nccl_conf.merge(merged, variables, "kimi") == merged
    assert nccl_conf.merge(nccl_conf.merge(merged, {}, "kimi"), variables, "kimi") == merged
    assert marked_block.take(merged, "kimi") == others


def test_there_was_no_file():
    text = nccl_conf.merge(None, STORY, "kimi")
    assert nccl_conf.parse(text, (2, 18)) == STORY
    assert marked_block.take(text, "kimi") is None
    assert marked_block.take(text + "NCCL_DEBUG=INFO\n", "kimi") == "NCCL_DEBUG=INFO\n"


@given(
    st.one_of(st.none(), st.text("ab\n", max_size=6)),
    st.lists(st.tuples(st.sampled_from("xyz"), st.booleans(), st.text("cd\n", max_size=4)), max_size=7),
    st.randoms(use_true_random=False),
)
def test_blocks_of_several_owners_leave_the_file_as_it_was_in_whatever_order_they_go(text, puts, random):
    now = text
    for name, top, lines in puts:
        now = marked_block.put(now, name, lines + "\n", top)
        assert marked_block.body(now, name) == lines + "\n"
    owners = sorted({name for name, _top, _lines in puts})
    assert sorted(marked_block.names(now or "")) == owners
    random.shuffle(owners)
    for name in owners:
        now = marked_block.take(now, name)
        assert now is None or name not in marked_block.names(now)
    assert now == text


def test_the_order_of_the_sources():
    assert nccl_conf.search_order({}, "/root") == [
        ("environment", ""),
        ("~/.nccl.conf", "/root/.nccl.conf"),
        ("/etc/nccl.conf", "/etc/nccl.conf"),
    ]
    assert [name for name, _path in nccl_conf.search_order({"NCCL_CONF_FILE": "/x"}, "/root")] == [
        "environment",
        "NCCL_CONF_FILE",
        "/etc/nccl.conf",
    ]
    assert [name for name, _path in nccl_conf.search_order({"NCCL_CONF_FILE": ""}, "")] == [
        "environment",
        "/etc/nccl.conf",
    ]


def test_who_wins():
    found = nccl_conf.winners(
        [
            ("environment", {"NCCL_PROTO": "LL", "PATH": "/bin"}),
            ("~/.nccl.conf", {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Tree"}),
            ("/etc/nccl.conf", {"NCCL_ALGO": "Ring"}),
        ]
    )
    assert found == {
        "NCCL_ALGO": [("~/.nccl.conf", "Tree"), ("/etc/nccl.conf", "Ring")],
        "NCCL_PROTO": [("environment", "LL"), ("~/.nccl.conf", "Simple")],
    }

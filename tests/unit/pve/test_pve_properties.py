"""Property strings: PVE's own schema accepts what we write, and what says the same is equal."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import fakepve
import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.pve import properties
from fakepve import schema
from hypothesis import given
from hypothesis import strategies as st

# The API schema of Proxmox VE, as the test server carries it.
PATHS = json.loads(gzip.decompress((Path(fakepve.__file__).parent / "data" / "pve-api.json.gz").read_bytes()))["paths"]
POST = PATHS["/nodes/{node}/lxc"]["POST"]["parameters"]["properties"]
SCHEMA = {"net": POST["net[n]"], "mp": POST["mp[n]"], "dev": POST["dev[n]"]}
SCHEMA |= {name: POST[name] for name in ("rootfs", "features")}

words = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
flags = st.sampled_from(["0", "1"])
numbers = st.integers(0, 70000).map(str)
paths = st.lists(words, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
odd_paths = st.from_regex(r"/[a-z0-9=; :_-]{1,20}[a-z0-9]", fullmatch=True)
macs = st.binary(min_size=6, max_size=6).map(
    lambda raw: ":".join(f"{one & (0xFE if not i else 0xFF):02X}" for i, one in enumerate(raw))
)
sizes = st.integers(1, 4096).flatmap(lambda number: st.sampled_from([f"{number}{unit}" for unit in "KMGT"]))
idmaps = st.sampled_from(["passthrough", "u:0:100000:65536;g:0:100000:65536"])
options = st.lists(
    st.sampled_from(["discard", "lazytime", "noatime", "nodev", "noexec", "nosuid"]), min_size=1, max_size=4
)
VOLUME = {
    "volume": st.one_of(odd_paths, words.map(lambda name: f"{name}:vm-100-disk-0")),
    "acl": flags, "idmap": idmaps, "mountoptions": options.map(";".join), "quota": flags, "replicate": flags,
    "ro": flags, "shared": flags, "size": sizes,
}  # fmt: skip
VALUES = {
    "net": {
        "name": words, "bridge": words, "firewall": flags, "gw": st.just("192.0.2.1"), "gw6": st.just("2001:db8::1"),
        "host-managed": flags, "hwaddr": macs, "ip": st.sampled_from(["dhcp", "manual", "192.0.2.129/24"]),
        "ip6": st.sampled_from(["auto", "2001:db8::129/64"]), "link_down": flags,
        "mtu": st.integers(64, 65535).map(str), "rate": st.sampled_from(["1", "12.5"]),
        "tag": st.integers(1, 4094).map(str), "trunks": st.lists(numbers, min_size=1, max_size=3).map(";".join),
        "type": st.just("veth"),
    },
    "mp": {**VOLUME, "mp": paths, "backup": flags, "keepattrs": flags},
    "rootfs": VOLUME,
    "dev": {
        "path": odd_paths.map(lambda path: "/dev" + path), "deny-write": flags, "gid": numbers, "uid": numbers,
        "mode": st.from_regex(r"0[0-7]{3}", fullmatch=True),
    },
    "features": {
        "force_rw_sys": flags, "fuse": flags, "keyctl": flags, "mknod": flags, "nesting": flags,
        "mount": st.lists(words, min_size=1, max_size=3).map(";".join),
    },
}  # fmt: skip


def dictionaries(kind):
    """What a user may declare: the required keys, and any of the others."""
    required = {key for key, rule in properties.KINDS[kind].items() if rule.required}
    return st.fixed_dictionaries(
        {key: value for key, value in VALUES[kind].items() if key in required},
        optional={key: value for key, value in VALUES[kind].items() if key not in required},
    ).filter(bool)


declared = st.sampled_from(sorted(VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), dictionaries(kind)))


def test_our_keys_are_those_of_the_schema():
    """Neither a key of PVE that we would refuse, nor one of ours that PVE would."""
    for kind, option in SCHEMA.items():
        assert set(properties.KINDS[kind]) == set(option["format"]) == set(VALUES[kind]), kind


def test_the_defaults_are_those_of_the_schema():
    for kind, option in SCHEMA.items():
        for key, rule in option["format"].items():
            if "default" in rule:
                assert properties.KINDS[kind][key].default == str(rule["default"]), (kind, key)


@given(declared)
def test_read_and_rendered_are_inverse(case):
    kind, values = case
    read = properties.read(kind, values)
    text = properties.render(kind, read)
    assert properties.read(kind, text) == read
    assert properties.render(kind, properties.read(kind, text)) == text


@given(declared)
def test_the_schema_of_pve_accepts_what_we_write(case):
    kind, values = case
    text = properties.render(kind, properties.read(kind, values))
    _, errors = schema.validate({"properties": {kind: SCHEMA[kind]}}, {kind: text})
    assert errors == {}, text


def test_the_schema_refuses_what_is_wrong():
    """Else the test above could not fail."""
    _, errors = schema.validate({"properties": {"dev": SCHEMA["dev"]}}, {"dev": "/dev/nvidia0,mode=666"})
    assert "mode" in errors["dev"]


@given(declared, st.randoms(use_true_random=False))
def test_another_order_and_spelling_is_equal(case, random):
    kind, values = case
    read = properties.read(kind, values)
    respelled = []
    for key, value in read.items():
        if properties.KINDS[kind][key].kind == "bool":
            value = random.choice(properties.TRUE if value == "1" else properties.FALSE)
        elif properties.KINDS[kind][key].kind == "set":
            value = ";".join(random.sample(value.split(";"), len(value.split(";"))))
        respelled.append(f"{key}={value}")
    random.shuffle(respelled)
    assert properties.same(kind, ",".join(respelled), properties.render(kind, read))


@given(declared)
def test_a_value_left_out_is_another_unless_it_is_the_default(case):
    kind, values = case
    read = properties.read(kind, values)
    for key in read:
        if not properties.KINDS[kind][key].required and len(read) > 1:
            less = {name: value for name, value in read.items() if name != key}
            equal = read[key] == properties.KINDS[kind][key].default
            assert properties.same(kind, read, less) is equal, key


@given(st.sampled_from(sorted(properties.KINDS)), st.text())
def test_any_text_is_read_or_refused_in_words(kind, text):
    try:
        read = properties.read(kind, text, "here")
    except ValueError as error:
        assert str(error).startswith("here: ")  # noqa: PT017 - most texts are refused, and some are not
    else:
        assert properties.read(kind, properties.render(kind, read)) == read


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("dev", "/etc/passwd", "no device"),
        ("dev", "/dev/../etc/passwd", "no device"),
        ("dev", "/dev/nvidia0,mode=666", "mode: '666' is not of the form 0"),
        ("dev", "/dev/nvidia0,mode=0666,mode=0660", "mode is there twice"),
        ("net", "bridge=vmbr0", "name is missing"),
        ("net", "name=eth0,bridge=vmbr0,tag=5000", "tag: 5000 is not between 1 and 4094"),
        ("net", "eth0,bridge=vmbr0", "'eth0' is no key=value"),
        ("features", "nesting=maybe", "neither yes nor no"),
        ("features", "nested=1", "there is no nested; known: force_rw_sys, fuse"),
        ("mp", "/shared", "mp is missing"),
        ("mp", "/shared,mp=/shared,mountoptions=noatime;suid", "suid is not of the form"),
        ("rootfs", "local:8,size=big", "'big' is no size"),
    ],
)
def test_what_is_wrong_is_said(kind, text, says):
    with pytest.raises(ValueError, match=kind) as caught:
        properties.read(kind, text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64G", 64 << 30), ("1.5T", (1 << 40) * 3 // 2), ("512m", 512 << 20), ("7", 7), ("0", 0)],
)
def test_sizes(text, size):
    assert properties.size_bytes(text) == size
    assert properties.size_bytes(properties.size_text(size)) == size


@pytest.mark.parametrize(
    ("key", "kind"),
    [("net0", "net"), ("mp12", "mp"), ("rootfs", "rootfs"), ("net", None), ("rootfs0", None), ("memory", None)],
)
def test_kinds_of_keys(key, kind):
    assert properties.kind_of(key) == kind

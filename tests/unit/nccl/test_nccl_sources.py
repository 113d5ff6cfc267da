"""Who else sets NCCL variables: every place on a host, with the traps of each format."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import nccl_conf, nccl_sources, python_startup
from hypothesis import given
from hypothesis import strategies as st

HOST = {
    "etc/environment": 'PATH="/bin"\nNCCL_SOCKET_IFNAME="eth0"\nexport NCCL_IB_DISABLE=1\n#NCCL_ALGO=Tree\n',
    "etc/security/pam_env.conf": "# NCCL_X DEFAULT=1\nNCCL_DEBUG DEFAULT=INFO\nNCCL_PROTO DEFAULT=LL OVERRIDE=Simple\n",
    "etc/profile.d/nccl.sh": "export NCCL_PROTO=Simple NCCL_ALGO='Tree' # NCCL_NO=1\nMY_NCCL_X=1\nNCCL_NET=$(find)\n",
    "etc/profile.d/nccl.csh": "setenv NCCL_DEBUG WARN\n",
    "etc/fish/config.fish": "set -gx NCCL_NTHREADS 256\n",
    "etc/systemd/system.conf": "[Manager]\nDefaultEnvironment=\"NCCL_DEBUG=INFO\" 'NCCL_TOPO_FILE=/a b'\n",
    "etc/systemd/system/other.service.d/nccl.conf": "[Service]\nEnvironment=A=1 \\\n  NCCL_P2P_DISABLE=1\n",
    "etc/systemd/system/groundstate-kimi.service.d/mine.conf": "[Service]\nEnvironment=NCCL_ALGO=Tree\n",
    "etc/systemd/system/service.d/all.conf": "[Service]\nEnvironment=NCCL_DEBUG=WARN\n",
    "etc/systemd/system/train.service": "[Service]\nEnvironmentFile=-/etc/train.env\n",
    "etc/train.env": '# NCCL_X=1\nNCCL_BUFFSIZE="8388608"\n',
    "etc/environment.d/10.conf": "NCCL_SHM_DISABLE=1\n",
    "etc/cron.d/train": "NCCL_DEBUG=WARN\n0 1 * * * root NCCL_CROSS_NIC=1 /usr/bin/train\n",
    "var/spool/cron/crontabs/root": "NCCL_MIN_CTAS=4\n",
    "etc/nccl.conf": (
        "# BEGIN groundstate kimi\nNCCL_PROTO=LL\n# END groundstate kimi\n"
        "# NCCL_ALGO=Ring\nNCCL_ALGO=Tree\n NCCL_DEBUG=INFO\n"
    ),
    "root/.nccl.conf": "NCCL_PROTO=Simple\n",
    "home/eva/.bashrc": "export NCCL_DEBUG=TRACE\n",
    "home/eva/.config/systemd/user/x.service": "[Service]\nEnvironment=NCCL_NET=Socket\n",
    "usr/lib/python3.11/sitecustomize.py": (
        'import os\n# os.environ["NCCL_NO"] = "1"\nos.environ["NCCL_PROTO"] = "LL"\n'
        "os.environ.setdefault('NCCL_MAX_CTAS', str(8))\nif os.environ['NCCL_ALGO'] == 'Ring': pass\n"
    ),
    "etc/hosts": "NCCL_ALGO=Tree\n",
}


def write(root, content):
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def others(root, **options):
    proc = root / "proc"
    (proc / "1").mkdir(parents=True, exist_ok=True)
    (proc / "1" / "environ").write_bytes(b"PATH=/bin\0NCCL_VERSION=2.28\0")
    found, unread = nccl_sources.others("kimi", str(root / "root"), root=str(root), proc=str(proc), **options)
    return {str(Path(one.path).relative_to(root)): one for one in found}, unread


def test_every_place_of_a_host(tmp_path):
    write(tmp_path, HOST)
    found, unread = others(tmp_path)
    assert unread == []
    assert {path: one.variables for path, one in found.items()} == {
        "etc/environment": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"},
        "etc/security/pam_env.conf": {"NCCL_DEBUG": "INFO", "NCCL_PROTO": "Simple"},
        "etc/profile.d/nccl.sh": {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Tree", "NCCL_NET": None},
        "etc/profile.d/nccl.csh": {"NCCL_DEBUG": "WARN"},
        "etc/fish/config.fish": {"NCCL_NTHREADS": "256"},
        "etc/systemd/system.conf": {"NCCL_DEBUG": "INFO", "NCCL_TOPO_FILE": "/a b"},
        "etc/systemd/system/other.service.d/nccl.conf": {"NCCL_P2P_DISABLE": "1"},
        "etc/systemd/system/groundstate-kimi.service.d/mine.conf": {"NCCL_ALGO": "Tree"},
        "etc/systemd/system/service.d/all.conf": {"NCCL_DEBUG": "WARN"},
        "etc/train.env": {"NCCL_BUFFSIZE": "8388608"},
        "etc/environment.d/10.conf": {"NCCL_SHM_DISABLE": "1"},
        "etc/cron.d/train": {"NCCL_DEBUG": "WARN", "NCCL_CROSS_NIC": "1"},
        "var/spool/cron/crontabs/root": {"NCCL_MIN_CTAS": "4"},
        "etc/nccl.conf": {"NCCL_ALGO": "Tree"},
        "root/.nccl.conf": {"NCCL_PROTO": "Simple"},
        "home/eva/.bashrc": {"NCCL_DEBUG": "TRACE"},
        "home/eva/.config/systemd/user/x.service": {"NCCL_NET": "Socket"},
        "usr/lib/python3.11/sitecustomize.py": {"NCCL_PROTO": "LL", "NCCL_MAX_CTAS": None},
        "proc/1/environ": {"NCCL_VERSION": "2.28"},
    }
    assert sorted(path for path, one in found.items() if one.reaches_server) == [
        "etc/nccl.conf",
        "etc/systemd/system.conf",
        "etc/systemd/system/groundstate-kimi.service.d/mine.conf",
        "etc/systemd/system/service.d/all.conf",
    ]
    assert "other.service" in found["etc/systemd/system/other.service.d/nccl.conf"].who
    assert "etc/systemd/system/train.service" in found["etc/train.env"].who


def test_a_file_reached_by_two_ways_counts_once_and_ours_not_at_all(tmp_path):
    write(
        tmp_path,
        {
            "etc/profile.d/a.sh": "export NCCL_ALGO=Ring\n",
            "etc/systemd/system/x.service": f"[Service]\nEnvironmentFile={tmp_path}/ours/servers/kimi/nccl.env\n",
            "ours/servers/kimi/nccl.env": "NCCL_PROTO=LL\n",
            "etc/nccl.conf": nccl_conf.merge(None, {"NCCL_PROTO": "LL"}, "kimi"),
        },
    )
    (tmp_path / "etc" / "profile.d" / "b.sh").symlink_to("a.sh")
    found, _unread = others(tmp_path, own=str(tmp_path / "ours"))
    assert sorted(found) == ["etc/profile.d/a.sh", "proc/1/environ"]


def test_another_server_of_ours_in_the_same_file_is_another_source(tmp_path):
    write(tmp_path, {"etc/nccl.conf": nccl_conf.merge(None, {"NCCL_PROTO": "Simple"}, "qwen")})
    found, _unread = others(tmp_path)
    assert found["etc/nccl.conf"].variables == {"NCCL_PROTO": "Simple"}


def test_start_up_code_of_the_servers_python(tmp_path):
    site = tmp_path / "venv" / "site-packages"
    write(
        site,
        {
            "a.pth": 'import os; os.environ["NCCL_ALGO"] = "Tree"\n',
            "b.pth": "import hook\n",
            "hook.py": 'import os\nVALUES = {"NCCL_PROTO": "Simple"}\n',
            "c.start": "pkg.late:run\n",
            "pkg/late.py": 'import os\nos.putenv("NCCL_DEBUG", "INFO")\n',
            "nothing.pth": "/some/where\n",
            f"{python_startup.stem('kimi')}.pth": (
                f"import {python_startup.stem('kimi')}; {python_startup.stem('kimi')}.apply()\n"
            ),
            f"{python_startup.stem('kimi')}.py": "VARIABLES = {'NCCL_NTHREADS': '512'}\n",
        },
    )
    write(tmp_path, {"usr/lib/python3.11/sitecustomize.py": HOST["usr/lib/python3.11/sitecustomize.py"]})
    custom = str(tmp_path / "usr/lib/python3.11/sitecustomize.py")
    of = python_startup.Interpreter("python", (3, 11), "/v", "/usr", str(site), (custom,), custom, (), False, "")
    found, _unread = others(tmp_path, interpreter=of)
    assert {path: (one.variables, one.reaches_server) for path, one in found.items() if one.kind == "python"} == {
        "venv/site-packages/a.pth": ({"NCCL_ALGO": "Tree"}, True),
        "venv/site-packages/hook.py": ({"NCCL_PROTO": "Simple"}, True),
        "venv/site-packages/pkg/late.py": ({"NCCL_DEBUG": "INFO"}, True),
        "usr/lib/python3.11/sitecustomize.py": ({"NCCL_PROTO": "LL", "NCCL_MAX_CTAS": None}, True),
    }
    without = dataclasses.replace(of, sitecustomize=())
    found, _unread = others(tmp_path, interpreter=without)
    assert found["usr/lib/python3.11/sitecustomize.py"].reaches_server is False


def test_what_cannot_be_read_is_named(tmp_path):
    write(tmp_path, {"etc/profile.d/a.sh": "export NCCL_ALGO=Ring\n"})
    (tmp_path / "proc").mkdir()
    found, unread = nccl_sources.others("kimi", "", root=str(tmp_path), proc=str(tmp_path / "proc"))
    assert len(found) == 1
    assert unread == [f"{tmp_path}/proc/1/environ"]


@pytest.fixture
def open_folder():
    """A folder that any user may enter."""
    path = Path(tempfile.mkdtemp(prefix="groundstate-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_home_and_a_file_that_this_user_may_not_enter_are_named(open_folder):
    write(open_folder, {"root/.bashrc": "export NCCL_ALGO=Ring\n", "etc/environment": "NCCL_ALGO=Tree\n"})
    write(open_folder, {"etc/crontab": "NCCL_DEBUG=INFO\n"})
    (open_folder / "root").chmod(0o000)
    (open_folder / "etc" / "environment").chmod(0o000)
    came, goes = os.pipe()
    child = os.fork()
    if not child:
        if os.geteuid() == 0:
            os.setuid(65534)
        found, unread = nccl_sources.others("kimi", "", root=str(open_folder), proc=str(open_folder))
        os.write(goes, json.dumps([[one.path for one in found], unread]).encode())
        os._exit(0)
    os.close(goes)
    with os.fdopen(came) as said:
        found, unread = json.load(said)
    os.waitpid(child, 0)
    (open_folder / "root").chmod(0o700)
    assert found == [f"{open_folder}/etc/crontab"]
    assert set(unread) == {f"{open_folder}/root", f"{open_folder}/etc/environment", f"{open_folder}/1/environ"}


def source(path, reaches, **variables):
    return nccl_sources.Source(path, "nccl.conf", variables, reaches, "every process that uses NCCL")


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (source("/etc/nccl.conf", True, NCCL_PROTO="LL"), []),
        (
            source("/etc/nccl.conf", True, NCCL_PROTO="Simple"),
            ["/etc/nccl.conf sets NCCL_PROTO=Simple (the profile: LL), for every process that uses NCCL"],
        ),
        (
            source("/x", True, NCCL_ALGO="Tree"),
            ["/x sets NCCL_ALGO=Tree (not in the profile), for every process that uses NCCL"],
        ),
        (source("/x", False, NCCL_ALGO="Tree"), []),
        (source("/x", True, NCCL_VERSION="2.28"), []),
        (
            source("/x", False, NCCL_PROTO=None),
            ["/x sets NCCL_PROTO (computed) (the profile: LL), for every process that uses NCCL"],
        ),
    ],
)
def test_what_contradicts_a_profile(one, expected):
    assert nccl_sources.contradictions({"NCCL_PROTO": "LL"}, [one]) == expected


@given(
    st.dictionaries(
        st.sampled_from(sorted(set(HOST) - {"etc/hosts"})),
        st.one_of(
            st.text(max_size=60),
            st.lists(
                st.sampled_from(["NCCL_A", "=", '"', "'", "\\\n", "export ", "Environment", "DEFAULT=", "\n", "[ "])
            ).map("".join),
        ),
        max_size=4,
    )
)
def test_nothing_in_a_file_makes_it_fail(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("host")
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    found, _unread = others(root)
    for one in found.values():
        assert all(name.startswith("NCCL_") for name in one.variables)

"""proxmox_lxc against a Proxmox VE API over TLS (fakepve): its schema, permissions, tasks and pending changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.groundstate.llm.plugins.module_utils.pve import ensure, https
from ansible_collections.groundstate.llm.plugins.module_utils.pve.api import PveError
from ansible_collections.groundstate.llm.plugins.modules import proxmox_lxc

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
TOKEN = ("ansible", "11111111-2222-3333-4444-555555555555")
SPEC = {
    "vmid": 129,
    "hostname": "pcie8",
    "template": TEMPLATE,
    "rootfs": "local-lvm:8",
    "networks": ["name=eth0,bridge=vmbr0,ip=192.0.2.129/24"],
    "features": {"nesting": True},
    "memory": 1024,
}


class Node:
    """A fake node with permissions on, and the module's function on it."""

    def __init__(self, pve, cafile: str):
        self.pve = pve
        self.cafile = cafile
        pve.grant("nobody@pve", "/", "VM.Audit")  # without any grant everybody may do everything
        pve.apitokens[f"root@pam!{TOKEN[0]}"] = TOKEN[1]
        pve.apitokens[f"ops@pve!{TOKEN[0]}"] = TOKEN[1]
        pve.store_file("local", TEMPLATE.rpartition("/")[2], 126_000_000, "vztmpl")
        self.root = self.client("root@pam", password="secret")

    def client(self, user: str, password: str = "", token: tuple[str, str] = ("", ""), verify=None) -> https.Https:
        verify = self.cafile if verify is None else verify
        return https.Https("127.0.0.1", self.pve.port, user, password, *token, verify, 20)

    def run(self, api=None, check: bool = False, sleeps=None, **options) -> ensure.Result:
        checked = ArgumentSpecValidator(proxmox_lxc.argument_spec()).validate(options)
        assert not checked.error_messages, checked.error_messages
        sleep = {} if sleeps is None else {"sleep": sleeps}
        return ensure.ensure(checked.validated_parameters, api or self.root, check, **sleep)

    def refused(self, api=None, check: bool = False, **options) -> str:
        with pytest.raises(PveError) as caught:
            self.run(api, check, **options)
        return str(caught.value)

    def writes(self) -> list[str]:
        """The requests so far that would change something, and forget them."""
        found = [
            f"{method} {path}"
            for method, path, *_ in self.pve.requests
            if method != "GET" and not path.endswith("/access/ticket")
        ]
        self.pve.requests.clear()
        return found

    def config(self, vmid: int = 129) -> dict:
        return self.pve.ct(vmid).config


@pytest.fixture
def node(fakepve, fakepve_cafile):
    return Node(fakepve, fakepve_cafile)


@pytest.fixture
def made(node):
    """A node with the container, stopped."""
    assert node.run(**SPEC, state="present").actions == ["created"]
    node.writes()
    return node


def module(node: Node, check: bool = False, **options) -> dict:
    """The module as a process of its own, as on a controller."""
    given = {
        "transport": "https",
        "api_host": "127.0.0.1",
        "api_port": node.pve.port,
        "api_user": "root@pam",
        "api_password": "secret",
        "api_ca_path": str(node.cafile),
        **options,
    }
    program = (
        "import json, sys\n"
        "from ansible.module_utils.testing import patch_module_args\n"
        "from ansible_collections.groundstate.llm.plugins.modules import proxmox_lxc\n"
        "with patch_module_args(json.load(sys.stdin)):\n"
        "    proxmox_lxc.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps({**given, "_ansible_check_mode": check, "_ansible_diff": True}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "playbooks" / "collections")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "secret" not in done.stdout.replace("api_token_secret", ""), "a password in the output"
    return {"failed": False, **json.loads(done.stdout)}


def test_the_module_creates_and_then_changes_nothing(node):
    would = module(node, check=True, **SPEC)
    assert (would["changed"], would["actions"]) == (True, ["created", "started"])
    assert node.pve.ct(129) is None
    first = module(node, **SPEC)
    assert (first["actions"], first["status"], first["addresses"]) == (
        ["created", "started"],
        "running",
        ["192.0.2.129"],
    )
    assert first["diff"]["before"] == ""
    assert "memory: 1024\n" in first["diff"]["after"]
    assert "groundstate" in node.config()["tags"]
    node.writes()
    again = module(node, **SPEC)
    assert (again["changed"], again["actions"], again["pending"]) == (False, [], [])
    assert again["diff"]["before"] == again["diff"]["after"]
    assert node.writes() == []
    would = module(node, check=True, **{**SPEC, "memory": 2048})
    assert would["actions"] == ["changed memory"]
    assert "memory: 1024\n" in would["diff"]["before"]
    assert "memory: 2048\n" in would["diff"]["after"]
    assert node.writes() == []


def test_the_module_fails_with_one_sentence(node):
    told = module(node, **{**SPEC, "networks": ["name=eth0,bridg=vmbr0"]})
    assert told["failed"]
    assert told["msg"].startswith("networks[0]: there is no bridg; known: bridge, ")
    assert node.writes() == []


EACH = [
    ({"memory": 2048}, {"memory": 1024}, "memory", "2048", "1024"),
    ({"swap": 0}, {"swap": 512}, "swap", "0", "512"),
    ({"cores": 4}, {"cores": 0}, "cores", "4", None),
    ({"cpulimit": 1.5}, {"cpulimit": 0}, "cpulimit", "1.5", "0"),
    ({"cpuunits": 200}, {"cpuunits": 0}, "cpuunits", "200", None),
    ({"hostname": "other"}, {"hostname": "pcie8"}, "hostname", "other", "pcie8"),
    ({"onboot": True}, {"onboot": False}, "onboot", "1", "0"),
    ({"startup": {"order": 2, "up": 30}}, {"startup": {}}, "startup", "2,up=30", None),
    (
        {"features": "nesting=1,keyctl=1"},
        {"features": {"nesting": True}},
        "features",
        "keyctl=1,nesting=1",
        "nesting=1",
    ),
    ({"features": {}}, {"features": {"nesting": 1}}, "features", None, "nesting=1"),
    ({"mounts": ["/shared"]}, {"mounts": []}, "mp0", "/shared,mp=/shared", None),
    ({"mounts": ["/a,mp=/b,ro=1"]}, {"mounts": ["/a,mp=/b"]}, "mp0", "/a,mp=/b,ro=1", "/a,mp=/b"),
    ({"devices": ["/dev/kvm"]}, {"devices": []}, "dev0", "/dev/kvm", None),
    ({"devices": ["/dev/kvm,mode=0666"]}, {"devices": ["/dev/kvm"]}, "dev0", "/dev/kvm,mode=0666", "/dev/kvm"),
    ({"nameserver": "192.0.2.1"}, {"nameserver": ""}, "nameserver", "192.0.2.1", None),
    ({"searchdomain": "example.com"}, {"searchdomain": ""}, "searchdomain", "example.com", None),
    ({"timezone": "host"}, {"timezone": ""}, "timezone", "host", None),
    ({"cmode": "shell"}, {"cmode": "tty"}, "cmode", "shell", "tty"),
    ({"console": False}, {"console": True}, "console", "0", "1"),
    ({"tty": 4}, {"tty": 2}, "tty", "4", "2"),
    ({"tags": ["b", "a"]}, {"tags": []}, "tags", "a;b;groundstate", "groundstate"),
    ({"protection": True}, {"protection": False}, "protection", "1", "0"),
    (
        {"networks": [*SPEC["networks"], {"name": "eth1", "bridge": "vmbr1", "tag": 7}]},
        {"networks": SPEC["networks"]},
        "net1",
        "name=eth1",
        None,
    ),
]


def test_every_property_both_ways_and_nothing_twice(made):
    for there, back, key, value, default in EACH:
        for options, expected in ((there, value), (back, default)):
            spec = {**SPEC, **options, "state": "present"}
            found = made.run(**spec)
            assert found.actions == [f"changed {key}"], (options, found.actions)
            text = made.config().get(key)
            text = None if text is None else str(text)
            assert text == expected or (key == "net1" and text.startswith(expected) and "tag=7" in text), options
            assert made.run(**spec).actions == [], options


def test_the_description_is_a_block_among_what_others_wrote(made):
    made.config()["description"] = "Ask Ada first.\n\n" + made.config()["description"] + "Since 2026.\n"
    assert made.run(**SPEC, state="present").actions == []
    assert made.run(**SPEC, state="present", description="Serves.").actions == ["changed description"]
    text = made.config()["description"]
    assert text.startswith("Ask Ada first.\n")
    assert text.endswith("Since 2026.\n")
    assert "\nServes.\n" in text


def test_drift_is_brought_back(made):
    """What somebody changed by hand: a feature and a device too many, another order that says the same."""
    config = made.config()
    mac = config["net0"].partition("hwaddr=")[2].partition(",")[0]
    config.update(features="keyctl=1,nesting=1", dev4="/dev/fuse", memory="4096")
    config["net0"] = f"type=veth,ip=192.0.2.129/24,hwaddr={mac},bridge=vmbr0,name=eth0"
    assert made.run(**SPEC, state="present", devices=[]).actions == ["changed dev4, features, memory"]
    assert (config["features"], "dev4" in config, mac in config["net0"]) == ("nesting=1", False, True)


def test_volumes(made):
    assert made.run(**{**SPEC, "rootfs": "local-lvm:16"}, state="present").actions == ["changed rootfs"]
    assert made.config()["rootfs"] == "local-lvm:vm-129-disk-0,size=16G"
    assert "cannot shrink to 8G" in made.refused(**SPEC, state="present")
    spec = {**SPEC, "rootfs": "local-lvm:16", "state": "present"}
    data = {"storage": "local-lvm", "size": "4G", "mp": "/data", "backup": True}
    assert made.run(**spec, mounts=[data]).actions == ["changed mp0"]
    assert made.config()["mp0"] == "local-lvm:vm-129-disk-1,backup=1,mp=/data,size=4G"
    assert made.run(**spec, mounts=[data]).actions == []
    assert made.run(**spec, mounts=[{**data, "size": "6G"}]).actions == ["changed mp0"]
    gone = made.run(**spec, mounts=[])
    assert "local-lvm:vm-129-disk-1 is kept" in gone.warnings[0]
    assert made.config()["unused0"] == "local-lvm:vm-129-disk-1"


def test_unprivileged_cannot_change_and_says_so(made):
    assert "the container is unprivileged and cannot become privileged" in made.refused(**SPEC, unprivileged=False)
    assert made.writes() == []


def test_a_token_is_told_at_once_what_only_root_may_set(node):
    token = node.client("root@pam", token=TOKEN)
    spec = {**SPEC, "devices": ["/dev/kvm"], "mounts": ["/shared"], "features": {"nesting": True, "keyctl": True}}
    said = node.refused(token, **spec)
    assert "PVE lets only root@pam itself set " in said
    assert "devices or gpus (dev0=/dev/kvm)" in said
    assert "features=keyctl=1,nesting=1" in said
    assert "mounts (mp0=/shared,mp=/shared)" in said
    assert "root@pam!ansible (an API token) is not: API tokens never are" in said
    assert "transport local or openssh" in said
    assert node.writes() == []
    assert node.run(token, **SPEC, state="present").actions == ["created"]


def test_a_403_of_pve_itself_names_the_parameter(made):
    token = made.client("root@pam", token=TOKEN)
    token.is_root = True  # as if we did not know PVE's rules
    said = made.refused(token, **SPEC, devices=["/dev/kvm"])
    assert "only root@pam itself set devices or gpus (dev0=/dev/kvm)" in said
    made.pve.grant("ops@pve", "/vms", "VM.Audit", "VM.Config.Options")
    ops = made.client("ops@pve", token=TOKEN)
    said = made.refused(ops, **{**SPEC, "memory": 4096}, state="present")
    assert "ops@pve!ansible (an API token) may not do this while changing container 129" in said
    assert "grant VM.Config.Memory on /vms/129" in said
    assert made.run(ops, **SPEC, state="present").actions == []


def test_a_parameter_that_pve_refuses_is_named(made):
    said = made.refused(**SPEC, cores=9999)
    assert said.startswith("Proxmox VE refuses a parameter while changing container 129: cores=9999: value must ")


def test_a_locked_container_is_left_alone(made):
    made.pve.snapshot_lock(129, "backup")
    assert made.run(**SPEC, state="present").actions == []
    assert "the container is locked (backup)" in made.refused(**{**SPEC, "memory": 2048}, state="present")
    assert made.refused(**SPEC) == "starting container 129 failed: CT is locked (backup)"
    assert "it is locked (backup)" in made.refused(vmid=129, state="absent", confirm_destroy="pcie8")
    assert not [one for one in made.writes() if not one.endswith("/start")]


def test_a_task_that_fails_is_told_with_its_log(made):
    made.pve.ct(129).start_error = "startup for container '129' failed"
    with pytest.raises(PveError) as caught:
        made.run(**SPEC)
    assert str(caught.value) == "starting container 129 failed: startup for container '129' failed"
    assert caught.value.log[-1] == "TASK ERROR: startup for container '129' failed"
    told = module(made, **SPEC)
    assert told["log"][-1].startswith("TASK ERROR: ")


def test_a_failed_create_leaves_nothing_and_the_next_run_makes_it(node):
    said = node.refused(**{**SPEC, "template": "local:vztmpl/gone.tar.zst"})
    assert "creating container 129 failed" in said
    assert "gone.tar.zst' does not exist" in said
    assert node.pve.ct(129) is None
    assert node.run(**SPEC).actions == ["created", "started"]


def test_what_is_pending_is_told_and_applied_only_where_that_is_allowed(made):
    assert made.run(**SPEC).actions == ["started"]
    spec = {**SPEC, "features": {"nesting": True, "fuse": True}}
    found = made.run(**spec)
    assert (found.actions, found.pending) == (["changed features"], ["features"])
    assert made.config()["features"] == "nesting=1"
    again = made.run(**spec)
    assert (again.actions, again.pending) == ([], ["features"])
    would = made.run(check=True, **spec, restart="if_needed")
    assert (would.actions, would.pending) == (["restarted"], ["features"])
    assert made.config()["features"] == "nesting=1"
    found = made.run(**spec, restart="if_needed")
    assert (found.actions, found.pending) == (["restarted"], [])
    assert made.config()["features"] == "fuse=1,nesting=1"
    assert made.run(**spec, restart="if_needed").actions == []


def test_a_change_that_is_taken_back_while_it_is_pending(made):
    made.run(**SPEC)
    made.run(**{**SPEC, "features": {}})
    found = made.run(**SPEC)
    assert (found.actions, found.pending) == (["changed features"], [])


@pytest.mark.fakepve(time_scale=0.02)
def test_slow_tasks_are_waited_for_up_to_the_timeout(node):
    node.pve.ct_secs["create"] = 50  # one second
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        time.sleep(0.1)

    assert node.run(**SPEC, state="present", sleeps=sleep).actions == ["created"]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    node.pve.ct(129).start_secs = 500
    said = node.refused(**SPEC, timeout=1)
    assert (
        "starting container 129 still runs after 1 s and was left running: raise timeout, or look at task UPID:" in said
    )


def test_an_expired_ticket_is_renewed(made):
    made.root.call("GET", "/version")
    made.pve.revoke_tickets()
    assert made.run(**{**SPEC, "memory": 2048}, state="present").actions == ["changed memory"]
    made.root._arguments["password"] = "changed meanwhile"
    made.pve.revoke_tickets()
    assert "refuses the login of root@pam" in made.refused(**SPEC)


def test_the_certificate_is_verified(node):
    said = node.refused(node.client("root@pam", password="secret", verify=True), **SPEC)
    assert "the certificate of 127.0.0.1 is not one that is trusted here: give api_ca_path" in said
    assert node.pve.requests == []
    assert module(node, **SPEC, validate_certs=False, state="present")["actions"] == ["created"]


def test_wrong_logins(node):
    assert "refuses the login of root@pam" in node.refused(node.client("root@pam", password="wrong"), **SPEC)
    token = node.client("root@pam", token=("ansible", "wrong"))
    assert "refuses the login of root@pam!ansible (an API token)" in node.refused(token, **SPEC)


def test_no_answer_and_no_quorum(made):
    made.pve.lose_quorum()
    assert made.run(**SPEC, state="present").actions == []
    assert "no quorum" in made.refused(**{**SPEC, "memory": 2048})
    made.pve.regain_quorum()
    other = https.Https("127.0.0.1", 1, "root@pam", "secret", "", "", True, 5)
    assert "127.0.0.1 does not answer: check api_host, api_port" in made.refused(other, **SPEC)


def test_broken_connections_while_reading_are_tried_again(made):
    made.pve.flaky_network(drop_rate=0.2, seed=3)
    made.pve._random.seed(3)
    for _ in range(4):
        assert made.run(**SPEC, state="present").actions == []


def test_containers_of_others(node):
    node.pve.add_ct(129, "pcie8", config={"memory": 1024})
    said = node.refused(**SPEC)
    assert "container 129 (pcie8) has neither the tag groundstate" in said
    assert "adopt: true takes it over" in said
    assert node.writes() == []
    assert node.run(**SPEC, state="present", adopt=True).actions[0].startswith("changed ")
    assert node.run(**SPEC, state="present").actions == []


def test_absent(made):
    made.run(**SPEC)
    absent = {"vmid": 129, "state": "absent"}
    assert "confirm_destroy has to be its hostname, pcie8" in made.refused(**absent)
    assert "confirm_destroy has to be" in made.refused(**absent, confirm_destroy="other")
    assert made.run(check=True, **absent, confirm_destroy="pcie8").actions == ["stopped", "destroyed"]
    made.pve.ct(129).config["protection"] = 1
    assert "protection is on" in made.refused(**absent, confirm_destroy="pcie8")
    del made.pve.ct(129).config["protection"]
    assert made.pve.ct(129).status == "running"
    assert made.run(**absent, confirm_destroy="pcie8").actions == ["stopped", "destroyed"]
    assert made.pve.ct(129) is None
    gone = made.run(**absent, confirm_destroy="pcie8")
    assert (gone.actions, gone.status) == ([], "absent")
    made.pve.add_ct(129, "theirs")
    assert "force: true destroys it all the same" in made.refused(**absent, confirm_destroy="theirs")
    assert made.run(**absent, confirm_destroy="theirs", force=True).actions == ["destroyed"]


def test_the_ha_manager_is_asked_and_waited_for(made):
    made.pve.ct(129).ha_state = "stopped"
    assert made.run(**SPEC).actions == ["started"]
    assert made.pve.ct(129).ha_state == "started"
    absent = {"vmid": 129, "state": "absent", "confirm_destroy": "pcie8"}
    assert "the HA manager has it: purge: true" in made.refused(**absent)
    assert made.run(**absent, purge=True).actions == ["stopped", "destroyed"]


def test_the_number_is_found_by_the_name(node):
    spec = {key: value for key, value in SPEC.items() if key != "vmid"}
    first = node.run(**spec)
    assert (first.vmid, first.actions) == (100, ["created", "started"])
    assert (node.run(**spec).vmid, node.run(**spec).actions) == (100, [])
    assert node.run(hostname="pcie8", state="stopped").actions == ["stopped"]
    node.pve.add_ct(200, "pcie8", config={"tags": "groundstate"})
    assert "containers 100, 200 are all called pcie8: say which one with vmid" in node.refused(**spec)


def test_a_number_that_is_taken(node):
    node.pve.add_vm(129, "windows")
    assert "guest 129 is a virtual machine" in node.refused(**SPEC)
    node.pve.add_ct(130, "far", node="pve2", config={"tags": "groundstate"})
    assert "container 130 is on node pve2, not on pve1" in node.refused(vmid=130, node="pve1", state="present")
    assert "the cluster has pve1, pve2: say on which" in node.refused(**{**SPEC, "vmid": 131})


def test_a_clone(made):
    spec = {"vmid": 140, "hostname": "copy", "clone": 129, "memory": 2048, "state": "present"}
    assert made.run(**spec).actions == ["cloned", "changed memory"]
    assert made.config(140)["hostname"] == "copy"
    assert (str(made.config(140)["memory"]), made.config(140)["tags"]) == ("2048", "groundstate")
    assert made.run(**spec).actions == []


def test_what_a_new_container_lacks_is_told_at_once(node):
    said = node.refused(vmid=129)
    assert "hostname: a new container needs one" in said
    assert "template or clone" in said
    assert "rootfs: a new container needs storage and size" in said
    said = node.refused(**SPEC, gpus=["all"])
    assert "only the node itself can tell" in said
    assert "memlock and shm_size are lines of the node's own file" in node.refused(**SPEC, memlock="unlimited")

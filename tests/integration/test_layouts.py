"""The repository as a checkout, as a wheel and as a collection: each built, installed and used for real.

All of it happens in a copy of the work tree whose folder has a name with spaces and a letter outside ASCII.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = "groundstate.llm"
PLAYBOOKS = ("deploy_baseline", "reset_gpus", "benchmark", "verify", "doctor", "teardown")
PHASES = ("preflight", "ml_env", "gpu_state", "nccl_profile", "llm_server", "baseline")
CONTENT = ("plugins", "roles", "meta", "playbooks", "inventories")


@dataclass(frozen=True)
class Place:
    """Where commands are looked up and run, and with which settings, so that nothing of this machine's user gets in."""

    bin: Path
    cwd: Path
    home: Path
    settings: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str | Path, code: int = 0) -> str:
        """Run a command, insist on its exit code, return what it said."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
        environment |= {"HOME": str(self.home), "PATH": f"{self.bin}:{os.environ['PATH']}", "NO_COLOR": "1"}
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.cwd,
            env={**environment, **self.settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{command} in {self.cwd} gave {done.returncode}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all of this, with an empty home and an empty place to stand in."""
    folder = tmp_path_factory.mktemp("layouts") / "a plâce with spaces"
    for name in ("home", "elsewhere"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def tree(base: Path) -> Path:
    """A copy of the work tree, with what a used checkout has lying around."""
    copy = base / "the checkout"
    subprocess.run([ROOT / "scripts" / "export.sh", copy], check=True)
    for name in (
        "records/host1/20260101T000000.json",
        ".venv/lib/python3/site-packages/x.py",
        ".git/config",
        "tests/output/checks/unit.log",
        "dist/old.whl",
        "old-0.0.1.tar.gz",
        "collections/ansible_collections/x/y/galaxy.yml",
    ):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("left by a run\n")
    return copy


@pytest.fixture(scope="session")
def checkout(base: Path, tree: Path) -> Place:
    """The tools of the developer environment, in the root of the copy."""
    return Place(Path(sys.executable).parent, tree, base / "home")


@pytest.fixture(scope="session")
def wheel(base: Path, checkout: Place) -> Path:
    """The built wheel."""
    checkout.run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", base / "built")
    (made,) = (base / "built").glob("groundstate-*.whl")
    return made


@pytest.fixture(scope="session")
def tarball(base: Path, checkout: Place) -> Path:
    """The built collection."""
    checkout.run("ansible-galaxy", "collection", "build", "--output-path", base / "built")
    (made,) = (base / "built").glob("groundstate-llm-*.tar.gz")
    return made


def install(venv: Path, *what: str | Path) -> None:
    """Make a virtual environment and install into it, with uv where there is one (it is faster)."""
    subprocess.run([sys.executable, "-m", "venv", *(["--without-pip"] if uv() else []), venv], check=True)
    tool = [uv(), "pip", "install", "--python", venv / "bin" / "python"] if uv() else [venv / "bin" / "pip", "install"]
    subprocess.run([*tool, "--quiet", *what], check=True)


def uv() -> str | None:
    """uv, when it works (a shim of a version manager may be there and not)."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    works = found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0
    return found if works else None


@pytest.fixture(scope="session")
def from_wheel(base: Path, wheel: Path) -> Place:
    """A fresh virtual environment with the wheel and nothing else, used from another folder."""
    install(base / "venv of a user", wheel)
    return Place(base / "venv of a user" / "bin", base / "elsewhere", base / "home")


@pytest.fixture(scope="session")
def from_editable(base: Path, tree: Path) -> Place:
    """The same, of `pip install -e`."""
    install(base / "venv of a developer", "-e", tree)
    return Place(base / "venv of a developer" / "bin", base / "elsewhere", base / "home")


@pytest.fixture(scope="session")
def from_tarball(base: Path, tarball: Path) -> Place:
    """The collection as ansible-galaxy installs it, used from another folder.

    Installed from there, too: inside the checkout ansible-galaxy finds it installed already.
    """
    place = Place(
        Path(sys.executable).parent,
        base / "elsewhere",
        base / "home",
        {"ANSIBLE_COLLECTIONS_PATH": str(base / "collections")},
    )
    place.run("ansible-galaxy", "collection", "install", "--offline", tarball, "-p", base / "collections")
    return place


def content_of(tree: Path) -> set[str]:
    """The files that every form of the collection has to carry."""
    return {
        str(path.relative_to(tree))
        for name in CONTENT
        for path in (tree / name).rglob("*")
        if path.is_file() and "collections" not in path.relative_to(tree).parts and "__pycache__" not in path.parts
    } - {"playbooks/ansible.cfg"}


def test_the_wheel_holds_the_command_line_and_the_collection_and_nothing_else(wheel, tree):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    prefix = "ansible_collections/groundstate/llm/"
    assert {name.removeprefix(prefix) for name in names if name.startswith(prefix)} == {
        *content_of(tree),
        "galaxy.yml",
    }
    rest = {name for name in names if not name.startswith(prefix) and ".dist-info/" not in name}
    package = tree / "src" / "groundstate"
    assert rest == {f"groundstate/{path.name}" for path in package.iterdir() if path.is_file()}


def test_the_tarball_holds_the_collection_and_nothing_else(tarball, tree):
    with tarfile.open(tarball) as archive:
        names = {member.name for member in archive.getmembers() if not member.isdir()}
    content = {name for name in names if name.split("/")[0] in CONTENT}
    assert content == content_of(tree)
    assert {name.split("/")[0] for name in names - content} <= {
        *("MANIFEST.json", "FILES.json", "README.md", "LICENSE", "CHANGELOG.md", "docs", "changelogs"),
    }
    assert {"README.md", "LICENSE", "docs/architecture.md"} <= names


def assert_all_parsed(output: str) -> None:
    """Every playbook was loaded with its roles and modules."""
    lines = output.splitlines()
    loaded = [Path(line.removeprefix("playbook: ")).name for line in lines if line.startswith("playbook: ")]
    assert loaded == [f"{name}.yml" for name in PLAYBOOKS], output


def assert_all_phases(output: str) -> None:
    """The main job's task list has tasks of each phase."""
    for phase in PHASES:
        assert f"{phase} : " in output, output


def test_checkout_from_its_root(checkout):
    assert_all_parsed(
        checkout.run("ansible-playbook", *(f"playbooks/{name}.yml" for name in PLAYBOOKS), "--syntax-check")
    )
    assert_all_phases(checkout.run("ansible-playbook", "playbooks/deploy_baseline.yml", "--list-tasks"))


def test_checkout_uses_the_local_inventory_by_itself(checkout, tree):
    inside = Place(checkout.bin, tree / "playbooks", checkout.home)
    for place, playbook in ((checkout, "playbooks/deploy_baseline.yml"), (inside, "deploy_baseline.yml")):
        assert "hosts (1):\n      local\n" in place.run("ansible-playbook", playbook, "--list-hosts")


def test_checkout_from_playbooks(checkout, tree):
    inside = Place(checkout.bin, tree / "playbooks", checkout.home)
    assert_all_parsed(inside.run("ansible-playbook", *(f"{name}.yml" for name in PLAYBOOKS), "--syntax-check"))
    assert_all_phases(inside.run("ansible-playbook", "deploy_baseline.yml", "--list-tasks"))


@pytest.mark.parametrize("inventory", [True, False], ids=["inventory", "no-inventory"])
def test_checkout_by_absolute_path_from_elsewhere(checkout, tree, base, inventory):
    outside = Place(checkout.bin, base / "elsewhere", checkout.home)
    named = ["-i", tree / "inventories" / "local"] if inventory else []
    playbook = tree / "playbooks" / "deploy_baseline.yml"
    assert_all_phases(outside.run("ansible-playbook", playbook, *named, "--list-tasks"))


def test_checkout_survives_a_foreign_collection_path(checkout, tree):
    place = Place(checkout.bin, tree, checkout.home, {"ANSIBLE_COLLECTIONS_PATH": "/nonexistent"})
    assert_all_phases(place.run("ansible-playbook", "playbooks/deploy_baseline.yml", "--list-tasks"))


@pytest.fixture(params=["checkout", "from_wheel", "from_editable", "from_tarball"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each form of the collection, by turns."""
    return request.getfixturevalue(request.param)


def test_playbooks_by_full_name(place):
    names = [f"{COLLECTION}.{name}" for name in PLAYBOOKS]
    assert_all_parsed(place.run("ansible-playbook", *names, "--syntax-check"))
    assert_all_phases(place.run("ansible-playbook", f"{COLLECTION}.deploy_baseline", "--list-tasks"))


def test_documentation_by_full_name(place):
    # ansible-doc ends with 0 for what it does not find: its text tells.
    text = place.run("ansible-doc", f"{COLLECTION}.llm_benchmark")
    assert text.lstrip("> ").startswith(f"MODULE {COLLECTION}.llm_benchmark")
    assert "workload" in text
    assert "baseline_workload" in place.run("ansible-doc", "--type", "role", f"{COLLECTION}.baseline")


def test_a_module_ad_hoc(place):
    arguments = json.dumps({"home": str(place.home / "state")})
    connection = ("--connection", "local", "--extra-vars", "ansible_python_interpreter={{ ansible_playbook_python }}")
    output = place.run("ansible", "localhost", *connection, "-m", f"{COLLECTION}.gpu_info", "-a", arguments)
    result = json.loads(output[output.index("=> ") + 3 :])
    assert isinstance(result["gpus"], list)
    assert result["changed"] is False


@pytest.mark.parametrize("form", ["from_wheel", "from_editable"])
def test_the_command_line_is_installed(form, request):
    place: Place = request.getfixturevalue(form)
    packaged = Path(place.run("groundstate", "inventory", "local").strip())
    assert (packaged / "hosts.yml").is_file()
    assert "groundstate 0." in place.run("groundstate", "--version")
    # It goes to the playbook of its own version: a host that is not there stops it before any task.
    assert "no hosts to target" in place.run("groundstate", "deploy", "--limit", "nowhere", code=1)


def test_an_editable_install_is_live(from_editable, tree):
    new = tree / "playbooks" / "made_just_now.yml"
    new.write_text("---\n- name: Say hello\n  hosts: localhost\n  gather_facts: false\n  tasks: []\n")
    try:
        assert "made_just_now" in from_editable.run("ansible-playbook", f"{COLLECTION}.made_just_now", "--syntax-check")
    finally:
        new.unlink()


@pytest.mark.slow
def test_the_main_job_from_the_wheel(from_wheel, tmp_path):
    """Full name and command line, in a home of their own: deploy, deploy again with nothing to do, tear down."""
    settings = {"GROUNDSTATE_HOME": str(tmp_path / "state"), "GROUNDSTATE_RECORDS": str(tmp_path / "records")}
    place = Place(from_wheel.bin, from_wheel.cwd, from_wheel.home, settings)
    local = place.run("groundstate", "inventory", "local").strip()
    try:
        first = place.run("ansible-playbook", f"{COLLECTION}.deploy_baseline", "-i", local)
        assert "failed=0" in first
        kept = sorted((tmp_path / "records").glob("*/*.json"))
        (record,) = (path for path in kept if path.name != "baseline.json")
        assert json.loads(record.read_text())["measurement"]
        second = place.run("groundstate", "deploy")
        assert "changed=0" in second, second
        assert sorted((tmp_path / "records").glob("*/*.json")) == kept
    finally:
        place.run("groundstate", "teardown")
    assert not [path for path in (tmp_path / "state").rglob("*") if path.is_file()]

"""A bundle made where there is an index, and installed where there is no network at all: a namespace without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build, wheelhouse
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.store import Store
from made_wheels import wheel
from ml_env_play import PLAY

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lock(tmp_path, monkeypatch) -> str:
    """A lock whose wheels lie in a folder, which stands for the index."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    text = wheel(tmp_path / "index", "engine", "1.0", "NAME = 'engine'\n")
    return text + wheel(tmp_path / "index", "helper_cpu", "2.1").split()[0] + "\n"  # one line without a hash


def bundled(tmp_path: Path, lock: str, **changes) -> wheelhouse.Made:
    order = wheelhouse.Order(
        str(tmp_path / "bundles"), "small", lock, sources=Sources(find_links=(str(tmp_path / "index"),)), **changes
    )
    return wheelhouse.ensure(order)


def without_network(*argv: str) -> subprocess.CompletedProcess:
    """Run a command in a network namespace of its own, in which not even the loopback interface is up."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    return subprocess.run(
        ["unshare", "--net", *argv], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_bundle_is_made_once_and_again_when_it_is_damaged(tmp_path, lock):
    first = bundled(tmp_path, lock)
    assert first.changed
    assert sorted(first.manifest.files) == [
        "requirements.txt",
        "wheels/engine-1.0-py3-none-any.whl",
        "wheels/helper_cpu-2.1-py3-none-any.whl",
    ]
    whole = Path(first.path).read_bytes()
    assert not bundled(tmp_path, lock).changed
    Path(first.path).write_bytes(whole.replace(b"engine", b"evilne"))
    assert bundled(tmp_path, lock).changed
    assert Path(first.path).read_bytes() == whole
    assert os.listdir(tmp_path / "bundles") == [os.path.basename(first.path)]


def test_a_wheel_that_only_the_hosts_python_needs_is_in_it(tmp_path, lock):
    own = sys.version_info[1]
    other = 12 if own != 12 else 13
    lock = lock.replace(" --hash", f' ; python_version == "3.{other}" --hash')
    made = bundled(tmp_path, lock, python=f"3.{other}")
    assert "wheels/engine-1.0-py3-none-any.whl" in made.manifest.files
    made = bundled(tmp_path, lock, python=f"3.{own}")
    assert sorted(made.manifest.files) == ["requirements.txt", "wheels/helper_cpu-2.1-py3-none-any.whl"]


def test_a_wheel_that_no_index_has_is_named_and_no_bundle_is_left(tmp_path, lock):
    with pytest.raises(wheelhouse.BundleError, match="not-there-at-all"):
        bundled(tmp_path, lock + "not-there-at-all==3.2.1\n")
    assert os.listdir(tmp_path / "bundles") == []


@pytest.fixture
def inventory(tmp_path, lock) -> Path:
    """A host of this machine whose environment comes from the small lock, in a folder of its own."""
    folder = tmp_path / "locks" / "small"
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(lock)
    (folder / "lock.yml").write_text("{platform: linux, imports: [engine], size_mib: 1}")
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "groundstate_home": str(tmp_path / "home"),
        "groundstate_records_dir": str(tmp_path / "records"),
        "ml_env_lock": str(folder),
    }
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({"groundstate": {"hosts": {"box": host}}}))
    return path


def command(playbook: Path, inventory: Path, *words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("ansible-playbook")), str(playbook), "-i", str(inventory), *words]


def play(inventory: Path, bundle: str) -> tuple[str, str]:
    """Run the role without a network; (output, its line of the recap)."""
    playbook = inventory.with_name("play.yml")
    playbook.write_text(PLAY)
    done = without_network(*command(playbook, inventory, "-e", f"ml_env_bundle={bundle}"))
    recap = re.search(r"^box +: (.*)$", done.stdout, re.MULTILINE)
    return done.stdout + done.stderr, recap.group(1) if recap else ""


@pytest.mark.slow(reason="a run of Ansible")
def test_the_playbook_makes_the_bundle_of_a_lock_of_one_s_own(tmp_path, inventory):
    declared = {
        "ml_env_index_url": "none",
        "ml_env_find_links": [str(tmp_path / "index")],
        "ml_env_bundle_folder": str(tmp_path / "bundles"),
    }
    words = command(ROOT / "playbooks" / "bundle.yml", inventory, "-e", json.dumps(declared))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (tmp_path / "bundles").iterdir()
    assert made.name.startswith("small-cpython-")
    assert made.name in done.stdout


@pytest.mark.slow  # four runs of Ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of its own needs root")
def test_the_role_installs_it_without_a_network_copies_it_once_and_recovers_a_damaged_copy(tmp_path, lock, inventory):
    made = bundled(tmp_path, lock)
    output, recap = play(inventory, made.path)
    assert "failed=0" in recap, output
    env = tmp_path / "home" / "envs" / "small"
    manifest = Store.manifest(str(env.resolve()))
    assert manifest["bundle"] == os.path.basename(made.path)
    assert manifest["distributions"] == {"engine": "1.0", "helper-cpu": "2.1"}
    said = subprocess.run(
        [env / "bin/python", "-c", "import engine; print(engine.NAME)"], capture_output=True, text=True
    )
    assert said.stdout.strip() == "engine"
    assert not (env / "bundle").exists()
    copy = tmp_path / "home" / "bundles" / os.path.basename(made.path)
    assert copy.read_bytes() == Path(made.path).read_bytes()

    stamp = copy.stat().st_mtime_ns
    output, recap = play(inventory, made.path)
    assert "changed=0" in recap, output
    assert "Copy the bundle" not in output
    assert copy.stat().st_mtime_ns == stamp

    # The environment is gone and the copy on the host is damaged: it is copied again, and nothing wrong is installed.
    build.remove(str(env), dry=False)
    copy.write_bytes(copy.read_bytes().replace(b"engine", b"evilne"))
    output, recap = play(inventory, made.path)
    assert "failed=0" in recap, output
    assert copy.read_bytes() == Path(made.path).read_bytes()
    assert (env / "bin" / "python").exists()


def spec(tmp_path: Path, lock: str, bundle: str) -> build.Spec:
    return build.Spec(
        path=str(tmp_path / "envs" / "small"),
        requirements=lock,
        python=sys.executable,
        bundle=bundle,
        imports=("engine",),
    )


def test_a_damaged_or_foreign_bundle_leaves_the_environment_in_use_alone(tmp_path, lock):
    made = bundled(tmp_path, lock)
    old = build.ensure(spec(tmp_path, lock, made.path))
    newer = wheel(tmp_path / "index", "engine", "2.0", "NAME = 'new'\n")
    with pytest.raises(build.EnvError, match="another lock"):
        build.ensure(spec(tmp_path, newer, made.path))
    second = bundled(tmp_path, newer)
    Path(second.path).write_bytes(
        Path(second.path).read_bytes().replace(b"engine/__init__.py,", b"engine/__evil__.py,")
    )
    with pytest.raises(build.EnvError, match=r"wheels/engine-2.0-py3-none-any.whl is damaged"):
        build.ensure(spec(tmp_path, newer, second.path))
    other = bundled(tmp_path, lock, python="3.9")
    with pytest.raises(build.EnvError, match="is for cpython-39, the environment for cpython-3"):
        build.ensure(spec(tmp_path, lock + wheel(tmp_path / "index", "more", "1"), other.path))
    store = Store(str(tmp_path / "envs" / "small"))
    assert store.folders() == [old.folder]
    assert store.current() == old.folder


def test_a_bundle_that_is_not_on_the_host_is_said(tmp_path, lock):
    missing = str(tmp_path / "nowhere.tar")
    with pytest.raises(build.EnvError, match=r"nowhere.tar is not on the host"):
        build.ensure(spec(tmp_path, lock, missing))
    assert build.ensure(spec(tmp_path, lock, missing), bundle_later=True).needs_bundle
    assert not (tmp_path / "envs").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
def test_a_full_disk_is_said_and_leaves_the_environment_in_use(tmp_path, lock):
    made = bundled(tmp_path, lock)
    big = wheel(tmp_path / "index", "engine", "2.0", "NAME = 'big'\n", {"weights.bin": os.urandom(8 << 20).hex()})
    second = bundled(tmp_path, big)
    small = tmp_path / "small"
    small.mkdir()
    code = (
        "import json, sys\n"
        "from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build\n"
        "path, locks = json.loads(sys.argv[1])\n"
        "for lock, bundle in locks:\n"
        "    try:\n"
        "        plan = build.ensure(build.Spec(path=path, requirements=lock, bundle=bundle, imports=('engine',)))\n"
        "        print(plan.action)\n"
        "    except build.EnvError as error:\n"
        "        print(error)\n"
        "import os\n"
        "print(os.readlink(path), sorted(os.listdir(os.path.dirname(path))))\n"
    )
    question = json.dumps([str(small / "env"), [[lock, made.path], [big, second.path]]])
    script = 'mount -t tmpfs -o size=24m none "$1" && exec "$2" -c "$3" "$4"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(small), sys.executable, code, question],
        env={**os.environ, "PYTHONPATH": str(ROOT / "playbooks" / "collections"), "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "build", done.stdout + done.stderr
    assert "No space left on device" in done.stdout or "MiB are free" in done.stdout
    assert "The disk is full" in done.stdout or "free some space" in done.stdout
    folder = lines[-1].split()[0]
    assert re.fullmatch(r"env\.[0-9a-f]{8}", folder)
    assert lines[-1].count("env.") == 3  # the link's target, its folder, the lock's file

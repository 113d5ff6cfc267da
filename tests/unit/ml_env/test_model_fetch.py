"""What gets the files of a model, and what is said when that fails."""

from __future__ import annotations

import os

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import model_fetch
from ansible_collections.groundstate.llm.plugins.module_utils.model_fetch import FetchError, Source


@pytest.fixture(autouse=True)
def rsync(monkeypatch):
    monkeypatch.setattr(model_fetch.shutil, "which", lambda _name: "/usr/bin/rsync")


def ends(path: str, source: str) -> list[str]:
    (argv,) = model_fetch.commands(Source(rsync_from=source), path, "")
    return argv[argv.index("--") + 1 :]


def test_a_folder_comes_from_a_folder():
    assert ends("/m/qwen", "gpu1:/models/qwen/") == ["gpu1:/models/qwen/", "/m/qwen/"]


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("gpu1:/models", "gpu1:/models/"),
        ("gpu1:/models/x.gguf", "gpu1:/models/./"),
        ("gpu1:x.gguf", "gpu1:./"),
        ("/x.gguf", "/./"),
        ("rsync://gpu1/models/x.gguf", "rsync://gpu1/models/./"),
    ],
)
def test_a_file_comes_from_the_folder_that_it_is_in(source, folder):
    assert ends("/m/x.gguf", source) == [folder, "/m/"]


def test_a_file_of_another_name_is_refused():
    with pytest.raises(FetchError, match="has another name"):
        ends("/m/x.gguf", "gpu1:/models/y.gguf")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("x.gguf", "x.gguf"),
        ("x[1].gguf", "x[[]1].gguf"),
        ("x-00002-of-00003.gguf", "x-[0-9][0-9][0-9][0-9][0-9]-of-00003.gguf"),
    ],
)
def test_of_a_folder_only_the_file_and_its_other_parts_are_fetched(tmp_path, name, pattern):
    (argv,) = model_fetch.commands(Source(rsync_from="gpu1:/models"), f"/m/{name}", "")
    assert [one for one in argv if one.startswith(("--in", "--ex"))] == [f"--include=/{pattern}", "--exclude=*"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (argv,) = model_fetch.commands(Source("some/model"), f"/m/{name}", str(tmp_path))
    assert argv[3:] == ["some/model", "", "/m", pattern]
    (argv,) = model_fetch.commands(Source("some/model", "main"), "/m/qwen", str(tmp_path))
    assert argv[3:] == ["some/model", "main", "/m/qwen"]


def test_a_folder_with_the_name_of_a_file_is_a_folder_when_something_is_in_it(tmp_path):
    folder = tmp_path / "x.gguf"
    folder.mkdir()
    assert model_fetch.place(str(folder)) == (str(tmp_path), "x.gguf")
    (folder / "x.gguf").touch()
    assert model_fetch.place(str(folder)) == (str(folder), "")


def test_a_link_in_the_way_of_a_folder_is_told(tmp_path):
    (tmp_path / "m").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FetchError, match="in the way"):
        model_fetch.fetch(Source(rsync_from="/x"), str(tmp_path / "m"), str(tmp_path / "home"), "", "", 5)
    assert os.path.islink(tmp_path / "m")


# What rsync 3.5 and OpenSSH really said, with folders and hosts shortened.
@pytest.mark.parametrize(
    ("said", "helps"),
    [
        (
            'exit status 11: rsync: [receiver] write failed on "/m/x": No space left on device (28)\n'
            "rsync error: error in file IO (code 11) at receiver.c(657) [receiver=3.5.0]",
            "There is no room for it at /m",
        ),
        (
            "exit status 255: ssh: Could not resolve hostname peer: Name or service not known\n"
            "rsync: connection unexpectedly closed (0 bytes received so far) [Receiver]",
            "check the login",
        ),
        (
            "exit status 255: root@peer: Permission denied (publickey,password).\n"
            "rsync: connection unexpectedly closed (0 bytes received so far) [Receiver]",
            "check the login",
        ),
        (
            'exit status 23: rsync: [sender] change_dir "/x" failed: No such file or directory (2)',
            "check the path on the peer",
        ),
        ('exit status 23: symlink has no referent: "/x/config.json"', "a link there leads nowhere"),
        (
            'exit status 23: rsync: [sender] send_files failed to open "/x/y": Permission denied (13)',
            "It may not be read there",
        ),
        (
            'exit status 23: rsync: [receiver] mkstemp "/m/.x.4Vq" failed: Permission denied (13)',
            "This user may not write to /m",
        ),
        (
            "exit status 127: /bin/bash: line 1: rsync: command not found\n"
            "rsync: connection unexpectedly closed (0 bytes received so far) [Receiver]",
            "rsync is not on the peer",
        ),
        (
            "exit status 127: /bin/sh: 1: rsync: not found\n"
            "rsync: connection unexpectedly closed (0 bytes received so far) [Receiver]",
            "rsync is not on the peer",
        ),
        ("exit status 30: [Receiver] io timeout after 120 seconds -- exiting", "the next run goes on"),
        (
            "exit status 255: Connection reset by 192.0.2.1 port 22\n"
            "rsync: connection unexpectedly closed (2097754 bytes received so far) [receiver]",
            "the next run goes on",
        ),
        ("not done after 5 s: ", "the next run goes on"),
        ("exit status 1: rsync: --what: unknown option", "rsync itself says why"),
    ],
)
def test_a_failure_of_rsync_is_told_apart(said, helps):
    assert helps in model_fetch._remedy(said, Source(rsync_from="peer:/x"), "/m")


def test_a_full_disk_is_told_of_the_hub_too():
    assert "no room" in model_fetch._remedy("OSError: [Errno 28] No space left on device", Source("a/b"), "/m")

"""What the command line makes of its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundstate import __version__, cli, content, playbooks

ROOT = Path(__file__).resolve().parents[3]


def arguments(*words: str) -> list[str]:
    """The arguments of ansible-playbook for a command line."""
    return playbooks.arguments(cli.parse(words))


def test_the_default_inventory_is_the_packaged_one_of_this_machine():
    inventory = arguments("deploy")
    assert inventory[0] == "--inventory"
    assert (Path(inventory[1]) / "hosts.yml").samefile(ROOT / "inventories" / "local" / "hosts.yml")
    assert len(inventory) == 2


def test_everything_reaches_ansible_playbook_as_it_was_typed():
    made = arguments(
        "bench", "-i", "a b/hosts.yml", "-i", "h1,", "-l", "h1:!h2", "-t", "x,y", "-e", '{"a": "b c"}', "-e", "@f.yml"
    )
    assert made == [
        *("--inventory", "a b/hosts.yml", "--inventory", "h1,", "--limit", "h1:!h2", "--tags", "x,y"),
        *("--extra-vars", '{"a": "b c"}', "--extra-vars", "@f.yml"),
    ]


def test_flags():
    assert arguments("reset", "-i", "x", "--check", "--diff", "-vv") == [
        *("--inventory", "x", "--check", "--diff", "-vv")
    ]


def test_every_command_has_its_playbook():
    assert {name for name, _what in playbooks.PLAYBOOKS.values()} <= {
        path.stem for path in ROOT.glob("playbooks/*.yml")
    }


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"groundstate {__version__}\n"


def test_inventory_prints_a_path(capsys):
    assert cli.main(["inventory", "local"]) == 0
    assert Path(capsys.readouterr().out.strip()).samefile(ROOT / "inventories" / "local")


def test_inventory_without_a_name_lists_them(capsys):
    assert cli.main(["inventory"]) == 0
    assert capsys.readouterr().out.split() == sorted(path.parent.name for path in ROOT.glob("inventories/*/hosts.yml"))


def test_an_unknown_inventory_is_one_clear_error(capsys):
    assert cli.main(["inventory", "moon"]) == 2
    message = capsys.readouterr().err
    assert "'moon'" in message
    assert "local" in message


def test_a_package_without_its_collection_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(content, "__file__", str(tmp_path / "lib" / "groundstate" / "content.py"))
    assert cli.main(["deploy"]) == 1
    assert "install the package again" in capsys.readouterr().err

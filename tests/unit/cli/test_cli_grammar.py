"""What the command line makes of its arguments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from groundstate import __version__, cli, content, playbooks, run

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


@pytest.mark.parametrize("command", ["deploy", "doctor"])
def test_the_help_of_a_command(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    # Newer versions of argparse name the value of an option once.
    said = re.sub(r"(-\w) ([A-Z_]+), (--[\w-]+) \2", r"\1, \3 \2", capsys.readouterr().out)
    # ... and where lines are broken then depends on the version.
    assert said.split() == (ROOT / "tests" / "data" / "cli" / f"{command}.help.txt").read_text().split()


def test_every_command_is_in_the_help_and_runs_something(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = capsys.readouterr().out
    for name in [*playbooks.PLAYBOOKS, "history", "import", "inventory", "lint-nccl"]:
        assert re.search(rf"^    {name}\s", said, re.MULTILINE), said
    assert callable(cli.parse(["doctor"]).run)


def test_what_follows_two_dashes_is_passed_on():
    assert cli.parse(["deploy", "-l", "a", "--", "--forks", "5", "-K"]).passed == ["--forks", "5", "-K"]
    assert cli.parse(["deploy"]).passed == []


def test_nothing_can_follow_where_no_playbook_is_run(capsys):
    with pytest.raises(SystemExit) as end:
        cli.parse(["inventory", "--", "--forks", "5"])
    assert end.value.code == 2
    assert "inventory runs no playbook" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], []),
        (["-K"], ["BECOME password: "]),
        (["--ask-vault-pass", "-k"], ["SSH password: ", "Vault password: "]),
        (["-vKk"], ["BECOME password: ", "SSH password: "]),
        (["--forks", "5", "--key-file", "-x"], []),
    ],
)
def test_passwords_are_asked_for_before_the_run(monkeypatch, words, asked):
    questions = []
    monkeypatch.setattr(run.getpass, "getpass", lambda question: questions.append(question) or "secret")
    answers = run.answers(words)
    assert sorted(questions) == asked
    assert list(answers.values()) == ["secret"] * len(asked)
    for question in asked:  # what ansible-playbook asks in turn
        assert any(re.search(pattern, f"\n{question}", re.MULTILINE) for pattern in answers)


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

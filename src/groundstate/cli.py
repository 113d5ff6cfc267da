"""The command line `groundstate`: runs the playbooks of the collection through ansible-runner."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import __version__, calc, history
from .content import COLLECTION, collections_root, inventories
from .interruption import Interruption

PLAYBOOKS = {
    "deploy": ("deploy_baseline", "bring the hosts to the declared state, start the server, measure, compare"),
    "reset": ("reset_gpus", "free the GPUs of what is left of earlier servers"),
    "bench": ("benchmark", "measure the server that runs"),
    "verify": ("verify", "check that what was declared is in force, and change nothing"),
    "teardown": ("teardown", "stop the server and remove what was made on the hosts; records stay"),
}
INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="groundstate",
        description="Bring GPU machines to a known state, serve an LLM, measure what can be trusted.",
    )
    top.add_argument("--version", action="version", version=f"groundstate {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (playbook, what) in PLAYBOOKS.items():
        command = commands.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]} (the playbook {COLLECTION}.{playbook})."
        )
        command.add_argument(
            "-i", "--inventory", action="append", help="an inventory (default: the packaged one of this machine)"
        )
        command.add_argument("-l", "--limit", help="only these hosts")
        command.add_argument("-t", "--tags", action="append", help="only these phases")
        command.add_argument("-e", "--extra-vars", action="append", metavar="VAR", help="name=value, JSON or @file")
        command.add_argument("--check", action="store_true", help="change nothing, say what would change")
        command.add_argument("--diff", action="store_true", help="show the differences")
        command.add_argument("-v", "--verbose", action="count", default=0, help="more output (-vvv: much more)")
    history.add_commands(commands)
    calc.add_commands(commands)
    inventory = commands.add_parser("inventory", help="print where a packaged inventory lies, or which there are")
    inventory.add_argument("name", nargs="?")
    lint = commands.add_parser("lint-nccl", help="judge NCCL profiles as NCCL would read them, without a host")
    lint.add_argument("file", type=Path, help="profiles by name, an inventory's variables, or an nccl.conf")
    return top


def playbook_arguments(options: argparse.Namespace) -> list[str]:
    """What ansible-playbook is told besides the playbook."""
    arguments: list[str] = []
    for inventory in options.inventory or [str(inventories()["local"])]:
        arguments += ["--inventory", inventory]
    if options.limit:
        arguments += ["--limit", options.limit]
    for tags in options.tags or []:
        arguments += ["--tags", tags]
    for variables in options.extra_vars or []:
        arguments += ["--extra-vars", variables]
    arguments += [flag for flag, wanted in (("--check", options.check), ("--diff", options.diff)) if wanted]
    if options.verbose:
        arguments.append("-" + "v" * options.verbose)
    return arguments


def environment() -> dict[str, str]:
    """What is added to the environment of ansible-playbook."""
    inherited = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or "~/.ansible/collections:/usr/share/ansible/collections"
    added = {
        # First, so that a collection installed by ansible-galaxy at another time cannot stand in for this version.
        "ANSIBLE_COLLECTIONS_PATH": f"{collections_root()}:{inherited}",
        # ansible-runner starts ansible-playbook from PATH, where a virtual environment that is not activated isn't.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    if not sys.stdout.isatty():
        # ansible-runner gives ansible-playbook a terminal of its own and asks for colours.
        added |= {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    return added


def run_playbook(options: argparse.Namespace) -> int:
    """Run the playbook of a command in the current folder; its exit code."""
    import ansible_runner  # here: half a second that --help and inventory need not take

    playbook, _what = PLAYBOOKS[options.command]
    interruption = Interruption()
    interruption.install()
    # ansible-runner keeps what it was given and every event in this folder, in plain text: it must not stay.
    with tempfile.TemporaryDirectory(prefix="groundstate-") as private:
        run = ansible_runner.run(
            private_data_dir=private,
            project_dir=os.getcwd(),
            playbook=f"{COLLECTION}.{playbook}",
            cmdline=shlex.join(playbook_arguments(options)),
            envvars=environment(),
            cancel_callback=interruption,
            # How often it asks that, in seconds (its own default is 5).
            settings={"pexpect_timeout": 0.2},
        )
    if interruption.count:
        print(
            "groundstate: interrupted. The same command picks up from here; 'groundstate reset' ends what a host may "
            "still be doing.",
            file=sys.stderr,
        )
        return INTERRUPTED
    return 1 if run.rc is None else int(run.rc)


def show_inventory(name: str | None) -> int:
    """Print the path of a packaged inventory, or the names of all."""
    known = inventories()
    if name is None:
        print(*known, sep="\n")
    elif name in known:
        print(known[name])
    else:
        print(f"groundstate: there is no inventory {name!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "inventory":
            return show_inventory(options.name)
        if options.command == "lint-nccl":
            from . import nccl  # here: YAML, which the other commands need not load

            return nccl.lint(options.file)
        if options.command in ("history", "import"):
            return history.run(options)
        if options.command == "calc":
            return calc.run(options)
        return run_playbook(options)
    except OSError as error:
        print(f"groundstate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED

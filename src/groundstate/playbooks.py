"""The commands that run a playbook of the collection: their grammar, and what ansible-playbook is told."""

from __future__ import annotations

import argparse
from typing import Any

from .content import COLLECTION, inventories

# command -> (playbook, what it does)
PLAYBOOKS = {
    "deploy": ("deploy_baseline", "bring the hosts to the declared state, start the server, measure, compare"),
    "reset": ("reset_gpus", "free the GPUs of what is left of earlier servers"),
    "bench": ("benchmark", "measure the server that runs"),
    "verify": ("verify", "check that what was declared is in force, and change nothing"),
    "compare": ("compare", "compare declarations on the same host, started in turn, until it is decided"),
    "speculation": ("speculation", "decide whether speculative decoding pays on these hosts"),
    "rollout": ("rollout", "roll the declaration out: canaries first, then batches, each behind a gate"),
    "doctor": ("doctor", "say what is wrong with the hosts and how to fix it, and change nothing"),
    "bundle": ("bundle", "make the bundle of the declared environment, for hosts without a network"),
    "provision": ("provision", "make containers with GPUs on Proxmox VE nodes"),
    "teardown": ("teardown", "stop the server and remove what was made on the hosts; records stay"),
}
# Exit codes that a command has in place of ansible-playbook's.
EXIT_CODES = {"doctor": {2: 1}}


def add_commands(commands: Any) -> None:
    """Add them to the subparsers of the command line."""
    for name, (playbook, what) in PLAYBOOKS.items():
        command = commands.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]} (the playbook {COLLECTION}.{playbook}).",
            usage=f"groundstate {name} [OPTION ...] [-- OPTION-OF-ANSIBLE-PLAYBOOK ...]",
            epilog="What follows -- goes to ansible-playbook as it is, such as: -- --forks 20 --ask-become-pass",
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
        command.add_argument("--json", action="store_true", help="events as JSON, one object a line (docs/cli.md)")
        command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from . import run  # here: half a second that --help and the other commands need not take

    playbook, _what = PLAYBOOKS[options.command]
    code = run.playbook(
        run.Request(
            command=options.command,
            playbook=f"{COLLECTION}.{playbook}",
            arguments=[*arguments(options), *options.passed],
            # Durations are compared among runs that do the same.
            kind=" ".join([playbook, *(["--check"] if options.check else []), *sorted(options.tags or [])]),
            check=options.check,
            json=options.json,
        )
    )
    return EXIT_CODES.get(options.command, {}).get(code, code)


def arguments(options: argparse.Namespace) -> list[str]:
    """What ansible-playbook is told besides the playbook."""
    told: list[str] = []
    for inventory in options.inventory or [str(inventories()["local"])]:
        told += ["--inventory", inventory]
    if options.limit:
        told += ["--limit", options.limit]
    for tags in options.tags or []:
        told += ["--tags", tags]
    for variables in options.extra_vars or []:
        told += ["--extra-vars", variables]
    told += [flag for flag, wanted in (("--check", options.check), ("--diff", options.diff)) if wanted]
    if options.verbose:
        told.append("-" + "v" * options.verbose)
    return told

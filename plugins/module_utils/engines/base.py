# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an engine has to tell: one adapter class each, data as class attributes, text in and text out.

An adapter never touches the machine. ``declaration`` is always a complete one, as
``module_utils/declaration.py`` returns it (every field present).
"""

from __future__ import annotations

import ast
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..multi_host import is_head
from ..procfs import Process


@dataclass(frozen=True)
class Phase:
    """A step of an engine's start: it begins with the first log line that the pattern finds.

    ``progress`` (optional) finds "done" and "all" (two groups, numbers) in later lines of the phase.
    """

    name: str
    pattern: str
    progress: str = ""


@dataclass(frozen=True)
class Request:
    """An HTTP request to a server: body None means GET. ``timeout_s`` is the patience that makes sense for it."""

    path: str
    body: dict[str, Any] | None = None
    timeout_s: float = 10.0


@dataclass(frozen=True)
class Gone:
    """A flag (without dashes) that newer versions no longer have.

    ``new`` is what to declare instead ("" when nothing is), ``why`` adds to it; ``since`` is a version that is known to
    lack the flag: an older one may lack it too.
    """

    old: str
    since: str
    new: str = ""
    why: str = ""


class Engine:
    """Base of all adapters; the defaults are those of an OpenAI-compatible server of which nothing more is known."""

    name = ""
    #: What people call it, for messages.
    title = ""
    #: Whether it has an all-reduce of its own, which the flag disable-custom-all-reduce turns off.
    own_all_reduce = False

    #: (pattern, part) pairs, first match wins; part is "server", "worker" or "helper". Matched against the
    #: command line or title of a process, from its beginning.
    parts: tuple[tuple[str, str], ...] = ()

    #: Phases in the order in which a start passes them. A phase may come again (a draft model is loaded too).
    phases: tuple[Phase, ...] = ()
    #: Whether a log line belongs to the process whose lines tell the phases (others repeat them out of step).
    leader_pattern = ""
    #: The line with which it ends all of itself because one of its processes has failed: the exit status then says
    #: nothing of why. "" when it writes none.
    ends_itself_pattern = ""
    #: Group 1 is a local time in the format ``stamp_format``, group 2 (optional) a fraction such as ".123"; "" when
    #: lines carry none.
    stamp_pattern = ""
    stamp_format = "%Y-%m-%d %H:%M:%S"
    #: Seconds by which a line may have been written later than its stamp says.
    stamp_resolution_s = 1.0

    #: Seconds between SIGTERM and SIGKILL.
    term_grace_s = 15.0

    health_path = "/health"
    health_timeout_s = 5.0
    models_path = "/v1/models"
    completions_path = "/v1/completions"
    chat_path = "/v1/chat/completions"
    #: Prometheus text, or None when the engine has none.
    metrics_path: str | None = None
    #: Our name -> the engine's metric. Names: running_requests, queued_requests, accept_length (gauge),
    #: drafts (cycles that drafted), draft_tokens, accepted_tokens, accepted_at (one for each ``position``) and
    #: verify_calls (counters; accept length = 1 + accepted_tokens / drafts), kv_cache_use (gauge, share), and the
    #: counters prompt_tokens, cached_tokens and generated_tokens.
    metrics: ClassVar[Mapping[str, str]] = {}
    #: Resolved arguments and state as JSON, or None.
    info_path: str | None = None
    #: {"version": ...} as JSON, or None.
    version_path: str | None = None
    #: Distribution in the environment whose version is the engine's.
    distribution = ""
    #: Distributions with the kernels that were compiled for it: without code for a GPU in one of them it cannot run.
    kernel_distributions: tuple[str, ...] = ()
    #: Finds the line of the log with the arguments as the engine resolved them; group 1 is "name=value, ..." in the
    #: notation of Python. "" when it prints none.
    resolved_pattern = ""
    #: Resolved arguments that differ from start to start of the same server.
    resolved_passing: frozenset[str] = frozenset()
    #: NCCL variables that it sets in its own processes when they are unset there: not a drift from the declaration.
    sets_nccl: frozenset[str] = frozenset()
    #: POST here empties the prefix cache; None when there is no such request.
    flush_cache_path: str | None = None
    #: Request field that carries the text of ``tokenize_path``.
    tokenize_path: str | None = None
    tokenize_field = "prompt"

    #: Whether one server can run on several hosts.
    spans_hosts = False
    #: Flags that are gone, so that their new names can be told.
    gone: tuple[Gone, ...] = ()
    #: Log lines in which the engine says that it runs with another value than it was given or than usual; group 1 is
    #: what is told of them.
    adjustments: tuple[str, ...] = ()
    #: In these, numbers of the moment, which differ from start to start of one declaration: told as "N".
    adjustment_passing: str = ""
    #: Flags that are other names of an argument: name (with underscores) -> the engine's own name for it.
    same_argument: ClassVar[Mapping[str, str]] = {}

    supports_ignore_eos = False
    #: False also where the engine accepts the field and silently does nothing with it.
    supports_min_tokens = False
    #: Request fields that make a streamed answer tell of its speculation, see :meth:`told_speculation`.
    speculation_fields: ClassVar[Mapping[str, Any]] = {}
    #: Variable that gives the server its API key; None: it has only an argument, which everybody can see.
    api_key_variable: str | None = None

    # --- launch ----------------------------------------------------------------------------------

    def problems(self, declaration: dict[str, Any]) -> list[str]:
        """What this engine cannot do of the declaration, as sentences; [] when all is well."""
        found = []
        if declaration["multi_host"] and not self.spans_hosts:
            found.append(f"multi_host: {self.title} runs on one host only; use sglang, vllm or generic")
        if declaration["api_key"] and self.api_key_variable is None:
            found.append(
                f"api_key: {self.title} takes its key only on the command line, where every user of the host can "
                "read it; leave api_key empty and put a proxy that checks the key in front"
            )
        return found

    def warnings(self, declaration: dict[str, Any]) -> list[str]:
        """Parts of the declaration that this engine accepts and that have no effect."""
        return []

    def argv(self, declaration: dict[str, Any], env_path: str, port: int) -> list[str]:
        """The command line. Secrets never are in it."""
        raise NotImplementedError

    def parser_words(self, env_path: str) -> list[str]:
        """The engine's own Python program up to where its flags begin (path, or -m and module); [] when it has none."""
        return []

    def environment(self, declaration: dict[str, Any]) -> dict[str, str]:
        """Variables that this engine needs, without secrets and without those of ``declaration['env']``."""
        found = {
            # Process titles would overwrite /proc/PID/environ, and with it the evidence of the proof.
            "SPT_NOENV": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if declaration["gpus"] != "all":
            found["CUDA_VISIBLE_DEVICES"] = ",".join(str(one) for one in declaration["gpus"])
            # CUDA counts the fastest GPU first unless told otherwise; nvidia-smi, and our users, by PCI address.
            found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if is_local_path(declaration["model"]):
            found["HF_HUB_OFFLINE"] = "1"
        return found

    def secrets(self, declaration: dict[str, Any]) -> dict[str, str]:
        """Variables with secrets: the API key under the engine's name, and ``secret_env``."""
        found = dict(declaration["secret_env"])
        if declaration["api_key"] and self.api_key_variable:
            found[self.api_key_variable] = declaration["api_key"]
        return found

    def served_name(self, declaration: dict[str, Any]) -> str:
        """The model's name in requests and in the model list."""
        return declaration["served_model_name"] or declaration["model"]

    # --- processes -------------------------------------------------------------------------------

    def part(self, cmdline: str) -> str | None:
        """Which part of this engine a command line or title looks like: server, worker, helper or None."""
        for pattern, part in self.parts:
            if re.match(pattern, cmdline):
                return part
        return None

    def serves(self, declaration: dict[str, Any]) -> bool:
        """Whether this server answers requests; a node of a multi-host server other than its head does not."""
        return is_head(declaration)

    def expected_workers(self, declaration: dict[str, Any]) -> int:
        """Number of processes that :meth:`find_workers` has to find in a complete server; 0: not known."""
        return 0

    def worker_rank(self, title: str, declaration: dict[str, Any]) -> int | None:
        """The tensor-parallel rank of the process with this title (or command line); None: not a worker."""
        return None

    def uses_nccl(self, declaration: dict[str, Any]) -> bool:
        """Whether its workers talk to each other through NCCL, so that NCCL's log is evidence."""
        return False

    def find_workers(self, tree: Iterable[Process], declaration: dict[str, Any]) -> dict[int, Process]:
        """Rank -> process, from the processes of one server. Zombies do not count."""
        found: dict[int, Process] = {}
        for item in tree:
            rank = None if item.zombie else self.worker_rank(item.cmdline, declaration)
            if rank is not None:
                found.setdefault(rank, item)
        return found

    # --- log -------------------------------------------------------------------------------------

    def phase_of(self, line: str) -> str | None:
        """Name of the phase that begins with this log line, or None."""
        if self.leader_pattern and not re.search(self.leader_pattern, line):
            return None
        for phase in self.phases:
            if re.search(phase.pattern, line):
                return phase.name
        return None

    def progress_of(self, name: str, line: str) -> tuple[int, int] | None:
        """(done, all) of a phase as told by this log line, or None."""
        for phase in self.phases:
            found = re.search(phase.progress, line) if phase.name == name and phase.progress else None
            if found:
                return int(found.group(1)), int(found.group(2))
        return None

    def ended_itself(self, lines: Iterable[str]) -> bool:
        """Whether a log says that the engine ended itself because one of its processes has failed."""
        return bool(self.ends_itself_pattern) and any(re.search(self.ends_itself_pattern, line) for line in lines)

    def line_time(self, line: str) -> float | None:
        """When the line was written, in seconds since 1970, if it says so."""
        found = re.search(self.stamp_pattern, line) if self.stamp_pattern else None
        if not found:
            return None
        try:
            whole = time.mktime(time.strptime(found.group(1), self.stamp_format))
            return whole + (float(found.group(2)) if found.re.groups > 1 else 0.0)
        except (ValueError, OverflowError):
            return None

    def resolved_arguments(self, line: str) -> dict[str, str] | None:
        """Argument -> value in Python's notation, from the line that tells them; None for any other line."""
        text = line[:_LONGEST_ARGUMENTS].rstrip()
        found = re.search(self.resolved_pattern, text) if self.resolved_pattern else None
        if not found:
            return None
        # Where an object lies in memory is another place with every start.
        told = _keywords(re.sub(r" at 0x[0-9a-f]+", "", found.group(1)))
        return {name: value for name, value in told.items() if name not in self.resolved_passing}

    def resolved(self, info: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        """Argument (with underscores) -> the value with which the engine runs, as far as it tells.

        ``info`` is the reply of ``info_path``, ``model`` the entry of the model list. ``longest_request`` is the number
        of tokens that one request can have.
        """
        return {"longest_request": model.get("max_model_len")}

    # --- requests --------------------------------------------------------------------------------

    def health_probe(self) -> Request:
        """The request whose 200 says that the engine itself thinks it is well."""
        return Request(self.health_path, timeout_s=self.health_timeout_s)

    def completion_probe(self, declaration: dict[str, Any], tokens: int = 2) -> Request:
        """The smallest request that proves that tokens are generated."""
        body = {"model": self.served_name(declaration), "prompt": "1 2 3 4", "max_tokens": tokens, "temperature": 0.0}
        body.update(self.benchmark_extras(tokens))
        # The first request of a start may compile kernels; giving up on it would leave it behind, running.
        return Request(self.completions_path, body, timeout_s=120.0)

    def benchmark_extras(self, output_tokens: int) -> dict[str, Any]:
        """Request fields that make every answer have exactly this many tokens, as far as the engine can."""
        extras: dict[str, Any] = {}
        if self.supports_ignore_eos:
            extras["ignore_eos"] = True
        if self.supports_min_tokens:
            extras["min_tokens"] = output_tokens
        return extras

    def told_speculation(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """What an event of a stream that carries no token tells of its request's speculation; None: nothing.

        The keys are those of :func:`..speculation_window.window`.
        """
        return None

    def draft_depth(self, speculation: dict[str, Any], arguments: dict[str, Any]) -> int | None:
        """How many drafts a cycle can accept, as declared or as the engine resolved its arguments; None: unknown."""
        return whole(speculation.get("draft_tokens")) or whole(speculation.get("num_steps"))

    def tokenize_request(self, text: str, model: str) -> Request | None:
        """The request that turns text into tokens; the reply's ``tokens`` is the list. None: the engine has none."""
        if self.tokenize_path is None:
            return None
        return Request(self.tokenize_path, {self.tokenize_field: text, "model": model})


_LONGEST_ARGUMENTS = 64 * 1024  # characters of a line that tells them; SGLang's has some 6000
_JOINED = 30  # pieces that one value may consist of


def _keywords(text: str) -> dict[str, str]:
    """ "a=1, b=f(x=2, y=3)" as name -> value, each in Python's own notation where it has one."""
    pieces = re.split(r", (?=\w+ ?=)", text)
    found: dict[str, str] = {}
    position = 0
    while position < len(pieces):
        name, equals, value = (one.strip() for one in pieces[position].partition("="))
        used = 1
        if equals:
            for count in range(1, _JOINED):
                joined = ", ".join([value, *pieces[position + 1 : position + count]])
                try:
                    value, used = ast.unparse(ast.parse(joined, mode="eval")), count
                    break
                except (SyntaxError, ValueError, RecursionError, MemoryError):
                    continue
            found[name] = value
        position += used
    return found


# --- helpers of the adapters ---------------------------------------------------------------------


def is_local_path(model: str) -> bool:
    """Whether a model is named by a path, and not by the name of a repository."""
    return model.startswith(("/", "./", "../", "~"))


def whole(value: Any) -> int | None:
    """A whole number above 0, also as text; None for anything else."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found > 0 else None


def flag(name: str, value: Any) -> list[str]:
    """Arguments for one flag; the name comes without dashes.

    True gives the bare flag; False and None leave it out; a list gives the flag once, followed by its values.
    """
    dashed = name if name.startswith("-") else ("-" if len(name) == 1 else "--") + name
    if value is None or value is False:
        return []
    if value is True:
        return [dashed]
    if isinstance(value, (list, tuple)):
        return [dashed, *(str(one) for one in value)] if value else []
    return [dashed, str(value)]


def extra(declaration: dict[str, Any]) -> list[str]:
    """Arguments of ``extra_args``, in the order in which they were declared."""
    found: list[str] = []
    for name, value in declaration["extra_args"].items():
        found.extend(flag(name, value))
    return found


def program(declaration: dict[str, Any], default: list[str]) -> list[str]:
    """What is run: ``command`` of the declaration in place of the engine's own program."""
    return list(declaration["command"]) or default


def python_of(env_path: str) -> str:
    """The interpreter of an environment, as a path that starts in it (a venv is recognised by that path)."""
    return os.path.join(env_path, "bin", "python")


def global_rank(title: str, declaration: dict[str, Any]) -> int:
    """The rank in a title such as ``..._PP1_TP3``: the ranks of a pipeline stage follow each other."""
    stage = re.search(r"_PP(\d+)", title)
    place = re.search(r"_TP(\d+)", title)
    tensor = int(declaration.get("tensor_parallel", 1))
    return (int(stage.group(1)) if stage else 0) * tensor + (int(place.group(1)) if place else 0)


#: A Python interpreter with its options, as it stands at the beginning of a command line.
PYTHON = r"(?:\S*/)?python[\d.]*(?:\s+-[a-zA-Z]\b(?<!-m)(?<!-c))*\s+"

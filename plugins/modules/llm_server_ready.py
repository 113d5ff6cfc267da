#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Wait until a launched LLM server really serves, or say at once why it does not."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_server_ready
short_description: Wait until an LLM server really serves
version_added: 0.1.0
description:
  - A server is ready when its process and its declared number of workers live, its health request succeeds, its model
    list names the model, and a completion of our own comes back with tokens. None of these alone is enough.
  - While it waits, the phase of the start is shown on the controller.
  - It fails as soon as the server or a worker dies, with the exit status in words, what the host knows (kills for want
    of memory, the size of /dev/shm, the owner of the port), the end of the log, and cause and remedy where the failure
    is a known one.
  - It also fails when the server stalls, or when a phase takes longer than a model of its size explains. The server is
    then left running, to be looked into.
  - A server that was found ready before is only asked again.
author: Groundstate contributors (@groundstate)
extends_documentation_fragment:
  - groundstate.llm.server
options:
  timeout_s:
    description:
      - How long to wait at most, in seconds.
      - V(0) is 600 s and 10 s more for each GiB of the model on disk, or three times what the last start took.
    type: float
    default: 0
  stall_s:
    description:
      - After this many seconds without a log line, disk reads, processor time or a change of GPU memory, the server is
        said to have stalled. V(0) switches this off.
    type: float
    default: 180
  phase_timeouts:
    description:
      - Seconds that a phase may take, by its name, such as C(loading weights). V(0) is without a limit.
      - The others have limits that grow with the size of the model on disk.
    type: dict
    default: {}
  slice_s:
    description:
      - The wait is made of calls of this many seconds, so that news can be shown and a lost connection costs little.
      - V(0) waits in one call.
    type: float
    default: 15
attributes:
  check_mode:
    description: Can run in check_mode and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Will return details on what has changed (or possibly needs changing in check_mode), when in diff mode.
    support: none
"""

EXAMPLES = r"""
- name: Wait for the server that llm_server launched
  groundstate.llm.llm_server_ready:
    home: /var/lib/groundstate
    server: local
    timeout_s: 300
  register: ready
"""

RETURN = r"""
ready:
  description: Whether the server serves.
  returned: success
  type: bool
  sample: true
already_ready:
  description: Whether an earlier call had found this start ready; times and phases are then those of that call.
  returned: success
  type: bool
  sample: false
watched_from_s:
  description:
    - When the first look was taken, in seconds since the launch.
    - A server that was ready before that is reported as ready at the first look.
  returned: success
  type: float
  sample: 0.8
elapsed_s:
  description: Seconds from the launch until it was found ready.
  returned: success
  type: float
  sample: 1.62
was_s:
  description: The same for the last ready start with this declaration; null when there was none.
  returned: success
  type: float
  sample: 1.7
timeout_s:
  description: How long this call was prepared to wait, in seconds.
  returned: success
  type: float
  sample: 601.3
phases:
  description:
    - Phases of the start, in their order, with begin (C(at_s)) and duration (C(seconds)), both in seconds, and the
      bytes that were read from disks (C(disk_bytes); null where that may not be known).
    - C(was_s) is the duration in the last ready start with this declaration, C(note) a marked difference in words.
  returned: success
  type: list
  elements: dict
  sample:
    - {name: loading model, at_s: 0.4, seconds: 214.0, disk_bytes: 61203283968, was_s: 96.0, note: "loading model 214 s,
       was 96 s: page cache cold (57.0 GiB read from disk, was 0.0)"}
    - {name: ready, at_s: 214.4, seconds: null, disk_bytes: null, was_s: null, note: ""}
phase:
  description: The phase that it is in.
  returned: success
  type: str
  sample: ready
progress:
  description: How far the phase is, such as V(3/8), where the log tells.
  returned: success
  type: str
  sample: ""
probes:
  description: First success of each probe, in seconds since the launch.
  returned: success
  type: dict
  sample: {process: 0.4, workers: 0.5, health: 1.3, models: 1.3, completion: 1.6}
waiting_for:
  description: What is missing, empty when it is ready.
  returned: success
  type: str
  sample: ""
log_tail:
  description: The last lines of the log; empty when it is ready.
  returned: always
  type: list
  elements: str
  sample: []
diagnosis:
  description: Known cause and remedy, empty when the failure is unknown.
  returned: when the server or a worker died, or the server does not get on
  type: dict
  sample: {name: out of GPU memory, cause: a GPU has not enough free memory, remedy: lower memory_fraction, line: ""}
exit:
  description: How the process ended, in words.
  returned: when the server or a worker died
  type: str
  sample: "killed by SIGKILL (exit status 137): by somebody, or by the kernel for want of memory"
evidence:
  description: What the host (or NCCL) knows about the failure, in sentences.
  returned: when the server or a worker died, or the server does not get on
  type: list
  elements: str
  sample: ["/dev/shm has 64 MiB, 0 MiB of them free"]
left:
  description: Processes of the server that live on after its death; the next start or reset ends them.
  returned: when the server or a worker died
  type: list
  elements: dict
  sample: [{pid: 4712, cmdline: "VLLM::EngineCore"}]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import control, readiness, servers
from ..module_utils.phase_times import LIMITS
from ..module_utils.waiting import Waiter


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "server": {"type": "str", "required": True},
            "timeout_s": {"type": "float", "default": 0},
            "stall_s": {"type": "float", "default": 180},
            "phase_timeouts": {"type": "dict", "default": {}},
            "slice_s": {"type": "float", "default": 15},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        servers.check_name(params["server"])
        readiness.check_seconds(**{name: params[name] for name in ("timeout_s", "stall_s", "slice_s")})
        record = servers.load(params["home"], params["server"])
        if module.check_mode and (record is None or not record.running()):
            module.exit_json(
                changed=False,
                skipped=True,
                msg=f"check mode: no server {params['server']!r} runs, so there is nothing to wait for",
            )
        waiter = Waiter(
            params["home"],
            launched(record, params["server"]),
            write=not module.check_mode,
            stall_s=params["stall_s"],
            limits=seconds(params["phase_timeouts"]),
        )
        result = waiter.run(params["timeout_s"], params["slice_s"])
    except control.ControlError as error:
        module.fail_json(msg=str(error), **error.facts)
    except ValueError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['home']}: {error.strerror or error}")
    module.exit_json(changed=False, **result)


def seconds(limits: dict) -> dict[str, float]:
    """The limits of phases as numbers. Raises ValueError, naming the known phases, for an unknown one."""
    unknown = sorted(set(limits) - set(LIMITS))
    if unknown:
        raise ValueError(f"phase_timeouts: unknown phase {', '.join(unknown)}; there are {', '.join(sorted(LIMITS))}")
    try:
        found = {name: float(value) for name, value in limits.items()}
    except (TypeError, ValueError):
        raise ValueError(f"phase_timeouts: {limits} are not all seconds (numbers)") from None
    readiness.check_seconds(**{f"phase_timeouts: {name}": value for name, value in found.items()})
    return found


def launched(record: servers.ServerRecord | None, name: str) -> servers.ServerRecord:
    """The record, when there is a start to wait for. Raises ValueError."""
    what = {
        None: "was never launched on this host",
        "stopped": "is stopped",
        "failed": "died at its launch",
        "launching": "was being launched by a run that was interrupted",
    }.get(record.state if record else None)
    if record is None or what:
        raise ValueError(f"server {name!r} {what}; run llm_server (role llm_server) first")
    return record


if __name__ == "__main__":
    main()

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
  - It fails as soon as the server or a worker dies, with the exit status in words, the end of the log, and cause and
    remedy where the failure is a known one.
  - A server that was found ready before is only asked again.
author: Groundstate contributors (@groundstate)
options:
  home:
    description: Folder that holds all that is written on the host.
    type: path
    required: true
  server:
    description: Name of the server.
    type: str
    required: true
  timeout_s:
    description: How long to wait at most, in seconds.
    type: float
    default: 600
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
phases:
  description: Phases of the start, in their order, with begin (C(at_s)) and duration (C(seconds)).
  returned: success
  type: list
  elements: dict
  sample: [{name: starting, at_s: 0.0, seconds: 0.4}, {name: ready, at_s: 1.62, seconds: null}]
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
  returned: when the server died
  type: dict
  sample: {name: out of GPU memory, cause: a GPU has not enough free memory, remedy: lower memory_fraction, line: ""}
exit:
  description: How the process ended, in words.
  returned: when the server died
  type: str
  sample: "killed by SIGKILL (exit status 137): by somebody, or by the kernel for want of memory"
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import control, servers
from ..module_utils.waiting import Waiter


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "server": {"type": "str", "required": True},
            "timeout_s": {"type": "float", "default": 600},
            "slice_s": {"type": "float", "default": 15},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        servers.check_name(params["server"])
        record = servers.load(params["home"], params["server"])
        if module.check_mode and (record is None or not record.running()):
            module.exit_json(
                changed=False,
                skipped=True,
                msg=f"check mode: no server {params['server']!r} runs, so there is nothing to wait for",
            )
        waiter = Waiter(params["home"], launched(record, params["server"]), write=not module.check_mode)
        result = waiter.run(params["timeout_s"], params["slice_s"])
    except control.ControlError as error:
        module.fail_json(msg=str(error), **error.facts)
    except ValueError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['home']}: {error.strerror or error}")
    module.exit_json(changed=False, **result)


def launched(record: servers.ServerRecord | None, name: str) -> servers.ServerRecord:
    """The record, when there is a start to wait for. Raises ValueError."""
    what = {None: "was never launched on this host", "stopped": "is stopped"}.get(record.state if record else None)
    if record is not None and record.state == "launching":
        what = "was being launched by a run that was interrupted"
    if record is None or what:
        raise ValueError(f"server {name!r} {what}; run llm_server (role llm_server) first")
    return record


if __name__ == "__main__":
    main()

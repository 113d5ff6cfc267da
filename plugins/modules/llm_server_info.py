#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a launched LLM server is doing now, and whether it hangs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_server_info
short_description: Health, load and workers of a launched LLM server, and what it made of its arguments
version_added: 0.1.0
description:
  - Looks at the processes, asks the server, and holds the arguments with which it runs against those declared.
  - A server hangs when its health request is answered and a completion of our own is not, while no token is made for
    anybody else; or, without a completion, when requests run and no token is made.
  - Changes nothing. A server that was never launched is reported as V(absent).
author: Groundstate contributors (@groundstate)
extends_documentation_fragment:
  - groundstate.llm.server
options:
  completion:
    description:
      - Whether the server is asked for a completion of two tokens.
      - Without it, a hang is only seen while requests run, and not whether a new request would be served.
    type: bool
    default: true
  timeout_s:
    description: How long that completion may take, in seconds.
    type: float
    default: 30
  watch_s:
    description: Without a completion, how long the counters are watched while requests run, in seconds.
    type: float
    default: 3
  require_healthy:
    description: Whether to fail when the server is anything but V(healthy) or V(busy).
    type: bool
    default: false
attributes:
  check_mode:
    description: Changes nothing in any mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
"""

EXAMPLES = r"""
- name: Look at the server
  groundstate.llm.llm_server_info:
    home: /var/lib/groundstate
    server: kimi
  register: kimi

- name: Show its load
  ansible.builtin.debug:
    msg: "{{ kimi.health }}, {{ kimi.requests.running }} running, accept length {{ kimi.accept_length }}"
"""

RETURN = r"""
health:
  description:
    - V(healthy) serves; V(busy) serves others and did not get to our completion; V(starting) has not been ready yet;
      V(hung), V(sick) (answers with an error), V(unreachable) and V(incomplete) (lost a worker) run and do not serve;
      V(dead) has ended by itself, V(stopped) by us; V(absent) was never launched.
  returned: always
  type: str
  sample: healthy
why:
  description: What makes it anything but healthy.
  returned: always
  type: list
  elements: str
  sample: ["health answers 200, and a completion of our own: no reply within 30 s; no token was made meanwhile"]
state:
  description: What was last done with it.
  returned: always
  type: str
  choices: [absent, launching, launched, stopped]
  sample: launched
server:
  description: Name of the server.
  returned: when it was launched
  type: str
  sample: kimi
engine:
  description: Name of the engine.
  returned: when it was launched
  type: str
  sample: sglang
version:
  description: Version of the engine, empty when it is not known.
  returned: when it was launched
  type: str
  sample: 0.5.23
model:
  description: The declared model.
  returned: when it was launched
  type: str
  sample: /shared/kimi-k2.5-int4
served_model_name:
  description: The model's name in the API.
  returned: when it was launched
  type: str
  sample: kimi
base_url:
  description: Where the server is reached from its own host.
  returned: when it was launched
  type: str
  sample: http://127.0.0.1:8000
pid:
  description: Process number of the last launch.
  returned: when it was launched
  type: int
  sample: 4711
start_id:
  description: Identity of the last launch.
  returned: when it was launched
  type: str
  sample: 6a1f0c9d4b7e4d0fb3f5c3a2b1908d7e
uptime_s:
  description: Seconds since the launch, null when it does not run.
  returned: always
  type: float
  sample: 86400.5
workers_expected:
  description: How many workers a complete server has here, 0 when that is not known.
  returned: when it was launched
  type: int
  sample: 8
workers:
  description:
    - The workers that live, by rank. C(gpus) are indexes as nvidia-smi counts; C(memory_mib) is memory of the process
      in RAM, C(gpu_memory_mib) that on its GPUs, null where the driver does not tell (in most containers).
  returned: when it was launched
  type: list
  elements: dict
  sample:
    - rank: 0
      pid: 4712
      title: sglang::scheduler_TP0
      state: S
      memory_mib: 5120
      gpus: [0]
      gpu_uuids: [GPU-6a1f0c9d]
      gpu_memory_mib: 86016
requests:
  description: Requests that are C(running) and C(queued); null where the engine does not tell.
  returned: when it was launched
  type: dict
  sample: {running: 1, queued: 0}
accept_length:
  description: Tokens per verified draft of speculative decoding, null without.
  returned: when it was launched
  type: float
  sample: 2.4
kv_cache_use:
  description: Share of the KV cache that is in use, null where the engine does not tell.
  returned: when it was launched
  type: float
  sample: 0.12
metrics:
  description: The engine's counters and gauges that have a name of ours.
  returned: when it was launched
  type: dict
  sample: {running_requests: 1.0, generated_tokens: 584.0}
probes:
  description: HTTP status (0 is none), error and seconds of the requests C(health), C(models) and C(completion).
  returned: when it was launched
  type: dict
  sample: {health: {status: 200, error: "", seconds: 0.002}}
notes:
  description: RV(differences) and RV(adjustments) as sentences.
  returned: always
  type: list
  elements: str
  sample: ["--mem-fraction-static: declared 0.88, it runs with 0.85"]
summary:
  description: The result as lines for a person.
  returned: always
  type: list
  elements: str
  sample: ["engine    sglang 0.5.23, up 86400 s"]
differences:
  description: Arguments with which the engine does not run as declared.
  returned: always
  type: list
  elements: dict
  sample: [{what: context_length, declared: "131072", resolved: 90112 tokens at most}]
adjustments:
  description: What the engine says in its log of values that it changed by itself.
  returned: always
  type: list
  elements: str
  sample: [Max running requests is reset to 48 for speculative decoding.]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import readiness, server_info, servers


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "server": {"type": "str", "required": True},
            "completion": {"type": "bool", "default": True},
            "timeout_s": {"type": "float", "default": 30.0},
            "watch_s": {"type": "float", "default": 3.0},
            "require_healthy": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        servers.check_name(params["server"])
        readiness.check_seconds(timeout_s=params["timeout_s"], watch_s=params["watch_s"])
        found = server_info.gather(
            params["home"], params["server"], params["completion"], params["timeout_s"], params["watch_s"]
        )
    except ValueError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['home']}: {error.strerror or error}")
    if params["require_healthy"] and found["health"] not in ("healthy", "busy"):
        reasons = "; ".join(found["why"]) or "see the log of the server"
        module.fail_json(msg=f"server {params['server']!r} is {found['health']}: {reasons}", **found)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()

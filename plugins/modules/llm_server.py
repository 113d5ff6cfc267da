#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Launch, keep and stop a declared LLM server."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_server
short_description: Launch, keep and stop an LLM server as declared
version_added: 0.1.0
description:
  - Launches one instance of an inference engine so that it outlives Ansible, and records what was launched with what.
  - The same declaration again changes nothing while the server and its workers live. A server of which a worker has
    died is launched anew, and so is one whose declaration changed, whatever of it (arguments, variables, NCCL profile,
    packages of the environment).
  - It returns as soon as the process runs. Whether it serves is for M(groundstate.llm.llm_server_ready) to tell.
  - A run that was killed half-way is completed by the next one.
author: Groundstate contributors (@groundstate)
options:
  home:
    description: Folder that holds all that is written on the host.
    type: path
    required: true
  state:
    description:
      - V(started) launches the server unless it runs as declared.
      - V(restarted) launches it anew in any case.
      - V(stopped) ends all its processes and keeps its folder with log and record.
      - V(absent) ends them and removes the folder.
    type: str
    choices: [started, restarted, stopped, absent]
    default: started
  server:
    description: Name of the server, for O(state=stopped) and O(state=absent) without a declaration.
    type: str
  env_path:
    description: Environment (a Python venv) that the engine is installed in.
    type: path
    default: ""
  nccl_variables:
    description:
      - What M(groundstate.llm.nccl_profile) returned as C(environment). Without it, it is read from what that module
        wrote, which in check mode is what it wrote last time.
    type: dict
  nccl_log:
    description:
      - Lets NCCL write a log for each worker of a GPU engine, into the folder C(nccl) of the server, as evidence for
        M(groundstate.llm.nccl_proof). Not done when the profile or O(declaration.env) sets C(NCCL_DEBUG) or
        C(NCCL_DEBUG_FILE).
      - V(start) has the variables, versions, communicators and channels, written once per start; V(tuning) also has
        the algorithms, a line for each collective, which disturbs what is measured.
      - A change restarts the server.
    type: str
    choices: [start, tuning, 'off']
    default: 'off'
  launcher:
    description:
      - V(process) launches a detached process in its own session, with a supervisor that records how it ended.
      - V(systemd) launches a unit C(groundstate-NAME.service); it needs root and a running systemd.
      - V(auto) is V(systemd) where that is possible, else V(process).
    type: str
    choices: [auto, systemd, process]
    default: auto
  keep_logs:
    description: How many logs of earlier starts are kept beside that of this one.
    type: int
    default: 5
  declaration:
    description: The server as it should be. Required for O(state=started) and O(state=restarted).
    type: dict
    suboptions:
      name:
        description: Name of the server on its host, of letters, digits, C(-) and C(_).
        type: str
        required: true
      engine:
        description: What runs the model.
        type: str
        required: true
        choices: [generic, llama_cpp, sglang, vllm]
      model:
        description: Path of the model, or its name for an engine that fetches models itself.
        type: str
        required: true
      served_model_name:
        description: The model's name in the API. Empty is the value of O(declaration.model).
        type: str
        default: ""
      host:
        description: Address that the server listens on.
        type: str
        default: 127.0.0.1
      port:
        description: TCP port. V(0) is a free one, which is kept across restarts.
        type: int
        default: 0
      port_from:
        description: Where the search for a free port begins.
        type: int
        default: 18000
      gpus:
        description: V(all), or a list of indexes or UUIDs. An empty list hides all GPUs from the server.
        type: raw
        default: all
      tensor_parallel:
        description: Number of GPUs (or processes) that share each layer.
        type: int
        default: 1
      pipeline_parallel:
        description: Number of stages that the layers are cut into; each has O(declaration.tensor_parallel) GPUs.
        type: int
        default: 1
      multi_host:
        description: The hosts that run this server together; empty is this host alone.
        type: dict
        default: {}
        suboptions:
          hosts:
            description: Names of the hosts in the order of their ranks. The first is the head and has the API.
            type: list
            elements: str
          this:
            description: The name of this host among them.
            type: str
          head:
            description: Address of the head as the others reach it. By default its name.
            type: str
          port:
            description: Port of the head on which they meet, besides that of the API. By default 29500.
            type: int
      threads:
        description: Threads that compute. V(0) is the engine's default; for llama_cpp cores less one.
        type: int
        default: 0
      context_length:
        description: Longest request with its answer, in tokens. V(0) is the engine's default.
        type: int
        default: 0
      memory_fraction:
        description: Share of GPU memory that the engine takes. V(0) is the engine's default.
        type: float
        default: 0.0
      trust_remote_code:
        description: Whether code that comes with the model may run.
        type: bool
        default: false
      speculation:
        description: Speculative decoding; empty is none.
        type: dict
        default: {}
        suboptions:
          algorithm:
            description: Name of the method, such as V(EAGLE3) or V(ngram).
            type: str
          draft_model:
            description: Path of the draft model.
            type: str
          num_steps:
            description: Depth of the draft.
            type: int
          topk:
            description: Branches at each step of the draft (SGLang).
            type: int
          draft_tokens:
            description: Tokens that are verified at a time.
            type: int
      extra_args:
        description:
          - More arguments of the engine, flag without dashes to value.
          - V(true) gives a bare flag, V(false) leaves it out, a list gives several values.
        type: dict
        default: {}
      env:
        description: Variables of the server's environment.
        type: dict
        default: {}
      secret_env:
        description: The same for secrets; they are in no output and no record.
        type: dict
        default: {}
      api_key:
        description: Key that clients have to send. It is given to the server through its environment.
        type: str
        default: ""
      command:
        description:
          - Program and its first arguments in place of the engine's own.
          - For V(generic) the whole command; C({port}), C({host}), C({model}), C({served_model_name}) and C({env}) in
            it are replaced, with O(declaration.multi_host) also C({nodes}), C({rank}), C({head}) and C({head_port}).
        type: list
        elements: str
        default: []
attributes:
  check_mode:
    description: Can run in check_mode and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Will return details on what has changed (or possibly needs changing in check_mode), when in diff mode.
    support: full
"""

EXAMPLES = r"""
- name: Serve a small model with llama.cpp on a free port
  groundstate.llm.llm_server:
    home: /var/lib/groundstate
    env_path: /var/lib/groundstate/envs/llama_cpp
    declaration:
      name: local
      engine: llama_cpp
      model: /var/lib/groundstate/envs/llama_cpp/models/smollm2-135m.gguf
      served_model_name: smollm2
  register: server

- name: Serve a large one with SGLang on eight GPUs
  groundstate.llm.llm_server:
    home: /var/lib/groundstate
    env_path: /root/ml-env
    declaration:
      name: kimi
      engine: sglang
      model: /shared/kimi-k2.5-int4
      trust_remote_code: true
      tensor_parallel: 8
      memory_fraction: 0.88
      port: 8000
      extra_args:
        disable-custom-all-reduce: true
      env:
        SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN: 1

- name: Stop it and leave nothing behind
  groundstate.llm.llm_server:
    home: /var/lib/groundstate
    server: kimi
    state: absent
"""

RETURN = r"""
action:
  description: What was done (in check mode, what would be).
  returned: success
  type: str
  sample: started
  choices: [started, restarted, adopted, unchanged, stopped, removed, absent]
why:
  description: Reasons for it, each a sentence; empty when nothing had to be done.
  returned: success
  type: list
  elements: str
  sample: ["argument --context-length: 2048 -> 4096"]
pid:
  description: Process number of the server, 0 when none runs.
  returned: success
  type: int
  sample: 4711
start_id:
  description: Identity of this launch, new with each.
  returned: success
  type: str
  sample: 6a1f0c9d4b7e4d0fb3f5c3a2b1908d7e
base_url:
  description: Where the server is reached from its own host.
  returned: success
  type: str
  sample: http://127.0.0.1:18000
port:
  description: TCP port of the server.
  returned: success
  type: int
  sample: 18000
declaration_hash:
  description: Hash of everything that has to be the same for the server to be the declared one.
  returned: success
  type: str
  sample: 0e4d1c...
log:
  description: Path of the server's log.
  returned: success
  type: str
  sample: /var/lib/groundstate/servers/local/server.log
argv:
  description: The command line.
  returned: success
  type: list
  elements: str
  sample: [/var/lib/groundstate/envs/llama_cpp/bin/groundstate-llama-cpp, --model, model.gguf]
ended:
  description: What became of each process that had to end.
  returned: success
  type: list
  elements: dict
  sample: [{pid: 4711, start: 123456, cmdline: python server, how: exited on TERM, gone: true}]
removed:
  description: Files of shared memory that its ended processes had left and that were removed.
  returned: success
  type: list
  elements: str
  sample: [/dev/shm/psm_1815efec, /dev/shm/sem.loky-26706-zfdbmugj]
left_files:
  description: Files of that kind that stay, with C(path) and C(why).
  returned: success
  type: list
  elements: dict
  sample: [{path: /dev/shm/psm_1815efec, why: in use by process 811}]
ready:
  description:
    - What M(groundstate.llm.llm_server_ready) would return, which then need not be asked.
  returned: when nothing had to be done and the server, once ready, still serves
  type: dict
  sample: {ready: true, already_ready: true, elapsed_s: 3.9}
arguments:
  description:
    - Whether the command line was held against the installed engine's own parser, and why not where it was not.
    - An argument that the parser does not know, or a value that it would refuse, is an error before anything is
      changed; one without effect or on its way out is a warning.
  returned: when the server is launched
  type: dict
  sample: {checked: true, why: "", version: 0.5.23}
log_tail:
  description: The last lines of the log.
  returned: when the server died at once
  type: list
  elements: str
  sample: ["error: unrecognized arguments: --bogus"]
diagnosis:
  description: Known cause and remedy of the failure, empty when it is unknown.
  returned: when the server died at once
  type: dict
  sample: {name: unknown argument, cause: the engine does not know the argument --bogus, remedy: remove it, line: ""}
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import (
    control,
    declaration,
    launcher,
    limits,
    nccl_log,
    obstacles,
    plan,
    server_env,
    servers,
)
from ..module_utils.engines import get_engine
from ..module_utils.venvs import patches
from ..module_utils.waiting import Waiter

#: How long a server that was ready may take to show that it still is.
STILL_READY_S = 10.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "state": {
                "type": "str",
                "choices": ["started", "restarted", "stopped", "absent"],
                "default": "started",
            },
            "server": {"type": "str"},
            "env_path": {"type": "path", "default": ""},
            "nccl_variables": {"type": "dict"},
            "nccl_log": {"type": "str", "choices": ["start", "tuning", "off"], "default": "off"},
            "launcher": {"type": "str", "choices": ["auto", "systemd", "process"], "default": "auto"},
            "keep_logs": {"type": "int", "default": launcher.KEEP_LOGS},
            "declaration": {"type": "dict", "options": declaration.OPTIONS},
        },
        required_if=[("state", "started", ("declaration",)), ("state", "restarted", ("declaration",))],
        required_one_of=[("server", "declaration")],
        supports_check_mode=True,
    )
    try:
        run(module)
    except control.ControlError as error:
        module.fail_json(msg=str(error), **error.facts)
    except (launcher.LaunchError, ValueError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['home']}: {error.strerror or error}")


def run(module: AnsibleModule) -> None:
    params = module.params
    declared = declaration.complete(params["declaration"]) if params["declaration"] else None
    name = declared["name"] if declared else params["server"]
    servers.check_name(name)
    if params["server"] and params["server"] != name:
        raise ValueError(f"server is {params['server']!r} and declaration.name is {name!r}; give one of them")
    if params["state"] in ("stopped", "absent"):
        down(module, name)
    wrong = declaration.problems(declared)
    if wrong:
        raise ValueError(f"llm_server of server {name!r}: " + "; ".join(wrong))
    for text in get_engine(declared["engine"]).warnings(declared):
        module.warn(text)
    if module.check_mode:
        up(module, declared)
    with control.locked(params["home"]):
        up(module, declared)


def down(module: AnsibleModule, name: str) -> None:
    """States stopped and absent."""
    home, absent = module.params["home"], module.params["state"] == "absent"
    if not os.path.isdir(servers.servers_folder(home)):
        leave(module, False, "absent", [], None)
    if absent:
        control.check_ours(home, name)
    situation = servers.look(home, name)
    there = absent and os.path.lexists(servers.folder(home, name))
    why = [f"{len(situation.tree)} processes ran"] if situation.tree else []
    # What a server leaves that has died by itself is nobody else's to remove.
    left = [] if situation.tree else [one for one in control.left_behind(home, situation.record) if not one.stays]
    why += [f"{one.path} was left by its last start" for one in left]
    action = "removed" if there else "stopped" if why else "absent" if absent else "unchanged"
    changed = bool(why) or there
    shown = {"before": shown_text(situation.record) if changed else "", "after": ""}
    stopped = control.Stopped([], left)
    if changed and not module.check_mode:
        with control.locked(home):
            stopped = control.stop(home, name, situation)
            if absent:
                control.remove(home, name)
    record = None if absent else situation.record
    leave(module, changed, action, why, record, diff=shown, pid=0, **stopped.as_dict())


def up(module: AnsibleModule, declared: dict) -> None:
    """States started and restarted."""
    params = module.params
    home, name = params["home"], declared["name"]
    situation = servers.look(home, name)
    record = situation.record
    path = params["env_path"]
    env_hash = patches.identity(path) if path else ""
    base = server_env.base_environment(path, os.environ, (declared["command"] or [""])[0])
    nccl = nccl_variables(module, declared, servers.folder(home, name))
    chosen = launcher.choose(params["launcher"])

    def planned(port: int) -> plan.Plan:
        return plan.make_plan(declared, path, port, base, nccl, env_hash, chosen)

    wanted = planned(obstacles.choose_port(home, declared, situation))
    why = control.reasons(home, situation, wanted)
    if not why and params["state"] == "restarted":
        why = ["a restart was asked for"]
    if not why:
        ready = still_ready(home, record)
        leave(module, False, "unchanged", [], record, **({"ready": ready} if ready else {}))
    if adopt(module, situation, wanted):
        return
    wrong, warnings, parser = obstacles.check_arguments(home, wanted, keep=not module.check_mode)
    for text in warnings + obstacles.gpu_warnings(home, declared):
        module.warn(text)
    arguments = {"checked": not parser.why, "why": parser.why, "version": parser.version}
    found = obstacles.obstacles(home, wanted, situation) + wrong
    action = "restarted" if situation.alive else "started"
    diff = {"before": shown_text(record), "after": shown_text(wanted)}
    if module.check_mode:
        # The environment and the model may be made by tasks that only pretended to run.
        for text in found:
            module.warn(f"it could not be launched as things are now: {text}")
        leave(module, True, action, why, plan.record_of(wanted, "", "", ""), diff=diff, arguments=arguments)
    if found:
        raise ValueError(f"server {name!r} cannot be launched: " + "; ".join(found))
    stopped = control.stop(home, name, situation)
    made = control.launch(home, declared, planned, params["keep_logs"])
    for text in limits.warnings(made.pid, declared):
        module.warn(text)
    leave(module, True, action, why, made, diff=diff, arguments=arguments, **stopped.as_dict())


def still_ready(home: str, record: servers.ServerRecord) -> dict:
    """What llm_server_ready would say of a server that was ready and still is; {} where that has to be waited for."""
    waiter = Waiter(home, record, write=False)
    try:
        return waiter.run(STILL_READY_S, 0.0) if waiter.was_ready else {}
    except control.ControlError:
        return {}  # llm_server_ready tells why


def nccl_variables(module: AnsibleModule, declared: dict, folder: str) -> dict[str, str]:
    """The profile's variables, and those that make NCCL write a log for the proof.

    In check mode, where the file may be out of date, the profile's are those given, else those in the file.
    """
    given = module.params["nccl_variables"]
    if given is not None and module.check_mode:
        profile = {key: str(value) for key, value in given.items()}
    else:
        profile = server_env.read(os.path.join(folder, "nccl.env"))
    level = module.params["nccl_log"] if get_engine(declared["engine"]).uses_nccl(declared) else "off"
    wanted = nccl_log.variables(folder, level)
    return {**nccl_log.beside({**profile, **declared["env"]}, wanted), **profile}


def adopt(module: AnsibleModule, situation: servers.Situation, wanted: plan.Plan) -> bool:
    """Take over what an interrupted run had launched, if it is what is wanted now."""
    record = situation.record
    if record is None or record.state != "launching" or module.params["state"] == "restarted":
        return False
    found = launcher.find_start(record.start_id, situation.tree)
    if found is None or record.declaration_hash != wanted.hash:
        return False
    if not module.check_mode:
        record = control.recorded(module.params["home"], record, found)
    leave(module, True, "adopted", ["an interrupted run had launched it and had not recorded its process"], record)
    return True


def shown_text(of: servers.ServerRecord | plan.Plan | None) -> str:
    """Command line and environment for a diff, without secrets."""
    if of is None or not of.argv:
        return ""
    shown = of.shown if isinstance(of, plan.Plan) else of.environment
    return "".join(f"{word}\n" for word in of.argv) + server_env.render(shown)


def leave(
    module: AnsibleModule,
    changed: bool,
    action: str,
    why: list[str],
    record: servers.ServerRecord | None,
    **more: object,
) -> None:
    """End the module with what it promises to return."""
    record = record or servers.ServerRecord(name="")
    result = {
        "pid": record.pid,
        "start_id": record.start_id,
        "base_url": record.base_url,
        "port": record.port,
        "declaration_hash": record.declaration_hash,
        "log": record.log,
        "argv": record.argv,
        "ended": [],
        "removed": [],
        "left_files": [],
    }
    result.update(more)
    module.exit_json(changed=changed, action=action, why=why, **result)


if __name__ == "__main__":
    main()

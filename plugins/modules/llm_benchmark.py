#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Measure an LLM server: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_benchmark
short_description: Measure a running LLM server with a declared workload
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Sends a declared workload to a running server with an OpenAI-compatible API and returns rates and latencies with
    intervals over the repeats.
  - Tokens are counted by the server's C(usage), time stamps are taken when bytes arrive, failed or short answers are
    counted and never averaged in, and the client measures itself. C(docs/benchmark.md) defines every number.
  - For a server of ours (O(server)) the result is kept in C(<home>/servers/<server>/measurement.json). While its
    identity (start of the server, its declaration, workload, the fingerprint) is the same, it is returned again instead
    of measured again.
options:
  home:
    description: Folder that holds the state on this host. Needed with O(server).
    type: path
  server:
    description: Name of a server that M(groundstate.llm.llm_server) started on this host.
    type: str
  base_url:
    description:
      - URL of a server that is not ours, as V(http://host:8000). It is measured every time, since nothing tells
        whether it is still the same.
    type: str
  model:
    description: Model name in the requests. Needed with O(base_url), known from the record with O(server).
    type: str
  engine:
    description: What serves at O(base_url); decides which request fields make answers exactly as long as asked.
    type: str
    default: generic
    choices: [generic, llama_cpp, sglang, vllm]
  api_key:
    description: Key of the server, sent as bearer token. For a server of ours it is known where it was declared.
    type: str
  validate_certs:
    description: Whether the certificate of an https server is checked.
    type: bool
    default: true
  ca_path:
    description: File with the certificates to check against, instead of those of the system.
    type: path
  workload:
    description: What is sent.
    type: dict
    default: {}
    suboptions:
      prompt_tokens:
        description: Length of every prompt, in tokens of the model.
        type: int
        default: 128
      output_tokens:
        description: Length of every answer. A shorter one is an error (C(short)).
        type: int
        default: 128
      concurrency:
        description: Numbers of simultaneous streams; each is a level of its own, the first gives the headline.
        type: list
        elements: int
        default: [1]
      requests:
        description: Requests for each stream in each repeat, one after the other.
        type: int
        default: 1
      repeats:
        description: Repeats of each level; the intervals are over them.
        type: int
        default: 5
      warmup_requests:
        description: Requests before the measurement at least. V(0) leaves warm-up out.
        type: int
        default: 3
      warmup_cap_s:
        description:
          - Warm-up goes on until three successive waves agree within C(steady_share), or until this many seconds have
            passed; then the result says that it was not steady.
        type: float
        default: 20.0
      steady_share:
        description: How far, as a share, three successive warm-up waves of a steady server may differ.
        type: float
        default: 0.01
      seed:
        description: Seed of the synthetic prompts.
        type: int
        default: 0
      temperature:
        description: Sampling temperature.
        type: float
        default: 0.0
      api:
        description: Route that is used.
        type: str
        default: completions
        choices: [completions, chat]
      request_timeout_s:
        description: Seconds for a whole request.
        type: float
        default: 300.0
      max_error_share:
        description: Share of requests of a level that may fail before the measurement fails.
        type: float
        default: 0.0
  fingerprint:
    description:
      - Take the fingerprint of the host (see M(groundstate.llm.host_fingerprint)) before and after the measurement. Its
        hash is part of the identity. Only for a server of ours.
    type: bool
    default: true
  env_path:
    description: Environment of the engine, for the fingerprint. Empty for the one that the server was started from.
    type: path
    default: ""
  verify_files:
    description: Compare the files of the environment with what its packages installed, for the fingerprint.
    type: bool
    default: true
  remeasure:
    description: Measure even when the last measurement still speaks for this server.
    type: bool
    default: false
  local_fact:
    description: File for the short form, as V(/etc/ansible/facts.d/groundstate.fact). Empty for none.
    type: path
    default: ""
attributes:
  check_mode:
    description: Validates the workload and the server (ready, key, model, context) without load.
    support: full
  diff_mode:
    description: Shows the headline before and after.
    support: full
"""

EXAMPLES = r"""
- name: Measure one stream
  groundstate.llm.llm_benchmark:
    home: /var/lib/groundstate
    server: main
  register: result

- name: Measure at three concurrencies, exactly 512 tokens each way
  groundstate.llm.llm_benchmark:
    home: /var/lib/groundstate
    server: main
    workload:
      prompt_tokens: 512
      output_tokens: 512
      concurrency: [1, 16, 64]
    local_fact: /etc/ansible/facts.d/groundstate.fact

- name: Measure a server that is not ours
  groundstate.llm.llm_benchmark:
    base_url: http://10.0.0.5:8000
    model: Kimi-K2.5
    engine: sglang
    api_key: "{{ vault_key }}"
"""

RETURN = r"""
measurement:
  description: The whole result, schema 1 (see docs/benchmark.md). Not there in check mode without an earlier one.
  returned: when something was measured or reused
  type: dict
  contains:
    id: {description: Name of the measurement., type: str, returned: always}
    identity: {description: Hash of what it speaks for., type: str, returned: always}
    headline:
      description: Decode rate of one stream at the first concurrency, with its interval.
      type: dict
      returned: always
      sample: {metric: decode_tok_s, unit: tok/s, value: 34.1, low: 33.2, high: 35.0, n: 5, confidence: 0.95}
    levels: {description: Results by concurrency., type: list, elements: dict, returned: always}
    warmup: {description: "Requests, seconds, whether steady.", type: dict, returned: always}
    client: {description: "Self-check of the client: event loop lag, CPU share, limited.", type: dict, returned: always}
    requests: {description: One row for each request., type: list, elements: dict, returned: always}
fingerprints:
  description: C(before) the measurement, and C(after) it (empty when the last measurement was returned again).
  returned: when something was measured or reused
  type: dict
reused:
  description: Whether this is the last measurement, which still speaks for the server.
  returned: always
  type: bool
would_measure:
  description: Whether a run without check mode would measure.
  returned: in check mode
  type: bool
ansible_facts:
  description: The short form as fact C(groundstate).
  returned: when something was measured or reused
  type: dict
  contains:
    groundstate:
      description: "Value, interval, unit, model, engine, ids and times of the measurement."
      type: dict
      returned: always
"""

import fcntl
import os
import threading
import time
from contextlib import contextmanager, suppress

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import endpoint, files, load, measurement, server_env, servers, workload
from ..module_utils.engines import get_engine
from ..module_utils.fingerprint import take
from ..module_utils.http_client import Client

PROGRESS_INTERVAL_S = 1.0
LOG_LINES = 15


def arguments():
    """The argument specification; the defaults are those of module_utils/workload.py."""
    known = workload.DEFAULTS
    return {
        "home": {"type": "path"},
        "server": {"type": "str"},
        "base_url": {"type": "str"},
        "model": {"type": "str"},
        "engine": {"type": "str", "default": "generic", "choices": ["generic", "llama_cpp", "sglang", "vllm"]},
        "api_key": {"type": "str", "no_log": True},
        "validate_certs": {"type": "bool", "default": True},
        "ca_path": {"type": "path"},
        "workload": {
            "type": "dict",
            "default": {},
            "options": {
                "prompt_tokens": {"type": "int", "default": known["prompt_tokens"], "no_log": False},
                "output_tokens": {"type": "int", "default": known["output_tokens"], "no_log": False},
                "concurrency": {"type": "list", "elements": "int", "default": known["concurrency"]},
                "requests": {"type": "int", "default": known["requests"]},
                "repeats": {"type": "int", "default": known["repeats"]},
                "warmup_requests": {"type": "int", "default": known["warmup_requests"]},
                "warmup_cap_s": {"type": "float", "default": known["warmup_cap_s"]},
                "steady_share": {"type": "float", "default": known["steady_share"]},
                "seed": {"type": "int", "default": known["seed"]},
                "temperature": {"type": "float", "default": known["temperature"]},
                "api": {"type": "str", "default": known["api"], "choices": list(workload.APIS)},
                "request_timeout_s": {"type": "float", "default": known["request_timeout_s"]},
                "max_error_share": {"type": "float", "default": known["max_error_share"]},
            },
        },
        "fingerprint": {"type": "bool", "default": True},
        "env_path": {"type": "path", "default": ""},
        "verify_files": {"type": "bool", "default": True},
        "remeasure": {"type": "bool", "default": False},
        "local_fact": {"type": "path", "default": ""},
    }


class Benchmark:
    """One call of the module."""

    def __init__(self, module):
        self.module = module
        self.params = module.params
        self.load = workload.resolve(self.params["workload"])
        self.record = self._record() if self.params["server"] else None
        self.engine = get_engine(self.record.engine if self.record else self.params["engine"])
        self.model = self.params["model"] or (self.record.served_model_name if self.record else "")
        self.base_url = self.record.base_url if self.record else self.params["base_url"]
        self.folder = servers.folder(self.params["home"], self.record.name) if self.record else None
        start_id, declared = (self.record.start_id, self.record.declaration_hash) if self.record else ("", "")
        self.before = self.take_fingerprint()
        self.identity = measurement.identity(start_id, declared, self.load, self.before.get("state_hash", ""))
        self.progress = load.Progress()

    def take_fingerprint(self):
        """The state that can explain the result; {} when it is not asked for or the server is not ours."""
        if self.record is None or not self.params["fingerprint"]:
            return {}
        params = self.params
        return take.take(params["home"], self.record.name, params["env_path"], params["verify_files"])

    def _record(self):
        """The record of a running server, or the end of the module with what is missing."""
        home, name = self.params["home"], self.params["server"]
        servers.check_name(name)
        record = servers.load(home, name)
        problem = None
        if record is None:
            problem = f"there is no server {name!r} under {home}; start it first (llm_server)"
        elif not record.running():
            problem = f"server {name!r} does not run (its log: {record.log or 'none'}); start it first (llm_server)"
        if problem is None:
            return record
        if self.module.check_mode:
            self.module.exit_json(
                changed=False, reused=False, would_measure=False, msg=f"{problem}; then it would be measured"
            )
        self.module.fail_json(msg=problem)

    # --- the last measurement ----------------------------------------------------------------------

    @property
    def path(self):
        return os.path.join(self.folder, "measurement.json") if self.folder else None

    def last(self):
        """The kept measurement; None when there is none or it is damaged (then it is measured again)."""
        if self.path is None:
            return None
        try:
            found = files.read_json(self.path)
        except ValueError as error:
            self.module.warn(f"{error}; measuring again")
            return None
        return found if measurement.usable(found) else None

    # --- measuring ---------------------------------------------------------------------------------

    def client(self):
        key = self.params["api_key"] or self._own_key()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return Client(self.base_url, headers, self.params["validate_certs"], self.params["ca_path"])

    def _own_key(self):
        """The key that our server was started with, from its environment file (0600)."""
        variable = self.engine.api_key_variable
        if self.folder is None or not variable:
            return ""
        try:
            key = server_env.read(os.path.join(self.folder, "environment")).get(variable, "")
        except OSError:
            return ""
        if key:
            self.module.no_log_values.add(key)
        return key

    def guard(self):
        """A reason as soon as our server is gone."""
        if self.record is None or self.record.running():
            return None
        return f"server {self.record.name!r} (pid {self.record.pid}) ended while it was measured"

    def check(self):
        """Fit to be measured, without load."""

        async def work():
            client = self.client()
            try:
                await endpoint.Endpoint(client, self.engine, self.model, self.load).check()
            finally:
                await client.close()

        load.run_in_loop(lambda: load.guarded(work(), self.guard))

    def measure(self):
        """The new measurement; nothing is written."""
        started = time.time()
        begin = time.monotonic()
        name = measurement.new_id(started)

        async def work():
            client = self.client()
            try:
                target = endpoint.Endpoint(client, self.engine, self.model, self.load)
                await target.check()
                return await load.Runner(target, self.load, name, self.progress).run()
            finally:
                await client.close()

        with self.alone(), self.shown():
            run, interpreter = load.run_in_loop(lambda: load.guarded(work(), self.guard))
        server = {
            "name": self.record.name if self.record else "",
            "start_id": self.record.start_id if self.record else "",
            "declaration_hash": self.record.declaration_hash if self.record else "",
            "base_url": self.base_url,
            "engine": self.engine.name,
            "served_model_name": self.model,
        }
        seconds = time.monotonic() - begin
        return measurement.build(run, self.load, server, interpreter, name, self.identity, started, seconds)

    @contextmanager
    def alone(self):
        """Two measurements of one server at a time would measure each other."""
        if self.folder is None:
            yield
            return
        # The folder itself is locked: nothing is left behind, and a killed run's lock is gone with it.
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise load.LoadError(
                    f"server {self.record.name!r} is being measured by another run; wait for it to end"
                ) from None
            yield
        finally:
            os.close(handle)

    @contextmanager
    def shown(self):
        """progress.json, kept up to date by a thread: writing it in the event loop would delay time stamps."""
        if self.folder is None:
            yield
            return
        path = os.path.join(self.folder, "progress.json")
        stop = threading.Event()

        def write():
            while not stop.is_set():
                with suppress(OSError):  # a full disk shows itself where the result is written
                    files.write_json(path, self.progress.as_dict())
                stop.wait(PROGRESS_INTERVAL_S)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
            if os.path.exists(path):
                os.unlink(path)

    # --- the edge ----------------------------------------------------------------------------------

    def keep_fact(self, found):
        """Write the local fact where it is asked for and differs; whether it was written."""
        path = self.params["local_fact"]
        if not path:
            return False
        path = os.path.abspath(path)
        try:
            old = files.read_json(path)
        except ValueError:
            old = None  # not ours or damaged: it is replaced by what was asked for
        new = measurement.short(found)
        if old == new:
            return False
        if not self.module.check_mode:
            files.write_json(path, new)
        return True

    def run(self):
        last = self.last()
        if last is not None and last.get("identity") == self.identity and not self.params["remeasure"]:
            facts = {"groundstate": measurement.short(last)}
            changed = self.keep_fact(last)
            extra = {"would_measure": False} if self.module.check_mode else {}
            extra["fingerprints"] = {"before": self.before, "after": {}}
            self.module.exit_json(changed=changed, reused=True, measurement=last, ansible_facts=facts, **extra)
        if self.module.check_mode:
            self.check()
            self.module.exit_json(
                changed=True, reused=False, would_measure=True, msg="the server can be measured", diff=diff(last, None)
            )
        found = self.measure()
        after = self.take_fingerprint()
        if self.path is not None:
            files.write_json(self.path, found)
        self.keep_fact(found)
        self.module.exit_json(
            changed=True,
            reused=False,
            measurement=found,
            fingerprints={"before": self.before, "after": after},
            ansible_facts={"groundstate": measurement.short(found)},
            diff=diff(last, found),
        )


def diff(old, new):
    """The headlines, for --diff."""

    def line(found):
        if found is None:
            return "not measured\n"
        headline = found["headline"]
        return f"{headline['metric']}: {headline['value']:.4g} {headline['unit']} ({found['id']})\n"

    return {"before": line(old), "after": "measured anew\n" if new is None else line(new)}


def main():
    module = AnsibleModule(
        argument_spec=arguments(),
        supports_check_mode=True,
        required_one_of=[("server", "base_url")],
        mutually_exclusive=[("server", "base_url")],
        required_by={"server": ("home",), "base_url": ("model",)},
    )
    benchmark = None
    try:
        benchmark = Benchmark(module)
        benchmark.run()
    except load.ServerGone as error:
        tail = files.tail(benchmark.record.log, LOG_LINES)
        ending = "\n".join(tail) or "(its log is empty)"
        message = f"{error}; nothing was recorded. The end of {benchmark.record.log}:\n{ending}"
        module.fail_json(msg=message, log_tail=tail)
    except (load.LoadError, endpoint.EndpointError, ValueError, OSError) as error:
        module.fail_json(msg=f"llm_benchmark: {error}")


if __name__ == "__main__":
    main()

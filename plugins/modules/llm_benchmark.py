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
          - Warm-up of a level goes on until three successive waves agree within C(steady_share), or until this many
            seconds have passed; then the result says that it was not steady.
        type: float
        default: 60.0
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
      prefix_cache:
        description:
          - What is done about prefix caches. V(defeat) begins every prompt with tokens of its own, V(flush) sends the
            same prompts in every repeat and empties the cache before each, V(keep) sends the same prompts and lets the
            cache serve them. The choice is recorded.
        type: str
        default: defeat
        choices: [defeat, flush, keep]
      prompts_file:
        description:
          - File on the host with the prompts, a text a line or, when its name ends in C(.jsonl), an object with
            C(prompt). C(prompt_tokens) has no meaning then. Each repeat sends the same ones, the first of the file.
            Empty for synthetic prompts of exactly C(prompt_tokens).
        type: str
        default: ""
  sample:
    description:
      - Sample the GPUs five times a second while measuring (clocks, power, temperature, utilisation, event reasons), or
        clocks and load of the CPUs where there are none. Switch it off to see what it costs.
    type: bool
    default: true
  calibrate:
    description:
      - Before measuring, measure the client itself on this host, against a deterministic server at the same
        concurrencies, and store its error with the result. A client that is too wrong is marked as the limit. Takes
        some three seconds a level.
    type: bool
    default: false
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
      prefix_cache: flush
    calibrate: true
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
    client:
      description: "Self-check of the client: time stamps, event loop lag, CPU share, limited, calibration."
      type: dict
      returned: always
    sampling: {description: Where the samples of the machine come from., type: dict, returned: always}
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

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import benchmark, endpoint, files, load, measurement, workload

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
                "prefix_cache": {
                    "type": "str",
                    "default": known["prefix_cache"],
                    "choices": list(workload.PREFIX_CACHES),
                },
                "prompts_file": {"type": "str", "default": known["prompts_file"]},
            },
        },
        "sample": {"type": "bool", "default": True},
        "calibrate": {"type": "bool", "default": False},
        "fingerprint": {"type": "bool", "default": True},
        "env_path": {"type": "path", "default": ""},
        "verify_files": {"type": "bool", "default": True},
        "remeasure": {"type": "bool", "default": False},
        "local_fact": {"type": "path", "default": ""},
    }


def declared(module):
    """What is to be measured, and how."""
    params = module.params
    options = {key: params[key] for key in ("validate_certs", "ca_path")}
    options["api_key"] = params["api_key"] or ""
    fingerprint = dict
    if params["server"]:
        record = benchmark.running(params["home"], params["server"])
        target = benchmark.Target.ours(params["home"], record, params["model"] or "", **options)
        key = target.own_key()
        if key:
            module.no_log_values.add(key)
        if params["fingerprint"]:
            fingerprint = benchmark.fingerprint_of(
                params["home"], record.name, params["env_path"], params["verify_files"]
            )
    else:
        target = benchmark.Target(params["base_url"], params["model"], params["engine"], **options)
    around = {key: params[key] for key in ("sample", "calibrate")}
    return target, benchmark.Plan.make(params["workload"], fingerprint=fingerprint, **around)


def run(module, bench):
    """Reuse, validate (check mode) or measure; ends the module."""
    params = module.params
    try:
        last = bench.last()
    except ValueError as error:
        module.warn(f"{error}; measuring again")
        last = None
    if bench.still_speaks(last) and not params["remeasure"]:
        facts = {"groundstate": measurement.short(last)}
        changed = benchmark.keep_fact(params["local_fact"], last, not module.check_mode)
        extra = {"would_measure": False} if module.check_mode else {}
        extra["fingerprints"] = {"before": bench.before, "after": {}}
        module.exit_json(changed=changed, reused=True, measurement=last, ansible_facts=facts, **extra)
    if module.check_mode:
        bench.check()
        module.exit_json(
            changed=True, reused=False, would_measure=True, msg="the server can be measured", diff=diff(last, None)
        )
    found = bench.measure()
    after = bench.plan.fingerprint()
    bench.keep(found)
    benchmark.keep_fact(params["local_fact"], found, True)
    module.exit_json(
        changed=True,
        reused=False,
        measurement=found,
        fingerprints={"before": bench.before, "after": after},
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
    target = None
    try:
        target, plan = declared(module)
        run(module, benchmark.Benchmark(target, plan))
    except benchmark.NoServer as error:
        if module.check_mode:
            module.exit_json(
                changed=False, reused=False, would_measure=False, msg=f"{error}; then it would be measured"
            )
        module.fail_json(msg=str(error))
    except load.ServerGone as error:
        tail = files.tail(target.record.log, LOG_LINES)
        ending = "\n".join(tail) or "(its log is empty)"
        message = f"{error}; nothing was recorded. The end of {target.record.log}:\n{ending}"
        module.fail_json(msg=message, log_tail=tail)
    except (load.LoadError, endpoint.EndpointError, ValueError, OSError) as error:
        module.fail_json(msg=f"llm_benchmark: {error}")


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: python_env_info
short_description: Whether a Python environment can run its engine on this host
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Asks the environment's own Python whether torch computes on every GPU, whether the versions of CUDA and NCCL that
    are installed, loaded and supported by the driver agree, and whether the engine can be imported.
  - Reads from the compiled libraries for which GPUs they have code.
  - Compares all files with what was installed. The first time that reads every file.
  - Changes nothing but its own cache of file hashes. Nothing of it hangs longer than O(timeout_s) for each question.
options:
  path:
    description: The environment, a folder with C(bin/python), or the link to it.
    type: path
    required: true
  home:
    description: Folder on the host that holds all that Groundstate writes there.
    type: path
    default: ~/.local/state/groundstate
  engine:
    description: The engine whose kernels and import are checked.
    type: str
    default: ""
  imports:
    description: Modules, or C(module:attribute), that have to be importable. Empty means the engine's package.
    type: list
    elements: str
    default: []
  environment:
    description: Variables that the server gets, such as E(LD_LIBRARY_PATH). They decide which libraries are loaded.
    type: dict
    default: {}
  verify_files:
    description: Compare the files with what was installed.
    type: bool
    default: true
  policy:
    description:
      - V(report) only returns what was found, V(warn) warns of each check that failed or could not be told, V(require)
        fails on those that failed.
      - Files that differ count as failed.
    type: str
    choices: [report, warn, require]
    default: report
  timeout_s:
    description: Seconds that each question may take.
    type: int
    default: 180
seealso:
  - module: groundstate.llm.python_env_files
attributes:
  check_mode:
    description: Reads in check mode as well.
    support: full
  diff_mode:
    description: There is nothing that it changes.
    support: none
"""

EXAMPLES = r"""
- name: Look at an environment that somebody else made
  groundstate.llm.python_env_info:
    path: /root/ml-env
    engine: sglang
  register: env

- name: Show what was found
  groundstate.llm.show:
    title: /root/ml-env
    lines: "{{ env.table }}"
"""

RETURN = r"""
verdict:
  description: V(ok), V(failed) when a check failed, V(unknown) when one could not be told.
  type: str
  returned: always
checks:
  description: The checks, each with C(name), C(verdict) (V(ok), V(failed), V(unknown), V(skipped)) and C(detail).
  type: list
  elements: dict
  returned: always
table:
  description: The checks as lines for people.
  type: list
  elements: str
  returned: always
  sample: ["torch: ok: 2.13.0+cpu, built for CPUs", "imports: ok: vllm"]
pristine:
  description:
    - C(verdict) (V(pristine), V(patched), V(modified), V(unknown)), C(edited), C(missing) and C(added) files,
      C(owners), C(patches) in force, and C(editable) installs with commit and changed files.
    - C(drift) has one sentence for each distribution that is missing, in another version or added since
      M(groundstate.llm.python_env) made the environment.
  type: dict
  returned: when O(verify_files) is true
torch:
  description: What torch said of itself, and the driver of the GPUs.
  type: dict
  returned: always
distributions:
  description: Name and version of what is installed.
  type: dict
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import server_env, torch_check
from ..module_utils.engines import get_engine
from ..module_utils.fingerprint import distributions
from ..module_utils.torch_check import FAILED, OK, UNKNOWN, Check
from ..module_utils.venvs import imports, pristine


def file_check(found: pristine.Look) -> Check:
    """The comparison of the files as one check."""
    verdict = {pristine.MODIFIED: FAILED, pristine.UNKNOWN: UNKNOWN}.get(found.verdict, OK)
    words = found.modified or found.doubts or ([f"patched: {', '.join(found.patches)}"] if found.patches else [])
    more = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return Check("files", verdict, "; ".join(words[:5]) + more or f"all {found.differences.files} as installed")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "home": {"type": "path", "default": "~/.local/state/groundstate"},
            "engine": {"type": "str", "default": ""},
            "imports": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
            "verify_files": {"type": "bool", "default": True},
            "policy": {"type": "str", "choices": ["report", "warn", "require"], "default": "report"},
            "timeout_s": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    params = module.params
    path, timeout_s = params["path"].rstrip("/"), float(params["timeout_s"])
    python = os.path.join(path, "bin", "python")
    result: dict = {}
    try:
        site = pristine.site_of(os.path.realpath(path))
        found = distributions.installed(site)
        versions = {one.name: one.version for one in found}
        given = {name: str(value) for name, value in params["environment"].items()}
        # No module is taken from the folder that we happen to be in.
        environment = {"PYTHONSAFEPATH": "1", **server_env.base_environment(path, os.environ), **given}
        facts = torch_check.ask(python, environment, timeout_s)
        checks = torch_check.judge(facts, versions, os.path.realpath(path))
        engine = get_engine(params["engine"]) if params["engine"] else None
        if engine is not None and facts.about.get("cuda"):
            libraries = {
                one.name: [name for name in one.record or {} if name.endswith(".so")]
                for one in found
                if one.name in engine.kernel_distributions
            }
            checks += torch_check.kernels(site, libraries, facts)
        names = params["imports"] or ([engine.distribution] if engine is not None and engine.distribution else [])
        if names:
            checks.append(torch_check.imports(python, environment, imports.PROGRAM, names, timeout_s))
        if params["verify_files"]:
            look = pristine.look(path, os.path.join(params["home"], "cache"))
            result["pristine"] = look.as_dict()
            checks.append(file_check(look))
    except (ValueError, OSError) as error:
        module.fail_json(msg=f"{path}: {error}")
    failed = [one for one in checks if one.verdict == FAILED]
    unknown = [one for one in checks if one.verdict == UNKNOWN]
    result.update(
        changed=False,
        verdict=FAILED if failed else UNKNOWN if unknown else OK,
        checks=[{"name": one.name, "verdict": one.verdict, "detail": one.detail} for one in checks],
        table=[one.line() for one in checks],
        torch=facts.as_dict(),
        distributions=versions,
    )
    if params["policy"] == "require" and failed:
        module.fail_json(
            msg="\n".join([f"{path} cannot be relied on:", *(f"  {one.line()}" for one in failed)]), **result
        )
    if params["policy"] != "report":
        for one in failed + unknown:
            module.warn(f"{path}: {one.line()}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: python_env
short_description: A Python environment exactly as locked
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Makes a virtual environment from exactly pinned requirements, without a resolver and from wheels only, proves that
    what was installed is what was locked and that it can be imported, and only then switches O(path) to it.
  - O(path) is a symbolic link to a folder beside it. A new environment is built beside the one in use, which stays for
    servers that still run from it and for the way back. A build that was killed or that failed leaves it untouched.
  - Nothing is done when lock, Python and platform are those of the environment in use; that takes some milliseconds.
  - One that was kept is taken again when its distributions are those that were installed and O(imports) can be imported
    from it. Otherwise it is made again before it is used.
extends_documentation_fragment:
  - groundstate.llm.wheels
options:
  path:
    description: Where the environment is found, absolute. Something that was not made by this module is refused.
    type: path
    required: true
  state:
    description:
      - V(present) makes the environment, V(absent) removes it with those that were kept.
    type: str
    choices: [present, absent]
    default: present
  requirements:
    description:
      - The lock as text, one C(name==version) a line, with C(--hash) options so that its origin does not matter.
      - Required with O(state=present). Indexes do not belong here.
    type: str
  python:
    description:
      - Path or name of the Python that the environment is made for. With a path, an environment of another executable
        is not taken, even if that has the same version.
      - V(auto) keeps the one it was made for, else takes the Python that runs this module, else the newest on the
        host's search path; always within O(python_range).
    type: str
    default: auto
  python_range:
    description: Versions that the lock is for, for example C(>=3.10,<3.15). Empty means all.
    type: str
    default: ""
  lock_platform:
    description:
      - Platform that the lock is for, or how its name begins, for example C(linux-x86_64) or C(linux). Another host is
        refused. Empty means any.
    type: str
    default: ""
  scripts:
    description: Programs to put into C(bin/), name and text; they run with the environment's Python.
    type: dict
    default: {}
  links:
    description:
      - Links to make in C(models/), name and path below C(site-packages), for model files that came as a package.
    type: dict
    default: {}
  dist_info_aliases:
    description: Second names under which the version of an installed distribution can be asked for.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The second name.
        type: str
        required: true
      distribution:
        description: The distribution whose version it gets.
        type: str
        required: true
      local_version:
        description: Local part to add to the version when it has none, without the plus sign.
        type: str
        default: ""
  forbidden:
    description: Distributions that must be neither in the lock nor in the environment.
    type: list
    elements: str
    default: []
  imports:
    description: Modules, or C(module:attribute), that must be importable before the environment is used.
    type: list
    elements: str
    default: []
  patches:
    description:
      - The patches that are to be in force. One for a distribution or version that the lock does not have is refused
        before anything is built.
      - With their O(texts) they are applied to an environment before O(path) leads to it, and one that does not apply
        leaves the one in use as it is. Patches of the environment in use are a matter of
        M(groundstate.llm.python_env_files).
    type: list
    elements: dict
    default: []
    suboptions:
      file:
        description: Name of the patch, by which O(texts) has its text.
        type: str
        required: true
      distribution:
        description: The distribution that it changes.
        type: str
        required: true
      version:
        description: The version that it was made for.
        type: str
        required: true
      strip:
        description: How many leading folders are left out of the names in the patch.
        type: int
        default: 1
  texts:
    description: The texts of the patches by their names. Without this option patches are compared with the lock only.
    type: dict
  installer:
    description:
      - V(uv), V(pip), the path of a uv, or V(auto) for uv where it runs and pip elsewhere.
      - uv is told what pip's settings on the host say about indexes, certificates and proxies, unless it has its own.
    type: str
    default: auto
  bundle:
    description:
      - Path on the host of a bundle with all wheels of the lock, made by M(groundstate.llm.python_bundle). Then no
        index is asked. It is only read when an environment has to be built; one that is damaged, incomplete, of another
        lock or for another Python or platform is refused before anything is changed.
    type: path
  bundle_missing:
    description:
      - What happens when an environment has to be built and the bundle is not on the host, or cannot be used.
        V(report) changes nothing and returns RV(needs_bundle), so that it is only copied to hosts that need it.
    type: str
    choices: [fail, report]
    default: fail
  size_mib:
    description: Space the environment needs, in MiB. With less free it is refused before anything is downloaded.
    type: int
    default: 0
  keep:
    description:
      - How many environments stay, the one in use included. One that a process works from stays in any case, and so
        does one of which that cannot be told, because another user's process may not be looked at; a warning says so.
    type: int
    default: 2
  timeout_s:
    description: Seconds that a build may take.
    type: int
    default: 1800
attributes:
  check_mode:
    support: full
    description: Says what would be made and changes nothing.
  diff_mode:
    support: full
    description: Shows the distributions before and after.
"""

EXAMPLES = r"""
- name: Make the environment of an engine
  groundstate.llm.python_env:
    path: /srv/groundstate/envs/llama_cpp
    python: python3.12
    requirements: "{{ lookup('ansible.builtin.file', 'requirements.txt') }}"
    imports: [xllamacpp]

- name: Make it without an internet connection
  groundstate.llm.python_env:
    path: /srv/groundstate/envs/llama_cpp
    requirements: "{{ lookup('ansible.builtin.file', 'requirements.txt') }}"
    find_links: [/srv/wheels]

- name: Make it from a bundle
  groundstate.llm.python_env:
    path: /srv/groundstate/envs/llama_cpp
    requirements: "{{ lookup('ansible.builtin.file', 'requirements.txt') }}"
    bundle: /srv/groundstate/bundles/llama_cpp-cpython-311-linux-x86_64-0f0bdb4c.tar
"""

RETURN = r"""
path:
  description: Where the environment is found.
  type: str
  returned: always
python:
  description: Its interpreter.
  type: str
  returned: when state is present
hash:
  description: Hash of lock, Python, platform, scripts, links and second names.
  type: str
  returned: when state is present
folder:
  description: The real folder behind the path.
  type: str
  returned: when state is present
installed:
  description: Number of distributions.
  type: int
  returned: when state is present
python_version:
  description: Version of the interpreter that the environment was made for.
  type: str
  returned: when state is present
changes:
  description: What was changed, or would be in check mode.
  type: list
  elements: str
  returned: always
drift:
  description:
    - How the distributions of the environment in use differ from those that were installed when it was made, for
      example because somebody called C(pip install) in it. A warning says the same.
    - Nothing is done about it here, see O(groundstate.llm.python_env_files#module:pristine).
  type: list
  elements: str
  returned: when state is present
patched:
  description:
    - Names of the patches in force, see M(groundstate.llm.python_env_files).
    - After a kill in the middle, C((unfinished)) is among them until a run has finished that.
  type: list
  elements: str
  returned: when state is present
needs_bundle:
  description: Whether an environment has to be built for which O(bundle) is not on the host yet.
  type: bool
  returned: when state is present
seconds:
  description: Duration of this call.
  type: float
  returned: always
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.venvs import build, installers, patches
from ..module_utils.venvs.extras import Alias, Extras
from ..module_utils.venvs.requirements import normal


def specification(params: dict) -> build.Spec:
    """The declaration of the environment in the form of module_utils. Raises ValueError."""
    if not os.path.isabs(params["path"]):
        # A module's current folder is whatever it happens to be, that of an installer is /.
        raise ValueError(f"path is {params['path']!r}: name an absolute one (ml_env_path)")
    texts = params["texts"]
    names = {one["file"]: "" for one in params["patches"]}
    aliases = tuple(
        Alias(one["name"], normal(one["distribution"]), one["local_version"]) for one in params["dist_info_aliases"]
    )
    return build.Spec(
        path=params["path"].rstrip("/"),
        requirements=params["requirements"] or "",
        python=params["python"],
        python_range=params["python_range"],
        platform=params["lock_platform"],
        extras=Extras(
            {name: str(text) for name, text in params["scripts"].items()},
            {name: str(target) for name, target in params["links"].items()},
            aliases,
        ),
        forbidden=tuple(normal(name) for name in params["forbidden"]),
        patches=tuple(patches.of_options(params["patches"], names if texts is None else texts)),
        apply_patches=texts is not None,
        imports=tuple(params["imports"]),
        installer=params["installer"],
        sources=installers.sources(params),
        bundle=params["bundle"] or "",
        size_mib=params["size_mib"],
        keep=max(1, params["keep"]),
        timeout_s=float(params["timeout_s"]),
    )


def describe(plan: build.Plan) -> list[str]:
    """What a plan does, for people."""
    if plan.action == "build":
        made = f"{plan.folder} made with {len(plan.items)} distributions for Python {plan.python_version}"
        return [f"{made}: {plan.why}" if plan.why else made, *plan.changes]
    if plan.action == "switch":
        return [f"switched to {plan.folder}, which was there", *plan.changes]
    return plan.changes


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "requirements": {"type": "str"},
            "python": {"type": "str", "default": "auto"},
            "python_range": {"type": "str", "default": ""},
            "lock_platform": {"type": "str", "default": ""},
            "scripts": {"type": "dict", "default": {}},
            "links": {"type": "dict", "default": {}},
            "dist_info_aliases": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "distribution": {"type": "str", "required": True},
                    "local_version": {"type": "str", "default": ""},
                },
            },
            "forbidden": {"type": "list", "elements": "str", "default": []},
            "imports": {"type": "list", "elements": "str", "default": []},
            "patches": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "file": {"type": "str", "required": True},
                    "distribution": {"type": "str", "required": True},
                    "version": {"type": "str", "required": True},
                    "strip": {"type": "int", "default": 1},
                },
            },
            "texts": {"type": "dict"},
            "installer": {"type": "str", "default": "auto"},
            "index_url": {"type": "str", "default": ""},
            "extra_index_urls": {"type": "list", "elements": "str", "default": []},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "torch_index": {"type": "str", "default": ""},
            "bundle": {"type": "path"},
            "bundle_missing": {"type": "str", "choices": ["fail", "report"], "default": "fail"},
            "size_mib": {"type": "int", "default": 0},
            "keep": {"type": "int", "default": 2},
            "timeout_s": {"type": "int", "default": 1800},
        },
        required_if=[("state", "present", ["requirements"])],
        supports_check_mode=True,
    )
    started = time.monotonic()
    # An index's password must not come back in a result or a message.
    module.no_log_values.update(installers.secrets(module.params))
    try:
        spec = specification(module.params)
    except ValueError as error:
        module.fail_json(msg=str(error))
    try:
        if module.params["state"] == "absent":
            removed = build.remove(spec.path, module.check_mode)
            result = {"changed": bool(removed), "path": spec.path, "changes": [f"{one} removed" for one in removed]}
            result["diff"] = {"before": "".join(one + "\n" for one in removed), "after": ""}
        else:
            later = module.params["bundle_missing"] == "report"
            plan = build.plan(spec, later) if module.check_mode else build.ensure(spec, later)
            for text in plan.warnings:
                module.warn(f"{spec.path}: {text}")
            result = {
                "changed": plan.changed and (module.check_mode or not plan.needs_bundle),
                "path": spec.path,
                "python": f"{spec.path}/bin/python",
                "hash": plan.hash,
                "folder": plan.folder,
                "installed": len(plan.items),
                "python_version": plan.python_version,
                "changes": describe(plan),
                "drift": plan.drift.lines(),
                "patched": sorted(patches.in_force(plan.folder)),
                "needs_bundle": plan.needs_bundle,
            }
            if module._diff and plan.changed:
                before = build.listing(plan.before.get("distributions", {}), plan.before.get("extras"))
                result["diff"] = {"before": before, "after": build.after(plan, spec), "before_header": spec.path}
    except (build.EnvError, ValueError, OSError) as error:  # the latter of a journal of patches
        module.fail_json(msg=str(error))
    module.exit_json(**result, seconds=round(time.monotonic() - started, 3))


if __name__ == "__main__":
    main()

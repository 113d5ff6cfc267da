# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The arms of a comparison: how they are declared, which variables each comes to, and what must not be shown of them.

An arm is ``{name, vars, clocks}``. ``vars`` are variables of roles that take the place of the inventory's; the
dictionaries of :data:`MERGED` are merged into the inventory's instead, at every depth, also where the inventory has a
template of a dictionary. ``clocks`` is short for the variable ``gpu_clocks``.
"""

from __future__ import annotations

import copy
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible import constants
from ansible.vars.reserved import is_reserved_name

from ..module_utils.declaration import secret_hash

Arm = dict[str, Any]
#: Gives a template its value: (name of the variable that it is of, template, variables that it sees).
Template = Callable[[str, Any, Mapping[str, Any]], Any]

MERGED = ("llm_server", "baseline_workload")
CLOCKS = "gpu_clocks"
#: Where things are kept, and the comparison itself, are the same for all arms.
_FIXED = re.compile(r"(groundstate|compare|speculation|ansible|preflight)_|baseline_(?!workload)")
#: Whether or not an arm sets them, what roles know under these names decides what is compared ...
_DECIDING = re.compile(r"(ml_env|gpu_clocks|nccl_profile|llm_server)(s?_|s?$)|baseline_workload$")
#: ... but for what leads to the same environment and server: where packages come from (an address may hold a
#: password), how long is waited, what is kept or looked at.
_PASSING = re.compile(
    r"ml_env_(bundle.*|index_url|extra_index_urls|find_links|torch_index|installer|hub_token|keep|timeout_s|verify"
    r"|models_warm|repair_in_use)|llm_server_(ready_timeout_s|stall_s|phase_timeouts|keep_logs)|nccl_profile_preflight.*"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
_ONLY_A_NAME = re.compile(r"\s*\{\{-?\s*([A-Za-z_]\w*)\s*-?\}\}\s*")
_KEYS = ("name", "vars", "clocks")
#: An address with a password in it.
_SECRET_ADDRESS = re.compile(r"\w://[^/@\s]*:[^/@\s]+@")
#: Of variables that no role describes.
_SECRET = re.compile(r"token|password|secret|api_key", re.IGNORECASE)
MOST_ARMS = 8


def written(raw: Any, inventory: Mapping[str, Any], template: Template) -> Any:
    """The arms as ``compare_arms`` has them, with the templates of their variables: these are to see their own arm.

    What only names another variable is what that one says. Any other template in the place of an arm, of its ``vars``
    or of a dictionary of :data:`MERGED` is resolved with the inventory's values: there is no arm to see before it.
    """

    def opened(one: Any) -> Any:
        followed: set[str] = set()
        while isinstance(one, str):
            only = _ONLY_A_NAME.fullmatch(one)
            if only is None or only[1] not in inventory or only[1] in followed:
                return template("compare_arms", one, inventory)
            followed.add(only[1])
            one = inventory[only[1]]
        return one

    def arm(one: Any) -> Any:
        one = opened(one)
        if not isinstance(one, Mapping):
            return one
        made = {key: opened(value) for key, value in one.items()}
        if isinstance(made.get("vars"), Mapping):
            made["vars"] = {key: opened(value) if key in MERGED else value for key, value in made["vars"].items()}
        return made

    found = opened(raw)
    return [arm(one) for one in found] if isinstance(found, (list, tuple)) else found


def chosen(ways: Mapping[str, Any]) -> list[Arm]:
    """The arms, of which exactly one of these ways has to be given (variable -> list of arms, empty: not given).

    Raises ValueError with one sentence.
    """
    given = [name for name, arms in ways.items() if arms]
    if len(given) != 1:
        said = "none is given"
        if given:
            said = f"{' and '.join(given)} are given: empty all but one, such as -e '{{\"{given[0]}\": []}}'"
        raise ValueError(f"what is compared has to be said in one way, by one of {', '.join(ways)}; {said}")
    if not isinstance(ways[given[0]], (list, tuple)):
        raise ValueError(f"{given[0]}: {ways[given[0]]!r} is no list of arms; each begins with '- name:'")
    arms = [_complete(given[0], one) for one in ways[given[0]]]
    names = [arm["name"] for arm in arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{given[0]}: the name {twice[0]} is given to two arms; each needs its own")
    if not 2 <= len(arms) <= MOST_ARMS:
        raise ValueError(f"{given[0]}: {len(arms)} arms cannot be compared; name 2 to {MOST_ARMS}")
    return arms


def _complete(where: str, raw: Any) -> Arm:
    """An arm with ``name`` and ``vars``; what is wrong with it raises ValueError."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        raise ValueError(f"{where}: each arm is a dictionary with a name, not {raw!r}")
    name = str(raw["name"])
    if not _NAME.fullmatch(name):
        raise ValueError(f"{where}: {name!r} cannot be the name of an arm; use up to 40 letters, digits, . _ + -")
    unknown = sorted(str(key) for key in raw if key not in _KEYS)
    if unknown:
        raise ValueError(f"{where}, arm {name}: no such key: {', '.join(unknown)}; use {', '.join(_KEYS)}")
    variables = {} if raw.get("vars") is None else raw["vars"]
    if not isinstance(variables, Mapping):
        raise ValueError(f"{where}, arm {name}: vars is a dictionary of variables, not {variables!r}")
    variables = copy.deepcopy(dict(variables))
    for variable in variables:
        if not isinstance(variable, str) or not variable.isidentifier():  # YAML reads "on:" and "1:" as no text
            raise ValueError(f"{where}, arm {name}: {variable!r} cannot be the name of a variable")
        if _reserved(variable):
            raise ValueError(f"{where}, arm {name}: {variable} is a name of Ansible's own; use another one")
        if _FIXED.match(variable):
            raise ValueError(f"{where}, arm {name}: {variable} is the same for all arms; set it in the inventory")
    for variable in MERGED:
        if not isinstance(variables.get(variable, {}), Mapping):
            raise ValueError(f"{where}, arm {name}: {variable} is a dictionary of what differs from the inventory's")
    if "name" in variables.get("llm_server", {}):
        raise ValueError(f"{where}, arm {name}: llm_server.name is the same for all arms; leave it out")
    if raw.get("clocks") is not None:
        if CLOCKS in variables:
            raise ValueError(f"{where}, arm {name}: clocks and vars.{CLOCKS} are the same; give one of them")
        variables[CLOCKS] = copy.deepcopy(raw["clocks"])
    return {"name": name, "vars": variables}


def _reserved(name: str) -> bool:
    """Whether Ansible or its templates mean something else by this name."""
    constant = name.lower() in ("true", "false", "none") or keyword.iskeyword(name)
    return constant or is_reserved_name(name) or name in (*constants.INTERNAL_STATIC_VARS, "item")


def of_profiles(names: Sequence[str]) -> list[Arm]:
    """An arm for each NCCL profile."""
    return [{"name": name, "vars": {"nccl_profile_name": name}} for name in names]


def names(arms: Iterable[Arm]) -> list[str]:
    """Every variable that some arm sets: each start has to set them all."""
    return sorted({name for arm in arms for name in arm["vars"]})


def deciding(options: Iterable[str]) -> list[str]:
    """Of the variables that roles know those that decide what is compared: an arm may change them by way of others."""
    return sorted(name for name in options if _DECIDING.match(name) and not _PASSING.fullmatch(name))


def differ(sides: Iterable[Mapping[str, Any]], prefix: str) -> bool:
    """Whether final variables with this prefix are not the same on all sides."""
    seen = [{name: value for name, value in one.items() if name.startswith(prefix)} for one in sides]
    return any(one != seen[0] for one in seen)


def variables(arm: Arm, wanted: Sequence[str], inventory: Mapping[str, Any], template: Template) -> dict[str, Any]:
    """The final values of the ``wanted`` variables for an arm.

    ``inventory``: the variables without the arm, as they were written. Templates of the inventory and of the arm see
    the arm's values, so that a path that is made of ``ml_env_lock`` follows it. Raises ValueError for a variable that
    neither the arm nor the inventory gives a value.
    """
    context = _context(arm, inventory, template)
    found = {}
    for name in wanted:
        if name not in context:
            raise ValueError(
                f"arm {arm['name']} has no value of {name}, which another arm sets: give it one there or in the "
                "inventory"
            )
        found[name] = template(name, context[name], context)
    return found


def own(arm: Arm, inventory: Mapping[str, Any], template: Template) -> dict[str, Any]:
    """The final values of what an arm says, without what it is merged into."""
    context = _context(arm, inventory, template)
    return {name: template(name, value, context) for name, value in _settled(arm, inventory, template).items()}


def _context(arm: Arm, inventory: Mapping[str, Any], template: Template) -> dict[str, Any]:
    """What templates see in an arm."""
    variables = _settled(arm, inventory, template)
    outer = {**inventory, **{name: value for name, value in variables.items() if name not in MERGED}}
    mine = {
        name: merge(inventory.get(name), value, lambda raw, name=name: template(name, raw, outer))
        if name in MERGED
        else value
        for name, value in variables.items()
    }
    return {**inventory, **mine}


def _settled(arm: Arm, inventory: Mapping[str, Any], template: Template) -> dict[str, Any]:
    """``vars`` of an arm; one that mentions itself means what the inventory has there, and is resolved with that."""
    settled = dict(arm["vars"])
    for name in sorted(settled, key=lambda one: one in MERGED):
        if _mentions(settled[name], re.compile(rf"\b{name}\b")):
            others = {other: value for other, value in settled.items() if other not in (name, *MERGED)}
            settled[name] = template(name, settled[name], {**inventory, **others})
    return settled


def _mentions(value: Any, word: re.Pattern[str]) -> bool:
    """Whether some template in a value has this word."""
    if isinstance(value, Mapping):
        return any(_mentions(one, word) for one in value.values())
    if isinstance(value, (list, tuple)):
        return any(_mentions(one, word) for one in value)
    return isinstance(value, str) and ("{{" in value or "{%" in value) and bool(word.search(value))


def merge(base: Any, over: Any, resolve: Callable[[str], Any] = lambda raw: raw) -> Any:
    """``over`` merged into ``base`` at every depth; what is no dictionary is replaced.

    ``resolve`` makes a dictionary of a text that is a template of one.
    """
    if isinstance(over, str) and isinstance(base, (str, Mapping)):
        found = resolve(over)
        over = found if isinstance(found, Mapping) else over
    if not isinstance(over, Mapping):
        return over
    there = resolve(base) if isinstance(base, str) else base
    if not isinstance(there, Mapping):
        return over
    return {**there, **{key: merge(there.get(key), value, resolve) for key, value in over.items()}}


def check_dictionaries(arm: str, values: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError for a final value that is no dictionary where the roles' specs want one.

    Preflight says all else; these are read before it. The value is not shown, it may hold a secret.
    """
    for name, value in values.items():
        wanted = (options.get(name) or {}).get("type")
        if wanted == "dict" and value is not None and not isinstance(value, Mapping):
            raise ValueError(f"arm {arm}: {name} has to be a dictionary")


def masked(values: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Variables without their secrets, each of which is replaced by its hash. ``options``: the roles' specs."""
    return {name: _mask(name, value, options.get(name)) for name, value in values.items()}


def _mask(name: str, value: Any, option: Mapping[str, Any] | None) -> Any:
    secret = option.get("no_log") if option is not None else _SECRET.search(name)
    if isinstance(value, Mapping):
        inner = (option or {}).get("options") or {}
        if secret:
            return {key: _hash(one) for key, one in value.items()}
        return {key: _mask(str(key), one, inner.get(key, None if option is None else {})) for key, one in value.items()}
    if secret or (isinstance(value, str) and _SECRET_ADDRESS.search(value)):
        return _hash(value)
    return [_mask(name, one, option) for one in value] if isinstance(value, list) else value


def _hash(value: Any) -> Any:
    return secret_hash(str(value)) if value not in (None, "", False, True) else value

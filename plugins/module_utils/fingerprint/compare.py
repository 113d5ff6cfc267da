# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What differs between two fingerprints, in words, each with how likely it moves performance."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .. import engines

_SHOWN = 5  # names in one sentence
_LONG = 120  # characters of one value
_CONTEXT = 40  # that two long values have in common before it is left out
_MISSING = object()

#: How likely a difference moves a number, likeliest first. Within one rank the order is that of the sections.
FILES, UNDER_LOAD, TENANTS, SERVER, PACKAGES, MODEL, GPU, LIMITS, KERNEL, REST, PASSING, UNKNOWN = range(12)

# Packages whose code runs on the GPU, talks between GPUs or decides how often that happens.
_HEAVY = re.compile(
    r"torch|triton|nvidia|nccl|cuda|cutlass|cudnn|flash|kernel|xformers|deep[-_]|rocm|mkl|openblas|numba"
)


class Finding(NamedTuple):
    """One difference: its rank (see above) and a sentence."""

    rank: int
    text: str


def findings(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    """What changed from the sections of fingerprint ``a`` to those of ``b``, likeliest explanation first."""
    before, after = a.get("sections") or {}, b.get("sections") or {}

    def pair(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        return before.get(name) or {}, after.get(name) or {}

    found = _files(*pair("python_env"))
    found += _server(*pair("server"))
    found += _packages(*pair("python_env"))
    found += _model(*pair("model"))
    found += _gpus(before.get("hardware") or {}, after.get("hardware") or {})
    found += _plain(*pair("kernel"), set())
    found += _plain(*pair("hardware"), {"gpus"})
    return ordered(found)


def ordered(found: list[Finding]) -> list[Finding]:
    """By rank; equal ranks keep their order."""
    return sorted(found, key=lambda one: one.rank)


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """:func:`findings` as sentences; [] when the sections say the same."""
    return [one.text for one in findings(a, b)]


def heavy(distribution: str) -> bool:
    """Whether a distribution's code is likely to decide the speed of a server."""
    name = distribution.lower()
    return name in _engine_distributions() or bool(_HEAVY.search(name))


def _engine_distributions() -> set[str]:
    return {engine.distribution.lower() for engine in engines.ENGINES.values() if engine.distribution}


def _rank(rank: int, *values: Any) -> int:
    """A value that is unknown on one side may have been the same all the time."""
    return UNKNOWN if any(value is None for value in values) else rank


def _show(value: Any) -> str:
    if value is _MISSING:
        return "not there"
    if value is None:
        return "unknown"
    text = str(value)
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."


def _change(old: Any, new: Any) -> str:
    """Old -> new; of two long texts from shortly before where they begin to differ."""
    texts = [one if isinstance(one, str) else _show(one) for one in (old, new)]
    if max(map(len, texts)) > _LONG:
        same = next((place for place, pair in enumerate(zip(*texts)) if pair[0] != pair[1]), min(map(len, texts)))
        begin = max(0, texts[0].rfind(", ", 0, same) + 2) if same > _CONTEXT else 0
        texts = [("... " if begin else "") + one[begin : begin + _LONG] for one in texts]
    return f"{_show(texts[0])} -> {_show(texts[1])}"


def _names(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- python_env --------------------------------------------------------------------------------------


def _by_owner(section: dict[str, Any], names: set[str]) -> dict[str, list[str]]:
    owners = section.get("owners") or {}
    grouped: dict[str, list[str]] = {}
    for name in sorted(names):
        grouped.setdefault(owners.get(name) or "the environment", []).append(name)
    return grouped


# List in the section -> what is said of one and of several names that came, and that went.
_FILE_CHANGES = (
    (
        "edited",
        ("differs from the wheel", "differ from the wheel"),
        ("is again as in the wheel", "are again as in the wheel"),
    ),
    ("missing", ("is missing", "are missing"), ("is there again", "are there again")),
    ("added", ("was added", "were added"), ("is gone again", "are gone again")),
)


def _files(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    for key, came, went in _FILE_CHANGES:
        if a.get(key) is None or b.get(key) is None:
            continue  # not compared on one side is no difference; the unknown values tell of it
        old, new = set(a[key]), set(b[key])
        for section, names, (one, many) in ((b, new - old, came), (a, old - new, went)):
            for owner, group in _by_owner(section, names).items():
                words = one if len(group) == 1 else many
                text = f"{_count(len(group), 'file')} of {owner} {words}: {_names(group)}"
                # What lies beside the packages (sitecustomize.py, a .pth) runs in every process.
                found.append(Finding(FILES if heavy(owner) or owner == "the environment" else SERVER, text))
    found.sort(key=lambda finding: finding.rank)
    if (
        not found
        and None not in (a.get("edited"), b.get("edited"))
        and a.get("difference_hash") != b.get("difference_hash")
    ):
        among = sorted(set(b["edited"]) | set(b.get("added") or []))
        text = f"files that differed from their wheels before were changed again, among: {_names(among)}"
        found.append(Finding(FILES, text))
    for name, old, new in _pairs(a.get("patched"), b.get("patched")):
        found.append(Finding(FILES, f"patch {name} {_changed(old, new)}"))
    for name, old, new in _pairs(a.get("customised"), b.get("customised")):
        found.append(Finding(FILES, f"{name} beside the standard library {_changed(old, new)}"))
    return found + [Finding(FILES, text) for text in _editable(a, b)]


def _changed(old: Any, new: Any) -> str:
    return "was added" if old is _MISSING else "was removed" if new is _MISSING else "was changed"


def _editable(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    old = {one["name"]: one for one in a.get("editable") or []}
    new = {one["name"]: one for one in b.get("editable") or []}
    found = []
    for name, was, now in _pairs(old, new):
        if was is _MISSING or now is _MISSING:
            found.append(f"{name} is {'no longer' if now is _MISSING else 'now'} an editable install")
            continue
        parts = []
        if was["commit"] != now["commit"]:
            parts.append(f"commit {_show(was['commit'])[:12]} -> {_show(now['commit'])[:12]}")
        if was["tree_hash"] != now["tree_hash"]:
            parts.append("its code changed" + (f" (not committed: {_names(now['changed'])})" if now["changed"] else ""))
        elif was["changed"] != now["changed"]:
            parts.append(f"uncommitted files: {_names(was['changed']) or 'none'} -> {_names(now['changed']) or 'none'}")
        found += [f"editable install {name}: {part}" for part in parts]
    return found


def _packages(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    changes: dict[int, list[str]] = {}
    for name, old, new in _pairs(a.get("distributions"), b.get("distributions")):
        changes.setdefault(PACKAGES if heavy(name) else REST, []).append(f"{name} {_show(old)} -> {_show(new)}")
    found = [Finding(rank, f"packages: {_names(words)}") for rank, words in changes.items()]
    found += [
        Finding(PACKAGES, f"source of {name}: {_show(old)} -> {_show(new)}")
        for name, old, new in _pairs(a.get("sources"), b.get("sources"))
    ]
    for key, label in (("python", "Python"), ("implementation", "Python implementation")):
        if key in a and key in b and a[key] != b[key]:
            found.append(Finding(_rank(PACKAGES, a[key], b[key]), f"{label}: {_show(a[key])} -> {_show(b[key])}"))
    return found


# --- server ------------------------------------------------------------------------------------------


def arguments(argv: list[str]) -> dict[str, str]:
    """A command line as flag -> value ("set" for a bare flag); words that belong to no flag are kept by position."""
    found: dict[str, str] = {}
    flag = None
    for position, word in enumerate(argv):
        if word.startswith("-") and not word[1:2].isdigit():
            flag, separator, value = word.partition("=")
            found[flag] = value if separator else "set"
            flag = None if separator else flag
        elif flag is not None:
            found[flag] = word if found[flag] == "set" else f"{found[flag]} {word}"
        else:
            found[f"word {position}"] = word
    return found


# Our key in the section -> what it is called. These are what the machine really did, not what was asked of it.
_SEEN = {"resolved": "resolved argument", "nccl_mapped": "NCCL mapped by"}


def _server(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    if bool(a) != bool(b):
        return [Finding(SERVER, "a server is described in one of the fingerprints only")]
    found: list[Finding] = []
    if a.get("engine") != b.get("engine"):
        found.append(Finding(SERVER, f"engine: {a.get('engine')} -> {b.get('engine')}"))
    if a.get("version") != b.get("version"):
        text = f"version of {b.get('engine')}: {_show(a.get('version'))} -> {_show(b.get('version'))}"
        found.append(Finding(_rank(SERVER, a.get("version"), b.get("version")), text))
    old, new = arguments(a.get("argv") or []), arguments(b.get("argv") or [])
    asked = [f"argument {name}: {_show(was)} -> {_show(now)}" for name, was, now in _pairs(old, new)]
    for name, was, now in _pairs(a.get("environment"), b.get("environment")):
        asked.append(f"environment {name}: {_show(was)} -> {_show(now)}")
    if not asked and not found and a.get("declaration_hash") != b.get("declaration_hash"):
        asked.append("the declaration of the server changed in a way that its arguments do not show")
    found += [Finding(SERVER, text) for text in asked]
    for key, label in _SEEN.items():
        if a.get(key) is not None and b.get(key) is not None:
            for name, was, now in _pairs(a[key], b[key]):
                found.append(Finding(SERVER, f"{label} {name}: {_change(was, now)}"))
    if a.get("tensor_parallel") != b.get("tensor_parallel") and not asked:
        found.append(Finding(SERVER, f"tensor parallel: {a.get('tensor_parallel')} -> {b.get('tensor_parallel')}"))
    return found


# --- model and hardware ------------------------------------------------------------------------------


def _model(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    found = []
    if a.get("config_hash") != b.get("config_hash"):
        text = f"model: the content of its {b.get('config_hash_of') or a.get('config_hash_of')} changed"
        found.append(Finding(_rank(MODEL, a.get("config_hash"), b.get("config_hash")), text))
    old = {one["name"]: one for one in a.get("files") or []}
    new = {one["name"]: one for one in b.get("files") or []}
    changed = []
    for name, was, now in _pairs(old, new):
        if was is _MISSING or now is _MISSING:
            changed.append(f"{name} {_changed(was, now)}")
        elif was["size"] != now["size"]:
            changed.append(f"{name} {was['size']} -> {now['size']} bytes")
        elif "sha256" in was and "sha256" in now:
            changed.append(f"{name} has other content")
    if changed:
        found.append(Finding(MODEL, f"model files: {_names(changed)}"))
    if a.get("path") != b.get("path"):
        found.append(Finding(MODEL, f"model path: {_show(a.get('path'))} -> {_show(b.get('path'))}"))
    return found


def _gpus(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    old, new = a.get("gpus"), b.get("gpus")
    if old is None or new is None:
        return [] if old is new else [Finding(UNKNOWN, "the GPUs could be read in one of the fingerprints only")]
    if len(old) != len(new):
        return [Finding(GPU, f"number of GPUs: {len(old)} -> {len(new)}")]
    return [Finding(rank, text) for rank, text in gpu_changes(old, new, GPU)]


def gpu_changes(old: list[dict[str, Any]], new: list[dict[str, Any]], rank: int) -> list[Finding]:
    """What differs between two lists of as many GPUs; the same change on several GPUs is one sentence."""
    changes: dict[tuple[str, str, int], list[str]] = {}
    for was, now in zip(old, new):
        for key, first, second in _pairs(was, now):
            text = f"{_show(first)} -> {_show(second)}"
            changes.setdefault((key, text, _rank(rank, first, second)), []).append(str(now.get("index")))
    return [
        Finding(place, f"GPU {', '.join(indices)} {key.replace('_', ' ')}: {change}")
        for (key, change, place), indices in changes.items()
    ]


# What the kernel lets a server have decides more than which kernel it is.
_LIMITING = {"limits", "governors", "transparent_hugepages", "shm_bytes", "cmdline", "numa_balancing"}
_IDENTITY = {"topology": GPU, "release": KERNEL, "virtualisation": KERNEL}


def _plain(
    a: dict[str, Any], b: dict[str, Any], skipped: set[str], path: str = "", rank: int | None = None
) -> list[Finding]:
    if not a or not b:
        return []
    found = []
    for name, old, new in _pairs(a, b):
        if name in skipped:
            continue
        label = f"{path}{name}".replace("_", " ")
        place = rank if rank is not None else LIMITS if name in _LIMITING else _IDENTITY.get(name, REST)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _plain(old, new, set(), f"{label} ", place)
        elif path == "limits ":  # there None is a value, too
            shown = ["no limit" if value is None else _show(value) for value in (old, new)]
            found.append(Finding(place, f"{label}: {shown[0]} -> {shown[1]}"))
        else:
            found.append(Finding(_rank(place, old, new), f"{label}: {_show(old)} -> {_show(new)}"))
    return found


def _pairs(a: dict[str, Any] | None, b: dict[str, Any] | None) -> list[tuple[str, Any, Any]]:
    """(key, old, new) of the keys whose values differ; _MISSING for a key that one side lacks."""
    first, second = a or {}, b or {}
    keys = sorted(set(first) | set(second))
    return [
        (key, first.get(key, _MISSING), second.get(key, _MISSING))
        for key in keys
        if first.get(key, _MISSING) != second.get(key, _MISSING)
    ]

# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What differs between two fingerprints, in words, likeliest explanation of another speed first."""

from __future__ import annotations

from typing import Any

_SHOWN = 5  # names in one sentence
_MISSING = object()


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Sentences on what changed from fingerprint ``a`` to ``b``; [] when the sections say the same."""
    before, after = a.get("sections") or {}, b.get("sections") or {}

    def pair(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        return before.get(name) or {}, after.get(name) or {}

    found = _files(*pair("python_env"))
    found += _server(*pair("server"))
    found += _packages(*pair("python_env"))
    found += _model(*pair("model"))
    found += _gpus(before.get("hardware") or {}, after.get("hardware") or {})
    found += _plain(*pair("kernel"), {})
    found += _plain(*pair("hardware"), {"gpus"})
    return found


def _show(value: Any) -> str:
    if value is _MISSING:
        return "not there"
    if value is None:
        return "unknown"
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."


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


def _files(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for key, came, went in _FILE_CHANGES:
        if a.get(key) is None or b.get(key) is None:
            continue  # not compared on one side is no difference; the unknown values tell of it
        old, new = set(a[key]), set(b[key])
        for section, names, (one, many) in ((b, new - old, came), (a, old - new, went)):
            for owner, group in _by_owner(section, names).items():
                found.append(
                    f"{_count(len(group), 'file')} of {owner} {one if len(group) == 1 else many}: {_names(group)}"
                )
    if (
        not found
        and None not in (a.get("edited"), b.get("edited"))
        and a.get("difference_hash") != b.get("difference_hash")
    ):
        among = sorted(set(b["edited"]) | set(b.get("added") or []))
        found.append(f"files that differed from their wheels before were changed again, among: {_names(among)}")
    for name, old, new in _pairs(a.get("customised"), b.get("customised")):
        found.append(f"{name} beside the standard library {_changed(old, new)}")
    return found + _editable(a, b)


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


def _packages(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    changes = [
        f"{name} {_show(old)} -> {_show(new)}"
        for name, old, new in _pairs(a.get("distributions"), b.get("distributions"))
    ]
    found = [f"packages: {_names(changes)}"] if changes else []
    found += [
        f"source of {name}: {_show(old)} -> {_show(new)}"
        for name, old, new in _pairs(a.get("sources"), b.get("sources"))
    ]
    for key, label in (("python", "Python"), ("implementation", "Python implementation")):
        if key in a and key in b and a[key] != b[key]:
            found.append(f"{label}: {_show(a[key])} -> {_show(b[key])}")
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


def _server(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    if bool(a) != bool(b):
        return ["a server is described in one of the fingerprints only"]
    found = [f"engine: {a.get('engine')} -> {b.get('engine')}"] if a.get("engine") != b.get("engine") else []
    if a.get("version") != b.get("version"):
        found.append(f"version of {b.get('engine')}: {_show(a.get('version'))} -> {_show(b.get('version'))}")
    old, new = arguments(a.get("argv") or []), arguments(b.get("argv") or [])
    found += [f"argument {name}: {_show(was)} -> {_show(now)}" for name, was, now in _pairs(old, new)]
    for name, was, now in _pairs(a.get("environment"), b.get("environment")):
        found.append(f"environment {name}: {_show(was)} -> {_show(now)}")
    if not found and a.get("declaration_hash") != b.get("declaration_hash"):
        found.append("the declaration of the server changed in a way that its arguments do not show")
    return found


# --- model and hardware ------------------------------------------------------------------------------


def _model(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    found = []
    if a.get("config_hash") != b.get("config_hash"):
        found.append(f"model: the content of its {b.get('config_hash_of') or a.get('config_hash_of')} changed")
    old = {one["name"]: one for one in a.get("files") or []}
    new = {one["name"]: one for one in b.get("files") or []}
    changed = []
    for name, was, now in _pairs(old, new):
        if was is _MISSING or now is _MISSING:
            changed.append(f"{name} {_changed(was, now)}")
        else:
            changed.append(
                f"{name} {was['size']} -> {now['size']} bytes"
                if was["size"] != now["size"]
                else f"{name} has other content"
            )
    if changed:
        found.append(f"model files: {_names(changed)}")
    if a.get("path") != b.get("path"):
        found.append(f"model path: {_show(a.get('path'))} -> {_show(b.get('path'))}")
    return found


def _gpus(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    old, new = a.get("gpus"), b.get("gpus")
    if old is None or new is None:
        return [] if old is new else ["the GPUs could be read in one of the fingerprints only"]
    if len(old) != len(new):
        return [f"number of GPUs: {len(old)} -> {len(new)}"]
    changes: dict[tuple[str, str], list[str]] = {}
    for was, now in zip(old, new):
        for key, first, second in _pairs(was, now):
            changes.setdefault((key, f"{_show(first)} -> {_show(second)}"), []).append(str(now.get("index")))
    # The same change on several GPUs is one sentence.
    return [f"GPU {', '.join(indices)} {key.replace('_', ' ')}: {change}" for (key, change), indices in changes.items()]


def _plain(a: dict[str, Any], b: dict[str, Any], skipped: set[str] | dict, path: str = "") -> list[str]:
    if not a or not b:
        return []
    found = []
    for name, old, new in _pairs(a, b):
        if name in skipped:
            continue
        label = f"{path}{name}".replace("_", " ")
        if isinstance(old, dict) and isinstance(new, dict):
            found += _plain(old, new, set(), f"{label} ")
        else:
            found.append(f"{label}: {_show(old)} -> {_show(new)}")
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

# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Section python_env: the engine's Python environment and what differs from its wheels."""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import glob
import json
import os
import subprocess
from typing import Any, NamedTuple

from .. import files
from ..file_hashes import FileHashes, sha256_file
from ..venvs import patches
from . import checkout, distributions, seen_folders
from .reading import Unknown

SHOWN = 200  # files listed by name; the hash is of all of them
_TIMEOUT_S = 20.0
# -I -S: neither the user's variables nor a patched sitecustomize take part in the answer.
_QUESTION = """
import json, os, platform, sys
print(json.dumps([platform.python_version(), platform.python_implementation(), os.path.dirname(os.__file__),
                  os.path.dirname(os.path.dirname(sys.executable))]))
"""


def site_folders(env_path: str) -> list[str]:
    """The site-packages folders of an environment (lib64 only where it is another folder than lib)."""
    found: list[str] = []
    for pattern in ("lib", "lib64"):
        for kind in ("site-packages", "dist-packages"):
            for folder in sorted(glob.glob(os.path.join(glob.escape(env_path), pattern, "python3*", kind))):
                if os.path.realpath(folder) not in [os.path.realpath(one) for one in found]:
                    found.append(folder)
    return found


class Interpreter(NamedTuple):
    """What the Python of an environment says of itself."""

    version: str
    implementation: str
    library: str  # folder of the standard library
    home: str  # folder whose bin/ it lies in: another environment when bin/python is a script that starts it


def interpreter(env_path: str) -> Interpreter:
    """Ask the Python of an environment. Raises OSError with the reason."""
    python = os.path.join(env_path, "bin", "python")
    if not os.path.exists(python) and os.path.exists(python + "3"):
        python += "3"  # as in /usr
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", _QUESTION],
            capture_output=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Interpreter(*json.loads(done.stdout))
    except FileNotFoundError as error:
        raise OSError(f"{python} does not exist") from error
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{python} did not answer within {_TIMEOUT_S:.0f} s") from error
    except (ValueError, TypeError) as error:
        raise OSError(f"{python} does not run (status {done.returncode})") from error


def _customised(library: str, unknown: Unknown) -> dict[str, str]:
    """Hashes of sitecustomize.py and usercustomize.py beside the standard library: they run before any engine."""
    found = {}
    for name in ("sitecustomize.py", "usercustomize.py"):
        try:
            found[name] = sha256_file(os.path.join(library, name))
        except FileNotFoundError:
            continue
        except OSError as error:
            unknown[f"python_env.customised.{name}"] = f"{error.filename or library}: {error.strerror}"
    return found


def _sources(found: list[distributions.Distribution]) -> dict[str, str]:
    """Distributions that came from elsewhere than an index, with address and commit."""
    result = {}
    for one in found:
        url = one.direct_url.get("url")
        if not url or (one.direct_url.get("dir_info") or {}).get("editable"):
            continue
        vcs = one.direct_url.get("vcs_info") or {}
        if vcs:
            clean = distributions.without_credentials(url)
            result[one.name] = f"{vcs.get('vcs', '')}+{clean}@{vcs.get('commit_id', '?')}"
    return result


def _patched(environment: str, total: distributions.Differences, unknown: Unknown) -> dict[str, str]:
    """Name -> hash of the declared patches in force, whose files are taken out of the differences."""
    try:
        patches.explained(patches.journal(environment), total)
        return patches.in_force(environment)
    except (OSError, ValueError) as error:
        unknown["python_env.patched"] = str(error)
        return {}


def _names(pairs: dict[str, str]) -> list[str]:
    return sorted(pairs)[:SHOWN]


def read(env_path: str, cache: str | None, unknown: Unknown, verify_files: bool = True) -> dict[str, Any]:
    """The section. ``cache``: folder of the hash cache, None for none.

    ``edited``, ``missing`` and ``added`` are the first ``SHOWN`` paths below site-packages, ``counts`` says how many
    there are, ``owners`` whose they are, and ``difference_hash`` covers all of them with their content. Files that are
    as declared patches make them are in none of these: ``patched`` (only where there are any) names the patches.
    Distributions that the environment sees outside of itself are among the others, ``seen`` (only where there are any)
    lists their folders, and of their files those are named that were edited or are missing, with the whole path.
    """
    section: dict[str, Any] = {
        "python": None,
        "implementation": None,
        "customised": None,
        "distributions": {},
        "count": 0,
        "set_hash": None,
        "sources": {},
        "unverified": [],
        "files": None,
        "counts": None,
        "edited": None,
        "missing": None,
        "added": None,
        "owners": None,
        "difference_hash": None,
        "editable": [],
    }
    if not env_path:
        unknown["python_env"] = "no environment was named (env_path is empty)"
        return section
    root, sites = env_path, site_folders(env_path)
    try:
        python = interpreter(env_path)
        section["python"], section["implementation"] = python.version, python.implementation
        section["customised"] = _customised(python.library, unknown)
        if not sites:
            root, sites = python.home, site_folders(python.home)
    except OSError as error:
        unknown["python_env.python"] = str(error)
    if not sites:
        unknown["python_env.distributions"] = f"no lib/python3*/site-packages below {env_path}"
        return section
    total = distributions.Differences()
    everything: list[distributions.Distribution] = []
    outside: list[distributions.Distribution] = []
    for site in sites:
        found = distributions.installed(site)
        everything.extend(found)
        if verify_files:
            hashes = FileHashes(site, cache)
            _merge(total, distributions.compare(site, found, hashes))
            hashes.save()
    for folder in seen_folders.find(root, sites):
        known = {one.name for one in everything + outside}
        found = [one for one in distributions.installed(folder) if one.name not in known]
        if not found:
            continue
        section.setdefault("seen", []).append(folder)
        outside.extend(found)
        if verify_files:
            hashes = FileHashes(folder, cache)
            _merge(total, _whole(folder, distributions.compare(folder, found, hashes, added=False)))
            hashes.save()
    patched = _patched(os.path.realpath(env_path), total, unknown)
    if patched:
        section["patched"] = patched
    versions: dict[str, str] = {}
    for one in everything + outside:
        # Two dist-info folders of one name are a damaged environment: show both.
        versions[one.name] = f"{versions[one.name]}, {one.version}" if one.name in versions else one.version
    section["distributions"] = versions
    section["count"] = len(versions)
    section["set_hash"] = files.digest(versions)
    section["sources"] = _sources(everything + outside)
    section["unverified"] = sorted({one.name for one in everything if one.record is None})
    section["editable"] = [
        checkout.read(one.name, one.direct_url["url"], cache, unknown)
        for one in everything
        if (one.direct_url.get("dir_info") or {}).get("editable") and one.direct_url.get("url")
    ]
    if section["unverified"]:
        unknown["python_env.unverified"] = "no RECORD, so their files could not be compared: " + ", ".join(
            section["unverified"]
        )
    if not verify_files:
        unknown["python_env.edited"] = "verify_files is false"
        return section
    _put(section, total, unknown)
    return section


def _whole(folder: str, found: distributions.Differences) -> distributions.Differences:
    """The same with whole paths: two folders may have files of one name."""
    for name in ("edited", "missing", "hashes"):
        pairs = getattr(found, name)
        setattr(found, name, {os.path.join(folder, path): value for path, value in pairs.items()})
    found.unreadable = [os.path.join(folder, path) for path in found.unreadable]
    return found


def _merge(total: distributions.Differences, one: distributions.Differences) -> None:
    for name in ("edited", "missing", "added", "hashes"):
        getattr(total, name).update(getattr(one, name))
    total.unreadable.extend(one.unreadable)
    total.files += one.files


def _put(section: dict[str, Any], total: distributions.Differences, unknown: Unknown) -> None:
    section["files"] = total.files
    section["counts"] = {"edited": len(total.edited), "missing": len(total.missing), "added": len(total.added)}
    section["edited"], section["missing"], section["added"] = (
        _names(total.edited),
        _names(total.missing),
        _names(total.added),
    )
    shown = section["edited"] + section["missing"] + section["added"]
    owners = {**total.edited, **total.missing, **total.added}
    section["owners"] = {path: owners[path] for path in shown}
    if owners:
        section["difference_hash"] = files.digest([total.hashes, sorted(total.missing)])
    if total.unreadable:
        first = ", ".join(sorted(total.unreadable)[:5])
        unknown["python_env.files"] = f"{len(total.unreadable)} files could not be read and compared: {first}"

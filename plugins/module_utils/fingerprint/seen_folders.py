# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Folders of packages that an environment sees outside of itself: the system's, and those that .pth files name.

Containers bring a torch of their own that way. What is imported from there is as much the server's as its own packages.
"""

from __future__ import annotations

import glob
import os
import re

from .. import files

#: Of Debian's Python, whose base is /usr: pip installs for all environments go there.
_LOCAL = "local"


def find(environment: str, sites: list[str]) -> list[str]:
    """The folders, in the order in which Python looks into them.

    ``sites``: the environment's own folders. Nothing is run: code in .pth files and sitecustomize could say anything.
    Folders without installed distributions (checkouts of editable installs) are left out.
    """
    candidates = [one for site in sites for one in _named(site)]
    base = _base(environment)
    if base:
        versions = re.findall(r"/python(3\.\d+)/", " ".join(sites))
        minor = versions[0] if versions else ""
        for root in (os.path.join(base, _LOCAL), base):
            candidates += _below(root, minor)
    inside = [os.path.realpath(one) for one in sites]
    found: list[str] = []
    for folder in candidates:
        real = os.path.realpath(folder)
        if real not in inside and real not in found and glob.glob(os.path.join(glob.escape(real), "*.dist-info")):
            found.append(real)
    return found


def _named(site: str) -> list[str]:
    """Folders that the .pth files of a folder of packages name."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(site), "*.pth"))):
        try:
            with open(path, encoding="utf-8", errors="replace", opener=files.regular) as source:
                lines = [line.strip() for line in source]
        except OSError:
            continue
        named = [line for line in lines if line and not line.startswith("#") and not re.match(r"import[ \t]", line)]
        found += [os.path.join(site, line) for line in named if "\0" not in line]
    return [one for one in found if os.path.isdir(one)]


def _base(environment: str) -> str:
    """Prefix of the Python whose packages an environment sees; "" when it does not."""
    try:
        with open(os.path.join(environment, "pyvenv.cfg"), encoding="utf-8", errors="replace") as source:
            pairs = [line.partition("=") for line in source]
    except OSError:
        return ""
    settings = {key.strip().lower(): value.strip() for key, _equals, value in pairs}
    if settings.get("include-system-site-packages", "").lower() != "true" or not settings.get("home"):
        return ""
    return os.path.dirname(os.path.realpath(settings["home"]))


def _below(root: str, minor: str) -> list[str]:
    """``lib/python3.12/site-packages`` and what Debian has for it, below a prefix."""
    pythons = [f"python{minor}", "python3"] if minor else ["python3*"]
    escaped = glob.escape(root)
    patterns = [
        os.path.join(escaped, library, python, kind)
        for library in ("lib", "lib64")
        for python in pythons
        for kind in ("site-packages", "dist-packages")
    ]
    return [folder for pattern in patterns for folder in sorted(glob.glob(pattern))]

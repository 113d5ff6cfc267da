# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proof that an environment's packages can be imported, and what helps when they cannot."""

from __future__ import annotations

import re

#: Program that imports what its arguments name, each ``module`` or ``module:name``.
PROGRAM = """
import importlib, sys
for one in sys.argv[1:]:
    module, _, name = one.partition(":")
    try:
        found = importlib.import_module(module)
        if name:
            getattr(found, name)
    except BaseException as error:
        print(f"{one}: {type(error).__name__}: {error}")
        sys.exit(1)
"""

#: System libraries that engines load and minimal installations lack, and the Debian package that has them.
_SYSTEM_PACKAGES = {"libgomp.so.1": "libgomp1", "libnuma.so.1": "libnuma1", "libGL.so.1": "libgl1"}


def missing_library(output: str) -> str:
    """What to install when an import failed for want of a library of the system, which no wheel brings; else ""."""
    found = re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file", output)
    if not found:
        return ""
    library = found.group(1)
    package = _SYSTEM_PACKAGES.get(library)
    how = f"on Debian and Ubuntu: apt-get install {package}" if package else "on Debian and Ubuntu apt-file finds it"
    return f" The system library {library} is missing; install the package that has it ({how})."

# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A page from a template: text escaped, charts as data, one script whose hash the page itself names.

Whatever stands in a record was written by hosts and engines, so it reaches the browser as text only: Jinja escapes it,
the charts get it as JSON, and the page's policy lets no other script run and nothing be fetched.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ...module_utils import files
from . import words

HERE = Path(__file__).parent
#: Of Vega-Lite; what the chart specifications are written for.
VEGA_LITE = "6.4"
NO_CHARTS = "the charts need vl-convert-python on the controller: pip install 'vl-convert-python>=1.9,<2'"


class PageError(Exception):
    """The page cannot be made; the message says why."""


def render(template: str, **context: Any) -> str:
    """The page of a template in ``templates``. ``charts`` in the context: those that :mod:`.charts` made.

    The same input gives the same page. Without the plotting library there are no charts, and the page says so.
    """
    script = _script() if context.get("charts") else None
    environment = _environment()
    return environment.get_template(template).render(
        **context,
        style=Markup(_text("page.css")),
        script=Markup(script or ""),
        script_policy=Markup(_policy(script)),
        without_charts="" if script or not context.get("charts") else NO_CHARTS,
    )


def can_plot() -> bool:
    """Whether pages get their charts on this controller."""
    return _script() is not None


def json_in_html(value: Any) -> Markup:
    """JSON that no HTML parser finds a tag in. Raises ValueError for NaN."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def anchor(*parts: str) -> str:
    """An identifier of a place in the page, the same for the same words, whatever they hold."""
    readable = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:40]
    return f"{readable or 'x'}-{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'replace')).hexdigest()[:8]}"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(words.FILTERS, json=json_in_html)
    environment.globals["anchor"] = anchor
    return environment


@functools.lru_cache(maxsize=1)
def _script() -> str | None:
    """Vega, Vega-Lite, vega-embed and ``page.js`` as one script; None without the library that carries them.

    To bundle them takes seconds of CPU time, so what came out is kept in the user's cache folder.
    """
    try:
        import vl_convert
    except ImportError:
        return None
    own = _text("page.js")
    kept = _kept(files.digest([own, VEGA_LITE, vl_convert.__version__])[:16])
    try:
        return files.read_regular(kept).decode("utf-8")
    except (OSError, ValueError):
        script = str(vl_convert.javascript_bundle(own, vl_version=VEGA_LITE))
    if "</script" in script.lower() or "<!--" in script:
        raise PageError("the bundle of vl-convert-python cannot be put into a page: it holds the end of a script")
    with contextlib.suppress(OSError):  # a home that cannot be written to costs the time again
        files.write_atomic(kept, script, 0o600)
    return script


def _kept(name: str) -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "groundstate", f"charts-{name}.js")


def _policy(script: str | None) -> str:
    if script is None:
        return "'none'"
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def write(path: str, page: str, check: bool = False) -> bool:
    """Write a page atomically unless it is there already; whether it was not. ``check``: only say so.

    Raises OSError.
    """
    raw = page.encode("utf-8", "replace")  # JSON can hold half a surrogate pair, UTF-8 can not
    try:
        if files.read_regular(path, len(raw)) == raw:
            return False
    except OSError:
        pass  # not there, or something else is: write_atomic says what is in the way
    if not check:
        files.write_atomic(path, raw)
    return True

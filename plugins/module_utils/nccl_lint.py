# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge NCCL variables before a server gets them.

NCCL never refuses a variable it does not know and rarely one it cannot read: it goes on with its default. So a
mistake costs a start of the server and is seen by nobody. Levels: ``error`` (NCCL would ignore or misread it, or the
variables contradict each other), ``warning`` (accepted, with a known trap), ``inert`` (accepted, changes nothing here).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import nccl_variables as data

ERROR, WARNING, INERT = "error", "warning", "inert"
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)\Z")
_MIB = 1024 * 1024
_LONGEST = 4096  # a path of Linux


@dataclass(frozen=True)
class Finding:
    """What the linter has to say of one variable."""

    level: str
    variable: str
    message: str  # a sentence without its final stop: what, and how to fix it

    @property
    def text(self) -> str:
        return f"{self.variable}: {self.message}"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def lint(variables: Mapping[Any, Any]) -> list[Finding]:
    """Everything worth saying about a set of variables: errors first, then warnings, then what is inert.

    Takes anything that YAML can give as names and values, and never raises.
    """
    found: list[Finding] = []
    good: dict[str, str] = {}
    for name, value in variables.items():
        mistakes = list(_check_name(name)) or list(_check_value(name, value))
        found.extend(mistakes)
        if not any(one.level == ERROR for one in mistakes):
            good[name] = value_text(value)
    for rule in RULES:
        found.extend(rule(good))
    order = {ERROR: 0, WARNING: 1, INERT: 2}
    return sorted(found, key=lambda one: (order[one.level], one.variable))


def errors(findings: list[Finding]) -> list[str]:
    """Texts of the errors."""
    return [one.text for one in findings if one.level == ERROR]


def value_text(value: Any) -> str:
    """The text that NCCL will see for a value of a profile. Raises ValueError for what has no plain text."""
    if isinstance(value, bool):
        raise ValueError(f"YAML reads it as {str(value).lower()}; write {int(value)}, or quote the word")
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return str(value)
    raise ValueError(f"a {type(value).__name__} is no value; write text or a number")


def connection_bytes(variables: Mapping[str, str]) -> int:
    """Bytes of buffers that NCCL allocates per receive connection and channel under these variables."""

    def size(name: str, default: int) -> int:
        text = variables.get(name, "")
        return int(text, 0) if _INTEGER.match(text) and int(text, 0) > 0 else default

    return (
        size("NCCL_LL_BUFFSIZE", data.LL_BUFFER)
        + size("NCCL_LL128_BUFFSIZE", data.LL128_BUFFER)
        + size("NCCL_BUFFSIZE", data.SIMPLE_BUFFER)
    )


# --- one variable --------------------------------------------------------------------------------


def _check_name(name: Any) -> Iterator[Finding]:
    if not isinstance(name, str):
        yield Finding(ERROR, repr(name), "a variable's name is text")
        return
    shown = name if name.isprintable() and name else repr(name)
    plain = re.sub(r"^\s*export\s+", "", name).strip()
    if plain != name and plain in data.KNOWN:
        yield Finding(ERROR, shown, f"this is not a shell script; write the name alone: {plain}")
    elif name in data.PYTORCH:
        other = data.PYTORCH[name]
        yield Finding(ERROR, shown, f"NCCL does not read it, PyTorch does, as {other}; set that in llm_server.env")
    elif name in data.KNOWN:
        about = data.KNOWN[name]
        if about.removed:
            instead = f"; use {about.instead}" if about.instead else "; leave it out"
            yield Finding(ERROR, shown, f"NCCL has not read it since {about.removed}{instead}")
    else:
        yield Finding(ERROR, shown, _unknown(name))


def _unknown(name: str) -> str:
    upper = name.strip().upper()
    tries = (upper, upper.replace("-", "_"), "NCCL_" + upper.replace("NCCL", "").lstrip("_-"))
    near = next((one for one in tries if one in data.KNOWN), None)
    if near is None:
        # The shared prefix would make everything alike.
        close = difflib.get_close_matches(
            upper.replace("NCCL_", "", 1), [one[5:] for one in data.KNOWN], n=1, cutoff=0.7
        )
        near = f"NCCL_{close[0]}" if close else None
    hint = f"did you mean {near}?" if near else f"NCCL up to {data.NEWEST} does not read it"
    if not name.startswith("NCCL_") and not near:
        return "a profile holds NCCL_ variables only; put others into llm_server.env"
    return f"no such variable of NCCL; {hint} (one of a plugin or a newer NCCL goes into llm_server.env)"


def _check_value(name: str, value: Any) -> Iterator[Finding]:
    try:
        text = value_text(value)
    except ValueError as error:
        yield Finding(ERROR, name, str(error))
        return
    about = data.KNOWN[name]
    problem = _bad_text(text, about) or _bad_kind(text, about)
    if problem:
        yield Finding(ERROR, name, problem)
    if about.deprecated:
        limits = {
            "NCCL_MAX_CTAS": "; where both are set the lower wins",
            "NCCL_MIN_CTAS": "; where both are set the higher wins",
        }
        instead = f", use {about.instead}{limits.get(about.instead, '')}" if about.instead else ""
        yield Finding(WARNING, name, f"deprecated since NCCL {about.deprecated}{instead}")


def _bad_text(text: str, about: data.Variable) -> str:
    if about.kind == "secret":
        return "a secret does not belong into a profile, which anybody may read; put it into llm_server.secret_env"
    if len(text) > _LONGEST:
        return f"the value has {len(text)} characters; nothing that NCCL reads has more than {_LONGEST}"
    if text == "":
        return "the value is empty; leave the variable out (null takes an inherited one away)"
    if not text.isprintable():
        return f"the value {text!r} has a line break or a character that cannot be printed"
    if text != text.strip():
        return f"the value {text!r} begins or ends with a space, which NCCL takes as part of it"
    if any(sign in text for sign in "\"'`\\$"):
        return (
            f"the value {text!r} has a quote, backslash or dollar sign: NCCL and systemd do not read it as a shell does"
        )
    if " " in text and about.kind != "path":
        return f"the value {text!r} has a space"
    return ""


def _bad_kind(text: str, about: data.Variable) -> str:
    check = _KINDS.get(about.kind)
    problem = check(text, about) if check else ""
    return f"{problem} ({about.note})" if problem and about.note else problem


def _bad_integer(text: str, about: data.Variable) -> str:
    if not _INTEGER.match(text):
        digits = re.match(r"[+-]?[0-9]+", text)
        if digits and re.fullmatch(r"[+-]?0[0-7]+", text):
            return f"{text!r} begins with 0, so that NCCL reads it as octal: {int(text, 8)}"
        seen = int(digits.group()) if digits and len(digits.group()) < 20 else 0
        return f"{text!r} is not an integer: NCCL reads it as {seen}"
    number = int(text, 0) if len(text) <= 20 else None
    if number is None or not -(2**63) <= number < 2**63:
        return f"{text} does not fit into 64 bits: NCCL takes its default"
    if (about.low is not None and number < about.low) or (about.high is not None and number > about.high):
        limits = f"from {about.low} up" if about.high is None else f"from {about.low} to {about.high}"
        return f"{text} is outside of what NCCL takes, {limits}"
    if number % about.multiple_of:
        return f"{text} is not a multiple of {about.multiple_of}"
    return ""


def _bad_choice(text: str, about: data.Variable) -> str:
    if text in about.choices or (about.any_case and text.upper() in about.choices):
        return ""
    return f"{text!r} is none of {', '.join(about.choices)}{_same_word(text, about.choices)}"


def _bad_level(text: str, about: data.Variable) -> str:
    if text in about.choices or re.fullmatch("[0-4]", text):
        return ""
    return f"{text!r} is none of {', '.join(about.choices)}; NCCL ignores it silently{_same_word(text, about.choices)}"


def _same_word(text: str, choices: tuple[str, ...]) -> str:
    return f"; the case matters: write {text.upper()}" if text.upper() in choices else ""


def _bad_path(text: str, about: data.Variable) -> str:
    return f"{text!r}: NCCL does not expand '~'; write the whole path" if text.startswith("~") else ""


def _bad_tokens(text: str, about: data.Variable) -> str:
    known = {one.lower() for one in about.choices}
    for function, _excluded, tokens in _selections(text):
        if function and function not in data.FUNCTIONS:
            return f"{text!r}: {function!r} is none of the functions {', '.join(data.FUNCTIONS)}"
        for token in tokens:
            if token not in known:
                return (
                    f"{text!r}: {token!r} is none of {', '.join(about.choices)}; NCCL 2.24 and later refuses to start"
                )
    return ""


def _selections(text: str) -> list[tuple[str, bool, list[str]]]:
    """NCCL_ALGO, NCCL_PROTO: (function or "", whether the tokens are excluded, tokens), all in small letters."""
    found = []
    for part in text.lower().split(";"):
        function, colon, tokens = part.rpartition(":")
        found.append((function if colon else "", tokens.startswith("^"), tokens.lstrip("^").split(",")))
    return found


_KINDS: dict[str, Callable[[str, data.Variable], str]] = {
    "integer": _bad_integer,
    "choice": _bad_choice,
    "level": _bad_level,
    "path": _bad_path,
    "tokens": _bad_tokens,
}


# --- several variables together ------------------------------------------------------------------


def _protocols(variables: Mapping[str, str]) -> set[str]:
    """Protocols that any function may use, in small letters."""
    every = {one.lower() for one in data.PROTOCOLS}
    if "NCCL_PROTO" not in variables:
        return every
    selections = _selections(variables["NCCL_PROTO"])
    if any(function for function, _excluded, _tokens in selections):
        return every  # other functions keep what the first entry does not name: do not guess
    _function, excluded, tokens = selections[-1]
    return every - set(tokens) if excluded else every & set(tokens)


def _p2p(variables: Mapping[str, str]) -> Iterator[Finding]:
    level = variables.get("NCCL_P2P_LEVEL")
    off = variables.get("NCCL_P2P_DISABLE") == "1"
    if off and level and level not in ("LOC", "0"):
        yield Finding(
            ERROR,
            "NCCL_P2P_LEVEL",
            f"{level} has no effect beside NCCL_P2P_DISABLE=1, which wins; keep one (null removes)",
        )
    for name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_NET_MERGE_LEVEL"):
        if variables.get(name, "").isdigit():
            yield Finding(WARNING, name, "numbers change their meaning between releases of NCCL; write the word")
    if variables.get("NCCL_SHM_DISABLE") == "1" and (off or level in ("LOC", "0")):
        yield Finding(
            WARNING, "NCCL_SHM_DISABLE", "with P2P switched off too, GPUs of one host talk through the network"
        )


def _channels(variables: Mapping[str, str]) -> Iterator[Finding]:
    for low, high in (
        ("MIN_CTAS", "MAX_CTAS"),
        ("MIN_NCHANNELS", "MAX_NCHANNELS"),
        ("MIN_P2P_NCHANNELS", "MAX_P2P_NCHANNELS"),
    ):
        first, second = variables.get(f"NCCL_{low}"), variables.get(f"NCCL_{high}")
        if first and second and int(first, 0) > int(second, 0):
            yield Finding(ERROR, f"NCCL_{low}", f"{first} is more than NCCL_{high}={second}; NCCL follows neither")


def _protocol(variables: Mapping[str, str]) -> Iterator[Finding]:
    if "NCCL_PROTO" not in variables:
        return
    allowed, text = _protocols(variables), variables["NCCL_PROTO"]
    if "^" not in text and "ll128" in text.lower().replace(":", ",").replace(";", ",").split(","):
        yield Finding(WARNING, "NCCL_PROTO", "LL128, when forced, corrupts data on platforms that do not support it")
    if allowed == {"ll"}:
        yield Finding(
            WARNING,
            "NCCL_PROTO",
            "LL alone caps the bandwidth at about half: good for small messages (decode), bad for large ones (prefill)",
        )
    if not allowed:
        yield Finding(ERROR, "NCCL_PROTO", f"{text!r} leaves no protocol")


def _buffers(variables: Mapping[str, str]) -> Iterator[Finding]:
    allowed = _protocols(variables)
    for name, protocol, default in (
        ("NCCL_BUFFSIZE", "Simple", data.SIMPLE_BUFFER),
        ("NCCL_LL_BUFFSIZE", "LL", data.LL_BUFFER),
        ("NCCL_LL128_BUFFSIZE", "LL128", data.LL128_BUFFER),
    ):
        if name not in variables:
            continue
        size = int(variables[name], 0)
        if size & (size - 1):
            yield Finding(WARNING, name, f"{size} is not a power of two; odd sizes were seen to hang")
        if allowed and protocol.lower() not in allowed:
            with_it = connection_bytes(variables)
            without = with_it - size + default
            yield Finding(
                INERT,
                name,
                f"it sizes the {protocol} buffer, which NCCL_PROTO={variables['NCCL_PROTO']} never uses and which is "
                f"still allocated: {with_it / _MIB:.2f} MiB instead of {without / _MIB:.2f} MiB per connection and "
                f"channel{_with_channels(variables, with_it, without)}",
            )


def _with_channels(variables: Mapping[str, str], with_it: int, without: int) -> str:
    limits = [int(variables[one], 0) for one in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS") if one in variables]
    if not limits:
        return ""
    channels = min(limits)
    return (
        f", so up to {with_it * channels / _MIB:.0f} MiB instead of {without * channels / _MIB:.0f} MiB "
        f"per connection with {channels} channels, in each communicator"
    )


def _threads(variables: Mapping[str, str]) -> Iterator[Finding]:
    if variables.get("NCCL_NTHREADS") and _protocols(variables) == {"ll"} and int(variables["NCCL_NTHREADS"], 0) == 512:
        yield Finding(INERT, "NCCL_NTHREADS", "512 is what the LL protocol uses anyway")
    if "NCCL_LL128_NTHREADS" in variables and "ll128" not in _protocols(variables):
        yield Finding(INERT, "NCCL_LL128_NTHREADS", f"NCCL_PROTO={variables['NCCL_PROTO']} never uses LL128")


def _debugging(variables: Mapping[str, str]) -> Iterator[Finding]:
    level = variables.get("NCCL_DEBUG", "").upper()
    systems = [one.upper() for one in variables.get("NCCL_DEBUG_SUBSYS", "").split(",") if one]
    if systems and level not in ("INFO", "TRACE"):
        yield Finding(INERT, "NCCL_DEBUG_SUBSYS", "it filters what NCCL_DEBUG=INFO or TRACE writes, which is not set")
    if "NCCL_DEBUG_FILE" in variables:
        if not level:
            yield Finding(INERT, "NCCL_DEBUG_FILE", "nothing is written without NCCL_DEBUG")
        if "%p" not in variables["NCCL_DEBUG_FILE"]:
            yield Finding(
                WARNING, "NCCL_DEBUG_FILE", "without %p in its name every process overwrites the file of the others"
            )
    if level == "ATTN":
        yield Finding(WARNING, "NCCL_DEBUG", "NCCL before 2.32 does not know ATTN and logs nothing")
    loud = [one for one in systems if one in data.SUBSYSTEMS_PER_COLLECTIVE]
    if level == "TRACE" or (level == "INFO" and loud):
        what = ", ".join(loud) if loud else "TRACE"
        yield Finding(WARNING, "NCCL_DEBUG", f"{what} writes lines for every collective: do not measure with it")


def _switched_off(variables: Mapping[str, str]) -> Iterator[Finding]:
    for switch, value, prefix in (("NCCL_IB_DISABLE", "1", "NCCL_IB_"), ("NCCL_NVLS_ENABLE", "0", "NCCL_NVLS_")):
        if variables.get(switch) == value:
            for name in sorted(variables):
                if name.startswith(prefix) and name != switch:
                    yield Finding(INERT, name, f"{switch}={value} switches off what it is for")
    selections = _selections(variables.get("NCCL_ALGO", ""))
    only = {one for _function, _excluded, tokens in selections for one in tokens} <= {"nvls", "nvlstree"}
    if variables.get("NCCL_NVLS_ENABLE") == "0" and only and not any(excluded for _f, excluded, _t in selections):
        yield Finding(ERROR, "NCCL_ALGO", f"{variables['NCCL_ALGO']} is what NCCL_NVLS_ENABLE=0 switches off; keep one")


def _files(variables: Mapping[str, str]) -> Iterator[Finding]:
    path = variables.get("NCCL_CONF_FILE")
    if path and not path.startswith("/"):
        yield Finding(
            WARNING, "NCCL_CONF_FILE", f"{path!r} is looked for in the server's working folder; write the whole path"
        )


# Each takes the variables that are right by themselves.
RULES: tuple[Callable[[Mapping[str, str]], Iterator[Finding]], ...] = (
    _p2p,
    _channels,
    _protocol,
    _buffers,
    _threads,
    _debugging,
    _switched_off,
    _files,
)

# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a streamed completion says, and when: token events, usage, errors.

A chunk counts as a token event when it carries generated content: text, content, reasoning or a tool call. A chunk
that only names the role (some servers send it before the prompt is read), an empty one with the reason of the end, and
the one with the usage do not. How *many* tokens there were is never counted from chunks, one may carry several: that is
``usage.completion_tokens``.
"""

from __future__ import annotations

import json
from typing import Any, Callable

from . import files, sse

DELTA_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")


def carries_token(choice: Any) -> bool:
    """Whether one entry of ``choices`` carries generated content."""
    if not isinstance(choice, dict):
        return False
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in DELTA_FIELDS)


def count(value: Any) -> int | None:
    """A token count of a reply; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def error_text(payload: Any) -> str:
    """The message of an error reply in any of the usual shapes; "" when there is none."""
    if isinstance(payload, dict):
        for name in ("error", "message", "detail", "object"):
            value = payload.get(name)
            if isinstance(value, dict):
                return str(value.get("message") or json.dumps(value))
            if value and (name != "object" or value == "error"):
                return value if isinstance(value, str) else json.dumps(value)
    return ""


def text_of(choice: dict[str, Any]) -> str:
    """The text of an entry of ``choices`` that carries a token; "" where that is no text (a tool call)."""
    delta = choice.get("delta")
    told = [choice.get("text")] + [delta.get(name) for name in DELTA_FIELDS if isinstance(delta, dict)]
    return "".join(one for one in told if isinstance(one, str))


class Stream:
    """Collects one streamed answer; feed it the body as it arrives.

    ``told_speculation`` is the engine's (see engines/base.py): it is asked of events that carry no token.
    """

    def __init__(self, told_speculation: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None) -> None:
        self.times: list[float] = []  # arrival of each token event
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.texts: list[str] = []  # of the token events
        self.speculation: dict[str, Any] | None = None
        self.done = False
        self.error = ""  # message of an error that came inside the stream
        self._parser = sse.Parser()
        self._told_speculation = told_speculation

    def feed(self, when: float, data: bytes) -> None:
        """Take body bytes that arrived at ``when``. Raises ValueError for what is no such stream."""
        for event in self._parser.feed(data):
            self._event(when, event)

    def _event(self, when: float, event: sse.Event) -> None:
        if event.data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            payload = files.decode_json(event.data)
        except ValueError:  # UnicodeDecodeError is one
            raise ValueError(f"an event of the stream is not JSON: {event.data[:120]!r}") from None
        if not isinstance(payload, dict):
            raise ValueError(f"an event of the stream is not an object: {event.data[:120]!r}")
        if payload.get("error") or event.name == "error" or payload.get("object") == "error":
            self.error = error_text(payload) or "an error event without a message"
            return
        choices = payload.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if carries_token(choice):
                # Two choices of one chunk are still one arrival; only one choice is ever asked for.
                self.times.append(when)
                self.texts.append(text_of(choice))
            if isinstance(choice, dict) and choice.get("finish_reason"):
                self.finish_reason = str(choice["finish_reason"])
        if not choices and self._told_speculation is not None:
            self.speculation = self._told_speculation(payload) or self.speculation
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self._usage(usage)

    def _usage(self, usage: dict[str, Any]) -> None:
        # Some servers repeat the usage with every chunk; the last one is the whole.
        completion, prompt = count(usage.get("completion_tokens")), count(usage.get("prompt_tokens"))
        if completion is not None:
            self.completion_tokens = completion
        if prompt is not None:
            self.prompt_tokens = prompt
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and count(details.get("cached_tokens")) is not None:
            self.cached_tokens = details["cached_tokens"]

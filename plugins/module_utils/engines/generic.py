# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Any command that serves the OpenAI API: only what the API itself promises is expected of it."""

from __future__ import annotations

from typing import Any

from .base import Engine, extra


class Generic(Engine):
    """An OpenAI-compatible server whose command line is declared as a whole.

    In ``command``, ``{port}``, ``{host}``, ``{model}``, ``{served_model_name}`` and ``{env}`` are replaced, and for a
    server over several hosts ``{nodes}``, ``{rank}``, ``{head}`` and ``{head_port}``.
    """

    name = "generic"
    title = "the declared command"
    spans_hosts = True
    # Not every server has an API key variable; the common one of OpenAI clients and servers is used.
    api_key_variable = "OPENAI_API_KEY"

    def problems(self, declaration: dict[str, Any]) -> list[str]:
        found = super().problems(declaration)
        if not declaration["command"]:
            found.append("command: the engine 'generic' has no program of its own; declare the command to run")
        return found

    def argv(self, declaration: dict[str, Any], env_path: str, port: int) -> list[str]:
        values = {
            "{port}": str(port),
            "{host}": declaration["host"],
            "{model}": declaration["model"],
            "{served_model_name}": self.served_name(declaration),
            "{env}": env_path,
        }
        together = declaration["multi_host"]
        if together:
            values.update({"{nodes}": str(together["nodes"]), "{rank}": str(together["rank"])})
            values.update({"{head}": together["head"], "{head_port}": str(together["port"])})
        words = []
        for word in declaration["command"]:
            for key, value in values.items():
                word = word.replace(key, value)
            words.append(word)
        return words + extra(declaration)

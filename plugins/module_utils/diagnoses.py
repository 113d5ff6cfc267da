# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Known failures of a start, as data: what the log says, what it means, what helps. To add one: a row and its test."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Diagnosis:
    """One known failure; ``{0}``, ``{1}`` ... in the texts are the groups of the pattern."""

    name: str
    pattern: str
    cause: str
    remedy: str


#: The first row that matches wins: special ones before general ones.
TABLE = (
    Diagnosis(
        "unknown argument",
        r"error: unrecognized arguments: (.+)",
        "the engine does not know the argument {0}",
        "remove it from llm_server.extra_args, or use the name that this version of the engine has (--help)",
    ),
    Diagnosis(
        "wrong argument",
        r"error: (argument .+|the following arguments are required: .+)",
        "the engine refuses its arguments: {0}",
        "correct the field of llm_server that gives this argument",
    ),
    Diagnosis(
        "out of GPU memory",
        r"[\w.]*(?:OutOfMemoryError: )?CUDA out of memory\. Tried to allocate ([\d.]+ \w+)|OutOfMemoryError",
        "a GPU has not enough free memory ({0})",
        "check that nothing else holds the GPU (gpu_info), lower llm_server.memory_fraction or context_length",
    ),
    Diagnosis(
        "out of memory for the KV cache",
        r"(Not enough memory\. Please try to increase --mem-fraction-static[^\n]*"
        r"|No available memory for the cache blocks[^\n]*"
        r"|less than desired (?:GPU|CPU) memory utilization[^\n]*)",
        "the weights leave no memory for the KV cache: {0}",
        "change llm_server.memory_fraction, or give vLLM extra_args.kv-cache-memory-bytes; lower context_length",
    ),
    Diagnosis(
        "port in use",
        r"([Aa]ddress already in use|couldn't bind (?:HTTP )?(?:server )?socket[^\n]*)",
        "another process took the port after it was checked: {0}",
        "use port 0 for a free one, or end the process that has it",
    ),
    Diagnosis(
        "model missing",
        r"(model file not found: .+|[^\n]*does not appear to have a file named config\.json[^\n]*"
        r"|[^\n]*(?:No such file or directory: )'[^'\n]*(?:safetensors|config\.json|gguf)[^\n]*)",
        "the model is missing or incomplete: {0}",
        "correct llm_server.model, or copy the model again",
    ),
    Diagnosis(
        "remote code not trusted",
        r"(trust_remote_code=True|--trust-remote-code)[^\n]*",
        "the model brings code of its own, and running it was not allowed",
        "if you trust the model's publisher: llm_server.trust_remote_code: true",
    ),
    Diagnosis(
        "module missing",
        r"ModuleNotFoundError: No module named '([^']+)'",
        "the environment lacks the Python module {0}",
        "install it into the environment (ml_env), or declare the right ml_env_path",
    ),
    Diagnosis(
        "environment drifted",
        r"(ImportError: cannot import name [^\n]+|AttributeError: module '[^']+' has no attribute [^\n]+"
        r"|PackageNotFoundError: [^\n]+)",
        "packages of the environment do not fit together: {0}",
        "build the environment again from its lock (ml_env)",
    ),
    Diagnosis(
        "NUMA binding",
        r"(Not enough allowed NUMA nodes to bind threads[^\n]*)",
        "fewer NUMA nodes than ranks on this CPU host",
        "say which cores each rank gets: llm_server.env.VLLM_CPU_OMP_THREADS_BIND: '0|1'",
    ),
)


def diagnose(lines: list[str]) -> dict[str, str] | None:
    """The first known failure that a log shows: name, cause, remedy and the line; None when none is known."""
    text = "\n".join(lines)
    for row in TABLE:
        found = re.search(row.pattern, text)
        if found:
            groups = [one.strip() if one else "" for one in found.groups()]
            made = asdict(row)
            line = next((one for one in lines if found.group(0).split("\n")[0] in one), found.group(0))
            cause = re.sub(r" \(\)|: $", "", row.cause.format(*groups))
            return {"name": made["name"], "cause": cause, "remedy": row.remedy, "line": line.strip()[:500]}
    return None

# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Known failures of a start, as data: what the log says, what it means, what helps. To add one: a row and its test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable

from . import failure_numbers as numbers
from .failure_numbers import Context

_LOADING = ("starting", "reading arguments", "starting engine", "distributed init", "loading weights", "loading model")
#: torch's message with its numbers, or the bare name of the exception.
_CUDA_OOM = (
    r"(?:CUDA out of memory\. Tried to allocate ([\d.]+ \w+)[^\n]*|OutOfMemoryError(?!: CUDA out of memory\. Tried))"
)
_REBUILD = "build the environment again from its lock (ml_env)"
_CLEAN = "see who holds it (gpu_info), and clean the GPU (playbooks/reset_gpus.yml)"


@dataclass(frozen=True)
class Diagnosis:
    """One known failure; ``{0}``, ``{1}`` ... in the cause are the groups of the pattern.

    ``phases``: only in these. ``number``: a better remedy, with the number to change. ``evidence``: what of the host is
    looked at besides: "port", "shm", "signal".
    """

    name: str
    pattern: str
    cause: str
    remedy: str
    phases: tuple[str, ...] = ()
    number: Callable[[re.Match[str], Context], str] | None = None
    evidence: str = ""


#: The first row that matches wins: special ones before general ones, reasons before what follows from them.
TABLE = (
    # --- arguments ---
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
        "context longer than the model's",
        r"User-specified (?:context_length|max_model_len) \((\d+)\) is greater than the derived (?:context_length|"
        r"max_model_len) \((?:[\w.]+=)?(\d+)[^\n]*(?:To allow overriding|config\.json)",
        "llm_server.context_length is {0}, the model was made for {1}",
        "lower llm_server.context_length",
        number=numbers.longest_context,
    ),
    # --- GPU memory ---
    Diagnosis(
        "out of GPU memory for the weights",
        rf"{_CUDA_OOM}|Failed to load model - not enough GPU memory",
        "a GPU has not enough free memory for the weights ({0})",
        "check that nothing else holds the GPU (gpu_info), or use more GPUs (llm_server.tensor_parallel)",
        phases=_LOADING,
        number=numbers.cuda_weights,
    ),
    Diagnosis(
        "out of GPU memory",
        rf"{_CUDA_OOM}|CUDA error: out of memory|cudaErrorMemoryAllocation|cudaMalloc failed: out of memory",
        "a GPU has not enough free memory ({0})",
        "check that nothing else holds the GPU (gpu_info), lower llm_server.memory_fraction or context_length",
        number=numbers.cuda_later,
    ),
    Diagnosis(
        "out of memory for the KV cache",
        r"Raise --mem-fraction-static above ([\d.]+)[^\n]*",
        "the weights leave no memory for the KV cache: the fraction must be above {0}",
        "raise llm_server.memory_fraction",
        number=numbers.sglang_kv_told,
    ),
    Diagnosis(
        "out of memory for the KV cache",
        r"(Not enough memory\. Please try to increase --mem-fraction-static[^\n]*)",
        "the weights leave no memory for the KV cache: {0}",
        "raise llm_server.memory_fraction",
        number=numbers.sglang_kv,
    ),
    Diagnosis(
        "context too long for the KV cache",
        r"at least one request with the models?'?s max seq len \((\d+)\),? \(?([\d.]+) GiB KV cache is needed, which "
        r"is larger than the available KV cache memory \(([\d.]+) GiB\)\.(?: Based on the available memory, the "
        r"estimated maximum model length is (\d+))?",
        "one request of {0} tokens needs {1} GiB of KV cache, and there are {2}",
        "lower llm_server.context_length or raise llm_server.memory_fraction",
        number=numbers.vllm_context,
    ),
    Diagnosis(
        "GPU memory is taken",
        r"Free memory on device (\S+ )?\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory "
        r"utilization \(([\d.]+),",
        "of {2} GiB only {1} are free, and a fraction of {3} is asked for",
        _CLEAN,
        number=numbers.vllm_startup,
    ),
    Diagnosis(
        "out of memory for the KV cache",
        r"(No available memory for the cache blocks|less than desired CPU memory utilization[^\n]*)",
        "no memory is left for the KV cache: {0}",
        "change llm_server.memory_fraction, or give vLLM extra_args.kv-cache-memory-bytes; lower context_length",
    ),
    Diagnosis(
        "GPUs are not equally free",
        r"Error: (The memory capacity is unbalanced\. Some GPUs may be occupied by other processes)",
        "one of the GPUs has less free memory than the others",
        _CLEAN,
    ),
    # --- driver and device ---
    Diagnosis(
        "driver does not fit its library",
        r"[Dd]river/library version mismatch",
        "the NVIDIA kernel module and its libraries are of different versions (mostly an update without a reboot)",
        "reboot the host (or reload the nvidia modules); in a container, give it the libraries of the host's version",
    ),
    Diagnosis(
        "driver too old",
        r"(The NVIDIA driver on your system is too old(?: \(found version \d+\))?"
        r"|CUDA driver version is insufficient for CUDA runtime version)",
        "this build of torch needs a newer NVIDIA driver: {0}",
        "update the driver on the host, or use an environment built for the CUDA version that nvidia-smi shows",
    ),
    Diagnosis(
        "CUDA cannot be initialised",
        r"(CUDA unknown error|(?:Cuda failure|CUDA error:?|error=|runtime error \()\s*999\b[^\n]*"
        r"|CUDA_ERROR_UNKNOWN|cudaErrorUnknown)",
        "CUDA says 'unknown error' (999) although the driver is loaded: nvidia_uvm or its device node is missing",
        "on the host: modprobe nvidia_uvm && nvidia-modprobe -c 0 -u; in a container, pass /dev/nvidia-uvm on too and "
        "check that its major number is that in /proc/devices",
    ),
    Diagnosis(
        "no GPU is visible",
        r"(No CUDA GPUs are available|Found no NVIDIA driver on your system|no CUDA-capable device is detected"
        r"|invalid device ordinal)",
        "the engine sees fewer GPUs than it is to use: {0}",
        "correct llm_server.gpus and tensor_parallel; in a container, pass the /dev/nvidia* nodes on (see gpu_info)",
    ),
    Diagnosis(
        "no kernel image for this GPU",
        r"no kernel image is available for execution on the device",
        "the installed torch or kernels were not built for this GPU's compute capability",
        "install builds for it (newer torch and engine for newer GPUs), or another attention backend in extra_args",
    ),
    Diagnosis(
        "kernels cannot be compiled",
        r"(Failed to find C compiler[^\n]*|Could not find nvcc[^\n]*|fatal error: [\w./+-]+: No such file or directory"
        r"|Ninja is required to load C\+\+ extensions[^\n]*|CUDA_HOME environment variable is not set[^\n]*)",
        "the engine compiles kernels at its start, and something it needs for that is missing: {0}",
        "install a C compiler, the headers of this Python and the CUDA toolkit, or set CUDA_HOME in llm_server.env",
    ),
    Diagnosis(
        "compiler does not know the GPU",
        r"nvcc fatal\s*: Unsupported gpu architecture '(\w+)'",
        "a kernel is to be compiled for the GPU architecture {0}, which this CUDA toolkit does not know",
        "use a toolkit made for this GPU (CUDA_HOME and PATH in llm_server.env), or remove what asks for another GPU "
        "(NVCC_APPEND_FLAGS, NVCC_PREPEND_FLAGS, TORCH_CUDA_ARCH_LIST in the environment of the server)",
        number=numbers.compiler_variable,
    ),
    # --- between the ranks ---
    Diagnosis(
        "/dev/shm too small",
        r"(Error while creating shared memory segment[^\n]*|failed to extend /dev/shm/[^\n]*"
        r"|Call to posix_fallocate failed ?: No space left on device|Insufficient space in /dev/shm[^\n]*"
        r"|insufficient shared memory \(shm\))",
        "shared memory is full or too small: {0}",
        "remove what dead processes left there (playbooks/reset_gpus.yml), or make it larger (mount -o "
        "remount,size=16G /dev/shm; docker --shm-size)",
        evidence="shm",
    ),
    Diagnosis(
        "locked memory is limited",
        r"(ibv_(?:reg_mr\w*|create_\w+) failed(?: with error)?:? Cannot allocate memory)",
        "the network adapter cannot lock memory: {0}",
        "raise the limit (ulimit -l unlimited; the launcher systemd sets it), on Proxmox that of the container too",
    ),
    Diagnosis(
        "NCCL does not know a value",
        r"(Unrecognized element token \S+ when parsing \S+)",
        "a variable of the NCCL profile has a value that this NCCL does not know: {0}",
        "correct the profile (nccl_profile_name, nccl_profiles); its findings name the value",
    ),
    Diagnosis(
        "NCCL hangs",
        r"(Watchdog caught collective operation timeout: WorkNCCL\([^)]*\)"
        r"|Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined|wait timeout after \d+ ?ms)",
        "the ranks wait for each other without end: {0}",
        "try env.NCCL_P2P_DISABLE: 1 once: if that helps, peer-to-peer over PCIe is broken (switch ACS off and set "
        "iommu=pt on the host); look for Xid lines in the kernel log",
        evidence="nccl",
    ),
    Diagnosis(
        "rendezvous port in use",
        r"The server socket has failed to listen on any local network address\.(?: port: (\d+),)?[^\n]*EADDRINUSE",
        "the port over which the ranks find each other is in use ({0})",
        "end the earlier server that has it (playbooks/reset_gpus.yml), or declare another in extra_args (SGLang: "
        "nccl-port, dist-init-addr)",
        evidence="port",
    ),
    Diagnosis(
        "port in use",
        r"([Aa]ddress already in use|couldn't bind (?:HTTP )?(?:server )?socket[^\n]*)",
        "another process took the port after it was checked: {0}",
        "use port 0 for a free one, or end the process that has it",
        evidence="port",
    ),
    # --- model ---
    Diagnosis(
        "access to the model denied",
        r"(You are trying to access a gated repo|Cannot access gated repo[^\n]*|is a gated repository"
        r"|401 Client Error[^\n]*|403 Client Error[^\n]*)",
        "the model's repository wants a token that may read it: {0}",
        "accept its licence there and give the token as llm_server.secret_env.HF_TOKEN, or use a copy on disk (a path)",
    ),
    Diagnosis(
        "model not found",
        r"(model file not found: .+|[^\n]*does not appear to have a file named config\.json[^\n]*"
        r"|[^\n]*is not a local folder and is not a valid model identifier[^\n]*"
        r"|Cannot find any model weights with[^\n]*"
        r"|[^\n]*(?:No such file or directory: )'[^'\n]*(?:safetensors|config\.json|gguf)[^\n]*)",
        "the model is missing or incomplete: {0}",
        "correct llm_server.model, or copy the model again",
    ),
    Diagnosis(
        "weights damaged",
        r"(Error while deserializing header: \w+|tensor '[^']+' data is not within the file bounds[^\n]*"
        r"|invalid magic characters[^\n]*|PytorchStreamReader failed reading zip archive[^\n]*|failed to read magic)",
        "a file of the weights is truncated, damaged, or only a pointer of Git LFS: {0}",
        "copy the model again and compare its checksums",
    ),
    Diagnosis(
        "weights do not fit the config",
        r"(Following weights were not initialized from checkpoint: [^\n]{0,200}|size mismatch for [^\n]{0,200}"
        r"|(?:KeyError|ValueError): [^\n]*'(?:model\.)?layers\.[^\n]{0,200})",
        "config.json and the weights are not of the same model: {0}",
        "copy both from the same revision of the model; for a quantised model, use an engine that knows it",
    ),
    Diagnosis(
        "quantisation not supported",
        r"(Unknown quantization method: [^\n]{0,80}|The quantization method \S+ is not supported for the current GPU\."
        r"(?: Minimum capability: \S+ Current capability: [^\n]*)?"
        r"|Quantization method specified in the model config \([^\n]*)",
        "the engine cannot run this quantisation here: {0}",
        "use a version of the model for this GPU, or correct extra_args.quantization",
    ),
    Diagnosis(
        "model not known to the engine",
        r"(Unrecognized model in [^\n]{0,200}|The checkpoint you are trying to load has model type `\w+`"
        r"|Model architectures \[[^\]]*\] (?:are|failed)[^\n]{0,120}|unknown model architecture: '[^']*')",
        "the installed engine does not know this kind of model: {0}",
        "use a newer engine (ml_env), or correct llm_server.model; with code of its own: trust_remote_code: true",
    ),
    Diagnosis(
        "remote code not trusted",
        r"(`trust_remote_code=True`)",
        "the model brings code of its own, and running it was not allowed",
        "if you trust the model's publisher: llm_server.trust_remote_code: true",
    ),
    Diagnosis(
        "tokenizer does not fit",
        r"(Can't load tokenizer for '[^']*'|data did not match any variant of untagged enum \w+[^\n]*"
        r"|Tokenizer class \w+ does not exist or is not currently imported|vocab size mismatch[^\n]*"
        r"|error loading model vocabulary: [^\n]*)",
        "the tokenizer is missing, or of another version than the installed libraries: {0}",
        "copy the model's tokenizer files again, or use an environment with a newer tokenizers/transformers (ml_env)",
    ),
    Diagnosis(
        "draft model missing",
        r"AttributeError: '\w+' object has no attribute '(set_embed|hot_token_id|set_embed_and_head)'",
        "the draft of the speculation is no EAGLE draft (without one, SGLang takes the model itself)",
        "set llm_server.speculation.draft_model to the draft that belongs to this model",
    ),
    # --- limits of the host ---
    Diagnosis(
        "too many open files",
        r"(?m)^(?![^\n]*can cause fd limit errors)[^\n]*(Too many open files)",
        "the server may not open more files",
        "raise the limit for the server (ulimit -n 1048576; launcher systemd sets it)",
    ),
    Diagnosis(
        "compiler killed",
        r"(nvcc error\s*: '[^']+' died due to signal 9|fatal error: Killed signal terminated program \w+)",
        "kernels are compiled, and a compiler was killed, mostly by the kernel for want of host memory: {0}",
        "let fewer compilers run at once (llm_server.env.MAX_JOBS: 2), or raise the container's limit of memory",
    ),
    Diagnosis(
        "out of host memory",
        r"(can't allocate memory: you tried to allocate \d+ bytes|\bMemoryError\b|Cannot allocate memory)",
        "the host has not enough free memory: {0}",
        "end what else uses memory, raise the container's limit, or use a smaller model or context_length",
    ),
    Diagnosis(
        "disk full",
        r"(No space left on device[^\n]*)",
        "a file system is full: {0}",
        "make room where the line says (caches of compiled kernels are below HOME)",
    ),
    Diagnosis(
        "permission denied",
        r"(PermissionError: \[Errno 13\] Permission denied: '[^'\n]*')",
        "the server may not read or write a file: {0}",
        "give the user of the server access to it",
    ),
    Diagnosis(
        "NUMA binding",
        r"(Not enough allowed NUMA nodes to bind threads[^\n]*)",
        "fewer NUMA nodes than ranks on this CPU host",
        "say which cores each rank gets: llm_server.env.VLLM_CPU_OMP_THREADS_BIND: '0|1'",
    ),
    # --- packages ---
    Diagnosis(
        "compiler missing",
        r"(?:FileNotFoundError: \[Errno 2\] No such file or directory: '|\bsh: (?:line )?\d+: )"
        r"((?:[^':\n]*/)?(?:ninja|nvcc|gcc|g\+\+|cc|c\+\+))(?:'|: (?:command )?not found|: No such file)",
        "the engine compiles kernels and does not find {0}",
        "install it into the environment, or say where it is: llm_server.env.PATH (by default bin of ml_env_path, the "
        "system's folders, /usr/local/cuda/bin)",
    ),
    Diagnosis(
        "module missing",
        r"ModuleNotFoundError: No module named '([^']+)'",
        "the environment lacks the Python module {0}",
        "install it into the environment (ml_env), or declare the right ml_env_path",
    ),
    Diagnosis(
        "attention backend missing",
        r"ImportError: ((?:Can not import FA3 in sgl_kernel|cannot import name 'flash_ops' from 'sgl_kernel')[^\n]*)",
        "the attention backend asked for is not in this build of sgl-kernel: {0}",
        "name another one (llm_server.extra_args.attention-backend: triton, flashinfer), or use a build that has it",
    ),
    Diagnosis(
        "environment drifted",
        r"(?m)(ImportError: (?:cannot import name [^\n]+|[^\n]*undefined symbol: [^\n]+|[^\n]*cannot open shared "
        r"object file[^\n]*)|^[^\n]*AttributeError: (?:module )?'[^']+'(?: object)? has no attribute [^\n]+"
        r"|PackageNotFoundError: [^\n]+|^[^\n]*VersionConflict: [^\n]+)",
        "packages of the environment do not fit together: {0}",
        _REBUILD,
    ),
    Diagnosis(
        "kernels do not compile",
        r"((?:nvcc|ptxas) (?:fatal|error)\s*: [^\n]*"
        r"|[^\s]+\.(?:cu|cuh|cc|cpp|h|hpp|inl)(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal )?error: [^\n]*)",
        "a kernel cannot be compiled: {0}",
        "the compiler's call is in the log, after FAILED; see that the CUDA toolkit fits torch (python_env_info), or "
        "name another backend (llm_server.extra_args.attention-backend)",
        number=numbers.compiler_variable,
    ),
    # --- what follows from something else: only when nothing above was found ---
    Diagnosis(
        "kernels do not compile",
        r"(Ninja build failed|Error building extension '[^'\n]*'|ninja exited with status \d+"
        r"|ninja: build stopped: [^\n]*)",
        "a kernel cannot be compiled ({0})",
        "read the compiler's lines in the log, after FAILED",
        number=numbers.compiler_variable,
    ),
    Diagnosis(
        "NCCL error",
        r"((?:NCCL error: |NCCL error in: [^\n]*, )?unhandled (?:cuda|system) error|ncclUnhandledCudaError[^\n]*"
        r"|ncclSystemError[^\n]*|ncclInternalError[^\n]*|ncclRemoteError[^\n]*)",
        "NCCL failed and does not say why: {0}",
        "start once with env.NCCL_DEBUG: INFO (or WARN): the line before this one then names the call that failed",
        evidence="nccl",
    ),
    Diagnosis(
        "worker died",
        r"(?:scheduler died during initialization \(exit code: |crashed with exit code "
        r"|died unexpectedly \(exit code: )(-?\d+|None)",
        "a worker ended with exit code {0}",
        "read the lines before it in the log",
        evidence="signal",
    ),
    Diagnosis(
        "worker died at its start",
        r"WorkerProc initialization failed due to an exception in a background process",
        "a worker ended before it was ready",
        "read the lines of the worker before it in the log; where it has none, somebody or the kernel killed it",
        evidence="signal",
    ),
    Diagnosis(
        "a rank was lost",
        r"((?:Read|Write) error \[[^]\n]*\]:\d+: Connection reset by peer|Connection closed by peer \[[^]\n]*\]:\d+)",
        "a rank lost its connection to another one, which ended first: {0}",
        "find what ended the other one: its last lines in the log, the kernel's log (out of memory, Xid); where both "
        "say nothing, somebody killed it",
        evidence="signal",
    ),
)

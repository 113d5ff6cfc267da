"""A process that behaves as an engine's worker does, with the traps that fool a reader of its environment.

    python titled_process.py [--set NAME=VALUE] [--unset NAME] [--title TEXT] [--keep] [--garbage] [--worker ARGS ...]

``--title`` does what setproctitle does: it copies the environment elsewhere, then writes the title over the memory of
arguments and environment, so that /proc/PID/environ is lost and the live environment is not. ``--keep``: the title goes
over the arguments only (SPT_NOENV=1). ``--garbage`` then points ``environ`` at no memory at all. Each ``--worker`` (one
quoted string of arguments) starts such a process as a child. It prints "ready" when all is done and lives until
stdin closes, so that nothing stays behind when a test dies. Only the standard library.
"""

import argparse
import ctypes
import os
import shlex
import subprocess
import sys

LIBC = ctypes.CDLL(None)
LIBC.strdup.restype = ctypes.c_void_p
LIBC.strdup.argtypes = [ctypes.c_void_p]


def set_title(title: str, keep_environment: bool) -> None:
    """Write a title over our arguments and, unless it is to be kept, our initial environment."""
    environ = ctypes.c_void_p.in_dll(LIBC, "environ")
    old = ctypes.cast(environ, ctypes.POINTER(ctypes.c_void_p))
    count = 0
    while old[count]:
        count += 1
    copy = (ctypes.c_void_p * (count + 1))(*[LIBC.strdup(old[index]) for index in range(count)], None)
    set_title.copy = copy  # it must live as long as the process
    environ.value = ctypes.addressof(copy)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    arguments, arguments_end, _environment, environment_end = (int(one) for one in fields[45:49])
    end = arguments_end if keep_environment else environment_end
    text = title.encode()[: arguments_end - arguments - 1]
    ctypes.memset(arguments, 0, end - arguments)
    ctypes.memmove(arguments, text, len(text))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--unset", action="append", default=[])
    parser.add_argument("--title", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--garbage", action="store_true")
    parser.add_argument("--worker", action="append", default=[])
    arguments = parser.parse_args()
    for pair in arguments.set:
        name, _, value = pair.partition("=")
        os.environ[name] = value
    for name in arguments.unset:
        os.environ.pop(name, None)
    children = []
    for worker in arguments.worker:
        command = [sys.executable, os.path.abspath(__file__), *shlex.split(worker)]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert children[-1].stdout.readline() == b"ready\n"
    if arguments.title:
        set_title(arguments.title, arguments.keep)
    if arguments.garbage:
        ctypes.c_void_p.in_dll(LIBC, "environ").value = 0xFFFFFFFFFFFFFFF0
    os.write(1, b"ready\n")
    sys.stdin.buffer.read()
    if arguments.garbage:
        os._exit(0)


if __name__ == "__main__":
    main()

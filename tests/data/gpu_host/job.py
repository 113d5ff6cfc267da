"""A job on a stand-in GPU: holds device nodes, and behaves as told. Writes its pid to --ready once it is that far."""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import socket
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--open", action="append", default=[], help="device node to hold open")
parser.add_argument("--map", action="append", default=[], help="device node to map and close")
parser.add_argument("--shm", action="append", default=[], help="file in /dev/shm to make and map")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--detach", action="store_true", help="fork twice, so that init becomes the parent")
parser.add_argument("--worker", help="title of a child that holds the nodes instead, and is ended on TERM")
parser.add_argument("--respawn", action="store_true", help="start the worker again whenever it ends")
parser.add_argument("--no-wait", action="store_true", help="leave the worker a zombie when it ends")
parser.add_argument("--bind", type=int, help="TCP port to bind (0: any), told in the file port.PID beside --ready")
parser.add_argument("--listen", action="store_true", help="and listen there")
parser.add_argument("--ready", required=True)
options = parser.parse_args()

if options.detach:
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
if options.ignore_term:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def start_worker() -> subprocess.Popen[bytes]:
    handles = [os.open(path, os.O_RDWR) for path in options.open]
    child = subprocess.Popen([options.worker, "1000000"], executable="/bin/sleep", pass_fds=handles)
    for handle in handles:
        os.close(handle)
    return child


def announce(*pids: int) -> None:
    with open(options.ready + ".part", "w", encoding="ascii") as out:
        out.write(" ".join(map(str, pids)))
    os.rename(options.ready + ".part", options.ready)


if options.worker:
    worker = start_worker()

    def stop(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would wait for the worker inside of this wait
        worker.terminate()
        worker.wait()
        sys.exit(0)

    if not options.ignore_term:
        signal.signal(signal.SIGTERM, stop)
    announce(os.getpid(), worker.pid)
    while True:
        if options.no_wait:
            signal.pause()
        if options.respawn and worker.poll() is not None:
            worker = start_worker()
        time.sleep(0.02)

held = [os.open(path, os.O_RDWR) for path in options.open]
for path in options.map:
    handle = os.open(path, os.O_RDWR)
    held.append(mmap.mmap(handle, mmap.PAGESIZE, mmap.MAP_PRIVATE))
    os.close(handle)
for name in options.shm:
    with open(f"/dev/shm/{name}", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        held.append(mmap.mmap(file.fileno(), 0))
if options.bind is not None:
    held.append(socket.socket())
    held[-1].bind(("127.0.0.1", options.bind))
    if options.listen:
        held[-1].listen()
    with open(f"{os.path.dirname(options.ready)}/port.{os.getpid()}", "w", encoding="ascii") as out:
        out.write(str(held[-1].getsockname()[1]))
announce(os.getpid())
while True:
    time.sleep(1)

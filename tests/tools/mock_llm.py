"""The deterministic server of ``module_utils/known_server.py`` for tests and benchmarks.

Run it alone (``python mock_llm.py --port 0``) or in a test: ``with Mock(trap="early_role") as mock: mock.url``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "playbooks" / "collections"))

from ansible_collections.groundstate.llm.plugins.module_utils.known_server import TRAPS, Server, Settings, Truth
from ansible_collections.groundstate.llm.plugins.module_utils.self_check import new_loop


class Mock:
    """The server in a thread of this process, for tests; ``truths`` may be read once the requests are over."""

    def __init__(self, tls=None, **settings) -> None:
        # Slower than alone: on a busy machine all the tokens of a short answer would be read at once.
        self.server = Server(Settings(**{"step": 0.02, **settings}))
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Mock:
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self.server.listen(0, self._tls), self._loop).result(10)
        self.port = port
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    def __exit__(self, *_unused) -> None:
        async def stop() -> None:
            self.server.stop()
            await asyncio.sleep(0)  # connections that were being opened end

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def truths(self) -> list[Truth]:
        return self.server.truths


async def serve(port: int, settings: Settings) -> None:
    server = Server(settings)
    print(await server.listen(port), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: a free one; the port is printed as the first line")
    defaults = Settings()
    for name, value in asdict(defaults).items():
        kind = (lambda text: text == "true") if isinstance(value, bool) else type(value)
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=value)
    given = vars(parser.parse_args())
    port = given.pop("port")
    if given["trap"] not in TRAPS:
        parser.error(f"unknown trap {given['trap']!r}; use one of {', '.join(TRAPS)}")
    loop, _name = new_loop()
    with contextlib.suppress(KeyboardInterrupt):
        loop.run_until_complete(serve(port, Settings(**given)))


if __name__ == "__main__":
    main()

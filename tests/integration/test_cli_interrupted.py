"""`groundstate deploy` ended by Ctrl-C at any moment: nothing goes on without it, and the same command succeeds."""

from __future__ import annotations

import random
import signal
import time

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import servers
from cli_site import Site

SEED = 20261129
TIMES = 8  # moments; with the seed, always the same ones


@pytest.fixture(name="site")
def made_site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.end()


def wait_for(condition, seconds: float = 120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def interrupt(site: Site, chance: random.Random) -> str:
    """Send SIGINT at a moment that the generator chooses; where that was."""
    after, more_s = chance.randrange(2, 55), chance.uniform(0, 1.5)
    process = site.start()
    seen = []
    for line in process.stdout:
        seen.append(line)
        if len(seen) >= after:
            break
    time.sleep(more_s)  # somewhere within what begins there
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    told = f"after {after} lines and {more_s:.2f} s:\n{''.join(seen)}{rest}"
    # A moment may lie behind the end of the run.
    assert process.returncode in (0, 130), told
    if process.returncode == 130:
        assert "The same command picks up from here" in rest, told
    return told


@pytest.mark.slow  # eight runs that are interrupted, and eight that are not
@pytest.mark.parametrize("number", range(TIMES))
def test_the_same_command_succeeds_after_ctrl_c_at_any_moment(site, number):
    told = interrupt(site, random.Random(SEED + number))
    wait_for(lambda: not site.at_work())
    assert not list(site.temporary.glob("groundstate-*")), told

    end = site.run()[-1]
    assert end["hosts"]["one"]["failed"] == 0, told
    record = servers.load(str(site.home), "mock")
    assert record.running(), told
    ours = site.ours()
    roots = [one for one in ours if one.ppid not in {other.pid for other in ours}]
    assert [one.pid for one in roots] == [record.pid], told
    assert not site.at_work(), told

"""Time limits of tests: as they stand on a machine with processors to spare, longer beside many others."""

from __future__ import annotations

import asyncio
import itertools
import queue
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_timeout

import patience
from patience import Patience, Usage

BUSY, HALF, IDLE = (Usage(1, 19), Usage(10, 10), Usage(0, 0))
"""What a thread gets in a second: a twentieth of a processor, a half, or it asks for none."""


class Machine:
    """A clock that goes on by ten seconds whenever it is read, and a thread that gets `per_second`."""

    def __init__(self, per_second: Usage) -> None:
        self.per_second = per_second
        self.seconds = -10

    def now(self) -> float:
        self.seconds += 10
        return self.seconds

    def usage(self) -> dict[str, Usage]:
        return {"thread": Usage(*(self.seconds * each for each in self.per_second))}

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, now=self.now, usage=self.usage)


@pytest.mark.parametrize(
    "got, seconds",
    [(IDLE, 30), (Usage(1, 0), 30), (HALF, 60), (BUSY, 600)],
    ids=["idle", "served", "half", "busy"],
)
def test_a_limit_lasts_longer_by_the_processor_time_that_is_missing(got: Usage, seconds: int) -> None:
    machine = Machine(got)
    limit = machine.patience(29.9)
    left = list(itertools.takewhile(bool, (limit.left() for _ in range(1000))))
    assert machine.seconds == seconds
    assert all(0 < each < 29.9 for each in left)


def test_it_is_looked_at_again_after_what_is_left_and_not_all_the_time() -> None:
    limit = Machine(HALF).patience(29.8)
    assert limit.next_look() == pytest.approx(19.8)
    assert limit.next_look() == pytest.approx(9.8)
    assert limit.next_look() == pytest.approx(14.8), "half of thirty seconds were spent"
    limit = Machine(HALF).patience(10.2)
    assert limit.next_look() == patience.LOOK_SECONDS


def test_usage_of_living_processes_is_counted_by_the_kernel() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spins:
        try:
            while patience.usage_of_tree().get(str(spins.pid), IDLE).ran < 10_000_000:
                time.sleep(0.01)
        finally:
            spins.kill()
    assert patience.usage_of(spins.pid) == {}


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> None:
    """All patience that begins meanwhile runs at a twentieth of the clock."""
    looks = itertools.count(1)

    def usage() -> dict[str, Usage]:
        n = next(looks)
        return {"thread": Usage(BUSY.ran * n, BUSY.waited * n)}

    monkeypatch.setattr(patience, "usage_of", lambda *_: {})
    monkeypatch.setattr(Patience.__init__, "__kwdefaults__", {"now": time.monotonic, "usage": usage})
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.01)


async def test_a_block_is_ended_at_its_limit() -> None:
    with pytest.raises(TimeoutError):
        async with patience.within(0.01):
            await asyncio.Event().wait()


@pytest.mark.usefixtures("starved")
async def test_a_block_that_is_kept_waiting_goes_on() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with patience.within(0.01):
            await asyncio.Event().wait()
    assert time.monotonic() - began > 0.05
    assert await patience.wait_for(asyncio.sleep(0.1, "here"), 0.05) == "here"


def test_a_wait_is_over_at_its_limit() -> None:
    with pytest.raises(queue.Empty):
        patience.wait(lambda seconds: queue.Queue[int]().get(timeout=seconds), 0.01)


@pytest.mark.usefixtures("starved")
def test_a_wait_is_asked_again_while_patience_lasts() -> None:
    asked: list[float] = []

    def waiting(seconds: float) -> str:
        asked.append(seconds)
        if len(asked) == 4:
            return "here"
        raise subprocess.TimeoutExpired("command", seconds)

    assert patience.wait(waiting, 60.0) == "here"
    assert asked[0] == 60.0 and all(59 < seconds < 60 for seconds in asked[1:])


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        patience.run([sys.executable, "-c", "import time; time.sleep(3600)"], timeout=0.05)


def test_a_command_gives_what_it_said() -> None:
    said = "import sys; print('out'); print(sys.stdin.read(), file=sys.stderr); sys.exit(3)"
    command = [sys.executable, "-c", said]
    done = patience.run(command, capture_output=True, text=True, timeout=60.0, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "\n")
    with pytest.raises(subprocess.CalledProcessError):
        patience.run(command, timeout=60.0, check=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("left, is_ended", [(None, True), (1000.0, False)])
def test_a_test_is_ended_at_its_limit_unless_it_was_kept_waiting(
    monkeypatch: pytest.MonkeyPatch, left: float | None, is_ended: bool
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(Patience, "next_look", lambda self: left)
    monkeypatch.setattr(pytest_timeout, "timeout_sigalrm", lambda item, settings: ended.append(item))
    item = SimpleNamespace()
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]
    try:
        patience.set_timer(item, SimpleNamespace(timeout=300.0))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.raise_signal(signal.SIGALRM)
        assert bool(ended) == is_ended
        assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) != is_ended, "it is looked at again"
        item.cancel_timeout()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, timer)

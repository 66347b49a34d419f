"""Signal handlers are installed in a block, and the previous ones are restored however it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from elastane_common.processes.signal_handlers import STOP_SIGNALS, signal_handlers


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_handled_in_the_block_and_then_as_before() -> None:
    outer: list[int] = []
    inner: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: outer.append(number))
    with signal_handlers(STOP_SIGNALS, lambda number, _: inner.append(number)):
        for number in STOP_SIGNALS:
            signal.raise_signal(number)
    signal.raise_signal(signal.SIGTERM)
    assert inner == list(STOP_SIGNALS)
    assert outer == [signal.SIGTERM]


def test_previous_handlers_are_restored_when_a_handler_raises() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with pytest.raises(SystemExit), signal_handlers(STOP_SIGNALS, leave):
        signal.raise_signal(signal.SIGHUP)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize(("keep_ignored", "handled"), [(True, []), (False, [signal.SIGHUP])])
def test_an_ignored_signal_is_left_alone_on_request(keep_ignored: bool, handled: list[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    seen: list[int] = []
    with signal_handlers(STOP_SIGNALS, lambda number, _: seen.append(number), keep_ignored=keep_ignored):
        signal.raise_signal(signal.SIGHUP)
    assert seen == handled
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

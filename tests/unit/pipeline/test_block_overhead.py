"""What blocks take beside their units, measured by a pipeline in one thread."""

from __future__ import annotations

import threading
import time

import pytest

from elastane.pipeline.block_overhead import overhead_seconds
from elastane.pipeline.ring_links import RingLinks


def test_what_is_slow_beside_the_units_is_measured_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before, usual = threading.active_count(), overhead_seconds(steps=3)
    assert min(usual) > 0
    send = RingLinks.send

    def slow(*given):  # type: ignore[no-untyped-def]
        time.sleep(0.02)
        return send(*given)

    monkeypatch.setattr(RingLinks, "send", slow)
    forward, backward = overhead_seconds(steps=3)
    assert forward > 0.01, "of two forwards one sends a frame"
    assert backward > 0.02
    assert threading.active_count() == before

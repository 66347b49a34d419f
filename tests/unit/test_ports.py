"""Ports for processes that are yet to be started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from elastane_common import ports


def test_a_port_is_none_that_the_kernel_gives_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "range"
    table.write_text("30000\t60999\n")
    monkeypatch.setattr(ports, "_EPHEMERAL", table)
    found = {ports.unused_port() for _ in range(50)}
    assert all(10_000 <= port < 30_000 for port in found) and len(found) > 40


def test_a_port_at_which_somebody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        ordered = [taken.getsockname()[1], free.getsockname()[1]]
        free.close()
        monkeypatch.setattr(ports.random.SystemRandom, "sample", lambda *_: ordered)
        assert ports.unused_port() == ordered[1]


@pytest.mark.parametrize("said", ["1024 60999", "nonsense", ""])
def test_where_there_are_none_below_any_will_do(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "range"
    table.write_text(said)
    monkeypatch.setattr(ports, "_EPHEMERAL", table)
    with socket.create_server(("127.0.0.1", ports.unused_port())):
        pass

"""When workers get the address of a relay, and when they connect directly, which is said."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from elastane_agent.supervisor.relay_keeper import RelayKeeper
from elastane_common.processes.child import ExitStatus
from elastane_common.processes.output import Output


def keeper() -> tuple[RelayKeeper, io.StringIO]:
    said = io.StringIO()
    return RelayKeeper(Output(stderr=said, color=False), lambda status: None), said


def test_with_tls_workers_connect_directly_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text("a certificate")
    monkeypatch.setenv("ELASTANE_TLS_CA", str(tmp_path / "ca.pem"))
    relay, said = keeper()
    try:
        assert relay.start("master:50051") == "master:50051"
        assert "no relay: the connections to the master use TLS" in said.getvalue()
        assert relay.restart_due is None
    finally:
        relay.stop()


def test_a_relay_that_cannot_start_is_said_and_workers_connect_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastane_agent.supervisor.relay_keeper.sys.executable", "/bin/false")
    relay, said = keeper()
    try:
        assert relay.start("127.0.0.1:1") == "127.0.0.1:1"
        assert "the relay did not start" in said.getvalue()
    finally:
        relay.stop()


def test_workers_get_the_relay_before_the_masters() -> None:
    relay, said = keeper()
    try:
        first, _, masters = relay.start("127.0.0.1:1,127.0.0.1:2").partition(",")
        assert masters == "127.0.0.1:1,127.0.0.1:2"
        assert first.startswith("127.0.0.1:") and f"relay at {first}" in said.getvalue()
    finally:
        relay.stop()


def test_of_a_relay_that_is_not_restarted_any_more_it_is_said_that_workers_connect_directly() -> None:
    relay, said = keeper()
    try:
        for number in range(20):
            relay.died(float(number), ExitStatus(-9))
        assert relay.restart_due is not None and "until then workers connect directly" in said.getvalue()
        relay.restart_due = None
        relay.died(20.0, ExitStatus(-9))
        assert relay.restart_due is None
        assert said.getvalue().rstrip().endswith("20 allowed: from now on workers connect directly")
    finally:
        relay.stop()

"""Figures of workers and their agent: what is counted, asked for and served."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection, Mapping
from dataclasses import fields
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import typer

from elastane_agent.observe.agent_side import ASK_SECONDS_MIN, AgentMetrics
from elastane_agent.observe.exposition import AgentCollector, MetricsPort, MetricsPortError
from elastane_cli.commands.run_options import metrics_address
from elastane_common.errors import MasterUnreachableError
from elastane_common.observe.figures import STEP_BOUNDS, AgentCounts, WorkerFigures
from elastane_proto.v1 import ring_pb2


def test_steps_are_counted_by_duration() -> None:
    figures = WorkerFigures()
    figures.step_done(0.02, replayed=False)
    figures.step_done(400.0, replayed=True)
    assert figures.step_counts[STEP_BOUNDS.index(0.025)] == 1 and figures.step_counts[-1] == 1
    assert (figures.steps_replayed, figures.replay_seconds) == (1, 400.0)


def test_the_message_has_the_fields_of_a_workers_figures() -> None:
    assert [field.name for field in fields(WorkerFigures)] == list(
        ring_pb2.WorkerFigures.DESCRIPTOR.fields_by_name
    )
    figures = WorkerFigures(step=3, generation=2, handover_bytes_sent=7)
    figures.step_done(0.02, replayed=True)
    sent = ring_pb2.WorkerFigures(**vars(figures))
    assert {name: getattr(sent, name) for name in vars(figures)} == vars(figures)


def test_how_workers_ended() -> None:
    counts = AgentCounts()
    counts.starts.update({"w0": 3, "w1": 3})
    for code in (0, 80, 81, 1, -signal.SIGKILL):
        counts.exited(code, (80, 81))
    assert counts.exits == {"finished": 1, "drained": 2, "failed": 1, "killed": 1}
    assert counts.running == 1


class Master:
    """Answers an agent with what it was told, or does not. now: the agent's time, in seconds."""

    def __init__(self) -> None:
        self.figures: dict[str, ring_pb2.WorkerFigures] = {}
        self.away = False
        self.now = 0.0

    def ask(self, workers: Collection[str]) -> Mapping[str, ring_pb2.WorkerFigures]:
        if self.away:
            raise MasterUnreachableError("away")
        return {worker: self.figures[worker] for worker in workers if worker in self.figures}


def test_the_last_known_figures_stay_while_the_worker_or_the_master_is_away() -> None:
    master = Master()
    metrics = AgentMetrics("j", None, master.ask, clock=lambda: master.now)
    assert metrics.figures() == {}
    metrics.keep(["w0", "w1"])
    first, second = ring_pb2.WorkerFigures(step=3), ring_pb2.WorkerFigures(step=4)
    master.figures = {"w0": first, "w1": first, "of-another-agent": first}
    assert metrics.figures() == {"w0": first, "w1": first}
    master.figures = {"w0": second}
    assert metrics.figures() == {"w0": first, "w1": first}, "not asked again within a second"
    master.now += ASK_SECONDS_MIN
    assert metrics.figures() == {"w0": second, "w1": first}
    master.away, master.now = True, master.now + ASK_SECONDS_MIN
    assert metrics.figures() == {"w0": second, "w1": first}
    metrics.keep(["w0"])
    assert metrics.figures() == {"w0": second}, "names of hosts that went are no labels any more"


def test_the_port_serves_figures_and_nothing_else() -> None:
    counts = AgentCounts()
    counts.starts.update({"w0": 2})
    counts.spot_notices = 1
    figures = WorkerFigures(step=5)
    figures.step_done(0.02, replayed=False)
    known = {
        "w0": ring_pb2.WorkerFigures(**vars(figures)),
        "other-release": ring_pb2.WorkerFigures(step=5, step_counts=[1]),
    }
    collector = AgentCollector("j", counts, lambda: known)
    port = MetricsPort("127.0.0.1", 0, collector)
    try:
        with urlopen(f"http://{port.address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        assert 'elastane_worker_step{worker="w0"} 5.0' in text
        assert 'elastane_worker_step_seconds_bucket{le="0.025",worker="w0"} 1.0' in text
        assert "other-release" not in text
        assert "elastane_agent_spot_notices_total 1.0" in text
        assert "elastane_agent_worker_restarts_total 1.0" in text
        with pytest.raises(HTTPError) as absent:
            urlopen(f"http://{port.address}/w0.json", timeout=20)
        assert absent.value.code == 404
        with pytest.raises(MetricsPortError, match="choose another"):
            MetricsPort("127.0.0.1", int(port.address.rpartition(":")[2]), collector)
    finally:
        port.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(port.address.rpartition(":")[2])))


def test_addresses_that_others_reach_are_said_to_be_so() -> None:
    assert metrics_address("127.0.0.1:9100", insecure=False) == ("127.0.0.1", 9100)
    assert metrics_address("[::1]:0", insecure=False) == ("[::1]", 0)
    assert metrics_address(":9100", insecure=True) == ("0.0.0.0", 9100)
    for text in (":9100", "0.0.0.0:9100", "10.0.0.7:9100", "worker-7:9100"):
        with pytest.raises(typer.BadParameter, match="--metrics-insecure"):
            metrics_address(text, insecure=False)
    for text in ("9100", "localhost:", "localhost:99999", "localhost:x"):
        with pytest.raises(typer.BadParameter, match="HOST:PORT"):
            metrics_address(text, insecure=True)

"""Figures of workers and their agent: what is written, read and served."""

from __future__ import annotations

import json
import signal
import socket
from dataclasses import asdict
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import typer

from elastane.runtime.figure_report import FigureReport
from elastane_agent.observe.exposition import AgentCollector, MetricsPort, MetricsPortError
from elastane_cli.commands.run_options import metrics_address
from elastane_common.observe.figures import (
    STEP_BOUNDS,
    AgentCounts,
    HostFigures,
    WorkerFigures,
    figures_file,
    figures_line,
    read_figures,
    write_figures,
)


def test_figures_come_back_as_they_were_written(tmp_path: Path) -> None:
    figures = WorkerFigures(step=3, generation=2, handover_bytes_sent=7)
    figures.step_done(0.02, replayed=False)
    figures.step_done(400.0, replayed=True)
    path = tmp_path / "w.json"
    write_figures(path, figures)
    assert read_figures(path) == figures
    assert figures.step_counts[STEP_BOUNDS.index(0.025)] == 1 and figures.step_counts[-1] == 1
    assert (figures.steps_replayed, figures.replay_seconds) == (1, 400.0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"unknown": 1}'])
def test_a_file_that_says_something_else_breaks_no_scrape(tmp_path: Path, text: str) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    found = read_figures(path)
    assert found is None or found == WorkerFigures()
    assert read_figures(tmp_path / "absent.json") is None


def test_the_report_writes_what_was_last(tmp_path: Path) -> None:
    figures, path = WorkerFigures(), tmp_path / "w.json"
    report = FigureReport(figures, str(path), period_seconds=60.0)
    report.start()
    figures.step = 9
    report.close()
    report.close()
    assert json.loads(path.read_text())["step"] == 9
    silent = FigureReport(figures, "")
    silent.start()
    silent.close()


def test_a_folder_that_is_gone_ends_the_report_and_nothing_else(tmp_path: Path) -> None:
    report = FigureReport(WorkerFigures(), str(tmp_path / "gone" / "w.json"), period_seconds=0.001)
    report.start()
    report.close()


def test_how_workers_ended() -> None:
    counts = AgentCounts()
    counts.starts.update({"w0": 3, "w1": 3})
    for code in (0, 80, 81, 1, -signal.SIGKILL):
        counts.exited(code, (80, 81))
    assert counts.exits == {"finished": 1, "drained": 2, "failed": 1, "killed": 1}
    assert counts.running == 1


def test_figures_of_workers_on_other_hosts_are_taken_out_of_their_lines() -> None:
    figures, told = HostFigures(), WorkerFigures(step=3, step_seconds=0.5)
    assert figures.take("a-0", figures_line(json.dumps(asdict(told))))
    assert not figures.take("a-0", "elastane-figure: x") and figures.all() == {"a-0": told}
    assert figures.take("b-0", figures_line(json.dumps(asdict(told))))
    figures.keep(["b-0", "c-0"])
    assert list(figures.all()) == ["b-0"], "names of hosts that went are no labels any more"


@pytest.mark.parametrize(
    "text", ["{", "3", '{"step": "9"}', '{"step": true}', '{"step_counts": [1]}', '{"ests": [1]}']
)
def test_a_line_that_only_looks_like_figures_is_the_scripts_own(text: str) -> None:
    figures = HostFigures()
    assert not figures.take("a-0", figures_line(text)) and figures.all() == {}


def test_the_port_serves_figures_and_nothing_else(tmp_path: Path) -> None:
    counts = AgentCounts()
    counts.starts.update({"w0": 2})
    counts.spot_notices = 1
    write_figures(figures_file(tmp_path, "w0"), WorkerFigures(step=5))
    port = MetricsPort("127.0.0.1", 0, AgentCollector("j", counts, tmp_path))
    try:
        with urlopen(f"http://{port.address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        assert 'elastane_worker_step{worker="w0"} 5.0' in text
        assert "elastane_agent_spot_notices_total 1.0" in text
        assert "elastane_agent_worker_restarts_total 1.0" in text
        with pytest.raises(HTTPError) as absent:
            urlopen(f"http://{port.address}/w0.json", timeout=20)
        assert absent.value.code == 404
        with pytest.raises(MetricsPortError, match="choose another"):
            MetricsPort(
                "127.0.0.1", int(port.address.rpartition(":")[2]), AgentCollector("j", counts, tmp_path)
            )
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

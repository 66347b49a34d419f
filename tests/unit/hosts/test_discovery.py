"""The discovery script: what it prints, how it fails, and that it cannot hang us."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastane_agent.hosts.discovery import Discovery, DiscoveryError, ask_hosts
from elastane_agent.hosts.slots import HostOffer
from elastane_common.errors import ElastaneError


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "hosts.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_what_it_prints(tmp_path: Path) -> None:
    assert ask_hosts(script(tmp_path, "echo a:2; echo; echo b; echo noise >&2")) == {
        "a": HostOffer(2),
        "b": HostOffer(),
    }
    assert ask_hosts(script(tmp_path, "echo a:0")) == {}
    assert ask_hosts(script(tmp_path, "echo '# none'")) == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo the cloud is down >&2; exit 7", "exit code 7: the cloud is down"),
        ("kill -9 $$", "SIGKILL"),
        ("echo", "printed nothing"),
    ],
)
def test_how_it_fails(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(DiscoveryError, match=words):
        ask_hosts(script(tmp_path, body))


def test_what_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="No such file"):
        ask_hosts(tmp_path / "none")
    plain = tmp_path / "plain"
    plain.write_text("a:1")
    with pytest.raises(DiscoveryError, match="Permission denied"):
        ask_hosts(plain)


def test_one_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    # The grandchild holds the pipe: killing the shell alone would wait for it.
    hanging = script(tmp_path, f"sleep 60 & echo $! > {pid_file}; wait")
    started = time.monotonic()
    with pytest.raises(DiscoveryError, match=r"did not end within 0\.3 s"):
        ask_hosts(hanging, 0.3)
    assert time.monotonic() - started < 30
    pid = int(pid_file.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_hosts_stay_while_it_fails_and_each_outage_is_told_once(tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_text("a:1")
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    discovery = Discovery(
        script(tmp_path, f"cat {answers}"),
        interval_seconds=0.01,
        timeout_seconds=5.0,
        on_hosts=told.put,
        on_trouble=told.put,
    )
    discovery.start()
    try:
        assert told.get(timeout=30) == {"a": HostOffer(1)}
        answers.unlink()
        while isinstance(found := told.get(timeout=30), dict):
            assert found == {"a": HostOffer(1)}
        assert "the list of hosts is unchanged" in found and "No such file" in found
        fresh = tmp_path / "fresh"
        fresh.write_text("b:2")
        fresh.replace(answers)
        assert told.get(timeout=30) == {"b": HostOffer(2)}, "an outage is told once"
    finally:
        discovery.stop()


def test_nonsense_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ElastaneError, match="line 2 has neither a class nor a price"):
        ask_hosts(script(tmp_path, "echo a; echo 'b c'"))

"""Stacks of this process, with py-spy where it is installed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from elastane.runtime.stacks import all_stacks


def py_spy(folder: Path, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "py-spy").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "py-spy").chmod(0o755)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the interpreter and of its environment's programs; another one is on the PATH."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    return tmp_path


def test_py_spy_of_the_environment_is_asked_for_this_process(environment: Path) -> None:
    py_spy(environment / "bin", 'echo "$@"')
    py_spy(environment / "path", "echo another")
    assert all_stacks() == f"dump --native --pid {os.getpid()}\n"


def test_py_spy_of_the_path_is_taken_where_the_environment_has_none(environment: Path) -> None:
    py_spy(environment / "path", "echo native")
    assert all_stacks() == "native\n"


@pytest.mark.parametrize("body", ["echo half; echo 'Operation not permitted' >&2; exit 1", "kill -9 $$"])
def test_without_its_answer_python_tells_the_threads_by_name(environment: Path, body: str) -> None:
    py_spy(environment / "bin", body)
    waiting, end = threading.Event(), threading.Event()

    def hang() -> None:
        waiting.set()
        end.wait()

    other = threading.Thread(target=hang, name="hanging")
    other.start()
    waiting.wait()
    shown: list[str] = []
    asking = threading.Thread(target=lambda: shown.append(all_stacks()), name="session")
    asking.start()
    asking.join()
    end.set()
    other.join()
    assert shown[0].startswith("Thread MainThread:\n")
    assert "Thread hanging:\n" in shown[0] and "end.wait()" in shown[0]
    assert "Thread session" not in shown[0] and "half" not in shown[0]

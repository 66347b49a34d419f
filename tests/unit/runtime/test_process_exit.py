"""What a worker's process tells the master when it ends."""

from __future__ import annotations

import atexit
import signal
import sys

import pytest

from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.process_exit import WorkerExits, tell_agent
from elastane_common.errors import EXIT_REFUSED, EXIT_SCRIPT_RAISED, EXIT_START_ANEW, StepError
from elastane_proto.v1 import ring_pb2


class Ending:
    """A worker's process that ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[ring_pb2.Bye | None] = []
        at_exit: list[tuple[object, ...]] = []
        monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        environment = WorkerEnvironment(master="localhost:1", worker_id="w0", ests=2)
        self.exits = WorkerExits(environment, lambda reason, seconds: None)
        self.done: ring_pb2.Done | None = None
        self.exits.install(self.said.append, lambda: self.done)
        self._at_exit = at_exit[0]

    def end(self) -> ring_pb2.Bye:
        call, *arguments = self._at_exit
        call(*arguments)  # type: ignore[operator]
        [bye] = self.said
        assert bye is not None
        return bye


@pytest.mark.parametrize(
    ("finished", "phase", "code"),
    [
        (False, "succeeded", EXIT_REFUSED),  # the others were faster
        (True, "succeeded", EXIT_SCRIPT_RAISED),
        (True, "", EXIT_REFUSED),
        (True, "failed", EXIT_REFUSED),
    ],
)
def test_a_refusal_after_the_end_of_the_training_is_no_refusal_of_it(
    monkeypatch: pytest.MonkeyPatch, finished: bool, phase: str, code: int
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    tell_agent()
    ending = Ending(monkeypatch)
    ending.exits.finished = finished
    ending.done = ring_pb2.Done(phase=phase) if phase else None
    with pytest.raises(SystemExit) as ended:
        sys.excepthook(StepError, StepError("drawn after backward()"), None)
    assert ended.value.code == code
    assert "drawn after backward()" in ending.end().message


def test_a_process_that_another_replaces_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        ending.exits.start_anew("there is no checkpoint to go back to")
    assert ended.value.code == EXIT_START_ANEW
    said = ending.end()
    assert said.reason == ring_pb2.BYE_REASON_DRAINED
    assert said.message == "there is no checkpoint to go back to: a new process must start"


def test_a_script_that_ends_before_its_epochs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Ending(monkeypatch).end()
    assert (said.reason, said.message) == (
        ring_pb2.BYE_REASON_FAILED,
        "the script ended before its epochs did",
    )


def test_a_script_that_has_come_to_its_end_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(monkeypatch)
    ending.exits.finished = True
    assert ending.end().reason == ring_pb2.BYE_REASON_FINISHED

"""What an agent with an embedded master says of a model's slots in its temporary folder."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from elastane_agent.supervisor.farewell import what_was_kept
from elastane_agent.supervisor.master_keeper import MasterKeeper
from elastane_common.exit_codes import CODE_OK, CODE_REFUSED
from elastane_proto.v1 import job_pb2


@pytest.mark.parametrize(
    ("code", "said_before", "words"),
    [
        (CODE_OK, "", ["kept: the slots of the trained model, in "]),
        (CODE_REFUSED, "", ["kept: the slots of the model, as last saved; continue with --state-dir "]),
        (130, "kept: the slots", []),
    ],
)
def test_the_slots_are_trained_only_if_the_run_succeeded(
    code: int, said_before: str, words: list[str]
) -> None:
    said: list[str] = []
    output: Any = SimpleNamespace(say=lambda text, *_, **__: said.append(text))
    settings: Any = SimpleNamespace(state_dir=None, listen="127.0.0.1:0", http="")
    keeper = MasterKeeper(settings, output, lambda status: None)
    assert keeper.temporary_dir is not None
    try:
        keeper.model_dir.mkdir()
        keeper.dispose_of_state(job_pb2.Job(name="j", saved_step=-1), code, said=said_before)
        assert keeper.model_dir.exists()
    finally:
        shutil.rmtree(keeper.temporary_dir)
    assert [any(text.startswith(word) for word in words) for text in said] == [True] * len(words)


@pytest.mark.parametrize("names_it", [True, False])
def test_a_folder_that_the_same_command_continues_with_stays(names_it: bool) -> None:
    """Slots were saved elsewhere (--checkpoint); which tasks are DONE is in the state alone."""
    settings: Any = SimpleNamespace(state_dir=None, listen="127.0.0.1:0", http="")
    output: Any = SimpleNamespace(say=lambda *_, **__: None)
    keeper = MasterKeeper(settings, output, lambda status: None)
    assert keeper.temporary_dir is not None
    job = job_pb2.Job(name="j", saved_step=-1, phase=job_pb2.JOB_PHASE_WAITING)
    job.settings.checkpoint_url = "runs/s"
    text = what_was_kept(job, state_dir=str(keeper.temporary_dir) if names_it else "", has_slots=True)
    keeper.dispose_of_state(job, 143, said=text)
    assert keeper.temporary_dir.exists() is names_it
    shutil.rmtree(keeper.temporary_dir, ignore_errors=True)

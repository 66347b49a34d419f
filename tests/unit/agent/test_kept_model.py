"""What an agent with an embedded master says of a model's slots in its temporary folder."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from elastane_agent.supervisor.master_keeper import MasterKeeper
from elastane_common.exit_codes import CODE_OK, CODE_REFUSED
from elastane_proto.v1 import job_pb2


@pytest.mark.parametrize(
    ("code", "said_before", "words"),
    [
        (CODE_OK, False, ["kept: the slots of the trained model, in "]),
        (CODE_REFUSED, False, ["kept: the slots of the model, as last saved; continue with --state-dir "]),
        (130, True, []),
    ],
)
def test_the_slots_are_trained_only_if_the_run_succeeded(
    code: int, said_before: bool, words: list[str]
) -> None:
    said: list[str] = []
    output: Any = SimpleNamespace(say=lambda text, *_, **__: said.append(text))
    settings: Any = SimpleNamespace(state_dir=None, listen="127.0.0.1:0", http="")
    keeper = MasterKeeper(settings, output, lambda status: None)
    assert keeper.temporary_dir is not None
    try:
        keeper.model_dir.mkdir()
        keeper.dispose_of_state(job_pb2.Job(name="j", saved_step=-1), code, said_what_was_kept=said_before)
        assert keeper.model_dir.exists()
    finally:
        shutil.rmtree(keeper.temporary_dir)
    assert [any(text.startswith(word) for word in words) for text in said] == [True] * len(words)

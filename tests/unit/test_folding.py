"""Routine events are folded, and nothing else is."""

from __future__ import annotations

from elastane_proto.folding import ROUTINE, fold_words, folded
from elastane_proto.history.events import CheckpointRequested, CheckpointSaved
from elastane_proto.history.fold import DatedEvent


def runs(*kinds: str) -> list[tuple[str, ...]]:
    return list(folded(kinds, lambda kind: kind))


def test_runs_of_checkpoints_are_one_and_the_rest_is_as_it_was() -> None:
    asked, saved = sorted(ROUTINE)
    assert runs(
        "worker_joined", asked, saved, asked, saved, "worker_lost", asked, saved, "job_succeeded"
    ) == [
        ("worker_joined",),
        (asked, saved, asked, saved),
        ("worker_lost",),
        (asked,),
        (saved,),
        ("job_succeeded",),
    ]
    assert runs() == [] and runs(*[saved] * 5) == [(saved,) * 5]
    assert runs(saved, "checkpoint_failed", saved) == [(saved,), ("checkpoint_failed",), (saved,)]


def test_a_fold_says_what_it_was() -> None:
    asked, saved = CheckpointRequested("c", 10, 2, "every 10 steps"), CheckpointSaved("c", 10, 4096, "5f", 2)
    told = [DatedEvent(1, 0.0, event.kind, "", "", 1, 9, event) for event in (asked, saved)] * 2
    later = DatedEvent(5, 0.0, "checkpoint_saved", "", "", 1, 31, CheckpointSaved("d", 30, 4096, "5f", 2))
    assert fold_words([*told, later]) == "3 checkpoints saved, of steps 10 to 30"
    assert fold_words([*told[:2], told[0]]) == "1 checkpoint saved, of step 10"
    assert "none is saved" in fold_words([told[0]] * 3)

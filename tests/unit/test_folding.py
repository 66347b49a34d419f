"""Routine events are folded, and nothing else is."""

from __future__ import annotations

from elastane_proto.folding import ROUTINE, fold_words, folded


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
    told = [("checkpoint_requested", 9, {"at_step": "10"}), ("checkpoint_saved", 11, {"at_step": "10"})] * 2
    assert fold_words([*told, ("checkpoint_saved", 30, {})]) == "3 checkpoints saved, of steps 10 to 30"
    assert fold_words([*told[:2], told[0]]) == "1 checkpoint saved, of step 10"
    assert "none is saved" in fold_words([told[0]] * 3)

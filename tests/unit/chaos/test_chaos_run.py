"""A fault that the end of its run cuts short shows nothing, and comes again in the next run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastane_cli.chaos.run import Chaos, _State
from elastane_cli.rehearse.faults import ActiveFault, Fault
from elastane_cli.rehearse.results import Outcome


class Promises:
    """None of them holds."""

    def skip_events(self, *_: object) -> None: ...

    def broken(self, *_: object) -> list[str]:
        return ["no event tells of it"]


@pytest.mark.parametrize("over", [True, False])
def test_a_fault_that_acts_until_the_job_is_over_is_not_held_against_it(tmp_path: Path, over: bool) -> None:
    cluster: Any = SimpleNamespace(client=None, job="j", is_over=False, asks_anew=[])

    @contextmanager
    def acts(_cluster: object, _rng: random.Random) -> Iterator[ActiveFault]:
        cluster.is_over = over
        yield ActiveFault(0.0, "injected", hold_seconds=0.0)

    seen = SimpleNamespace(step=3, at=1.0, generation=1, members=("w0",), reason="")
    cluster.watch = SimpleNamespace(latest=seen, forget=lambda: None, since=list, first=lambda *_: seen)
    chaos = Chaos(folder=tmp_path, script=[], faults=["acts"], ests=1, workers=1, minutes=1.0, seed="1")
    state = _State(chaos, cast(Outcome, SimpleNamespace(steps=9, is_pipeline=False)), {}, 0.0)
    injection = state._inject(cluster, cast(Any, Promises()), Fault("acts", "", acts), 1)
    if over:
        assert injection is None
    else:
        assert injection is not None and injection.problems == ("no event tells of it",)


@pytest.mark.parametrize(
    ("is_pipeline", "shadows", "fault", "may_rewind"),
    [
        (False, 0, "kill-worker", False),
        (True, 0, "kill-worker", True),
        (True, 1, "kill-worker", False),
        (True, 1, "kill-master", True),
    ],
)
def test_only_a_pipeline_without_a_second_holder_may_lose_committed_steps(
    tmp_path: Path, is_pipeline: bool, shadows: int, fault: str, may_rewind: bool
) -> None:
    chaos = Chaos(
        folder=tmp_path, script=[], faults=[fault], ests=3, workers=3, minutes=1.0, seed="1", shadows=shadows
    )
    state = _State(chaos, cast(Outcome, SimpleNamespace(steps=9, is_pipeline=is_pipeline)), {}, 0.0)
    assert state._judged_by(ActiveFault(0.0, "injected"), fault).may_rewind is may_rewind
    settings = chaos.settings()
    assert settings.pipeline_shadows == shadows

"""How a script asks who leads: read in its source, followed in its frames."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from elastane.runtime.rank_reads import Asked, BlockTrace, how_asked

SCRIPT = """
def run(job):
    if job.is_leader:
        draw()
        for item in (1, 2):
            if item: break
    draw()
    if job.is_leader and True: draw()
    if job.rank == 0:
        draw()
    main = job.is_leader
    if not job.is_leader:
        draw()
    if job.is_leader:
        draw()
    else:
        draw()
    for item in (1,):
        if job.is_leader: continue
    print(job.rank)
    sampler = DistributedSampler(job.rank)
    return job.rank
"""


class Job:
    """Notes how it is asked, and what was drawn in blocks of EST 0 alone."""

    def __init__(self) -> None:
        self.found: list[Asked] = []
        self.trace = BlockTrace(self.left)
        self.inside = False
        self.blocks = 0

    def ask(self) -> None:
        frame = sys._getframe(2)
        how = how_asked(frame)
        self.found.append(how)
        if how.block is not None:
            self.inside = self.trace.follow(frame, how.block)

    def left(self) -> None:
        self.inside = False
        self.blocks += 1

    @property
    def is_leader(self) -> bool:
        self.ask()
        return True

    @property
    def rank(self) -> int:
        self.ask()
        return 0


def test_a_plain_if_is_the_leaders_alone_and_all_else_is_not(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    drawn: list[bool] = []
    job = Job()
    names = {"draw": lambda: drawn.append(job.inside), "DistributedSampler": int}
    before = sys.gettrace()
    sys.settrace(None)  # where the tests are measured
    try:
        exec(compile(SCRIPT, str(file), "exec"), names)
        names["run"](job)  # type: ignore[operator]
    finally:
        sys.settrace(before)
    blocks = [(how.block is not None, how.kept, how.harmless) for how in job.found]
    plain, doubtful, kept, harmless = (
        (True, False, False),
        (False, False, False),
        (False, True, False),
        (
            False,
            False,
            True,
        ),
    )
    assert blocks == [
        plain,
        plain,
        plain,
        kept,
        doubtful,
        doubtful,
        doubtful,
        harmless,
        harmless,
        kept,
    ]
    assert drawn == [True, False, True, True, False]
    assert job.blocks == 3
    assert job.found[3].place == "train.py, line 11: main = job.is_leader"


def test_without_source_nothing_is_certain() -> None:
    job = Job()
    exec(compile("if job.is_leader: pass", "<nowhere>", "exec"), {"job": job})
    assert job.found == [Asked("<nowhere>, line 1")]


def test_a_debugger_keeps_its_trace_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: random.random)
    assert not BlockTrace(lambda: None).follow(sys._getframe(), (1, 2))

"""A master of canned answers, and `elastane top` on a pseudo-terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastane_proto.v1 import job_pb2
from pseudo_terminal import Terminal
from unit.cli.fake_master import FakeMaster, running_job, serving


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    fake.jobs["other"] = running_job("other")
    fake.jobs["other"].phase = job_pb2.JOB_PHASE_SUSPENDED
    fake.progress[0][0].dataset = "train"
    holder = fake.progress[0][0].holders.add(index=12, worker_id="w1", attempt=1)
    holder.range.start, holder.range.end = 96, 128
    fake.progress = fake.progress[:1]
    with serving(fake) as address:
        fake.address = address
        yield fake


@pytest.fixture
def start(master: FakeMaster) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def begin(*arguments: str, **options: Any) -> Terminal:
        started.append(
            Terminal("top", "--master", master.address, "--interval", "0.05", *arguments, **options)
        )
        return started[-1]

    yield begin
    for terminal in started:
        terminal.close()

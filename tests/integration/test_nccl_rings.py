"""Rings over NCCL: gloo's bits, an end to every wait, a ring without the member that died.

One GPU is enough for all members.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from elastane.collective.rendezvous import RendezvousStore
from integration.nccl_member import ESTS_EACH, vector
from integration.ring_threads import GlooOracle

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

#: By the way they are summed: direct, scatter, ring.
ELEMENTS = (1_000, 200_000, 5_000_000)
ENDS_SECONDS = 60


class Process:
    """One member's process."""

    def __init__(self, address: str) -> None:
        program = str(Path(__file__).with_name("nccl_member.py"))
        self.process = subprocess.Popen(
            [sys.executable, program, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("> "):  # NCCL writes to stdout, too
                return line.removeprefix("> ").strip()
        raise AssertionError("the member's process has ended")


@pytest.fixture
def members() -> Iterator[list[Process]]:
    store = RendezvousStore("127.0.0.1")
    found = [Process(store.address) for _ in range(3)]
    yield found
    for member in found:
        member.process.kill()
        member.process.wait()
    store.close()


def _all(members: Sequence[Process], line: str) -> list[str]:
    for member in members:
        member.tell(line)
    return [member.answer() for member in members]


def _form(members: Sequence[Process], prefix: str) -> None:
    for rank, member in enumerate(members):
        member.tell(f"form {prefix} {rank} {len(members)}")
    assert [member.answer() for member in members] == ["formed"] * len(members)


def _of_gloo(members: int, elements: int) -> str:
    ranks = ESTS_EACH * members
    total = GlooOracle(ranks).sum([vector(rank, elements) for rank in range(ranks)])
    return hashlib.sha256(total.numpy().tobytes()).hexdigest()


@pytest.mark.timeout(ENDS_SECONDS)
@pytest.mark.parametrize("elements", ELEMENTS)
def test_sums_over_nccl_have_the_bits_of_gloo(members: list[Process], elements: int):
    _form(members, "ring")
    expected = _of_gloo(3, elements)
    for _ in range(3):
        assert _all(members, f"sum {elements}") == [expected] * 3
    assert _all(members, "close") == ["closed"] * 3


@pytest.mark.timeout(ENDS_SECONDS)
@pytest.mark.parametrize("elements", ELEMENTS)
def test_survivors_of_a_killed_member_leave_the_sum_and_form_a_ring(members: list[Process], elements: int):
    _form(members, "first")
    assert len(set(_all(members, f"sum {elements}"))) == 1
    survivors, dead = members[:2], members[2]
    assert _all(survivors, f"start {elements}") == ["started"] * 2
    dead.process.kill()
    # The master tells the survivors of a death.
    assert _all(survivors, "abort") == ["aborted"] * 2
    assert _all(survivors, "finish") == ["RingAborted"] * 2
    assert _all(survivors, "close") == ["closed"] * 2
    _form(survivors, "second")
    assert _all(survivors, f"sum {elements}") == [_of_gloo(2, elements)] * 2


@pytest.mark.timeout(ENDS_SECONDS)
def test_a_peer_that_is_silent_does_not_hold_up_the_end_of_a_ring(members: list[Process]):
    _form(members, "first")
    assert len(set(_all(members, "sum 1000"))) == 1
    assert _all(members[:2], "start 5000000") == ["started"] * 2
    assert _all(members, "abort") == ["aborted"] * 3
    assert _all(members[:2], "finish") == ["RingAborted"] * 2
    assert _all(members, "close") == ["closed"] * 3
    _form(members, "second")
    assert _all(members, "sum 1000") == [_of_gloo(3, 1000)] * 3

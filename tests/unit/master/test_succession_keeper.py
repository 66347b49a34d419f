"""The keeper of a master's place: what it has its owner do, and when. Store and owner are stand-ins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

import patience
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.job_servers import JobServers, LeaseOver
from elastane_master.jobs.succession_keeper import Follower, SuccessionKeeper
from elastane_master.store.closed import ClosedJobs, Listed
from elastane_master.store.connection import JobNames
from elastane_master.store.leader_lease import LeaseReply, LeaseUnanswered

LEASE_SECONDS = 0.15
OURS = LeaseReply(1)


class Lease:
    """Gives the answer of the moment."""

    lease_seconds = LEASE_SECONDS

    def __init__(self, answer: LeaseReply | None = OURS) -> None:
        self.answer = answer
        self.released_at: list[float] = []
        self.wait: Callable[[], Awaitable[None]] | None = None

    async def acquire(self) -> LeaseReply:
        if self.wait is not None:
            await self.wait()
        if self.answer is None:
            raise LeaseUnanswered("away")
        return self.answer

    async def released(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def release(self) -> None:
        self.released_at.append(time.monotonic())


class Owner(Follower):
    """Notes what it is asked. ends: whether its takeovers come to their end, one after the other."""

    def __init__(self, ends: list[bool]) -> None:
        self.ends = ends
        self.did: list[str] = []
        self.leading = asyncio.Event()
        self.until: Callable[[], Awaitable[None]] | None = None

    async def lead(self) -> bool:
        self.did.append("lead")
        end = self.ends.pop(0) if self.ends else True
        if not end and self.until is not None:
            await self.until()
        if end:
            self.leading.set()
        return end

    async def pause(self, reason: str) -> None:
        self.did.append("pause")

    async def resume(self) -> None:
        self.did.append("resume")

    async def give_way(self, reason: str) -> None:
        self.did.append("give way")


async def until(condition: Callable[[], bool]) -> None:
    async with patience.within(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_takeover_that_was_cut_off_is_begun_again_when_the_lease_is_ours_again() -> None:
    lease, owner = Lease(), Owner([False, False])
    keeper = SuccessionKeeper(lease, owner)

    async def cut_off() -> None:
        lease.answer = None
        await until(lambda: keeper.state.role == "unsure")

    owner.until = cut_off
    await keeper.start()
    assert owner.did == ["lead"] and not owner.leading.is_set()
    lease.answer = OURS
    await until(lambda: len(owner.did) == 2 and keeper.state.role == "unsure")  # cut off once more
    lease.answer = OURS
    await patience.wait_for(owner.leading.wait(), 20)
    assert owner.did == ["lead"] * 3
    await keeper.release()


async def test_whoever_is_fenced_in_a_takeover_gives_way_and_leaves_the_lease_to_the_other() -> None:
    lease, owner = Lease(), Owner([False])
    keeper = SuccessionKeeper(lease, owner)

    async def fenced() -> None:
        keeper.fenced("job j was taken over")

    owner.until = fenced
    await keeper.start()
    assert owner.did == ["lead", "give way"] and lease.released_at
    await patience.wait_for(owner.leading.wait(), 20)
    assert time.monotonic() - lease.released_at[0] >= LEASE_SECONDS - 0.05
    assert owner.did == ["lead", "give way", "lead"]
    await keeper.release()


async def test_the_lease_is_counted_from_the_question() -> None:
    """The store may have had it long when the answer comes: by then another may be next."""
    lease, owner = Lease(), Owner([])
    keeper = SuccessionKeeper(lease, owner)
    asked: list[float] = []

    async def slow() -> None:
        asked.append(time.monotonic())
        await asyncio.sleep(0.03)

    lease.wait = slow
    await keeper.start()
    assert keeper.state.renewed_at <= asked[0]
    await until(lambda: len(asked) > 2)
    assert keeper.state.renewed_at <= asked[-1]
    await keeper.release()


async def test_a_keeper_that_cannot_ask_any_more_ends_its_owner() -> None:
    """A leader that renews its lease no more would refuse everything, and say nothing."""
    lease, owner = Lease(), Owner([])
    keeper = SuccessionKeeper(lease, owner)
    await keeper.start()

    async def broken() -> None:
        raise RuntimeError("nobody expected this")

    lease.wait = broken
    with pytest.raises(RuntimeError, match="nobody expected this"):
        await patience.wait_for(keeper.failure, 20)
    await keeper.release()


async def test_jobs_are_unknown_to_nobody_before_all_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed(self: ClosedJobs, jobs: list[str], state_version: int) -> Listed:
        return Listed({}, jobs, [])

    monkeypatch.setattr(ClosedJobs, "take_over", listed)

    async def jobs() -> JobNames:
        return JobNames([f"j{number}" for number in range(20)], frozenset())

    async def mark_stored(names: object) -> None: ...

    store = SimpleNamespace(jobs=jobs, mark_stored=mark_stored, redis=None)
    hosts = JobServers(store, SimpleNamespace(state_version=1))  # type: ignore[arg-type]
    taken: list[str] = []

    async def take_over(name: str, **_: object) -> None:
        await asyncio.sleep(0)
        taken.append(name)

    monkeypatch.setattr(hosts.opening, "read", take_over)

    def refusals() -> set[str]:
        reasons = set()
        for ask in (lambda: hosts.get("j0"), hosts.all, hosts.names):
            with pytest.raises(Rejection) as refused:
                ask()
            reasons.add(refused.value.reason)
        with pytest.raises(Rejection) as refused:
            hosts.create("new", None).send(None)  # type: ignore[arg-type]
        return reasons | {refused.value.reason}

    assert refusals() == {"not_leading"}
    # The lease runs out in the middle: the rest is for somebody else to take over.
    with pytest.raises(LeaseOver):
        await hosts.start(lambda: len(taken) < 5)
    assert 5 <= len(taken) < 20 and refusals() == {"not_leading"}
    await hosts.abandon(Rejection("not_leading", "away"))
    await hosts.start()
    hosts.refuse(None)
    assert hosts.all() == []
    await hosts.abandon(Rejection("not_leading", "away"))
    hosts.refuse(None)
    assert refusals() == {"not_leading"}

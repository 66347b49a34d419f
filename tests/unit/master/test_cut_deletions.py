"""A job is deleted while the store goes away, or another master takes over: the list of jobs stays right."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as StoreAway

from elastane_master.decisions.events import Rejection
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.job_table import ClosedJob
from elastane_master.store.closed import Closed
from integration.finished_jobs import records


class Deleting:
    """A master with one finished job. calls: what it asked of the store, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.away = False
        self.lost_lead: Rejection | None = None
        self.jobs = JobServers(SimpleNamespace(redis=None, remove_job=self.remove_job), None)  # type: ignore[arg-type]
        self.jobs.restored = True
        self.jobs.finished.records = SimpleNamespace(delete=self.delete)  # type: ignore[assignment]
        [(self.name, record)] = records(1)
        closed = ClosedJob.of(self.name, Closed(1, record))
        assert closed is not None
        self.jobs._table.closed[self.name] = closed

    async def delete(self, name: str, token: int, request_id: str) -> None:
        self.calls.append("delete")
        if self.lost_lead is not None:
            await self.jobs.abandon(self.lost_lead)

    async def remove_job(self, name: str) -> None:
        if self.away:
            self.away = False
            raise StoreAway
        self.calls.append("remove")


async def test_a_master_that_lost_its_lead_leaves_the_list_to_the_new_leader() -> None:
    master = Deleting()
    master.lost_lead = Rejection("not_leading", "another master leads")
    with pytest.raises(Rejection) as refusal:
        await master.jobs.delete(master.name, request_id="once")
    assert refusal.value is master.lost_lead
    assert master.calls == ["delete"]


async def test_a_deletion_that_the_store_cut_off_is_finished_by_the_next_request() -> None:
    """Else a job without a key would stay in the list, and be held as damaged once its fence has gone."""
    master = Deleting()
    master.away = True
    with pytest.raises(StoreAway):
        await master.jobs.delete(master.name, request_id="once")
    await master.jobs.delete(master.name, request_id="once")
    assert master.calls == ["delete", "delete", "remove"]
    assert master.jobs.names() == []

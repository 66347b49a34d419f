"""Sources cut into tasks, and what no dataset can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_shards.errors import IllegalTransition, InvalidRequest, InvalidSettings, InvalidSource
from elastane_shards.settings import QueueSettings
from elastane_shards.splitters import Splitter, extended, list_source, range_source, stream_source


@given(st.integers(1, 500), st.integers(1, 60))
def test_tasks_of_a_range_lie_end_to_end(size: int, task_size: int) -> None:
    splitter = Splitter(range_source(size), task_size)
    bounds = [splitter.bounds(index) for index in range(splitter.num_tasks)]
    assert [x for start, end in bounds for x in range(start, end)] == list(range(size))
    assert all(end - start == task_size for start, end in bounds[:-1])


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50), st.integers(1, 9))
def test_a_list_is_dealt_whole_and_in_order(entries: list[int], task_size: int) -> None:
    splitter = Splitter(list_source(entries), task_size)
    dealt = [e for t in range(splitter.num_tasks) for e in splitter.entries(range(*splitter.bounds(t)))]
    assert dealt == entries
    assert splitter.all_entries() == tuple(entries)


def test_permuted_positions_take_entries_in_their_order() -> None:
    assert Splitter(list_source([10, 11, 12, 13]), 2).entries([3, 0]) == (13, 10)


def test_a_stream_deals_its_partial_task_only_when_closed() -> None:
    source = stream_source(0, False)
    assert Splitter(source, 4).num_tasks == 0
    source = extended(source, 10, False)
    assert Splitter(source, 4).num_tasks == 2
    source = extended(source, 10, True)
    splitter = Splitter(source, 4)
    assert (splitter.num_tasks, splitter.bounds(2), splitter.closed) == (3, (8, 10), True)
    assert extended(source, 10, True) == source


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: range_source(0), id="size 0"),
        pytest.param(lambda: range_source(-3), id="negative size"),
        pytest.param(lambda: range_source(2**63), id="size beyond 64 bits"),
        pytest.param(lambda: list_source([]), id="no entries"),
        pytest.param(lambda: list_source([1, -2]), id="negative entry"),
        pytest.param(lambda: list_source([2**63]), id="entry beyond 64 bits"),
        pytest.param(lambda: stream_source(-1, False), id="negative watermark"),
        pytest.param(lambda: extended(stream_source(9, False), 8, False), id="watermark backwards"),
    ],
)
def test_impossible_sources_are_refused(make: object) -> None:
    with pytest.raises(InvalidSource):
        make()  # type: ignore[operator]


def test_refusals_name_the_entry() -> None:
    with pytest.raises(InvalidSource) as refusal:
        list_source([0, -9, 8])
    assert refusal.value.facts == {"entry": "-9"}
    assert refusal.value.reason == "invalid_argument"


@pytest.mark.parametrize(("watermark", "closed"), [(10, False), (11, True)])
def test_a_closed_stream_stays_as_it_is(watermark: int, closed: bool) -> None:
    with pytest.raises(IllegalTransition):
        extended(stream_source(10, True), watermark, closed)


def test_only_streams_grow() -> None:
    with pytest.raises(IllegalTransition):
        extended(range_source(5), 6, False)


@pytest.mark.parametrize("index", [-1, 3])
def test_there_are_no_other_tasks(index: int) -> None:
    with pytest.raises(InvalidRequest):
        Splitter(range_source(9), 3).bounds(index)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"task_size": 0, "size": 1}, id="task_size 0"),
        pytest.param({"task_size": 1}, id="no source"),
        pytest.param({"task_size": 1, "size": 1, "watermark": 0}, id="two sources"),
        pytest.param({"task_size": 1, "size": 1, "closed": True}, id="closed range"),
        pytest.param({"task_size": 1, "size": 1, "epochs": 0}, id="no epochs"),
        pytest.param({"task_size": 1, "size": 1, "max_attempts": 0}, id="no attempts"),
        pytest.param({"task_size": 1, "size": 1, "lease_seconds": 0.0}, id="no lease"),
        pytest.param({"task_size": 1, "size": 1, "lease_seconds": float("inf")}, id="endless lease"),
        pytest.param({"task_size": 1, "watermark": 1, "shuffle": True}, id="shuffled stream"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings):
        checked = QueueSettings(**settings)  # type: ignore[arg-type]
        checked.check()
        checked.source()

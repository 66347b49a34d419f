"""`elastane explain`: the chain of events of workers that are in, stand by, or are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from google.protobuf import timestamp_pb2
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_cli.explain import explain, known_workers, ring_changes
from elastane_master.jobs.limits import clip
from elastane_proto.history.events import Place
from elastane_proto.history_wire import dated_event_of
from elastane_proto.v1 import job_pb2, ring_pb2
from unit.cli.fake_master import FakeMaster, running_job, serving

STORY: list[tuple[str, str, str, dict[str, str]]] = [
    ("worker_joined", "w0", "w0 joined", {}),
    ("worker_joined", "w1", "w1 joined", {}),
    ("ring_change", "", "w0, w1 joined", {"members": "w0[0:2], w1[2:4]", "planned": "False"}),
    ("ring_formed", "", "2 workers go on from step 0", {}),
    ("worker_joined", "w2", "w2 joined", {}),
    ("worker_standby", "w2", "w2: the ring has its 2 workers", {}),
    ("worker_lost", "w1", "w1: its stream broke without Bye", {}),
    ("ring_change", "", "w1 was lost: its stream broke", {"members": "w0[0:2], w2[2:4]"}),
    ("worker_joined", "w1", "w1 joined", {}),
    ("worker_quarantined", "w1", "w1 died 3 times within 600 s", {"deaths": "3"}),
    ("ring_change", "", "scaled by an operator to 1 to 4 workers, at a step boundary", {}),
    ("worker_joined", "w9", "w9 joined", {}),
    ("worker_left", "w9", "w9 was drained: spot notice", {}),
]


def events(first: int = 1) -> list[ring_pb2.Event]:
    return [
        ring_pb2.Event(
            sequence=number,
            time=timestamp_pb2.Timestamp(seconds=1_700_000_000 + number),
            kind=kind,
            worker_id=worker,
            reason=reason,
            generation=1,
            step=number,
            facts=facts,
        )
        for number, (kind, worker, reason, facts) in enumerate(STORY, 1)
        if number >= first
    ]


def job() -> job_pb2.Job:
    found = running_job()
    del found.workers[1:]
    second = found.workers.add(worker_id="w2", state=job_pb2.WORKER_STATE_MEMBER)
    second.ests.start, second.ests.end = 2, 4
    found.workers.add(worker_id="w1", state=job_pb2.WORKER_STATE_STANDBY, reason="died 3 times within 600 s")
    return found


def sequences(worker: str, *, first: int = 1) -> list[int]:
    told = explain(worker, job(), events(first))
    assert told is not None
    return [link.sequence for link in told.chain]


def test_a_members_chain_ends_with_the_change_that_gave_it_its_ests() -> None:
    told = explain("w2", job(), events())
    assert told is not None and sequences("w2") == [5, 6, 8]
    assert told.place == "member" and told.since == 1_700_000_008
    assert told.sentence == "in the ring, hosts ESTs 2-3, because: w1 was lost: its stream broke"
    assert told.chain[-1].meaning == "takes ESTs 2-3"


def test_a_worker_in_the_part_that_was_cut_of_a_large_ring_is_not_said_to_be_out_of_it() -> None:
    """Masters of before kept 4000 characters of a fact: some 150 members of a ring."""
    story = events()
    large = ", ".join(f"w{number + 10}[{number}:{number + 1}]" for number in range(1000))
    cut = ring_pb2.Event(
        sequence=20, kind="ring_change", reason="1000 joined", facts={"members": clip(large)}
    )
    told = explain("w2", job(), [*story, cut])
    assert told is not None and [link.sequence for link in told.chain] == [5, 6, 8]
    whole = ring_pb2.Event(sequence=20, kind="ring_change", reason="w2 left", facts={"members": "w0[0:4]"})
    told = explain("w2", job(), [*story, whole])
    assert told is not None and told.chain[-1].meaning == "is not in the ring any more"


def test_changes_that_leave_a_worker_where_it_is_are_not_in_its_chain() -> None:
    assert sequences("w0") == [1, 3]


def test_a_standby_is_explained_by_the_master_and_by_what_led_there() -> None:
    told = explain("w1", job(), events())
    assert told is not None and sequences("w1") == [2, 3, 7, 8, 9, 10]
    assert (told.place, told.sentence) == ("standby", "standby: died 3 times within 600 s")
    assert told.since == 1_700_000_010
    assert told.chain[3].meaning == "is not in the ring any more"


def test_a_worker_that_is_gone() -> None:
    told = explain("w9", job(), events())
    assert told is not None and (told.place, told.sentence) == ("out", "out: w9 was drained: spot notice")
    assert told.complete
    later = explain("w9", job(), events(first=12))
    assert later is not None and not later.complete


def test_the_end_of_the_job_is_in_the_chain_of_those_who_were_in_the_ring() -> None:
    ended = [*events(), ring_pb2.Event(sequence=14, kind="job_suspended", reason="asked for")]
    told = explain("w0", job_pb2.Job(), ended)
    assert told is not None and told.place == "out" and told.chain[-1].kind == "job_suspended"
    other = explain("w9", job_pb2.Job(), ended)
    assert other is not None and other.chain[-1].kind == "worker_left"


def test_rings_are_read_from_their_events() -> None:
    assert dated_event_of(events()[2]).members == (Place("w0", 0, 2), Place("w1", 2, 4))
    assert dated_event_of(ring_pb2.Event(kind="ring_change", facts={"members": "none"})).members == ()
    assert dated_event_of(events()[10]).members is None and dated_event_of(events()[0]).members is None
    assert known_workers(job(), events()) == ["w0", "w1", "w2", "w9"]


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    fake.jobs, fake.events = {"train": job()}, events()
    with serving(fake) as address:
        fake.address = address
        yield fake


def test_the_command(master: FakeMaster) -> None:
    def ask(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(build_app(), ["explain", *arguments, "--master", master.address])
        return result.exit_code, result.stdout, result.stderr

    code, said, _ = ask("w1")
    assert code == 0 and "w1  standby: died 3 times" in said
    assert "worker_lost" in said and "is not in the ring any more: w1 was lost" in said
    told = json.loads(ask("w9", "--json")[1])
    assert (told["job"], told["place"], told["chain"][-1]["kind"]) == ("train", "out", "worker_left")
    code, _, complaint = ask("w7")
    assert code == 3 and "no worker 'w7'" in complaint and "known workers: w0, w1, w2, w9" in complaint


def test_why_a_job_has_its_workers(master: FakeMaster) -> None:
    def ask(*arguments: str) -> str:
        result = CliRunner().invoke(build_app(), ["why", *arguments, "--master", master.address])
        assert result.exit_code == 0, result.output
        return " ".join(result.stdout.split())

    said = ask("train")
    assert "w0 ESTs 0-1, w1 ESTs 2-3" in said and "w1 was lost: its stream broke" in said
    assert "scaled by an operator" in said and "w9" not in said and "not shown" not in said
    document = json.loads(ask("--last", "2", "--json"))
    assert [change["workers"] for change in document["changes"]] == [{"w0": "ESTs 0-1", "w2": "ESTs 2-3"}, {}]
    assert "earlier changes are not shown" in ask("train", "-n", "1")
    master.events.clear()
    assert "has had no ring yet" in ask("train")


def test_changes_say_whether_they_go_back_to_the_beginning() -> None:
    assert ring_changes(events())[1] and not ring_changes(events(first=5))[1]
    assert [change.sequence for change in ring_changes(events())[0]] == [3, 8, 11]

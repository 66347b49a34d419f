"""Structs as messages: by field name, with durations, enums, nested structs, maps and absent values."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from elastane_proto import message_codec
from elastane_proto.message_codec import Codec, Field, InvalidFieldError
from elastane_proto.v1 import common_pb2, job_pb2, ring_pb2, shard_pb2


class Tensor(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    dtype: str


class Signature(msgspec.Struct, frozen=True):
    tensors: tuple[Tensor, ...] = ()
    steps_per_epoch: int = 0
    environment: dict[str, str] = {}


class Settings(msgspec.Struct, frozen=True):
    ests: int
    seed: int | None = None
    lease_min_seconds: float = 30.0
    determinism: Literal["d0", "d1", "d2"] = "d1"
    audit_samples: bool = True
    currency: str = "USD"


class Place(msgspec.Struct, frozen=True):
    start: int
    end: int


class Member(msgspec.Struct, frozen=True):
    worker_id: str
    ests: Place


def sent(message: ring_pb2.ScriptSignature) -> ring_pb2.ScriptSignature:
    return ring_pb2.ScriptSignature.FromString(message.SerializeToString())


def test_lists_of_structs_and_maps_come_back() -> None:
    signature = Signature((Tensor("w", (2, 3), "float32"), Tensor("b", (), "int8")), 7, {"torch": "2"})
    message = ring_pb2.ScriptSignature()
    message_codec.fill(message, signature)
    assert message.tensors[0].shape == [2, 3]
    assert message_codec.read(Signature, sent(message)) == signature


def test_a_nested_struct_is_present_even_if_all_of_it_is_zero() -> None:
    member, message = Member("w0", Place(0, 0)), ring_pb2.Member()
    message_codec.fill(message, member)
    assert message.HasField("ests") and message.ests == common_pb2.Range(start=0, end=0)
    assert message_codec.read(Member, message) == member


@pytest.mark.parametrize(
    "settings",
    [Settings(1), Settings(2, seed=0, lease_min_seconds=0.25), Settings(3, -5, 1e9, "d2", False, "EUR")],
)
def test_durations_enums_and_absent_values_come_back(settings: Settings) -> None:
    message = job_pb2.JobSettings()
    message_codec.fill(message, settings)
    assert message.HasField("seed") == (settings.seed is not None)
    assert message_codec.read(Settings, message) == settings


def test_what_a_message_does_not_say_is_the_default_but_for_flags() -> None:
    assert message_codec.read(Settings, job_pb2.JobSettings(ests=4), zero_is_default=True) == Settings(
        4, audit_samples=False
    )
    message = job_pb2.JobSettings(ests=4)
    message.lease_min.SetInParent()
    assert message_codec.read(Settings, message, zero_is_default=True).lease_min_seconds == 0.0


def test_what_has_no_default_is_as_it_is_sent() -> None:
    assert message_codec.read(Settings, job_pb2.JobSettings(), zero_is_default=True).ests == 0


def test_a_value_that_is_not_known_names_those_that_are() -> None:
    message = job_pb2.JobSettings.FromString(job_pb2.JobSettings(determinism=9).SerializeToString())  # type: ignore[arg-type]
    with pytest.raises(InvalidFieldError, match="determinism: 9 is not a known value") as caught:
        message_codec.read(Settings, message)
    assert caught.value.field == "determinism" and caught.value.allowed.startswith("use D0 or D1 or D2")


def test_negative_durations_are_refused() -> None:
    message = job_pb2.JobSettings()
    message.lease_min.seconds = -1
    with pytest.raises(InvalidFieldError, match="lease_min: -1 s is negative"):
        message_codec.read(Settings, message)


class Held(msgspec.Struct, frozen=True):
    """A task in a worker's hands. note: not on the wire."""

    worker: str
    start: int
    end: int
    deadline_at: float | None = None
    note: str = "none"


class Dataset(msgspec.Struct, frozen=True):
    size: int | None = None
    entries: tuple[int, ...] | None = None
    closed: bool = False


class Tasks(msgspec.Struct, frozen=True):
    kind: str
    holders: tuple[Held, ...]


def seven(number: int) -> int:
    if number == 7:
        raise InvalidFieldError("range.end", "7 is refused", "use another")
    return number


CODEC = Codec(
    {"worker": "worker_id"},
    {
        Held: {
            "start": "range.start",
            "end": Field("range.end", read=seven),
            "deadline_at": "deadline",
            "note": None,
        },
        Dataset: {"size": "range.size", "entries": "list.entries", "closed": "stream.closed"},
        Tasks: {"kind": Field(get=lambda message: message.dataset, put=lambda message, tasks: None)},
    },
)


@pytest.mark.parametrize("held", [Held("w", 0, 0), Held("w", 2, 5, 1000.25)])
def test_other_names_times_and_fields_of_nested_messages_come_back(held: Held) -> None:
    message = shard_pb2.TaskInfo()
    CODEC.fill(message, held)
    assert message.HasField("range") and message.HasField("deadline") == (held.deadline_at is not None)
    assert CODEC.read(Held, message) == held


@pytest.mark.parametrize(
    ("message", "dataset"),
    [
        (shard_pb2.DatasetSettings(range=shard_pb2.RangeSource()), Dataset(size=0)),
        (shard_pb2.DatasetSettings(list=shard_pb2.ListSource(entries=[3, 1])), Dataset(entries=(3, 1))),
        (shard_pb2.DatasetSettings(stream=shard_pb2.StreamSource(closed=True)), Dataset(closed=True)),
    ],
)
def test_an_optional_field_is_there_if_the_message_that_holds_it_is(
    message: shard_pb2.DatasetSettings, dataset: Dataset
) -> None:
    assert CODEC.read(Dataset, message, zero_is_default=True) == dataset


def test_a_refused_field_is_named_with_its_path() -> None:
    message = shard_pb2.Progress(dataset="d", holders=[shard_pb2.TaskInfo(), shard_pb2.TaskInfo()])
    assert CODEC.read(Tasks, message).kind == "d"
    message.holders[1].range.end = 7
    with pytest.raises(InvalidFieldError, match=r"holders\[1\].range.end: 7 is refused") as caught:
        CODEC.read(Tasks, message)
    assert caught.value.field == "holders[1].range.end"


def test_values_that_no_message_holds_are_given_to_the_reader() -> None:
    read = CODEC.reader(Held, shard_pb2.TaskInfo.DESCRIPTOR, ("worker", "start"))
    assert read(shard_pb2.TaskInfo(range=common_pb2.Range(end=3)), "w9", 1) == Held("w9", 1, 3)


def test_a_field_that_the_message_lacks_is_an_error_when_the_mapping_is_built() -> None:
    with pytest.raises(LookupError, match=r"TaskInfo has no field for Settings\.ests"):
        CODEC.reader(Settings, shard_pb2.TaskInfo.DESCRIPTOR)

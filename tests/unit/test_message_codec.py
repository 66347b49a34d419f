"""Structs as messages: by field name, with durations, enums, nested structs, maps and absent values."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from elastane_proto import message_codec
from elastane_proto.message_codec import InvalidFieldError
from elastane_proto.v1 import common_pb2, job_pb2, ring_pb2


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

"""Names in little room stay apart."""

from __future__ import annotations

from elastane_proto.short_names import short, short_names


def test_both_ends_of_a_long_name_stay() -> None:
    assert short("worker-0", 8) == "worker-0"
    assert short("training-job-worker-17", 10) == "tra…ker-17"
    assert all(len(short("x" * 50, room)) == room for room in (3, 4, 10, 49))


def test_what_all_have_in_common_goes_first() -> None:
    names = [f"spot-pool-b-{number:03}.training.svc.cluster.local" for number in range(40)]
    told = short_names([*names, "gpu-0.training.svc.cluster.local"], 20)
    assert told[names[7]] == "spot-pool-b-007…" and len(set(told.values())) == 41
    assert told["gpu-0.training.svc.cluster.local"] == "gpu-0…"


def test_names_without_a_common_end() -> None:
    told = short_names(["a" * 30 + "1", "b" * 30 + "2"], 12)
    assert told == {"a" * 30 + "1": "aaa…aaaaaaa1", "b" * 30 + "2": "bbb…bbbbbbb2"}
    assert short_names(["one.example.org"], 8) == {"one.example.org": "on…e.org"}
    assert short_names(["w1", "w2"], 8) == {"w1": "w1", "w2": "w2"}
    assert short_names([], 8) == {}

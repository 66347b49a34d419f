"""Figures of the benchmark of parameter servers that do not depend on the machine."""

from __future__ import annotations

from parameter_servers import MIB, bytes_of_applied_sets, memory_of_rows


def test_what_slots_have_applied_of_a_hundred_million_tasks_takes_at_most_a_mebibyte() -> None:
    assert 0 < bytes_of_applied_sets(epochs=100, tasks=10**6) <= MIB


def test_rows_take_little_more_than_their_values() -> None:
    assert 1.0 <= memory_of_rows(20_000, 16) <= 1.5

"""Bounds under a limit of descriptors: those wanted, lower ones that leave room for callers, or a refusal."""

from __future__ import annotations

import pytest

from elastane_master.app import within_descriptors
from elastane_master.descriptors import CALLERS_MIN, CALLERS_WANTED, OWN, shared_out
from elastane_master.errors import TooFewDescriptors
from elastane_master.settings import MasterSettings

WANTED = (32, 32, 128)


def test_where_there_are_enough_nothing_is_lowered() -> None:
    bounds = shared_out(1024, *WANTED)
    assert (bounds.store, bounds.reads, bounds.http) == WANTED
    assert bounds.callers == 1024 - OWN - sum(WANTED)


@pytest.mark.parametrize("limit", range(OWN + 16 + CALLERS_MIN, 500, 7))
@pytest.mark.parametrize("http", [0, 128])
def test_the_bounds_always_fit_and_leave_room(limit: int, http: int) -> None:
    bounds = shared_out(limit, 32, 32, http)
    assert OWN + bounds.store + bounds.reads + bounds.http + bounds.callers == limit
    assert bounds.callers >= CALLERS_MIN
    assert min(bounds.store, bounds.reads) >= 4
    assert bounds.http >= 8 if http else bounds.http == 0
    lowered = (bounds.store, bounds.reads, bounds.http) != (32, 32, http)
    assert not lowered or bounds.callers <= CALLERS_WANTED + 3


def test_too_few_are_refused_with_what_is_needed() -> None:
    with pytest.raises(TooFewDescriptors, match=f"64 descriptors, a master needs {OWN + 8 + CALLERS_MIN}"):
        shared_out(64, 32, 32, 0)


def test_bounds_that_were_set_low_stay() -> None:
    assert shared_out(OWN + 2 + CALLERS_MIN, 1, 1, 0).store == 1


def test_the_settings_of_a_master_are_lowered_and_only_those() -> None:
    settings = MasterSettings(http="127.0.0.1:0")
    assert within_descriptors(settings, 0) is settings
    assert within_descriptors(settings, 4096) == settings
    low = within_descriptors(settings, 256)
    assert low.http_connections_max < 128 and low.store_connections_max < 32
    assert low.store_options().connections_max == low.store_connections_max
    assert within_descriptors(MasterSettings(), 256).http_connections_max == 128  # there is no port

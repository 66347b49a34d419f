"""States that older masters stored: they are read, and what they could not say is as if it had been said."""

from __future__ import annotations

import base64
import zlib

import msgspec
import pytest

from elastane_master.decisions import cost, events
from elastane_master.decisions.machine import VERSION, JobMachine

# Of the release before there were costs (version 2): a and b train 2 ESTs and have done 3 steps, c stands by,
# t leases tasks.
VERSION_2 = zlib.decompress(
    base64.b64decode(
        "eNrNlj1sHEUUgHf3rAihgBBKBQhtg4SEovgMNBTYCCEakEBBSFCwmd15d7u53ZllZtZnh4KzkxAoEM4FKppYvv+7OH9UqaxLqCxR"
        "0KWxhIREQQUNBUV4s7te38U/lQtc+Obn7cx73/uZd83aMZ5vMRLBxnnu9rgIqgEj4Y4x0wKppDWsc1EDIZ2ILFmbng9eLeYBU04i"
        "wvWlu+dx7NQDRnndkeBxRuX2/PcXfnt389QXPQlKBawqj+OwgSeAKKAOUdtG/teOfSKhKxLG8JoOCkjO7hBb4MzmFXvOVoIETPYE"
        "LAYy4OypAQUvoNkpC5+U6KcvjE72ZVBlRCUCvuoqYJILuTaiROHRypHBBVgYuER5fjq2bkoFsXRiEA7E3POf7KQ/aBuwxUBwFgFT"
        "K23Fheevz3Vzgy+tkx3jVCebrZOuBKn12SCnyy3BQ2hplfva/l3djGfc93/9e5QvcUFBmC2fS5X+24gDat6QeAs4hFKBx22QN8oj"
        "EsdhgPJaSWvo85BKHCO3+7eIrOFGFRgIovBu8xbyosuTK4MUF1qW0Tn7zy8Pn7vhgqoDMLSeebDVo1oElR2P0pGTQb8+yGYSjR93"
        "SZ0E6Kpx7pHbWmNpv3P2I2nP2orbswMfQuokTAXh1ro7QcYtyLiHk7Ef/Nj+fYqMdTQZ97jJpHFzzGTKmkx5iow3QcYryHiHk8GQ"
        "+Ws0RaZ0NBnvMTLGJJnxPjLGPjLGBJmtYyDy8CW8GvPedpffsJUPWS5jmtsBgpqz83yawqQmMKkCk8oxtTGRa3KKk3nvs9fnv5zi"
        "NHM0J/V/4/RTiD8gbbqMpTvw7NTISSq71nkc5zNprOwYzw4mYrqNyleL6tmNIHKRbPNSUaW0gFDGBrCDak0h52Zyppaz9mdeq8oZ"
        "rOVq3y08aBMB2sEC2ikFHb4f/nn5xXvt1B/NdYLFIA4JQyPGo3zgVASP1oZ4dBJB5ogO5Qwr9lWjL8CDYBGPvmqihJsEyIImsLW5"
        "O8mxdlwc1KTRjRPl8ErlOupMwlB7NnXHKGFuyL1akVWZWmnd/6bv8SgKFHrC6sUCYrSCWsPd0WR52CwWUxeU2uk7YXRxlQslG3v7"
        "6ckr1sVcYspHqV+bSOPyCF8XlZDQEYTVjIz5jGZ+oitJFIcg19CHSgSebDTX3Wl582j5lo7m8TAL2oy/ZfbwAVawpORKZvuq1Vwd"
        "CFY9Ey8rn7MHpdmFuQ7GZHRm6YE5O71Vntgql/Z99+rh3+1tlYd7DYK80qkT1Iau9TEjKmFQ9dVWW5JFXOlUSIDeW8NX/jx4WmaQ"
        "bqRcHw0YV44LFYzKom/o5a+7XB1ovunDLhsDAVkOAG300lYEo0dXi/6/f4TfDquCeJAn10AmMkaUOmfv+IGO+ann4kYFMJLQ8yEJ"
        "ItnoVTC9pa/P1bpipyGNYaZ1puTtfLJ3xCO05vNEN02NDsXGx0en/my9911LLcfQ0+GpPyw6rK+z/urQ5mSyg5nubW7lwZB+lIbW"
        "7bS0OFFaerImbOHNDNwo26oQDy3eXngtW+3qpNNmTyTHnpual1vpm9sluBHFymy7UE2YzpO3f1g58XJbBZGua1lBWzUuFvWnh4bT"
        "EKvYVi9LGqD3zWLbPWg7u6t0wF1pTmZ33T/qru2Fc2/dOf30xyeKQ8cH3XmAWC+/FBPFLJk385njIwR0jollCKvYMuQF2sjnTi5n"
        "dGKSSB3gNMlCQF7bnu9cecU6+YGxPX9Od4PG3iALjwSo0U9tcniClZrxemFrC0+B1ceKa9dNsLApebVJn2j8B6rNGWg="
    )
)


def restored() -> JobMachine:
    return JobMachine.restore(VERSION_2)


def test_a_job_of_before_there_were_costs_goes_on() -> None:
    assert msgspec.msgpack.decode(VERSION_2)[0] == 2 < VERSION
    machine = restored()
    state = machine.state
    assert (state.phase, state.ring.names(), state.settings.recovery) == ("running", ("a", "b"), "elastic")
    assert state.wait_until is None and cost.view(state, 200.0).worker_nanos == 0
    machine.handle(events.MasterStarted("m"), 1000.0)
    view = cost.view(state, 1002.0)
    # From the new master on: a and b are awaited and charged; whoever had no place has to join anew.
    assert (view.useful_nanos, view.idle_nanos, view.currency) == (3 * 2 * 10**9, 0, "USD")
    assert msgspec.msgpack.decode(machine.snapshot())[0] == VERSION
    again = JobMachine.restore(machine.snapshot())
    assert cost.view(again.state, 1002.0) == view


def test_a_job_of_before_there_were_positions_goes_on() -> None:
    snapshot = msgspec.msgpack.decode(restored().snapshot())
    assert snapshot[0] == VERSION == 4
    machine = JobMachine.restore(msgspec.msgpack.encode([3, *snapshot[1:]]))
    assert machine.state == restored().state


def test_prices_can_be_set_for_it() -> None:
    machine = restored()
    machine.handle(events.MasterStarted("m"), 1000.0)
    machine.handle(events.PricesRequested("r", 3_600_000_000, 7_200_000_000), 1010.0)
    view = cost.view(machine.state, 1011.0)
    assert (view.spent_micros, view.on_demand_micros) == (3_000_000, 6_000_000)
    assert view.unpriced_nanos == 30 * 10**9


def test_a_state_of_a_newer_master_is_refused() -> None:
    stored = msgspec.msgpack.decode(VERSION_2)
    stored[0] = VERSION + 1
    with pytest.raises(ValueError, match=f"version {VERSION + 1}"):
        JobMachine.restore(msgspec.msgpack.encode(stored))

"""Prices as people write them; `elastane cost`, `price`, and what `status` says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from elastane_cli.commands.cost import cost_line, prices_line, stale_prices
from elastane_cli.commands.main import build_app
from elastane_common.prices import currency_code, price_micros
from elastane_proto.amounts import money_text, price_text
from elastane_proto.v1 import job_pb2
from unit.cli.fake_master import FakeMaster, serving


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    with serving(fake) as address:
        fake.address = address
        fake.jobs["train"].cost.CopyFrom(priced())
        yield fake


def priced() -> job_pb2.Cost:
    return job_pb2.Cost(
        currency="EUR",
        spent_micros=7_104_900,
        on_demand_micros=15_000_000,
        saved_micros=7_895_100,
        savings=0.52634,
        worker_seconds=36_000,
        spot_worker_seconds=27_000,
        on_demand_worker_seconds=9_000,
        useful_seconds=32_400,
        replayed_seconds=1_800,
        idle_seconds=1_800,
        replayed_micros=400_000,
        idle_micros=300_000,
        spot_price_micros=312_500,
        on_demand_price_micros=1_000_000,
    )


def invoke(master: FakeMaster, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), list(arguments), env={"ELASTANE_MASTER": master.address})
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("text", "micros"),
    [("0", 0), ("1", 1_000_000), ("0.9123", 912_300), (".5", 500_000), ("3.", 3_000_000),
     ("0.000001", 1), ("1000000", 10**12), ("8.1", 8_100_000)],
)  # fmt: skip
def test_prices_are_read_exactly(text: str, micros: int) -> None:
    assert price_micros(text) == micros


@pytest.mark.parametrize(
    "text", ["", "-1", "1e3", "nan", "0.0000001", "1000000.1", "1,5", "$1", "٣", " 1", "1\n", "."]
)
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(ValueError, match="is not a price"):
        price_micros(text)


def test_currencies() -> None:
    assert currency_code("EUR") == "EUR"
    for text in ("", "eur", "EURO", "E1R"):
        with pytest.raises(ValueError, match="three capital letters"):
            currency_code(text)


def test_price_texts() -> None:
    shown = [price_text(micros, "USD") for micros in (0, 300_000, 912_300, 4_100, 2_000_000)]
    assert shown == ["unknown", "0.30 USD", "0.9123 USD", "0.0041 USD", "2.00 USD"]
    shown = [money_text(micros, "USD") for micros in (0, 4_999, 5_000, 1_020_000, -7_777_777, -1)]
    assert shown == ["0.00 USD", "0.00 USD", "0.01 USD", "1.02 USD", "-7.78 USD", "0.00 USD"]


def test_cost_shows_what_was_spent_saved_and_wasted(master: FakeMaster) -> None:
    code, text = invoke(master, "cost")
    assert code == 0, text
    rows = [line.split() for line in text.splitlines()]
    assert ["spent", "7.10", "EUR"] in rows
    assert ["on", "demand", "15.00", "EUR", "the", "useful", "hours,", "without", "reclaims"] in rows
    assert ["saved", "7.90", "EUR", "52.6%"] in rows
    assert ["useful", "9.00", "90.0%", "6.40", "EUR"] in rows
    assert ["replayed", "0.50", "5.0%", "0.40", "EUR"] in rows
    assert ["idle", "0.50", "5.0%", "0.30", "EUR"] in rows
    assert "7.50 h on spot, 2.50 h on demand" in text and "no known price" not in text
    master.jobs["train"].cost.unpriced_seconds = 3600
    assert "1.00 h had no known price" in invoke(master, "cost", "train")[1]


def test_cost_shows_device_types_and_prices_that_have_expired(master: FakeMaster) -> None:
    cost = master.jobs["train"].cost
    assert "DEVICE" not in invoke(master, "cost")[1]
    cost.devices.add(
        device_type="NVIDIA [L4]",
        spot_worker_seconds=7200,
        spent_micros=1_250_000,
        spot_price_micros=625_000,
        expires=datetime.fromtimestamp(time.time() - 600, UTC),
    )
    cost.devices.add(on_demand_worker_seconds=3600, spent_micros=1_000_000, on_demand_price_micros=1_000_000)
    code, text = invoke(master, "cost")
    assert code == 0, text
    rows = [line.split() for line in text.splitlines()]
    assert ["NVIDIA", "[L4]", "2.00", "0.00", "1.25", "EUR", "0.625", "EUR", "unknown"] in rows
    assert ["not", "known", "0.00", "1.00", "1.00", "EUR", "unknown", "1.00", "EUR"] in rows
    assert "prices have expired, the last ones are kept: NVIDIA [L4] (10 min ago)" in " ".join(text.split())
    cost.expires.FromDatetime(datetime.fromtimestamp(time.time() + 600, UTC))
    assert stale_prices(cost, time.time() + 700).count("min ago") == 2
    cost.devices[0].ClearField("expires")
    assert "expired" not in invoke(master, "cost")[1]


def test_price_of_one_device_type(master: FakeMaster) -> None:
    code, text = invoke(master, "price", "--device", "NVIDIA L4", "--spot", "0.31")
    assert code == 0, text
    request = master.requests[-1]
    assert not request.HasField("spot_price_micros")
    [device] = request.devices
    assert (device.device_type, device.spot_price_micros) == ("NVIDIA L4", 310_000)
    assert not device.HasField("on_demand_price_micros")
    assert invoke(master, "price", "--device", "NVIDIA L4", "--currency", "EUR")[0] == 2
    assert invoke(master, "price", "--device", " ", "--spot", "0.31")[0] == 2
    assert master.requests[-1] is request


def test_cost_of_a_job_without_prices(master: FakeMaster) -> None:
    master.jobs["train"].cost.CopyFrom(job_pb2.Cost(currency="USD", worker_seconds=0))
    code, text = invoke(master, "cost")
    assert code == 0 and "spot unknown, on demand unknown" in text and "saved" not in text
    assert "cost" not in invoke(master, "status")[1]


def test_status_says_what_it_costs_how_long_it_waits_and_how_it_recovers(master: FakeMaster) -> None:
    job = master.jobs["train"]
    job.settings.max_wait.FromSeconds(90)
    job.settings.recovery = job_pb2.RECOVERY_POLICY_FIXED
    job.phase, job.reason = job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED, "2 of 4 workers were there after 90 s"
    code, text = invoke(master, "status")
    assert code == 0
    assert "max wait exceeded: 2 of 4 workers were there after 90 s" in text
    assert "wanted: 1:4, fixed recovery, max wait 90 s" in text
    assert "cost 7.10 EUR, on demand 15.00 EUR, saved 52.6%" in text
    assert cost_line(priced()).endswith(prices_line(priced()))
    lacking = priced()
    lacking.unpriced_seconds = 1800
    assert "; 0.50 h without a known price are not in it; " in cost_line(lacking)


def test_price_sends_what_was_given_and_nothing_else(master: FakeMaster) -> None:
    code, text = invoke(master, "price", "--spot", "0.31")
    assert (code, text) == (0, "train: a worker's hour costs: spot 0.31 EUR, on demand 1.00 EUR\n")
    request = master.requests[-1]
    assert request.spot_price_micros == 310_000 and not request.HasField("on_demand_price_micros")
    assert request.request_id
    code, _ = invoke(master, "price", "train", "--on-demand", "0", "--currency", "USD")
    assert code == 0 and master.requests[-1].HasField("on_demand_price_micros")
    assert master.requests[-1].currency == "USD"


@pytest.mark.parametrize(
    "arguments", [(), ("--spot", "-1"), ("--on-demand", "x"), ("--spot", "1", "--currency", "usd")]
)
def test_a_price_that_cannot_be(master: FakeMaster, arguments: tuple[str, ...]) -> None:
    code, text = invoke(master, "price", *arguments)
    assert code == 2 and "Traceback" not in text

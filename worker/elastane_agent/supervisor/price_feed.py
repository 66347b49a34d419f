"""Reads a price list periodically, and sends changes to the master.

While the feed fails or serves no valid list, the last prices stay in force: the agent reports this once, and
the master's metric `elastane_job_prices_stale` becomes 1 when they expire, also if this agent has died.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from elastane_agent.supervisor.price_list import (
    DevicePrices,
    PriceEntry,
    PriceList,
    is_price_list,
    parse_price_list,
)
from elastane_agent.supervisor.price_source import is_url, read_source
from elastane_agent.supervisor.price_table import (
    PriceFeed,
    PriceRow,
    PriceTable,
    PriceTableError,
    parse_price_table,
)
from elastane_common.client import MasterClient
from elastane_common.errors import ElastaneError
from elastane_common.processes.output import Output
from elastane_proto.v1 import job_pb2

INTERVAL_SECONDS: Final = 60.0
_LASTING_INTERVALS: Final = 5
"""Consecutive failed readings after which a price without an end of its own expires."""

News = Mapping[str, DevicePrices]
"""Prices by device type; "": of all other types."""


@dataclass(frozen=True)
class PriceFeedSettings:
    """Settings of a price feed. location: path or http(s) URL. zone: "": the only one of the list."""

    location: str
    zone: str = ""
    interval_seconds: float = INTERVAL_SECONDS


def set_prices_arguments(news: News) -> dict[str, Any]:
    """Return the arguments of `MasterClient.set_prices` for these prices."""
    of_all = news.get("", DevicePrices())
    return {
        "spot_price_micros": of_all.spot_micros,
        "on_demand_price_micros": of_all.on_demand_micros,
        "expires": _moment(of_all.expires_at),
        "devices": [
            job_pb2.DevicePrice(
                device_type=device,
                spot_price_micros=price.spot_micros,
                on_demand_price_micros=price.on_demand_micros,
                expires=_moment(price.expires_at),
            )
            for device, price in news.items()
            if device
        ],
    }


def prices_at(settings: PriceFeedSettings) -> PriceTable | PriceFeedSettings:
    """Return the price table in a file; for a price list or a URL, the settings of its feed.

    A file is read now; a URL is not, because a feed that is down must not prevent training. Raises OSError
    and PriceTableError for the file, ValueError for a URL that is not http(s).
    """
    if is_url(settings.location):
        return settings
    text = read_source(settings.location)
    try:
        if not is_price_list(text):
            return parse_price_table(text)
        parse_price_list(text, zone=settings.zone)
        return settings
    except PriceTableError as error:
        raise PriceTableError(f"{settings.location}: {error.args[0]}", hint=error.hint) from None


def feed_of(
    prices: PriceTable | PriceFeedSettings, job: job_pb2.Job, client: MasterClient, output: Output
) -> PriceFeed | PriceListFeed:
    """Return the feed that sends these prices of a job to its master; start it."""

    def send_list(news: News) -> None:
        client.set_prices(job.name, **set_prices_arguments(news))

    def send_row(row: PriceRow) -> None:
        client.set_prices(
            job.name, spot_price_micros=row.spot_micros, on_demand_price_micros=row.on_demand_micros
        )

    if isinstance(prices, PriceFeedSettings):
        return PriceListFeed(
            prices,
            job.settings.currency,
            send_list,
            lambda text, event: output.say(text, "info" if event == "prices_readable" else "warning", event),
        )
    created = job.created.ToNanoseconds() / 1e9
    return PriceFeed(
        prices.since_epoch(created), send_row, lambda text: output.say(text, "warning", "prices_refused")
    )


class PriceListFeed:
    """Reads a list every `interval_seconds`, in a thread, from `start` until `stop`.

    currency: of the job. tell: sends prices to the master; may block until it answers. say: prints a message;
    its second argument is the event's name. read: returns the text at a location; raises OSError.
    """

    def __init__(
        self,
        settings: PriceFeedSettings,
        currency: str,
        tell: Callable[[News], None],
        say: Callable[[str, str], None],
        *,
        read: Callable[[str], str] = read_source,
    ) -> None:
        self._settings = settings
        self._currency = currency
        self._tell = tell
        self._say = say
        self._read = read
        self._over = threading.Event()
        self._list: PriceList | None = None
        self._read_at = -math.inf
        self._told: News = {}
        self._is_failing = False
        self._said_stale: frozenset[PriceEntry] = frozenset()

    def start(self) -> None:
        threading.Thread(target=self._run, name="prices", daemon=True).start()

    def stop(self) -> None:
        """Stop reading; a reading in progress ends with this process."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._over.wait(self.look(time.time(), time.time))

    def look(self, now: float, clock: Callable[[], float]) -> float:
        """Read the list if due, send changes, and return the seconds until the next look.

        now: seconds since the epoch. clock: the same after the reading.
        """
        interval = self._settings.interval_seconds
        # A clock that was set back must not stop the readings.
        if not self._read_at <= now < self._read_at + interval:
            self._load()
            now = self._read_at = clock()
        if self._list is not None:
            self._say_stale(self._list, now)
            self._send(self._list, now)
        change = math.inf if self._list is None else self._list.next_change(now)
        return max(min(self._read_at + interval, change) - now, 0.05)

    def _load(self) -> None:
        try:
            text = self._read(self._settings.location)
            self._list = parse_price_list(text, zone=self._settings.zone, currency=self._currency)
        except (OSError, ElastaneError) as error:
            if not self._is_failing and not self._over.is_set():
                kept = "no price is known" if self._list is None else "the last prices are kept"
                self._say(f"the prices cannot be read, {kept}: {_words(error)}", "prices_unreadable")
            self._is_failing = True
            return
        if self._is_failing:
            self._say("the prices can be read again", "prices_readable")
        self._is_failing = False

    def _say_stale(self, prices: PriceList, now: float) -> None:
        stale = frozenset(prices.stale(now))
        for entry in sorted(stale - self._said_stale, key=lambda entry: (entry.device, entry.capacity)):
            whose = f"{entry.device or 'all device types'}, {entry.capacity.replace('_', '-')}"
            ended = datetime.fromtimestamp(entry.valid_until, UTC).isoformat(timespec="seconds")
            self._say(f"the price of {whose} ended at {ended}: the last one is kept", "prices_stale")
        self._said_stale = stale

    def _send(self, prices: PriceList, now: float) -> None:
        """Send the prices to the master if they are new or about to expire there."""
        lasting = _LASTING_INTERVALS * self._settings.interval_seconds
        found = {
            device: replace(price, expires_at=min(price.expires_at, self._read_at + lasting))
            if not self._is_failing
            else replace(price, expires_at=min(price.expires_at, self._expiry_told(device)))
            for device, price in prices.at(now).items()
        }
        if all(self._is_told(device, price, now) for device, price in found.items()):
            return
        try:
            self._tell(found)
        except ElastaneError as error:
            if not self._over.is_set():
                self._say(f"the master refused the prices: {error}", "prices_refused")
            return
        self._told = found

    def _expiry_told(self, device: str) -> float:
        told = self._told.get(device)
        return math.inf if told is None else told.expires_at

    def _is_told(self, device: str, price: DevicePrices, now: float) -> bool:
        told = self._told.get(device)
        if told is None or replace(told, expires_at=0.0) != replace(price, expires_at=0.0):
            return False
        if price.expires_at < told.expires_at:
            return False
        # Unchanged prices are renewed after half of their time, because each update is a write of the master.
        lasting = _LASTING_INTERVALS * self._settings.interval_seconds
        return price.expires_at == told.expires_at or told.expires_at - now > lasting / 2


def _moment(at: float) -> datetime | None:
    return None if at == math.inf else datetime.fromtimestamp(at, UTC)


def _words(error: Exception) -> str:
    if not isinstance(error, ElastaneError):
        return str(error)
    return f"{error.args[0]}{f' ({error.hint})' if error.hint else ''}"

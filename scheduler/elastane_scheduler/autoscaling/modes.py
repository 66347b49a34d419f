"""Modes of autoscaling: goals that a user sets instead of a number of workers. Pure.

    efficiency[=THETA]         grow while each further worker gains more than THETA of the rate per worker
    utility=Y0,X0              the job is worth Y0 when done at once, nothing after X0, and falls linearly
    utility=T1:U1,T2:U2,...    or its worth by points, linear between them and constant outside
    budget=MONEY               the earliest end that costs no more, with what is spent
    deadline=TIME              the cheapest end in time

Times since the job was created (X0, T1, ...) are seconds, or have a unit: 90s, 30m, 2h, 1d. A deadline is an
ISO time with its zone, HH:MM with a zone (the next one), or +DURATION from now. (Or et al., Resource
elasticity in distributed deep learning, MLSys 2020, section 4: efficiency and utility.)
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import msgspec

from elastane_scheduler.amounts import AMOUNT_MAX
from elastane_scheduler.errors import InvalidSettings

THETA_DEFAULT = 0.1
MICROS = 1_000_000
#: The most that a budget or a utility can be, in whole units of the currency.
MONEY_MAX = 10**9
#: The last second of the year 9999: messages can say no later one.
EPOCH_SECONDS_MAX = 253_402_300_799
POINTS_MAX = 100
TEXT_CHARACTERS_MAX = 4000
OFF = "off"
HINT = (
    "Give efficiency, efficiency=0.1, utility=100,2h, utility=1h:100,2h:20, budget=25, "
    "deadline=2026-12-04T18:00+01:00, deadline=18:00+01:00, deadline=+2h, or off."
)

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}"
_DURATION = re.compile(rf"({_NUMBER})([smhd]?)")
_PARTS = re.compile(rf"(?:(?:{_NUMBER})[smhd])+")
_MONEY = re.compile(rf"({_NUMBER}) ?([A-Z]{{3}})?")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? ?(Z|[+-][0-9]{2}:?[0-9]{2})?")
_EPOCH = re.compile(r"[0-9]{9,12}(\.[0-9]{1,6})?")


class Efficiency(msgspec.Struct, frozen=True, tag=True):
    """theta: least gain of rate per further worker, as a part of the present rate per worker."""

    theta: float = THETA_DEFAULT


class Utility(msgspec.Struct, frozen=True, tag=True):
    """points: (seconds since the job was created, what its end is worth then in the currency), ascending."""

    points: tuple[tuple[float, float], ...]
    linear: bool = False

    def at(self, seconds: float) -> float:
        """Return the worth of an end after this many seconds."""
        points = self.points
        place = bisect_right(points, seconds, key=lambda point: point[0])
        if place == 0:
            return points[0][1]
        if place == len(points):
            return points[-1][1]
        (x0, y0), (x1, y1) = points[place - 1], points[place]
        return y0 + (y1 - y0) * (seconds - x0) / (x1 - x0)

    @property
    def flat(self) -> bool:
        """True if no end is worth more than another."""
        return len({worth for _, worth in self.points}) == 1


class Budget(msgspec.Struct, frozen=True, tag=True):
    """micros: the most that the whole job may cost, in millionths of the currency."""

    micros: int


class Deadline(msgspec.Struct, frozen=True, tag=True):
    """at: when the job should be over, in seconds since the Unix epoch."""

    at: float


Mode = Efficiency | Utility | Budget | Deadline
Localize = Callable[[datetime], datetime]


def parse_mode(text: str, now: float, *, currency: str = "", localize: Localize | None = None) -> Mode | None:
    """Return the mode that a text means at `now`, seconds since the epoch; None: off.

    currency: of the job, if money may be given with one. localize: gives a time without a zone that of its
    caller; None: such times are refused. Raises InvalidSettings.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidSettings(f"a scaling of {len(text)} characters", hint=HINT)
    name, has_value, value = text.strip().partition("=")
    value = value.strip()
    if name in ("", OFF) and not has_value:
        return None
    match name:
        case "efficiency":
            return Efficiency(_theta(value) if has_value else THETA_DEFAULT)
        case "utility" if value:
            return _utility(value)
        case "budget" if value:
            return Budget(_money_micros("the budget", value, currency))
        case "deadline" if value:
            return Deadline(_moment(value, now, localize))
    raise InvalidSettings(f"{text!r} is not a scaling mode", hint=HINT, scaling=text)


def canonical(mode: Mode | None) -> str:
    """Return a text that `parse_mode` parses to the same mode at any time; "" for none."""
    match mode:
        case Efficiency(theta):
            return f"efficiency={theta!r}"
        case Utility(points, linear):
            if linear:
                return f"utility={_plain(points[0][1])},{_plain(points[1][0])}"
            return "utility=" + ",".join(f"{_plain(at)}:{_plain(worth)}" for at, worth in points)
        case Budget(micros):
            whole, part = divmod(micros, MICROS)
            return f"budget={whole}" + (f".{part:06d}".rstrip("0") if part else "")
        case Deadline(at):
            whole, part = divmod(round(at * 1000), 1000)
            return f"deadline={whole:09d}" + (f".{part:03d}".rstrip("0") if part else "")
    return ""


def as_sent(text: str, now: float, localize: Localize) -> str:
    """Return a user's text in a form that a master can parse at any time; "" for off. Raises InvalidSettings.

    A budget keeps its currency, which only the master can compare with that of the job's prices.
    """
    mode = parse_mode(text, now, localize=localize)
    return text.strip() if isinstance(mode, Budget) else canonical(mode)


def mode_text(text: str) -> str:
    """Format a canonical text for people: a deadline as a time in UTC."""
    if text.startswith("deadline="):
        return "deadline=" + time_text(float(text.removeprefix("deadline=")))
    return text or OFF


def time_text(at: float) -> str:
    """ "2026-12-04T17:00:00Z"."""
    moment = datetime.fromtimestamp(min(max(at, 0.0), EPOCH_SECONDS_MAX), UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _theta(text: str) -> float:
    try:
        theta = float(text)
    except ValueError:
        raise InvalidSettings(
            f"{text!r} is not a number", hint="Give a theta above 0, such as 0.1."
        ) from None
    if not math.isfinite(theta) or theta <= 0 or theta > AMOUNT_MAX:
        raise InvalidSettings(
            f"theta is {text}",
            hint="It must be above 0, or the job would grow where nothing is gained; 0.1 is usual.",
            theta=text,
        )
    return theta


def _utility(text: str) -> Utility:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 2 and not any(":" in part for part in parts):
        worth, end = _worth(parts[0]), duration_seconds(parts[1])
        if worth <= 0:
            raise InvalidSettings(f"an end at once is worth {worth:g}", hint="Give Y0 above 0.", utility=text)
        return Utility(((0.0, worth), (end, 0.0)), linear=True)
    points = []
    for part in parts:
        at, colon, worth_text = part.partition(":")
        if not colon:
            raise InvalidSettings(f"{part!r} is not a point of a utility", hint=HINT, utility=text)
        points.append((0.0 if at.strip() in ("0", "0s") else duration_seconds(at), _worth(worth_text)))
    if len(points) > POINTS_MAX:
        raise InvalidSettings(f"a utility of {len(points)} points", hint=f"Give at most {POINTS_MAX}.")
    if any(later[0] <= earlier[0] for earlier, later in pairwise(points)):
        raise InvalidSettings("the times of a utility do not ascend", hint=HINT, utility=text)
    if any(later[1] > earlier[1] for earlier, later in pairwise(points)):
        raise InvalidSettings(
            "a later end is worth more than an earlier one",
            hint="Give a utility that falls, or is constant: a job cannot gain by waiting.",
            utility=text,
        )
    return Utility(tuple(points))


def _worth(text: str) -> float:
    try:
        worth = float(text)
    except ValueError:
        raise InvalidSettings(f"{text!r} is not a number", hint=HINT) from None
    if not math.isfinite(worth) or abs(worth) > MONEY_MAX:
        raise InvalidSettings(f"an end is worth {text}", hint=f"Give a number up to {MONEY_MAX}.")
    return worth


def duration_seconds(text: str) -> float:
    """Return the seconds of "5400", "90m", "1.5h" or "1h30m". Raises InvalidSettings unless above 0."""
    text = text.strip()
    found = _DURATION.fullmatch(text)
    if found:
        seconds = float(found[1]) * _UNITS[found[2]]
    elif _PARTS.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
    else:
        raise InvalidSettings(
            f"{text!r} is not a duration", hint="Give seconds, or a unit: 90s, 30m, 2h, 1d, 1h30m."
        )
    if not 0 < seconds <= AMOUNT_MAX:
        raise InvalidSettings(f"a duration of {text}", hint="It must be above 0.")
    return seconds


def _money_micros(name: str, text: str, currency: str) -> int:
    found = _MONEY.fullmatch(text)
    if not found:
        raise InvalidSettings(f"{name} is {text!r}", hint="Give an amount above 0, such as 25 or 12.50.")
    if found[2] and currency and found[2] != currency:
        raise InvalidSettings(
            f"{name} is in {found[2]}, and the job's prices are in {currency}",
            hint=f"Give it in {currency}; nothing is converted.",
            currency=currency,
        )
    micros = int(Decimal(found[1]) * MICROS)
    if not 0 < micros <= MONEY_MAX * MICROS:
        raise InvalidSettings(f"{name} is {text}", hint=f"Give an amount above 0, and at most {MONEY_MAX}.")
    return micros


def _moment(text: str, now: float, localize: Localize | None) -> float:
    if text.startswith("+"):
        at = now + duration_seconds(text[1:])
    elif _EPOCH.fullmatch(text):
        at = float(text)
    elif clock := _CLOCK.fullmatch(text):
        at = _next(clock, text, now, localize)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidSettings(f"{text!r} is not a time", hint=HINT) from None
        if "T" not in text and " " not in text:
            raise InvalidSettings(f"{text!r} has no time of day", hint=HINT)
        at = _zoned(moment, text, localize).timestamp()
    if not 0 <= at <= EPOCH_SECONDS_MAX:
        raise InvalidSettings(f"a deadline of {text}", hint="Give a time before the year 10000.")
    return round(at, 3)


def _next(clock: re.Match[str], text: str, now: float, localize: Localize | None) -> float:
    """Return when a time of day comes next."""
    hour, minute, second = int(clock[1]), int(clock[2]), int(clock[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidSettings(f"{text!r} is not a time of day", hint="Give 00:00 to 23:59.")
    zone = clock[4]
    today = datetime.fromtimestamp(now, UTC)
    if zone is None and localize is not None:
        today = today.astimezone(localize(today.replace(tzinfo=None)).tzinfo)
    for days in (-1, 0, 1, 2):
        day = today.date() + timedelta(days=days)
        moment = datetime.fromisoformat(f"{day.isoformat()}T{hour:02d}:{minute:02d}:{second:02d}{zone or ''}")
        at = _zoned(moment, text, localize).timestamp()
        if at > now:
            return at
    raise AssertionError("a time of day comes once in two days")


def _zoned(moment: datetime, text: str, localize: Localize | None) -> datetime:
    if moment.tzinfo is not None:
        return moment
    if localize is None:
        raise InvalidSettings(
            f"{text!r} has no time zone", hint=f"Add it: {text}Z, {text}+01:00, or give +2h.", deadline=text
        )
    return localize(moment)


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)

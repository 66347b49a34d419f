"""Labels of a rank's container or pod, which suffice to adopt it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from elastane_runner.engine import AttemptPlan, EngineError
from elastane_runner.log_segments import CAP_BYTES_MIN

LABEL_PREFIX: Final = "io.elastane."
RUNNER: Final = LABEL_PREFIX + "runner"
RUN: Final = LABEL_PREFIX + "run"
ATTEMPT: Final = LABEL_PREFIX + "attempt"
RANK: Final = LABEL_PREFIX + "rank"
RANKS: Final = LABEL_PREFIX + "ranks"
FENCE: Final = LABEL_PREFIX + "fence"
LOG_CAP_BYTES: Final = LABEL_PREFIX + "log-cap-bytes"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SIGNALS_BASE: Final = 128
_SIGNAL_MAX: Final = 64


@dataclass(frozen=True, kw_only=True)
class RankLabels:
    """Contents of a container's labels. ranks: all that were launched with it."""

    run: str
    attempt: int
    rank: int
    ranks: tuple[int, ...]
    fence: int
    log_cap_bytes: int


def check_attempt(plan: AttemptPlan) -> None:
    """Refuse a plan that no engine can start. Raises EngineError."""
    check_name(plan.run, "run")
    if plan.attempt < 1 or not plan.ranks:
        raise EngineError(f"attempt {plan.attempt} of {plan.run!r} has {len(plan.ranks)} ranks: from 1 each")
    if len({one.rank for one in plan.ranks}) < len(plan.ranks):
        raise EngineError("two ranks have the same number")
    if plan.log_cap_bytes < CAP_BYTES_MIN:
        raise EngineError(
            f"a log of {plan.log_cap_bytes} bytes is too small", hint=f"{CAP_BYTES_MIN} at least"
        )
    for rank in plan.ranks:
        words = [*rank.command, *rank.environment, *rank.environment.values()]
        if not rank.command or not rank.command[0] or any("\0" in word for word in words):
            raise EngineError("a command is empty, or it or a variable contains NUL")
        if any(not name or "=" in name for name in rank.environment):
            raise EngineError("a variable has no name, or '=' in it")


def check_name(name: str, what: str) -> None:
    """Refuse an id that cannot be part of a container's name and a folder. Raises EngineError."""
    if not _NAME.fullmatch(name):
        raise EngineError(
            f"the {what} {name!r} cannot name a folder or a container",
            hint="an id has letters, digits, '.', '_' and '-', and begins with a letter or digit",
        )


def labels(runner: str, plan: AttemptPlan, rank: int) -> dict[str, str]:
    """Return the labels of a rank's container."""
    return {
        RUNNER: runner,
        RUN: plan.run,
        ATTEMPT: str(plan.attempt),
        RANK: str(rank),
        RANKS: ",".join(str(one.rank) for one in plan.ranks),
        FENCE: str(plan.fence),
        LOG_CAP_BYTES: str(plan.log_cap_bytes),
    }


def read_labels(found: Mapping[str, str]) -> RankLabels | None:
    """Parse labels; None if they are not those of a rank."""
    try:
        read = RankLabels(
            run=found[RUN],
            attempt=int(found[ATTEMPT]),
            rank=int(found[RANK]),
            ranks=tuple(int(one) for one in found[RANKS].split(",")),
            fence=int(found[FENCE]),
            log_cap_bytes=int(found[LOG_CAP_BYTES]),
        )
    except (KeyError, ValueError):
        return None
    is_valid = _NAME.fullmatch(read.run) and read.attempt >= 1 and read.log_cap_bytes >= CAP_BYTES_MIN
    return read if is_valid and read.rank in read.ranks else None


def is_whole(ranks: Iterable[int], started: Iterable[int]) -> bool:
    """True if all ranks of an attempt were started; otherwise its launch was interrupted."""
    return set(ranks) <= set(started)


def returncode(exit_code: int) -> int:
    """Return the code of a rank as processes have it: negative for a signal, which engines add to 128."""
    number = exit_code - _SIGNALS_BASE
    return -number if 1 <= number <= _SIGNAL_MAX else exit_code

"""Reads events from before they were structs: a kind, a sentence and facts as text. Pure.

Stores and masters of older releases have only these; no other module reads them. The sentence is shown
unchanged. Missing facts become 0, an empty text or False.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any

from elastane_proto.history import events as e
from elastane_proto.history.events import AnyHistoryEvent, HistoryEvent, Place, Spent, UnknownEvent

_MEMBER = re.compile(r"([^\s,\[\]]+)\[([0-9]{1,18}):([0-9]{1,18})\]")
#: End of a long fact that an older master truncated.
_CUT = re.compile(r"\.\.\. \([0-9]+ more characters\)\Z")
_SENTENCES = ("why", "error", "missing", "lost")
"""Fields that hold prose: the whole sentence stands for them."""
_ANSWERS = {
    "finished": "came to its end",
    "begins": "the history of this job begins",
    "in_ring": "did not leave the ring",
}
"""Fields that no fact told, and what the sentence says where the answer is yes."""
_DIFFER = " have different gradients for EST "
_THIRD_MISSING = "no third worker is there"
_INT_MAX = 2**63 - 1

#: For kinds with several structs: the fact that only the first one has.
_BY_FACT: dict[str, tuple[str, type[HistoryEvent], type[HistoryEvent]]] = {
    "ring_change": ("members", e.RingAnnounced, e.RingScaled),
    "job_suspended": ("lost", e.StepsUnsaved, e.JobSuspended),
    "worker_joined": ("host", e.WorkerJoined, e.WorkerReturned),
    "worker_quarantined": ("at_step", e.WorkerBarred, e.WorkerQuarantined),
    "notice_over": ("checkpoint", e.NoticeOverUnsaved, e.NoticeOver),
    "task_failed": ("attempt", e.TaskFailed, e.MoreTasksFailed),
    "task_timed_out": ("attempt", e.TaskTimedOut, e.MoreTasksTimedOut),
}
_NEVER_TOLD = (
    e.SuspensionCalledOff,
    e.SuspensionGivenUp,
    e.HostBarred,
    e.StragglerReweighted,
    e.StragglerReplaced,
)
_BY_KIND: dict[str, type[HistoryEvent]] = {
    struct.kind: struct
    for struct in typing.get_args(AnyHistoryEvent)
    if struct.kind not in _BY_FACT and struct not in _NEVER_TOLD
} | {"sentinel_liar": e.SentinelFaulty}  # its name in the first stores


def upgraded(
    kind: str, worker: str, reason: str, step: int, facts: Mapping[str, str]
) -> AnyHistoryEvent | UnknownEvent:
    """Return the event for the text of an older release. step: the one in progress at that time."""
    struct = _BY_KIND.get(kind)
    if struct is None and kind in _BY_FACT:
        fact, having, lacking = _BY_FACT[kind]
        struct = having if fact in facts else lacking
    if struct is None:
        return UnknownEvent()
    made = _made(struct, worker, reason, {"at_step": str(step), **facts})
    return typing.cast("AnyHistoryEvent", made)


def _made(struct: type[HistoryEvent], worker: str, reason: str, facts: Mapping[str, str]) -> HistoryEvent:
    if struct is e.RingAnnounced:
        listed = facts["members"]
        members = tuple(Place(name, int(start), int(end)) for name, start, end in _MEMBER.findall(listed))
        return e.RingAnnounced(members, facts.get("planned") == "True", reason, _CUT.search(listed) is None)
    if struct is e.WorkerDraining:
        return e.WorkerDraining(worker, _without(worker, reason), _who_drained(reason))
    if struct is e.SentinelFaulty:
        numbers = {name: _whole(facts.get(name, "")) for name in e.SentinelFaulty.facts}
        return e.SentinelFaulty((worker,) if worker else (), (), **numbers)
    if struct is e.SentinelUndecided:
        # No fact has the workers that differ; the sentence begins with their names.
        names = tuple(re.split(r", | and ", reason.partition(_DIFFER)[0])) if _DIFFER in reason else ()
        numbers = {name: _whole(facts.get(name, "")) for name in e.SentinelUndecided.facts}
        return e.SentinelUndecided(names, _THIRD_MISSING in reason, **numbers)
    values: dict[str, Any] = {}
    for name, hint in _fields(struct).items():
        if name == "worker":
            values[name] = worker
        elif name in _SENTENCES and hint is str:
            values[name] = _without(worker, reason)
        elif name in _ANSWERS:
            values[name] = _ANSWERS[name] in reason
        else:
            values[name] = _value(name, hint, facts)
    return struct(**values)


def _fields(struct: type[HistoryEvent]) -> dict[str, Any]:
    hints = typing.get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}


def _value(name: str, hint: Any, facts: Mapping[str, str]) -> object:
    text = facts.get(name, "")
    if hint is bool:
        return text == "True"
    if hint is int:
        return _whole(text)
    if hint is float:
        return _number(text)
    if hint is str:
        return text
    if hint is Spent:
        return _spent(facts)
    if name == "votes":
        return tuple(
            e.Vote(key.removeprefix("digest_"), value)
            for key, value in sorted(facts.items())
            if key.startswith("digest_")
        )
    if typing.get_origin(hint) is tuple:
        return ()
    return e.Prices(0, 0, facts.get("currency", ""))


def _spent(facts: Mapping[str, str]) -> Spent:
    micros = [_whole(facts.get(f"{name}_micros", "")) for name in ("spent", "on_demand", "saved")]
    nanos = [_nanos(facts.get(f"{name}_seconds", "")) for name in ("worker", "useful", "replayed", "idle")]
    return Spent(facts.get("currency", ""), *micros, None, *nanos, 0, any(micros))  # type: ignore[call-arg, arg-type]


def _who_drained(reason: str) -> str:
    if "operator" in reason:
        return "operator"
    return "signal" if reason.endswith(": SIGTERM") or reason == "SIGTERM" else ""


def _without(worker: str, reason: str) -> str:
    """The sentence without the worker's name at its beginning."""
    for start in (f"{worker}: ", f"{worker} "):
        if worker and reason.startswith(start):
            return reason[len(start) :]
    return reason


def _whole(text: str) -> int:
    found = re.fullmatch(r"-?[0-9]{1,19}", text)
    return max(-_INT_MAX, min(int(text), _INT_MAX)) if found else 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _nanos(text: str) -> int:
    """Convert seconds with nine decimals to nanoseconds, exactly."""
    seconds, _, rest = text.partition(".")
    return min(_whole(seconds) * 1_000_000_000 + _whole(rest.ljust(9, "0")[:9]), _INT_MAX)

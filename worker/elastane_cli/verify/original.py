"""Compares the results of an untouched script's run with those of an elastic run of the converted one. Pure.

Both sides are recorded by the same function (`hook.elastane_reference.taken`). The converted script may hold
in one module what the original trains as several, and may have passed its optimizers to prepare in another
order; names, shapes and dtypes show which tensors correspond.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastane_cli.rehearse.results import NOTHING, Described, Row, Taken


def unlike(reference: Taken, found: Taken) -> str:
    """Return why the two do not train the same architecture, as text; empty if they do."""
    places = _places(reference, found)
    theirs = {name: v for number, model in enumerate(reference.models) for name, v in _named(number, model)}
    if places is None:
        ours = {name: value for _, model in enumerate(found.models) for name, value in _named(0, model)}
        return _first_unlike(theirs, ours)
    covered = sum(len(model["weights"]) for model in reference.models)
    ours_count = sum(len(model["weights"]) for model in found.models)
    if covered != ours_count:
        return f"the reference trains {covered} parameters, the converted script {ours_count}"
    if len(reference.optimizers) != len(found.optimizers):
        return (
            f"the reference has {len(reference.optimizers)} optimizers that stepped, the converted script "
            f"{len(found.optimizers)}"
        )
    return ""


def compare_taken(reference: Taken, found: Taken) -> tuple[Row, ...]:
    """Compare steps, weights, buffers, optimizer, and each module that both scripts hold under one name.

    A row's texts name the first differing entry. `unlike` must have returned "".
    """
    places = _places(reference, found)
    assert places is not None
    rows = [Row("steps", str(reference.steps), str(found.steps))]
    for part in ("weights", "buffers"):
        theirs = {
            _join(prefix, name): value
            for model, prefix in zip(reference.models, places, strict=True)
            for name, value in model[part].items()
        }
        ours = {name: value for model in found.models for name, value in model[part].items()}
        rows.append(_row(part, theirs, ours))
    rows.append(_row("optimizer", _optimizers(reference, places), _optimizers(found, [""])))
    for name in sorted(set(reference.held) & set(found.held)):
        theirs, ours = dict(reference.held[name]), dict(found.held[name])
        if _shapes(theirs) == _shapes(ours):  # otherwise two unrelated modules with the same name
            rows.append(_row(name, theirs, ours))
    return tuple(rows)


def first_event_difference(
    reference: Mapping[int, Sequence[Mapping[str, Any]]], found: Mapping[int, Sequence[Mapping[str, Any]]]
) -> EventDifference | None:
    """Return the first event of any rank in which two traced runs differ.

    Events are compared in order, and for each event the ranks in order.
    """
    ranks = sorted(set(reference) & set(found))
    for index in range(max((len(reference[rank]) for rank in ranks), default=0)):
        for rank in ranks:
            if index >= len(reference[rank]) or index >= len(found[rank]):
                if len(reference[rank]) != len(found[rank]):
                    return EventDifference(rank, _step_of(reference[rank][:index]), "end")
                continue
            difference = _between(rank, reference[rank], found[rank], index)
            if difference is not None:
                return difference
    return None


@dataclass(frozen=True, slots=True)
class EventDifference:
    """First divergence of the original and the converted script, both under stock DDP.

    what: "initial weights", "mini-batch", "random numbers", "loss", "settings" (of the optimizer), "weights",
    "order" (another kind of event), "end" (one makes fewer). name: of the tensor, generator or setting.
    """

    rank: int
    step: int
    what: str
    name: str = ""
    reference: str = ""
    found: str = ""


def read_events(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Parse a rank's trace; a line that was cut off is skipped."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _between(
    rank: int, reference: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], index: int
) -> EventDifference | None:
    stock, other = reference[index], found[index]
    step = _step_of(reference[:index])
    if stock["kind"] != other["kind"]:
        return EventDifference(rank, step, "order", reference=stock["kind"], found=other["kind"])
    kind = stock["kind"]
    if kind == "forward":
        if stock["inputs"] != other["inputs"]:
            return EventDifference(rank, step, "mini-batch")
        return _named_difference(rank, step, "random numbers", stock["random"], other["random"])
    if kind == "backward":
        if stock["loss"] != other["loss"]:
            values = (", ".join(str(float.fromhex(x)) for x in record["loss"]) for record in (stock, other))
            return EventDifference(rank, step, "loss", "", *values)
        return None
    if kind == "step":
        settings = _named_difference(
            rank, step, "settings", _readable(stock["settings"]), _readable(other["settings"])
        )
        return settings or _named_difference(rank, step, "weights", stock["weights"], other["weights"])
    return _named_difference(rank, step, "initial weights", stock["weights"], other["weights"])


def _named_difference(
    rank: int, step: int, what: str, stock: Mapping[str, str], other: Mapping[str, str]
) -> EventDifference | None:
    """Return the first entry that differs, or that only one of them has.

    Entries are not counted as missing if no name is common: the converted script then holds in one module
    what the original has as several. A generator may also be absent, if the script has not imported its
    library.
    """
    named_alike = what != "random numbers" and not stock.keys().isdisjoint(other)
    for name in [*stock, *(name for name in other if name not in stock)]:
        values = stock.get(name, "absent"), other.get(name, "absent")
        if values[0] != values[1] and (named_alike or (name in stock and name in other)):
            short = (text[:16] if what != "settings" else text for text in values)
            return EventDifference(rank, step, what, name, *short)
    return None


def _readable(settings: Mapping[str, str]) -> dict[str, str]:
    """Format numbers in decimal, exactly enough that a difference in the last bit shows."""
    return {name: str(float.fromhex(v)) if "0x" in v else v for name, v in settings.items()}


def _step_of(events: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of steps made before, by the optimizer that stepped most often."""
    counts: dict[int, int] = {}
    for event in events:
        if event["kind"] == "step":
            counts[event["optimizer"]] = counts.get(event["optimizer"], 0) + 1
    return max(counts.values(), default=0)


# ---------------------------------------------------------------------- correspondence of names


def _places(reference: Taken, found: Taken) -> list[str] | None:
    """Return for each model of the reference its name prefix in the converted script.

    Returns None if one has no match.
    """
    ours = {name: value for model in found.models for name, value in model["weights"].items()}
    inner = [".".join(name.split(".")[:depth]) for name in ours for depth in range(1, name.count(".") + 1)]
    prefixes = ["", *sorted(dict.fromkeys(inner), key=lambda prefix: prefix.count("."))]
    places: list[str] = []
    for model in reference.models:
        wanted = _shapes(model["weights"])
        for prefix in prefixes:
            if prefix in places or (prefix == "" and len(reference.models) > 1):
                continue
            start = f"{prefix}." if prefix else ""
            inside = {name.removeprefix(start): v for name, v in ours.items() if name.startswith(start)}
            if _shapes(inside) == wanted:
                places.append(prefix)
                break
        else:
            return None
    return places


def _shapes(tensors: Mapping[str, Described]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(value[1]), tuple(value[2])) for name, value in tensors.items()}


def _named(number: int, model: Mapping[str, Mapping[str, Described]]) -> Iterator[tuple[str, Described]]:
    yield from model["weights"].items()


def _first_unlike(theirs: Mapping[str, Described], ours: Mapping[str, Described]) -> str:
    for name, value in theirs.items():
        if name not in ours:
            return f"the reference trains {name} {_form(value)}, the converted script has no such parameter"
        if _shapes({name: value}) != _shapes({name: ours[name]}):
            return (
                f"{name} is {_form(value)} in the reference and {_form(ours[name])} in the converted script"
            )
    more = [name for name in ours if name not in theirs]
    if more:
        form = _form(ours[more[0]])
        return f"the converted script trains {more[0]} {form}, the reference has no such parameter"
    return "the reference's models are not found in the converted script's by their names"


def _form(value: Described) -> str:
    return f"{value[1]} {'x'.join(map(str, value[2])) or 'scalar'}"


def _optimizers(run: Taken, places: Sequence[str]) -> dict[str, list[str]]:
    """Return all entries by a path common to both sides: optimizers are ordered by what they train."""

    def name_of(number: int, name: str) -> str:
        return _join(places[number], name) if 0 <= number < len(places) else f"?{name}"

    ordered = sorted(
        run.optimizers, key=lambda one: sorted(name_of(int(n), name) for n, name in one["parameters"])
    )
    found = {}
    for index, one in enumerate(ordered):
        for path, value in one["entries"].items():
            label = path
            if not path.startswith("group "):
                number, _, rest = path.partition("/")
                name, _, key = rest.rpartition(": ")
                label = f"{name_of(int(number), name)}: {key}"
            found[f"{index}: {label}" if len(ordered) > 1 else label] = [value]
    return found


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _row(part: str, theirs: Mapping[str, Described], ours: Mapping[str, Described]) -> Row:
    differing = [
        n for n in [*theirs, *(n for n in ours if n not in theirs)] if _digest(theirs, n) != _digest(ours, n)
    ]
    if not differing:
        return Row(part, _whole(theirs), _whole(ours))
    name = differing[0]
    more = f" (and {len(differing) - 1} more of {len(theirs)})" if len(differing) > 1 else ""
    return Row(
        part,
        f"{name} {_digest(theirs, name)[:16]}{more}",
        f"{name} {_digest(ours, name)[:16] or 'absent'}{more}",
    )


def _whole(tensors: Mapping[str, Described]) -> str:
    """Return the number of equal tensors and the beginning of the sha256 over their names and digests."""
    if not tensors:
        return NOTHING
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {_digest(tensors, name)}\n".encode())
    return f"{len(tensors)} equal, sha256 {digest.hexdigest()[:16]}"


def _digest(tensors: Mapping[str, Described], name: str) -> str:
    return str(tensors[name][0]) if name in tensors else ""

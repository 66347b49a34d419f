"""Reads PipeDream's profiles (graph.txt), and merges units of models that have too many.

A line is a node, `node4 -- Conv2d(...) -- forward_compute_time=1.2, backward_compute_time=2.4,
activation_size=100.0, parameter_size=20.0` (milliseconds, bytes; a node with several outputs has them in
brackets), or an edge, `node4 -- node5` after a tab. As a pipeline is a chain, nodes are put into a
topological order, and what crosses a cut is all outputs made before it that are used after it. Nodes that
stand for inputs are left out, as PipeDream's optimizer does: their time is that of loading data.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from elastane_planner.errors import InvalidProfile
from elastane_planner.profile import Profile, UnitProfile, workspace_of

_NODE: Final = re.compile(
    r"(?P<id>\S+) -- (?P<name>.*) -- forward_compute_time=(?P<forward>[^,]+), "
    r"backward_compute_time=(?P<backward>[^,]+), activation_size=(?P<activation>\[[^\]]*\]|[^,]+), "
    r"parameter_size=(?P<parameter>[^,]+?)(?: -- .*)?"
)
_EDGE: Final = re.compile(r"\t(?P<source>\S+) -- (?P<target>\S+)")
ADAM_FACTOR: Final = 2.0
"""Bytes of optimizer state for one of parameters, which a graph does not tell: those of Adam."""


def looks_like_graph(text: str) -> bool:
    """Return whether a text is PipeDream's rather than JSON."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return "forward_compute_time=" in first or _EDGE.fullmatch(first) is not None


def read_graph(text: str, *, optimizer_factor: float = ADAM_FACTOR) -> Profile:
    """Return the profile of a graph, a unit for each node in topological order.

    The order does not depend on the order of lines: of the ready nodes, the one with the lowest number comes
    first. A unit stashes its inputs; an input of several units is stashed by the first of them. Raises
    InvalidProfile with the number of a line that cannot be read.
    """
    nodes: dict[str, UnitProfile] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if edge := _EDGE.fullmatch(line.rstrip()):
            edges.append((edge["source"], edge["target"]))
        elif (node := _NODE.fullmatch(line.strip())) and node["id"] not in nodes:
            nodes[node["id"]] = _unit(node, number, optimizer_factor)
        else:
            raise InvalidProfile(
                f"line {number} of a graph is neither a new node nor an edge: {line.strip()[:80]!r}",
                hint="Give a graph.txt as PipeDream's profiler writes it.",
                line=number,
            )
    for source, target in edges:
        if missing := {source, target} - nodes.keys():
            raise InvalidProfile(f"an edge of a graph names {missing.pop()}, which is no node of it")
    used = {node: unit for node, unit in nodes.items() if not unit.name.startswith("Input")}
    return _chain(used, [(source, target) for source, target in edges if {source, target} <= used.keys()])


def coalesced(profile: Profile, units_max: int) -> Profile:
    """Return a profile of at most units_max units, those between `coarse_bounds`."""
    bounds = pairwise(coarse_bounds(profile, units_max))
    merged = tuple(_merged(profile.units[first:end]) for first, end in bounds)
    return msgspec.structs.replace(profile, units=merged)


def coarse_bounds(profile: Profile, units_max: int) -> list[int]:
    """Return where at most units_max groups of units begin, and the number of units.

    Neighbours are merged repeatedly: first those with little time together and much data between them (least
    seconds / square root of bytes). So cuts inside a residual block disappear before those between blocks.
    Raises InvalidProfile below one unit.
    """
    if units_max < 1:
        raise InvalidProfile("a model has at least one unit", units_max=units_max)
    units = profile.units
    bounds = [0, *profile.cuts, len(units)]
    while len(bounds) - 1 > units_max:
        crossing = [units[cut - 1].boundary_bytes for cut in bounds[1:-1]]
        seconds = [_seconds(units[first:end]) for first, end in zip(bounds, bounds[2:], strict=False)]
        place = min(
            range(len(seconds)),
            key=lambda place: (seconds[place] / math.sqrt(1 + crossing[place]), -crossing[place], place),
        )
        del bounds[place + 1]
    return bounds


def _unit(node: re.Match[str], number: int, optimizer_factor: float) -> UnitProfile:
    try:
        parts = re.split(r"[;,]", node["activation"].strip("[]"))
        activation = sum(float(part) for part in parts if part.strip())
        parameters = float(node["parameter"])
        return UnitProfile(
            name=node["name"].split("(")[0] + f" {node['id']}",
            forward_seconds=float(node["forward"]) / 1000,
            backward_seconds=float(node["backward"]) / 1000,
            parameter_bytes=int(parameters),
            optimizer_bytes=int(parameters * optimizer_factor),
            boundary_bytes=int(activation),
        )
    except (ValueError, OverflowError) as error:
        raise InvalidProfile(f"line {number} of a graph: {error}", line=number) from error


def _chain(nodes: dict[str, UnitProfile], edges: Sequence[tuple[str, str]]) -> Profile:
    """Put the nodes in order; the boundary of each is what crosses the cut after it."""
    after: dict[str, list[str]] = {node: [] for node in nodes}
    waits = dict.fromkeys(nodes, 0)
    for source, target in edges:
        after[source].append(target)
        waits[target] += 1
    ready = [_number(node) for node, count in waits.items() if not count]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        node = heapq.heappop(ready)[1]
        order.append(node)
        for target in after[node]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, _number(target))
    if len(order) != len(nodes):
        raise InvalidProfile(
            "the edges of a graph go in a circle", hint="Give the graph of one forward, without loops."
        )
    place = {node: index for index, node in enumerate(order)}
    inputs = dict.fromkeys(order, 0)
    for node in order:
        if after[node]:
            inputs[min(after[node], key=lambda target: place[target])] += nodes[node].boundary_bytes
    last_use = {node: max((place[target] for target in after[node]), default=place[node]) for node in order}
    units = []
    for index, node in enumerate(order):
        crossing = sum(nodes[one].boundary_bytes for one in order[: index + 1] if last_use[one] > index)
        own = nodes[node]
        if index == len(order) - 1:
            crossing = own.boundary_bytes
        units.append(
            UnitProfile(
                own.name,
                own.forward_seconds,
                own.backward_seconds,
                own.parameter_bytes,
                own.optimizer_bytes,
                crossing,
                inputs[node],
            )
        )
    return Profile(tuple(units))


def _number(node: str) -> tuple[int, str]:
    digits = re.search(r"\d+", node)
    return (int(digits[0]) if digits else 0, node)


def _seconds(units: Sequence[UnitProfile]) -> float:
    return sum(unit.forward_seconds + unit.backward_seconds for unit in units)


def _merged(units: Sequence[UnitProfile]) -> UnitProfile:
    """Return several units as one."""
    name = units[0].name if len(units) == 1 else f"{units[0].name} .. {units[-1].name}"
    return UnitProfile(
        name,
        sum(unit.forward_seconds for unit in units),
        sum(unit.backward_seconds for unit in units),
        sum(unit.parameter_bytes for unit in units),
        sum(unit.optimizer_bytes for unit in units),
        units[-1].boundary_bytes,
        sum(unit.activation_bytes for unit in units),
        sum(unit.buffer_bytes for unit in units),
        units[0].tie if len(units) == 1 else 0,
        workspace_of(units),
    )

"""Recursive device ordering: devices that are tightly connected stay together (SPP, INFOCOM 2022).

    RDO(G) = G if it has one device, else RDO(G1) ++ RDO(G2) with (G1, G2) its least cut by bandwidth

Only a starting point: the search swaps devices later. Ties are broken by rank, the place in the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastane_planner.cluster import Cluster

# Importing it at the top would add a quarter of a second to every master's start.
if TYPE_CHECKING:
    import networkx


def device_order(cluster: Cluster, ranked: Sequence[int]) -> tuple[int, ...]:
    """Return the devices `ranked`, in an order whose neighbours are well connected.

    The bandwidth of a pair is that of its slower direction. Where all links are equal, the order is `ranked`.
    """
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(len(ranked)))
    for later, device in enumerate(ranked):
        for earlier in range(later):
            other = ranked[earlier]
            weight = min(cluster.bandwidth[device][other], cluster.bandwidth[other][device])
            if weight:
                graph.add_edge(earlier, later, weight=weight)
    order: list[int] = []
    left = [list(range(len(ranked)))]
    while left:
        part = left.pop()
        halves = _halves(graph, part)
        if halves:
            left += reversed(halves)
        else:
            order += part
    return tuple(ranked[node] for node in order)


def groups(cluster: Cluster) -> list[list[int]]:
    """Return the groups of devices with links in both directions between them; one if all can meet."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(cluster.devices)))
    for source, row in enumerate(cluster.bandwidth):
        graph.add_edges_from((source, target) for target, value in enumerate(row) if value)
    return sorted(sorted(group) for group in networkx.strongly_connected_components(graph))


def _halves(graph: networkx.Graph, part: list[int]) -> list[list[int]] | None:
    """Return the two sides of the minimum cut, the first device's side first; None if no cut is better."""
    import networkx

    inner = networkx.Graph()
    inner.add_nodes_from(part)
    inner.add_edges_from(
        (u, v, graph.edges[u, v])
        for place, u in enumerate(part)
        for v in part[place + 1 :]
        if graph.has_edge(u, v)
    )
    weights = {edge["weight"] for _, _, edge in inner.edges(data=True)}
    pairs = len(part) * (len(part) - 1) // 2
    if not weights or (len(weights) == 1 and inner.number_of_edges() == pairs):
        return None
    components = sorted(sorted(component) for component in networkx.connected_components(inner))
    if len(components) > 1:
        return components
    _, sides = networkx.stoer_wagner(inner)
    return sorted(sorted(side) for side in sides)

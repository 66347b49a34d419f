"""Connections between parameter servers and workers: what is sent arrives in its order, or nothing follows.

A process that has died takes nothing, and whoever sends to it learns that after a while. While a link is cut,
what is sent waits, as TCP retransmits it. A restarted process is another end, also under its old name.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.network import Network
from sim.process import Process
from sim.world import World

GONE_SECONDS = 0.05


class Wire:
    """All connections of a run."""

    def __init__(self, world: World, network: Network) -> None:
        self.world, self.network = world, network
        self._last: dict[tuple[int, int], float] = {}

    def send(
        self,
        source: Process,
        target: Process,
        action: Callable[[], None],
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        """Have `action` run at the target. gone: run at the source instead if the target has died."""
        link = id(source), id(target)
        at = max(self._last.get(link, 0.0), self.network.arrival(source.name, target.name))
        self._last[link] = at

        def arrive() -> None:
            if target.alive:
                target.call_soon(action)
            else:
                self.world.after(GONE_SECONDS, lambda: source.call_soon(gone))

        self.world.at(at, arrive)

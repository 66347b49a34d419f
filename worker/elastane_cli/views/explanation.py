"""Formats an explanation of a worker's place as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastane_cli.views.text import local_time, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane_cli.explain import Explanation


def explanation_lines(result: Explanation) -> list[RenderableType]:
    """Return the lines printed by `elastane explain` and shown by `elastane top`."""
    from rich.text import Text

    style = {"member": "green", "out": "red"}.get(result.place, "yellow")
    since = f" (since {local_time(result.since)})" if result.since is not None else ""
    lines: list[RenderableType] = [
        one_line(Text.assemble((result.worker, "bold"), "  ", (result.sentence, style), (since, "dim")))
    ]
    for link in result.chain:
        line = Text()
        line.append(f"{link.sequence:>5} ", style="dim")
        line.append(f"{local_time(link.time)} ", style="cyan")
        line.append(f"{link.kind:<20} ", style="bold")
        line.append(f"g{link.generation} s{link.step} ", style="dim")
        if link.meaning:
            line.append(f"{link.meaning}: ", style="green")
        line.append(link.reason)
        lines.append(one_line(line))
    if not result.complete:
        lines.append(Text("earlier events are no longer kept", style="dim"))
    return lines

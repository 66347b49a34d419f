"""One metric of the catalogues, of masters and of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """name: as it is scraped, a counter's with `_total`. help: one sentence for users."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

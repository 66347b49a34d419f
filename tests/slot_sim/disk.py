"""Where snapshots are: it outlives all processes, may be slow, and may lose the newest."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastane_slots.tasks import TaskName
from sim.world import World

DAMAGED_MAX = 2
COPY_SECONDS = (0.001, 0.02, 0.3)


@dataclass(frozen=True)
class Image:
    """A snapshot of a slot, as read and written in one moment. ps: who wrote it."""

    life: int
    version: int
    since: int
    ps: str
    record: bytes
    names: tuple[TaskName, ...]

    @property
    def name(self) -> str:
        return f"{self.life}-{self.since}-{self.ps}/base-{self.version}"


@dataclass
class Disk:
    """Snapshots by slot; newest is the highest (life, version, since)."""

    world: World
    images: dict[int, list[Image]] = field(default_factory=dict)
    slow_until: float = 0.0
    #: The newest that was ever written of each slot, damaged or not.
    written: dict[int, Image] = field(default_factory=dict)

    def seconds(self) -> float:
        """Return how long a snapshot takes to be written."""
        slow = self.world.now < self.slow_until
        return self.world.rng.choice((0.5, 2.0) if slow else (0.001, 0.01, 0.1))

    def copy_seconds(self) -> float:
        """Return how long a slot takes to be copied."""
        slow = self.world.now < self.slow_until
        return self.world.rng.choice((1.0, 2.0) if slow else COPY_SECONDS)

    def write(self, slot: int, image: Image) -> None:
        self.images.setdefault(slot, []).append(image)
        self.written[slot] = max(self.written.get(slot, image), image, key=_age)

    def newest(self, slot: int) -> Image | None:
        """Return the newest usable snapshot."""
        there = self.images.get(slot, [])
        return max(there, key=_age) if there else None

    def damage(self, slot: int) -> None:
        """The newest snapshots of a slot cannot be read any more; one is left."""
        there = self.images.get(slot, [])
        there.sort(key=_age)
        for _ in range(self.world.rng.randint(1, DAMAGED_MAX)):
            if len(there) > 1:
                there.pop()


def _age(image: Image) -> tuple[int, int, int]:
    return image.life, image.version, image.since

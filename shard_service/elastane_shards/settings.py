"""Settings of a dynamic dataset's queue, and their validation."""

from __future__ import annotations

from math import isfinite
from typing import Final

import msgspec

from elastane_shards.errors import InvalidSettings
from elastane_shards.splitters import POSITION_MAX, Source, list_source, range_source, stream_source


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of a `DynamicQueue`, as shard.proto's DatasetSettings; exactly one source is set.

    The master's defaults, those of `Job.tasks`, and the stored form of a dataset are defined here.

    task_size: positions per task. size: number of positions of a range source. entries: the items of a list
    source. watermark, closed: state of a stream source. lease_seconds: how long a worker may hold a task.
    max_attempts: failed attempts after which a task is FAILED. shuffle, seed: if shuffle is set, positions
    are mapped by the Feistel permutation of (seed, epoch). pushes: gradients of its tasks go to parameter
    servers (elastane_slots).
    """

    task_size: int
    size: int | None = None
    entries: tuple[int, ...] | None = None
    watermark: int | None = None
    closed: bool = False
    epochs: int = 1
    lease_seconds: float = 60.0
    max_attempts: int = 3
    shuffle: bool = False
    seed: int = 0
    pushes: bool = False

    def source(self) -> Source:
        """Build the source. Raises InvalidSource, and InvalidSettings unless exactly one source is set."""
        given = [name for name in ("size", "entries", "watermark") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidSettings(
                f"a dataset has exactly one source, not {len(given)}",
                hint="set one of size, entries, watermark",
                given=", ".join(given),
            )
        if self.closed and self.watermark is None:
            raise InvalidSettings("only a stream source can be closed", given=given[0])
        if self.size is not None:
            return range_source(self.size)
        if self.entries is not None:
            return list_source(self.entries)
        return stream_source(self.watermark or 0, self.closed)

    def without_lists(self) -> QueueSettings:
        """Return these settings with empty lists: the queue's source stores the entries, 8 bytes each."""
        if self.entries is not None:
            return msgspec.structs.replace(self, entries=())
        return self

    def with_lists(self, entries: tuple[int, ...]) -> QueueSettings:
        """Inverse of `without_lists`: put the entries back."""
        if self.entries is not None:
            return msgspec.structs.replace(self, entries=entries)
        return self

    def check(self) -> None:
        """Raise InvalidSettings if a number is out of range or settings contradict each other."""
        if not 0 < self.task_size <= POSITION_MAX:
            raise InvalidSettings(
                f"tasks of {self.task_size} samples are not possible", task_size=self.task_size
            )
        if self.epochs < 1:
            raise InvalidSettings(f"{self.epochs} epochs", hint="at least 1", epochs=self.epochs)
        if self.max_attempts < 1:
            raise InvalidSettings(
                f"{self.max_attempts} attempts", hint="at least 1", max_attempts=self.max_attempts
            )
        if not (isfinite(self.lease_seconds) and self.lease_seconds > 0):
            raise InvalidSettings(
                f"a lease of {self.lease_seconds} s", hint="more than 0", lease_seconds=self.lease_seconds
            )
        if self.shuffle and self.watermark is not None:
            raise InvalidSettings(
                "a stream cannot be shuffled: its size is not known",
                hint="shuffle before it is appended",
                shuffle=self.shuffle,
            )


#: The defaults, as the settings of a dataset without a source.
DEFAULTS: Final = QueueSettings(task_size=1)

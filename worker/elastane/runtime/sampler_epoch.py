"""Check the epoch number that the script passes to its sampler.

A stock sampler derives an epoch's order from the number last passed to `set_epoch`. Here the order of an
epoch must be the same in a worker that joins in the middle of it, so it is derived from the epoch's number,
and `set_epoch` is called for the script. A script that passes another number expects another order, and is
refused.
"""

from __future__ import annotations

from typing import Any

import structlog
from torch.utils.data import DataLoader

from elastane_common.errors import EXIT_REFUSED, ElastaneError

_log = structlog.get_logger(__name__)


class SamplerEpochError(ElastaneError):
    """The script passed its sampler an epoch number other than that of the epoch being trained."""

    code = "ELA333"
    exit_code = EXIT_REFUSED


class SamplerEpoch:
    """Records the script's calls of `set_epoch`. last_epoch: last number passed to it; None: never called."""

    def __init__(self, sampler: Any) -> None:
        self.last_epoch: int | None = None
        self._kind = type(sampler).__name__
        self._shuffles = bool(getattr(sampler, "shuffle", True))
        self._warned = False
        original = sampler.set_epoch

        def set_epoch(epoch: int) -> Any:
            self.last_epoch = int(epoch)
            return original(epoch)

        sampler.set_epoch = set_epoch

    def check(self, epoch: int) -> None:
        """Compare at the beginning of the loop of `epoch`. Raises SamplerEpochError."""
        if not self._shuffles:
            return
        if self.last_epoch is not None and self.last_epoch != epoch:
            raise SamplerEpochError(
                f"{self._kind}.set_epoch was last given {self.last_epoch}, and this is epoch {epoch}",
                hint=(
                    "call `sampler.set_epoch(epoch)` in every epoch with the number that job.epochs "
                    "gives; for a different order give the sampler a different seed"
                ),
                last_epoch=self.last_epoch,
                epoch=epoch,
            )
        if self.last_epoch is None and epoch > 0 and not self._warned:
            self._warned = True
            _log.warning(
                f"{self._kind}.set_epoch is never called: stock DDP would repeat the first epoch's order, "
                "here every epoch has its own order; add `sampler.set_epoch(epoch)` to the original "
                "script, too"
            )


def watch_set_epoch(loader: DataLoader[Any]) -> SamplerEpoch | None:
    """Watch the script's sampler or batch sampler; None if it has no `set_epoch`."""
    for sampler in (loader.batch_sampler, loader.sampler):
        if callable(getattr(sampler, "set_epoch", None)):
            return SamplerEpoch(sampler)
    return None

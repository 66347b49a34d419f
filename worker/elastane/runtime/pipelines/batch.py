"""Items of a pipeline job's loader: the mini-batches of one global step, for `pipe(batch)` only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from elastane.runtime.pipelines.errors import PipelineBodyError

_HINT = (
    "write `loss = pipe(batch)`; to change a mini-batch before the model gets it, give prepare_pipeline "
    "split=: a function of a mini-batch that returns (input, target)"
)


class PipelineBatch:
    """The mini-batches of one step, for all ESTs of which this process is home; `pipe(batch)` loads them.

    step: the global step. first, others: in a process with one rank, the first mini-batch, and an iterator
    over the others.
    """

    def __init__(self, step: int, first: Any = None, others: Iterator[Any] | None = None) -> None:
        self.step, self.first = step, first
        self.others: Iterator[Any] = iter(()) if others is None else others
        self.used = False

    def use(self) -> None:
        """Record that the batch is passed through the model. Raises PipelineBodyError the second time."""
        if self.used:
            raise PipelineBodyError(
                f"pipe(batch) was called twice with the batch of step {self.step}",
                hint="each turn of the loop is one global step: pipe(batch), then optimizer.step()",
            )
        self.used = True

    def check_used(self) -> None:
        """Raise PipelineBodyError if the loop body has not passed the batch to the pipe."""
        if not self.used:
            raise PipelineBodyError(
                f"the loop body of step {self.step} did not call pipe(batch)",
                hint="each turn of the loop is one global step: pipe(batch), then optimizer.step()",
            )

    def _refuse(self, *_: Any) -> NoReturn:
        raise PipelineBodyError(
            "the loop body reads a pipeline's batch, which its worker may not even hold", hint=_HINT
        )

    __iter__ = __getitem__ = __len__ = _refuse


def steps(mini_batches: Iterator[Any], step: Any) -> Iterator[PipelineBatch]:
    """Yield one batch for each global step of a process with one rank.

    mini_batches: the epoch's, of which the pipe takes those of the step after the first. step: returns the
    global step now running.
    """
    for first in mini_batches:
        batch = PipelineBatch(step(), first, mini_batches)
        yield batch
        batch.check_used()


def pair(batch: Any) -> tuple[Any, Any]:
    """Return a mini-batch's input and target: the default of `split=`. Raises PipelineBodyError."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    length = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    raise PipelineBodyError(
        f"a mini-batch of the loader is a {type(batch).__name__}{length}, not (input, target)",
        hint="give prepare_pipeline split=: a function of a mini-batch that returns (input, target)",
    )

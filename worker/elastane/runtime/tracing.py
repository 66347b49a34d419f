"""Step trace of this process (see `elastane.verify.trace`), enabled by ELASTANE_TRACE_DIR."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastane.registry import Registry
from elastane.runtime.prepared import Prepared
from elastane.state.train_state import Stateful

if TYPE_CHECKING:
    from elastane.verify.trace import StepTrace

VARIABLE = "ELASTANE_TRACE_DIR"


def open_trace(name: str, prepared: Prepared, registry: Registry) -> StepTrace | None:
    """Open the trace of this process, "ddp-RANK" or "elastic-WORKER".

    Call it before other gradient hooks exist.
    """
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    from elastane.verify.trace import StepTrace

    loader = prepared.loader
    roots = {"dataset": loader.dataset, "sampler": loader.sampler, "collate_fn": loader.collate_fn}
    known = {id(value) for value in registry.objects} | {id(loader.generator)}
    extras: dict[str, Stateful] = {
        f"{place}.{type(scheduler).__name__}": scheduler
        for place, scheduler in enumerate(prepared.schedulers)
    }
    extras |= prepared.extras
    return StepTrace(
        directory, name, prepared.model, prepared.optimizers, extras=extras, roots=roots, known=known
    )

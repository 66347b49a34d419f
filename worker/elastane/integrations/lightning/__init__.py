"""LightningModules in a job: `Trainer(strategy=ElastaneStrategy())`.

Lightning runs a process for each rank. Here its loops run in workers that stand for several ranks each:

    strategy    what of a rank a worker answers for, and the optimizer's step
    fit_loop    epochs and mini-batches from the job; what happens once a step, in the worker's last turn
    evaluation  validation: each worker runs the batches of all ranks, one rank after the other
    ranks       which rank this process is now: shared by strategy and loops
    metrics     sums of `self.log` for each rank, and their reduction in gloo's order
    callbacks   what callbacks keep, as part of the job's state; files of checkpoints
    refusals    what cannot be exact, by name
"""

from __future__ import annotations

from elastane.integrations.versions import check_version

check_version("lightning")

from elastane.integrations.lightning.strategy import ElastaneStrategy  # noqa: E402

__all__ = ["ElastaneStrategy"]

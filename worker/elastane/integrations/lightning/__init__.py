"""LightningModules in a job: `Trainer(strategy=ElastaneStrategy())`.

Lightning expects one process per rank. Here each worker runs its loops for several ranks:

    strategy    the Strategy: ranks, setup, and the optimizer's step
    fit_loop    loops over the job's epochs and mini-batches, with per-step work in the worker's last turn
    evaluation  validation: each worker runs the batches of all ranks, one rank after the other
    ranks       the current rank of this process, shared by strategy and loops
    metrics     sums of `self.log` for each rank, and their reduction in gloo's order
    callbacks   callback state as part of the job's state; checkpoint files
    refusals    features that cannot be exact, refused by name
"""

from __future__ import annotations

from elastane.integrations.versions import check_version

check_version("lightning")

from elastane.integrations.lightning.strategy import ElastaneStrategy  # noqa: E402

__all__ = ["ElastaneStrategy"]

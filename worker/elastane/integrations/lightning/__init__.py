"""LightningModules in a job: `Trainer(strategy=ElastaneStrategy())`; scripts of Fabric: `Fabric`.

Lightning expects one process per rank. Here each worker runs its loops for several ranks:

    strategy    the Strategy: ranks, setup, and the optimizer's step
    fit_loop    loops over the job's epochs and mini-batches, with per-step work in the worker's last turn
    evaluation  validation: each worker runs the batches of all ranks, one rank after the other
    ranks       the current rank of this process, shared by strategy and loops
    metrics     sums of `self.log` for each rank, and their reduction in gloo's order
    callbacks   callback state as part of the job's state; checkpoint files
    fabric      Fabric, whose scripts have a loop of their own
    refusals    features that cannot be exact, refused by name
"""

from __future__ import annotations

from elastane.integrations.versions import check_version
from elastane.runtime import distributed_calls, launcher_variables

check_version("lightning")

# They ask for this process's rank, also while they are imported; which we answer.
for _package in ("lightning", "lightning_fabric", "lightning_utilities", "torchmetrics"):
    launcher_variables.know(_package)
    distributed_calls.know(_package)

from elastane.integrations.lightning.fabric import Fabric  # noqa: E402
from elastane.integrations.lightning.strategy import ElastaneStrategy  # noqa: E402

__all__ = ["ElastaneStrategy", "Fabric"]

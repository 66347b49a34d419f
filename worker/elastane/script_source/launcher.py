"""Environment variables that torchrun sets for each rank and Elastane does not."""

from __future__ import annotations

from typing import Final

#: Advice on what to use instead of each.
LAUNCHER_VARIABLES: Final = {
    "RANK": "use job.rank, or job.is_leader for what one worker does",
    "WORLD_SIZE": "use job.num_ests",
    "LOCAL_RANK": 'each worker has one device of its own, torch.device("cuda"); for what one worker does use '
    "job.is_leader",
    "LOCAL_WORLD_SIZE": "use job.num_ests",
    "GROUP_RANK": "leave it out: workers move between machines",
}

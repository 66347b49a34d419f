"""Environment variables that torchrun and other launchers set for each rank. Pure."""

from __future__ import annotations

from typing import Final

#: Variables that scripts read, and what to use in an elastic job instead, where Elastane does not set them.
LAUNCHER_VARIABLES: Final = {
    "RANK": "use job.rank, or job.is_leader for what one worker does",
    "WORLD_SIZE": "use job.num_ests",
    "LOCAL_RANK": 'each worker has one device of its own, torch.device("cuda"); for what one worker does use '
    "job.is_leader",
    "LOCAL_WORLD_SIZE": "use job.num_ests",
    "GROUP_RANK": "leave it out: workers move between machines",
}
#: Variables that describe a single rank. A worker runs several ranks, so it must not inherit any of them.
RANK_VARIABLES: Final = frozenset(
    {
        *LAUNCHER_VARIABLES,
        *("ROLE_RANK", "NODE_RANK", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    }
)
#: Prefix of torchrun's own variables, which also describe a single rank.
TORCHRUN_PREFIX: Final = "TORCHELASTIC_"

"""Environment of another launcher, in which `elastane run` may have been started by mistake. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from elastane_common.errors import RefusedError

#: Number of ranks that a launcher has started -> the launcher.
_RANKS: Final = {"WORLD_SIZE": "torchrun, or another launcher of ranks", "OMPI_COMM_WORLD_SIZE": "mpirun"}
#: Set in each rank. A worker stands for several ranks, so it must not inherit what is true of one.
_OF_ONE_RANK: Final = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
_OF_TORCHRUN: Final = "TORCHELASTIC_"


class OtherLauncherError(RefusedError):
    """`elastane run` was started as one of several ranks: each would start a job of its own."""

    code = "ELA426"


def refuse_other_launcher(environment: Mapping[str, str]) -> None:
    """Raise OtherLauncherError if this process is one of several ranks. Called without --master.

    With --master, each rank may be the agent of its host: all of them join one job.
    """
    for name, launcher in _RANKS.items():
        ranks = environment.get(name, "")
        if ranks.isdecimal() and int(ranks) > 1:
            raise OtherLauncherError(
                f"elastane run was started by {launcher}: {name} is {ranks}, and each of these processes "
                "would start a job of its own",
                hint=f"start it by itself, in the launcher's place: elastane run --ests {ranks} SCRIPT; or "
                f"give --master, so that all join one job. If {name} is left over: unset {name}",
                variable=name,
            )


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that are true of a single rank."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _OF_ONE_RANK and not name.startswith(_OF_TORCHRUN)
    }

"""Environment of another launcher, in which `elastane run` may have been started by mistake. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from elastane_common.errors import RefusedError
from elastane_proto.launcher_variables import RANK_VARIABLES, TORCHRUN_PREFIX

#: Variables with the number of ranks that a launcher has started, and the launcher's name.
_RANKS: Final = {"WORLD_SIZE": "torchrun, or another launcher of ranks", "OMPI_COMM_WORLD_SIZE": "mpirun"}


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
    """Return the environment without the variables that describe a single rank."""
    return {
        name: value
        for name, value in environment.items()
        if name not in RANK_VARIABLES and not name.startswith(TORCHRUN_PREFIX)
    }

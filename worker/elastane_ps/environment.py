"""Settings of a parameter server's process, from the ELASTANE_* variables that the agent sets."""

from __future__ import annotations

from pydantic import Field, ValidationError

from elastane.runtime.environment import WorkerEnvironment
from elastane_common.errors import RefusedError, bad_environment


class PsEnvironment(WorkerEnvironment):
    """The worker settings that apply to a parameter server, and its own."""

    ps_id: str = Field(default="", description="name of this parameter server, e.g. ps-0")
    ps_host: str = Field(
        default="", description="address at which workers reach this parameter server; default: this host's"
    )
    ps_memory_bytes: int = Field(
        default=0,
        ge=0,
        description="limit of its memory for rows and dense tensors; 0: that of its control group",
    )

    def listening_host(self) -> str:
        """The address to listen at."""
        return self.ps_host or self.rendezvous_host()


def read_environment() -> PsEnvironment:
    """Read the process's settings. Raises RefusedError that names every invalid variable."""
    try:
        environment = PsEnvironment()
    except ValidationError as error:
        raise bad_environment(error.errors(), hint="start parameter servers with the agent") from error
    if not environment.master or not environment.ps_id:
        raise RefusedError(
            "a parameter server needs ELASTANE_MASTER and ELASTANE_PS_ID",
            hint="`elastane run --ps 2` starts parameter servers",
        )
    return environment

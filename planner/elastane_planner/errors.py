"""Error classes of this package.

    PlanError
    ├── InvalidProfile    a time or size is negative, NaN or infinite; no units       invalid_profile
    ├── InvalidCluster    no devices, equal names, a matrix of another size, NaN      invalid_cluster
    ├── InvalidPlan       a plan that is none of this profile on this cluster         invalid_plan
    ├── InvalidRequest    micro-batches, stages, shadows or a budget out of range     invalid_request
    ├── Disconnected      no path of links between two groups of devices              disconnected
    ├── TooFewStages      fewer stages are possible than are asked for                too_few_stages
    └── DoesNotFit        no plan keeps to the devices' memory                        does_not_fit

`code` never changes, `facts` are machine-readable details, `hint` tells the user what to do.
"""

from __future__ import annotations


class PlanError(Exception):
    """Base class of all errors here: a message, its facts, and a hint for the caller."""

    code = "plan"

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts: dict[str, str] = {name: str(value) for name, value in facts.items()}


class InvalidProfile(PlanError):  # noqa: N818 - named after the fact, as in elastane_shards
    """A profile has impossible values. `unit` names the first such unit."""

    code = "invalid_profile"


class InvalidCluster(PlanError):  # noqa: N818
    """The description of the devices or their links is impossible."""

    code = "invalid_cluster"


class InvalidPlan(PlanError):  # noqa: N818
    """Stages do not cover the units in order, separate tied ones, or name a device twice or unknown."""

    code = "invalid_plan"


class InvalidRequest(PlanError):  # noqa: N818
    """An argument of the planner is out of range."""

    code = "invalid_request"


class Disconnected(PlanError):  # noqa: N818
    """The links with bandwidth leave the devices in several groups, `groups` by name."""

    code = "disconnected"


class TooFewStages(PlanError):  # noqa: N818
    """More stages are requested than units, ties, devices and micro-batches allow: at most `stages_max`."""

    code = "too_few_stages"


class DoesNotFit(PlanError):  # noqa: N818
    """No plan fits the devices' memory: `stage`, its `bytes`, and `devices`, the smallest count that does."""

    code = "does_not_fit"

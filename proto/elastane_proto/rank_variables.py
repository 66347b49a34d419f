"""Environment variables that the training service sets for ranks, by kind of script. Pure.

Runners set them, and masters refuse parameters and secrets that would replace them.
docs/training-environment.md is the table for users.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

#: Port on which rank 0 listens for the others, unless the run has another.
MASTER_PORT_DEFAULT: Final = 12356


class Framework(StrEnum):
    """Kind of script, which decides how its ranks find each other."""

    ELASTANE = "elastane"
    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    HOROVOD = "horovod"
    PLAIN = "plain"


EVERY: Final = frozenset(Framework)
#: Frameworks whose ranks are fixed. Elastane's workers host several ranks, which change over time.
RANKED: Final = EVERY - {Framework.ELASTANE}


class Variable(NamedTuple):
    """One row of the table. frameworks: those whose ranks get it."""

    name: str
    frameworks: frozenset[Framework]
    meaning: str


_TENSORFLOW: Final = frozenset({Framework.TENSORFLOW})
_HOROVOD: Final = frozenset({Framework.HOROVOD})
_ELASTANE: Final = frozenset({Framework.ELASTANE})

VARIABLES: Final = (
    Variable("WORLD_SIZE", RANKED, "number of ranks"),
    Variable("RANK", RANKED, "number of this rank, from 0"),
    Variable("LOCAL_RANK", RANKED, "number of this rank among those of its host, from 0"),
    Variable("LOCAL_WORLD_SIZE", RANKED, "number of ranks on this host"),
    Variable("MASTER_ADDR", RANKED, "host of rank 0, which all others connect to"),
    Variable("MASTER_PORT", RANKED, f"port on which rank 0 listens; {MASTER_PORT_DEFAULT} unless set"),
    Variable("JOB_ID", EVERY, "id of the job, the same in all attempts"),
    Variable("JOB_ATTEMPT", EVERY, "number of this attempt, from 1"),
    Variable(
        "ELASTANE_RUN_FENCE",
        EVERY,
        "number that grows with each launch; the model of a later one is not replaced",
    ),
    Variable("ALGORITHM_NAME", EVERY, "algorithm that was submitted; empty for code without one"),
    Variable("MODEL_NAME", EVERY, "name under which the trained model is registered"),
    Variable("TRAINING_DATASET_ID", EVERY, "id of the data set"),
    Variable("TRAINING_DATASET_VERSION_HASH", EVERY, "hash of the data set's version"),
    Variable("TRAINING_DATA_URL", EVERY, "where the data is read from (fsspec URL)"),
    Variable("MODEL_URL", EVERY, "folder that the trained model is written to (fsspec URL)"),
    Variable("CHECKPOINT_URL", EVERY, "folder of checkpoints, the same in all attempts (fsspec URL)"),
    Variable("METADATA_STORE", EVERY, "URL of the store of metadata"),
    Variable("TRAINING_PARAMETERS", EVERY, "all parameters as a JSON object of strings, names sorted"),
    Variable("TF_CONFIG", _TENSORFLOW, "JSON: `cluster`, equal on all ranks, and `task` of this rank"),
    Variable("HOROVOD_RANK", _HOROVOD, "as RANK"),
    Variable("HOROVOD_SIZE", _HOROVOD, "as WORLD_SIZE"),
    Variable("HOROVOD_LOCAL_RANK", _HOROVOD, "as LOCAL_RANK"),
    Variable("HOROVOD_LOCAL_SIZE", _HOROVOD, "as LOCAL_WORLD_SIZE"),
    Variable("HOROVOD_CROSS_RANK", _HOROVOD, "number of this host among those with this local rank, from 0"),
    Variable("HOROVOD_CROSS_SIZE", _HOROVOD, "number of hosts with this local rank"),
    Variable("HOROVOD_HOSTNAME", _HOROVOD, "name of this host, as the ranks were assigned"),
    Variable("HOROVOD_GLOO_RENDEZVOUS_ADDR", _HOROVOD, "host of Horovod's rendezvous server"),
    Variable("HOROVOD_GLOO_RENDEZVOUS_PORT", _HOROVOD, "port of Horovod's rendezvous server"),
    Variable("HOROVOD_CONTROLLER", _HOROVOD, "gloo: no MPI is needed"),
    Variable("HOROVOD_CPU_OPERATIONS", _HOROVOD, "gloo: no MPI is needed"),
    Variable("ELASTANE_MASTER", _ELASTANE, "addresses of the masters, host:port, comma-separated"),
    Variable("ELASTANE_JOB", _ELASTANE, "the job that `elastane run` joins; another one in each attempt"),
    Variable("ELASTANE_LOCAL_WORKERS", _ELASTANE, "workers of this agent: 1; 0 in a parameter server"),
)

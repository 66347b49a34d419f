"""The job of each mode: above the runtime and the doctor, so that neither has to know the other.

Apart from `elastane/__init__.py`, which must import neither torch nor grpc.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from elastane import model_saving
from elastane.runtime import forks
from elastane.runtime.environment import read_environment
from elastane.runtime.job import Job
from elastane_common.credentials import master_has_tls
from elastane_common.errors import ElastaneError
from elastane_common.logs import configure_logs, say_where

if TYPE_CHECKING:
    from elastane.runtime.elastic import ElasticJob

_in_ring: ElasticJob | None = None
"""The job that this process has opened in a master's ring."""


def open_job(seed: int | None, *, distributed_calls: bool = False) -> Job:
    """Build the job for the environment's mode (see `elastane.init`).

    Raises StepError in a worker whose script has been prepared: its job is one training.
    """
    global _in_ring
    if _in_ring is not None:
        _in_ring.refuse_another()
    job = _build(seed, distributed_calls=distributed_calls)
    if job._environment.resolved_mode() == "elastic":
        _in_ring = cast("ElasticJob", job)
    model_saving.take_role(
        model_saving.Role(
            job._upload_turn, job._ring_changes, job.isolated_rng, job._environment.model_takeover_seconds
        )
    )
    return job


def _build(seed: int | None, *, distributed_calls: bool) -> Job:
    try:
        environment = read_environment()
        configure_logs(environment.log_level, environment.log_format)
        mode = environment.resolved_mode()
        if mode == "elastic":
            say_where(lambda: {"job": environment.job, "worker": environment.worker_id})
            from elastane.collective import warming
            from elastane_common.process_tls import offer_of

            offer = offer_of(environment.ring_tls, master_has_tls())
            forks.keep_parents_objects()
            warming.begin(offer == "wanted")
            from elastane.runtime import distributed_calls as guard
            from elastane.runtime import launcher_variables, process_exit
            from elastane.runtime.elastic import ElasticJob

            process_exit.tell_agent()
            if distributed_calls:
                launcher_variables.allow()
            else:
                guard.install()
                launcher_variables.begin()

            return ElasticJob(environment, seed)
        if mode == "doctor":
            from elastane.diagnose.job import DoctorJob

            return DoctorJob(environment, seed)
        if mode == "profile":
            from elastane.diagnose.profile_job import ProfileJob

            return ProfileJob(environment, seed)
        if mode == "replay":
            from elastane.runtime.replay_job import ReplayJob

            return ReplayJob(environment, seed)
        from elastane.runtime.stock import DdpJob, PlainJob

        return DdpJob(environment, seed) if mode == "ddp" else PlainJob(environment, seed)
    except ElastaneError as error:
        if error.exit_code == 1:
            raise
        sys.stderr.write(f"elastane: {error.line()}\n")
        raise SystemExit(error.exit_code) from error

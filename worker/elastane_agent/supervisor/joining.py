"""Joining of a job that already exists, or that another program creates."""

from __future__ import annotations

import time
from itertools import islice
from typing import Final

from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import JobMissingError
from elastane_common.processes.output import Output
from elastane_proto.amounts import price_text
from elastane_proto.v1 import job_pb2

#: Polling interval: a master has no watch for jobs that do not exist yet.
_LOOK_SECONDS: Final = 0.5
_NAMES_SHOWN: Final = 20


def wait_for_job(client: MasterClient, name: str, seconds: float, output: Output) -> job_pb2.Job:
    """Wait until the job exists, and return it. Raises JobMissingError after `seconds`."""
    deadline = time.monotonic() + seconds
    said = False
    while True:
        try:
            return client.get_job(name)
        except RequestRefusedError as error:
            if error.reason != "not_found":
                raise
        left = deadline - time.monotonic()
        if left <= 0:
            raise JobMissingError(
                f"the master at {', '.join(client.addresses)} had no job {name!r} within {seconds:g} s"
                f"{_others(client)}",
                hint="create it first, or give --ests N to create it here; --job-timeout sets the limit",
                job=name,
            )
        if not said:
            text = f"waiting for job {name} to be created{_others(client)}"
            output.say(text, event="waiting_for_job", job=name)
            said = True
        time.sleep(min(_LOOK_SECONDS, left))


def report_unused_settings(job: job_pb2.Job, asked: job_pb2.JobSettings, output: Output) -> None:
    """Warn if an existing job keeps settings other than those asked for. job: as found, or just created."""
    found = job.settings
    names = ("spot_price_micros", "on_demand_price_micros")
    if any(getattr(asked, name) not in (0, getattr(found, name)) for name in names):
        spot, on_demand = (price_text(getattr(found, name), found.currency) for name in names)
        output.say(
            f"the existing job keeps its prices: spot {spot}, on demand {on_demand}; `elastane price` "
            "changes them",
            "warning",
            event="prices_kept",
        )
    if asked.scaling not in ("", "off") and not found.scaling:
        output.say(
            "--auto has no effect: the job was created without it, or the master is too old for it; "
            f"set it with: elastane scale {job.name} --auto MODE",
            event="scaling_ignored",
            job=job.name,
        )


def _others(client: MasterClient) -> str:
    """Return a clause that lists the jobs the caller may see, because the name may be misspelt."""
    try:
        names = sorted(job.name for job in islice(client.iter_jobs(), _NAMES_SHOWN + 1))
    except RequestRefusedError:
        return ""
    shown = ", ".join(names[:_NAMES_SHOWN]) + (" and more" if len(names) > _NAMES_SHOWN else "")
    return f"; this master has: {shown}" if names else "; this master has no job yet"

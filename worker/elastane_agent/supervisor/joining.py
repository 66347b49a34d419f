"""Waits for a job that somebody else creates."""

from __future__ import annotations

import time
from itertools import islice
from typing import Final

from elastane_common.client import MasterClient, RequestRefusedError
from elastane_common.errors import JobMissingError
from elastane_common.processes.output import Output
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


def _others(client: MasterClient) -> str:
    """Return a clause that lists the jobs the caller may see, because the name may be misspelt."""
    try:
        names = sorted(job.name for job in islice(client.iter_jobs(), _NAMES_SHOWN + 1))
    except RequestRefusedError:
        return ""
    shown = ", ".join(names[:_NAMES_SHOWN]) + (" and more" if len(names) > _NAMES_SHOWN else "")
    return f"; this master has: {shown}" if names else "; this master has no job yet"

"""Facts about the served jobs for the gate."""

from __future__ import annotations

from collections.abc import Collection

from elastane_master.hosts import JobHosts


class JobFacts:
    """Names of the jobs, and of a job's dynamic datasets, as of the latest decisions."""

    def __init__(self, hosts: JobHosts) -> None:
        self._hosts = hosts

    def job_names(self) -> Collection[str]:
        return self._hosts.names()

    def dataset_names(self, job: str) -> Collection[str]:
        for host in self._hosts.all():
            if host.name == job:
                return host.machine.queues.dynamic.keys()
        return ()

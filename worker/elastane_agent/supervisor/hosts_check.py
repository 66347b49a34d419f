"""Checks the host settings before anything is started."""

from __future__ import annotations

import os

from elastane_agent.hosts.discovery import ask_hosts
from elastane_agent.hosts.remote import check_template, is_local, require_no_secret, require_reach
from elastane_agent.supervisor.settings import HostSettings
from elastane_common.credentials import worker_environment


def check_hosts(hosts: HostSettings, master: str) -> None:
    """Check template, discovery script, reachability of the master and secrecy of the token.

    master: "HOST:PORT" of the master to be used. Raises ElastaneError for the first fault, a discovery script
    that fails included: at the start that is a mistake, not a transient fault.
    """
    check_template(hosts.template)
    found = ask_hosts(hosts.script, hosts.timeout_seconds)
    require_reach(master, found)
    if any(not is_local(host) for host in found):
        require_no_secret(worker_environment(os.environ))

"""What is wrong with hosts is said before anything starts."""

from __future__ import annotations

import os

from elastane.agent.settings import HostSettings
from elastane.credentials import worker_environment
from elastane.hosts.discovery import ask_hosts
from elastane.hosts.remote import check_template, is_local, require_no_secret, require_reach


def check_hosts(hosts: HostSettings, master: str) -> None:
    """Raises ElastaneError: template, script, hosts that cannot reach the master, a token in the open.

    master: "HOST:PORT" of the one to be used. A script that fails at once is a mistake, and not a moment's
    trouble.
    """
    check_template(hosts.template)
    found = ask_hosts(hosts.script, hosts.timeout_seconds)
    require_reach(master, found)
    if any(not is_local(host) for host in found):
        require_no_secret(worker_environment(os.environ))

"""Runs the user's discovery script, once or repeatedly, to find the hosts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from elastane_agent.hosts.slots import HostOffer, parse_hosts
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess
from elastane_common.processes.output import Stream

SCRIPT_TIMEOUT_SECONDS = 60.0
_OUTPUT_CHARACTERS = 200
_LINES_MAX = 100_000


class DiscoveryError(ElastaneError):
    """The script failed, did not end, or printed no list of hosts; the hosts stay unchanged."""

    code = "ELA421"


def ask_hosts(script: Path, timeout_seconds: float = SCRIPT_TIMEOUT_SECONDS) -> dict[str, HostOffer]:
    """Run the script and return what each host offers. Raises DiscoveryError, or HostsFormatError.

    If it does not end in time, the script is killed with all its children: a child may be what waits for a
    cloud's API.
    """
    lines: dict[Stream, list[str]] = {"stdout": [], "stderr": []}

    def keep(_: str, stream: Stream, text: str) -> None:
        if len(lines[stream]) < _LINES_MAX:
            lines[stream].append(text)

    child = ChildProcess("hosts", [str(script)], on_line=keep)
    try:
        child.start()
    except OSError as error:
        raise DiscoveryError(f"{script}: {error}") from error
    status = child.wait(timeout_seconds)
    if status is None:
        child.kill_group()
        child.wait()
        raise DiscoveryError(f"{script} did not end within {timeout_seconds:g} s and was killed")
    if status.returncode != 0:
        said = " ".join(lines["stderr"]).strip()[-_OUTPUT_CHARACTERS:]
        raise DiscoveryError(f"{script} {status}: {said}")
    if not any(map(str.strip, lines["stdout"])):
        # A broken pipe inside the script looks the same, and an empty list would drain every worker.
        raise DiscoveryError(f"{script} printed nothing", hint='if no host is left, print HOST:0 or "# none"')
    return parse_hosts("\n".join(lines["stdout"]))


class Discovery:
    """Runs the script every `interval_seconds` from `start` until `stop`, in a thread.

    on_hosts: called with each result. on_trouble: called with the reason when failures begin, once until the
    next success.
    """

    def __init__(
        self,
        script: Path,
        *,
        interval_seconds: float,
        timeout_seconds: float,
        on_hosts: Callable[[dict[str, HostOffer]], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._script = script
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._on_hosts = on_hosts
        self._on_trouble = on_trouble
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="discovery", daemon=True).start()

    def stop(self) -> None:
        """Stop asking; a running script ends with this process."""
        self._over.set()

    def _run(self) -> None:
        failed = False
        while not self._over.is_set():
            try:
                hosts = ask_hosts(self._script, self._timeout_seconds)
            except ElastaneError as error:
                if not failed and not self._over.is_set():
                    self._on_trouble(f"the list of hosts is unchanged: {error}")
                failed = True
            else:
                failed = False
                if not self._over.is_set():
                    self._on_hosts(hosts)
            self._over.wait(self._interval_seconds)

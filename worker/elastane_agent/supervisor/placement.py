"""Maps workers to hosts, and decides which hosts may run one now: pure.

A worker id is permanently bound to one slot, since it is made of the names of host and slot; a parameter
server is bound to a host at each start (`spread`), and has an id that no worker can have. The supervisor's
policies know only ids; this module decides whether an exit is the fault of the host or of the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from elastane_agent.hosts.exclusions import CALM_SECONDS, EXCLUDED_SECONDS, HostExclusions
from elastane_agent.hosts.remote import CANNOT_START, is_local
from elastane_agent.hosts.slots import Capacity, HostOffer, Slot
from elastane_common.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED, EXIT_START_ANEW
from elastane_common.exit_codes import EXIT_DRAINED, EXIT_RECLAIMED
from elastane_common.processes.child import ExitStatus

_SAYS_NOTHING_OF_ITS_HOST: Final = frozenset(
    {0, EXIT_DRAINED, EXIT_REFUSED, EXIT_MASTER_UNREACHABLE, EXIT_START_ANEW}
)
_SIGNALS_END: Final = 192


@dataclass(frozen=True)
class HostFault:
    """A worker's exit that is the fault of its host. text: message; event: its machine-readable name.

    first_notice: no other worker has reported before that this host is taken away.
    """

    text: str
    event: str
    first_notice: bool = False


class Placement:
    """The hosts and slots of one agent. All times are seconds of one monotonic clock.

    prefix: prepended to every worker id.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._exclusions = HostExclusions()
        self._hosts: dict[str, HostOffer] = {}
        self._held: dict[str, str] = {}
        self._slots: dict[str, Slot] = {}
        self._started: dict[str, float] = {}
        self._reclaimed: set[str] = set()
        self._barred: set[str] = set()  # of the excluded hosts, those of stragglers

    def found(self, hosts: Mapping[str, HostOffer], held: Mapping[str, str]) -> None:
        """Adopt a result of the discovery. held: hosts that cannot be used, each with the reason."""
        self._hosts, self._held = dict(hosts), dict(held)
        for host, offer in hosts.items():
            for index in range(offer.slots):
                self._slots.setdefault(self._name(host, index), Slot(host, index))

    def slot(self, worker: str) -> Slot:
        """Return the slot of a worker, even if the host is no longer listed."""
        return self._slots[worker]

    def is_remote(self, worker: str) -> bool:
        """True if the worker runs on another host, started by the template."""
        return not is_local(self._slots[worker].host)

    def capacity(self, worker: str) -> Capacity:
        """Return the class of a worker's host; "": not known."""
        return self._hosts.get(self._slots[worker].host, HostOffer()).capacity

    def wanted(self, now: float) -> dict[str, str]:
        """Return all workers with a slot, those of the cheapest hosts first, of unknown price last.

        The value is the reason why the worker must not be started now, or "".
        """
        excluded = self._exclusions.excluded(now)
        self._barred &= excluded
        paused = dict.fromkeys(excluded, "its host is paused after failures")
        paused |= dict.fromkeys(self._barred, "its host is paused: slow workers on it were replaced")
        return {
            self._name(host, index): self._held.get(host, paused.get(host, ""))
            for host in sorted(self._hosts, key=self._dearness)
            for index in range(self._hosts[host].slots)
        }

    def usable(self, now: float) -> list[str]:
        """Return the hosts on which something may be started now, the cheapest first."""
        excluded = self._exclusions.excluded(now) | {host for host, why in self._held.items() if why}
        return [host for host in sorted(self._hosts, key=self._dearness) if host not in excluded]

    def spread(self, now: float, ps: str, others: Collection[str]) -> bool:
        """Bind a parameter server to the usable host that has the fewest of the others; False: there is none.

        others: parameter servers that run. Of hosts with equally many, those on demand come first.
        """
        counts = Counter(self._slots[other].host for other in others)
        hosts = self.usable(now)
        if not hosts:
            return False
        chosen = min(hosts, key=lambda host: (counts[host], self._hosts[host].capacity != "on-demand"))
        self._slots[ps] = Slot(chosen, 0)
        return True

    def is_listed(self, name: str) -> bool:
        """True if the host of a worker or parameter server is still offered."""
        return self._slots[name].host in self._hosts

    def on_demand(self) -> frozenset[str]:
        """Return the workers whose hosts are listed as on-demand."""
        return frozenset(
            self._name(host, index)
            for host, offer in self._hosts.items()
            if offer.capacity == "on-demand"
            for index in range(offer.slots)
        )

    def _dearness(self, host: str) -> tuple[bool, int]:
        price = self._hosts[host].price_micros
        return not price, price

    def started(self, now: float, worker: str) -> None:
        """Record the start of a worker; its host no longer counts as reclaimed."""
        self._reclaimed.discard(self._slots[worker].host)
        self._started[worker] = now

    def status(self, worker: str, status: ExitStatus) -> ExitStatus:
        """Return how the worker itself ended: a remote shell reports a signal as 128 + its number."""
        if self.is_remote(worker) and 128 < status.returncode <= _SIGNALS_END:
            return ExitStatus(128 - status.returncode)
        return status

    def ended(self, now: float, worker: str, status: ExitStatus) -> HostFault | None:
        """Return the fault of the host that an exit shows; None: the exit is for the policy to handle.

        Updates which hosts rest: those that were reclaimed, are unreachable, or whose workers keep failing.
        """
        host, code = self._slots[worker].host, status.returncode
        # A worker that ran for a while, or ended regularly, shows that its host works.
        if now - self._started.pop(worker, now) >= CALM_SECONDS or code in (0, EXIT_DRAINED, EXIT_START_ANEW):
            self._exclusions.clear([host])
        if code == EXIT_RECLAIMED:
            first = host not in self._reclaimed
            self._reclaimed.add(host)
            self._exclusions.exclude(now, host, EXCLUDED_SECONDS)
            return HostFault(f"{worker} left: {host} is being taken away", "host_reclaimed", first)
        if code in CANNOT_START and self.is_remote(worker):
            seconds = self._exclusions.unreachable(now, host)
            why = CANNOT_START[code]
            return HostFault(
                f"{host}: {why} ({status}); it is not used for {seconds:.3g} s", "host_unreachable"
            )
        excluded = self._exclusions.excluded(now)
        others = set(self._hosts) - excluded - set(self._held) - {host}
        # If only this host fails to reach the master, its network is the cause; without another host to
        # compare with, the policy decides.
        if code == EXIT_MASTER_UNREACHABLE and self.is_remote(worker) and others:
            seconds = self._exclusions.unreachable(now, host)
            text = f"{worker} could not reach the master from {host}; {host} is not used for {seconds:.3g} s"
            return HostFault(text, "host_unreachable")
        if code in _SAYS_NOTHING_OF_ITS_HOST:
            return None
        if seconds := self._exclusions.failed(now, host, alone=not others):
            text = f"{worker} {status}; {host} fails repeatedly and is not used for {seconds:g} s"
            return HostFault(text, "host_rests")
        return None

    def barred(self, now: float, worker: str, seconds: float) -> HostFault:
        """Return the fault of a host whose slow workers were replaced; it gets no worker for this time."""
        host = self._slots[worker].host
        self._exclusions.exclude(now, host, seconds)
        self._barred.add(host)
        text = f"{worker} left: slow workers of {host} were replaced, it gets none for {seconds / 60:.0f} min"
        return HostFault(text, "host_barred")

    def next_due(self) -> float | None:
        """Return the time at which a host's rest ends and `wanted` changes; None: no host rests."""
        return self._exclusions.next_due()

    def _name(self, host: str, index: int) -> str:
        return f"{self._prefix}{host.strip('[]')}-{index}"

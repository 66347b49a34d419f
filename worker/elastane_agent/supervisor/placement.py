"""Maps workers to hosts, and decides which hosts may run one now: pure.

A worker id is permanently bound to one slot, since it is made of the names of host and slot. The supervisor's
policy knows only workers; this module decides whether an exit is the fault of the host or of the script.

Places are offered cheapest first. Where a job says how many workers it wants on demand, so many places of
on-demand hosts come before all others, and further ones get no worker.
"""

from __future__ import annotations

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

    @property
    def offers_on_demand(self) -> bool:
        """True if a listed host is on demand."""
        return any(offer.capacity == "on-demand" for offer in self._hosts.values())

    def wanted(
        self, now: float, on_demand_max: int | None = None, running: Collection[str] = ()
    ) -> dict[str, str]:
        """Return all workers with a slot, in the order in which they should be started.

        The value is the reason why the worker must not be started now, or "". on_demand_max: how many may be
        on demand; None: any number. running: those that are not leaving; of the places on demand they keep
        theirs.
        """
        excluded = self._exclusions.excluded(now)
        offered = {
            worker: self._held.get(host, "its host is paused after failures" if host in excluded else "")
            for worker, host in self._offered()
        }
        free = [worker for worker, held in offered.items() if not held]
        allowed, beyond = self._on_demand(on_demand_max, running, free)
        held = f"its host is on demand, and the job wants {on_demand_max} workers on demand"
        offered |= dict.fromkeys(beyond, held)
        return {worker: offered[worker] for worker in dict.fromkeys([*allowed, *offered])}

    def beyond(self, on_demand_max: int | None, running: Collection[str]) -> dict[str, str]:
        """Return the running workers that are to leave since no more may be on demand, with the reason."""
        _, beyond = self._on_demand(on_demand_max, running, ())
        why = f"the job wants {on_demand_max} workers on demand"
        return {worker: why for worker in beyond if worker in running}

    def _offered(self) -> list[tuple[str, str]]:
        """Return worker and host of each place, the cheapest first; those of unknown price last."""

        def dearness(host: str) -> tuple[bool, int]:
            price = self._hosts[host].price_micros
            return not price, price

        hosts = sorted(self._hosts, key=dearness)
        return [(self._name(host, index), host) for host in hosts for index in range(self._hosts[host].slots)]

    def _on_demand(
        self, most: int | None, running: Collection[str], free: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """Return the workers that may be on demand, and those beyond: who runs already stays first."""
        if most is None:
            return [], []
        places = [worker for worker, host in self._offered() if self._hosts[host].capacity == "on-demand"]
        places.sort(key=lambda worker: (worker not in running, worker not in free))
        return places[:most], places[most:]

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
        """Return the fault of a host whose slow workers were replaced; it gets no worker for so long."""
        host = self._slots[worker].host
        self._exclusions.exclude(now, host, seconds)
        text = f"{worker} left: slow workers of {host} were replaced, it gets none for {seconds / 60:.0f} min"
        return HostFault(text, "host_barred")

    def next_due(self) -> float | None:
        """Return the time at which a host's rest ends and `wanted` changes; None: no host rests."""
        return self._exclusions.next_due()

    def _name(self, host: str, index: int) -> str:
        return f"{self._prefix}{host.strip('[]')}-{index}"

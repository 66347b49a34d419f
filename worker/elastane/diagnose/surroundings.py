"""Surroundings of this machine's processes that matter to a job: packages, clock, limits, ports, proxies.

`surrounding_facts` collects them (it opens sockets on this machine alone), `judge_surroundings` finds faults.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import time
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import Requirement

from elastane.diagnose.findings import Finding, Severity
from elastane_common.addresses import split_address
from elastane_common.credentials import on_loopback

#: A correct clock is not before this time (2026-01-01).
CLOCK_LEAST: Final = 1_767_225_600.0
PROCESSES_MIN: Final = 256
PORTS_MIN: Final = 2_000
MASTER_PORT: Final = 50051
#: In gRPC's order of precedence.
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXIES: Final = ("no_grpc_proxy", "no_proxy")
_TIME_ERROR: Final = 5  # result of adjtimex: the clock is not synchronized
_CONNECT_SECONDS: Final = 1.0


class SurroundingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts; -1 and None: unknown.

    packages: unmet requirements, as text. clock_seconds: the wall clock. clock_kept: True if the kernel
    reports a synchronized clock. processes: limit for this user or container. ports: available to outgoing
    connections. loopback: True if 127.0.0.1 accepts and reaches a listener. address: this host's by its name;
    unreached: why a connection to it from here failed. taken: True if something listens on a master's default
    port. proxy, no_proxy: variables that gRPC uses.
    """

    packages: list[str] = []
    clock_seconds: float
    clock_kept: bool | None = None
    processes: int = -1
    ports: int = -1
    loopback: bool = True
    address: str = ""
    unreached: str = ""
    taken: bool = False
    proxy: str = ""
    no_proxy: str = ""


def surrounding_facts(address: str) -> SurroundingFacts:
    """Collect the facts. address: this host's, empty if its name has none."""
    return SurroundingFacts(
        packages=unmet_requirements(),
        clock_seconds=time.time(),
        clock_kept=_clock_kept(),
        processes=_processes(),
        ports=_ports(),
        loopback=not _unreached("127.0.0.1"),
        address=address,
        unreached=_unreached(address) if address else "",
        taken=_taken(MASTER_PORT),
        proxy=next((os.environ[name] for name in _PROXIES if os.environ.get(name)), ""),
        no_proxy=next((os.environ[name] for name in _NO_PROXIES if os.environ.get(name)), ""),
    )


def judge_surroundings(facts: SurroundingFacts, master: str = "") -> list[Finding]:
    """Return faults with remedies. master: addresses of the intended masters, if any."""
    found: list[Finding] = []

    def say(code: str, severity: Severity, what: str, where: str, todo: str) -> None:
        found.append(Finding(severity=severity, kind="machine", code=code, what=what, where=where, todo=todo))

    for unmet in facts.packages:
        say("ELA532", Severity.REFUSED, unmet, "packages", "pip install -U elastane")
    if facts.clock_seconds < CLOCK_LEAST:
        shown = time.strftime("%Y-%m-%d", time.gmtime(facts.clock_seconds))
        say("ELA533", Severity.REFUSED, f"the clock says {shown}", "clock", "set it: certificates fail")
    elif facts.clock_kept is False:
        say(
            "ELA533",
            Severity.NOTE,
            "the kernel reports that nothing synchronizes the clock",
            "clock",
            "start chrony or systemd-timesyncd; on a virtual machine the host may do it",
        )
    if 0 <= facts.processes < PROCESSES_MIN:
        say(
            "ELA526",
            Severity.NOTE,
            f"{facts.processes} processes and threads is the limit here",
            "ulimit -u, pids.max",
            "raise it: each worker and data worker has dozens of threads",
        )
    if not facts.loopback:
        say("ELA534", Severity.REFUSED, "127.0.0.1 cannot be reached", "loopback", "ip link set lo up")
    if 0 <= facts.ports < PORTS_MIN:
        say(
            "ELA534",
            Severity.NOTE,
            f"only {facts.ports} ports for outgoing connections",
            "net.ipv4.ip_local_port_range",
            "widen the range",
        )
    if facts.taken:
        say(
            "ELA534",
            Severity.NOTE,
            f"something listens at 127.0.0.1:{MASTER_PORT}, a master's default",
            "ports",
            "if it is not your master: start yours with another --listen, and name it with --master",
        )
    if facts.unreached:
        say(
            "ELA528",
            Severity.NOTE,
            f"this host's own address {facts.address} cannot be reached from here: {facts.unreached}",
            "/etc/hosts, firewall",
            "set ELASTANE_STORE_HOST to the address that other machines know",
        )
    elif facts.address.startswith("127."):
        say(
            "ELA528",
            Severity.NOTE,
            f"the name of this host stands for {facts.address}, where no other machine can reach it",
            "/etc/hosts",
            "for rings of several machines set ELASTANE_STORE_HOST",
        )
    away = [part for part in master.split(",") if part and not on_loopback(part)]
    if facts.proxy and any(not _passed_by(split_address(part)[0], facts.no_proxy) for part in away):
        say(
            "ELA535",
            Severity.NOTE,
            f"gRPC uses the proxy {_without_password(facts.proxy)} to the master",
            "http_proxy",
            "add the master's host to no_proxy, unless the proxy supports HTTP/2",
        )
    return found


def unmet_requirements() -> list[str]:
    """Return requirements of the installed elastane that this environment does not meet, as text."""
    try:
        stated = metadata.requires("elastane") or []
    except metadata.PackageNotFoundError:  # runs from its sources
        return []
    unmet = []
    for requirement in map(Requirement, stated):
        if requirement.name == "torch" or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            unmet.append(f"{requirement.name} is not installed")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            unmet.append(f"{requirement.name} is {version}; required is {requirement.specifier}")
    return unmet


def _clock_kept() -> bool | None:
    """Return adjtimex's clock state; reading it needs no rights."""
    state = ctypes.create_string_buffer(512)  # struct timex, all zero: nothing is changed
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(state)
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != _TIME_ERROR


def _processes() -> int:
    """Return the lower of the user's and the container's limit; -1 for none."""
    limits = [resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    try:
        text = Path("/sys/fs/cgroup/pids.max").read_text().strip()
        limits += [int(text)] if text.isdigit() else []
    except OSError:
        pass
    return min((limit for limit in limits if limit >= 0), default=-1)


def _ports() -> int:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(high) - int(low) + 1
    except (OSError, ValueError):
        return -1


def _unreached(host: str) -> str:
    """Return why a connection to a port listened on at `host` fails; empty if it succeeds."""
    try:
        with socket.create_server((host, 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _taken(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _passed_by(host: str, no_proxy: str) -> bool:
    """True if a no_proxy list contains the host or its domain, by gRPC's rule: the end of the name."""
    return any(host.endswith(part.strip().lstrip("*")) for part in no_proxy.split(",") if part.strip())


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url.rpartition("@")[2]

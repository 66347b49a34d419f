"""Checks a master and a store from this machine, for `elastane doctor --master` and `--store`.

Requests are those of workers and masters, with the same credentials; nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from elastane.diagnose.findings import Finding, Severity
from elastane_common.errors import ElastaneError

CLOCK_SECONDS_MAX: Final = 5.0
REDIS_OLDEST: Final = (7, 0)


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts reported by a store. offset_seconds: its clock minus ours. Empty: not reported."""

    server: str
    version: str
    cluster: bool = False
    role: str = "master"
    appendonly: str = ""
    appendfsync: str = ""
    eviction: str = ""
    offset_seconds: float = 0.0


def check_master(addresses: str, timeout_seconds: float) -> tuple[dict[str, str], list[Finding]]:
    """Check that each master accepts connections, speaks a compatible protocol, and serves. Facts by address.

    Raises ValueError for an invalid address.
    """
    from elastane_common.addresses import parse_addresses

    facts: dict[str, str] = {}
    found: list[Finding] = []
    serving = 0
    answers = []
    for address in parse_addresses(addresses):
        said, findings, serves = _ask_master(address, timeout_seconds)
        facts[f"master {address}"] = said
        answers += findings
        serving += serves
    for finding in answers:
        # Of several masters one leads: it is normal that the others stand by.
        if finding.code != "ELA541" or not serving:
            found.append(finding)
    return facts, found


def _ask_master(address: str, timeout_seconds: float) -> tuple[str, list[Finding], bool]:
    """Check one master; return its state for the table, findings, and whether it serves."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from elastane_common.addresses import split_address
    from elastane_common.client import MasterClient
    from elastane_common.credentials import open_channel
    from elastane_common.message_size import size_options

    def fault(code: str, what: str, todo: str) -> Finding:
        return Finding(
            severity=Severity.REFUSED, kind="master", code=code, what=what, where=address, todo=todo
        )

    # A plain connection first: gRPC's error would not tell a closed port from a failed TLS handshake.
    try:
        socket.create_connection(split_address(address), timeout=timeout_seconds).close()
    except OSError as error:
        why = error.strerror or str(error)
        todo = "start the master there; check name, port, firewall, and where it listens"
        return why, [fault("ELA401", f"no connection: {why}", todo)], False
    try:
        with open_channel(address, size_options()) as channel:
            call = health_pb2_grpc.HealthStub(channel).Check.with_call
            reply, _ = call(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
    except grpc.RpcError as error:
        said = error.details() or str(error.code())
        todo = "is it a master? does only one side use TLS (ELASTANE_TLS_CA)? is there a proxy in between?"
        return "connects, does not answer", [fault("ELA401", f"no answer: {said}", todo)], False
    except ElastaneError as error:
        return str(error.args[0]), [fault(error.code, str(error.args[0]), error.hint)], False
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        todo = "name the leading master, too; if none leads, check its log and its store"
        return "answers, does not serve", [fault("ELA541", "it stands by, or has no store", todo)], False
    try:
        with MasterClient(address, timeout_seconds=timeout_seconds) as client:
            jobs = len(client.list_jobs())
    except ElastaneError as error:
        return "serves, not us", [fault(error.code, str(error.args[0]), error.hint)], True
    return f"serves, {jobs} jobs", [], True


def store_facts(url: str, timeout_seconds: float) -> StoreFacts:
    """Query a Redis or Valkey about itself. Raises redis.RedisError, OSError, ValueError (invalid URL)."""
    import redis

    options: dict[str, Any] = {"socket_timeout": timeout_seconds, "socket_connect_timeout": timeout_seconds}
    with redis.Redis.from_url(url, decode_responses=True, **options, **_store_access(url)) as store:
        hello = store.execute_command("HELLO")
        said = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2], strict=False))
        # Optional: a master's user may lack the rights, and managed servers do not support these commands.
        offset, began = 0.0, time.time()
        info: dict[str, Any] = {}
        settings: dict[str, str] = {}
        with contextlib.suppress(redis.ResponseError):
            seconds, microseconds = store.time()
            offset = seconds + microseconds / 1e6 - (began + time.time()) / 2
        with contextlib.suppress(redis.ResponseError):
            info = store.info()
        with contextlib.suppress(redis.ResponseError):
            settings = {**store.config_get("append*"), **store.config_get("maxmemory-policy")}
    return StoreFacts(
        server="Valkey" if "valkey" in (said.get("server"), info.get("server_name")) else "Redis",
        version=str(info.get("valkey_version") or info.get("redis_version") or said.get("version", "")),
        cluster=said.get("mode") == "cluster",
        role=str(said.get("role", "master")),
        appendonly=settings.get("appendonly", ""),
        appendfsync=settings.get("appendfsync", ""),
        eviction=settings.get("maxmemory-policy", ""),
        offset_seconds=offset,
    )


def _store_access(url: str) -> dict[str, Any]:
    """Return password and certificates as a master reads them from its environment."""
    access: dict[str, Any] = {}
    if path := os.environ.get("ELASTANE_MASTER_STORE_PASSWORD_FILE"):
        access["password"] = Path(path).read_text().strip()
    if url.startswith("rediss:"):
        names = {"ssl_ca_certs": "CA", "ssl_certfile": "CERT", "ssl_keyfile": "KEY"}
        files = {option: os.environ.get(f"ELASTANE_MASTER_STORE_{name}") for option, name in names.items()}
        access |= {option: path for option, path in files.items() if path}
    return access


def judge_store(facts: StoreFacts) -> list[Finding]:
    """Return faults of a store that answers."""
    found: list[Finding] = []

    def say(code: str, severity: Severity, what: str, todo: str) -> None:
        found.append(
            Finding(severity=severity, kind="store", code=code, what=what, where="--store", todo=todo)
        )

    if facts.cluster:
        say("ELA551", Severity.REFUSED, "it is a cluster", "use a single server, with replicas if you like")
    if facts.role not in ("master", "primary"):
        say("ELA551", Severity.REFUSED, f"it is a {facts.role}: nothing can be written", "name the primary")
    if facts.server == "Redis" and _older(facts.version, REDIS_OLDEST):
        say("ELA553", Severity.REFUSED, f"Redis {facts.version}", "use Valkey 8, or Redis 7 or newer")
    if facts.appendonly == "no":
        say(
            "ELA552",
            Severity.DIFFERS,
            "it has no append-only file: when it restarts, acknowledged writes are lost",
            "CONFIG SET appendonly yes, also in its configuration file",
        )
    elif facts.appendfsync in ("everysec", "no"):
        say(
            "ELA552",
            Severity.NOTE,
            f"appendfsync {facts.appendfsync}: a power cut can take the last writes; steps are done again",
            "appendfsync always, if that matters",
        )
    if facts.eviction and facts.eviction != "noeviction":
        say(
            "ELA552",
            Severity.DIFFERS,
            f"it evicts keys when memory is short (maxmemory-policy {facts.eviction})",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if abs(facts.offset_seconds) > CLOCK_SECONDS_MAX:
        say(
            "ELA533",
            Severity.NOTE,
            f"its clock is {facts.offset_seconds:+.0f} s from this machine's",
            "start chrony or systemd-timesyncd on both",
        )
    return found


def check_store(url: str, timeout_seconds: float) -> tuple[dict[str, str], list[Finding]]:
    """Check that the store at the URL is usable. Returns facts for the table, and findings."""
    import redis

    try:
        facts = store_facts(url, timeout_seconds)
    except (redis.RedisError, OSError, ValueError) as error:
        what = f"it cannot be used: {error}"
        todo = "check host, port, user, password and rights; is it a redis://, rediss:// or unix:// URL?"
        fault = Finding(
            severity=Severity.REFUSED, kind="store", code="ELA551", what=what, where="--store", todo=todo
        )
        return {}, [fault]
    durable = f", appendonly {facts.appendonly}, appendfsync {facts.appendfsync}" if facts.appendonly else ""
    return {"store asked": f"{facts.server} {facts.version}{durable}"}, judge_store(facts)


def _older(version: str, oldest: tuple[int, int]) -> bool:
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return bool(numbers) and tuple(numbers) < oldest

"""The master's connection to its store: one client, for a given URL or for a private server."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import urlsplit

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as ConnectionLost
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from elastane_master.security.store_access import StoreAccess
from elastane_master.store.embedded import EmbeddedStore
from elastane_master.store.errors import (
    BadStoreUrl,
    EmbeddedStoreFailed,
    StoreIsSentinel,
    StoreRefused,
    StoreUnreachable,
)
from elastane_master.store.file_repair import FileRepair
from elastane_master.store.fitness import require_fit
from elastane_master.store.keys import JOB_PATTERN, JOBS_KEY, STORED_JOBS_KEY, checked_job_name, job_of
from elastane_master.store.pinned import CONNECTIONS_MAX, PinnedScript, ScriptConnections

logger = structlog.get_logger(__name__)

_QUERY_PASSWORD = re.compile(r"((?:^|[?&])(?:ssl_)?password=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Location of the store, and time limits.

    url: redis://, rediss:// or unix://; empty: a private server in state_dir. fsync: fsync mode of the
    private server. start_timeout_seconds: how long to retry an unreachable store at start.
    socket_timeout_seconds: time without a reply after which a request is abandoned and repeated. access:
    certificates and password. connections_max: limit for the logs of all jobs together.
    """

    url: str = ""
    state_dir: Path = Path(".elastane")
    fsync: Literal["everysec", "always", "no"] = "everysec"
    start_timeout_seconds: float = 15.0
    socket_timeout_seconds: float = 10.0
    access: StoreAccess = field(default_factory=StoreAccess)
    connections_max: int = CONNECTIONS_MAX


class JobNames(NamedTuple):
    """Names of a store's jobs. all: sorted, including jobs of which nothing may have been stored yet."""

    all: list[str]
    stored: frozenset[str]


class _LossNoticed(AbstractConnection):
    """Raises redis' ConnectionError, as for any lost connection, where a write finds the transport closed.

    A reset closes the transport of an idle connection at once. The next write then raises
    ConnectionResetError with asyncio's transports, and RuntimeError with uvloop's, which redis-py does not
    take for a loss.
    """

    __slots__ = ()

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        writer = self._writer
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            if writer is None or not writer.is_closing():
                raise
            raise ConnectionLost(f"the connection was closed while it was idle: {error}") from error


class _TcpConnection(_LossNoticed, Connection):
    __slots__ = ()


class _TlsConnection(_LossNoticed, SSLConnection):
    __slots__ = ()


class _UnixConnection(_LossNoticed, UnixDomainSocketConnection):
    __slots__ = ()


_CONNECTIONS: Final[Mapping[type[AbstractConnection], type[AbstractConnection]]] = {
    Connection: _TcpConnection,
    SSLConnection: _TlsConnection,
    UnixDomainSocketConnection: _UnixConnection,
}
"""By the class that redis-py chooses for a URL."""


class StoreRedis(Redis):
    """Client of a store.

    script_connections: connections of its pinned scripts. file_repair: receives every error. holder: id of
    this client's master in the fences of the jobs that it holds; every start gets a new one.
    """

    script_connections: ScriptConnections
    file_repair: FileRepair
    holder: str

    def pinned_script(self, text: str, replicas: int = 0) -> PinnedScript:
        """Return a script that runs over ready connections, for frequent calls.

        replicas: number of replicas that must have a write before the call returns.
        """
        return PinnedScript(self.script_connections, text, replicas)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except RedisError as error:
            self.file_repair.noted(error)
            raise

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self.file_repair.aclose()
        await self.script_connections.aclose()
        await super().aclose(close_connection_pool)


class Store:
    """An open store. `redis` is for the logs; nothing else writes to it."""

    def __init__(self, redis: StoreRedis, url: str, embedded: EmbeddedStore | None) -> None:
        self.redis = redis
        self.url = url
        self.embedded = embedded

    @classmethod
    async def open(cls, options: StoreOptions) -> Store:
        """Connect, starting the private server if there is no URL.

        Raises BadStoreUrl, StoreUnreachable, StoreRefused, EmbeddedStoreFailed, BadSecurityFile, and the
        errors of `require_fit`.
        """
        if options.url:
            return await cls._connect(options, checked_store_url(options.url), None)
        embedded = EmbeddedStore(options.state_dir, fsync=options.fsync)
        try:
            await embedded.start()
            return await cls._connect(options, embedded.url, embedded)
        except BaseException:
            # A master stopped while it starts must not leave an orphaned server behind.
            if embedded.started_here:
                await embedded.stop()
            raise

    @classmethod
    async def _connect(cls, options: StoreOptions, url: str, embedded: EmbeddedStore | None) -> Store:
        # No retries by the client: only the log knows that repeating its writes is harmless.
        arguments = options.access.arguments(url) if options.url else {"url": url}
        opened = StoreRedis.from_url(
            socket_timeout=options.socket_timeout_seconds,
            socket_connect_timeout=options.socket_timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            **arguments,
        )
        redis = cast("StoreRedis", opened)
        pool = redis.connection_pool
        pool.connection_class = _CONNECTIONS[pool.connection_class]
        redis.holder = uuid.uuid4().hex
        redis.file_repair = FileRepair(redis)
        redis.script_connections = ScriptConnections(redis, options.connections_max, redis.file_repair.noted)
        try:
            await _reach(redis, url, options.start_timeout_seconds)
            await redis.file_repair.opened()
            if options.url:
                await require_fit(redis, without_password(url))
        except BaseException:
            await redis.aclose()
            raise
        return cls(redis, without_password(url), embedded)

    async def jobs(self) -> JobNames:
        """Return the names of all jobs; names lost from the list are restored from other keys."""
        listed = await self._names(JOBS_KEY)
        stored = await self._names(STORED_JOBS_KEY)
        entries, where = stored, STORED_JOBS_KEY
        if not listed and not stored:
            # Either there is no job, or both sets are gone. Without any jobs a scan of all keys is cheap.
            keys = [cast("bytes", key) async for key in self.redis.scan_iter(JOB_PATTERN, 1000)]
            entries, where = frozenset(job_of(key.decode()) for key in keys), JOB_PATTERN
        if missing := entries - listed:
            logger.error(
                "the list of jobs lost names; it is written again, nothing is lost",
                key=JOBS_KEY,
                jobs=len(missing),
                found_by=where,
            )
            await self.redis.sadd(JOBS_KEY, *sorted(missing))
        return JobNames(sorted(listed | entries), stored)

    async def _names(self, key: str) -> frozenset[str]:
        names = cast("set[bytes]", await self.redis.smembers(key))
        return frozenset(name.decode() for name in names)

    async def mark_stored(self, jobs: Iterable[str]) -> None:
        """Record that these jobs have keys: from now on missing keys count as a loss."""
        if names := sorted(jobs):
            await self.redis.sadd(STORED_JOBS_KEY, *names)

    async def remove_job(self, job: str) -> None:
        """Remove a job from the lists, after all its other data is deleted."""
        await self.redis.srem(STORED_JOBS_KEY, job)
        await self.redis.srem(JOBS_KEY, job)

    async def add_job(self, job: str) -> None:
        """Add a job to the list. Raises BadJobName."""
        await self.redis.sadd(JOBS_KEY, checked_job_name(job))

    async def revive(self) -> None:
        """Restart the private server if it died; a no-op for a store with a URL."""
        if self.embedded is None:
            return
        try:
            await self.embedded.start()
        except EmbeddedStoreFailed as error:
            logger.error("the store cannot be started again", error=str(error), hint=error.hint)

    async def close(self, *, stop_embedded: bool) -> None:
        """Close the connections; stop_embedded: also stop the private server."""
        await self.redis.aclose()
        if stop_embedded and self.embedded is not None:
            await self.embedded.stop()


def checked_store_url(url: str) -> str:
    """Return `url` if it is valid. Raises BadStoreUrl, StoreIsSentinel."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadStoreUrl(f"{without_password(url)!r} is not a URL of a store: {error}") from error
    if "sentinel" in parts.scheme:
        raise StoreIsSentinel(
            f"{without_password(url)!r} names a Sentinel; masters do not ask it for its primary"
        )
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise BadStoreUrl(f"{without_password(url)!r} is not a URL of a store")
    if parts.scheme == "unix" and not parts.path:
        raise BadStoreUrl(f"{url!r} names no socket")
    if parts.scheme != "unix" and not parts.hostname:
        raise BadStoreUrl(f"{without_password(url)!r} names no host", port=port)
    return url


def without_password(url: str) -> str:
    """Return the URL with its passwords replaced by stars."""
    url = _QUERY_PASSWORD.sub(r"\1***", url)
    scheme, separator, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    if not at:
        return url
    user = credentials.partition(":")[0]
    return f"{scheme}{separator}{user}:***@{place}"


async def _reach(redis: Redis, url: str, timeout_seconds: float) -> None:
    """Wait until the store answers. Raises StoreUnreachable after the timeout, or StoreRefused."""
    last_error = ""

    async def ping() -> None:
        nonlocal last_error
        try:
            await redis.ping()
        except (RedisError, OSError) as error:
            last_error = str(error) or type(error).__name__
            if _is_refusal(error):
                # While connecting, a wrong password is reported as a connection error; retrying cannot fix
                # it.
                raise StoreRefused(f"the store at {shown} refuses: {last_error}", url=shown) from error
            raise

    shown = without_password(url)
    retrying = AsyncRetrying(
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        retry=retry_if_exception_type((RedisError, OSError)),
        # The timeout below cancels once, which the client may swallow (see `cancellation`).
        stop=stop_after_delay(timeout_seconds),
        reraise=True,
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            await retrying(ping)
    except (RedisError, OSError) as error:
        raise StoreUnreachable(
            f"no store answered at {shown} within {timeout_seconds:g} s: {last_error or 'no answer'}",
            url=shown,
        ) from error


def _is_refusal(error: BaseException | None) -> bool:
    """True if the error or any of its causes is an AuthenticationError."""
    while error is not None:
        if isinstance(error, AuthenticationError):
            return True
        error = error.__cause__ or error.__context__
    return False

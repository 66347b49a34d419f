"""The gate: every call of every service passes here before anything else sees it.

  token -> role -> request counted -> (request parsed) job -> quotas -> the servicer

An interceptor of a master with tokens, so that third-party services (health, reflection) and future ones pass
it, too. The request of a refused caller is never read, so that nobody without a token can make the master
store or decompress one; the front limits whatever else strangers may consume. A stream names its job in its
first message, which the gate reads and passes on.

When the file of tokens changes, running calls that the new table does not allow are ended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
import structlog

from elastane_master.decisions.events import Rejection
from elastane_master.jobs.job_servers import JobServers
from elastane_master.security.errors import BadSecurityFile
from elastane_master.security.files import Stamp, open_to_others, read_file, stamp_of
from elastane_master.security.front import Front
from elastane_master.security.policy import (
    Rule,
    hide_others,
    http_rule_of,
    require_covers,
    require_job,
    require_role,
    rule_of,
    unauthenticated,
)
from elastane_master.security.quotas import QuotaBook
from elastane_master.security.tls import ServerTls
from elastane_master.security.tokens import ANYBODY, BadTokenTable, Principal, TokenTable, digest_of
from elastane_master.servers import callers
from elastane_master.servers.binding import Context, Malformed
from elastane_master.servers.errors import REFUSALS, refuse

logger = structlog.get_logger(__name__)

HEADER = "authorization"
SCHEME = "bearer "
FIRST_MESSAGE_SECONDS = 10.0
"""Longest time a stream may be open without sending its first message."""

LOOK_SECONDS = 1.0
"""Polling interval for the file of tokens: a file gives no event."""

REFUSAL_SECONDS = 0.02
"""Delay before a stranger's refusal.

Callers that cancel at once are then never answered: gRPC 1.85 leaks half a kilobyte for each answer that
fails (`execute_batch` in its Cython code).
"""

REFUSALS_LOGGED_SECONDS = 1.0
"""Minimum interval between logged refusals, which anybody can cause; the number in between is logged."""


class TokenFile:
    """The table of tokens in a file; without a file everybody may do everything."""

    def __init__(self, path: Path | None) -> None:
        """Read the file. Raises BadSecurityFile."""
        self.path = path
        self._stamp: Stamp = stamp_of((path,))
        self._table = self._read() if path is not None else None

    def find(self, token: str | None) -> tuple[bytes, Principal]:
        """Return the token's digest and its owner. Raises Rejection."""
        if self._table is None:
            return b"", ANYBODY
        if token is None:
            raise unauthenticated("this master requires a token")
        digest = digest_of(token)
        return digest, self.owner(digest)

    def owner(self, digest: bytes) -> Principal:
        """Return the current owner of the token with this digest. Raises Rejection."""
        if self._table is None:
            return ANYBODY
        principal = self._table.find(digest)
        if principal is None:
            raise unauthenticated("this master does not know the token")
        return principal

    def refresh(self) -> bool:
        """Load a changed file; True if the table changed. An unreadable file changes nothing."""
        if self.path is None or (stamp := stamp_of((self.path,))) == self._stamp:
            return False
        self._stamp = stamp
        try:
            table = self._read()
        except BadSecurityFile as error:
            logger.error(
                "the new token table is ignored: the old one stays in use", error=str(error), hint=error.hint
            )
            return False
        if stamp_of((self.path,)) != stamp:
            self._stamp = ()  # half-written: loading it would cut off the callers in the other half
            return False
        self._table = table
        logger.info("tokens taken up", file=str(self.path), tokens=len(table))
        return True

    def stamp(self) -> Stamp:
        """Return a value that changes when the file does."""
        return stamp_of((self.path,))

    def _read(self) -> TokenTable:
        assert self.path is not None
        try:
            table = TokenTable.parse(read_file(self.path).decode())
        except (BadTokenTable, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, BadTokenTable) else "it is not UTF-8 text"
            raise BadSecurityFile(self.path, why, "elastane token --help shows what it looks like") from None
        if table.plain and open_to_others(self.path):
            logger.warning(
                "everybody on this machine can read the tokens",
                file=str(self.path),
                mend="chmod 600, or use sha256",
            )
        return table


class _Call:
    """An admitted call: its rule, job and token, and the task that serves it."""

    __slots__ = ("digest", "job", "refusal", "rpc", "rule", "task")

    def __init__(self, rpc: str, rule: Rule, digest: bytes) -> None:
        self.rpc = rpc
        self.rule = rule
        self.digest = digest
        self.job = ""
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.refusal: Rejection | None = None


class HttpCall:
    """An HTTP answer that continues, like a stream."""

    def __init__(self, tokens: TokenFile, call: _Call) -> None:
        self._tokens = tokens
        self._call = call

    @property
    def caller(self) -> Principal:
        """The caller with its current rights. Raises Rejection if it has none any more."""
        return self._tokens.owner(self._call.digest)

    def refusal(self) -> Rejection | None:
        """Reason why the gate ended the call; None if something else did. Lets the task continue."""
        if self._call.refusal is not None and self._call.task is not None:
            self._call.task.uncancel()
        return self._call.refusal


class LocalContext:
    """Base of the contexts of calls that are made within the master's process, and so through no port."""


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class LocalHandlers:
    """Finds the handlers of such calls. handlers: as given to the master's server."""

    def __init__(self, gate: Gate, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        self._gate = gate
        self._handlers = handlers

    async def find(self, rpc: str, metadata: Sequence[tuple[str, str | bytes]]) -> Any:
        """Return the handler of "/package.Service/Method"; None if there is no such rpc."""
        return await self._find(_details(rpc, metadata))

    async def guarded(self, rpc: str, metadata: Sequence[tuple[str, str | bytes]]) -> Any:
        """Return a handler that refuses whom the gate does not admit with this metadata."""
        return await self._gate.intercept_service(self._find, _details(rpc, metadata))

    async def _find(self, details: grpc.HandlerCallDetails) -> Any:
        found = (handler.service(details) for handler in self._handlers)
        return next((one for one in found if one is not None), None)


def _details(rpc: str, metadata: Sequence[tuple[str, str | bytes]]) -> grpc.HandlerCallDetails:
    return cast(grpc.HandlerCallDetails, _Details(rpc, tuple(metadata)))


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Admits or refuses calls. Used from one event loop.

    jobs: the jobs; set before the server starts. tls: of the port. refusals: counter by reason.
    """

    def __init__(self, tokens: TokenFile, *, tls: ServerTls | None = None) -> None:
        self.jobs: JobServers | None = None
        self.refusals: Counter[str] = Counter()
        self._tokens = tokens
        self._quotas = QuotaBook()
        self._calls: set[_Call] = set()
        #: The port, if there are tokens; without them there are no strangers.
        self.front = Front(tls=tls) if tokens.path is not None else None
        self._logged_at = float("-inf")
        self._unlogged = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        """Called by gRPC for every call, before its request is read."""
        handler = await continuation(details)
        rpc = details.method
        known = False
        if handler is None:
            return self._refusing(None, known=self._is_known(details.invocation_metadata))
        try:
            rule = rule_of(rpc)
            if rule.open:
                return self._answering_unread(handler)
            digest, caller = self._tokens.find(_token(details.invocation_metadata))
            known = True
            require_role(rule, rpc, caller)
            self._quotas.take_request(caller, asyncio.get_running_loop().time())
        except Rejection as error:
            self._log_refusal(rpc, error)
            return self._refusing(error, known=known)
        return self._guarded(handler, rpc, rule, digest)

    @property
    def asks_for_tokens(self) -> bool:
        """True if there is a table of tokens; without one everybody may do everything."""
        return self._tokens.path is not None

    def let_in(self, route: str, authorization: Sequence[str], job: str = "") -> Principal:
        """Return the caller of an HTTP route (for `job`) with these Authorization headers.

        Raises Rejection.
        """
        return self._let_in_http(route, authorization, job)[2]

    @contextmanager
    def following(self, route: str, authorization: Sequence[str], job: str = "") -> Iterator[HttpCall]:
        """Admit a continuing HTTP answer; the task inside is cancelled when its caller loses the right.

        See `let_in`.
        """
        rule, digest, _ = self._let_in_http(route, authorization, job)
        call = _Call(route, rule, digest)
        call.job = job
        self._calls.add(call)
        try:
            yield HttpCall(self._tokens, call)
        finally:
            self._calls.discard(call)

    def _let_in_http(
        self, route: str, authorization: Sequence[str], job: str
    ) -> tuple[Rule, bytes, Principal]:
        try:
            rule = http_rule_of(route)
            digest, caller = self._tokens.find(_bearer(list(authorization)))
            require_role(rule, route, caller)
            self._quotas.take_request(caller, asyncio.get_running_loop().time())
            if rule.job:
                require_covers(caller, job)
        except Rejection as error:
            self._log_refusal(route, error)
            raise
        return rule, digest, caller

    def origin(self, peer: str) -> str:
        """Return the address of a caller that gRPC calls `peer`, for the log."""
        return self.front.origin(peer) if self.front is not None else peer

    async def keep_tokens(self) -> None:
        """Load changes of the file once it is stable, until cancelled."""
        seen = self._tokens.stamp()
        while self._tokens.path is not None:
            await asyncio.sleep(LOOK_SECONDS)
            before, seen = seen, self._tokens.stamp()
            if seen == before:
                self.refresh()

    def refresh(self) -> None:
        """Load a changed file now, and end running calls that are no longer allowed."""
        if not self._tokens.refresh():
            return
        for call in list(self._calls):
            try:
                caller = self._tokens.owner(call.digest)
                require_role(call.rule, call.rpc, caller)
                if call.job and not caller.covers(call.job):
                    raise unauthenticated(f"token {caller.name!r} is not for job {call.job!r} any more")
            except Rejection as error:
                call.refusal = error
                if call.task is not None:
                    call.task.cancel()

    # ---------------------------------------------------------------- one call

    def _guarded(self, handler: Any, rpc: str, rule: Rule, digest: bytes) -> Any:
        async def unary(request: Any, context: Context) -> Any:
            if rule.lists:
                callers.covers.set(self._tokens.owner(digest).covers)
            if rule.owned:
                callers.principal.set(self._tokens.owner(digest))
            response = await _behaviour(handler)(request, context)
            if rule.lists:
                hide_others(rule, self._tokens.owner(digest), response)
            return response

        async def stream(request: Any, context: Context) -> None:
            if rule.owned:
                callers.principal.set(self._tokens.owner(digest))
            await _write_all(_behaviour(handler), request, context)

        streams = handler.response_streaming
        serve = stream if streams else unary

        async def behaviour(messages: Any, context: Context) -> Any:
            with ExitStack() as held:
                call = _Call(rpc, rule, digest)
                try:
                    request = await self._let_in(call, messages, context, held, handler.request_streaming)
                    return await serve(request, context)
                except asyncio.CancelledError:
                    if call.refusal is None:
                        raise  # the caller left, or the master stops
                    await self._end(call, call.refusal, context)
                except REFUSALS as error:
                    await refuse(context, error)

        make = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
        return make(behaviour, handler.request_deserializer, handler.response_serializer)

    async def _let_in(
        self, call: _Call, messages: Any, context: Context, held: ExitStack, streaming: bool
    ) -> Any:
        """Return the request for the servicer after checking its job and quotas. Raises Rejection.

        messages: of the call, even if its request is a single message: it is read only after the caller is
        known to the front, which would end a stranger that sends this much. streaming: whether the servicer
        reads messages itself. held: releases the call's quotas when it ends.
        """
        self._seen(context, known=True)
        self._require_front(call, context)
        self._calls.add(call)
        held.callback(self._calls.discard, call)
        first = request = messages
        if not streaming:
            first = request = await _only_message(messages)
        elif call.rule.job or call.rule.counts:
            first = await _first_message(messages)
            request = _again(first, messages)
            if call.rule.counts:
                request = self._counted(call, request)
        if isinstance(first, Malformed):
            return request  # it names no job, and the servicer refuses it
        try:
            # Checked again: the tokens may have changed while waiting for the message.
            caller = self._tokens.owner(call.digest)
            self._require(call, caller, first, held)
        except Rejection as error:
            self._log_refusal(call.rpc, error, self.origin(context.peer()))
            raise
        if call.rule.writes:
            logger.info(
                "operator asks",
                rpc=call.rpc,
                caller=caller.name,
                job=call.job,
                peer=self.origin(context.peer()),
            )
        return request

    def _require(self, call: _Call, caller: Principal, message: Any, held: ExitStack) -> None:
        rule, jobs = call.rule, self.jobs
        assert jobs is not None, "the gate serves without knowing the jobs"
        # A standby master knows no jobs: they are only requested where needed, so that health still works.
        names = jobs.names() if rule.only_job or rule.takes == "job" else ()
        call.job = require_job(rule, caller, message, names)
        if rule.takes == "session":
            held.enter_context(self._quotas.session(caller, (call.job, _attending(message.hello))))
        elif rule.takes == "job":
            held.enter_context(self._quotas.making_job(caller, call.job, names))
        elif rule.takes == "dataset":
            self._quotas.require_dataset(caller, message.dataset, jobs.dataset_names(call.job))

    def _refusing(self, error: Rejection | None, *, known: bool) -> Any:
        """Return a handler that refuses without reading messages, and reports the call to the front.

        error: None: answer as gRPC does for unknown rpcs. known: the caller's token is known.
        """

        async def behaviour(_: Any, context: Context) -> None:
            if not known:
                await asyncio.sleep(REFUSAL_SECONDS)
            self._seen(context, known=known)
            if error is not None:
                await refuse(context, error)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

        return grpc.stream_stream_rpc_method_handler(behaviour)

    def _is_known(self, metadata: Any) -> bool:
        """True if a call's metadata carry a known token."""
        try:
            self._tokens.find(_token(metadata))
        except Rejection:
            return False
        return True

    def _answering_unread(self, handler: Any) -> Any:
        """Return a handler for an open rpc that answers as if the request were empty, without reading it."""

        async def behaviour(_: Any, context: Context) -> None:
            if self.front is not None:
                known = self._is_known(context.invocation_metadata())
                (self.front.let_in if known else self.front.answered)(context.peer())
            await context.write(await handler.unary_unary(handler.request_deserializer(b""), context))

        return grpc.stream_stream_rpc_method_handler(behaviour, None, handler.response_serializer)

    async def _counted(self, call: _Call, messages: Any) -> AsyncIterator[Any]:
        """Yield the messages of a stream, counting their requests; each looks up the caller's token.

        Raises Rejection in place of the first request beyond the quota.
        """
        counted = 1  # the first request was counted with the call
        async for message in messages:
            caller = self._tokens.owner(call.digest)
            refusal = self._count(caller, message, counted)
            counted = 0
            if call.rule.owned:
                callers.principal.set(caller)
            yield message
            if refusal is not None:
                raise refusal

    def _count(self, caller: Principal, message: Any, counted: int) -> Rejection | None:
        """Count the requests in a message, except the first `counted`, and remove those beyond the quota.

        Return their refusal, None if there are none. Raises it if no request is left.
        """
        now = asyncio.get_running_loop().time()
        requests = 1 if isinstance(message, Malformed) else 1 + len(message.more)
        for number in range(counted, requests):
            try:
                self._quotas.take_request(caller, now)
            except Rejection as refusal:
                if number == 0:
                    raise
                del message.more[number - 1 :]
                return refusal
        return None

    async def _end(self, call: _Call, refusal: Rejection, context: Context) -> NoReturn:
        """End an admitted call that is no longer allowed."""
        if call.task is not None:
            call.task.uncancel()
        self._log_refusal(call.rpc, refusal, self.origin(context.peer()))
        await refuse(context, refusal)

    def _require_front(self, call: _Call, context: Context) -> None:
        """Raise Rejection unless the call was made here, or came through the port, and so through its TLS."""
        if self.front is None or isinstance(context, LocalContext) or self.front.vouches(context.peer()):
            return
        error = unauthenticated("the call did not come through the master's port, or its caller has left")
        self._log_refusal(call.rpc, error, context.peer())
        raise error

    def _seen(self, context: Context, *, known: bool) -> None:
        """Report a call to the front. known: it carried a known token."""
        if self.front is not None:
            (self.front.let_in if known else self.front.asked)(context.peer())

    def _log_refusal(self, rpc: str, error: Rejection, peer: str = "") -> None:
        self.refusals[error.reason] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at < REFUSALS_LOGGED_SECONDS:
            self._unlogged += 1
            return
        logger.warning(
            "a call was refused", rpc=rpc, reason=str(error), peer=peer, more_before=self._unlogged
        )
        self._logged_at, self._unlogged = now, 0


def _token(metadata: Any) -> str | None:
    """Return the token of a call; None without one. Raises Rejection for several, or another scheme."""
    return _bearer([value for key, value in metadata or () if key == HEADER])


def _bearer(values: list[Any]) -> str | None:
    """Return the token in the header's values; None without one. Raises as `_token`."""
    if not values:
        return None
    value = values[0] if isinstance(values[0], str) else ""
    if len(values) > 1 or not value.lower().startswith(SCHEME):
        raise unauthenticated("the authorization is not one bearer token")
    return value[len(SCHEME) :].strip()


def _behaviour(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


async def _write_all(behaviour: Any, request: Any, context: Context) -> None:
    if not inspect.isasyncgenfunction(behaviour):
        await behaviour(request, context)
        return
    async with aclosing(behaviour(request, context)) as messages:
        async for message in messages:
            await context.write(message)


async def _only_message(messages: Any) -> Any:
    async for message in messages:
        return message
    raise Rejection("invalid_argument", "the call has no request message")


async def _first_message(requests: Any) -> Any:
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            first = await anext(aiter(requests), None)
    except TimeoutError:
        first = None
    if first is None:
        raise Rejection(
            "invalid_argument",
            f"no message arrived within {FIRST_MESSAGE_SECONDS:g} s",
            hint="send the first message right after opening the stream",
        )
    return first


async def _again(first: Any, rest: Any) -> AsyncIterator[Any]:
    """Yield the whole stream, starting with the message already read."""
    yield first
    async for message in rest:
        yield message


def _attending(hello: Any) -> str:
    """Who attends: a worker, or a parameter server, which may have the name of one."""
    return f"ps {hello.ps_id}" if "ps_id" in hello.DESCRIPTOR.fields_by_name else str(hello.worker_id)

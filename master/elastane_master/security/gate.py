"""The gate: every call of every service passes here before anything else sees it.

    token -> role -> request counted -> (request parsed) job -> what else it takes -> the servicer

An interceptor of a master with tokens, so that services which are not ours (health, reflection) and those
not written yet pass it too. The request of a caller who is not let in is never read, so that nobody makes
the master keep or inflate one without a token; what else strangers may take up the front bounds. A stream
names its job in its first message, which the gate reads and hands on.

When the file of tokens changes, calls that the new table does not allow are ended where they stand.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
import structlog

from elastane_master import callers
from elastane_master.decisions.events import Rejection
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
from elastane_master.security.tokens import ANYBODY, BadTokenTable, Principal, TokenTable, digest_of
from elastane_master.servers.binding import Context, Malformed
from elastane_master.servers.errors import REFUSALS, refuse

logger = structlog.get_logger(__name__)

HEADER = "authorization"
SCHEME = "bearer "
FIRST_MESSAGE_SECONDS = 10.0
"""How long a stream may stand open without saying what it is."""

LOOK_SECONDS = 1.0
"""How often the file of tokens is looked at: a file gives no event."""

REFUSAL_SECONDS = 0.02
"""So long a stranger waits for its refusal. Who takes calls back at once is not answered by then: gRPC 1.85
never frees half a kilobyte of an answer that fails (`execute_batch` in its Cython code)."""

REFUSALS_LOGGED_SECONDS = 1.0
"""Refusals are logged at most so often, with the number of those in between: anybody can cause them."""


class Facts(Protocol):
    """What the gate has to know of the jobs, to count them."""

    def job_names(self) -> Collection[str]: ...
    def dataset_names(self, job: str) -> Collection[str]: ...


class TokenFile:
    """The table of tokens as the file has it; without a file everybody may do everything."""

    def __init__(self, path: Path | None) -> None:
        """Raises BadSecurityFile."""
        self.path = path
        self._stamp: Stamp = stamp_of((path,))
        self._table = self._read() if path is not None else None

    def find(self, token: str | None) -> tuple[bytes, Principal]:
        """The token's digest, and whose it is. Raises Rejection."""
        if self._table is None:
            return b"", ANYBODY
        if token is None:
            raise unauthenticated("this master lets nobody in without a token")
        digest = digest_of(token)
        return digest, self.owner(digest)

    def owner(self, digest: bytes) -> Principal:
        """Whose token has this digest, as of now. Raises Rejection."""
        if self._table is None:
            return ANYBODY
        principal = self._table.find(digest)
        if principal is None:
            raise unauthenticated("the token is not known here")
        return principal

    def refresh(self) -> bool:
        """Takes up a changed file; True when it did. A file that cannot be read changes nothing."""
        if self.path is None or (stamp := stamp_of((self.path,))) == self._stamp:
            return False
        self._stamp = stamp
        try:
            table = self._read()
        except BadSecurityFile as error:
            logger.error(
                "the new tokens are not taken up: the old ones stand", error=str(error), hint=error.hint
            )
            return False
        if stamp_of((self.path,)) != stamp:
            self._stamp = ()  # it is being written: half of it would cut off whoever is in the other half
            return False
        self._table = table
        logger.info("tokens taken up", file=str(self.path), tokens=len(table))
        return True

    def stamp(self) -> Stamp:
        """Changes when the file does."""
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
    """One call that was let in: what it was let in for, and the task that serves it."""

    __slots__ = ("digest", "job", "refusal", "rpc", "rule", "task")

    def __init__(self, rpc: str, rule: Rule, digest: bytes) -> None:
        self.rpc = rpc
        self.rule = rule
        self.digest = digest
        self.job = ""
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.refusal: Rejection | None = None


class HttpCall:
    """An HTTP answer that goes on."""

    def __init__(self, tokens: TokenFile, call: _Call) -> None:
        self._tokens = tokens
        self._call = call

    @property
    def caller(self) -> Principal:
        """Whose it is, with the rights of this moment. Raises Rejection where there are none any more."""
        return self._tokens.owner(self._call.digest)

    def refusal(self) -> Rejection | None:
        """Why it was ended; None when it was not the gate that did. The task goes on then."""
        if self._call.refusal is not None and self._call.task is not None:
            self._call.task.uncancel()
        return self._call.refusal


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets calls in or refuses them. Used from one event loop.

    facts: of the jobs; set before the server starts. refusals: how many, by reason.
    """

    def __init__(self, tokens: TokenFile, facts: Facts | None = None) -> None:
        self.facts = facts
        self.refusals: Counter[str] = Counter()
        self._tokens = tokens
        self._quotas = QuotaBook()
        self._calls: set[_Call] = set()
        #: The port, where there are tokens: else everybody is let in, and nobody a stranger.
        self.front = Front() if tokens.path is not None else None
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
            return self._unknown_rpc(self._is_known(details.invocation_metadata))
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
        """Whether there is a table of tokens; without one everybody may do everything."""
        return self._tokens.path is not None

    def let_in(self, route: str, authorization: Sequence[str], job: str = "") -> Principal:
        """Who asks for an HTTP route (of `job`), with these Authorization headers. Raises Rejection."""
        return self._let_in_http(route, authorization, job)[2]

    @contextmanager
    def following(self, route: str, authorization: Sequence[str], job: str = "") -> Iterator[HttpCall]:
        """As `let_in`, for an answer that goes on: the task inside is cancelled when the right to it ends."""
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

    async def keep_tokens(self) -> None:
        """Takes up changes of the file, once they have settled, until it is cancelled."""
        seen = self._tokens.stamp()
        while self._tokens.path is not None:
            await asyncio.sleep(LOOK_SECONDS)
            before, seen = seen, self._tokens.stamp()
            if seen == before:
                self.refresh()

    def refresh(self) -> None:
        """Takes up a changed file now, and ends the calls that are not allowed any more."""
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
        if handler.response_streaming:

            async def stream(messages: Any, context: Context) -> None:
                with ExitStack() as held:
                    call = _Call(rpc, rule, digest)
                    try:
                        request = await self._let_in(call, messages, context, held, handler.request_streaming)
                        await _write_all(_behaviour(handler), request, context)
                    except asyncio.CancelledError:
                        if call.refusal is None:
                            raise  # the caller left, or the master stops
                        await self._end(call, call.refusal, context)
                    except REFUSALS as error:
                        await refuse(context, error)

            return grpc.stream_stream_rpc_method_handler(
                stream, handler.request_deserializer, handler.response_serializer
            )

        async def unary(messages: Any, context: Context) -> Any:
            with ExitStack() as held:
                call = _Call(rpc, rule, digest)
                try:
                    request = await self._let_in(call, messages, context, held, handler.request_streaming)
                    if rule.lists:
                        callers.covers.set(self._tokens.owner(digest).covers)
                    response = await _behaviour(handler)(request, context)
                    if rule.lists:
                        hide_others(rule, self._tokens.owner(digest), response)
                    return response
                except asyncio.CancelledError:
                    if call.refusal is None:
                        raise
                    await self._end(call, call.refusal, context)
                except REFUSALS as error:
                    await refuse(context, error)

        return grpc.stream_unary_rpc_method_handler(
            unary, handler.request_deserializer, handler.response_serializer
        )

    async def _let_in(
        self, call: _Call, messages: Any, context: Context, held: ExitStack, streaming: bool
    ) -> Any:
        """The request for the servicer, once its job and what it takes are allowed. Raises Rejection.

        messages: of the call, even of one whose request is one message: it is read once the caller is known
        to the front, which would end a stranger that sends so much. streaming: whether the servicer
        reads them itself. held: gives back what the call took when it ends.
        """
        self._seen(context, known=True)
        self._calls.add(call)
        held.callback(self._calls.discard, call)
        first = request = messages
        if not streaming:
            first = request = await _only_message(messages)
        elif call.rule.job:
            first = await _first_message(messages)
            request = _again(first, self._counted(call, messages) if call.rule.counts else messages)
        if isinstance(first, Malformed):
            return request  # it says nothing, and the servicer refuses it
        try:
            # Asked again: the tokens may have changed while the message was waited for.
            caller = self._tokens.owner(call.digest)
            self._require(call, caller, first, held)
        except Rejection as error:
            self._log_refusal(call.rpc, error, self._origin(context))
            raise
        if call.rule.writes:
            logger.info(
                "operator asks", rpc=call.rpc, caller=caller.name, job=call.job, peer=self._origin(context)
            )
        return request

    def _require(self, call: _Call, caller: Principal, message: Any, held: ExitStack) -> None:
        rule, facts = call.rule, self.facts
        assert facts is not None, "the gate serves without knowing the jobs"
        # A master that stands by knows no jobs: asked only where they matter (health is told all the same).
        jobs = facts.job_names() if rule.only_job or rule.takes == "job" else ()
        call.job = require_job(rule, caller, message, jobs)
        if rule.takes == "session":
            held.enter_context(self._quotas.session(caller, (call.job, message.hello.worker_id)))
        elif rule.takes == "job":
            held.enter_context(self._quotas.making_job(caller, call.job, jobs))
        elif rule.takes == "dataset":
            self._quotas.require_dataset(caller, message.dataset, facts.dataset_names(call.job))

    def _refusing(self, error: Rejection, *, known: bool) -> Any:
        """A handler that refuses. As one of streams, whose messages nobody waits for. known: the token is."""

        async def behaviour(_: Any, context: Context) -> None:
            if not known:
                await asyncio.sleep(REFUSAL_SECONDS)
            self._seen(context, known=known)
            await refuse(context, error)

        return grpc.stream_stream_rpc_method_handler(behaviour)

    def _unknown_rpc(self, known: bool) -> Any:
        """A handler that says, as gRPC would, that there is no such rpc, and tells the front of the call."""

        async def behaviour(_: Any, context: Context) -> None:
            if not known:
                await asyncio.sleep(REFUSAL_SECONDS)
            self._seen(context, known=known)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

        return grpc.stream_stream_rpc_method_handler(behaviour)

    def _is_known(self, metadata: Any) -> bool:
        """Whether a call's metadata bear a known token."""
        try:
            self._tokens.find(_token(metadata))
        except Rejection:
            return False
        return True

    def _answering_unread(self, handler: Any) -> Any:
        """A handler of an open rpc that answers everybody as if the request were empty, and reads none."""

        async def behaviour(_: Any, context: Context) -> None:
            if self.front is not None:
                known = self._is_known(context.invocation_metadata())
                (self.front.let_in if known else self.front.answered)(context.peer())
            await context.write(await handler.unary_unary(handler.request_deserializer(b""), context))

        return grpc.stream_stream_rpc_method_handler(behaviour, None, handler.response_serializer)

    async def _counted(self, call: _Call, messages: Any) -> AsyncIterator[Any]:
        """The rest of a stream whose messages are requests. Raises Rejection at one that is too many."""
        async for message in messages:
            caller = self._tokens.owner(call.digest)
            self._quotas.take_request(caller, asyncio.get_running_loop().time())
            yield message

    async def _end(self, call: _Call, refusal: Rejection, context: Context) -> NoReturn:
        """Ends a call that was let in and is not allowed any more."""
        if call.task is not None:
            call.task.uncancel()
        self._log_refusal(call.rpc, refusal, self._origin(context))
        await refuse(context, refusal)

    def _seen(self, context: Context, *, known: bool) -> None:
        """Tells the front of a call. known: it bore a known token."""
        if self.front is not None:
            (self.front.let_in if known else self.front.asked)(context.peer())

    def _origin(self, context: Context) -> str:
        """Where a call comes from, for the log."""
        return self.front.origin(context.peer()) if self.front is not None else context.peer()

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
    """The token of a call; None if it bears none. Raises Rejection for several, or something else."""
    return _bearer([value for key, value in metadata or () if key == HEADER])


def _bearer(values: list[Any]) -> str | None:
    """The token in the values of the header. Raises Rejection for several, or something else."""
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
    raise Rejection("invalid_argument", "the call came without its request")


async def _first_message(requests: Any) -> Any:
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            first = await anext(aiter(requests), None)
    except TimeoutError:
        first = None
    if first is None:
        raise Rejection(
            "invalid_argument",
            f"no message came within {FIRST_MESSAGE_SECONDS:g} s",
            hint="say what the stream is for first",
        )
    return first


async def _again(first: Any, rest: Any) -> AsyncIterator[Any]:
    """The whole stream, with the message that was read already."""
    yield first
    async for message in rest:
        yield message

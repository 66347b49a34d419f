"""A connection to the masters: calls that are retried, and streams that are subscribed again.

Every call is retried with backoff, at the next of the masters' addresses, until a stated time has passed: a
master that is being restarted, or another that takes over, is a pause and not an error. A refusal is raised
as `RequestRefusedError`, no answer at all as `MasterUnreachableError`. NOT_FOUND for a job that a master knew
before counts only when it is repeated.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

import grpc
import tenacity

from elastane_common.addresses import AddressBook
from elastane_common.backoff import wait_backoff
from elastane_common.client_errors import (
    ClientClosedError,
    RequestRefusedError,
    StreamEndedError,
    TransientError,
    error_of,
    plain_cause,
)
from elastane_common.credentials import TLS_HINT, credentials_stamp, open_channel
from elastane_common.errors import MasterUnreachableError
from elastane_common.message_size import size_options
from elastane_common.stream_session import STANDBY_SECONDS_MAX
from elastane_proto import versions
from elastane_proto.channels import KEEPALIVE_TIMEOUT_MILLISECONDS, channel_options

#: Time limit of one attempt of a call that the master answers at once.
ATTEMPT_SECONDS = 10.0

_CHANNEL_OPTIONS = [
    # A restarted master is found when it is needed (`backoff`), not within gRPC's two minutes.
    *channel_options(reconnect_milliseconds_max=200),
    # Without it, a call to a stopped peer whose kernel still answers would wait without end.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MILLISECONDS),
]
#: Protocol version of this client, sent with every call.
_METADATA = ((versions.METADATA_KEY, str(versions.PROTOCOL)),)
#: A watch that lasted longer than connecting takes was connected to a master, which may have had nothing to
#: send: a quiet job has no event for hours.
STOOD_SECONDS = 5.0
#: Delay before asking again for a known job that is not found: the default duration of a leader's lease.
NOT_FOUND_SECONDS = 3.0

Response = TypeVar("Response")


class _Call(Protocol):
    """A unary or a streaming method of a stub."""

    def __call__(self, request: Any, *, metadata: Any = None) -> Any: ...

    def with_call(self, request: Any, *, timeout: float | None = None, metadata: Any = None) -> Any: ...


def call_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata sent with every call."""
    return _METADATA


def new_request_id() -> str:
    """Return an id that makes a retried write take effect once."""
    return uuid.uuid4().hex


class MasterConnection:
    """A connection to a master, or to whichever of several leads now.

    addresses: "host:port", several separated by commas; a name stands for all its addresses
    (`elastane_common.addresses`). Raises ValueError if they are invalid. timeout_seconds: how long a call
    waits for a master that does not answer; may be infinite. on_wait(seconds, error): called before each wait
    between two attempts. Thread-safe; `close` ends waiting calls and watches.
    """

    def __init__(
        self,
        addresses: str,
        *,
        timeout_seconds: float = 10.0,
        on_wait: Callable[[float, str], None] | None = None,
    ) -> None:
        self._book = AddressBook(addresses)
        self.addresses = self._book.given
        self._timeout_seconds = timeout_seconds
        self._on_wait = on_wait
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[tuple[str, Callable[[grpc.Channel], Any]], Any] = {}
        self._stamp = credentials_stamp()
        #: Jobs that a master has answered for, and the times since which jobs are not found.
        self._known: set[str] = set()
        self._missing_since: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all waiting calls. Idempotent."""
        self._closing.set()
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._forget()

    # ------------------------------------------------------------------ calls and streams

    def call(
        self,
        stub: Callable[[grpc.Channel], Any],
        method: str,
        request: Any,
        *,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> Any:
        """Call a unary method with retries. attempt_seconds: how long the master may take for its answer.

        Raises RequestRefusedError or MasterUnreachableError.
        """
        deadline = time.monotonic() + self._timeout_seconds + attempt_seconds - ATTEMPT_SECONDS

        def attempt(service: Any) -> Any:
            left = max(deadline - time.monotonic(), 0.05)
            call: _Call = getattr(service, method)
            response, served = call.with_call(
                request, timeout=min(left, attempt_seconds), metadata=call_metadata()
            )
            # Before the answer is used: an older master may have ignored fields that this client relies on.
            require_master(served.trailing_metadata())
            self._answered(request)
            return response

        return self.retried(stub, attempt, wait_seconds=attempt_seconds - ATTEMPT_SECONDS)

    def retried(
        self,
        stub: Callable[[grpc.Channel], Any],
        attempt: Callable[[Any], Response],
        *,
        wait_seconds: float = 0.0,
    ) -> Response:
        """Run `attempt` with a stub of the master until it succeeds, and return its result.

        wait_seconds: how long the master may delay an answer. Raises RequestRefusedError or
        MasterUnreachableError.
        """
        # Time when a master was last connected: an attempt that lasted shows one, as in `subscribe`.
        contact = began = time.monotonic()

        def is_away(state: tenacity.RetryCallState) -> bool:
            nonlocal contact
            now = time.monotonic()
            if now - began > STOOD_SECONDS:
                contact = now
            return now - contact + state.upcoming_sleep > self._timeout_seconds

        for trial in self._retrying(self._timeout_seconds + wait_seconds, is_away):
            with trial:
                address, began = self._book.current(), time.monotonic()
                try:
                    return attempt(self._stub(address, stub))
                except StreamEndedError as error:
                    raise TransientError(str(error), "", address=address) from None
                except (grpc.RpcError, ValueError) as error:
                    raise self._translated(error, address) from None
        raise AssertionError("tenacity returns or raises")

    def subscribe(
        self,
        stub: Callable[[grpc.Channel], Any],
        method: str,
        request: Callable[[], Any],
        *,
        endless: bool = True,
    ) -> Iterator[Any]:
        """Yield the responses of a stream, subscribed again with a new `request()` after a break.

        endless: subscribe again after its normal end too. Ends when the connection is closed.
        Raises as `call`.
        """
        last_contact = time.monotonic()
        failures = 0
        while not self._closing.is_set():
            served, began = False, time.monotonic()
            address = self._book.current()
            try:
                call: _Call = getattr(self._stub(address, stub), method)
                asked = request()
                for response in call(asked, metadata=call_metadata()):
                    served = True
                    self._answered(asked)
                    yield response
                if not endless:
                    return
                failures = 0
            except ClientClosedError:
                return
            except (grpc.RpcError, ValueError) as error:
                translated = self._translated(error, address)
                if isinstance(translated, ClientClosedError):
                    return
                if not isinstance(translated, TransientError):
                    raise translated from None
                # A master was connected until now, so the timeout starts again.
                if served or time.monotonic() - began > STOOD_SECONDS:
                    last_contact, failures = time.monotonic(), 0
                elif time.monotonic() - last_contact > self._timeout_seconds:
                    raise translated.refusal or self._unreachable(self._timeout_seconds, translated) from None
                self._book.failed(address, translated.leader)
                pause_seconds = NOT_FOUND_SECONDS if translated.refusal else _watch_pause_seconds(failures)
                self._report_wait(pause_seconds, str(translated))
            else:
                pause_seconds = _watch_pause_seconds(failures)
            if self._closing.wait(pause_seconds):
                return
            failures += 1

    # ------------------------------------------------------------------ internals

    def _stub(self, address: str, stub: Callable[[grpc.Channel], Any]) -> Any:
        """Return a service's stub on the channel to an address.

        Created under the lock that `close` takes: gRPC crashes with SIGSEGV if a stub is created from a
        channel that another thread has closed (grpc/grpc#43455). A call on a closed channel only raises
        ValueError.
        """
        with self._lock:
            if self._closing.is_set():
                raise ClientClosedError("the connection to the master was closed")
            if (stamp := credentials_stamp()) != self._stamp:
                # Certificates were renewed. Calls of other threads keep their channels until they end.
                self._stamp = stamp
                self._forget()
            if address not in self._channels:
                self._channels[address] = open_channel(
                    address, _CHANNEL_OPTIONS + size_options(), name=self._book.name_of(address)
                )
            if (address, stub) not in self._stubs:
                self._stubs[address, stub] = stub(self._channels[address])
            return self._stubs[address, stub]

    def _forget(self) -> None:
        self._channels.clear()
        self._stubs.clear()

    def _retrying(
        self, timeout_seconds: float, is_away: Callable[[tenacity.RetryCallState], bool]
    ) -> tenacity.Retrying:
        def before_sleep(state: tenacity.RetryCallState) -> None:
            assert state.outcome is not None and state.next_action is not None
            error = state.outcome.exception()
            assert isinstance(error, TransientError)
            self._book.failed(error.address, error.leader)
            self._report_wait(state.next_action.sleep, str(error))

        def give_up(state: tenacity.RetryCallState) -> Any:
            assert state.outcome is not None
            error = state.outcome.exception()
            if isinstance(error, TransientError):
                raise error.refusal or self._unreachable(timeout_seconds, error)
            assert error is not None
            raise error

        stops: tuple[Callable[[tenacity.RetryCallState], bool], ...] = (
            tenacity.stop_before_delay(timeout_seconds),
            is_away,
            tenacity.stop_when_event_set(self._closing),
        )
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientError),
            stop=lambda state: any(stop(state) for stop in stops),
            wait=_wait,
            sleep=tenacity.sleep_using_event(self._closing),
            before_sleep=before_sleep,
            retry_error_callback=give_up,
        )

    def _report_wait(self, seconds: float, error: str) -> None:
        if self._on_wait is not None:
            self._on_wait(seconds, plain_cause(error))

    def _unreachable(self, timeout_seconds: float, error: TransientError) -> MasterUnreachableError:
        return MasterUnreachableError(
            f"no master answered at {self._book} within {timeout_seconds:.3g} s: {plain_cause(str(error))}",
            hint=error.hint
            or f"is it running, and is its address right? Set --master or ELASTANE_MASTER; {TLS_HINT}",
            last_error=str(error),
        )

    def _answered(self, request: Any) -> None:
        """Note that a master has answered, and so knows the job that the request names."""
        if job := getattr(request, "job", "") or getattr(request, "name", ""):
            self._known.add(job)
            self._missing_since.pop(job, None)

    def _is_gone(self, refusal: RequestRefusedError) -> bool:
        """True if a missing object is gone for good; False at first for a job that was known."""
        job, now = refusal.facts.get("job", ""), time.monotonic()
        if set(refusal.facts) != {"job"} or job not in self._known:
            return True  # a worker or dataset, or a job that was never known
        return now - self._missing_since.setdefault(job, now) >= NOT_FOUND_SECONDS

    def _translated(self, error: Exception, address: str) -> Exception:
        """Return the error to raise for gRPC's error, or a TransientError if the call may be retried."""
        if self._closing.is_set():
            return ClientClosedError("the connection to the master was closed")
        if isinstance(error, ValueError):
            # gRPC has no type of its own for a call on a channel that `close` has closed meanwhile.
            if "closed channel" in str(error):
                return ClientClosedError("the connection to the master was closed")
            return error
        assert isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call)
        found = error_of(error, address)
        if (
            isinstance(found, RequestRefusedError)
            and found.reason == "not_found"
            and not self._is_gone(found)
        ):
            return TransientError(found.args[0], found.hint, address=address, refusal=found)
        return found


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the wait before the next attempt; short after a standby master, because a leader is near."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, TransientError) and error.refusal is not None:
        return NOT_FOUND_SECONDS
    seconds = wait_backoff(state)
    return (
        min(seconds, STANDBY_SECONDS_MAX) if isinstance(error, TransientError) and error.standby else seconds
    )


def require_master(metadata: Sequence[tuple[str, str | bytes]] | None) -> None:
    """Raise RequestRefusedError if the master that answered with `metadata` is too old for this client."""
    version = next((str(value) for key, value in metadata or () if key == versions.METADATA_KEY), "")
    fault, hint = versions.master_fault(version)
    if fault:
        raise RequestRefusedError(fault, reason="incompatible", hint=hint, version=version)


def _watch_pause_seconds(failures: int) -> float:
    return float(min(0.05 * 2.0 ** min(failures, 10), 2.0))

"""A parameter server's session with the master: like a worker's, with other messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from elastane.runtime.session import MasterSession
from elastane.runtime.session_machine import Welcomed
from elastane_common.errors import ElastaneError
from elastane_proto import versions
from elastane_proto.v1 import ps_pb2, ps_pb2_grpc


class PsSession(MasterSession):
    """As `MasterSession`, whose arguments are explained there."""

    def __init__(
        self,
        addresses: str,
        *,
        hello: Callable[[], ps_pb2.PsHello],
        heartbeat: Callable[[], ps_pb2.PsHeartbeat],
        handler: Callable[[ps_pb2.AttendSlotsResponse], None],
        failed: Callable[[ElastaneError], None],
        timeout_seconds: float,
    ) -> None:
        untyped: Any = hello, handler
        super().__init__(
            addresses,
            hello=untyped[0],
            heartbeat=lambda: _as_any(ps_pb2.AttendSlotsRequest(heartbeat=heartbeat())),
            handler=untyped[1],
            failed=failed,
            timeout_seconds=timeout_seconds,
        )

    def tell(self, **message: Any) -> None:
        """Send one message, as in `tell(restored=...)`.

        Dropped while disconnected; messages that matter are repeated after the next welcome.
        """
        self.send(_as_any(ps_pb2.AttendSlotsRequest(**message)))

    def end(self, reason: str) -> None:
        """Send PsBye, and wait until the master has ended the stream."""
        self.close(_as_any(ps_pb2.PsBye(reason=reason)))

    def _call(self, channel: grpc.Channel, requests: Iterator[Any]) -> Any:
        return ps_pb2_grpc.SlotServiceStub(channel).AttendSlots(requests)

    def _first(self) -> Any:
        return ps_pb2.AttendSlotsRequest(hello=_as_any(self._hello()))

    def _last(self, bye: Any) -> Any:
        return ps_pb2.AttendSlotsRequest(bye=bye)

    def _terms(self, welcome: Any) -> Welcomed:
        # The protocol's version is compared at the master, by the Hello.
        return Welcomed(str(versions.PROTOCOL), welcome.heartbeat_seconds)


def _as_any(message: Any) -> Any:
    return message

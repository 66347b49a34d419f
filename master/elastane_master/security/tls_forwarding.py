"""A connection at the port with TLS, which ends here: what strangers send inside is counted, too."""

from __future__ import annotations

import asyncio

from elastane_master.security.forwarding import STRANGER_READ_BYTES, Caller, Port
from elastane_master.security.tls import ServerTls
from elastane_master.security.tls_session import PIECE_BYTES, TlsBroken, TlsSession, whole_records


class TlsCaller(Caller):
    """A connection at the port with TLS: a handshake first, then one to gRPC for what is inside.

    While a step of the handshake is done in a thread, the session is that thread's.
    """

    def __init__(self, port: Port, number: int, tls: ServerTls) -> None:
        super().__init__(port, number)
        self._tls = tls
        self._session: TlsSession | None = None
        self._may_shake = self._shaking = False
        self._received_raw = bytearray()  # not given to the session yet
        self._given = b""

    # ---------------------------------------------------------------- the handshake

    def hand_on(self) -> None:
        """Let the handshake begin; it is done already if gRPC could not take the connection at once."""
        if self._is_open:
            super().hand_on()
        else:
            self._may_shake = True
            self._shake()

    def wanted(self) -> bool:
        """See `handshakes.Step`."""
        return self._is_there

    def run(self) -> bytes:
        """See `handshakes.Step`."""
        if self._session is None:
            self._session = self._tls.session()
        return self._session.shake(self._given)

    def done(self, result: asyncio.Future[bytes]) -> None:
        """See `handshakes.Step`."""
        self._shaking, self._given = False, b""
        try:
            answer = result.result()
        except TlsBroken as error:
            self._break_off(error.farewell)
            return
        except RuntimeError:  # no thread for it could be started
            self._break_off()
            return
        if self._transport is None or not self._is_there:
            return
        self._transport.write(answer)
        if self._session is not None and self._session.is_open:
            self._session.feed(self._received_raw)
            self._received_raw = bytearray()
            super().hand_on()
        else:
            self._shake()

    def _shake(self) -> None:
        """Submit the next step of the handshake once a whole record for it has arrived."""
        whole = whole_records(self._received_raw)
        spent = len(self._received_raw) + (self._session.opaque if self._session is not None else 0)
        if spent > self._port.limits.opaque_bytes_max:
            self._break_off()
        elif whole:
            self._given, self._received_raw = bytes(self._received_raw[:whole]), self._received_raw[whole:]
            self._shaking = True
            self._port.handshakes.submit(self.network, self)
        self.read(self._wanted)

    def _break_off(self, farewell: bytes = b"") -> None:
        """End the connection, because the caller has ended it or violates TLS."""
        self._port.broke_off(self.number)
        self.give_up()
        self.finish(farewell)

    @property
    def _is_there(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def _is_open(self) -> bool:
        return not self._shaking and self._session is not None and self._session.is_open

    # ---------------------------------------------------------------- inside TLS

    def answer(self, data: memoryview) -> None:
        if self._transport is None or self._session is None:
            return
        try:
            self._transport.write(self._session.write(data))
        except TlsBroken:
            self.abort()

    def finish(self, farewell: bytes = b"") -> None:
        if not farewell and self._session is not None and self._is_open:
            farewell = self._session.end()
        super().finish(farewell)

    def _go_on(self) -> None:
        self._decrypt()
        super()._go_on()

    def _decrypt(self) -> None:
        """Decrypt data as far as the caller's limits allow; the rest stays in the session."""
        session = self._session
        if session is None or self._transport is None or not self._is_there:
            return
        try:
            while self._server is not None:
                if not self._stranger:
                    if not (data := session.read(PIECE_BYTES)):
                        break
                    self._server.write(data)
                elif not (self._heard and self._handed_on):
                    return
                elif data := session.read(STRANGER_READ_BYTES):
                    self._received(memoryview(data))
                elif session.opaque > self._port.limits.opaque_bytes_max:
                    self._break_off()
                    return
                else:
                    break
            if answer := session.unsent():
                self._transport.write(answer)
        except TlsBroken as error:
            self._break_off(error.farewell)

    def _reads(self) -> bool:
        if self._is_open:
            return super()._reads()
        return self._may_shake and not self._shaking

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def buffer_updated(self, nbytes: int) -> None:
        data, session = self.get_buffer(nbytes)[:nbytes], self._session
        if not self._is_there:
            return
        if session is None or not self._is_open:
            self._received_raw += data
            if self._may_shake and not self._shaking:
                self._shake()
            else:  # one more read came before reading was paused
                self.read(self._wanted)
            return
        for at in range(0, nbytes, PIECE_BYTES):
            session.feed(data[at : at + PIECE_BYTES])
            self._decrypt()
        if self._stranger:
            self.read(self._wanted)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._session is not None:
            self._port.broke_off(self.number)
        super().connection_lost(exc)

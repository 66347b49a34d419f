"""Both ends of a connection prove that they know the parameter server's secret for this job.

The messages are those of `elastane_common.challenge`. The master derives the secret from the key in the
server's PsHello and sends it to the job's workers and servers (elastane_proto.rendezvous.group_secret).

The caller decides whether the connection is encrypted; the server sees it by the first byte. The challenge
then takes place inside TLS, and its proofs cover the server's certificate (`elastane_common.process_tls`). In
clear, the frames that follow are neither encrypted nor signed.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from elastane.slots.tls_stream import Stream, TlsStream
from elastane_common.challenge import CallerChallenge, ChallengeFailedError, HostChallenge
from elastane_common.errors import ElastaneError, RefusedError
from elastane_common.process_tls import OwnTls, binding_of, caller_context, digest_of_peer

GREETING: Final = b"elastane slots 1\n"
#: Time limit of a handshake, in seconds.
HANDSHAKE_SECONDS: Final = 10.0
#: First byte of a TLS connection: a record of the type "handshake" (RFC 8446, 5.1).
_TLS_RECORD: Final = b"\x16"
#: Answer, before it closes, of a server that does not encrypt to a caller that does.
_IN_CLEAR: Final = b"elastane slots in clear\n"


class PsHandshakeError(ElastaneError):
    """The peer speaks another protocol, or does not know the secret."""

    code = "ELA491"


def greet(connection: socket.socket, secret: bytes, *, encrypted: bool) -> Stream:
    """Caller's side; returns what frames go over. encrypted: with TLS or not at all.

    Raises PsHandshakeError, OSError, and RefusedError if the server does not encrypt.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    stream: Stream = connection
    binding = b""
    if encrypted:
        stream, binding = _encrypt(connection, deadline)
    challenge = CallerChallenge(GREETING, secret, context=binding)
    stream.sendall(challenge.opening)
    try:
        _complete(stream, challenge, deadline)
    except ChallengeFailedError as error:
        raise PsHandshakeError(
            "what answers at this address is not the parameter server that the map names"
        ) from error
    return stream


def admit(connection: socket.socket, secret: bytes, tls: Callable[[], OwnTls] | None = None) -> Stream:
    """Server's side; returns what frames go over.

    tls: returns this process's key, and is called for callers that encrypt; None: it does not encrypt. Raises
    PsHandshakeError, OSError.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    connection.settimeout(HANDSHAKE_SECONDS)
    stream: Stream = connection
    binding = b""
    if connection.recv(1, socket.MSG_PEEK) == _TLS_RECORD:
        if tls is None:
            connection.sendall(_IN_CLEAR)
            raise PsHandshakeError("a caller encrypts, and this parameter server does not")
        own = tls()
        stream, binding = TlsStream(connection, own.host, server_side=True), binding_of(own.digest)
        stream.shake_hands(deadline)
    try:
        _complete(stream, HostChallenge(GREETING, secret, context=binding), deadline)
    except ChallengeFailedError as error:
        raise PsHandshakeError(str(error)) from error
    return stream


def _encrypt(connection: socket.socket, deadline: float) -> tuple[TlsStream, bytes]:
    """Return the encrypted stream, and what the proofs inside cover."""
    stream = TlsStream(connection, caller_context(), server_side=False)
    try:
        stream.shake_hands(deadline)
    except ssl.SSLError as error:
        if not stream.has_received(_IN_CLEAR):
            raise
        raise RefusedError(
            "the master's connection is encrypted, and a parameter server's is not: it has "
            "ELASTANE_RING_TLS=0, or the package cryptography is missing there",
            hint="give workers and parameter servers the same setting of ELASTANE_RING_TLS",
        ) from error
    return stream, binding_of(digest_of_peer(stream.tls))


def _complete(stream: Stream, challenge: CallerChallenge | HostChallenge, deadline: float) -> None:
    while not challenge.is_proved:
        answer = challenge.hear(_receive(stream, challenge.expected_bytes, deadline))
        if answer:
            stream.sendall(answer)
    stream.settimeout(None)


def _receive(stream: Stream, size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PsHandshakeError("a handshake took too long")
        stream.settimeout(left)
        part = stream.recv(size - len(received))
        if not part:
            raise PsHandshakeError("the other end closed the connection during the handshake")
        received += part
    return received

"""Both ends of a connection prove that they know the parameter server's secret for this job.

The messages are those of `elastane_common.challenge`. The master derives the secret from the key in the
server's PsHello and sends it to the job's workers and servers (elastane_proto.rendezvous.group_secret).
Frames that follow are neither encrypted nor signed.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from elastane_common.challenge import CallerChallenge, ChallengeFailedError, HostChallenge
from elastane_common.errors import ElastaneError

GREETING: Final = b"elastane slots 1\n"
#: Time limit of a handshake, in seconds.
HANDSHAKE_SECONDS: Final = 10.0


class PsHandshakeError(ElastaneError):
    """The peer speaks another protocol, or does not know the secret."""

    code = "ELA491"


def greet(connection: socket.socket, secret: bytes) -> None:
    """Caller's side. Raises PsHandshakeError, OSError."""
    challenge = CallerChallenge(GREETING, secret)
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    connection.sendall(challenge.opening)
    try:
        _complete(connection, challenge, deadline)
    except ChallengeFailedError as error:
        raise PsHandshakeError(
            "what answers at this address is not the parameter server that the map names"
        ) from error


def admit(connection: socket.socket, secret: bytes) -> None:
    """Server's side. Raises PsHandshakeError, OSError."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    try:
        _complete(connection, HostChallenge(GREETING, secret), deadline)
    except ChallengeFailedError as error:
        raise PsHandshakeError(str(error)) from error


def _complete(connection: socket.socket, challenge: CallerChallenge | HostChallenge, deadline: float) -> None:
    while not challenge.is_proved:
        answer = challenge.hear(_receive(connection, challenge.expected_bytes, deadline))
        if answer:
            connection.sendall(answer)
    connection.settimeout(None)


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PsHandshakeError("a handshake took too long")
        connection.settimeout(left)
        part = connection.recv(size - len(received))
        if not part:
            raise PsHandshakeError("the other end closed the connection during the handshake")
        received += part
    return received

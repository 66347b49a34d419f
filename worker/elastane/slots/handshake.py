"""Both ends of a connection prove that they know the parameter server's secret for this job.

    caller -> server   greeting, nonce          server -> caller   nonce
    caller -> server   proof of the secret      server -> caller   proof of the secret

The master derives the secret from the key in the server's PsHello and sends it to the job's workers and
servers (elastane_proto.rendezvous.group_secret). All messages have a fixed length, so a stranger cannot make
the server buffer data. Frames that follow are neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import os
import socket
import time
from typing import Final

from elastane_common.errors import ElastaneError

GREETING: Final = b"elastane slots 1\n"
#: Time limit of a handshake, in seconds.
HANDSHAKE_SECONDS: Final = 10.0
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32


class PsHandshakeError(ElastaneError):
    """The peer speaks another protocol, or does not know the secret."""

    code = "ELA491"


def greet(connection: socket.socket, secret: bytes) -> None:
    """Caller's side. Raises PsHandshakeError, OSError."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    own = os.urandom(_NONCE_BYTES)
    connection.sendall(GREETING + own)
    nonces = own + _receive(connection, _NONCE_BYTES, deadline)
    connection.sendall(_proof(secret, b"caller", nonces))
    if not hmac.compare_digest(
        _receive(connection, _PROOF_BYTES, deadline), _proof(secret, b"server", nonces)
    ):
        raise PsHandshakeError("what answers at this address is not the parameter server that the map names")
    connection.settimeout(None)


def admit(connection: socket.socket, secret: bytes) -> None:
    """Server's side. Raises PsHandshakeError, OSError."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    said = _receive(connection, len(GREETING) + _NONCE_BYTES, deadline)
    if not said.startswith(GREETING):
        raise PsHandshakeError("a caller speaks another protocol")
    own = os.urandom(_NONCE_BYTES)
    # Both nonces enter the proofs, so that neither side can replay an earlier connection.
    nonces = said[len(GREETING) :] + own
    connection.sendall(own)
    proof = _receive(connection, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"caller", nonces)):
        raise PsHandshakeError("a caller does not know the secret")
    connection.sendall(_proof(secret, b"server", nonces))
    connection.settimeout(None)


def _proof(secret: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, who + b"\0" + nonces, "sha256")


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

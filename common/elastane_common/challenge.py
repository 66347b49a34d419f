"""Both ends of a connection prove to each other that they know a secret. Pure: bytes in, bytes out.

    caller -> host   greeting, nonce, subject      host -> caller   nonce
    caller -> host   proof of the secret           host -> caller   proof of the secret

Both nonces enter the proofs, so neither end can replay an earlier connection. All messages have a length that
both ends know in advance, so a stranger cannot make the other end buffer data. The secret is not sent. What
follows on the connection is neither encrypted nor signed, unless the challenge takes place inside TLS and its
context names the certificate (`elastane.collective.socket_mesh`).

    CallerChallenge   used by the end that opened the connection
    HostChallenge     used by the end that accepted it

Parameter servers (`elastane.slots.handshake`) and the sockets of a ring (`elastane.collective.socket_mesh`)
open their connections with it.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import Final

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32


class ChallengeFailedError(Exception):
    """The other end speaks another protocol, or does not know the secret."""


class CallerChallenge:
    """Caller's side. greeting: names the protocol. subject: what the connection is for, sent in clear.

    context: known to both ends and never sent; a proof is valid for this context only. Send `opening`, then
    pass each message of `expected_bytes` to `hear` and send what it returns, until `is_proved`.
    """

    def __init__(self, greeting: bytes, secret: bytes, subject: bytes = b"", context: bytes = b"") -> None:
        self._secret, self._bound = secret, subject + context
        self._nonces = os.urandom(NONCE_BYTES)
        self._is_answered = False
        self.opening = greeting + self._nonces + subject
        self.expected_bytes = NONCE_BYTES
        self.is_proved = False

    def hear(self, message: bytes) -> bytes:
        """Return the answer to a message. Raises ChallengeFailedError."""
        if not self._is_answered:
            self._is_answered = True
            self._nonces += message
            self.expected_bytes = PROOF_BYTES
            return _proof(self._secret, b"caller", self._nonces, self._bound)
        if not hmac.compare_digest(message, _proof(self._secret, b"server", self._nonces, self._bound)):
            raise ChallengeFailedError("what answers there does not know the secret")
        self.expected_bytes = 0
        self.is_proved = True
        return b""


class HostChallenge:
    """Host's side; arguments as for `CallerChallenge`.

    accepts: returns True if a caller with this subject, of `subject_bytes` bytes, is expected.
    """

    def __init__(
        self,
        greeting: bytes,
        secret: bytes,
        subject_bytes: int = 0,
        context: bytes = b"",
        accepts: Callable[[bytes], bool] = lambda subject: True,
    ) -> None:
        self._greeting, self._secret, self._context = greeting, secret, context
        self._accepts = accepts
        self._nonces = b""
        self.subject = b""
        self.expected_bytes = len(greeting) + NONCE_BYTES + subject_bytes
        self.is_proved = False

    def hear(self, message: bytes) -> bytes:
        """Return the answer to a message. Raises ChallengeFailedError."""
        if not self._nonces:
            if not message.startswith(self._greeting):
                raise ChallengeFailedError("a caller speaks another protocol")
            at = len(self._greeting)
            own = os.urandom(NONCE_BYTES)
            self._nonces = message[at : at + NONCE_BYTES] + own
            self.subject = message[at + NONCE_BYTES :]
            self._check_awaited()
            self.expected_bytes = PROOF_BYTES
            return own
        bound = self.subject + self._context
        if not hmac.compare_digest(message, _proof(self._secret, b"caller", self._nonces, bound)):
            raise ChallengeFailedError("a caller does not know the secret")
        self._check_awaited()  # another caller may have proved the same subject meanwhile
        self.expected_bytes = 0
        self.is_proved = True
        return _proof(self._secret, b"server", self._nonces, bound)

    def _check_awaited(self) -> None:
        if not self._accepts(self.subject):
            raise ChallengeFailedError("a caller that nobody awaits")


def _proof(secret: bytes, who: bytes, nonces: bytes, bound: bytes) -> bytes:
    return hmac.digest(secret, who + b"\0" + nonces + bound, "sha256")

"""TLS between the processes of a job, workers and parameter servers, with a key that each process makes.

Such a process has no certificate that another one could check. It makes a key and a self-signed certificate,
and TLS 1.3 only encrypts; who is at the other end is proved by the challenge that follows inside
(`elastane_common.challenge`), whose proofs cover the certificate of the end that was called (RFC 5929's
tls-server-end-point). Whoever stands between two processes can only show another certificate, for which
nobody can make proofs who does not know the secret. The master gives it to the job's processes alone, over
its own TLS.

    offer_of        what this process wants and can do
    is_encrypted    what follows for a ring from the announcements of all its members; pure
    own_tls         this process's key, in memory alone
    caller_context  for a process that only calls
    binding_of      what the proofs of a challenge inside TLS cover

Used by the connections of a ring (`elastane.collective.socket_mesh`) and of parameter servers
(`elastane.slots.handshake`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from elastane_common.errors import RefusedError

#: "wanted": this process's connection to its master is encrypted, so those to others are to be; "possible":
#: it can, but has no reason to ask for it; "off": its settings say no, or it cannot.
Offer = Literal["wanted", "possible", "off"]

#: Raised by a connection, with TLS or without, that can do no more for now.
BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_NAME: Final = "elastane"


@dataclass(frozen=True)
class OwnTls:
    """A process's contexts for the connections that it accepts and opens, and its certificate's digest."""

    host: ssl.SSLContext
    caller: ssl.SSLContext
    digest: bytes


def offer_of(setting: bool, master_has_tls: bool) -> Offer:
    """Return what a process wants and can do. setting: ELASTANE_RING_TLS.

    Raises RefusedError if TLS is wanted and the package for it is missing.
    """
    if not setting:
        return "off"
    is_there = importlib.util.find_spec("cryptography") is not None
    if master_has_tls and not is_there:
        raise RefusedError(
            "the master's connection is encrypted, and this process cannot encrypt those to other workers: "
            "the package cryptography is missing",
            hint='install it (pip install "elastane[worker]"), or set ELASTANE_RING_TLS=0 on the workers',
        )
    if master_has_tls:
        return "wanted"
    return "possible" if is_there else "off"


def is_encrypted(offers: Iterable[Offer | None]) -> bool:
    """True if a ring whose members announced `offers` uses TLS: one of them wants it, and all can.

    None: a member of an older release.
    """
    known = list(offers)
    return "wanted" in known and all(offer in ("wanted", "possible") for offer in known)


def own_tls() -> OwnTls:
    """Return this process's key, made at the first call (some ms). Raises OSError."""
    return _made(os.getpid())


def digest_of_peer(connection: ssl.SSLSocket | ssl.SSLObject) -> bytes:
    """Return the digest of the certificate that the end which was called has shown."""
    return _digest(connection.getpeercert(binary_form=True) or b"")


def binding_of(digest: bytes) -> bytes:
    """Return what proofs cover inside a connection to the end whose certificate has this digest."""
    return b"\0tls\0" + digest


@functools.cache
def caller_context() -> ssl.SSLContext:
    """Return a context for connections that this process opens. It needs no key of its own."""
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # No CA knows these certificates; the challenge says whose they are.
    caller.check_hostname = False
    caller.verify_mode = ssl.CERT_NONE
    caller.minimum_version = ssl.TLSVersion.TLSv1_3
    return caller


@functools.lru_cache(maxsize=1)
def _made(pid: int) -> OwnTls:
    """`pid` is the key of the cache: a process that was forked makes its own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Nobody checks the dates: clocks of workers may differ by anything.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    host = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(host, pem + certificate.public_bytes(serialization.Encoding.PEM))
    host.num_tickets = 0  # no connection is resumed
    host.minimum_version = ssl.TLSVersion.TLSv1_3
    return OwnTls(host, caller_context(), _digest(certificate.public_bytes(serialization.Encoding.DER)))


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Give OpenSSL key and certificate, which it reads from a file: one in memory that has no name."""
    descriptor = os.memfd_create("elastane-tls")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _digest(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()

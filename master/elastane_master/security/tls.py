"""The master's certificate for gRPC and HTTP, reloaded when its files change.

Certificate and key are two files, renewed one after the other. So a new pair is tested first, and the old one
stays in use until the new files match; problems are logged once. Existing connections keep the certificate
they were made with.
"""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from elastane_master.security.errors import BadSecurityFile
from elastane_master.security.files import Stamp, read_file, stamp_of
from elastane_master.security.tls_session import PROTOCOL, TlsSession

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the certificate chain, its key, and the CA of the callers' certificates, in PEM.

    client_ca: None if callers need no certificate (TLS); a file if they do (mutual TLS).
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class ServerTls:
    """The current certificate. Thread-safe, because handshakes are done in threads."""

    def __init__(self, files: TlsFiles) -> None:
        """Load the files. Raises BadSecurityFile."""
        self._files = files
        self._lock = threading.Lock()
        self._stamp: Stamp = self._current_stamp()
        self._contents = self._read()
        self._context = self._make_context()
        self._front_context = self._make_context(for_front=True)
        self._grpc_has = self._contents
        self.reloads = 0

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials for a gRPC server without a front: every handshake uses the current certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(),
            self._fetch,
            require_client_authentication=self._files.client_ca is not None,
        )

    def session(self) -> TlsSession:
        """Return the beginning of a connection to the front, with the current certificate and client CA."""
        self.refresh()
        return TlsSession(self._front_context)

    def ssl_context(self, *, certificate_optional: bool = False) -> ssl.SSLContext:
        """Context for asyncio and HTTP servers: every handshake uses the current certificate and client CA.

        certificate_optional: callers may omit their certificate, for a port that also has open routes; a
        presented one must still be of the client CA.
        """
        context = self._make_context()
        if certificate_optional and context.verify_mode is ssl.CERT_REQUIRED:
            # Set on the connection's first context; it survives the replacement of the context below.
            context.verify_mode = ssl.CERT_OPTIONAL

        def take_current(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            self.refresh()
            connection.context = self._context

        # Called at each handshake, even if the caller names no server.
        context.sni_callback = take_current
        return context

    def refresh(self) -> bool:
        """Reload changed files; True if the certificate changed."""
        with self._lock:
            stamp = self._current_stamp()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            try:
                contents = self._read()
                if contents == self._contents:
                    return False
                # A new context: loading a CA into the old one would add to the CAs it trusts.
                self._context, self._front_context = self._make_context(), self._make_context(for_front=True)
                self._contents = contents
            except BadSecurityFile as error:
                # Probably a half-finished renewal: its other half changes the stamp again.
                logger.error("the new certificate is ignored", error=str(error), hint=error.hint)
                return False
            self.reloads += 1
        logger.info("certificate taken up", cert=str(self._files.cert))
        return True

    def _fetch(self) -> Any:
        """Called by gRPC before each handshake, in a thread of its own; None means no change.

        Returns a configuration only if it has changed: gRPC frees the previous one even if a handshake in
        another thread is just beginning to use it, which ends the process by SIGSEGV (grpc/grpc#36693).
        """
        self.refresh()
        with self._lock:
            if self._contents == self._grpc_has:
                return None
            self._grpc_has = self._contents
        return self._grpc_configuration()

    def _grpc_configuration(self) -> Any:
        cert, key, client_ca = self._contents
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=client_ca)

    def _current_stamp(self) -> Stamp:
        return stamp_of((self._files.cert, self._files.key, self._files.client_ca))

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        """Read the files after checking that they match. Raises BadSecurityFile."""
        contents = (
            read_file(self._files.cert),
            read_file(self._files.key),
            read_file(self._files.client_ca) if self._files.client_ca is not None else None,
        )
        self._make_context()
        return contents

    def _make_context(self, *, for_front: bool = False) -> ssl.SSLContext:
        """Build a context from the files; only the front's offers HTTP/2.

        Raises BadSecurityFile if they do not match.
        """
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A resumed session would skip the client's certificate: no tickets. OpenSSL's cache of sessions by id
        # (TLS 1.2) cannot be turned off from Python; a context, and so the cache, lasts as long as its files.
        # New keys within a connection (TLS 1.2) would be handshakes that nobody counts.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        if for_front:
            context.set_alpn_protocols([PROTOCOL])
        try:
            context.load_cert_chain(files.cert, files.key, password="")
        except (ssl.SSLError, OSError) as error:
            raise BadSecurityFile(
                files.cert,
                f"it is not a certificate for the key {files.key}: {_reason(error)}",
                "give a PEM chain with the server's own certificate first, and its key without a password",
            ) from error
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # As in gRPC: a file with an intermediate CA alone is enough.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            try:
                context.load_verify_locations(files.client_ca)
            except (ssl.SSLError, OSError) as error:
                raise BadSecurityFile(
                    files.client_ca, f"it contains no CA certificates: {_reason(error)}"
                ) from error
        return context


def _reason(error: OSError) -> str:
    return getattr(error, "reason", "") or error.strerror or str(error)

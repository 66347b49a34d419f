"""The master's certificate: for gRPC and for HTTP, taken up afresh when its files change.

Certificate and key are two files, and whoever renews them writes one after the other. So a new pair is
tried first, and the old one serves on until the new one fits together; what is wrong is logged once.
Connections that stand keep what they were made with.
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

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate chain, its key, and the CA of the callers' certificates lie, in PEM.

    client_ca: None when callers need no certificate (TLS); a file when they do (mutual TLS).
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class ServerTls:
    """The certificate as it is now. May be used from any thread: gRPC asks from its own."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises BadSecurityFile when the files cannot be used."""
        self._files = files
        self._lock = threading.Lock()
        self._stamp: Stamp = self._current_stamp()
        self._contents = self._read()
        self._context = self._make_context()
        self._grpc_has = self._contents
        self.reloads = 0

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`: every handshake has the certificate of the moment."""
        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(),
            self._fetch,
            require_client_authentication=self._files.client_ca is not None,
        )

    def ssl_context(self, *, certificate_optional: bool = False) -> ssl.SSLContext:
        """For asyncio and HTTP servers: every handshake has the certificate and client CA of the moment.

        certificate_optional: callers may show no certificate, for a port that has open routes too; one that
        is shown must be of the client CA all the same.
        """
        context = self._make_context()
        if certificate_optional and context.verify_mode is ssl.CERT_REQUIRED:
            # Of the connection, not of the context that is put in its place below.
            context.verify_mode = ssl.CERT_OPTIONAL
        # Whoever resumes a session shows no certificate again: there is nothing to resume.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET

        def take_current(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            self.refresh()
            connection.context = self._context

        # Called at each handshake, also when the caller names no server.
        context.sni_callback = take_current
        return context

    def refresh(self) -> bool:
        """Takes up changed files; True when it did."""
        with self._lock:
            stamp = self._current_stamp()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            try:
                contents = self._read()
                if contents == self._contents:
                    return False
                # A context of its own: loading a CA into the old one would add to those it trusts.
                self._context = self._make_context()
                self._contents = contents
            except BadSecurityFile as error:
                # Half a renewal, most likely: the other half changes the stamp again.
                logger.error("the new certificate is not taken up", error=str(error), hint=error.hint)
                return False
            self.reloads += 1
        logger.info("certificate taken up", cert=str(self._files.cert))
        return True

    def _fetch(self) -> Any:
        """Called by gRPC before each handshake, in a thread of its own; None: as before.

        Only what has changed is given: gRPC frees what it had before, also under a handshake that is just
        being begun in another thread, and the process dies of it (grpc/grpc#36693).
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
        """The contents, once they have proved to fit together. Raises BadSecurityFile."""
        contents = (
            read_file(self._files.cert),
            read_file(self._files.key),
            read_file(self._files.client_ca) if self._files.client_ca is not None else None,
        )
        self._make_context()
        return contents

    def _make_context(self) -> ssl.SSLContext:
        """Raises BadSecurityFile unless the files fit together."""
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(files.cert, files.key, password="")
        except (ssl.SSLError, OSError) as error:
            raise BadSecurityFile(
                files.cert,
                f"it is no certificate that fits the key {files.key}: {_reason(error)}",
                "give a PEM chain with the server's own certificate first, and its key without a password",
            ) from error
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(files.client_ca)
            except (ssl.SSLError, OSError) as error:
                raise BadSecurityFile(
                    files.client_ca, f"it holds no certificates of a CA: {_reason(error)}"
                ) from error
        return context


def _reason(error: OSError) -> str:
    return getattr(error, "reason", "") or error.strerror or str(error)

"""Security settings of a master: command-line options, then ELASTANE_MASTER_* variables.

The prefix is longer than that of the other settings because `elastane run` starts its master in its own
environment, where ELASTANE_TOKEN_FILE and ELASTANE_TLS_CERT are those of a caller.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from elastane_master.security.errors import InsecureListen
from elastane_master.security.tls import TlsFiles


class SecuritySettings(BaseSettings):
    """Protection of a master and its store.

    token_file: see `tokens`; without one every caller may do everything. tls_cert, tls_key: PEM files of the
    server; tls_client_ca: callers need a certificate of this CA. insecure: serve beyond loopback without
    these. reflection: whether the API describes itself. http_open_metrics: /metrics needs neither token nor
    certificate. store_ca, store_cert, store_key: for rediss://. store_password_file: password of the user in
    --store; read at each connection.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTANE_MASTER_", extra="ignore", frozen=True)

    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    insecure: bool = False
    reflection: bool = True
    http_open_metrics: bool = False
    store_ca: Path | None = None
    store_cert: Path | None = None
    store_key: Path | None = None
    store_password_file: Path | None = None

    @model_validator(mode="after")
    def _whole(self) -> SecuritySettings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        if (self.store_cert is None) != (self.store_key is None):
            raise ValueError("--store-cert and --store-key belong together")
        return self

    def tls_files(self) -> TlsFiles | None:
        """Files of the server's certificate; None: no TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    def require_safe(self, listen: str, host: str) -> None:
        """Raise InsecureListen if other machines could reach `host` without authentication or encryption."""
        if self.insecure or is_loopback(host):
            return
        if self.tls_cert is None:
            raise InsecureListen(listen, "other machines can reach it, and there is no TLS")
        if self.token_file is None and self.tls_client_ca is None:
            raise InsecureListen(
                listen,
                "other machines can reach it, and callers are not authenticated: no tokens, no client CA",
            )


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`: an address, or a name with loopback addresses only."""
    host = host.strip("[]")
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return bool(found) and all(
        ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found
    )

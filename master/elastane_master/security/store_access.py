"""Authentication between the master and its Redis or Valkey.

The password is in a file, not in the URL: a URL is a command-line argument that every user of the machine can
read. The file is read at each connection, so a rotated password needs no restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError

from elastane_master.security.errors import BadSecurityFile
from elastane_master.security.files import read_file, read_secret


class FilePassword(CredentialProvider):
    """User and password for each new connection."""

    def __init__(self, user: str, path: Path) -> None:
        self._user = user
        self._path = path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the credentials; called by the client at each connection."""
        try:
            password = read_secret(self._path)
        except BadSecurityFile as error:
            # A half-finished rotation: as a connection error it is retried, like an unreachable store.
            raise RedisConnectionError(str(error)) from error
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Certificates and password for a store.

    ca: CA of a rediss:// server's certificate; None: the system's. cert, key: client certificate.
    password_file: password of the URL's user, or of the default one.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    password_file: Path | None = None

    def arguments(self, url: str) -> dict[str, Any]:
        """Return the arguments for `Redis.from_url`, including the URL. Raises BadSecurityFile."""
        parts = urlsplit(url)
        arguments: dict[str, Any] = {"url": url}
        if parts.scheme == "rediss":
            arguments |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
            named = {"ssl_ca_certs": self.ca, "ssl_certfile": self.cert, "ssl_keyfile": self.key}
            for name, path in named.items():
                if path is not None:
                    read_file(path)  # fails now; at a connection it would be retried
                    arguments[name] = str(path)
        elif self.ca is not None or self.cert is not None:
            raise BadSecurityFile(
                self.ca or self.cert, "the connection to the store is not encrypted", "use rediss://"
            )
        if self.password_file is not None:
            if parts.password:
                raise BadSecurityFile(
                    self.password_file,
                    "the URL of the store contains a password, too",
                    "remove it from the URL",
                )
            read_secret(self.password_file)
            arguments["url"] = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
            arguments["credential_provider"] = FilePassword(unquote(parts.username or ""), self.password_file)
        return arguments

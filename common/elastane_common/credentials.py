"""Mutual authentication of this process and a master: every connection is opened here.

Certificates and tokens come from files or from the environment, never from arguments that others can read:

    ELASTANE_TLS_CA              PEM of the CA of the master's certificate, or "system"; without it: no TLS
    ELASTANE_TLS_CERT, _KEY      PEM of this client, if the master requires one (mutual TLS)
    ELASTANE_TLS_SERVER_NAME     the name in the master's certificate, if it differs from the address
    ELASTANE_TOKEN_FILE          file with the token; or ELASTANE_TOKEN: the token itself
    ELASTANE_INSECURE            1: allow sending the token over a network without TLS

Certificates are read when a connection is opened, the token's file at each call: no restart when they change.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from elastane_common.errors import RefusedError, bad_environment

SYSTEM = "system"
TLS_HINT = (
    "does the master serve with TLS? ELASTANE_TLS_CA names the CA of its certificate, "
    "ELASTANE_TLS_CERT and ELASTANE_TLS_KEY this caller's own"
)

_WORKER_TOKENS = ("ELASTANE_WORKER_TOKEN", "ELASTANE_WORKER_TOKEN_FILE")


class Credentials(BaseSettings):
    """Credentials set for this process; see the module. An empty value counts as unset."""

    model_config = SettingsConfigDict(
        env_prefix="ELASTANE_", extra="ignore", frozen=True, env_ignore_empty=True
    )

    tls_ca: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_server_name: str = ""
    token: SecretStr | None = None
    token_file: Path | None = None
    insecure: bool = False

    @property
    def has_token(self) -> bool:
        return self.token is not None or self.token_file is not None

    def read_token(self) -> str:
        """Return the current token. Raises RefusedError."""
        if self.token_file is None:
            return self.token.get_secret_value() if self.token is not None else ""
        token = _read(self.token_file, "ELASTANE_TOKEN_FILE").decode("ascii", "replace").strip()
        if not token or not token.isprintable() or " " in token or "\ufffd" in token:
            raise RefusedError(
                f"{self.token_file} holds no token",
                hint="it must hold one line of ASCII characters; ELASTANE_TOKEN_FILE names it",
            )
        return token


def read_credentials() -> Credentials:
    """Read the credentials of this process. Raises RefusedError, which contains no secret value."""
    try:
        credentials = Credentials()
    except ValidationError as error:
        raise bad_environment(error.errors()) from None
    if credentials.token is not None and credentials.token_file is not None:
        raise RefusedError("ELASTANE_TOKEN and ELASTANE_TOKEN_FILE are both set", hint="unset one of them")
    if (credentials.tls_cert is None) != (credentials.tls_key is None):
        raise RefusedError("ELASTANE_TLS_CERT and ELASTANE_TLS_KEY belong together", hint="set both or none")
    if credentials.tls_cert is not None and not credentials.tls_ca:
        raise RefusedError(
            "ELASTANE_TLS_CERT is set, but not ELASTANE_TLS_CA",
            hint="name the CA of the master's certificate, or set ELASTANE_TLS_CA=system",
        )
    return credentials


def master_has_tls() -> bool:
    """True if this process's connections to a master are encrypted. Raises RefusedError."""
    return bool(read_credentials().tls_ca)


def open_channel(address: str, options: Sequence[tuple[str, Any]] = (), *, name: str = "") -> grpc.Channel:
    """Open a channel to the master at "host:port", with the current credentials. Raises RefusedError.

    name: the host that the user gave, from which the address was resolved; the certificate is issued for that
    name.
    """
    credentials = read_credentials()
    if on_loopback(address):
        # gRPC would use http_proxy even for this machine itself.
        options = [*options, ("grpc.enable_http_proxy", 0)]
    if credentials.tls_ca:
        if certified := credentials.tls_server_name or (name if not address.startswith(name) else ""):
            options = [*options, ("grpc.ssl_target_name_override", certified)]
        channel = grpc.secure_channel(address, _channel_credentials(credentials), options=options)
    else:
        if credentials.has_token and not credentials.insecure and not on_loopback(address):
            raise RefusedError(
                f"the token would go to {address} unencrypted",
                hint="set ELASTANE_TLS_CA; or ELASTANE_INSECURE=1 if nobody can eavesdrop on the connection",
            )
        channel = grpc.insecure_channel(address, options=options)
    if credentials.has_token:
        credentials.read_token()  # report a missing file now, and not as a failed call
        return grpc.intercept_channel(channel, _Bearer(credentials.read_token))
    return channel


def credentials_stamp() -> tuple[object, ...]:
    """Return a value that changes when a new channel would have other certificates.

    The token is not included, because it is read for each call.
    """
    names = ("ELASTANE_TLS_CA", "ELASTANE_TLS_CERT", "ELASTANE_TLS_KEY")
    return tuple(_changed_at(path) for name in names if (path := os.environ.get(name)))


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` for a worker: the workers' own token, if set, replaces the agent's."""
    # The script has no need for the secrets of the master and its store.
    given = {
        name: value
        for name, value in environment.items()
        if name != "ELASTANE_STORE" and not name.startswith("ELASTANE_MASTER_")
    }
    own = {name: value for name in _WORKER_TOKENS if (value := given.pop(name, ""))}
    if own:
        given.pop("ELASTANE_TOKEN", None)
        given.pop("ELASTANE_TOKEN_FILE", None)
        given |= {name.replace("WORKER_", ""): value for name, value in own.items()}
    return given


def speak_plainly(environment: MutableMapping[str, str]) -> None:
    """Remove the certificates from `environment`, for a private master that serves without TLS.

    They are meant for another master used from the same shell; a TLS client could not talk to this one.
    """
    for name in ("ELASTANE_TLS_CA", "ELASTANE_TLS_CERT", "ELASTANE_TLS_KEY", "ELASTANE_TLS_SERVER_NAME"):
        environment.pop(name, None)


def on_loopback(address: str) -> bool:
    """True if data sent to "host:port" stays on this machine; the only name accepted is localhost."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    ca = None
    if credentials.tls_ca != SYSTEM:
        ca = _read(Path(credentials.tls_ca), "ELASTANE_TLS_CA")
    cert = key = None
    if credentials.tls_cert is not None and credentials.tls_key is not None:
        cert = _read(credentials.tls_cert, "ELASTANE_TLS_CERT")
        key = _read(credentials.tls_key, "ELASTANE_TLS_KEY")
    return grpc.ssl_channel_credentials(ca, key, cert)


def _read(path: Path, variable: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RefusedError(
            f"{path} cannot be read: {error.strerror}", hint=f"{variable} names it", path=str(path)
        ) from error


def _changed_at(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


class _Details(NamedTuple):
    """Fields of a call that an interceptor may change, as gRPC requires them."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Adds the token to each call. Works without TLS too, unlike gRPC's own call credentials."""

    def __init__(self, read_token: Callable[[], str]) -> None:
        self._read_token = read_token

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._with_token(details), requests)

    def _with_token(self, details: Any) -> _Details:
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._read_token()}")]
        return _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )

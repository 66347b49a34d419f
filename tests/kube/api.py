"""A minimal client of the Kubernetes API, for the scenarios and the kubelet."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

Object = dict[str, Any]

JOBS = "apis/elastane.io/v1alpha1"
CORE = "api/v1"


class ApiError(Exception):
    """The server refused a request. status: the HTTP status; message: the server's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


@dataclass(frozen=True)
class Connection:
    """Address of an API, with authentication and TLS."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | bool = True

    @classmethod
    def of_kubeconfig(cls, path: Path) -> Connection:
        """Read cluster and user of the current context from a kubeconfig, with any kind of authentication."""
        from kubernetes.client import Configuration
        from kubernetes.config import load_kube_config

        settings = Configuration()
        load_kube_config(str(path), client_configuration=settings)
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if not settings.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        headers = {each["key"]: each["value"] for each in settings.auth_settings().values()}
        return cls(settings.host, headers, context)


class Api:
    """API client: calls by path, with objects as plain dicts."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._session = aiohttp.ClientSession(
            headers=dict(connection.headers), connector=aiohttp.TCPConnector(ssl=connection.tls, limit=0)
        )

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        **params: str,
    ) -> Object:
        """Send one request; return the answer. Raises ApiError."""
        async with self._session.request(
            method,
            f"{self.connection.url}/{path}",
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            params=params,
            timeout=aiohttp.ClientTimeout(total=30),
        ) as response:
            text = await response.text()
            if response.status >= 400:
                try:
                    message = json.loads(text)["message"]
                except (ValueError, KeyError):
                    message = text
                raise ApiError(response.status, message)
            return dict(json.loads(text))

    async def get(self, path: str) -> Object:
        return await self.call("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        return await self.call("POST", path, body)

    async def replace(self, path: str, body: Object) -> Object:
        return await self.call("PUT", path, body)

    async def patch(self, path: str, body: Object) -> Object:
        """Send a JSON merge patch."""
        return await self.call("PATCH", path, body, content_type="application/merge-patch+json")

    async def delete(self, path: str, options: Object | None = None) -> Object:
        return await self.call(
            "DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1"} | (options or {})
        )

    async def watch(self, path: str, since: str) -> AsyncIterator[Object]:
        """Yield changes after the resource version `since`, until the connection ends."""
        async with self._session.get(
            f"{self.connection.url}/{path}",
            params={"watch": "true", "resourceVersion": since, "timeoutSeconds": "20"},
            # A server that is killed while a watch is being opened may never answer it.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=30),
        ) as response:
            if response.status >= 400:  # a server that has just started may not have loaded CRDs yet
                raise ApiError(response.status, await response.text())
            async for line in response.content:
                yield json.loads(line)


def kubeconfig(folder: Path, url: str) -> Path:
    """Write a kubeconfig for this API; it has no user, because the gateway authenticates."""
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "held-by-the-gateway"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
    }
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path

"""Client for the API server; requests and answers are plain dictionaries.

The official client's asyncio part does authentication, TLS and renewal of tokens. Its models are not used on
purpose: they know the fields of one release, and a user's pod template may have newer ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from elastane_operator import GROUP, PLURAL, POOL_PLURAL, VERSION

MERGE_PATCH = "application/merge-patch+json"
CONNECT_SECONDS_MAX = 5.0
#: An object has at most 3 MiB when it is sent to the API server.
EVENT_BYTES_MAX = 16 * 2**20

#: API path and plural name of each kind.
_COLLECTIONS = {
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v1", "horizontalpodautoscalers"),
    "ElasticJob": (f"/apis/{GROUP}/{VERSION}", PLURAL),
    "ElasticPool": (f"/apis/{GROUP}/{VERSION}", POOL_PLURAL),
}


class KubeError(Exception):
    """The API server refused a request, or could not be reached (status 0).

    reason: one word, as in metav1.Status; the text says more. retry_after_seconds: the wait that the server
    asks for (Retry-After), 0 if it asks for none.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409


class KubeClient:
    """One connection pool to the API server. Create it with `open`, end it with `close`."""

    def __init__(self, client: ApiClient, kubeconfig: str, timeout_seconds: float) -> None:
        self._client = client
        self._kubeconfig = kubeconfig
        self._timeout_seconds = timeout_seconds
        self._watches: set[aiohttp.ClientResponse] = set()

    @classmethod
    async def open(cls, kubeconfig: str = "", *, timeout_seconds: float = 30.0) -> KubeClient:
        """Connect. kubeconfig: file; empty: see `OperatorSettings.kubeconfig`.

        Raises config.ConfigException.
        """
        return cls(ApiClient(await _configuration(kubeconfig)), kubeconfig, timeout_seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return one object. Raises KubeError."""
        return await self._request("GET", _path(kind, namespace, name))

    async def list(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind with these labels. Raises KubeError."""
        found = await self.list_answer(kind, namespace, labels)
        return list(found.get("items") or ())

    async def list_answer(self, kind: str, namespace: str, labels: str = "") -> dict[str, Any]:
        """Return a list as the API server answers it, with its resourceVersion in `metadata`.

        namespace: empty for all. Raises KubeError.
        """
        return await self._request("GET", _path(kind, namespace) + _query(labelSelector=labels))

    @contextlib.asynccontextmanager
    async def watch(
        self,
        kind: str,
        namespace: str,
        labels: str = "",
        *,
        resource_version: str,
        server_seconds: float,
        silence_seconds: float,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch after a resourceVersion; yield its lines, each a JSON event, until the server ends it.

        namespace: empty for all. server_seconds: time after which the server is asked to end it.
        silence_seconds: longest time without a byte. Raises KubeError, also while lines are read.
        """
        path = _path(kind, namespace) + _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(max(1, round(server_seconds))),
            labelSelector=labels,
        )
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS_MAX, sock_read=silence_seconds
        )
        response = await self._open("GET", path, timeout=timeout)
        self._watches.add(response)
        try:
            if response.status != 200:
                raise await _refusal(response, f"GET {path}")
            yield _lines(response, silence_seconds)
        finally:
            self._watches.discard(response)
            response.close()  # closes the connection, since the rest of the watch is unread

    async def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object. Raises KubeError; `conflict` if the name is taken."""
        return await self._request("POST", _path(kind, namespace), body)

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> dict[str, Any]:
        """Apply a merge patch.

        With a resourceVersion in it, KubeError `conflict` if the object has changed.
        """
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return await self._request("PATCH", path, patch, content_type=MERGE_PATCH)

    async def replace(self, kind: str, namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object. Raises KubeError; `conflict` if it has changed since it was read."""
        return await self._request("PUT", _path(kind, namespace, name), body)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str = "") -> None:
        """Delete an object if it still has this uid; succeeds if it is already gone. Raises KubeError."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", _path(kind, namespace, name), body)
        except KubeError as error:
            if not (error.not_found or error.conflict):
                raise

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content_type: str = ""
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
        response = await self._open(method, path, body, content_type, timeout=timeout)
        if not 200 <= response.status < 300:
            raise await _refusal(response, f"{method} {path}")
        return await _read(response)

    async def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "",
        *,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send a request; return the answer with only its headers read. Raises KubeError."""
        client = self._client
        response = await self._send(client, method, path, body, content_type, timeout)
        if response.status == 401:
            # The token file may have been renewed meanwhile: read it again and retry once.
            response.close()
            await self._renew(client)
            response = await self._send(self._client, method, path, body, content_type, timeout)
        return response

    async def _renew(self, refused: ApiClient) -> None:
        """Read the credentials again, unless another request has done so since `refused` was used."""
        try:
            fresh = ApiClient(await _configuration(self._kubeconfig))
        except Exception as error:
            raise KubeError(0, "NoCredentials", f"the credentials cannot be read: {error}") from error
        if self._client is refused:
            self._client = fresh
            # Closing the session does not wake readers of its answers, and stops aiohttp's time limits.
            for response in self._watches:
                response.close()
            await refused.close()
        else:
            await fresh.close()

    async def _send(
        self,
        client: ApiClient,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type or "application/json"
        try:
            with _reaching():
                _, url, headers, _, _ = await client.param_serialize(
                    method=method, resource_path=path, header_params=headers, auth_settings=["BearerToken"]
                )
                answer = await client.call_api(
                    method, url, headers, dict(body) if body is not None else None, _request_timeout=timeout
                )
        except RuntimeError as error:
            if client is self._client:
                raise
            # Another request was refused meanwhile, renewed the credentials and closed this client's session.
            raise KubeError(0, "Renewed", "the credentials were just renewed") from error
        return answer.response


async def _read(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the answer's JSON object; other text becomes its `message`. Raises KubeError."""
    with _reaching():
        text = await response.read()
    try:
        answer = json.loads(text) if text else {}
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"message": text.decode(errors="replace")[:500]}


async def _refusal(response: aiohttp.ClientResponse, request: str) -> KubeError:
    """Read why the API server refused a request. Raises KubeError if the answer cannot be read."""
    answer = await _read(response)
    message = answer.get("message") or f"{request}: status {response.status}"
    reason = answer.get("reason") or f"Status{response.status}"
    return KubeError(response.status, reason, message, _retry_after_seconds(response))


async def _lines(response: aiohttp.ClientResponse, silence_seconds: float) -> AsyncIterator[bytes]:
    while True:
        with _reaching():
            try:
                async with asyncio.timeout(silence_seconds):
                    line = await response.content.readline(max_line_length=EVENT_BYTES_MAX)
            except LineTooLong as error:
                raise KubeError(413, "TooLong", f"an event has more than {EVENT_BYTES_MAX} bytes") from error
        if not line:
            return
        yield line


def _retry_after_seconds(response: aiohttp.ClientResponse) -> float:
    """Parse Retry-After: whole seconds from the API server; a date from a proxy is ignored."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else 0.0


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    """Convert errors of the connection and its credentials to KubeError."""
    try:
        yield
    except config.ConfigException as error:
        raise KubeError(0, "NoCredentials", f"the credentials cannot be read: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise KubeError(
            0, "Unreachable", f"the API server does not answer: {error or type(error).__name__}"
        ) from error


async def _configuration(kubeconfig: str) -> Configuration:
    configuration = Configuration()
    # No limit: each watch holds a connection, so with many namespaces requests would have to wait.
    configuration.connection_pool_maxsize = 0
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    if not chosen and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=configuration)
    else:
        chosen = chosen or str(Path("~/.kube/config").expanduser())
        await config.load_kube_config(config_file=chosen, client_configuration=configuration)
    return configuration


def _path(kind: str, namespace: str, name: str = "") -> str:
    base, plural = _COLLECTIONS[kind]
    where = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{base}{where}/{plural}" + (f"/{quote(name)}" if name else "")


def _query(**options: str) -> str:
    """Return the non-empty options as a query string."""
    given = {name: value for name, value in options.items() if value}
    return "?" + urlencode(given) if given else ""

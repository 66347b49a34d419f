"""Client for the API server; requests and answers are plain dictionaries.

The official client's asyncio part does authentication, TLS and renewal of tokens. Its models are not used on
purpose: they know the fields of one release, and a user's pod template may have newer ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import kopf
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from elastane_operator import GROUP, PLURAL, VERSION

MERGE_PATCH = "application/merge-patch+json"

#: API path and plural name of each kind.
_COLLECTIONS = {
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "ElasticJob": (f"/apis/{GROUP}/{VERSION}", PLURAL),
}


class KubeError(Exception):
    """The API server refused a request, or could not be reached (status 0).

    reason: one word, as in metav1.Status; the text says more.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

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

    @classmethod
    async def open(cls, kubeconfig: str = "", *, timeout_seconds: float = 30.0) -> KubeClient:
        """Connect. kubeconfig: file; empty: see `OperatorSettings.kubeconfig`.

        Raises config.ConfigException.
        """
        return cls(ApiClient(await _configuration(kubeconfig)), kubeconfig, timeout_seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def connection(self) -> kopf.ConnectionInfo:
        """Credentials for kopf, which calls this again after a refusal, because tokens are renewed."""
        configuration = await _configuration(self._kubeconfig)
        header = await configuration.get_api_key_with_prefix("BearerToken") or ""
        scheme, _, token = header.rpartition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            ca_data=configuration.ca_cert_data,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme or None,
            token=token or None,
        )

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return one object. Raises KubeError."""
        return await self._request("GET", _path(kind, namespace, name))

    async def list(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind with these labels. Raises KubeError."""
        query = f"?labelSelector={quote(labels)}" if labels else ""
        found = await self._request("GET", _path(kind, namespace) + query)
        return list(found.get("items") or ())

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
        status, text = await self._send(method, path, body, content_type)
        if status == 401:
            # The token file may have been renewed meanwhile: read it again and retry once.
            old, self._client = self._client, ApiClient(await _configuration(self._kubeconfig))
            await old.close()
            status, text = await self._send(method, path, body, content_type)
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {"message": text.decode(errors="replace")[:500]}
        if not 200 <= status < 300:
            message = answer.get("message") or f"{method} {path}: status {status}"
            raise KubeError(status, answer.get("reason") or f"Status{status}", message)
        return answer if isinstance(answer, dict) else {}

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, content_type: str
    ) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type or "application/json"
        _, url, headers, _, _ = await self._client.param_serialize(
            method=method, resource_path=path, header_params=headers, auth_settings=["BearerToken"]
        )
        try:
            response = await self._client.call_api(
                method, url, headers, dict(body) if body is not None else None,
                _request_timeout=self._timeout_seconds,
            )  # fmt: skip
            return response.status, await response.read() or b""
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(
                0, "Unreachable", f"the API server does not answer: {error or type(error).__name__}"
            ) from error


async def _configuration(kubeconfig: str) -> Configuration:
    configuration = Configuration()
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    if not chosen and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=configuration)
    else:
        chosen = chosen or str(Path("~/.kube/config").expanduser())
        await config.load_kube_config(config_file=chosen, client_configuration=configuration)
    return configuration


def _path(kind: str, namespace: str, name: str = "") -> str:
    base, plural = _COLLECTIONS[kind]
    return f"{base}/namespaces/{quote(namespace)}/{plural}" + (f"/{quote(name)}" if name else "")

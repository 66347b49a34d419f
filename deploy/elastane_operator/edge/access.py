"""Access to the master of a job: from the job's secrets, or else with the operator's own credentials."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from elastane_common.credentials import SYSTEM, read_credentials
from elastane_common.errors import RefusedError
from elastane_operator.decisions.spec import Identity, JobSpec
from elastane_operator.edge.kube import KubeClient, KubeError
from elastane_operator.edge.masters import Access, MasterAwayError
from elastane_operator.manifests.master import MasterDefaults, master_address

TOKEN_KEY = "operator"


async def master_access(
    kube: KubeClient,
    identity: Identity,
    spec: JobSpec,
    defaults: MasterDefaults,
    trusted: frozenset[str] = frozenset(),
) -> Access:
    """Return address and credentials of the job's master. Raises MasterAwayError naming a bad secret.

    trusted: addresses to which the operator's own credentials may be sent. The author of an ElasticJob
    chooses address and CA, so the credentials would leak to any other master. Nor are they used for a job of
    another namespace.
    """
    own = _own()
    if not _speaks_for_itself(identity, spec, trusted):
        own = msgspec.structs.replace(own, token="", cert=b"", key=b"")
    token, ca, cert, key, server_name = own.token, own.ca, own.cert, own.key, own.server_name
    master = spec.master
    if master.per_job is not None and master.tls_secret is None:
        ca = cert = key = b""  # the operator's certificates are meant for other masters
    if master.tls_secret is not None:
        files = await _secret(kube, identity.namespace, master.tls_secret.name, "master.tlsSecret")
        ca, cert, key, server_name = _value(files, "ca.crt", master.tls_secret.name), b"", b"", ""
        if master.tls_secret.client_certificate and master.per_job is None:
            cert = _value(files, "tls.crt", master.tls_secret.name)
            key = _value(files, "tls.key", master.tls_secret.name)
    if master.token_secret is not None:
        files = await _secret(kube, identity.namespace, master.token_secret.name, "master.tokenSecret")
        token = _value(files, TOKEN_KEY, master.token_secret.name).decode("ascii", "replace").strip()
    elif master.per_job is not None:
        token = ""
    return Access(
        address=master_address(identity, spec, defaults),
        token=token,
        ca=ca,
        cert=cert,
        key=key,
        server_name=server_name,
        plain_token=own.plain_token or master.per_job is not None,
    )


def _speaks_for_itself(identity: Identity, spec: JobSpec, trusted: frozenset[str]) -> bool:
    """True if the operator's own credentials apply. Raises MasterAwayError for another namespace's job."""
    addresses = {address.strip() for address in spec.master.address.split(",")}
    if spec.master.token_secret is not None or spec.master.per_job is not None or not addresses <= trusted:
        return False
    if spec.job_name and not spec.job_name.startswith(f"{identity.namespace}."):
        raise MasterAwayError(
            f"jobName must begin with '{identity.namespace}.' where the operator's own credentials are used: "
            "name a master.tokenSecret for any other job"
        )
    return True


def _own() -> Access:
    """The operator's own credentials, from the ELASTANE_TLS_... and ELASTANE_TOKEN... variables."""
    try:
        own = read_credentials()
        token = own.read_token() if own.has_token else ""
        ca = own.tls_ca.encode() if own.tls_ca == SYSTEM else _file(own.tls_ca)
        cert, key = _file(own.tls_cert), _file(own.tls_key)
    except (RefusedError, OSError) as error:
        raise MasterAwayError(f"the operator's own credentials: {error}") from error
    return Access("", token, ca, cert, key, own.tls_server_name, plain_token=own.insecure)


def _file(path: Path | str | None) -> bytes:
    return Path(path).read_bytes() if path else b""


async def _secret(kube: KubeClient, namespace: str, name: str, field: str) -> Mapping[str, Any]:
    try:
        secret = await kube.get("Secret", namespace, name)
    except KubeError as error:
        raise MasterAwayError(f"secret {name} ({field}) cannot be read: {error}") from error
    data: Mapping[str, Any] = secret.get("data") or {}
    return data


def _value(files: Mapping[str, Any], key: str, secret: str) -> bytes:
    if key not in files:
        raise MasterAwayError(f"secret {secret} has no key {key!r}")
    try:
        return base64.b64decode(files[key], validate=True)
    except (binascii.Error, ValueError) as error:
        raise MasterAwayError(f"secret {secret}, key {key!r}: {error}") from error

"""Settings of the operator: ELASTANE_OPERATOR_... variables, overridden by the command's options."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Namespace of the pod this process runs in; empty outside a cluster."""
    return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.is_file() else ""


class OperatorSettings(BaseSettings):
    """Settings of an operator process.

    namespaces: namespaces to serve, comma-separated; empty: all. kubeconfig: file; empty: KUBECONFIG, the
    cluster it runs in, or ~/.kube/config. look_seconds: interval at which the master of an unfinished job is
    polled, in addition to its watch. looks_max: jobs reconciled at the same time. master_timeout_seconds:
    limit for one call to a master. master_image: default image of a per-job master. cluster_domain: the
    cluster's DNS domain. leader_election: whether several operators elect one by the Lease lease_name in
    lease_namespace (empty: the operator's own), which expires if its holder has not renewed it for
    lease_seconds. identity: this process's name in that Lease. health: HOST:PORT for probes (GET /healthz);
    empty: none. own_masters: comma-separated addresses of masters to which the operator's own credentials may
    be sent if a job names no tokenSecret; they are sent to no others.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTANE_OPERATOR_", extra="ignore", env_ignore_empty=True)

    namespaces: str = ""
    kubeconfig: str = ""
    look_seconds: float = Field(default=5.0, gt=0)
    looks_max: int = Field(default=16, ge=1)
    api_timeout_seconds: float = Field(default=30.0, gt=0)
    master_timeout_seconds: float = Field(default=5.0, gt=0)
    master_image: str = "elastane-master:latest"
    cluster_domain: str = "cluster.local"
    leader_election: bool = True
    lease_name: str = "elastane-operator"
    lease_namespace: str = ""
    lease_seconds: float = Field(default=15.0, ge=1)
    identity: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    health: str = ""
    own_masters: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def served_namespaces(self) -> tuple[str, ...]:
        """Namespaces to serve; empty: all."""
        return tuple(name.strip() for name in self.namespaces.split(",") if name.strip())

    def trusted_masters(self) -> frozenset[str]:
        """Masters to which the operator's own credentials may be sent."""
        return frozenset(address.strip() for address in self.own_masters.split(",") if address.strip())

    def election_namespace(self) -> str:
        """Namespace of the Lease: the setting, else this pod's, else the first served one, else "default"."""
        if self.lease_namespace:
            return self.lease_namespace
        if own := own_namespace():
            return own
        return (*self.served_namespaces(), "default")[0]

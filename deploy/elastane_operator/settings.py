"""Settings of the operator: ELASTANE_OPERATOR_... variables, which the options of the command go before."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Of the pod that this runs in; empty: in none."""
    return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.is_file() else ""


class OperatorSettings(BaseSettings):
    """What an operator is told.

    namespaces: those it serves, with commas; empty: all. kubeconfig: file; empty: KUBECONFIG, the cluster it
    runs in, or ~/.kube/config. look_seconds: how often the master of an unfinished job is asked, beside what
    its watch tells. looks_max: jobs looked at at a time. master_timeout_seconds: for one call of a master.
    master_image: of a master of a job's own. cluster_domain: of the cluster's DNS. leader_election: whether
    several operators agree on one, by a lease of name lease_name in lease_namespace (empty: the operator's
    own), which is free when its holder has not renewed it for lease_seconds. identity: in that lease.
    health: HOST:PORT for probes (GET /healthz); empty: none. own_masters: addresses of masters, with commas,
    that are shown the operator's own credentials where a job names no tokenSecret; no others are.
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
        """Empty: all of them."""
        return tuple(name.strip() for name in self.namespaces.split(",") if name.strip())

    def trusted_masters(self) -> frozenset[str]:
        """Those that are shown the operator's own credentials."""
        return frozenset(address.strip() for address in self.own_masters.split(",") if address.strip())

    def election_namespace(self) -> str:
        """Where the lease is: as told, else where this pod is, else where it serves, else "default"."""
        if self.lease_namespace:
            return self.lease_namespace
        if own := own_namespace():
            return own
        return (*self.served_namespaces(), "default")[0]

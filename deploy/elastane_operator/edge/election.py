"""Leader election among operators by a Lease, as in other Kubernetes controllers.

The holder renews the Lease; a candidate that sees it unchanged for lease_seconds by its own clock takes it. A
holder that cannot renew stops working before that. If two work for a moment all the same (one was frozen),
nothing is done twice: see `decisions.reconcile`. The client library's own election stops at any network error
and never releases the Lease; hence this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from elastane_operator.edge.kube import KubeClient, KubeError

_log = structlog.get_logger(__name__)


class Election:
    """One candidate. monotonic: returns the seconds of a monotonic clock."""

    def __init__(
        self,
        kube: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_seconds: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._lease_seconds = lease_seconds
        self._monotonic = monotonic
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self.leads = False

    async def acquire(self) -> None:
        """Wait until this candidate leads."""
        said = ""
        while not await self._try():
            holder = str(self._seen[0] if self._seen else "")
            if holder and holder != said:
                said = holder
                _log.info("standing_by", leader=holder, lease=f"{self._namespace}/{self._name}")
            await asyncio.sleep(self._lease_seconds / 5)
        self.leads = True
        _log.info("leads", identity=self._identity, lease=f"{self._namespace}/{self._name}")

    async def hold(self) -> None:
        """Renew the Lease until that has failed for two thirds of its duration; then `leads` is False."""
        while True:
            await asyncio.sleep(self._lease_seconds / 5)
            if await self._try():
                continue
            # Stop well before a candidate may take the Lease, so that two operators rarely work at once.
            if self._monotonic() - self._renewed_at > self._lease_seconds * 2 / 3 or self._is_other():
                self.leads = False
                _log.error("leads_no_more", identity=self._identity, lease=f"{self._namespace}/{self._name}")
                return

    async def release(self) -> None:
        """Release the Lease, so that the next candidate need not wait for its expiry."""
        if not self.leads:
            return
        self.leads = False
        with contextlib.suppress(KubeError):
            there = await self._kube.get("Lease", self._namespace, self._name)
            if (there.get("spec") or {}).get("holderIdentity") == self._identity:
                there["spec"] = {**there["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._kube.replace("Lease", self._namespace, self._name, there)

    def _is_other(self) -> bool:
        return bool(self._seen) and self._seen[0] not in ("", self._identity)

    async def _try(self) -> bool:
        try:
            return await asyncio.wait_for(self._try_once(), self._lease_seconds / 2)
        except KubeError as error:
            if not error.conflict:
                _log.warning("lease_not_written", error=str(error))
        except TimeoutError:
            _log.warning("lease_not_written", error="the API server does not answer")
        return False

    async def _try_once(self) -> bool:
        # Taken before the request, because the Lease may be renewed at any time after it.
        started = self._monotonic()
        try:
            there = await self._kube.get("Lease", self._namespace, self._name)
        except KubeError as error:
            if not error.not_found:
                raise
            await self._kube.create("Lease", self._namespace, self._body({}, "take"))
            self._renewed_at = started
            return True
        spec = there.get("spec") or {}
        seen = (spec.get("holderIdentity") or "", spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            # Only the candidate's own clock counts: renewTime is written by another machine, whose clock may
            # differ.
            self._seen, self._seen_at = seen, started
        if seen[0] == self._identity:
            how: Literal["take", "renew"] = "renew"
        elif not seen[0] or started - self._seen_at >= float(spec.get("leaseDurationSeconds") or 1):
            how = "take"
        else:
            return False
        await self._kube.replace("Lease", self._namespace, self._name, self._body(there, how))
        self._renewed_at = started
        return True

    def _body(self, there: Mapping[str, Any], how: Literal["take", "renew"]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(there.get("spec") or {})
        if how == "take":
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(there)
        spec |= {"holderIdentity": self._identity, "renewTime": now}
        spec["leaseDurationSeconds"] = max(1, round(self._lease_seconds))
        metadata = there.get("metadata") or {"name": self._name, "namespace": self._namespace}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": dict(metadata),
            "spec": spec,
        }

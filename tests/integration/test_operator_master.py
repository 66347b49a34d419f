"""The operator's client at a real master with TLS and tokens: what is asked takes effect, or is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trustme

from elastane_master.security.settings import SecuritySettings
from elastane_operator.edge.masters import Access, MasterRefusedError, Masters
from integration.master_support import serving_master
from unit.deploy.elastic_jobs import spec_of

TOKEN = "the operator's own token"


async def test_a_job_is_created_scaled_suspended_and_cancelled(tmp_path: Path) -> None:
    ca = trustme.CA()
    certificate = ca.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (tmp_path / "tokens.toml").write_text(
        f'[[token]]\nname = "operator"\nsha256 = "{digest}"\nroles = ["operator"]\njobs = ["ml.*"]\n'
    )
    security = SecuritySettings(
        tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem", token_file=tmp_path / "tokens.toml"
    )
    masters = Masters(timeout_seconds=10)
    spec = spec_of(
        checkpoint={"url": "file:///tmp/nowhere"},
        spot={"price": "0.35", "currency": "EUR"},
        maxWaitSeconds=600,
        seed=7,
    )
    try:
        async with serving_master(tmp_path / "state", security=security) as (master, _):
            address = master.address
            access = Access(address, token=TOKEN, ca=ca.cert_pem.bytes())
            assert (await masters.view(access, "ml.digits")).job is None
            await masters.ask(access, "Create", "ml.digits", spec)
            job = (await masters.view(access, "ml.digits")).job
            assert job is not None and (job.phase, job.ests, job.seed) == ("waiting", 4, 7)
            assert (job.workers_min, job.workers_max, job.cost.spot_price_micros) == (1, 3, 350_000)
            wider = spec_of(workers={"min": 2, "max": 4}, spot={"price": "0.5"})
            await masters.ask(access, "Scale", "ml.digits", wider)
            await masters.ask(access, "SetPrices", "ml.digits", wider)
            await masters.ask(access, "Suspend", "ml.digits", wider)
            job = (await masters.view(access, "ml.digits")).job
            assert job is not None and (job.phase, job.workers_min, job.workers_max) == ("suspended", 2, 4)
            assert (job.cost.spot_price_micros, job.cost.currency) == (500_000, "EUR")
            await masters.ask(access, "Resume", "ml.digits", wider)
            await masters.ask(access, "Cancel", "ml.digits", wider)
            job = (await masters.view(access, "ml.digits")).job
            assert job is not None and job.over
            with pytest.raises(MasterRefusedError, match="over"):
                await masters.ask(access, "Scale", "ml.digits", spec)
            with pytest.raises(MasterRefusedError, match="not for job"):
                await masters.ask(access, "Create", "other", spec)
            view = await masters.view(Access(address, token="wrong", ca=ca.cert_pem.bytes()), "ml.digits")
            assert not view.reachable and "refused" in view.error
            view = await masters.view(Access(address, token=TOKEN), "ml.digits")
            assert not view.reachable, "without TLS"
    finally:
        await masters.close()

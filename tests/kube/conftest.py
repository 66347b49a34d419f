"""Fixtures of the scenarios: the APIs to run against, and a shared master and operator."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from integration.master_support import ROOT, MasterProcess, master_process
from kube.access import MARK, service_account, shipped_rights
from kube.api import CORE, Api, ApiError, Connection
from kube.emulator import emulated_cluster
from kube.operator_process import Cluster, OperatorProcess, operator_process, operator_server
from kube.scene import Scene, new_scene

CRD_FILES = sorted((ROOT / "deploy" / "kubernetes" / "crd").glob("elastic*.yaml"))
OPERATOR = ROOT / "deploy" / "kubernetes" / "operator"
CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"

KUBECONFIG = os.environ.get("ELASTANE_TEST_KUBECONFIG", "")
APISERVER = pytest.param(
    "apiserver",
    marks=pytest.mark.skipif(
        not KUBECONFIG, reason="ELASTANE_TEST_KUBECONFIG names no cluster: see docs/testing-kubernetes.md"
    ),
)


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["kmock", APISERVER])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """An API with the custom resource, and a node that accepts every pod."""
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "kmock":
            connection = Connection(await stack.enter_async_context(emulated_cluster(*CRD_FILES)))
        else:
            connection = Connection.of_kubeconfig(Path(KUBECONFIG))
        api = await stack.enter_async_context(Api(connection))
        version = await api.get("version")
        account = ""
        if request.param == "apiserver":
            for path in CRD_FILES:
                await stack.enter_async_context(custom_resource(api, path))
            account = await stack.enter_async_context(service_account(api, OPERATOR))
        name = f"elastane-test-{uuid.uuid4().hex[:8]}"
        await api.create(f"{CORE}/nodes", {"metadata": {"name": name}})
        stack.push_async_callback(api.delete, f"{CORE}/nodes/{name}")
        yield Cluster(
            request.param,
            api,
            name,
            stack.enter_context(operator_server()),
            is_real=request.param == "apiserver",
            account=account,
            rights=None if account else shipped_rights(OPERATOR).allow,
            version=(int(version["major"]), int(version["minor"].rstrip("+"))),
            crash=os.environ.get("ELASTANE_TEST_APISERVER_CRASH", ""),
            start=os.environ.get("ELASTANE_TEST_APISERVER_START", ""),
        )


@contextlib.asynccontextmanager
async def custom_resource(api: Api, path: Path) -> AsyncIterator[None]:
    """Install a CRD of the repository inside the block.

    An existing one that these tests did not create is left alone, because it may hold a user's objects.
    """
    crd = yaml.safe_load(path.read_text())
    name = crd["metadata"]["name"]
    crd["metadata"].setdefault("annotations", {})[MARK] = "true"
    try:
        found = await api.get(f"{CRDS}/{name}")
    except ApiError as error:
        if error.status != 404:
            raise
        await api.create(CRDS, crd)
    else:
        if MARK not in found["metadata"].get("annotations", {}):
            pytest.fail(f"this cluster has a CRD {name} that these tests did not make: use another cluster")
        crd["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        await api.replace(f"{CRDS}/{name}", crd)
    try:
        async for change in api.watch(f"{CRDS}", "0"):
            item = change["object"]
            conditions = item.get("status", {}).get("conditions") or []
            if item["metadata"]["name"] == name and any(
                each["type"] == "Established" and each["status"] == "True" for each in conditions
            ):
                break
        yield
    finally:
        await api.delete(f"{CRDS}/{name}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def master(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MasterProcess]:
    """A real master, shared by all scenarios."""
    async with master_process(tmp_path_factory.mktemp("master")) as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_operator(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[OperatorProcess]:
    """The operator of all scenarios; after a scenario that killed it, the next one restarts it."""
    folder = tmp_path_factory.mktemp("operator")
    async with operator_process(cluster, folder) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    cluster: Cluster, shared_operator: OperatorProcess, master: MasterProcess
) -> AsyncIterator[Scene]:
    """A namespace with a running operator."""
    shared_operator.start()
    shared_operator.gateway.writes.clear()
    shared_operator.gateway.refused.clear()
    async with new_scene(cluster, shared_operator, master.address) as made:
        yield made
    assert not shared_operator.gateway.refused, "rights are missing"

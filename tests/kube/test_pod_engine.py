"""Ranks as pods of an API, emulated or real: how they start and end, and what becomes of them when the
runner, the API or a node is away. A kubelet of the test runs each pod's containers as processes.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio

import patience
from elastane_common import layout
from elastane_common.artifacts import read_record, verify
from elastane_common.code_archive import pack
from elastane_common.run_record import spec_of
from elastane_common.storage import Folder
from elastane_proto.v1 import training_pb2
from elastane_runner import pod_status
from elastane_runner.engine import (
    AttemptPlan,
    CodeFetchError,
    CodeSource,
    EngineError,
    EngineUnreachableError,
    ImageMissingError,
    RankEvent,
    RankPlan,
    RankState,
    SecretKey,
)
from elastane_runner.pod_client import PodClient
from elastane_runner.pod_engine import PodEngine
from elastane_runner.pod_plan import FINALIZER, PodOptions
from elastane_runner.process_records import LAUNCHED
from elastane_runner.rank_logs import follow
from integration.engine_runner import EngineRunner
from integration.master_support import ROOT, serving_master
from integration.runner_support import Service, running_runner, send_code
from kube.access import shipped_rights
from kube.api import CORE, Object, kubeconfig
from kube.gateway import Cut, Gateway
from kube.operator_process import Cluster
from kube.process_kubelet import DIGEST, ProcessKubelet
from slow import slow

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCRIPT = ROOT / "tests" / "integration" / "scripts" / "pod_engine_process.py"
RIGHTS = ROOT / "deploy" / "kubernetes" / "runner"
PULLS = "its node pulls the image, or fetches the code"
UP = "echo up; "
SLEEP = UP + "exec sleep 1000"
STUBBORN = "trap 'echo term' TERM; " + UP + "while :; do sleep 0.05; done"


class Bench:
    """Engines and plans of one test, in a namespace of its own."""

    def __init__(
        self, cluster: Cluster, kubelet: ProcessKubelet, gateway: Gateway, folder: Path, config: Path
    ) -> None:
        self.api, self.kubelet, self.gateway = cluster.api, kubelet, gateway
        self.folder, self.config, self.namespace = folder, config, kubelet.namespace
        self.is_real = cluster.is_real
        #: Of the API server; an emulated one is as the newest that is supported.
        self.version = cluster.version if cluster.is_real else (1, 29)
        self.engines: list[PodEngine] = []

    def engine(
        self,
        root: str = "root",
        *,
        start_seconds: float = 20,
        pull_seconds: float = 60,
        image_seconds: float = 0.5,
        **options: Any,
    ) -> PodEngine:
        client = PodClient(
            "runner-1",
            PodOptions(**{"image": "digits:3", "namespace": self.namespace, **options}),
            kubeconfig=str(self.config),
            start_seconds=start_seconds,
            pull_seconds=pull_seconds,
            image_seconds=image_seconds,
        )
        engine = PodEngine(self.folder / root, client, look_seconds=0.1)
        self.engines.append(engine)
        return engine

    def plan(self, *scripts: str, run: str = "run") -> AttemptPlan:
        ranks = tuple(RankPlan(("sh", "-c", one), {}, rank) for rank, one in enumerate(scripts))
        return AttemptPlan(run=run, attempt=1, fence=5, folder=Path("/"), ranks=ranks)

    async def close(self, engine: PodEngine) -> None:
        self.engines.remove(engine)
        await asyncio.to_thread(engine.close)

    async def pods(self) -> list[Object]:
        found = (await self.api.get(f"{CORE}/namespaces/{self.namespace}/pods"))["items"]
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    async def delete(self, pod: Object, **options: Any) -> None:
        path = f"{CORE}/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
        await self.api.delete(path, options)

    async def left(self) -> list[Object]:
        """All that is left in the namespace of what runners create."""
        services = await self.api.get(f"{CORE}/namespaces/{self.namespace}/services")
        return [*await self.pods(), *services["items"]]


@pytest_asyncio.fixture(loop_scope="session")
async def bench(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Bench]:
    namespace = f"elastane-test-{uuid.uuid4().hex[:8]}"
    async with AsyncExitStack() as stack:
        await cluster.api.create(f"{CORE}/namespaces", {"metadata": {"name": namespace}})
        stack.push_async_callback(cluster.api.delete, f"{CORE}/namespaces/{namespace}")
        (tmp_path / "pods").mkdir()
        kubelet = ProcessKubelet(cluster.api, namespace, cluster.node, tmp_path / "pods")
        await stack.enter_async_context(kubelet)
        # The emulated API has no rights of its own: the gateway grants those that are shipped.
        rights = None if cluster.is_real else shipped_rights(RIGHTS).allow
        gateway = await stack.enter_async_context(Gateway(cluster.api.connection, rights=rights).serve())
        made = Bench(cluster, kubelet, gateway, tmp_path, kubeconfig(tmp_path, gateway.url))
        yield made
        for engine in list(made.engines):
            await made.close(engine)
        for pod in await made.pods():
            path = f"{CORE}/namespaces/{namespace}/pods/{pod['metadata']['name']}"
            await cluster.api.patch(path, {"metadata": {"finalizers": None}})
        assert not gateway.refused, "rights are missing"


async def next_end(engine: PodEngine) -> RankEvent:
    async with patience.within(60):
        async for event in engine.watch():
            if event.state is not RankState.RUNNING:
                return event
    raise AssertionError


async def log_of(engine: PodEngine, rank: int = 0) -> bytes:
    return b"".join([chunk.data async for chunk in follow(engine.rank_folder("run", 1, rank))])


async def said(engine: PodEngine, words: bytes, rank: int = 0) -> None:
    text = b""
    async with patience.within(60):
        async for chunk in follow(engine.rank_folder("run", 1, rank)):
            if words in (text := text + chunk.data):
                return
    raise AssertionError(text)


async def until_gone(bench: Bench) -> None:
    async with patience.within(30):
        while await bench.left():
            await asyncio.sleep(0.05)


async def test_ranks_end_with_their_codes_and_logs_and_nothing_is_left(bench: Bench) -> None:
    secret = {"metadata": {"name": "s"}, "data": {"k": base64.b64encode(b"hidden").decode()}}
    await bench.api.create(f"{CORE}/namespaces/{bench.namespace}/secrets", secret)
    engine = bench.engine(run_secrets=frozenset({"s"}))
    script = "echo rank $RANK $NOTE $S; pwd; exit 3"
    plan = bench.plan(script, "kill -SEGV $$")
    first = replace(
        plan.ranks[0], environment={"RANK": "0", "NOTE": "$(RANK) $$"}, secret_keys={"S": SecretKey("s", "k")}
    )
    await engine.launch(replace(plan, ranks=(first, plan.ranks[1])))
    ends = {event.rank: event for event in [await next_end(engine), await next_end(engine)]}
    assert (ends[0].returncode, ends[1].returncode) == (3, -signal.SIGSEGV)
    text = (await log_of(engine)).decode().splitlines()
    assert text[0] == "rank 0 $(RANK) $$ hidden" and ends[0].last_line == text[1].encode()
    async with patience.within(30):
        while any(FINALIZER in one["metadata"].get("finalizers", []) for one in await bench.pods()):
            await asyncio.sleep(0.05)
    assert len(await bench.pods()) == 2
    await engine.remove("run", 1)
    await until_gone(bench)
    assert list((bench.folder / "root" / "runs").iterdir()) == []


async def test_code_is_fetched_by_the_pod(bench: Bench) -> None:
    project = bench.folder / "project"
    project.mkdir()
    (project / "hello").write_text("from the archive\n")
    digest = pack(project, bench.folder / "code.zip")
    url = (bench.folder / "artifacts").as_uri()
    Folder(url).write(layout.code_archive(digest), [(bench.folder / "code.zip").read_bytes()])
    engine = bench.engine()
    code = CodeSource(service_url=url, archive_sha256=digest)
    await engine.launch(replace(bench.plan("cat hello"), code=code))
    assert (await next_end(engine)).returncode == 0
    assert await log_of(engine) == b"from the archive\n"
    missing = replace(code, archive_sha256="ab" * 32)
    with pytest.raises(CodeFetchError, match="there is no archive abab"):
        await engine.launch(replace(bench.plan("true", run="other"), code=missing))
    await engine.remove("run", 1)
    await until_gone(bench)


@pytest.mark.parametrize(
    ("script", "grace_seconds", "returncode"),
    [
        ("trap 'exit 7' TERM; sleep 1000 & " + UP + "wait", 60, 7),
        (SLEEP, 60, -signal.SIGTERM),
        (STUBBORN, 1, -signal.SIGKILL),
    ],
    ids=["polite", "plain", "ignores SIGTERM"],
)
async def test_a_stop_ends_a_rank_with_its_own_code(
    bench: Bench, script: str, grace_seconds: float, returncode: int
) -> None:
    engine = bench.engine()
    await engine.launch(bench.plan(script))
    await said(engine, b"up")
    await patience.wait_for(engine.stop("run", 1, grace_seconds), 60)
    ended = await next_end(engine)
    assert (ended.state, ended.returncode) == (RankState.EXITED, returncode)
    await until_gone_pods(bench)


async def until_gone_pods(bench: Bench) -> None:
    async with patience.within(30):
        while await bench.pods():
            await asyncio.sleep(0.05)


def require_times_of_writes(bench: Bench) -> None:
    """Skip at an API server that is older than those that are supported (docs/deploy.md: 1.29).

    1.20 keeps the time of an entry of managedFields while the manager's set of fields stays the same, and so
    does not note when a status was written again.
    """
    if bench.version < (1, 29):
        pytest.skip("this API server does not note the time of later writes; 1.29 or newer is required")


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_pod_that_somebody_deletes_is_lost_whatever_its_code_and_clock(
    bench: Bench, hours: int
) -> None:
    require_times_of_writes(bench)
    bench.kubelet.clock_behind = timedelta(hours=hours)
    engine = bench.engine()
    await engine.launch(
        bench.plan(
            UP + "exec sleep 1000", "trap 'echo bye; exit 0' TERM; " + UP + "while :; do sleep 0.05; done"
        )
    )
    await said(engine, b"up")
    await said(engine, b"up", 1)
    for pod in await bench.pods():
        await bench.delete(pod)
    ends = {event.rank: event for event in [await next_end(engine), await next_end(engine)]}
    assert {one.state for one in ends.values()} == {RankState.LOST}
    assert ends[1].last_line == b"bye", "its log was kept until it was copied"
    await until_gone_pods(bench)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_rank_that_ended_before_its_pod_was_deleted_keeps_its_code(bench: Bench, hours: int) -> None:
    bench.kubelet.clock_behind = timedelta(hours=hours)
    go, engine = bench.folder / "go", bench.engine()
    await engine.launch(bench.plan(UP + f"until [ -e {go} ]; do sleep 0.05; done; exit 3"))
    await said(engine, b"up")
    await bench.close(engine)  # nobody looks until it is deleted
    go.touch()
    async with patience.within(30):
        while (await bench.pods())[0]["status"]["phase"] != "Failed":
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.1)  # times are whole seconds
    await bench.delete((await bench.pods())[0])
    engine = bench.engine()
    (record,) = await engine.adopt()
    assert (record.ranks[0].state, record.ranks[0].returncode) == (RankState.EXITED, 3)
    await until_gone_pods(bench)


async def test_a_rank_whose_node_is_gone_is_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_status, "OVERDUE_SECONDS", 1.0)
    engine = bench.engine()
    await engine.launch(bench.plan(SLEEP))
    await said(engine, b"up")
    (pod,) = await bench.pods()
    await bench.kubelet.lose(pod["metadata"]["name"])
    assert await next_end(engine) == RankEvent(
        run="run",
        attempt=1,
        rank=0,
        state=RankState.LOST,
        last_line=b"up",
        reason=f"the pod {pod['metadata']['name']} was deleted",
    )
    await engine.remove("run", 1)
    await until_gone(bench)


async def test_an_image_that_is_missing_is_named_and_leaves_nothing(bench: Bench) -> None:
    engine = bench.engine(image="missing:1")
    with pytest.raises(ImageMissingError, match="missing:1: not found"):
        await engine.launch(bench.plan(SLEEP, SLEEP))
    await until_gone(bench)


async def test_a_launch_without_room_for_all_is_taken_back_whole_and_says_why(bench: Bench) -> None:
    bench.kubelet.capacity = 1
    engine = bench.engine(start_seconds=1)
    with pytest.raises(EngineError, match="does not run after 1 s: Unschedulable: 0/1 nodes"):
        await engine.launch(bench.plan(SLEEP, SLEEP))
    await until_gone(bench)
    assert bench.kubelet.started == 1


async def test_a_slow_pull_is_waited_for_beyond_the_start_timeout_and_said(bench: Bench) -> None:
    told: list[str] = []
    pulls = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(words: str) -> None:
        told.append(words)
        if told.count(words) > 2 * 4:  # asked four times a second: for longer than the start may take
            loop.call_soon_threadsafe(pulls.set)

    engine = bench.engine(image="slow:1", start_seconds=1)
    launch = asyncio.create_task(engine.launch(replace(bench.plan(SLEEP), tell=tell)))
    long_enough = asyncio.create_task(pulls.wait())
    async with patience.within(60):
        await asyncio.wait({launch, long_enough}, return_when=asyncio.FIRST_COMPLETED)
    assert not launch.done()
    (pod,) = await bench.pods()
    assert told[-1] == f"waits for the pod {pod['metadata']['name']}: {PULLS}"
    bench.kubelet.pulled.set()
    await patience.wait_for(launch, 60)
    await engine.stop("run", 1, 0)


async def test_a_pull_that_takes_too_long_is_given_up(bench: Bench) -> None:
    engine = bench.engine(image="slow:1", start_seconds=30, pull_seconds=1)
    with pytest.raises(EngineError, match=f"does not run after 1 s: {PULLS}"):
        await engine.launch(bench.plan(SLEEP))
    await until_gone(bench)


async def test_a_stop_gives_up_a_launch_that_waits(bench: Bench) -> None:
    bench.kubelet.capacity = 0
    engine = bench.engine(start_seconds=600)
    launch = asyncio.create_task(engine.launch(bench.plan(SLEEP)))
    async with patience.within(30):
        while not await bench.pods():
            await asyncio.sleep(0.05)
        await engine.stop("run", 1, 600)
    with pytest.raises(EngineError, match="stopped before"):
        await launch
    await until_gone(bench)


async def test_ranks_are_adopted_with_their_ends_and_none_is_started_again(bench: Bench) -> None:
    engine = bench.engine()
    await engine.launch(bench.plan(SLEEP, "echo short; exit 5"))
    await said(engine, b"short", 1)
    await bench.close(engine)
    engine = bench.engine()
    (record,) = await engine.adopt()
    assert (record.run, record.fence, record.launched) == ("run", 5, True)
    assert record.ranks[0].state is RankState.RUNNING
    await bench.close(engine)
    (bench.folder / "root").rename(bench.folder / "lost")
    engine = bench.engine()
    (record,) = await engine.adopt()
    assert record.launched and record.ranks[0].state is RankState.RUNNING
    assert bench.kubelet.started == 2
    await said(engine, b"up")
    await engine.stop("run", 1, 0)


async def test_a_launch_that_was_cut_is_taken_back_by_the_next_runner(bench: Bench) -> None:
    bench.kubelet.capacity = 1
    engine = bench.engine(start_seconds=600)
    launch = asyncio.create_task(engine.launch(bench.plan(SLEEP, SLEEP)))
    async with patience.within(30):
        while bench.kubelet.started < 1 or len(await bench.pods()) < 2:
            await asyncio.sleep(0.05)
    # What a killed runner leaves: the folder, without a word of the end of its launch.
    copied = bench.folder / "next"
    copied.mkdir()
    assert not (bench.folder / "root" / "runs" / "run" / "1" / LAUNCHED).exists()
    following = bench.engine("next")
    (record,) = await following.adopt()
    assert not record.launched and {rank.state for rank in record.ranks} <= {
        RankState.WAITING,
        RankState.LOST,
    }
    await until_gone(bench)
    with pytest.raises(EngineError):
        await launch


async def test_an_api_that_is_away_says_nothing(bench: Bench) -> None:
    go = bench.folder / "go"
    engine = bench.engine()
    await engine.launch(
        bench.plan(f"echo before; until test -e {go}; do sleep 0.05; done; echo after; exit 3", SLEEP)
    )
    await said(engine, b"before")
    await bench.close(engine)
    bench.gateway.close()
    go.touch()
    engine = bench.engine()
    (record,) = await engine.adopt()
    assert [rank.state for rank in record.ranks] == [RankState.RUNNING, RankState.RUNNING]
    with pytest.raises(EngineUnreachableError):
        await engine.launch(bench.plan(SLEEP, run="other"))
    stop = asyncio.create_task(engine.stop("run", 1, 600))
    done, _ = await asyncio.wait([stop], timeout=0.5)
    assert not done
    bench.gateway.open()
    ends = {event.rank: event for event in [await next_end(engine), await next_end(engine)]}
    assert (ends[0].returncode, ends[1].returncode) == (3, -signal.SIGTERM)
    assert await log_of(engine) == b"before\nafter\n"
    await stop


# ---------------------------------------------------------------- the runner is killed during a launch


class Runner(EngineRunner):
    """A process of scripts/pod_engine_process.py, that launches two ranks."""

    def __init__(self, bench: Bench, root: str = "root", kill_at: int = 0) -> None:
        plan = {
            "run": "run", "attempt": 1, "fence": 5, "namespace": bench.namespace,
            "commands": [["sh", "-c", SLEEP]] * 2,
        }  # fmt: skip
        super().__init__(SCRIPT, str(bench.folder / root), str(bench.config), plan=plan, kill_at=kill_at)

    async def killed(self) -> None:
        """Wait until it was killed, by itself or by a cut."""
        assert await self.ended() == -signal.SIGKILL

    async def ended(self) -> int:
        """Wait for its end, which comes after the launch at the latest."""
        await asyncio.to_thread(self.process.communicate)
        return self.process.returncode


async def next_runner_has_all_or_nothing(bench: Bench, root: str = "root") -> bool:
    """See a new runner adopt what a killed one has left, or take it back; True if it was whole."""
    engine = bench.engine(root)
    records = await engine.adopt()
    states = [rank.state for record in records for rank in record.ranks]
    is_whole = any(record.launched for record in records)
    if is_whole:
        assert states == [RankState.RUNNING, RankState.RUNNING] and len(await bench.pods()) == 2
        await engine.stop("run", 1, 0)
    else:
        assert RankState.RUNNING not in states
        await until_gone(bench)
    await engine.remove("run", 1)
    await until_gone(bench)
    assert bench.kubelet.started <= 2, "nothing is started twice"
    await engine.launch(bench.plan(SLEEP))
    await engine.stop("run", 1, 0)
    await engine.remove("run", 1)
    await until_gone(bench)
    return is_whole


#: What a launch of two ranks writes to the API: a Service, a pod, and another.
WRITES = 3


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("write", range(1, WRITES + 1))
async def test_a_launch_whose_runner_is_killed_at_a_write_is_taken_back(
    bench: Bench, write: int, side: Literal["before", "after"]
) -> None:
    """before: the API does not get the write; after: it has carried it out, and nobody learns of that."""
    killed: list[Runner] = []
    bench.gateway.cut = cut = Cut(write, side, lambda: killed[0].process.kill())
    killed.append(Runner(bench))
    await killed[0].killed()
    assert cut.done.is_set()
    written = [one.path.rpartition("/")[2] for one in bench.gateway.writes if one.method == "POST"]
    assert written == ["services", "pods", "pods"][: write - (side == "before")]
    await next_runner_has_all_or_nothing(bench)


async def test_what_the_api_carries_out_late_of_a_cut_launch_is_taken_back(bench: Bench) -> None:
    """The write is on its way when its runner is killed, and the next runner has looked before it comes."""
    bench.kubelet.capacity = 1  # so that it is never whole
    killed: list[Runner] = []
    bench.gateway.cut = Cut(WRITES, "after", lambda: killed[0].process.kill())
    killed.append(Runner(bench))
    await killed[0].killed()
    late = bench.gateway.writes[-1].body
    engine = bench.engine()
    (record,) = await engine.adopt()
    assert not record.launched
    await until_gone(bench)
    late["metadata"].pop("ownerReferences")
    await bench.api.create(f"{CORE}/namespaces/{bench.namespace}/pods", late)
    await until_gone(bench)


async def test_a_launch_whose_pods_run_is_adopted_although_its_runner_could_not_say_so(bench: Bench) -> None:
    """Killed after the last pod has started, before that is recorded."""
    runner = Runner(bench)
    await runner.launched()
    runner.process.kill()
    await runner.killed()
    (bench.folder / "root" / "runs" / "run" / "1" / LAUNCHED).unlink()
    assert await next_runner_has_all_or_nothing(bench)


@slow
@pytest.mark.timeout(1800)
async def test_a_launch_of_pods_is_whole_or_taken_back_at_each_of_its_lines(bench: Bench) -> None:
    if not bench.is_real:
        pytest.skip(
            "`make test-kube` does it: a launch takes about a hundred lines, and each of them seconds"
        )
    runner = Runner(bench)
    lines = await runner.launched()
    runner.process.kill()
    await runner.killed()
    outcomes = {await next_runner_has_all_or_nothing(bench)}
    for line in range(1, lines + 1):
        bench.kubelet.started = 0
        for engine in list(bench.engines):
            await bench.close(engine)
        code = await Runner(bench, f"root-{line}", line).ended()
        assert code in (0, -signal.SIGKILL)  # 0: it waited less, and was through before that line
        outcomes.add(await next_runner_has_all_or_nothing(bench, f"root-{line}"))
    assert outcomes == {True, False}


# ---------------------------------------------------------------- from submission to the end


async def test_a_run_goes_from_submission_to_its_end_while_its_runner_is_killed(bench: Bench) -> None:
    artifacts, go = bench.folder / "artifacts", bench.folder / "go"
    artifacts.mkdir()
    project = bench.folder / "project"
    project.mkdir()
    (project / "hello").write_text("code\n")
    secret = {"metadata": {"name": "s"}, "data": {"k": base64.b64encode(b"hidden").decode()}}
    await bench.api.create(f"{CORE}/namespaces/{bench.namespace}/secrets", secret)
    words = (
        "--kind", "kubernetes", "--namespace", bench.namespace, "--kubeconfig", str(bench.config),
        "--image", "digits:3", "--run-secret", "s", "--slots", "4",
    )  # fmt: skip
    async with (
        serving_master(
            bench.folder / "master", artifact_url=artifacts.as_uri(), runner_lease_seconds=600
        ) as (master, channel),
        running_runner(master.address, bench.folder / "runner", *words) as runner,
    ):
        service = Service(channel)
        digest = send_code(project, await service.artifact_url())
        script = f"cat hello; echo $RANK $MASTER_ADDR $S; until test -e {go}; do sleep 0.05; done; echo after"
        run_id = await service.train(
            "sh", "-c", script,
            instances=2,
            code={"archive_sha256": digest},
            secrets=[{"variable": "S", "kubernetes": "s/k"}],
        )  # fmt: skip
        await service.until(run_id, "RUNNING")
        await runner.kill()
        go.touch()
        runner.start()
        run = await service.until(run_id, "SUCCEEDED")
        assert run.attempt == 1 and [rank.exit_code for rank in run.ranks] == [0, 0]
        await until_gone(bench)
        record = read_record(run.artifact_url)
        assert record is not None and record.code.image_digest == DIGEST, "--like starts the same image"
        assert spec_of(record)["code"]["image"] == f"digits:3@{DIGEST}"
        assert bench.kubelet.started == 2, "none was started again"
        for rank in range(2):
            assert await service.log(run_id, rank) == b"code\n%d 127.0.0.1 hidden\nafter\n" % rank
        await until_gone(bench)
        bench.kubelet.capacity = 0  # what is cancelled while it waits for room leaves nothing, too
        waiting = await service.train("sleep", "1000")
        async with patience.within(30):
            while not await bench.pods():
                await asyncio.sleep(0.05)
        await service.cancel(waiting)
        await service.until(waiting, "CANCELLED")
        await until_gone(bench)


async def test_a_run_whose_pod_the_cluster_takes_away_is_suspended_and_goes_on(bench: Bench) -> None:
    """Evicted by its node, drained and preempted in turn: it says why, and no attempt is counted."""
    go = bench.folder / "go"
    words = (
        "--kind", "kubernetes", "--namespace", bench.namespace, "--kubeconfig", str(bench.config),
        "--image", "digits:3", "--slots", "2",
    )  # fmt: skip
    lost = [
        "was evicted: The node was low on resource: memory.",
        "was evicted, as by a drain of its node: Eviction API: evicting",
        "was preempted: made room for important/pod",
    ]
    async with (
        serving_master(
            bench.folder / "master",
            artifact_url=(bench.folder / "artifacts").as_uri(),
            runner_lease_seconds=600,
        ) as (master, channel),
        running_runner(master.address, bench.folder / "runner", *words),
    ):
        service = Service(channel)
        run_id = await service.train(
            "sh", "-c", f"trap 'exit 0' TERM; until test -e {go}; do sleep 0.05; done", instances=2
        )
        for number in range(3):
            await service.until(run_id, "RUNNING")
            victim = max(await bench.pods(), key=lambda one: str(one["metadata"]["name"]))["metadata"]["name"]
            if number == 0:
                await bench.kubelet.evict(victim)
            elif number == 1:
                await bench.kubelet.disrupt(victim, "EvictionByEvictionAPI", "Eviction API: evicting")
            else:
                await bench.kubelet.disrupt(victim, "PreemptionByScheduler", "made room for important/pod")
            async with patience.within(60):
                while len(suspended(run := await service.get(run_id))) <= number:
                    await asyncio.sleep(0.05)
            assert f"r1 has lost rank 1: the pod {victim} {lost[number]}" in suspended(run)[number]
        await service.until(run_id, "RUNNING")
        go.touch()
        run = await service.until(run_id, "SUCCEEDED")
        assert run.attempt == 1 and len(suspended(run)) == 3
        await until_gone(bench)


def suspended(run: training_pb2.Run) -> list[str]:
    """Why a run was suspended, each time."""
    word = training_pb2.RunState.RUN_STATE_SUSPENDED
    return [one.reason for one in run.history if one.state == word]


@slow
async def test_workers_of_an_elastic_run_are_pods(bench: Bench) -> None:
    artifacts, project = bench.folder / "artifacts", bench.folder / "project"
    artifacts.mkdir()
    project.mkdir()
    shutil.copy(ROOT / "tests" / "integration" / "scripts" / "saves_model.py", project)
    words = (
        "--kind", "kubernetes", "--namespace", bench.namespace, "--kubeconfig", str(bench.config),
        "--image", "digits:3", "--slots", "2",
    )  # fmt: skip
    async with serving_master(
        bench.folder / "master", artifact_url=artifacts.as_uri(), runner_lease_seconds=600
    ) as (master, channel):
        # An address that is not the loopback, which pods do not share with the master.
        address = f"0.0.0.0:{master.address.rpartition(':')[2]}"
        async with running_runner(address, bench.folder / "runner", *words):
            service = Service(channel)
            digest = send_code(project, await service.artifact_url())
            run_id = await service.train(
                "saves_model.py", ".", "after",
                framework="FRAMEWORK_ELASTANE", instances=2, code={"archive_sha256": digest},
            )  # fmt: skip
            run = await service.until(run_id, "SUCCEEDED", 200)
            assert [one.path for one in verify(layout.model_url(run.artifact_url)).files] == ["weights.pt"]
            assert bench.kubelet.started == 2
            await until_gone(bench)

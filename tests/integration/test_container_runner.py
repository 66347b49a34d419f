"""`elastane runner --kind container` with a real master and a real podman: runs from submission to their end,
while the runner or the container engine is away.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import podman_service
import pytest
from podman_service import IMAGE, PYTHON_FOLDERS, PodmanService

import patience
from elastane_common import layout
from elastane_common.artifacts import read_record, verify
from elastane_common.run_record import spec_of
from integration.master_support import serving_master
from integration.runner_support import RunnerProcess, Service, running_runner, send_code

docker = pytest.importorskip(
    "docker", reason="no client of container engines: pip install 'elastane[containers]'"
)
from elastane_runner.container_client import ContainerClient  # noqa: E402
from elastane_runner.rank_labels import RANK, RUNNER  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.environ.get("ELASTANE_TEST_CONTAINERS") != "1", reason="starts containers: make test-containers"
)

#: The promise of the training service for a runner that was killed and is back.
ADOPTION_SECONDS_MAX = 5.0


@pytest.fixture(scope="module")
def podman() -> Iterator[PodmanService]:
    yield from podman_service.service()


class Bench:
    """A training service whose runner starts containers."""

    def __init__(self, podman: PodmanService, service: Service, runner: RunnerProcess, shared: Path) -> None:
        self.podman, self.service, self.runner, self.shared = podman, service, runner, shared
        self.client = ContainerClient(podman.url)
        self._gates: list[int] = []

    def containers(self) -> list[str]:
        """The containers of the runner, in the order of their ranks."""
        found = sorted(self.client.find({RUNNER: "r1"}), key=lambda one: int(one.labels[RANK]))
        return [one.container for one in found]

    def inspect(self, container: str) -> dict[str, Any]:
        return dict(json.loads(self.podman.run("inspect", container))[0])

    def started_at(self) -> list[object]:
        """When each container was started: different after a restart."""
        return [self.client.state(one).started_at for one in self.containers()]

    def gates(self, ranks: int = 1) -> str:
        """Make one pipe for each rank; return the words by which a rank waits until its own is opened."""
        for rank in range(ranks):
            path = self.shared / f"go-{rank}"
            os.mkfifo(path)
            path.chmod(0o666)
            self._gates.append(os.open(path, os.O_RDWR))  # both ends: neither side waits for the other's
        return f"read _ < {self.shared}/go-$RANK"

    def open_gates(self) -> None:
        """Let all ranks go on."""
        for gate in self._gates:
            os.write(gate, b"\n")

    def close(self) -> None:
        for gate in self._gates:
            os.close(gate)
        for container in reversed(self.containers()):
            self.client.remove(container)
        self.client.close()


@asynccontextmanager
async def bench(folder: Path, podman: PodmanService, *options: str, slots: int = 4) -> AsyncIterator[Bench]:
    shared, artifacts = folder / "shared", folder / "artifacts"
    for one in (shared, artifacts):
        one.mkdir()
        one.chmod(0o777)
    words = (
        "--kind", "container", "--image", IMAGE, "--container-engine", podman.url, "--slots", str(slots),
        "--write-folder", str(shared), *options,
    )  # fmt: skip
    async with (
        serving_master(folder / "master", artifact_url=artifacts.as_uri(), runner_lease_seconds=600) as (
            master,
            channel,
        ),
        running_runner(master.address, folder / "runner", *words) as runner,
    ):
        made = Bench(podman, Service(channel), runner, shared)
        try:
            yield made
        finally:
            if runner.lives:
                await runner.kill()
            made.close()


async def test_ranks_are_containers_with_limits_without_rights_and_meet_at_their_loopback(
    tmp_path: Path, podman: PodmanService
) -> None:
    walls = (
        "id -u; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; touch /x || echo read-only; "
        'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR, local $LOCAL_RANK"; '
    )
    meet = (
        "if test $RANK = 0; then echo met | nc -l -p $MASTER_PORT; "
        "else until nc $MASTER_ADDR $MASTER_PORT < /dev/null; do sleep 0.05; done; fi; "
    )
    async with bench(tmp_path, podman, "--memory", "64M", "--cpus", "0.25", "--user", "1234:99") as made:
        script = walls + meet + made.gates(2)
        run_id = await made.service.train("sh", "-c", script, instances=2, slots_per_instance=2)
        await made.service.until(run_id, "RUNNING")
        for container in made.containers():
            found = made.inspect(container)
            host = found["HostConfig"]
            assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (2**27, 2**27, 500_000_000)
            assert host["ReadonlyRootfs"] and "no-new-privileges" in host["SecurityOpt"]
            assert found["Config"]["User"] == "1234:99"
        made.open_gates()
        run = await made.service.until(run_id, "SUCCEEDED")
        assert [rank.exit_code for rank in run.ranks] == [0, 0]
        log = (await made.service.log(run_id, 1)).decode()
        async with patience.within(60):
            while (record := read_record(run.artifact_url)) is None:
                await asyncio.sleep(0.05)
        assert record.code.image == IMAGE and record.code.image_digest.startswith("sha256:")
        code = spec_of(record)["code"]
        assert code["image"] == f"{IMAGE}@{record.code.image_digest}"
        again = await made.service.train("sh", "-c", "true", code=code)
        await made.service.until(again, "SUCCEEDED")
        for line in (
            "1234", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "read-only", "met",
            "rank 1 of 2 at 127.0.0.1, local 1",
        ):  # fmt: skip
            assert line in log.splitlines(), (line, log)


async def test_a_killed_runner_is_followed_by_one_that_adopts_its_containers(
    tmp_path: Path, podman: PodmanService
) -> None:
    async with bench(tmp_path, podman) as made:
        run_id = await made.service.train(
            "sh", "-c", f"echo before; {made.gates(3)}; echo after", instances=3
        )
        await made.service.until(run_id, "RUNNING")
        await made.runner.kill()
        before = made.started_at()
        made.runner.start()
        async with patience.within(ADOPTION_SECONDS_MAX):
            while len(attending := made.runner.log_path.read_text().split("attends")) < 3:
                await asyncio.sleep(0.02)
        assert "ranks=3" in attending[2]
        assert made.started_at() == before and len(before) == 3
        made.open_gates()
        run = await made.service.until(run_id, "SUCCEEDED")
        assert run.attempt == 1
        for rank in range(3):
            assert await made.service.log(run_id, rank) == b"before\nafter\n"


async def test_a_cancel_ends_all_containers_of_a_run(tmp_path: Path, podman: PodmanService) -> None:
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    async with bench(tmp_path, podman) as made:
        run_id = await made.service.train("sh", "-c", stubborn, instances=2, grace={"nanos": 300_000_000})
        await made.service.until(run_id, "RUNNING")
        await made.service.cancel(run_id)
        run = await made.service.until(run_id, "CANCELLED")
        assert [rank.exit_code for rank in run.ranks] == [128 + signal.SIGKILL] * 2
        async with patience.within(60):
            while made.containers():
                await asyncio.sleep(0.05)


async def test_a_missing_image_fails_the_run_at_once(tmp_path: Path, podman: PodmanService) -> None:
    async with bench(tmp_path, podman) as made:
        code = {"installed": True, "image": "localhost/nobody:1"}
        run_id = await made.service.train("true", code=code)
        run = await made.service.until(run_id, "FAILED")
        assert "the image localhost/nobody:1 is not on this machine" in run.reason and run.attempt == 1
        assert made.containers() == []


async def test_nothing_is_given_up_while_the_container_engine_is_away(
    tmp_path: Path, podman: PodmanService
) -> None:
    """Nor by a runner that is started meanwhile."""
    async with bench(tmp_path, podman) as made:
        run_id = await made.service.train("sh", "-c", f"echo before; {made.gates()}; echo after; exit 3")
        await made.service.until(run_id, "RUNNING")
        before = made.started_at()
        await made.runner.kill()
        podman.end()
        try:
            made.runner.start()
            async with patience.within(60):
                while "adopted as they are recorded" not in made.runner.log_path.read_text():
                    await asyncio.sleep(0.02)
            await made.service.until(run_id, "RUNNING")
            made.open_gates()
        finally:
            podman.start()
        run = await made.service.until(run_id, "FAILED")
        assert (run.attempt, run.ranks[0].exit_code) == (1, 3)
        assert await made.service.log(run_id) == b"before\nafter\n"
        assert made.started_at() in (before, [])


async def test_workers_of_an_elastic_run_train_in_containers(tmp_path: Path, podman: PodmanService) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(Path(__file__).parent / "scripts" / "saves_model.py", project)
    folders = [word for folder in PYTHON_FOLDERS for word in ("--read-folder", str(folder))]
    artifacts = ("--write-folder", str(tmp_path / "artifacts"))
    network = ("--network", "host", "--allow-host-network")
    async with bench(tmp_path, podman, *folders, *artifacts, *network, slots=2) as made:
        digest = send_code(project, await made.service.artifact_url())
        run_id = await made.service.train(
            "saves_model.py", ".", "after",
            framework="FRAMEWORK_ELASTANE", instances=2, code={"archive_sha256": digest},
        )  # fmt: skip
        run = await made.service.until(run_id, "SUCCEEDED", 200)
        assert [entry.path for entry in verify(layout.model_url(run.artifact_url)).files] == ["weights.pt"]
        assert {rank.host for rank in run.ranks} == {"127.0.0.1"}
        assert b"the model is saved" in await made.service.log(run_id, 0) + await made.service.log(run_id, 1)

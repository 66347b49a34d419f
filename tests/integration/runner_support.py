"""Runners as processes, and a training service to attend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc

import patience
from elastane_common import layout
from elastane_common.code_archive import pack
from elastane_common.processes.child import ChildProcess
from elastane_common.storage import Folder
from elastane_proto.v1 import training_pb2, training_pb2_grpc

STATES = training_pb2.RunState
FINAL = {STATES.RUN_STATE_SUCCEEDED, STATES.RUN_STATE_FAILED, STATES.RUN_STATE_CANCELLED}


class RunnerProcess:
    """`elastane runner` in a process of its own, which can be killed and started again with its folder."""

    def __init__(
        self, master: str, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.log_path = folder.with_name(f"{folder.name}.log")
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._command = [
            sys.executable, "-m", "elastane_cli", "runner", "--master", master, "--folder", str(folder),
            "--name", "r1", *arguments,
        ]  # fmt: skip
        self.process: ChildProcess | None = None

    def start(self) -> None:
        self.process = ChildProcess("runner", self._command, environment=self._environment, log=self.log_path)
        self.process.start()

    async def kill(self) -> None:
        """SIGKILL the runner; its ranks continue."""
        assert self.process is not None
        self.process.signal(signal.SIGKILL)
        await self.ended()

    async def end(self) -> int:
        """SIGTERM the runner; return its exit code."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        assert self.process is not None
        async with patience.within(60):
            status = await asyncio.to_thread(self.process.wait)
        assert status is not None
        return status.returncode

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.status is None


@contextlib.asynccontextmanager
async def running_runner(
    master: str, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[RunnerProcess]:
    """Start a runner; it and all its ranks are ended afterwards."""
    runner = RunnerProcess(master, folder, *arguments, environment=environment)
    runner.start()
    try:
        yield runner
    finally:
        if runner.lives:
            await runner.kill()
        for pid in shims(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def shims(folder: Path) -> list[int]:
    """The processes that keep the ranks below a runner's folder; a rank dies with its own."""
    marker = f"{folder}/engine/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if any(word.startswith(marker) for word in words):
                found.append(int(entry.name))
    return found


def send_code(folder: Path, artifact_url: str) -> str:
    """Put a folder of code where runners find it; return its digest."""
    with tempfile.TemporaryDirectory() as beside:
        archive = Path(beside) / "code.zip"
        digest = pack(folder, archive)
        Folder(artifact_url).write(layout.code_archive(digest), [archive.read_bytes()])
    return digest


class Service:
    """The calls of a user of the training service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = training_pb2_grpc.TrainingServiceStub(channel)

    async def train(self, *command: str, **fields: object) -> int:
        """Submit a run of a command that is installed; return its id."""
        spec = {
            "algorithm": "any",
            "output_model_name": "m",
            "framework": "FRAMEWORK_PYTORCH",
            "code": {"installed": True},
            **fields,
        }
        if command:
            spec["command"] = command
        request = training_pb2.TrainingServiceTrainRequest(spec=training_pb2.RunSpec(**spec))
        return (await self.stub.Train(request)).run.run_id

    async def artifact_url(self) -> str:
        return (await self.stub.GetService(training_pb2.TrainingServiceGetServiceRequest())).artifact_url

    async def runners_attend(self) -> bool:
        """True if a runner attends the master."""
        service = await self.stub.GetService(training_pb2.TrainingServiceGetServiceRequest())
        return any(runner.attends for runner in service.runners)

    async def get(self, run_id: int) -> training_pb2.Run:
        return (await self.stub.Get(training_pb2.TrainingServiceGetRequest(run_id=run_id))).run

    async def cancel(self, run_id: int) -> None:
        await self.stub.Cancel(training_pb2.TrainingServiceCancelRequest(run_id=run_id))

    async def until(self, run_id: int, state: str, seconds: float = 60) -> training_pb2.Run:
        """Wait until the run is in the state, and return it; fails if it ends in another."""
        wanted = STATES.Value(f"RUN_STATE_{state}")
        async with patience.within(seconds):
            watch = self.stub.Watch(training_pb2.TrainingServiceWatchRequest(run_id=run_id))
            async for response in watch:
                run = response.run
                if run.state == wanted:
                    watch.cancel()
                    return run
                assert run.state not in FINAL, run
        raise AssertionError(f"the watch of run {run_id} ended before {state}")

    async def log(self, run_id: int, rank: int = 0, *, follow: bool = True) -> bytes:
        """Return the output of a rank; once the run is over it may take a moment until it is stored."""
        request = training_pb2.TrainingServiceStreamLogsRequest(run_id=run_id, rank=rank, follow=follow)
        async with patience.within(60):
            while True:
                try:
                    return b"".join([chunk.data async for chunk in self.stub.StreamLogs(request)])
                except grpc.aio.AioRpcError as error:
                    assert error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE), error
                    await asyncio.sleep(0.05)

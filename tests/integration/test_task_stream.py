"""The worker's end of StreamTasks: masters that are killed with requests in flight, one without streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from elastane.task_stream import TaskStream
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_proto.v1 import job_pb2, shard_pb2, shard_pb2_grpc
from spoken_version import TellsVersion

TASKS = 40


@pytest.fixture
def master(tmp_path: Path) -> Iterator[EmbeddedMaster]:
    """With job "j" and dataset "d" of 40 tasks of one sample."""
    process = EmbeddedMaster(tmp_path)
    process.start()
    try:
        with MasterClient(process.address) as client:
            client.create_job("j", job_pb2.JobSettings(ests=1))
            settings = shard_pb2.DatasetSettings(range=shard_pb2.RangeSource(size=TASKS), task_size=1)
            settings.lease.seconds = 600
            client.create_dataset("j", "d", settings)
        yield process
    finally:
        process.stop()


def request(done: list[shard_pb2.Task] | None = None, **fields: object) -> shard_pb2.LeaseTasksRequest:
    message = shard_pb2.LeaseTasksRequest(
        **{"job": "j", "dataset": "d", "worker_id": "w", "max_tasks": 1, **fields}
    )
    for task in done or ():
        message.completed.add(epoch=task.epoch, index=task.index, attempt=task.attempt)
    return message


def test_a_master_killed_with_requests_in_flight_gives_the_same_answers_again(master: EmbeddedMaster) -> None:
    with MasterClient(master.address, timeout_seconds=60.0) as client, MasterClient(master.address) as other:
        stream = TaskStream(client)
        stream.send(request())
        (first,) = stream.receive().tasks
        stream.send(request([first], max_tasks=2))
        for _ in range(3):
            stream.send(request())
        for progress in other.watch_progress("j", "d"):
            if (progress[0].done, progress[0].doing) == (1, 5):
                break  # all four are decided on, and none of their answers was read
        master.sigkill()
        assert master.wait(20) is not None
        master.start()
        stream.send(request())
        answers = [stream.receive() for _ in range(5)]
        assert [outcome.outcome for outcome in answers[0].outcomes] == [shard_pb2.REPORT_OUTCOME_ACCEPTED]
        assert [task.index for answer in answers for task in answer.tasks] == [1, 2, 3, 4, 5, 6]
        assert other.get_progress("j", "d")[0].doing == 6, "nothing is leased that nobody knows of"
        stream.close()


def test_every_task_is_done_once_through_a_master_that_dies_again_and_again(master: EmbeddedMaster) -> None:
    with MasterClient(master.address, timeout_seconds=60.0) as client:
        stream = TaskStream(client, reads_ahead=True)
        for _ in range(4):
            stream.send(request())
        seen: list[int] = []
        while True:
            response = stream.receive()
            if response.complete:
                break
            seen += [task.index for task in response.tasks]
            stream.send(request(list(response.tasks)))
            if len(seen) in (10, 25):
                master.sigkill()
                master.wait(20)
                master.start()
        stream.close()
        assert sorted(seen) == list(range(TASKS))
        assert sorted(entry.step for entry in client.audit_log("j", "d")) == list(range(TASKS))


def test_a_refusal_comes_at_its_place(master: EmbeddedMaster) -> None:
    with MasterClient(master.address) as client:
        stream = TaskStream(client)
        stream.send(request())
        stream.send(request(dataset="another"))
        assert len(stream.receive().tasks) == 1
        with pytest.raises(RequestRefusedError) as refused:
            stream.receive()
        assert refused.value.reason == "not_found"
        stream.close()


class CallsOnly(shard_pb2_grpc.ShardServiceServicer):
    """A master of before StreamTasks."""

    def __init__(self) -> None:
        self.asked: list[shard_pb2.LeaseTasksRequest] = []

    def LeaseTasks(  # noqa: N802 - the name of the rpc
        self, request: shard_pb2.LeaseTasksRequest, context: grpc.ServicerContext
    ) -> shard_pb2.LeaseTasksResponse:
        self.asked.append(request)
        return shard_pb2.LeaseTasksResponse(tasks=[shard_pb2.Task(index=len(self.asked) - 1)])


class SilentAtFirst(shard_pb2_grpc.ShardServiceServicer):
    """A leader that was cut off: it answers one request of its first stream and no more."""

    def __init__(self) -> None:
        self.streams: list[list[shard_pb2.LeaseTasksRequest]] = []
        self.stopped = threading.Event()
        self.was_left = False

    def StreamTasks(  # noqa: N802 - the name of the rpc
        self, requests: Iterator[shard_pb2.StreamTasksRequest], context: grpc.ServicerContext
    ) -> Iterator[shard_pb2.StreamTasksResponse]:
        asked: list[shard_pb2.LeaseTasksRequest] = []
        self.streams.append(asked)
        first = len(self.streams) == 1
        context.add_callback(self.stopped.set)
        for message in requests:
            asked.append(message.request)
            if first and len(asked) > 1:
                self.was_left = self.stopped.wait(10)
                return
            response = shard_pb2.LeaseTasksResponse(tasks=[shard_pb2.Task(index=len(asked))])
            yield shard_pb2.StreamTasksResponse(response=response)


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_a_stream_without_answers_is_left_and_its_requests_are_repeated(reads_ahead: bool) -> None:
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[TellsVersion()])
    servicer = SilentAtFirst()
    shard_pb2_grpc.add_ShardServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with MasterClient(f"127.0.0.1:{port}", timeout_seconds=20.0) as client:
            stream = TaskStream(client, silence_seconds=0.3, reads_ahead=reads_ahead)
            stream.send(request())
            assert stream.receive().tasks
            for _ in range(3):
                stream.send(request())
            assert [stream.receive().tasks[0].index for _ in range(3)] == [1, 2, 3]
            assert servicer.was_left, "it was not the master who ended it"
            first, second = servicer.streams
            assert first[1].request_id == second[0].request_id, "with its id"
            assert [one.unanswered for one in second] == [63, 63, 2]
            stream.close()
            assert not _left_after(5.0)
    finally:
        servicer.stopped.set()
        server.stop(None).wait()


def _left_after(seconds: float) -> list[threading.Thread]:
    """The threads of streams that are still there, after they had that time to end."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("elastane-request-")]
    for thread in threads:
        thread.join(seconds)
    return [thread for thread in threads if thread.is_alive()]


def test_a_master_without_streams_is_asked_call_by_call() -> None:
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[TellsVersion()])
    servicer = CallsOnly()
    shard_pb2_grpc.add_ShardServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with MasterClient(f"127.0.0.1:{port}") as client:
            stream = TaskStream(client)
            for _ in range(3):
                stream.send(request())
            assert [stream.receive().tasks[0].index for _ in range(3)] == [0, 1, 2]
            assert len({asked.request_id for asked in servicer.asked}) == 3
    finally:
        server.stop(None).wait()

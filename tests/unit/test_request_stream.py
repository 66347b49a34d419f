"""Requests that wait to be sent share a message, to a master that reads such messages, and to no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from elastane.task_stream import TaskStream
from elastane_common import request_stream
from elastane_common.training_client import RunStream
from elastane_proto.v1 import shard_pb2, training_pb2


class Call:
    """A stream to a master that reads a message only when an answer is asked for: in the test's thread."""

    def __init__(self, requests: Iterator[Any], reads_more: bool, lives: int) -> None:
        self.messages: list[Any] = []
        self._requests, self._reads_more, self._lives = requests, reads_more, lives

    def __next__(self) -> Any:
        if len(self.messages) == self._lives:
            raise grpc.RpcError("the master is gone")
        message = next(self._requests)
        self.messages.append(message)
        first = self._reads_more and len(self.messages) == 1
        if isinstance(message, shard_pb2.StreamTasksRequest):
            answers = [
                shard_pb2.LeaseTasksResponse(tasks=[shard_pb2.Task(index=int(one.request_id))])
                for one in (message.request, *message.more)
            ]
            return shard_pb2.StreamTasksResponse(response=answers[0], more=answers[1:], reads_more=first)
        runs = [training_pb2.Run(run_id=int(one.request_id)) for one in (message.request, *message.more)]
        responses = [training_pb2.TrainingServiceTrainResponse(run=run) for run in runs]
        outcomes = [training_pb2.TrainOutcome(response=response) for response in responses]
        return training_pb2.TrainingServiceTrainEachResponse(outcomes=outcomes, reads_more=first)

    def cancel(self) -> None:
        pass


class Master:
    """Instead of a client and the master behind it. reads_more: of each stream. lives: messages it reads."""

    def __init__(self, *reads_more: bool, lives: int = -1) -> None:
        self.calls: list[Call] = []
        self._reads_more, self._lives = list(reads_more), lives

    def retried(self, stub: Any, read: Callable[[Any], None], *, wait_seconds: float) -> None:
        while True:
            try:
                return read(self)
            except grpc.RpcError:
                self._lives = -1

    def StreamTasks(self, requests: Iterator[Any], metadata: Any) -> Call:  # noqa: N802 - the name of the rpc
        self.calls.append(Call(requests, self._reads_more.pop(0), self._lives))
        return self.calls[-1]

    TrainEach = StreamTasks

    def sizes(self, call: int = 0) -> list[int]:
        """Number of requests in each message."""
        return [1 + len(message.more) for message in self.calls[call].messages]


def task_stream(master: Master) -> TaskStream:
    return TaskStream(master)  # type: ignore[arg-type]


def send(stream: TaskStream, *numbers: int, **fields: Any) -> None:
    for number in numbers:
        stream.send(shard_pb2.LeaseTasksRequest(request_id=str(number), **fields))


def answered(stream: TaskStream) -> list[int]:
    """The requests whose answers come, up to the last one."""
    return [stream.receive().tasks[0].index for _ in range(len(stream.waiting))]


def test_requests_that_wait_go_together_behind_the_first_answer() -> None:
    master = Master(True)
    stream = task_stream(master)
    send(stream, 0, 1, 2)
    assert stream.receive().tasks[0].index == 0
    send(stream, 3, 4)
    assert answered(stream) == [1, 2, 3, 4]
    assert master.sizes() == [1, 4]
    send(stream, 5)
    assert answered(stream) == [5]
    assert master.sizes() == [1, 4, 1], "one alone waits for nobody"
    more = master.calls[0].messages[1].more
    assert [one.unanswered for one in more] == [2, 2, 3], "each says what it would say alone"
    stream.close()


def test_a_master_that_does_not_say_so_gets_one_request_in_a_message() -> None:
    master = Master(False)
    stream = task_stream(master)
    send(stream, *range(5))
    assert answered(stream) == [0, 1, 2, 3, 4]
    assert master.sizes() == [1] * 5
    stream.close()


@pytest.mark.parametrize("newer", [False, True])
def test_behind_a_stream_that_broke_it_is_for_the_next_master_to_say(newer: bool) -> None:
    master = Master(True, newer, lives=1)
    stream = task_stream(master)
    send(stream, 0)
    assert answered(stream) == [0]
    send(stream, 1, 2, 3, 4)
    assert answered(stream) == [1, 2, 3, 4], "repeated, in order"
    assert master.sizes(1) == ([1, 3] if newer else [1, 1, 1, 1])
    stream.close()


def test_a_message_has_a_limit_of_requests() -> None:
    master = Master(True)
    stream = task_stream(master)
    count = 2 * request_stream.TOGETHER_MAX + 5
    send(stream, *range(count))
    assert answered(stream) == list(range(count))
    assert master.sizes() == [1, request_stream.TOGETHER_MAX, request_stream.TOGETHER_MAX, 4]
    stream.close()


def test_a_message_has_a_limit_of_bytes_and_a_larger_request_goes_alone() -> None:
    master = Master(True)
    stream = task_stream(master)
    send(stream, 0)
    assert answered(stream) == [0]
    names = [1, 30_000, 30_000, 30_000, 100_000, 1, 1]
    for number, size in enumerate(names):
        send(stream, number, dataset="d" * size)
    assert answered(stream) == list(range(len(names)))
    assert master.sizes() == [1, 3, 1, 1, 2]
    stream.close()


def test_a_stream_that_is_closed_sends_no_more_than_was_put() -> None:
    outgoing = request_stream._Outgoing[shard_pb2.StreamTasksRequest](lambda messages: messages[-1])
    outgoing.joins = True
    for _ in range(3):
        outgoing.put(shard_pb2.StreamTasksRequest())
    outgoing.end()
    assert len(list(outgoing)) == 1


def test_submissions_that_wait_go_together() -> None:
    master = Master(True)
    stream = RunStream(master)  # type: ignore[arg-type]
    for number in range(6):
        stream.train(training_pb2.RunSpec(), request_id=str(number))
    assert [stream.receive().run.run_id for _ in range(6)] == list(range(6))
    assert master.sizes() == [1, 5]
    stream.close()

"""A client that submits runs.

    submit_client.py ADDRESS SECONDS COUNT NAME WARM call     one call at a time
    submit_client.py ADDRESS SECONDS COUNT NAME WARM each     over one stream (TrainEach), as our client does
    submit_client.py ADDRESS SECONDS COUNT NAME WARM RUNS     one TrainMany call at a time, with RUNS runs
    each

Ends after SECONDS or COUNT runs, whichever comes first; WARM runs are submitted beforehand. Starts at a line
on standard input, prints JSON.
"""

import json
import sys
import time
from collections import deque
from contextlib import closing

import grpc

from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.training_client import RUNS_IN_FLIGHT, TrainingClient
from elastane_proto.v1 import training_pb2, training_pb2_grpc

address, seconds, count, name = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
warm, mode = int(sys.argv[5]), sys.argv[6]
stub = training_pb2_grpc.TrainingServiceStub(grpc.insecure_channel(address))
stub.GetService(training_pb2.TrainingServiceGetServiceRequest())
spec = training_pb2.RunSpec(
    output_model_name="m",
    framework=training_pb2.FRAMEWORK_PLAIN,
    code=training_pb2.CodeRef(installed=True),
    command=["true"],
    parameters={"LR": "0.1", "EPOCHS": "3"},
)


def request(number: int) -> training_pb2.TrainingServiceTrainRequest:
    return training_pb2.TrainingServiceTrainRequest(spec=spec, request_id=f"{name}-{number}")


for number in range(warm):
    stub.Train(request(-number - 1))
print("ready", flush=True)
sys.stdin.readline()
latencies: list[float] = []
began = now = time.perf_counter()
used = time.process_time()


def call() -> None:
    """Send one call after the other."""
    global now
    while now - began < seconds and len(latencies) < count:
        stub.Train(request(len(latencies)))
        after = time.perf_counter()
        latencies.append(after - now)
        now = after


def call_many(runs: int) -> None:
    """Send one call after the other, each with this many runs."""
    global now
    while now - began < seconds and len(latencies) < count:
        request_id = f"{name}-{len(latencies)}"
        many = training_pb2.TrainingServiceTrainManyRequest(specs=[spec] * runs, request_id=request_id)
        stub.TrainMany(many)
        after = time.perf_counter()
        latencies.extend([after - now] * runs)
        now = after


def call_each() -> None:
    """Send over one stream, with as many in flight as our client allows."""
    global now
    with MasterClient(address) as client, closing(TrainingClient(client).stream()) as stream:
        sent: deque[float] = deque()
        while now - began < seconds and len(latencies) < count:
            while len(sent) < min(RUNS_IN_FLIGHT, count - len(latencies)):
                stream.train(spec, request_id=f"{name}-{len(latencies) + len(sent)}")
                sent.append(time.perf_counter())
            if isinstance(outcome := stream.receive(), RequestRefusedError):
                raise outcome
            now = time.perf_counter()
            latencies.append(now - sent.popleft())


if mode == "call":
    call()
elif mode == "each":
    call_each()
else:
    call_many(int(mode))
done = len(latencies)
latencies.sort()
thinned = latencies[:: max(1, done // 1000)]  # small enough for one write to a pipe
outcome = {"runs": done, "seconds": now - began, "latencies": thinned, "cpu": time.process_time() - used}
print(json.dumps(outcome), flush=True)

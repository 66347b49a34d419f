"""A client that submits runs one after the other, each call after the answer to the one before.

    submit_client.py ADDRESS SECONDS COUNT NAME WARM

Ends after SECONDS or COUNT runs, whatever is first; WARM runs are submitted before. Starts at a line on
standard input, prints JSON.
"""

import json
import sys
import time

import grpc

from elastane_proto.v1 import training_pb2, training_pb2_grpc

address, seconds, count, name = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
warm = int(sys.argv[5])
stub = training_pb2_grpc.TrainingServiceStub(grpc.insecure_channel(address))
stub.GetService(training_pb2.TrainingServiceGetServiceRequest())
spec = training_pb2.RunSpec(
    output_model_name="m",
    framework=training_pb2.FRAMEWORK_PLAIN,
    code=training_pb2.CodeRef(installed=True),
    command=["true"],
    parameters={"LR": "0.1", "EPOCHS": "3"},
)


def submit(number: int) -> None:
    stub.Train(training_pb2.TrainingServiceTrainRequest(spec=spec, request_id=f"{name}-{number}"))


for number in range(warm):
    submit(-number - 1)
print("ready", flush=True)
sys.stdin.readline()
latencies: list[float] = []
began = now = time.perf_counter()
while now - began < seconds and len(latencies) < count:
    submit(len(latencies))
    after = time.perf_counter()
    latencies.append(after - now)
    now = after
done = len(latencies)
latencies.sort()
thinned = latencies[:: max(1, done // 1000)]  # small enough for one write to a pipe
outcome = {"runs": done, "seconds": now - began, "latencies": thinned, "cpu": time.process_time()}
print(json.dumps(outcome), flush=True)

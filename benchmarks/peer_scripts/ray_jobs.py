"""Drives Ray's job client by JSON lines on standard input. Run with the peer's interpreter.

    ray_jobs.py URL

Requests: {"do": "accepting"}, {"do": "submit", "command": ...}, {"do": "stop", "job": ...}, {"do": "count"},
{"do": "rate", "seconds": ..., "command": ...}, {"do": "status", "jobs": [...], "count": ...},
{"do": "tail", "job": ..., "lines": ...}. Each is answered by one line of JSON.
"""

import asyncio
import json
import random
import sys
import time

from ray.job_submission import JobSubmissionClient

client = JobSubmissionClient(sys.argv[1])


def submit(command: str, cpus: float = 1) -> str:
    return client.submit_job(entrypoint=command, entrypoint_num_cpus=cpus)


def accepting() -> dict[str, object]:
    """Wait until a job is accepted; a new head refuses jobs for a while."""
    while True:
        try:
            return {"job": submit("true", cpus=0)}
        except RuntimeError as error:
            if "No available agent" not in str(error):
                raise
            time.sleep(0.1)


def count() -> dict[str, object]:
    """Return the number of jobs that the head knows, as soon as it answers."""
    while True:
        try:
            return {"count": len(client.list_jobs())}
        except (RuntimeError, OSError):
            time.sleep(0.02)


def rate(seconds: float, command: str) -> dict[str, object]:
    """Submit one job after the other."""
    jobs = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        jobs.append(submit(command))
    return {"jobs": jobs, "seconds": time.perf_counter() - began}


def status(jobs: list[str], count: int) -> dict[str, object]:
    """Ask for the states of jobs, one after the other; return the seconds of each call."""
    took = []
    for _ in range(count):
        job = random.choice(jobs)
        before = time.perf_counter()
        client.get_job_status(job)
        took.append(time.perf_counter() - before)
    return {"seconds": took}


def tail(job: str, lines: int) -> dict[str, object]:
    """Follow the log; return the delay of each line that says when it was printed."""

    async def follow() -> list[float]:
        delays: list[float] = []
        rest = ""
        async for text in client.tail_job_logs(job):
            now = time.monotonic()
            *whole, rest = (rest + text).split("\n")
            delays += [now - float(line.split()[1]) for line in whole if line.startswith("at ")]
            if len(delays) >= lines:
                break
        return delays

    return {"delays": asyncio.run(follow())}


ANSWERS = {
    "submit": lambda **given: {"job": submit(**given)},
    "accepting": accepting,
    "rate": rate,
    "status": status,
    "stop": lambda job: {"stopped": client.stop_job(job)},
    "tail": tail,
    "count": count,
}

print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(ANSWERS[request.pop("do")](**request)), flush=True)

"""CPU of a step of k logical workers on one worker, beside gradient accumulation in the same process.

    turn_cost.py MODEL BATCH ESTS STEPS REPEATS

Run by steady_step.py; prints JSON: milliseconds of each side, as medians of REPEATS parts of the run. Each
step of the worker is followed by one of plain PyTorch with a copy of the model, its own loader, and k
accumulated mini-batches. Both are measured in CPU time of the process, all threads, so that other load on the
machine matters little.
"""

import copy
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from steady_script import MODELS, Pool, loss_of
from torch.utils.data import DataLoader

SETTLING_STEPS = 10
"""Uncounted first steps of each side, in which buckets are laid out, memory is allocated and caches fill."""


class Sides:
    """Measures both sides; called once per step, as a hook of our optimizer."""

    def __init__(self, job, net, loader, ests, steps, repeats):
        self._repeats = repeats
        self._job, self._net, self._ests = job, copy.deepcopy(net), ests
        self._optimizer = torch.optim.AdamW(self._net.parameters(), lr=1e-4)
        self._batches = iter(loader)
        self._steps, self._began = steps, 0.0
        self._ours, self._plain = [], []

    def __call__(self, *_):
        """End our step, and run a step of the other side."""
        self._ours.append((time.process_time() - self._began) * 1e3)
        with self._job.isolated_rng():
            now = time.process_time()
            self._accumulate()
            self._plain.append((time.process_time() - now) * 1e3)
        if len(self._plain) == self._steps:
            found = {"ours": self._medians(self._ours), "plain": self._medians(self._plain)}
            Path(os.environ["TURN_COST"]).write_text(json.dumps(found))
        self._began = time.process_time()

    def _medians(self, steps):
        counted = steps[SETTLING_STEPS:]
        size = len(counted) // self._repeats
        return [statistics.median(counted[part * size :][:size]) for part in range(self._repeats)]

    def _accumulate(self):
        self._optimizer.zero_grad()
        for _ in range(self._ests):
            x, y = next(self._batches)
            (loss_of(self._net, x, y) / self._ests).backward()
        self._optimizer.step()


def work(model, batch, ests, steps, repeats):
    """Train as the worker of a job."""
    import elastane

    torch.manual_seed(0)
    job = elastane.init(seed=1)
    net, inputs, targets = MODELS[model]()
    samples = Pool(steps * batch * ests, inputs, targets)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4)
    adam.register_step_post_hook(Sides(job, net, DataLoader(samples, batch), ests, steps, repeats))
    net, adam, loader = job.prepare(net, adam, DataLoader(samples, batch))
    for _ in job.epochs(1):
        for x, y in loader:
            loss = loss_of(net, x, y)
            adam.zero_grad()
            loss.backward()
            adam.step()


def main(model, batch, ests, steps, repeats):
    """Run a job of one worker, and print what it measured."""
    from elastane_cli.rehearse.cluster import local_cluster
    from elastane_proto.v1 import job_pb2

    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "result"
        settings = job_pb2.JobSettings(ests=ests, workers_min=1, workers_max=1)
        with local_cluster(Path(name) / "cluster", settings, sys.argv) as cluster:
            cluster.add_worker(environment={"TURN_COST": str(result)})
            cluster.wait_for_success()
        print(result.read_text())


if __name__ == "__main__":
    (work if "TURN_COST" in os.environ else main)(sys.argv[1], *map(int, sys.argv[2:]))

"""Our counterpart of rpc_parameter_server.py train: the same model over the same samples, with prepare_ps.

push_clicks.py SAMPLES BATCH ROWS WIDTH PREFETCH: prints samples a second, after the first fifth, as JSON.
"""

import json
import sys
import time

import torch
from torch import nn

import elastane

torch.set_num_threads(1)
samples, batch, rows, width, prefetch = map(int, sys.argv[1:])
job = elastane.init(seed=3)
generator = torch.Generator().manual_seed(0)
ids = torch.randint(0, rows, (samples, 8), generator=generator)
labels = torch.rand(samples, generator=generator).round()
model = nn.Sequential(
    nn.EmbeddingBag(rows, width, mode="sum", sparse=True),
    nn.Linear(width, 64),
    nn.ReLU(),
    nn.Linear(64, 1),
)
job.prepare_ps(
    model,
    torch.optim.SGD(model.parameters(), lr=0.01),
    rows=lambda indices: {"0": ids[indices.start : indices.stop]},
)
done, begun_at, began = 0, 0, 0.0
for task in job.tasks("clicks", size=samples, task_size=batch, prefetch=prefetch):
    if not began and done >= samples // 5:
        began, begun_at = time.monotonic(), done
    part = slice(task.indices.start, task.indices.stop)
    with job.push(task):
        scores = model(ids[part]).squeeze(1)
        nn.functional.binary_cross_entropy_with_logits(scores, labels[part]).backward()
    done += len(task.indices)
print(json.dumps({"samples_per_second": (done - begun_at) / (time.monotonic() - began)}), flush=True)

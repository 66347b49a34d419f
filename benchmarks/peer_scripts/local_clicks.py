"""The work of push_clicks.py in one process: model and table in its own memory, nothing leased or exchanged.

local_clicks.py SAMPLES BATCH ROWS WIDTH: prints samples a second, after the first fifth, as JSON. No
arrangement of one worker and one parameter server can be faster than the part of this that its worker does.
"""

import json
import sys
import time

import torch
from torch import nn

torch.set_num_threads(1)
samples, batch, rows, width = map(int, sys.argv[1:])
generator = torch.Generator().manual_seed(0)
ids = torch.randint(0, rows, (samples, 8), generator=generator)
labels = torch.rand(samples, generator=generator).round()
model = nn.Sequential(
    nn.EmbeddingBag(rows, width, mode="sum", sparse=True),
    nn.Linear(width, 64),
    nn.ReLU(),
    nn.Linear(64, 1),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begun_at, began = 0, 0.0
for start in range(0, samples, batch):
    if not began and start >= samples // 5:
        began, begun_at = time.monotonic(), start
    part = slice(start, start + batch)
    optimizer.zero_grad()
    scores = model(ids[part]).squeeze(1)
    nn.functional.binary_cross_entropy_with_logits(scores, labels[part]).backward()
    optimizer.step()
print(json.dumps({"samples_per_second": (samples - begun_at) / (time.monotonic() - began)}), flush=True)

"""Offline inference in dynamic mode: every sample is scored exactly once while workers come and go.

    elastane run --ests 1 --workers 1:3 examples/offline_inference.py --out scores
    python examples/offline_inference.py --out scores               plain single process

Ours are the two lines marked `(elastane)`: init, and the loop over leased tasks. A task's scores go
to a file named after the task, put in place by a rename: a task done again writes the same file.
"""

import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import elastane


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("scores"))
    parser.add_argument("--task-size", type=int, default=16)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    job = elastane.init(seed=3)  # (elastane)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval()

    for task in job.tasks("digits", size=len(images), task_size=args.task_size):  # (elastane)
        with torch.no_grad():
            scores = net(images[task.indices.start : task.indices.stop]).argmax(1)
        part = args.out / f"part-{task.index:06d}.json"
        draft = part.with_suffix(f".{task.attempt}.draft")
        draft.write_text(json.dumps(dict(zip(task.indices, scores.tolist(), strict=True))))
        draft.replace(part)


if __name__ == "__main__":
    main()

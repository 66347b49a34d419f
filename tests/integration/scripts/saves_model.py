"""Trains a few steps and saves its model in the way that a script of the training service does.

argv: a folder; and when to save: "after" the loop over epochs, in its "last" epoch, or in "each". While the
file KILL exists in the folder, the process that first writes an uploaded file removes it and dies.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import torch

import elastane


def main() -> None:
    when = sys.argv[2]
    die_while_uploading(Path(sys.argv[1]) / "KILL")
    job = elastane.init(seed=1)
    net = torch.nn.Linear(8, 8)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8, generator=torch.Generator().manual_seed(0)))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = job.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    for epoch in job.epochs(3):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        if when == "each" or (when == "last" and epoch == 2):
            save(net)
    if when == "after":
        save(net)


def save(net: torch.nn.Module) -> None:
    with tempfile.TemporaryDirectory() as folder:  # every worker has the weights, and one of them uploads
        torch.save(net.state_dict(), f"{folder}/weights.pt")
        url = elastane.save_model(folder)
    print(f"saved: {url!r}", flush=True)


def die_while_uploading(marker: Path) -> None:
    def audit(event: str, arguments: tuple) -> None:
        if event == "os.rename" and "weights.pt" in str(arguments[1]) and marker.exists():
            marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


if __name__ == "__main__":
    main()

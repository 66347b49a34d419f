"""A tiny model trained for as long as it is let: steps of a few milliseconds, for those who look on."""

import time

import torch

import elastane


def main() -> None:
    job = elastane.init(seed=1)
    net = torch.nn.Linear(64, 64)
    data = torch.utils.data.TensorDataset(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = job.prepare(net, torch.optim.Adam(net.parameters(), 0.1), loader)
    for _ in job.epochs(10_000):
        for (x,) in loader:
            time.sleep(0.002)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()

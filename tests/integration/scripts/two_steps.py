"""A few steps of a tiny model: enough for a ring to form and finish."""

import torch

import elastane


def main() -> None:
    job = elastane.init(seed=1)
    net = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = job.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    for _ in job.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()

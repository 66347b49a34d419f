"""A tiny model that logs its loss."""

import torch

import elastane


def main() -> None:
    job = elastane.init(seed=1)
    net = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 2, generator=torch.Generator().manual_seed(0)))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = job.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    for _ in job.epochs(4):
        for (x,) in loader:
            loss = (model(x) - x.sum()).square().mean()
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()

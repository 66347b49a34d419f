"""A small model that logs its loss and takes its time: for screenshots. The argument: how many epochs."""

import sys
import time

import torch

import elastane


def main() -> None:
    job = elastane.init(seed=3)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1600, 8, generator=generator)
    data = torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
    model, optimizer, loader = job.prepare(net, torch.optim.SGD(net.parameters(), 0.05), loader)
    for _ in job.epochs(int(sys.argv[1])):
        for features, wanted in loader:
            loss = torch.nn.functional.mse_loss(model(features), wanted)
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.02)


if __name__ == "__main__":
    main()

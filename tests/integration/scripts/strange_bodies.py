"""Loop bodies that change more than an optimizer does, in an optimizer's step and after it. See --case."""

import argparse

import probed  # noqa: F401 - tells a test of points of the steps
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane


class OwnSGD(torch.optim.SGD):
    """An optimizer of the script."""


class CountedLoss(nn.Module):
    """A criterion with a state: how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return nn.functional.mse_loss(found, wanted) * (1 + self.count / 64)


class CountedData(TensorDataset):
    """A data set that counts what it is asked for."""

    count = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        self.count += 1
        return super().__getitem__(index)


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))


def build_optimizer(case: str, net: nn.Module) -> torch.optim.Optimizer:
    if case == "lbfgs":
        return torch.optim.LBFGS(net.parameters(), lr=0.05, max_iter=1)
    if case == "own optimizer":
        return OwnSGD(net.parameters(), lr=0.05, momentum=0.9)
    if case == "amsgrad":
        return torch.optim.AdamW(net.parameters(), lr=0.01, amsgrad=True)
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


@torch.no_grad()
def clamp(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.clamp_(-0.3, 0.3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", required=True)
    case = parser.parse_args().case

    job = elastane.init(seed=3)
    torch.manual_seed(5)
    net = build_model()
    optimizer = build_optimizer(case, net)
    generator = torch.Generator().manual_seed(1)
    data = CountedData(torch.randn(160, 8, generator=generator), torch.randn(160, 1, generator=generator))
    criterion, average = CountedLoss(), torch.optim.swa_utils.AveragedModel(net)
    scaler = torch.amp.GradScaler("cpu", enabled=case == "scaler", init_scale=8.0, growth_interval=3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=1)
    cyclic = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.06, step_size_up=3, cycle_momentum=False)
    loader = DataLoader(data, 4, shuffle=True)
    job.register("criterion", criterion)
    model, optimizer, loader, average, scaler, plateau, cyclic = job.prepare(
        net, optimizer, loader, average, scaler, plateau, cyclic
    )
    probe = torch.ones(3, 8)
    if case == "hook":
        optimizer.register_step_post_hook(lambda *_: clamp(net))

    for _ in job.epochs(2):
        for x, y in loader:
            if case == "job.step":
                net[3].p = 0.5 if job.step >= 14 else 0.1
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            if case == "clipping":
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            if case == "lbfgs":
                optimizer.step(lambda: net[4].bias.detach().sum())
            else:
                scaler.step(optimizer)
                scaler.update()
            if case == "plateau":
                plateau.step(1.0)
            if case == "cyclic":
                cyclic.step()
            if case == "average":
                average.update_parameters(net)
            if case == "other memory" and job.stepped:
                for parameter in net.parameters():
                    parameter.data = parameter.data * 0.999
            if case == "evaluated":
                net.eval()
                with torch.no_grad():
                    net(probe)
                net.train()


if __name__ == "__main__":
    main()

"""After PyTorch's VAE example: noise in the forward pass, tests on all ranks, a sample between epochs.

torchrun --nproc-per-node 4 vae_ddp.py
"""

import argparse

import digest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from synthetic import Images
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, 6)
        self.fc22 = nn.Linear(32, 6)
        self.fc3 = nn.Linear(6, 32)
        self.fc4 = nn.Linear(32, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    likelihood = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    return likelihood - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def train(model, train_loader, optimizer, epoch):
    model.train()
    train_loss = 0.0
    for data, _ in train_loader:
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(f"====> Epoch: {epoch} loss of the samples seen here: {train_loss:.4f}")


def test(model, test_loader):
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for data, _ in test_loader:
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
    print(f"====> Test set loss: {test_loss / len(test_loader.dataset):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    train_set, test_set = Images(120), Images(40, seed=1)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, args.batch_size)

    model = DDP(VAE())
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        if dist.get_rank() == 0:
            with torch.no_grad():
                sample = model.module.decode(torch.randn(16, 6))
            print(f"sampled pictures, mean {sample.mean():.4f}")

    if dist.get_rank() == 0:
        digest.show(model=model, optimizer=optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

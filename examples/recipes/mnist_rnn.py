"""After PyTorch's MNIST example with an LSTM: the rows of a picture are read one after the other.

elastane run --ests 4 mnist_rnn.py
"""

import argparse

import digest
import torch
import torch.nn.functional as F
from synthetic import Images
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler

import elastane


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(input_size=8, hidden_size=16, batch_first=True)
        self.batchnorm = nn.BatchNorm1d(16)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(16, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, rows):
        output, _ = self.rnn(rows.squeeze(1))
        output = self.dropout1(self.batchnorm(output[:, -1]))
        output = self.dropout2(F.relu(self.fc1(output)))
        return F.log_softmax(self.fc2(output), dim=1)


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}] Loss: {loss.item():.6f}")


def test(model, test_loader):
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    print(f"Test: loss {test_loss / len(test_loader.dataset):.4f}, {correct} correct")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()

    job = elastane.init()
    torch.manual_seed(args.seed)
    train_set, test_set = Images(120), Images(64, seed=1)
    sampler = DistributedSampler(train_set, job.num_ests, 0, shuffle=True, seed=1)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, args.batch_size, shuffle=True)

    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    model, optimizer, train_loader, scheduler = job.prepare(model, optimizer, train_loader, scheduler)
    for epoch in job.epochs(args.epochs):
        sampler.set_epoch(epoch)
        train(args, model, train_loader, optimizer, epoch + 1)
        test(model, test_loader)
        scheduler.step()

    if job.is_leader:
        digest.show(model=model, optimizer=optimizer)


if __name__ == "__main__":
    main()

"""Digits on stock DistributedDataParallel: a `pytorch` run of the training service.

    elastane submit --model digits --framework pytorch --instances 3 --param SEED=7 digits_ddp.py --epochs 10

Nothing of Elastane trains here; its one call hands the model to the service.
"""

import argparse
import os

import torch
import torch.distributed as dist
from digits import BATCH_SIZE, accuracy, build_model, digits, save, wait_for_signal
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
arguments = parser.parse_args()

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
seed = int(os.environ.get("SEED", "0"))
dist.init_process_group("gloo")
torch.manual_seed(seed)
net = build_model()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
data = digits(train=True)
sampler = DistributedSampler(data)
loader = DataLoader(data, BATCH_SIZE, sampler=sampler)
model = DistributedDataParallel(net)
torch.manual_seed(seed + dist.get_rank())
for epoch in range(arguments.epochs):
    wait_for_signal(epoch)
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: accuracy {accuracy(net):.4f}", flush=True)
save(net)
dist.destroy_process_group()
print("the training is over", flush=True)

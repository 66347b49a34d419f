"""After PyTorch's DCGAN example, both networks in one module and both losses from one forward.

torchrun --nproc-per-node 4 gan_ddp.py
"""

import digest
import torch
import torch.distributed as dist
from synthetic import Images
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())
        self.discriminator = nn.Sequential(
            nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(32, 1)
        )

    def forward(self, real):
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = self.generator(torch.randn(len(real), 8))
        self.discriminator.requires_grad_(False)
        loss_g = bce(self.discriminator(fake), ones)
        self.discriminator.requires_grad_(True)
        loss_d = bce(self.discriminator(real.flatten(1)), ones)
        return loss_g, loss_d + bce(self.discriminator(fake.detach()), zeros)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(999)
    dataset = Images(120)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 8, sampler=sampler)
    gan = Gan()
    optimizer_g = torch.optim.Adam(gan.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(gan.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    model = DDP(gan)
    fixed_noise = torch.randn(4, 8)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for real, _ in loader:
            loss_g, loss_d = model(real)
            optimizer_g.zero_grad()
            optimizer_d.zero_grad()
            (loss_g + loss_d).backward()
            optimizer_g.step()
            optimizer_d.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                print(f"epoch {epoch}: pictures of mean {gan.generator(fixed_noise).mean():.4f}")

    if dist.get_rank() == 0:
        digest.show(model=model, optimizer_g=optimizer_g, optimizer_d=optimizer_d)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""After Masked Autoencoders: a rate for each fraction of an epoch, a scaler in a wrapper, random masks.

elastane run --ests 4 mae.py
"""

import argparse
import math
import sys

import digest
import numpy as np
import torch
from synthetic import Images
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import elastane


class NativeScalerWithGradNormCount:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
        self._scaler.scale(loss).backward()
        if not update_grad:
            return None
        self._scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, clip_grad if clip_grad is not None else math.inf)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict):
        self._scaler.load_state_dict(state_dict)


class MaskedAutoencoder(nn.Module):
    def __init__(self, patch=2, width=16):
        super().__init__()
        self.patch = patch
        self.patch_embed = nn.Linear(patch * patch, width)
        self.pos_embed = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.mask_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True)
        self.decoder_pred = nn.Linear(width, patch * patch)

    def patchify(self, imgs):
        p = self.patch
        return imgs.unfold(2, p, p).unfold(3, p, p).reshape(len(imgs), -1, p * p)

    def random_masking(self, x, mask_ratio):
        N, L, D = x.shape
        len_keep = int(L * (1 - mask_ratio))
        noise = torch.rand(N, L)
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        kept = torch.gather(x, 1, ids_shuffle[:, :len_keep, None].expand(-1, -1, D))
        mask = torch.ones(N, L)
        mask[:, :len_keep] = 0
        return kept, torch.gather(mask, 1, ids_restore), ids_restore

    def forward(self, imgs, mask_ratio=0.75):
        target = self.patchify(imgs)
        x, mask, ids_restore = self.random_masking(self.patch_embed(target) + self.pos_embed, mask_ratio)
        x = self.encoder(x)
        tokens = self.mask_token.expand(len(x), ids_restore.shape[1] - x.shape[1], -1)
        x = torch.cat([x, tokens], dim=1)
        x = torch.gather(x, 1, ids_restore[..., None].expand(-1, -1, x.shape[2])) + self.pos_embed
        loss = (self.decoder_pred(x) - target).pow(2).mean(-1)
        return (loss * mask).sum() / mask.sum()


def adjust_learning_rate(optimizer, epoch, args):
    """Half a cosine after a warmup; epoch: with its fraction."""
    if epoch < args.warmup_epochs:
        lr = args.lr * epoch / args.warmup_epochs
    else:
        done = (epoch - args.warmup_epochs) / (args.epochs - args.warmup_epochs)
        lr = args.min_lr + (args.lr - args.min_lr) * 0.5 * (1.0 + math.cos(math.pi * done))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    return lr


def train_one_epoch(model, data_loader, optimizer, epoch, loss_scaler, args):
    model.train(True)
    accum_iter = args.accum_iter
    optimizer.zero_grad()
    for samples, _ in data_loader:
        data_iter_step = job.step % len(data_loader)
        if data_iter_step % accum_iter == 0:
            lr = adjust_learning_rate(optimizer, data_iter_step / len(data_loader) + epoch, args)
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):
            loss = model(samples, mask_ratio=args.mask_ratio)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        loss /= accum_iter
        loss_scaler(
            loss,
            optimizer,
            clip_grad=args.clip_grad,
            parameters=model.parameters(),
            update_grad=(data_iter_step + 1) % accum_iter == 0,
        )
        if (data_iter_step + 1) % accum_iter == 0:
            optimizer.zero_grad()
        if (data_iter_step + 1) % 5 == 0:
            print(f"Epoch: [{epoch}] lr: {lr:.6f} loss: {loss_value:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accum_iter", type=int, default=1)
    parser.add_argument("--mask_ratio", type=float, default=0.75)
    parser.add_argument("--clip_grad", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--min_lr", type=float, default=0.0)
    parser.add_argument("--warmup_epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)

    dataset_train = Images(120)
    sampler_train = DistributedSampler(dataset_train, job.num_ests, 0, shuffle=True)
    data_loader_train = DataLoader(dataset_train, args.batch_size, sampler=sampler_train, drop_last=True)
    model = MaskedAutoencoder()
    model_without_ddp = model
    optimizer = torch.optim.AdamW(model_without_ddp.parameters(), lr=args.lr, betas=(0.9, 0.95))
    loss_scaler = NativeScalerWithGradNormCount()

    model, optimizer, data_loader_train, _ = job.prepare(model, optimizer, data_loader_train, loss_scaler)

    for epoch in job.epochs(args.epochs):
        if epoch == 0:
            for rank in job.each_rank():
                torch.manual_seed(args.seed + rank)
                np.random.seed(args.seed + rank)
                MaskedAutoencoder()  # draws what building the model drew
        data_loader_train.sampler.set_epoch(epoch)
        train_one_epoch(model, data_loader_train, optimizer, epoch, loss_scaler, args)
        if job.is_leader:
            torch.save({"model": model_without_ddp.state_dict(), "epoch": epoch}, f"checkpoint-{epoch}.pth")

    if job.is_leader:
        digest.show(model=model, optimizer=optimizer, scaler=loss_scaler)


if __name__ == "__main__":
    job = elastane.init()
    main()

"""After minGPT: no epochs, a sampler of 10^10 draws, callbacks, samples in the middle.

torchrun --nproc-per-node 4 mingpt_ddp.py
"""

import random
from collections import defaultdict

import digest
import numpy as np
import synthetic
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, RandomSampler


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class CharDataset(Dataset):
    def __init__(self, block_size):
        self.data, self.block_size = synthetic.text(500), block_size

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, idx):
        chunk = self.data[idx : idx + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    """Predicts from the mean of the codes so far: enough of a language model for a recipe."""

    def __init__(self, words=16, width=32):
        super().__init__()
        self.wte, self.drop = nn.Embedding(words, width), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Dropout(0.1))
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, idx, targets=None):
        x = self.drop(self.wte(idx))
        mean = x.cumsum(1) / torch.arange(1, idx.shape[1] + 1)[:, None]
        logits = self.lm_head(self.mlp(torch.cat([x, mean], dim=-1)))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            logits, _ = self(idx)
            idx_next = torch.multinomial(F.softmax(logits[:, -1], dim=-1), num_samples=1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


class Trainer:
    def __init__(self, config, model, train_dataset):
        self.config = config
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
        self.module, self.model = model, DDP(model)
        self.train_dataset = train_dataset
        self.callbacks = defaultdict(list)
        self.iter_num = 0

    def add_callback(self, onevent, callback):
        self.callbacks[onevent].append(callback)

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        config, rank = self.config, dist.get_rank()
        draws = torch.Generator().manual_seed(config["seed"] + rank)
        train_loader = DataLoader(
            self.train_dataset,
            sampler=RandomSampler(
                self.train_dataset, replacement=True, num_samples=int(1e10), generator=draws
            ),
            shuffle=False,
            batch_size=config["batch_size"],
        )
        self.model.train()
        data_iter = iter(train_loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            x, y = batch
            logits, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config["grad_norm_clip"])
            self.optimizer.step()
            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1
            if config["max_iters"] is not None and self.iter_num >= config["max_iters"]:
                break


def batch_end_callback(trainer):
    if trainer.iter_num % 5 == 0 and dist.get_rank() == 0:
        trainer.module.eval()
        sampled = trainer.module.generate(torch.zeros(1, 1, dtype=torch.long), 8)
        print(f"iter {trainer.iter_num}: sampled {sampled[0].tolist()}")
        trainer.module.train()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    config = {"learning_rate": 5e-4, "batch_size": 8, "grad_norm_clip": 1.0, "max_iters": 24, "seed": 3407}
    set_seed(config["seed"])
    trainer = Trainer(config, GPT(), CharDataset(block_size=12))
    trainer.add_callback("on_batch_end", batch_end_callback)
    trainer.run()
    if dist.get_rank() == 0:
        digest.show(model=trainer.module, optimizer=trainer.optimizer)
    dist.destroy_process_group()

"""After minGPT: no epochs, a sampler of 10^10 draws, callbacks, samples in the middle.

elastane run --ests 4 mingpt.py
"""

import random
from collections import defaultdict

import digest
import numpy as np
import synthetic
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

import elastane


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


class RankSampler(RandomSampler):
    """What each rank draws by itself."""

    def __init__(self, data_source, num_replicas, rank, seed, **options):
        super().__init__(data_source, **options)
        self.num_replicas, self.rank, self.seed = num_replicas, rank, seed

    def __iter__(self):
        self.generator = torch.Generator().manual_seed(self.seed + self.rank)
        return super().__iter__()


class Trainer:
    def __init__(self, config, model, train_dataset):
        self.config = config
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
        draws = RankSampler(
            train_dataset, job.num_ests, 0, config["seed"], replacement=True, num_samples=int(1e10)
        )
        train_loader = DataLoader(
            train_dataset, sampler=draws, shuffle=False, batch_size=config["batch_size"]
        )
        self.model, self.optimizer, self.train_loader = job.prepare(model, self.optimizer, train_loader)
        self.callbacks = defaultdict(list)

    def add_callback(self, onevent, callback):
        self.callbacks[onevent].append(callback)

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        for _ in job.epochs(1, max_steps=self.config["max_iters"]):
            self.model.train()
            for x, y in self.train_loader:
                self.iter_num = job.step
                self.trigger_callbacks("on_batch_start")
                logits, self.loss = self.model(x, y)
                self.model.zero_grad(set_to_none=True)
                self.loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config["grad_norm_clip"])
                self.optimizer.step()


def batch_start_callback(trainer):
    """What rank 0 did at the end of the batch before: there its draws are those of its next batch, too."""
    if trainer.iter_num % 5 == 1 and job.rank == 0:
        trainer.model.eval()
        sampled = trainer.model.generate(torch.zeros(1, 1, dtype=torch.long), 8)
        print(f"iter {trainer.iter_num - 1}: sampled {sampled[0].tolist()}")
        trainer.model.train()


if __name__ == "__main__":
    job = elastane.init()
    config = {"learning_rate": 5e-4, "batch_size": 8, "grad_norm_clip": 1.0, "max_iters": 24, "seed": 3407}
    set_seed(config["seed"])
    trainer = Trainer(config, GPT(), CharDataset(block_size=12))
    trainer.add_callback("on_batch_start", batch_start_callback)
    trainer.run()
    if job.is_leader:
        digest.show(model=trainer.model, optimizer=trainer.optimizer)

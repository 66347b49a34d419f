"""After Accelerate's nlp_example: sentences padded as they come, a linear warmup, a metric each epoch.

elastane run --ests 4 nlp_example.py
"""

import argparse
import random

import digest
import numpy as np
import torch
from synthetic import Sentences
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler

import elastane


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Bert(nn.Module):
    def __init__(self, words=18, width=16):
        super().__init__()
        self.embeddings = nn.Embedding(words, width, padding_idx=0)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask, labels):
        x = self.encoder(self.embeddings(input_ids), src_key_padding_mask=~attention_mask)
        logits = self.classifier(self.dropout(x[:, 0]))
        return nn.functional.cross_entropy(logits, labels), logits


def collate_fn(examples):
    input_ids = nn.utils.rnn.pad_sequence([e["input_ids"] for e in examples], batch_first=True)
    labels = torch.tensor([e["labels"] for e in examples])
    return {"input_ids": input_ids, "attention_mask": input_ids != 0, "labels": labels}


def get_dataloaders(batch_size, num_ests):
    train_set, eval_set = Sentences(120), Sentences(48, seed=1)
    train_sampler = DistributedSampler(train_set, num_ests, 0)
    train_dataloader = DataLoader(
        train_set, batch_size, sampler=train_sampler, collate_fn=collate_fn, drop_last=True
    )
    eval_dataloader = DataLoader(eval_set, 16, collate_fn=collate_fn)
    return train_dataloader, eval_dataloader


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def factor(step):
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))

    return LambdaLR(optimizer, factor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--batch_size", type=int, default=8)
    args = parser.parse_args()

    job = elastane.init()
    set_seed(args.seed)
    train_dataloader, eval_dataloader = get_dataloaders(args.batch_size, job.num_ests)
    model = Bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=5, num_training_steps=len(train_dataloader) * args.num_epochs
    )

    model, optimizer, train_dataloader, lr_scheduler = job.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )

    for epoch in job.epochs(args.num_epochs):
        model.train()
        train_dataloader.sampler.set_epoch(epoch)
        for batch in train_dataloader:
            loss, _ = model(**batch)
            loss.backward()
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        model.eval()
        correct = torch.zeros(2)
        for batch in eval_dataloader:
            with torch.no_grad():
                _, logits = model(**batch)
            predictions = logits.argmax(dim=-1)
            correct += torch.tensor([(predictions == batch["labels"]).sum(), len(predictions)])
        if job.is_leader:
            print(f"epoch {epoch}: accuracy {correct[0] / correct[1]:.4f}")

    if job.is_leader:
        digest.show(model=model, optimizer=optimizer)


if __name__ == "__main__":
    main()

"""The form of Accelerate's examples/nlp_example.py, with a small model of its own."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 50, (size, 8), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens.sum() % 3).long()}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 3))

    def forward(self, input_ids, labels):
        logits = self.layers(self.embedding(input_ids).mean(1))
        return logits, nn.functional.cross_entropy(logits, labels)


def training_function(args):
    accelerator = Accelerator(
        gradient_accumulation_steps=args.accumulate,
        mixed_precision=args.mixed_precision,
        dataloader_config=DataLoaderConfiguration(
            split_batches=args.split, use_seedable_sampler=args.seedable
        ),
    )
    set_seed(42)
    model = Classifier()
    train_dataloader = DataLoader(Sentences(101, 1), shuffle=True, batch_size=6)
    eval_dataloader = DataLoader(Sentences(40, 2), shuffle=False, batch_size=6)
    model = model.to(accelerator.device)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=2e-3)
    steps = len(train_dataloader) * args.epochs // args.accumulate
    lr_scheduler = LambdaLR(optimizer, lambda step: max(0.1, 1 - step / steps))
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(args.epochs):
        model.train()
        for batch in train_dataloader:
            with accelerator.accumulate(model):
                _, loss = model(**batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right, seen = 0, 0
        for batch in eval_dataloader:
            with torch.no_grad():
                logits, _ = model(**batch)
            predictions, references = accelerator.gather_for_metrics((logits.argmax(dim=-1), batch["labels"]))
            right += (predictions == references).sum().item()
            seen += len(references)
        accelerator.print(f"epoch {epoch}: {right} of {seen}")
        assert seen == 40
        # The metric decides on the training, so that its bits are those of the weights.
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.01 * right / seen
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--mixed-precision", default="no")
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--seedable", action="store_true")
    training_function(parser.parse_args())

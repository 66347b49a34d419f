"""A text classifier with Trainer: evaluation, checkpoints, early stopping, accumulation."""

import argparse

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, TrainingArguments
from transformers.trainer import Trainer


class Sentences(Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 60, (size, 8), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens.sum() % 3).long()}


def compute_metrics(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--evaluate", default="epoch", help="epoch or a number of steps")
    parser.add_argument("--patience", type=int, default=0)
    args = parser.parse_args()
    by_epoch = args.evaluate == "epoch"
    training_args = TrainingArguments(
        "out",
        num_train_epochs=3,
        max_steps=args.max_steps,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=2e-3,
        warmup_steps=2,
        logging_steps=2,
        eval_strategy="epoch" if by_epoch else "steps",
        eval_steps=None if by_epoch else int(args.evaluate),
        save_strategy="epoch" if by_epoch else "steps",
        save_steps=500 if by_epoch else int(args.evaluate),
        metric_for_best_model="accuracy",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=3,
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        training_args,
        train_dataset=Sentences(70, 1),
        eval_dataset=Sentences(22, 2),
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(args.patience)] if args.patience else [],
    )
    trainer.train()


if __name__ == "__main__":
    main()

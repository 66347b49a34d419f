"""Digits as bags of 64 tokens, one for each pixel and its value, trained with parameter servers.

    elastane run --ests 1 --ps 2 --workers 1:4 examples/digits_tokens.py
    python examples/digits_tokens.py                    alone, everything in one process

Needs scikit-learn for its 1,797 digits of 8 x 8 pixels with 17 values. Fails below an accuracy of 0.95 on
digits that were not trained on. Ours are the lines marked `(elastane)`.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import elastane

PIXELS, VALUES, WIDTH, TRAINED = 64, 17, 64, 1437
NOISE = 5
"""A pixel's value is moved by up to so much in training: rows of near values would have nothing in common."""


def digits() -> tuple[Tensor, Tensor]:
    """Pixels and labels, in an order of our own: the data set's goes by writer."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(data.data).long()[order], torch.from_numpy(data.target).long()[order]


def tokens(pixels: Tensor) -> Tensor:
    return torch.arange(PIXELS) * VALUES + pixels.clamp(0, VALUES - 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=16)
    args = parser.parse_args()

    job = elastane.init(seed=3)  # (elastane)
    pixels, labels = digits()
    bags = nn.EmbeddingBag(PIXELS * VALUES, WIDTH, mode="sum", sparse=True)
    model = nn.Sequential(bags, nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizers = [
        torch.optim.Adam(model[2].parameters(), lr=3e-3),
        elastane.RowOptimizer(bags.parameters(), "rowwise_adagrad", lr=0.02),  # (elastane)
    ]
    job.prepare_ps(model, optimizers, initial=("normal", 0.03))  # (elastane)

    for task in job.tasks("digits", size=TRAINED, task_size=args.task_size, epochs=args.epochs):  # (elastane)
        part = slice(task.indices.start, task.indices.stop)
        noisy = pixels[part] + torch.randint(-NOISE, NOISE + 1, pixels[part].shape)
        with job.push(task):  # (elastane)
            cross_entropy(model(tokens(noisy)), labels[part]).backward()

    with job.evaluate():  # (elastane)
        found = model(tokens(pixels[TRAINED:])).argmax(1)
    accuracy = (found == labels[TRAINED:]).double().mean().item()
    print(f"accuracy {accuracy:.3f}")
    if accuracy < 0.95:
        raise SystemExit("below 0.95")


if __name__ == "__main__":
    main()

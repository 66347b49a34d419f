"""Wide and deep: clicks on pages, trained asynchronously with parameter servers.

    elastane run --ests 1 --ps 2 --workers 1:4 examples/wide_deep.py
    python examples/wide_deep.py                        alone, everything in one process

The clicks are drawn from a model that is known, so the best possible AUC is known too; the script prints both
and fails below 0.98 of it. Ours are the lines marked `(elastane)`. The training service keeps the model, too:

    elastane submit --model clicks --instances 4 --parameter-servers 2 examples/wide_deep.py
"""

import argparse
import tempfile

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import elastane

USERS, PAGES, WIDTH = 100, 50, 4


class WideDeep(nn.Module):
    """wide: a weight for each user and page. deep: layers over the embeddings of both."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(USERS + PAGES, 1, mode="sum", sparse=True)
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.pages = nn.Embedding(PAGES, WIDTH, sparse=True)
        self.deep = nn.Sequential(nn.Linear(3 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users: Tensor, pages: Tensor) -> Tensor:
        user, page = self.users(users), self.pages(pages)
        wide = self.wide(torch.stack([users, USERS + pages], 1))
        return (wide + self.deep(torch.cat([user, page, user * page], 1))).squeeze(1)


def clicks(samples: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Users, pages, whether they clicked, and the log-odds by which that was drawn."""
    generator = torch.Generator().manual_seed(1)
    tastes = torch.randn(USERS, 2, generator=generator)
    topics = torch.randn(PAGES, 2, generator=generator)
    likes = torch.randn(USERS, generator=generator)
    users = torch.randint(0, USERS, (samples,), generator=generator)
    pages = torch.randint(0, PAGES, (samples,), generator=generator)
    odds = likes[users] + (tastes[users] * topics[pages]).sum(1)
    clicked = (torch.rand(samples, generator=generator) < odds.sigmoid()).float()
    return users, pages, clicked, odds


def auc(scores: Tensor, clicked: Tensor) -> float:
    """Probability that a click scores above what was not clicked."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    hits = clicked.sum().item()
    above = ranks[clicked == 1].sum().item() - hits * (hits + 1) / 2
    return above / (hits * (len(scores) - hits))


def save(model: WideDeep) -> None:
    """Keep the weights where the training service wants them; rows are not in `state_dict()`."""
    rows = {
        "wide.weight": model.wide(torch.arange(USERS + PAGES).unsqueeze(1)),
        "users.weight": model.users(torch.arange(USERS)),
        "pages.weight": model.pages(torch.arange(PAGES)),
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict() | rows, f"{folder}/weights.pt")
        elastane.save_model(folder)  # (elastane)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--task-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--prefetch", type=int, default=0)
    args = parser.parse_args()

    job = elastane.init(seed=3)  # (elastane)
    users, pages, clicked, odds = clicks(args.samples + 20_000)
    test = slice(args.samples, None)
    model = WideDeep()
    rows = [*model.wide.parameters(), *model.users.parameters(), *model.pages.parameters()]
    optimizers = [
        torch.optim.Adam(model.deep.parameters(), lr=1e-2),
        elastane.RowOptimizer(rows, "rowwise_adagrad", lr=0.3),  # (elastane)
    ]
    job.prepare_ps(model, optimizers, initial=("normal", 0.1))  # (elastane)

    tasks = job.tasks(  # (elastane)
        "clicks", size=args.samples, task_size=args.task_size, epochs=args.epochs, prefetch=args.prefetch
    )
    for task in tasks:
        part = slice(task.indices.start, task.indices.stop)
        with job.push(task):  # (elastane)
            binary_cross_entropy_with_logits(model(users[part], pages[part]), clicked[part]).backward()

    with job.evaluate():  # (elastane)
        found = auc(model(users[test], pages[test]), clicked[test])
        save(model)
    best = auc(odds[test], clicked[test])
    print(f"AUC {found:.4f}, {found / best:.3f} of the best possible {best:.4f}")
    if found < 0.98 * best:
        raise SystemExit("below 0.98 of the best possible")


if __name__ == "__main__":
    main()

"""The loading that data_pipeline.py times: a stock rank, or a worker that hosts all ranks as ESTs.

    data_script.py stock|shared --dataset D --ests K --workers W --batch B ... --baton SOCKET

Batches are loaded and discarded. For each, "shared" does what the trainer does: restore the EST's generators
and loader position, load the batch, capture the EST's context.
"""

import argparse
import contextlib
import hashlib
import zlib

import torch
from baton import Runner
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IMAGE = (3, 64, 64)


class Decoded(Dataset):
    """Compressed images, decompressed, cropped and flipped at random: a load for the CPU."""

    def __init__(self, length):
        self.length = length
        generator = torch.Generator().manual_seed(0)
        noise = torch.randint(0, 24, (64, *IMAGE), dtype=torch.uint8, generator=generator)
        self.files = [zlib.compress(image.numpy().tobytes()) for image in noise]

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        raw = bytearray(zlib.decompress(self.files[index % len(self.files)]))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(IMAGE).float().div_(255.0)
        top, left = torch.randint(0, 8, (2,)).tolist()
        image = image[:, top : top + 56, left : left + 56]
        return (image.flip(2) if torch.rand(()) < 0.5 else image).contiguous(), index % 10


class Rows(Dataset):
    """Rows of a table in memory: passing batches between processes costs more than making them."""

    def __init__(self, length):
        self.length = length
        self.rows = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.rows[index % len(self.rows)], index % 10


DATASETS = {"decode": Decoded, "rows": Rows}


class Digests:
    """Digests of a sample of the batches, by rank."""

    def __init__(self, ranks):
        self.by_rank = {rank: hashlib.sha256() for rank in ranks}

    def add(self, rank, number, batch):
        if number % 16 == 0:
            for part in batch:
                self.by_rank[rank].update(part.numpy().tobytes())

    def all(self):
        return {str(rank): sha.hexdigest() for rank, sha in self.by_rank.items()}


def load_stock(args, dataset):
    sampler = DistributedSampler(dataset, args.ests, args.rank, shuffle=False)
    loader = DataLoader(dataset, args.batch, sampler=sampler, num_workers=args.workers)
    torch.manual_seed(1 + args.rank)
    runner = Runner(args.baton, args.segment, leader=args.rank == 0)
    digests = Digests([args.rank])
    for number, batch in enumerate(loader):
        runner.step(number)
        digests.add(args.rank, number, batch)
    runner.end(digests=digests.all())


def load_shared(args, dataset):
    from elastane.context import EstContext
    from elastane.data.source import BatchSource
    from elastane.rng import Generators

    source = BatchSource(DataLoader(dataset, args.batch, num_workers=args.workers), args.ests)
    source.start()
    generators, ranks = Generators(), range(args.ests)
    contexts = {}
    for rank in ranks:
        torch.manual_seed(1 + rank)
        contexts[rank] = EstContext.initial(rank, generators.capture())
    source.position(contexts, 0)
    runner = Runner(args.baton, args.segment * args.ests, leader=True)
    digests = Digests(ranks)
    for number in range(args.batches):
        for rank in ranks:
            generators.exchange(contexts[rank].parts)
            batch, _ = source.begin(rank)
            runner.step(number * args.ests + rank)
            digests.add(rank, number, batch)
            parts = source.finish(rank)
            contexts[rank] = contexts[rank].next(generators.capture(), parts)
    runner.end(digests=digests.all())
    source.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("stock", "shared"))
    parser.add_argument("--dataset", choices=DATASETS, required=True)
    parser.add_argument("--ests", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True, help="data workers of a process")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True, help="of each rank")
    parser.add_argument("--segment", type=int, required=True, help="batches of each rank in a segment")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--baton", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = DATASETS[args.dataset](args.batches * args.batch * args.ests)
    with contextlib.suppress(BrokenPipeError):
        {"stock": load_stock, "shared": load_shared}[args.side](args, dataset)


if __name__ == "__main__":
    main()

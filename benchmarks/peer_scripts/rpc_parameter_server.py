"""The parameter server of PyTorch's RPC tutorials, and one trainer: prints its figures as JSON.

    rpc_parameter_server.py train PORT SAMPLES BATCH ROWS WIDTH    forward and backward at the server
    rpc_parameter_server.py rows PORT SAMPLES BATCH ROWS WIDTH     forward and backward at the trainer
    rpc_parameter_server.py push PORT BYTES SECONDS                gradients sent to it, which it applies

train: as in "Implementing a Parameter Server Using Distributed RPC Framework": the server holds the model,
and the trainer uses its forward, distributed autograd and the distributed optimizer. rows: the same model,
but a step pulls the rows of its ids and all dense weights, and pushes their gradients. push: as in
"Implementing Batch RPC Processing Using Asynchronous Executions", with a batch of one and without the model
in the answer.
"""

import json
import os
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.optim import DistributedOptimizer

SERVER, TRAINER = "parameter_server", "trainer"


class Model(nn.Module):
    """The tutorial's ParameterServer: it holds the model, and its forward is called by RPC."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(rows, width, mode="sum", sparse=True)
        self.deep = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.deep(self.bags(ids)).squeeze(1)

    def parameter_rrefs(self) -> list[rpc.RRef]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]


class RowsAndWeights:
    """Rows of an embedding and dense weights: read, and updated by SGD, in one call each."""

    def __init__(self, rows: int, width: int) -> None:
        self.model = Model(rows, width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def pull(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.model.bags.weight.detach()[ids], [w.detach() for w in self.model.deep.parameters()]

    def push(self, ids: Tensor, rows: Tensor, dense: list[Tensor]) -> None:
        weight = self.model.bags.weight
        weight.grad = torch.sparse_coo_tensor(ids[None], rows, weight.shape, is_coalesced=True)
        for parameter, gradient in zip(self.model.deep.parameters(), dense, strict=True):
            parameter.grad = gradient
        self.optimizer.step()


class Weights:
    """The weights to which pushes are applied."""

    def __init__(self, count: int) -> None:
        self.values = nn.Parameter(torch.zeros(count))
        self.optimizer = torch.optim.SGD([self.values], lr=0.01)

    def apply(self, gradient: Tensor) -> None:
        self.values.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()


def train(samples: int, batch: int, rows: int, width: int) -> dict[str, float]:
    model = rpc.remote(SERVER, Model, args=(rows, width))
    optimizer = DistributedOptimizer(torch.optim.SGD, model.rpc_sync().parameter_rrefs(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, rows, (samples, 8), generator=generator)
    labels = torch.rand(samples, generator=generator).round()
    warm, began = samples // 5, 0.0
    for start in range(0, samples, batch):
        if start <= warm < start + batch:
            began, warm = time.monotonic(), start
        part = slice(start, start + batch)
        with dist_autograd.context() as context:
            scores = model.rpc_sync().forward(ids[part])
            loss = nn.functional.binary_cross_entropy_with_logits(scores, labels[part])
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
    return {"samples_per_second": (samples - warm) / (time.monotonic() - began)}


def train_rows(samples: int, batch: int, rows: int, width: int) -> dict[str, float]:
    server = rpc.remote(SERVER, RowsAndWeights, args=(rows, width))
    deep = Model(1, width).deep
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, rows, (samples, 8), generator=generator)
    labels = torch.rand(samples, generator=generator).round()
    warm, began = samples // 5, 0.0
    for start in range(0, samples, batch):
        if start <= warm < start + batch:
            began, warm = time.monotonic(), start
        part = slice(start, start + batch)
        own, places = torch.unique(ids[part], return_inverse=True)
        pulled, dense = server.rpc_sync().pull(own)
        with torch.no_grad():
            for parameter, values in zip(deep.parameters(), dense, strict=True):
                parameter.copy_(values)
                parameter.grad = None
        leaf = pulled.requires_grad_()
        scores = deep(nn.functional.embedding_bag(places, leaf, mode="sum")).squeeze(1)
        nn.functional.binary_cross_entropy_with_logits(scores, labels[part]).backward()
        server.rpc_sync().push(own, leaf.grad, [parameter.grad for parameter in deep.parameters()])
    return {"samples_per_second": (samples - warm) / (time.monotonic() - began)}


def push(size: int, seconds: float) -> dict[str, float]:
    weights = rpc.remote(SERVER, Weights, args=(size // 4,))
    gradient = torch.full((size // 4,), 1e-6)
    for _ in range(20):
        weights.rpc_sync().apply(gradient)
    count, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        weights.rpc_sync().apply(gradient)
        count += 1
    return {"pushes_per_second": count / (time.monotonic() - began)}


def run(rank: int, arguments: list[str]) -> None:
    torch.set_num_threads(1)
    kind, port, *rest = arguments
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8)
    rpc.init_rpc(TRAINER if rank else SERVER, rank=rank, world_size=2, rpc_backend_options=options)
    if rank:
        numbers = [float(each) for each in rest]
        if kind == "push":
            found = push(int(numbers[0]), numbers[1])
        else:
            found = (train_rows if kind == "rows" else train)(*map(int, numbers))
        print(json.dumps(found), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1:],), nprocs=2)

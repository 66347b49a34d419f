"""A random training script, drawn from a seed: what it trains, how it is fed, on how many ESTs. Pure.

Every draw is made whether it counts or not, so that a case keeps its other features when one dimension
gets a further value at the end. What torch or the job would refuse is not drawn.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass
from typing import Final

MODELS: Final = ("mlp", "cnn", "transformer", "branching", "bag", "wide")
PRECISIONS: Final = ("float32", "float32", "float32", "bf16-autocast", "fp16-scaler", "bf16", "float64")
OPTIMIZERS: Final = (
    "sgd",
    "nesterov",
    "adam",
    "adamw",
    "amsgrad",
    "rmsprop",
    "adagrad",
    "nadam",
    "two",
    "groups",
)
SCHEDULES: Final = ("none", "step", "epoch", "both", "one-cycle")
CLIPS: Final = ("none", "norm", "value")
SAMPLERS: Final = (
    "shuffle", "shuffle", "sequential", "distributed", "weighted", "replacement", "random", "batches",
    "stream", "stateful-stream",
)  # fmt: skip
CHECKPOINTING: Final = ("", "", "plain", "reentrant")


@dataclass(frozen=True)
class Case:
    """One script. seed: the job's, or None; the other fields are named after what they choose."""

    ests: int
    model: str
    precision: str
    optimizer: str
    schedule: str
    clip: str
    sampler: str
    size: int
    batch_size: int
    drop_last: bool
    data_workers: int
    persistent: bool
    prefetch: int | None
    init_fn: bool
    own_generator: bool
    pin_memory: bool
    find_unused: bool
    static_graph: bool
    bucket_view: bool
    bucket_cap_mb: float | None
    accumulation: int
    checkpointing: str
    in_place_zeros: bool
    zero_after_step: bool
    channels_last: bool
    average: bool
    registered: bool
    dropout: float
    seed: int | None
    epochs: int

    def arguments(self) -> list[str]:
        """What the script is called with."""
        return [json.dumps(dataclasses.asdict(self))]

    @classmethod
    def parse(cls, text: str) -> Case:
        """Inverse of `arguments`."""
        return cls(**json.loads(text))


def random_case(seed: int) -> Case:
    """The case of a seed; always one that stock DDP can run."""
    draw = random.Random(f"elastane case {seed}")

    def chance(share: float) -> bool:
        return draw.random() < share

    model = draw.choice(MODELS)
    sampler = draw.choice(SAMPLERS)
    stream = sampler in ("stream", "stateful-stream")
    data_workers = draw.choice((0, 0, 1, 2, 3))
    accumulation = draw.choice((1, 1, 1, 2, 3))
    if sampler == "stream" and data_workers == 0:
        data_workers = 2  # without state_dict it can only be gone through again by data workers
    checkpointing = draw.choice(CHECKPOINTING) if model == "transformer" else ""
    unused = chance(0.15)
    static = chance(0.15)
    static_graph = model != "branching" and (static or checkpointing == "reentrant")
    if static_graph:
        accumulation = 1  # an internal assertion of torch's reducer fails under no_sync()
    precision = draw.choice(PRECISIONS)
    prefetch = draw.choice((None, 1, 4))
    ests = draw.choice((2, 3, 3, 4, 5))
    return Case(
        ests=ests,
        model=model,
        precision=precision,
        optimizer=draw.choice(OPTIMIZERS),
        schedule=draw.choice(SCHEDULES),
        clip=draw.choice(CLIPS),
        sampler=sampler,
        size=draw.randint(16, 24) * ests * accumulation,
        batch_size=draw.randint(3, 5),
        drop_last=chance(0.3),
        data_workers=data_workers,
        persistent=chance(0.3) and data_workers > 0 and not stream,
        prefetch=prefetch if data_workers else None,
        init_fn=chance(0.3),
        own_generator=chance(0.2),
        pin_memory=chance(0.1),
        find_unused=model == "branching" or (unused and not static_graph),
        static_graph=static_graph,
        bucket_view=chance(0.25),
        bucket_cap_mb=draw.choice((None, None, 0.01, 1.0)),
        accumulation=accumulation,
        checkpointing=checkpointing,
        in_place_zeros=chance(0.25),
        zero_after_step=chance(0.3),
        channels_last=chance(0.4),
        average=chance(0.2),
        registered=chance(0.3) and not (stream and sampler == "stream"),
        dropout=draw.choice((0.0, 0.1, 0.3)),
        seed=draw.choice((None, 1, 2, 3)),
        epochs=draw.choice((3, 4)),
    )

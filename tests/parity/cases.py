"""Draws a random training script from a seed: model, data, options, number of ESTs. Pure.

Every draw is made even if it is not used, so that a case keeps its other features when a dimension gets
another value at the end. Features beyond the plain loop (`Habits`) are drawn from a separate generator.
Combinations that torch or the job would refuse are not drawn.
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
VALIDATIONS: Final = ("none", "all", "all", "leader", "both")
SEEDS: Final = ("none", "none", "none", "none", "prepare", "epoch")
AVERAGES: Final = ("none", "none", "kept", "teacher")


@dataclass(frozen=True)
class Habits:
    """Features of a script beyond the plain loop; none by default.

    validation: which ranks validate after an epoch, with a DataLoader of validation_workers (in train mode if
    left_on). seeded: where all ranks set the same seed. draws_early: random numbers drawn before the first
    epoch; draws_each_rank: a number of draws that depends on the state, in each rank. carried: best metric
    and patience decide the lr, and end the run after `patience` bad epochs (0: never); rolled_back: the best
    weights are carried too, and restored. steps_max: limit of steps; 0: none. rate_by_step: compute the lr
    from `job.step`. clamped: clamp the weights once a step. copied: keep a moving average by hand.
    second_forward, evaluated: a further forward, or an evaluation, in the loop's body. draws_own: number of
    samples that a RandomSampler draws with replacement from torch's generator, instead of the data's size.
    """

    validation: str = "none"
    validation_workers: int = 0
    left_on: bool = False
    seeded: str = "none"
    draws_early: bool = False
    draws_each_rank: bool = False
    carried: bool = False
    patience: int = 0
    rolled_back: bool = False
    steps_max: int = 0
    rate_by_step: bool = False
    clamped: bool = False
    copied: str = "none"
    second_forward: bool = False
    evaluated: bool = False
    draws_own: int | None = None


@dataclass(frozen=True)
class Case:
    """One script. seed: the job's, or None; every other field is named after the feature that it selects."""

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
    habits: Habits = Habits()

    def arguments(self) -> list[str]:
        """Return the script's command-line arguments."""
        return [json.dumps(dataclasses.asdict(self))]

    @classmethod
    def parse(cls, text: str) -> Case:
        """Parse the argument that `arguments` returns."""
        fields = json.loads(text)
        return cls(**{**fields, "habits": Habits(**fields["habits"])})


def random_case(seed: int) -> Case:
    """Draw the case of a seed; stock DDP can run every case."""
    draw = random.Random(f"elastane case {seed}")

    def chance(share: float) -> bool:
        return draw.random() < share

    model = draw.choice(MODELS)
    sampler = draw.choice(SAMPLERS)
    stream = sampler in ("stream", "stateful-stream")
    data_workers = draw.choice((0, 0, 1, 2, 3))
    accumulation = draw.choice((1, 1, 1, 2, 3))
    if sampler == "stream" and data_workers == 0:
        data_workers = 2  # a dataset without state_dict can only be replayed in data workers
    checkpointing = draw.choice(CHECKPOINTING) if model == "transformer" else ""
    unused = chance(0.15)
    static = chance(0.15)
    static_graph = model != "branching" and (static or checkpointing == "reentrant")
    if static_graph:
        accumulation = 1  # an internal assertion of torch's reducer fails under no_sync()
    precision = draw.choice(PRECISIONS)
    prefetch = draw.choice((None, 1, 4))
    ests = draw.choice((2, 3, 3, 4, 5))
    case = Case(
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
    return dataclasses.replace(case, habits=_random_habits(seed, case))


def _random_habits(seed: int, case: Case) -> Habits:
    """Draw the habits of a case, as far as its other features allow them."""
    draw = random.Random(f"elastane habits {seed}")

    def chance(share: float) -> bool:
        return draw.random() < share

    buffers = case.model == "cnn"  # its running statistics differ between DDP's ranks
    seeded = draw.choice(SEEDS)
    habits = Habits(
        validation=draw.choice(VALIDATIONS),
        validation_workers=draw.choice((0, 0, 0, 1)),
        left_on=chance(0.3) and not buffers,
        seeded=seeded,
        draws_early=chance(0.4),
        draws_each_rank=chance(0.3),
        carried=chance(0.4),
        patience=draw.choice((0, 1, 2)),
        rolled_back=chance(0.3) and not buffers,
        steps_max=draw.choice((0, 0, 0, max(8, draw.randint(5, 12)))),  # room for the churn
        rate_by_step=chance(0.3) and case.schedule == "none",
        clamped=chance(0.3),
        copied=draw.choice(AVERAGES),
        second_forward=chance(0.3) and not (buffers or case.find_unused or case.static_graph),
        evaluated=chance(0.3),
        draws_own=draw.choice((None, -5, 0, 7)) if case.sampler == "replacement" else None,
    )
    if habits.copied == "teacher" and case.model == "branching":
        habits = dataclasses.replace(habits, copied="kept")
    if not habits.carried:
        habits = dataclasses.replace(habits, patience=0, rolled_back=False)
    if seeded == "epoch":  # if random numbers were drawn before, one seed for all ranks is refused
        habits = dataclasses.replace(
            habits, validation="none", draws_early=False, draws_each_rank=False, left_on=False
        )
    return habits

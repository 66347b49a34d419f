"""A step of a pipeline of two stages in two processes, beside torch's schedules and one process.

The model is a GPT with equal halves, M micro-batches a step, and one thread per process. The same two
processes alternately run Elastane's executor over its ring, in the order of the peer's schedule; torch's
ScheduleGPipe and Schedule1F1B over gloo; and a single process that accumulates over all M. Elastane keeps
gradients by micro-batch and adds them in gloo's order, so that the result equals stock DDP with M ranks; the
peers add them as they arrive. Times are those of the slowest process and include `optimizer.step()`.

The CPU time of both processes is reported, too: unlike the step time it hardly depends on other load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from harness import Report, Row, Series, run_benchmark
from pipeline_models import LENGTH, VOCABULARY, Block, token_loss, tokens
from pipeline_processes import Worker, together
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from elastane_planner.plan import Plan, Stage
from elastane_planner.schedule import gpipe, one_f_one_b

#: Torch's schedules by order of blocks.
PEERS = {"GPipe": "ScheduleGPipe", "1F1B": "Schedule1F1B"}
ORDERS = {"GPipe": gpipe, "1F1B": one_f_one_b}
TARGET_PEER, TARGET_SPEEDUP = 1.05, 1.5


@dataclass(frozen=True)
class Settings:
    """Settings of one run. size: samples of a micro-batch."""

    width: int
    blocks: int
    size: int
    micro_batches: int
    repeats: int

    @property
    def plan(self) -> Plan:
        """Return the plan: two stages with equally many blocks."""
        half, count = self.blocks // 2 + 1, self.blocks + 2
        return Plan((Stage(0, half, (0,)), Stage(half, count, (1,))))

    def model(self) -> list[nn.Module]:
        """Return the units: an embedding, an even number of blocks, and a head."""
        torch.manual_seed(1)
        return [
            nn.Embedding(VOCABULARY, self.width),
            *(Block(self.width) for _ in range(self.blocks)),
            nn.Linear(self.width, VOCABULARY),
        ]

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Return all micro-batches."""
        return [tokens(self.size, number) for number in range(self.micro_batches)]


def options(parser: argparse.ArgumentParser) -> None:
    """Add options for sizes other than the table's."""
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--size", type=int, default=8, help=f"samples of a micro-batch, {LENGTH} tokens each")
    parser.add_argument("--repeats", type=int, default=0)


def measure(args: argparse.Namespace, report: Report) -> None:
    """Run all variants in the same two processes, and use the slower one's times."""
    repeats = args.repeats or (5 if args.quick else 20)
    settings = Settings(args.width, args.blocks, args.size, args.micro_batches, repeats)
    found = together(2, _times, settings)
    for name, peer in PEERS.items():
        report.rows.append(
            Row(
                f"step, order of {name}",
                Series(_slower(found, f"ours {name}"), "ms"),
                Series(_slower(found, peer), "ms"),
                peer,
                target=TARGET_PEER,
            )
        )
        report.rows.append(
            Row(
                f"processor time of a step, order of {name}",
                Series(_both(found, f"ours {name}"), "ms"),
                Series(_both(found, peer), "ms"),
                peer,
            )
        )
    ours, alone = _slower(found, "ours 1F1B"), [seconds * 1000 for seconds, _ in found[0]["alone"]]
    report.rows.append(
        Row(
            "steps a second of two workers",
            Series([1000 / value for value in ours], "steps/s"),
            Series([1000 / value for value in alone[-len(ours) :]], "steps/s"),
            "one process that accumulates",
            better="higher",
            target=TARGET_SPEEDUP,
        )
    )
    difference = abs(found[1]["loss ours GPipe"] - found[1]["loss ScheduleGPipe"])
    report.facts["first losses of Elastane and ScheduleGPipe differ by"] = f"{difference:.1e}"


def _slower(found: list[dict[str, Any]], key: str) -> list[float]:
    """Return the milliseconds of each step in the slower process."""
    return [
        1000 * max(first, second)
        for (first, _), (second, _) in zip(found[0][key], found[1][key], strict=True)
    ]


def _both(found: list[dict[str, Any]], key: str) -> list[float]:
    """Return the CPU milliseconds of each step, summed over both processes."""
    return [
        1000 * (first + second) for (_, first), (_, second) in zip(found[0][key], found[1][key], strict=True)
    ]


def _times(me: int, address: str, settings: Settings) -> dict[str, Any]:
    """Return (seconds, CPU seconds) of the steps, and the first losses, by variant."""
    found: dict[str, Any] = {}
    data = settings.data()
    ours = Worker(
        me,
        address,
        2,
        settings.model(),
        settings.plan,
        settings.micro_batches,
        lambda est: data[est],
        token_loss,
    )
    alone = Alone(settings)
    for name, peer in PEERS.items():
        ours.set_order(ORDERS[name](settings.plan, settings.micro_batches))
        theirs = Torch(me, settings, name)
        runs: tuple[tuple[str, Callable[[], float]], ...] = (
            (f"ours {name}", ours.step),
            (peer, theirs.step),
            ("alone", alone.step),
        )
        for number in range(settings.repeats + 2):
            for what, step in runs:
                dist.barrier()
                if what == "alone" and me == 1:
                    continue
                began, used = time.perf_counter(), time.process_time()
                loss = step()
                seconds, used = time.perf_counter() - began, time.process_time() - used
                if number == 0:
                    found[f"loss {what}"] = loss
                if number >= 2:
                    found.setdefault(what, []).append((seconds, used))
            dist.barrier()
    ours.close()
    return found


class Torch:
    """One of torch's schedules in one of the two processes."""

    def __init__(self, me: int, settings: Settings, name: str) -> None:
        units = settings.model()
        stage = settings.plan.stages[me]
        module = nn.Sequential(*units[stage.first_unit : stage.end_unit])
        inputs, targets = zip(*settings.data(), strict=True)
        width, size = settings.width, settings.size
        hidden = torch.zeros(size, LENGTH, width, requires_grad=True)
        words = torch.zeros(size, LENGTH, dtype=torch.int64)
        arguments = (words, hidden) if me == 0 else (hidden, torch.zeros(size, LENGTH, VOCABULARY))
        own = PipelineStage(
            module, me, 2, torch.device("cpu"), input_args=arguments[0], output_args=arguments[1]
        )
        kind = ScheduleGPipe if name == "GPipe" else Schedule1F1B
        self._schedule = kind(own, settings.micro_batches, loss_fn=token_loss)
        self._optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        self._me, self._inputs, self._targets = me, torch.cat(inputs), torch.cat(targets)

    def step(self) -> float:
        """Train a step; returns the mean loss, on the last stage."""
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        if self._me == 0:
            self._schedule.step(self._inputs)
        else:
            self._schedule.step(target=self._targets, losses=losses)
        self._optimizer.step()
        return float(sum(loss.item() for loss in losses)) / max(1, len(losses))


class Alone:
    """The whole model in one process, which accumulates over the micro-batches."""

    def __init__(self, settings: Settings) -> None:
        self._model = nn.Sequential(*settings.model())
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._batches = settings.data()

    def step(self) -> float:
        """Train a step; returns the mean loss."""
        self._optimizer.zero_grad()
        total = 0.0
        for value, target in self._batches:
            loss = token_loss(self._model(value), target)
            (loss / len(self._batches)).backward()
            total += loss.item()
        self._optimizer.step()
        return total / len(self._batches)


if __name__ == "__main__":
    run_benchmark("pipeline_step", __doc__, measure, options)

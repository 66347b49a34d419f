"""Records of a process's steps, written if ELASTANE_TRACE_DIR is set: one JSON object a line.

Both modes write the same records, so that two runs can be compared (`compare`):

    start    {"kind", "name", "facts", "parameters"}
    turn     {"kind", "step", "rank", "micro", "batch", "states", "generators"}     the mini-batch is out
    end      {"kind", "step", "rank", "micro", "gradients", "states", "values"}     its backward is over
    applied  {"kind", "step", "weights", "optimizer", "buffers", "extras"}          the step is in the weights

All values are digests (`digests`), logged numbers are float.hex(). "states" are the EST's own generators and
registered items, "generators" the script's unregistered generators, by the path where they were found.
"gradients" are the EST's local ones as autograd left them, before any reduction, in the order of backward.
The weights before the first step are the "applied" of step -1. A worker that replays a step writes it again.
Workers of a pipeline write the records of their units (`pipelines.trace`).
Each line is passed to the kernel at once: the lines of a killed process are complete.

Tracing reads every gradient and weight of every step; it is for finding a difference, not for timing.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from elastane.registry import Registry
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.runtime.script_generators import find_generators
from elastane.state.train_state import Stateful
from elastane.state.value_digests import digest_any, digest_bytes, digest_tensor

VARIABLE: Final = "ELASTANE_TRACE_DIR"
#: Interval of steps in which the script's objects are searched for generators again, after the first few.
_SEARCH_EVERY: Final = 16
_KEPT: Final = re.compile(r"(loader|sampler)\.generator$")


class StepTrace:
    """The trace of one process; built by a job in its `prepare`, before other gradient hooks exist.

    directory: created if missing. name: of the file and of the process in reports, "ddp-0" or "elastic-w1"; a
    file of that name is replaced. extras: other prepared objects (schedulers, averages), by name, with
    state_dict. roots: objects to search for unregistered generators (the dataset, the sampler ...) by their
    names in reports. known: ids of generators to skip, because the job keeps their state.
    """

    def __init__(
        self,
        directory: str | Path,
        name: str,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        extras: Mapping[str, Any] | None = None,
        roots: Mapping[str, object] | None = None,
        known: Container[int] = frozenset(),
    ) -> None:
        self._model = model
        self._optimizers = list(optimizers)
        self._extras = dict(extras or {})
        self._roots = dict(roots or {})
        self._known = known
        self._est_step: tuple[int, int, int] | None = None
        self._gradients: list[tuple[str, str]] = []
        self._generators: Mapping[str, Callable[[], bytes]] = {}
        self._searched_step: int | None = None
        self._initial_written = False
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{name}.jsonl", flags, 0o644)
        named = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(path)) for path, p in named]
        self._write(kind="start", name=name, facts=process_facts(), parameters=[path for path, _ in named])

    def mini_batch_began(
        self, step: int, rank: int, micro: int, batch: Any, parts: Mapping[str, bytes]
    ) -> None:
        """Record that mini-batch `micro` of EST `rank` in `step` begins.

        parts: its "rng/..." and "item/..." now.
        """
        if step == 0 and not self._initial_written:
            self._initial_written = True
            self.step_applied(-1)
        self._search(step)
        self._est_step, self._gradients = (step, rank, micro), []
        self._write(
            kind="turn",
            step=step,
            rank=rank,
            micro=micro,
            batch=digest_any(batch),
            states=_states(parts),
            generators={name: digest_bytes(read()) for name, read in self._generators.items()},
        )

    def mini_batch_ended(
        self, step: int, rank: int, micro: int, parts: Mapping[str, bytes], values: Mapping[str, Any]
    ) -> None:
        """Record that the EST's mini-batch has ended; parts: its states now; values: logged by the script."""
        self._est_step = None
        self._ended(step, rank, micro, parts, values, self._gradients)
        self._gradients = []

    def step_applied(self, step: int) -> None:
        """Record the state after the optimizers have stepped (buffers: those of rank 0, or of EST 0)."""
        optimizer: dict[str, str] = {}
        for number, one in enumerate(self._optimizers):
            optimizer |= _optimizer_digests(number, one)
        weights = {name: digest_tensor(p) for name, p in self._model.named_parameters()}
        self._applied(
            step, weights, optimizer, {name: digest_tensor(b) for name, b in self._model.named_buffers()}
        )

    def close(self) -> None:
        """Remove the hooks and close the file; a second call does nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _ended(
        self,
        step: int,
        rank: int,
        micro: int,
        parts: Mapping[str, bytes],
        values: Mapping[str, Any],
        gradients: list[tuple[str, str]] | None,
    ) -> None:
        self._write(
            kind="end",
            step=step,
            rank=rank,
            micro=micro,
            gradients=gradients,
            states=_states(parts),
            values={name: _number(value).hex() for name, value in values.items()},
        )

    def _applied(
        self,
        step: int,
        weights: Mapping[str, str],
        optimizer: Mapping[str, str],
        buffers: Mapping[str, str],
        **facts: object,
    ) -> None:
        self._write(
            kind="applied",
            step=step,
            weights=weights,
            optimizer=optimizer,
            buffers=buffers,
            extras={
                f"{name}/{key}": digest_any(value)
                for name, extra in self._extras.items()
                for key, value in extra.state_dict().items()
            },
            **facts,
        )

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def taken(parameter: torch.Tensor) -> None:
            # No turn is open in a backward of the script's own, outside the loader loop.
            if self._est_step is not None and parameter.grad is not None:
                self._gradients.append((name, digest_tensor(parameter.grad)))

        return taken

    def _search(self, step: int) -> None:
        """Search the script's generators again, in steps that are the same in every process."""
        due = step <= 2 or step % _SEARCH_EVERY == 0 or self._searched_step is None
        if step == self._searched_step or not due:
            return
        self._searched_step = step
        found = find_generators(self._roots, known=self._known)
        # The job keeps those of loaders and samplers, in a different object in each mode.
        self._generators = {name: read for name, read in found.items() if not _KEPT.search(name)}

    def _write(self, **record: object) -> None:
        if self._file >= 0:
            os.write(self._file, json.dumps(record, separators=(",", ":")).encode() + b"\n")


def open_trace(name: str, prepared: PreparedObjects, registry: Registry) -> StepTrace | None:
    """Open the trace of this process, "ddp-RANK" or "elastic-WORKER"; None unless it is enabled.

    Call it before other gradient hooks exist.
    """
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    return StepTrace(directory, name, prepared.model, prepared.optimizers, **traced_of(prepared, registry))


def traced_of(prepared: PreparedObjects, registry: Registry) -> dict[str, Any]:
    """Return what a trace records beside model and optimizers: keyword arguments of `StepTrace`."""
    loader = prepared.loader
    extras: dict[str, Stateful] = {
        f"{place}.{type(scheduler).__name__}": scheduler
        for place, scheduler in enumerate(prepared.schedulers)
    }
    return {
        "extras": extras | prepared.extras,
        "roots": {"dataset": loader.dataset, "sampler": loader.sampler, "collate_fn": loader.collate_fn},
        "known": {id(value) for value in registry.objects} | {id(loader.generator)},
    }


def process_facts() -> dict[str, str]:
    """Return facts that decide the bits besides the script; compared if a kernel is suspected."""
    return {
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _states(parts: Mapping[str, bytes]) -> dict[str, str]:
    kept = sorted(name for name in parts if name.startswith(("rng/", "item/")))
    return {name: digest_bytes(parts[name]) for name in kept}


def _optimizer_digests(number: int, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return digests by "number/state/index/key" (state) and "number/group/index" (settings)."""
    state = optimizer.state_dict()
    found = {
        f"{number}/state/{index}/{key}": digest_any(value)
        for index, entries in state["state"].items()
        for key, value in entries.items()
    }
    for index, group in enumerate(state["param_groups"]):
        found[f"{number}/group/{index}"] = digest_any(group)
    return found

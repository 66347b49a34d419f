"""Runs a step twice from the same state: everything that must be equal for a replay to be exact.

After a ring change a step is run again, in this process or in another, from weights, optimizer state,
generators and loader position as they were. If the loop body lets anything else influence its gradients, the
bits differ. `StepWatch` records the results of a step, `StateKeeper` restores the state, `differences` (pure)
compares.
"""

from __future__ import annotations

import dis
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from elastane.context import Parts
from elastane.rng import Generators
from elastane.script_source.places import is_script_file
from elastane.state.codec import Exported
from elastane.state.train_state import TrainState
from elastane.state.value_digests import digest_any

#: First element of `differences` if the loader gave a different batch.
BATCH: Final = "the mini-batch"


@dataclass(slots=True)
class StepRun:
    """Results of one run of a step.

    batches: digests of its mini-batches. gradients: by parameter, in the order of backward.
    """

    batches: list[str] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    random: Parts = field(default_factory=dict)
    random_at_backward: Parts | None = None
    backwards: int = 0
    optimizer_steps: int = 0
    logged_late: tuple[str, ...] = ()
    sparse: list[str] = field(default_factory=list)  # parameters with sparse gradients


def differences(first: StepRun, second: StepRun) -> list[str]:
    """Return what differed in two runs of a step, as text, the earliest first."""
    found = []
    if first.batches != second.batches:
        found.append(BATCH)
    values, others = ({name: value.hex() for name, value in run.values.items()} for run in (first, second))
    if values != others:  # two NaNs are equal
        names = [name for name, value in values.items() if others.get(name) != value]
        found.append(f"the logged {', '.join(names) or 'values'}")
    if list(first.gradients) != list(second.gradients):
        found.append("the order in which gradients were made")
    unequal = [name for name, digest in first.gradients.items() if second.gradients.get(name) != digest]
    if unequal:
        found.append(f"{len(unequal)} of {len(first.gradients)} gradients, first that of {unequal[0]}")
    if first.random != second.random:
        names = [
            name.removeprefix("rng/") for name, s in first.random.items() if second.random.get(name) != s
        ]
        found.append(f"the numbers drawn from {', '.join(names)}")
    return found


class StepWatch:
    """Records the effects of a step's body, by hooks on parameters and optimizers.

    logs_until: the call before which the body may log values.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        generators: Generators,
        logs_until: Literal["backward()", "optimizer.step()"] = "backward()",
    ) -> None:
        self._generators, self.logs_until = generators, logs_until
        self._run = StepRun()
        self._in_backward = False
        self._batch_backward = False  # backward() of the current mini-batch is done
        self.trained = [name for name, p in model.named_parameters() if p.requires_grad]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._made(name, p))
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._stepped)

    def begin(self) -> None:
        """Begin a step."""
        self._run = StepRun()

    def begin_batch(self, batch: object) -> None:
        """Begin a mini-batch of the step."""
        self._batch_backward = False
        self._run.batches.append(digest_any(batch))

    def log(self, values: Mapping[str, Any]) -> None:
        """Record values of `job.log`."""
        late = self._batch_backward if self.logs_until == "backward()" else self._run.optimizer_steps
        if late:
            self._run.logged_late = tuple(values)
        for name, value in values.items():
            self._run.values[name] = float(value.item() if isinstance(value, torch.Tensor) else value)

    def end(self) -> StepRun:
        """End the step's body and return its results."""
        self._run.random = self._generators.capture()
        return self._run

    def _made(self, name: str, parameter: torch.Tensor) -> None:
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        assert parameter.grad is not None
        if parameter.grad.is_sparse and name not in self._run.sparse:
            self._run.sparse.append(name)
        self._run.gradients[name] = digest([parameter.grad])

    def _after_backward(self) -> None:
        self._in_backward, self._batch_backward = False, True
        self._run.backwards += 1
        self._run.random_at_backward = self._generators.capture()

    def _stepped(self, *_: Any) -> None:
        self._run.optimizer_steps += 1


class StateKeeper:
    """Weights, optimizer state, buffers, gradients and schedulers: copied, and restored in place."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._kept: Exported | None = None
        self._gradients: list[torch.Tensor | None] = []

    def keep(self) -> None:
        """Copy the current state. Raises StateNotCarriedError if it cannot be handed over."""
        exported = self._state.export()
        self._kept = Exported(exported.structure, _copies(exported.tensors))
        self._gradients = [
            None if p.grad is None else p.grad.detach().clone() for p in self._state.model.parameters()
        ]

    def restore(self) -> None:
        """Restore the state copied by `keep`; may be repeated."""
        assert self._kept is not None, "nothing was kept"
        self._state.load(Exported(self._kept.structure, _copies(self._kept.tensors)))
        for parameter, gradient in zip(self._state.model.parameters(), self._gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return sha256 in hex of the tensors' bytes, with sparse ones coalesced."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        dense = tensor.detach()
        parts = [dense]
        if dense.is_sparse:
            dense = dense.coalesce()
            parts = [dense.indices(), dense.values()]
        for part in parts:
            hashed.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


_ACCESS: Final = re.compile(r"(LOAD|STORE)_(?:FAST|DEREF|GLOBAL|NAME)(?!_AND_CLEAR)")


def loop_variables() -> list[str]:
    """Return the variables that the script's running loader loop carries from one turn into the next.

    They are those that its body assigns, and reads before it does: a count of steps, a running mean. A replay
    does not restore them. Called from within the loader's iterator; empty if the loop is not found.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script_file(frame.f_code.co_filename) and _at_loop(frame.f_code, frame.f_lasti):
            return carried(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return []


def _at_loop(code: types.CodeType, position: int) -> bool:
    return dis.opname[code.co_code[position]].startswith("FOR_ITER") if position >= 0 else False


def carried(code: types.CodeType, position: int) -> list[str]:
    """Return the same for the `for` loop of `code` whose FOR_ITER is at `position`, in order of
    appearance."""
    first: dict[str, str] = {}
    stored: set[str] = set()
    end = -1
    for instruction in dis.get_instructions(code):
        if instruction.offset == position and instruction.opname.startswith("FOR_ITER"):
            end = int(instruction.argval)
        elif end >= 0 and position < instruction.offset < end:
            kinds = _ACCESS.findall(instruction.opname)
            names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            for kind, name in zip(kinds, names, strict=False):
                first.setdefault(name, kind)
                if kind == "STORE":
                    stored.add(name)
    return [name for name, kind in first.items() if kind == "LOAD" and name in stored]


def _copies(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone(memory_format=torch.preserve_format) for tensor in tensors]

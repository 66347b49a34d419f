"""Compare, turn by turn, state that the script may change but that must be equal in all turns of a step.

The loop body runs once for each EST of the worker, and again when a step is replayed. So every turn of a step
must find the same hyperparameters and the same weights, and may change them only once: where the step has
been applied.

    hyperparameters   taken at each `optimizer.step()`, where they matter; kept for the step in flight, so
                      that a replay is checked against them too
    frozen ones       which parameters require a gradient, in the same way
    modes             which modules are in eval() where the optimizer steps, in the same way
    weights           parameters, prepared averages and copies, by their version counters: only the optimizer
                      writes to them, and the script after it, under `if job.stepped:`. Writes to `.data`
                      do not change the version: in the first steps norms are compared as well
    what is carried   by the loop, the model, an optimizer (`loop_carried`), and copies of the weights that
                      were not prepared (`copies`)

If every EST has a separate worker, a step comes out right even without `job.stepped`, until the first worker
dies: it is refused all the same, in the first step that does it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, Final

import structlog
import torch
from torch import Tensor

from elastane.runtime.est_step import EstsDisagreeError, EstStep
from elastane.runtime.loop_carried import AttributeWatch, check_loop
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.runtime.weight_copies import CopyWatch, norms
from elastane_common.errors import StepError

_log = structlog.get_logger(__name__)

#: Norms are compared in this many steps after the start, a ring change and the beginning of an epoch.
CLOSE_STEPS: Final = 2


class EstStepWatch:
    """Checks of one worker; the script's thread calls the methods in the order of a step.

    registered: objects that each EST has separately. num_ests: N. With one EST a step has a single turn, so
    its effects after the step happen once.
    """

    def __init__(self, prepared: PreparedObjects, registered: Iterable[object], num_ests: int) -> None:
        self._num_ests = num_ests
        self._prepared, self._registered = prepared, tuple(registered)
        self._attributes = AttributeWatch(prepared)
        self._copies = CopyWatch(prepared, self._registered, alone=num_ests == 1)
        self._optimizers = prepared.optimizers
        self._settings = [_Settings(optimizer) for optimizer in prepared.optimizers]
        self._names, self._tensors = _watched(prepared)
        self._parameters = dict(prepared.model.named_parameters())
        self._step = -1
        self._first: dict[int, Hyperparameters] = {}
        #: Which parameters require a gradient: at each optimizer's step, and as a script may leave them.
        self._first_trained: dict[int, list[bool]] = {}
        self._trained_at: list[list[bool]] = []
        self._modules = dict(prepared.model.named_modules())
        #: Which modules are in train(): at each optimizer's step, and at the end of the last turn.
        self._first_modes: dict[int, list[bool]] = {}
        self._modes: list[bool] = []
        #: As a turn has left them that has asked which rank it is and has put the model into eval(); its step
        #: and rank. Freezing single modules is what all turns may do.
        self._left: tuple[list[bool], int, int] | None = None
        self._is_told_of_modes = False
        self._versions: list[int] = []
        self._norms: list[float] = []
        self._shown: list[Hyperparameters] = []
        #: Norms are compared in steps below this one; None: from the next step on.
        self._close_until: int | None = None

    def begin_loop(self, frame: types.FrameType | None) -> None:
        """Check a loop over the loader when it begins. frame: of the code that requests its first mini-batch.

        Raises CarriedValueError for values that its source shows to be carried into the result.
        """
        check_loop(frame, self._prepared, self._registered)
        self.look_closely()

    def look_closely(self) -> None:
        """Compare norms for some steps, because the ring or the epoch has changed and other code may run."""
        self._close_until = None

    def replaced(self) -> None:
        """Forget the step's hyperparameters after weights and settings were replaced by those of other
        workers."""
        self._step = -1

    def begin_step(self, step: int) -> None:
        """Begin a step, or begin it again."""
        if step != self._step:
            self._step, self._first, self._first_trained, self._first_modes = step, {}, {}, {}
        self._trained_at = [self._trained()]
        if self._close_until is None:
            self._close_until = step + CLOSE_STEPS
            self._left = None
        self._modes = self._modes_now()
        self._take()
        if self._is_close:
            self._copies.begin()

    def used(self, est_step: EstStep, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer steps, or would if the turn were the worker's last.

        Raises EstsDisagreeError if its hyperparameters, the parameters that require a gradient, or the
        modules in eval() differ from those in the step's earlier turns.
        """
        est_step.optimizer_called = True
        place = next((i for i, one in enumerate(self._optimizers) if one is optimizer), None)
        if place is None:
            return
        self._check_modes(est_step, place)
        trained = self._trained()
        if frozen := self._frozen_since(self._first_trained.setdefault(place, trained), trained):
            raise _frozen_in_turns(
                frozen,
                f"differs in the turn of EST {est_step.rank} from an earlier turn of step {est_step.step}",
            )
        now = self._settings[place].read()
        name = differing(self._first.setdefault(place, now), now)
        if name is None:
            return
        before, after = self._first[place].get(name), now.get(name)
        raise EstsDisagreeError(
            f"{name} of {_called(self._optimizers, place)} is {after!r} in the turn of EST {est_step.rank}, "
            f"and was {before!r} in an earlier turn of step {est_step.step}",
            hint=(
                "a turn is one EST's part of a step, and may be replayed: compute the value from "
                "job.step, not from a counter of turns or enumerate(loader); or prepare a scheduler"
            ),
            virtual_rank=est_step.rank,
            hyperparameter=name,
        )

    def before_step(self, est_step: EstStep) -> None:
        """Raise EstsDisagreeError if the body has written to the weights before the step is applied."""
        self._check(est_step, "before the step was applied")

    def after_step(self) -> None:
        """Take the current state as the new baseline after the prepared objects have made their changes."""
        self._take()
        self._trained_at.append(self._trained())
        self._shown = [settings.read() for settings in self._settings]

    def end_est_step(self, est_step: EstStep) -> None:
        """Check a finished mini-batch.

        Raises EstsDisagreeError for changes that are correct only once a step, StepError without
        optimizer.step(), CarriedValueError and CopyNotPreparedError for values outside the job's state.
        """
        self._attributes.end_est_step(est_step)
        found, self._modes = self._modes, self._modes_now()
        if est_step.asked_rank and found[0] and not self._modes[0]:
            self._left = self._modes, est_step.step, est_step.rank
        if self._is_close:
            self._copies.end_est_step(est_step)
        if not est_step.applied:
            self._check(est_step, "in a turn in which the step was not applied")
            if est_step.sync and not est_step.last and not est_step.optimizer_called:
                raise StepError(
                    f"the turn of EST {est_step.rank} in step {est_step.step} ended without optimizer.step()",
                    hint="call it in every turn; to add up gradients over k mini-batches:"
                    " prepare(..., accumulation_steps=k)",
                    virtual_rank=est_step.rank,
                )
        elif not est_step.asked_stepped and self._num_ests > 1:
            self._check(est_step, "after the step was applied, without checking job.stepped")
            # A script may freeze parameters for a part of each turn: it leaves them as it has found them.
            trained = self._trained()
            if trained not in self._trained_at and (
                frozen := self._frozen_since(self._trained_at[-1], trained)
            ):
                raise _frozen_in_turns(
                    frozen,
                    f"was changed in step {est_step.step} after the step was applied, without checking "
                    "job.stepped",
                )
            for place, (before, settings) in enumerate(zip(self._shown, self._settings, strict=True)):
                name = differing(before, settings.read())
                if name is not None:
                    raise EstsDisagreeError(
                        f"{name} of {_called(self._optimizers, place)} was changed in step {est_step.step} "
                        "after the step was applied, without checking job.stepped",
                        hint=(
                            "a worker with several ESTs runs this line in each of their turns: change it "
                            "under `if job.stepped:`, or prepare a scheduler"
                        ),
                        hyperparameter=name,
                    )

    # ------------------------------------------------------------------

    @property
    def _is_close(self) -> bool:
        return self._close_until is None or self._step < self._close_until

    def _modes_now(self) -> list[bool]:
        """Return for each module whether it is in train() now."""
        return [module.training for module in self._modules.values()]

    def _check_modes(self, est_step: EstStep, place: int) -> None:
        """Compare the modules in eval() with those of the step's first turn, and with what a turn left."""
        modes = self._modes_now()
        first = self._first_modes.setdefault(place, modes)
        if modes != first:
            changed = zip(self._modules, first, modes, strict=True)
            name, is_training = next((name, now) for name, was, now in changed if was != now)
            how = ("train", "eval") if is_training else ("eval", "train")
            raise EstsDisagreeError(
                f"{name or 'the model'} is in {how[0]}() in the turn of EST {est_step.rank}, and was in "
                f"{how[1]}() in an earlier turn of step {est_step.step}",
                hint=(
                    "call model.train() at the end of an evaluation; modes that a turn decides by its own "
                    "loss would be those of its rank alone under DDP"
                ),
                virtual_rank=est_step.rank,
            )
        if self._left is None:
            return
        left, step, rank = self._left
        if rank == est_step.rank or self._num_ests == 1:
            return  # its own, as under DDP
        self._left = None
        if modes == left and not self._is_told_of_modes:
            self._is_told_of_modes = True
            _log.warning(
                f"the turn of EST {rank} in step {step} has asked which rank it is and has left the model in "
                f"eval(); the turn of EST {est_step.rank} in step {est_step.step} trains in eval(), too. "
                "Under DDP only the ranks that run that code would: call model.train() at the end of an "
                "evaluation"
            )

    def _trained(self) -> list[bool]:
        """Return for each parameter whether it requires a gradient now."""
        return [parameter.requires_grad for parameter in self._parameters.values()]

    def _frozen_since(self, before: list[bool], now: list[bool]) -> str:
        """Return the first parameter that has been frozen or unfrozen; empty if there is none."""
        if before == now:
            return ""
        changed = zip(self._parameters, before, now, strict=True)
        return next(name for name, was, is_now in changed if was != is_now)

    def _take(self) -> None:
        self._versions = [tensor._version for tensor in self._tensors]
        if self._is_close:
            self._norms = norms(self._tensors)

    def _check(self, est_step: EstStep, when: str) -> None:
        versions = [tensor._version for tensor in self._tensors]
        written = versions != self._versions
        found: Iterable[tuple[Any, Any]] = zip(self._versions, versions, strict=True)
        # Writes through .data leave the version counter unchanged, so compare norms too while it is
        # affordable.
        if not written and self._is_close:
            now = norms(self._tensors)
            written = any(_unequal(before, after) for before, after in zip(self._norms, now, strict=True))
            found = zip(self._norms, now, strict=True)
        if not written:
            return
        name = next(
            name for name, (before, after) in zip(self._names, found, strict=True) if _unequal(before, after)
        )
        raise EstsDisagreeError(
            f"{name} was written to in step {est_step.step} by the script, {when}",
            hint=(
                "every EST's turn would repeat the write: do it after optimizer.step() under `if "
                "job.stepped:`, or in a hook set with optimizer.register_step_post_hook"
            ),
            virtual_rank=est_step.rank,
            tensor=name,
        )


# ---------------------------------------------------------------------- pure parts


def _frozen_in_turns(name: str, what: str) -> EstsDisagreeError:
    return EstsDisagreeError(
        f"requires_grad of parameter {name} {what}",
        hint=(
            "every EST's turn decides by itself what it freezes: freeze parameters between epochs, before "
            "the forward by job.step, or after optimizer.step() under `if job.stepped:` by job.step"
        ),
        tensor=name,
    )


Hyperparameters = dict[str, Any]
"""Hyperparameters of an optimizer: names like "lr of param_group 0" -> plain values."""


def hyperparameters(optimizer: torch.optim.Optimizer) -> Hyperparameters:
    """Return numbers, strings and tuples of them; one-element tensors by value, which waits for a GPU."""
    return {
        f"{key} of param_group {place}": value.item() if isinstance(value, Tensor) else value
        for place, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key != "params" and _is_plain(value)
    }


class _Settings:
    """Reads the hyperparameters of an optimizer, anew only if a value is another object, or a tensor."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._values: list[Any] = []
        self._read: Hyperparameters = {}

    def read(self) -> Hyperparameters:
        """Return them; the same object if none has changed."""
        values = [value for group in self._optimizer.param_groups for value in group.values()]
        if len(values) != len(self._values) or not all(map(is_, values, self._values)):
            self._read = hyperparameters(self._optimizer)
            self._values = [] if any(isinstance(value, Tensor) for value in values) else values
        return self._read


def _is_plain(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    if isinstance(value, tuple):
        return all(isinstance(one, int | float | str | None) for one in value)
    return isinstance(value, int | float | complex | str | None)


def differing(before: Hyperparameters, after: Hyperparameters) -> str | None:
    """Return the first name whose values differ, or None."""
    if before is after or before == after:
        return None
    names = dict.fromkeys([*before, *after])
    return next((name for name in names if _unequal(before.get(name), after.get(name))), None)


def _unequal(before: Any, after: Any) -> bool:
    """True if the values differ; two NaNs count as equal."""
    return bool(before != after and (before == before or after == after))


def _watched(prepared: PreparedObjects) -> tuple[list[str], list[Tensor]]:
    """Return names and tensors that only the optimizers and the prepared averages may change."""
    found = [(f"parameter {name}", parameter) for name, parameter in prepared.model.named_parameters()]
    for extra in prepared.extras.values():
        if isinstance(extra, torch.nn.Module):
            kind = type(extra).__name__
            own = [*extra.named_parameters(), *extra.named_buffers()]
            found += [(f"{name} of the prepared {kind}", tensor) for name, tensor in own]  # type: ignore[misc]
    return [name for name, _ in found], [tensor for _, tensor in found]


def _called(optimizers: Sequence[torch.optim.Optimizer], place: int) -> str:
    kind = f"the {type(optimizers[place]).__name__}"
    return kind if len(optimizers) == 1 else f"{kind} (optimizer {place})"

"""Fingerprints of this worker's state, which the master compares with those of other workers.

Each step report carries two digests: of the hyperparameters at that moment, and of a part of the state as it
was when the step began. The state is divided into `steps` parts that are compared in rotation, so that all of
it is compared within that many steps at negligible cost. The whole state is compared at the first step of an
epoch (which shows what the code between epochs did) and of a ring (which shows what was handed over).

The tensors of a part are looked up when the step begins. Summing them may continue in a thread while the
step's forward and backward run: none of them changes before the optimizer steps, and the step report waits
for the sum. Which modules are in eval(), and which parameters are frozen, is read with the report: what
counts is how the step trains, not how an evaluation before it has left the model. A worker that is alone in
its ring has nothing to compare with, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Final

import torch

from elastane.state.digests import (
    combined,
    digest_of_tensor,
    digest_of_tensors,
    digest_of_text,
    form,
    in_order,
    in_words,
    leaves,
)
from elastane.state.train_state import TrainState

#: Summing fewer bytes than this costs the script's thread no more than giving them to another one.
_IN_PLACE_BYTES: Final = 1 << 20
_VALUE_CHARACTERS_MAX: Final = 200

Leaf = tuple[str, torch.Tensor | str]
Unit = Callable[[], Iterator[Leaf]]


class Fingerprints:
    """Digests of one worker's state.

    buffers: returns the model's buffers as every EST's forward starts from them. steps: number of steps
    within which all of the state is compared; 0: never.
    """

    def __init__(self, state: TrainState, buffers: Callable[[], Sequence[torch.Tensor]], steps: int) -> None:
        self._state = state
        self._buffers = buffers
        self._steps = steps
        self._units: list[Unit] = []
        self._parameters = list(state.model.named_parameters())
        self._modules = list(state.model.named_modules())
        #: The digest of the tensors, or their sum that is still being made, and the other values in words.
        self._begun: tuple[Future[int] | int, list[str]] | None = None
        #: The part that has begun ends with the modes of the model.
        self._with_modes = False
        #: Names of parameters that were frozen, and of modules in eval(), with the last report.
        self._reported: tuple[list[str], list[str]] | None = None
        self._threads: ThreadPoolExecutor | None = None
        #: For each param_group: its values and their digest.
        self._known: list[list[tuple[tuple[object, ...], int]]] = [[] for _ in state.optimizers]

    def begin(self, step: int, *, whole: bool, alone: bool) -> None:
        """Begin a step: choose the part to compare and start summing it.

        whole: compare all of the state. alone: there is no other worker, so nothing is computed.
        """
        self._begun = None
        if not self._steps or alone:
            return
        units = self._all_units()
        part = units if whole else units[step % self._steps :: self._steps]
        self._with_modes = bool(part) and part[-1] is units[-1]
        tensors, texts = _collected(part[:-1] if self._with_modes else part)
        if sum(tensor.nbytes for tensor in tensors) < _IN_PLACE_BYTES:
            self._begun = digest_of_tensors(tensors), texts
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="elastane-fingerprint")
        # The thread must order its reads after the work queued by the script, which is on this stream.
        stream = torch.cuda.current_stream(tensors[0].device) if tensors and tensors[0].is_cuda else None
        self._begun = self._threads.submit(_summed, tensors, stream), texts

    def state_digest(self) -> int | None:
        """Digest of the part of the state chosen at `begin`; waits for the sum. None: not compared."""
        if self._begun is None:
            return None
        begun, texts = self._begun
        self._reported = self._modes_now()
        modes = _collected([self._modes])[1] if self._with_modes else []
        return _with_words(begun.result() if isinstance(begun, Future) else begun, [*texts, *modes])

    def settings_digest(self) -> int | None:
        """Digest of the current hyperparameters of all param_groups. None: not compared."""
        if self._begun is None:
            return None
        return combined(
            digest
            for optimizer, known in zip(self._state.optimizers, self._known, strict=True)
            for digest in _of_groups(optimizer, known)
        )

    def whole(self, *, modes: bool = True) -> int | None:
        """Digest of the whole state now. None: not compared.

        modes: include which modules are in eval(), as in the last step. What the leader evaluates after it
        may leave others there.
        """
        units = self._all_units()[:-1]
        texts = _collected([self._modes])[1] if modes else []
        tensors, others = _collected(units)
        return _added_up(tensors, [*others, *texts]) if self._steps else None

    def details(self) -> list[tuple[str, int, str]]:
        """All entries of the state: name, digest, and the value as text if it is short enough."""
        found = []
        for number, optimizer in enumerate(self._state.optimizers):
            for place, group in enumerate(optimizer.param_groups):
                for key, value in _settings_of(group):
                    if not isinstance(value, torch.Tensor):
                        name = f"{_optimizer(number)}param_groups[{place}], {key}"
                        words = in_words(value)
                        found.append((name, digest_of_text(words), words[:_VALUE_CHARACTERS_MAX]))
        for unit in self._all_units():
            for name, leaf in unit():
                if isinstance(leaf, torch.Tensor):
                    value = in_words(leaf.item()) if leaf.numel() == 1 else ""
                    digest = combined((digest_of_tensor(leaf), digest_of_text(form(leaf))))
                    found.append((name, digest, value))
                else:
                    found.append((name, digest_of_text(leaf), leaf[:_VALUE_CHARACTERS_MAX]))
        return found

    def close(self) -> None:
        """End the thread. Idempotent."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    # ------------------------------------------------------------------ parts of the state

    def _all_units(self) -> list[Unit]:
        """Return the state in units, in the same order in every worker.

        The objects stay the same for the whole run; their contents may change.
        """
        if not self._units:
            state, model = self._state, self._state.model
            names = {id(parameter): name for name, parameter in model.named_parameters()}
            self._units = [_tensor(f"weights {name}", p) for name, p in model.named_parameters()]
            for place, (name, _) in enumerate(model.named_buffers()):
                self._units.append(self._buffer(f"buffer {name}", place))
            for number, optimizer in enumerate(state.optimizers):
                parameters = (p for group in optimizer.param_groups for p in group["params"])
                for place, parameter in enumerate(parameters):
                    name = names.get(id(parameter), f"parameter {place}")
                    label = f"{_optimizer(number)}state of {name}"
                    self._units.append(_of_optimizer(optimizer, parameter, label))
            for number, scheduler in enumerate(state.schedulers):
                self._units.append(_stateful(f"scheduler {number}", scheduler))
            for name, extra in state.extras.items():
                label = name.removeprefix("prepared.").removeprefix("elastane.")
                if isinstance(extra, torch.nn.Module):
                    tensors = [*extra.named_parameters(), *extra.named_buffers()]
                    self._units += [_tensor(f"{label} {tensor}", value) for tensor, value in tensors]
                else:
                    self._units.append(_stateful(label, extra))
            self._units += [self._tensors_of_groups, self._modes]
        return self._units

    def _buffer(self, name: str, place: int) -> Unit:
        def unit() -> Iterator[Leaf]:
            yield name, self._buffers()[place]

        return unit

    def _tensors_of_groups(self) -> Iterator[Leaf]:
        """Yield hyperparameters that are tensors.

        `settings_digest` skips them: reading them would wait for the GPU.
        """
        for number, optimizer in enumerate(self._state.optimizers):
            for place, group in enumerate(optimizer.param_groups):
                for key, value in _settings_of(group):
                    if isinstance(value, torch.Tensor):
                        yield f"{_optimizer(number)}param_groups[{place}], {key}", value

    def _modes(self) -> Iterator[Leaf]:
        frozen, evaluating = self._reported or self._modes_now()
        yield "frozen parameters", in_words(frozen)
        yield "modules in eval()", in_words(evaluating)

    def _modes_now(self) -> tuple[list[str], list[str]]:
        frozen = [name for name, parameter in self._parameters if not parameter.requires_grad]
        return frozen, [name for name, module in self._modules if not module.training]


def _optimizer(number: int) -> str:
    return "optimizer, " if number == 0 else f"optimizer {number}, "


def _tensor(name: str, tensor: torch.Tensor) -> Unit:
    def unit() -> Iterator[Leaf]:
        yield name, tensor

    return unit


def _of_optimizer(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, name: str) -> Unit:
    keys: list[Any] = []
    #: In the order of `leaves`, which is the same for as long as the keys are.
    named: list[tuple[Any, str]] = []

    def unit() -> Iterator[Leaf]:
        # No state and an empty state are equivalent: it is a defaultdict.
        state: Any = optimizer.state.get(parameter) or {}
        if not isinstance(state, Mapping):
            yield from leaves(state, name)
            return
        if list(state) != keys:
            keys[:], named[:] = state, in_order(state, name)
        for key, path in named:
            yield from leaves(state[key], path)

    return unit


def _stateful(name: str, owner: Any) -> Unit:
    return lambda: leaves(owner.state_dict(), name)


def _collected(units: Sequence[Unit]) -> tuple[list[torch.Tensor], list[str]]:
    tensors: list[torch.Tensor] = []
    texts: list[str] = []
    for unit in units:
        for name, leaf in unit():
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
                texts.append(f"{name}: {form(leaf)}")
            else:
                texts.append(f"{name}={leaf}")
    return tensors, texts


def _added_up(tensors: Sequence[torch.Tensor], texts: Sequence[str]) -> int:
    return _with_words(digest_of_tensors(tensors), texts)


def _summed(tensors: Sequence[torch.Tensor], stream: torch.cuda.Stream | None) -> int:
    # order the reads after work the script has queued on its stream; without one, setting it only costs time
    with torch.cuda.stream(stream) if stream else nullcontext():
        return digest_of_tensors(tensors)


def _with_words(tensors: int, texts: Sequence[str]) -> int:
    """Return the digest of tensors, whose own digest is given, and of values in words."""
    return combined((tensors, digest_of_text("\n".join(texts))))


def _settings_of(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in group.items() if key != "params"]


def _of_groups(
    optimizer: torch.optim.Optimizer, known: list[tuple[tuple[object, ...], int]]
) -> Iterator[int]:
    """Yield the digest of each param_group.

    Recomputed only if a value is a different object or may have changed in place.
    """
    groups = optimizer.param_groups
    if len(known) != len(groups):
        known[:] = [((), 0)] * len(groups)
    for place, group in enumerate(groups):
        values = tuple(group.values())
        before, digest = known[place]
        if len(before) != len(values) or any(a is not b for a, b in zip(before, values, strict=True)):
            settings = _settings_of(group)
            texts = [f"{key}={in_words(value)}" for key, value in settings]
            digest = digest_of_text("\n".join((*texts, f"{len(group['params'])} parameters")))
            stays = all(_stays(value) for _, value in settings)
            known[place] = (values if stays else (), digest)
        yield digest


def _stays(value: object) -> bool:
    """True if `in_words` of the value is constant for as long as it is the same object."""
    if isinstance(value, tuple):
        return all(_stays(item) for item in value)
    return not isinstance(value, list | Mapping)

"""Turns observations of runs of a step into findings about the script."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import torch

from elastane.context import Parts
from elastane.diagnose.findings import Book, Severity
from elastane.diagnose.operators import OperatorWatch
from elastane.diagnose.replay import BATCH, StepRun, differences, loop_variables
from elastane.registry import Registry
from elastane.runtime.options import TrainOptions
from elastane.runtime.script_generators import Located, locate
from elastane_common.errors import ElastaneError

_NAMES_SHOWN = 3


class Inspection:
    """Judges the steps of one examination and writes findings into `book`.

    roots, known: as for `generators.locate`. Its methods are called in the order of their definition, from
    within the loader's iterator, so that the script's running functions are on the stack.
    """

    def __init__(
        self,
        book: Book,
        options: TrainOptions,
        roots: Mapping[str, object],
        known: AbstractSet[int],
    ) -> None:
        self._book = book
        self._options = options
        self._roots = roots
        self._known = known
        self._located: list[Located] = []
        self._states: list[bytes] = []
        self._own = Registry()
        self._own_states: Parts = {}
        self._moved: list[Located] = []
        self._reported: set[str] = set()  # reported once: the second step would repeat it

    def step_begins(self) -> None:
        """Record the generators that the loop can reach now."""
        self._located = locate(self._roots, known=self._known)
        self._states = [found.read() for found in self._located]
        self._own = Registry()
        for number, found in enumerate(self._located):
            with contextlib.suppress(ElastaneError):
                self._own.register(f"generator{number}", found.value)
        self._own_states = self._own.capture()

    def step_ended(
        self, step: int, run: StepRun, trained: Sequence[str], logs_until: str = "backward()"
    ) -> None:
        """Judge one run of the step. trained, logs_until: the parameters that require a gradient, and the
        call before which values are logged."""
        self._moved = [
            found for found, state in zip(self._located, self._states, strict=True) if found.read() != state
        ]
        for found in self._moved:
            self._tell_moved(found)
        if not run.backwards:
            self._refused("step", f"the loop body of step {step} called no backward() through the model")
            return
        if not run.optimizer_steps:
            self._refused(
                "step",
                f"the loop body of step {step} ended without optimizer.step()",
                "call backward() and optimizer.step() once for every mini-batch",
            )
        unused = [name for name in trained if name not in run.gradients]
        if unused and not (self._options.find_unused_parameters or self._options.static_graph):
            self._refused(
                "parameters",
                f"{_some(unused)} got no gradient in step {step}",
                "pass find_unused_parameters=True to job.prepare, or requires_grad_(False)",
            )
        if run.sparse:
            self._refused(
                "parameters", f"{_some(run.sparse)} has a sparse gradient", "use dense ones (sparse=False)"
            )
        if run.logged_late:
            self._refused(
                "step",
                f"job.log({', '.join(run.logged_late)}) came after {logs_until}",
                f"log before {logs_until}, so that the values are stored with the step",
            )
        if run.random_at_backward is not None and run.random != run.random_at_backward:
            self._refused(
                "random numbers",
                f"random numbers were drawn after backward() in step {step}",
                "draw them before backward(), or inside `with job.isolated_rng():`",
            )
        self._check_flags()

    def differs(self, first: StepRun, second: StepRun) -> bool:
        """True if the step gave different results when it was repeated."""
        return bool(differences(first, second))

    def restore_generators(self) -> None:
        """Restore the script's own generators too: the next run shows whether they were the cause."""
        self._own.restore(self._own_states)

    def judge(self, step: int, first: StepRun, second: StepRun, third: StepRun) -> None:
        """Report why the second run differed.

        third: a run with the script's own generators restored as well.
        """
        if not self._first("replay"):
            return
        found = differences(first, second)
        if not differences(first, third) and self._moved:
            self._book.add(
                Severity.DIFFERS,
                "replay",
                f"run again from the same state, step {step} differs in {found[0]}",
                where=_some([located.name for located in self._moved]),
                todo="register the generator: when its state was restored too, the step was the same",
            )
            return
        variables = loop_variables()
        if found[0] == BATCH:
            where = "the DataLoader"
            todo = (
                "let a sample depend on nothing but its index, the global generators and registered objects: "
                "not on time, nor on how often it was read"
            )
        elif variables:
            where = "the loop body"
            todo = (
                f"the loop carries {_some(variables)} from one turn to the next: compute it from job.step, "
                "or keep it in an object with state_dict and load_state_dict and give that to prepare"
            )
        else:
            where = "the loop body"
            todo = (
                "look for state that the loop changes outside model and optimizer, time, files, "
                "sets of strings, and operators without deterministic kernel"
            )
        self._book.add(
            Severity.DIFFERS,
            "replay",
            f"run again from the same state, step {step} differs in {found[0]}",
            where=where,
            todo=todo,
        )

    def operators(self, watch: OperatorWatch, device: torch.device) -> None:
        """Report operators that ran in a step.

        On CUDA torch has warned itself; elsewhere it is a note about CUDA.
        """
        self._book.fact("operators in a step", watch.count)
        if device.type == "cuda":
            return
        refused = {finding.where for finding in self._book.report.findings if finding.kind == "operator"}
        for words, where in watch.found.items():
            if where in refused:
                continue
            self._book.add(
                Severity.NOTE,
                "operator",
                f"{words}: no deterministic kernel on CUDA",
                where=where,
                todo=f"fine on {device.type}; on a GPU training would end with a RuntimeError there",
            )

    # ------------------------------------------------------------------

    def _tell_moved(self, found: Located) -> None:
        reported = [finding.what for finding in self._book.report.findings if finding.kind == "data"]
        if any(found.name in what for what in reported) or not self._first(found.name):
            return
        self._book.add(
            Severity.DIFFERS,
            "generator",
            f"{found.name} is drawn from, and its state is in no EST context",
            where=found.name,
            todo=f"{found.suggestion} before prepare, or draw from the global generators",
        )

    def _check_flags(self) -> None:
        if not torch.are_deterministic_algorithms_enabled():
            self._book.add(
                Severity.DIFFERS,
                "flags",
                "the script switches deterministic algorithms off",
                where="torch.use_deterministic_algorithms(False)",
                todo="leave it on: elastane.init switches it on",
            )
        if torch.backends.cudnn.benchmark:
            on_gpu = torch.cuda.is_available()
            self._book.add(
                Severity.DIFFERS if on_gpu else Severity.NOTE,
                "flags",
                "the script switches cuDNN's autotuning on, which chooses kernels by a race",
                where="torch.backends.cudnn.benchmark = True",
                todo="leave it off",
            )

    def _first(self, key: str) -> bool:
        new = key not in self._reported
        self._reported.add(key)
        return new

    def _refused(self, kind: str, what: str, todo: str = "") -> None:
        if self._first(f"{kind}: {todo}"):
            self._book.add(Severity.REFUSED, kind, what, where="the loop body", todo=todo)


def _some(names: Sequence[str]) -> str:
    """Format a few of the names, and the number of the others."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"

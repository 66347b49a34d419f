"""Pure: the likely cause of a difference, as text, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from elastane.diagnose.findings import Finding, Severity
from elastane_cli.verify.compare import Difference
from elastane_cli.verify.original import EventDifference

Kind = Literal[
    "unregistered generator",
    "seeds",
    "initial weights",
    "data pipeline",
    "hidden state",
    "kernel",
    "environment",
    "random numbers",
    "buffers",
    "extras",
    "reduction",
    "optimizer",
    "after the last step",
    "untraced",
    "steps",
    "audit",
    "the script",
    "the conversion",
    "held",
]

#: Kinds of findings in a script's source that can explain a difference in such a place, the likeliest first.
_EXPLAINS: Final[dict[str, tuple[str, ...]]] = {
    "batch": ("loop body", "between epochs", "seeds"),
    "state": ("seeds", "between epochs", "loop body", "epoch variable"),
    "state after": ("seeds", "between epochs", "loop body"),
    "value": ("loop variable", "module state", "epoch variable", "loop body", "after the step"),
    "gradient": ("loop variable", "module state", "epoch variable", "loop body", "after the step"),
    "weights": ("after the step", "loop variable", "epoch variable", "loop body", "setup"),
    "optimizer": ("loop variable", "epoch variable", "setup", "after the step"),
    "buffers": ("after the step", "module state", "loop body"),
    "extras": ("after the step", "setup", "epoch variable"),
    "initial weights": ("seeds",),
}
#: Causes that only mean "something in the script": a known line of it is more informative.
_GENERAL: Final = (
    "hidden state",
    "kernel",
    "random numbers",
    "data pipeline",
    "buffers",
    "extras",
    "optimizer",
    "reduction",
    "after the last step",
    "seeds",
)
#: Differences with equal local gradients: anything that influences the loss would have shown in those.
_AFTER_GRADIENTS: Final = ("weights", "optimizer")
#: Kinds of notes that are worth reporting once there is a difference.
_TELLING: Final = ("seeds", "between epochs", "loop body")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause.

    kind: for programs; text: what probably happened; hint: the remedy; ours: probably Elastane's fault.
    """

    kind: Kind
    text: str
    hint: str = ""
    ours: bool = False


def likely_cause(
    difference: Difference | None, *, by_itself: bool = False, findings: Sequence[Finding] = ()
) -> Cause:
    """Return the probable cause of the difference.

    difference: None if nothing traced differs although the results do. by_itself: two runs of the reference
    differ, so Elastane is not involved. findings: of the script's source; one that can explain the place
    takes precedence over general causes, and over Elastane's own fault.
    """
    cause = _of_difference(difference, by_itself)
    if by_itself or cause.kind not in _GENERAL:
        return cause
    found = in_source(difference.what if difference is not None else "", findings)
    return found if found is not None else cause


def in_source(what: str, findings: Sequence[Finding]) -> Cause | None:
    """Return the likeliest finding that can explain a difference in `what`, or None."""
    kinds = _EXPLAINS.get(what, tuple(kind for kinds in _EXPLAINS.values() for kind in kinds))
    decisive = [f for f in findings if f.severity in (Severity.REFUSED, Severity.DIFFERS)]
    decisive = [f for f in decisive if f.kind != "saved weights"]  # that decides nothing of the training
    if what in _AFTER_GRADIENTS:
        decisive = [f for f in decisive if not _decides_the_loss(f)]
    notes = [f for f in findings if f.severity is Severity.NOTE and f.kind in _TELLING]
    for group in (decisive, notes):
        fitting = sorted((f for f in group if f.kind in kinds), key=lambda f: kinds.index(f.kind))
        if fitting:
            return _in_script(fitting[0])
    return _in_script(decisive[0]) if decisive else None


def _decides_the_loss(finding: Finding) -> bool:
    """True for a loop variable or module state that decides the loss rather than a setting."""
    loop = finding.kind == "loop variable" and " is set from " not in finding.what
    return loop or finding.kind == "module state"


def _in_script(finding: Finding) -> Cause:
    return Cause("the script", f"{finding.where}: {finding.what}", finding.todo)


def conversion_cause(
    difference: EventDifference | None, findings: Sequence[Finding] = (), unlike: Sequence[str] = ()
) -> Cause:
    """Return why the converted script differs from the original, both under stock DDP.

    difference: the first event in which they differ; None if the events are equal and the results are not.
    unlike: facts of the two environments that differ.
    """
    if unlike:
        return Cause(
            "environment",
            f"the processes are not alike: {'; '.join(unlike)}",
            "run the reference with the torch that Elastane runs with, and leave threads and kernels alone",
        )
    what = difference.what if difference is not None else ""
    place = {"mini-batch": "batch", "random numbers": "state", "settings": "optimizer", "loss": "value"}
    found = in_source(place.get(what, what), findings) if what in place else None
    if found is not None:
        return found
    text, hint = _CONVERSION.get(what, _CONVERSION[""])
    said = f"the converted script is not the original, also without any churn: {text}"
    return Cause("the conversion", said, hint)


_CONVERSION: Final = {
    "initial weights": (
        "the models start from other weights",
        "seed both alike before the model is built: elastane.init(seed=S) where the original has "
        "manual_seed(S)",
    ),
    "mini-batch": (
        "a rank's mini-batch is another one",
        "give both the same dataset, batch size and sampler: DistributedSampler with the original's seed, "
        "set_epoch called for each epoch in both or in neither (Elastane calls it), shuffle and drop_last "
        "alike",
    ),
    "random numbers": (
        "the generators of a rank stand otherwise as forward begins",
        "seed as the original does: elastane.init(seed=S) starts rank r from S + r; for one seed on all "
        "ranks call "
        "torch.manual_seed(S) before prepare and elastane.init() without a seed",
    ),
    "loss": (
        "equal weights, mini-batches and random numbers give another loss",
        "compare forward, loss and autocast of the two scripts",
    ),
    "settings": (
        "the optimizer's settings differ",
        "compare learning rate and schedule; a schedule built from len(loader) before prepare counts the "
        "whole "
        "dataset, one built after it a rank's part",
    ),
    "weights": (
        "equal losses lead to other weights",
        "compare what happens between backward() and the next forward: clipping, accumulation, the "
        "optimizer, weights that the script writes itself",
    ),
    "order": (
        "they do not do the same things in the same order",
        "compare the loop bodies: calls of the model, backward(), optimizer.step()",
    ),
    "end": ("one of them does more than the other", "compare numbers of epochs and steps"),
    "": (
        "all steps are equal, and the ends are not",
        "compare what follows the last optimizer.step()",
    ),
}  # fmt: skip


def held_cause(names: Sequence[str], findings: Sequence[Finding] = ()) -> Cause:
    """Return the cause if everything passed to prepare is equal, but other modules of the script are not."""
    about = [f for f in findings if f.kind == "after the step" and f.variable in names]
    if about:
        return _in_script(about[0])
    several = ", ".join(names)
    return Cause(
        "held",
        f"what prepare was given is equal; {several}, which the script keeps besides, is not: a copy that "
        "is no "
        "part of the job is changed in every turn, and does not reach a worker that joins",
        f"pass {several} to prepare, and change it only `if job.stepped:`",
    )


def event_in_words(difference: EventDifference) -> str:
    """Format an event, "step 3, rank 1: the mini-batch", with both values if they are informative."""
    things = {
        "initial weights": f"the weight {difference.name} before the first step",
        "mini-batch": "the mini-batch",
        "random numbers": f"the generator of {difference.name} as forward begins",
        "loss": "the loss",
        "settings": f"the optimizer's setting {difference.name}",
        "weights": f"the weight {difference.name} after the step",
        "order": "what is done next",
        "end": "the end of one of the two",
    }
    values = (
        f" ({difference.reference} in the reference, {difference.found} here)" if difference.reference else ""
    )
    return f"step {difference.step}, rank {difference.rank}: {things[difference.what]}{values}"


_POINTER: Final = re.compile(r"^\s*\[(ELA\d{3})\] elastane errors")


def refusal_in(text: str) -> tuple[str, str] | None:
    """Return (code, reason) of the last error of Elastane's own in a failed run's lines, or None.

    Such an error is the cause: the run was stopped at the line that leaves the contract. Errors that only
    report the loss of a worker or a connection are skipped.
    """
    lines = text.splitlines()
    for place in range(len(lines) - 1, 0, -1):
        pointer = _POINTER.search(lines[place])
        if pointer is not None and pointer[1].startswith(("ELA3", "ELA2", "ELA105")):
            reason = lines[place - 1].strip()
            return pointer[1], reason.partition(": ")[2] or reason
    return None


def _of_difference(difference: Difference | None, by_itself: bool) -> Cause:
    if difference is None:
        return _nothing_traced(by_itself)
    named = _generator(difference, by_itself)
    if named is not None:
        return named
    if difference.what in ("value", "gradient", "batch", "state", "state after") and difference.facts:
        return Cause(
            "environment",
            f"the processes are not alike: {'; '.join(difference.facts)}",
            "give all workers the same threads and libraries; --determinism d2 pins the instruction set",
        )
    return (_by_itself if by_itself else _between_runs)(difference)


def audit_cause(violations: Sequence[str]) -> Cause:
    """Return the cause if all bits are equal, but the audit of the committed history is not clean."""
    return Cause(
        "audit",
        f"the result is equal, the history of the run is not as it should be: {'; '.join(violations[:3])}",
        "please report it, with the seed and the folder kept by --keep",
        ours=True,
    )


def steps_cause(reference: str, found: str) -> Cause:
    """Return the cause if the runs are equal as far as both go, and one continues."""
    return Cause(
        "steps",
        f"the reference made {reference} steps, the elastic run {found}: the length of an epoch or the "
        "number of epochs depends on the process",
        "give job.epochs the same number everywhere, and the dataset the same length",
    )


def place_in_words(difference: Difference) -> str:
    """Format the place of the difference: "step 3, EST 1: the gradient of fc.weight (and 3 more of 10)"."""
    where = "before the first step" if difference.step < 0 else f"step {difference.step}"
    if difference.rank is not None:
        where += f", EST {difference.rank}"
        if difference.micro:
            where += f", mini-batch {difference.micro}"
    things = {
        "batch": "the mini-batch",
        "state": f"{difference.name} as the loop body starts",
        "value": f"the logged value {difference.name}",
        "gradient": f"the local gradient of {difference.name}",
        "state after": f"{difference.name} after the loop body",
        "weights": f"the weight {difference.name}",
        "initial weights": f"the weight {difference.name}",
        "optimizer": f"the optimizer's {difference.name}",
        "buffers": f"the buffer {difference.name}",
        "extras": f"what was prepared besides, {difference.name}",
    }
    more = f" (and {difference.count - 1} more of {difference.of})" if difference.count > 1 else ""
    return f"{where}: {things[difference.what]}{more}"


def _generator(difference: Difference, by_itself: bool) -> Cause | None:
    """Return the cause if an unregistered generator had a different state by then."""
    if not difference.generators or difference.what in ("initial weights",):
        return None
    name = difference.generators[0]
    others = f" (also {', '.join(difference.generators[1:4])})" if len(difference.generators) > 1 else ""
    if by_itself:
        return Cause(
            "unregistered generator",
            f"the generator {name}{others} does not stand in the same state in every run: it has no seed",
            f"give {name} a seed of its own, or draw from the global generators",
        )
    shared = _together(difference)
    return Cause(
        "unregistered generator",
        f"the generator {name}{others} is the script's own and not registered: under stock DDP every rank "
        f"has one, here the ESTs of a worker share it{shared}, and it does not move with them",
        f'register it before prepare: job.register("{_label(name)}", {_expression(name)})',
    )


def _by_itself(difference: Difference) -> Cause:
    if difference.what in ("initial weights",) or (difference.what == "state" and difference.step <= 0):
        return Cause(
            "seeds",
            "two runs of the script start from different random numbers",
            "seed them: elastane.init(seed=S)",
        )
    if difference.what == "batch":
        return Cause(
            "data pipeline",
            "two runs of the script give different mini-batches although their generators are equal",
            "look for an unseeded generator, the time, os.urandom, hash() or the order of a set or "
            "folder in the dataset, its transforms or the sampler",
        )
    if difference.what in ("state", "state after"):
        return Cause(
            "random numbers",
            "two runs of the script draw different numbers of random values",
            "look for a loop whose length depends on the time or on the order of a set",
        )
    if difference.what in ("value", "gradient"):
        return Cause(
            "kernel",
            "the same mini-batch, random numbers and weights give other results in a second run: an "
            "operation that is not deterministic, or a value from outside (the time, another library)",
            "`elastane doctor` names operations without deterministic kernels",
        )
    return Cause(
        "hidden state",
        "two runs of the script differ in what they do to the weights between backward and the next step",
        "look at what the loop body does after backward(): noise, time-dependent schedules, other threads",
    )


_ALONE: Final = {
    "initial weights": Cause(
        "initial weights",
        "the model is not built alike in every process: stock DDP takes rank 0's, here EST 0's worker's",
        "seed before the model is built: elastane.init(seed=S); do not make it depend on the rank",
    ),
    "buffers": Cause(
        "buffers",
        "local gradients and weights are equal, a buffer is not: it is written to outside forward, or "
        "from something that is not the same on all ranks",
        "write to buffers in forward; what follows the weights (an EMA copy) belongs after "
        "optimizer.step() under `if job.stepped:`, and into prepare",
    ),
    "extras": Cause(
        "extras",
        "weights, optimizer and buffers are equal, something else that was prepared is not (a schedule, "
        "a scaler, an average): it changed in turns in which the step was not applied",
        "change it after optimizer.step() under `if job.stepped:`; run an averaged model in eval() only",
    ),
    "optimizer": Cause(
        "optimizer",
        "weights are equal, the optimizer's state is not: its groups are changed by something that is "
        "not part of the job, such as a scheduler that was not prepared",
        "pass schedulers to prepare with the optimizer",
    ),
}
"""Causes by what differs first, where that alone tells them."""


def _between_runs(difference: Difference) -> Cause:
    """Return why an elastic run probably differs from its reference, by what differs first."""
    what = difference.what
    if what in _ALONE:
        return _ALONE[what]
    if what == "state" and difference.step == 0:
        return Cause(
            "seeds",
            f"EST {difference.rank} does not start from the random numbers that stock rank {difference.rank} "
            "starts from: the script seeds by the rank of its process",
            "let elastane.init(seed=S) seed: EST r starts from S + r",
        )
    if what == "batch":
        return _of_the_batch(difference)
    if what in ("state", "state after"):
        return Cause(
            "random numbers",
            f"EST {difference.rank} draws other random numbers than stock rank {difference.rank}: how many "
            "the script draws depends on the process, not on the EST (is_leader, evaluation, a cache)",
            "put what only some processes do into `with job.isolated_rng():`",
        )
    if what in ("value", "gradient"):
        return _of_the_result(difference)
    return Cause(
        "reduction",
        f"every EST's local gradients of step {difference.step} are those of the stock ranks, their sum or "
        "the optimizer's step is not. Unless the script changes gradients or weights between backward() and "
        "the end of the body by something that is not the same on all ranks, this is Elastane's own fault",
        "please report it, with the seed and the folder kept by --keep",
        ours=True,
    )


def _of_the_batch(difference: Difference) -> Cause:
    known = [name for name in difference.known_generators if name.startswith(("dataset", "sampler"))]
    if known:
        return Cause(
            "unregistered generator",
            f"the mini-batch differs although the EST's generators are equal, and the dataset holds a "
            f"generator of its own, {known[0]}: in data workers it does not move with the EST",
            f'register it before prepare: job.register("{_label(known[0])}", {_expression(known[0])})',
        )
    return Cause(
        "data pipeline",
        "the mini-batch differs: the dataset, its transforms or the sampler keep something between "
        "mini-batches (a counter, a cache, a generator) that does not move with the EST",
        "give it state_dict and load_state_dict and register it: job.register(name, object)",
    )


def _of_the_result(difference: Difference) -> Cause:
    """Return the cause of another value or gradient although all that goes into it is the same."""
    shared = _together(difference)
    if shared:
        return Cause(
            "hidden state",
            "mini-batch, random numbers, weights and buffers are those of the stock rank, the result is "
            f"not, and the EST shared its worker{shared}: the loop body or the model keeps something "
            "from one mini-batch to the next (a running mean, a queue, a counter that is no buffer)",
            "make it a buffer of the model, or register it: job.register(name, object)",
        )
    return Cause(
        "kernel",
        "mini-batch, random numbers, weights and buffers are those of the stock rank, the result is not, "
        "and the EST had its worker for itself: an operation without a deterministic kernel, another "
        "number of threads, or something that the script kept from before the worker joined",
        "`elastane doctor` names such operations; register what is kept: job.register(name, object)",
    )


def _nothing_traced(by_itself: bool) -> Cause:
    if by_itself:
        return Cause(
            "untraced",
            "two runs of the script differ, but no two traced ones did: it differs only sometimes",
            "look for threads of the script's own, and for anything that depends on the time",
        )
    return Cause(
        "after the last step",
        "all steps that were traced are equal: the difference is made after the last one, by what follows "
        "the loader loop of an epoch, or it does not show in every run",
        "look at the code after the loader loop; run again with --trace and more --runs",
    )


def _together(difference: Difference) -> str:
    """Format the ESTs that share the worker, " with EST 1, 2"; empty if there are none."""
    others = [str(rank) for rank in difference.together if rank != difference.rank]
    return f" with EST {', '.join(others)}" if others else ""


def _expression(name: str) -> str:
    """Return the variable at the end of a path like `train.py: main().noise`."""
    return name.rpartition(": ")[2].rpartition("().")[2]


def _label(name: str) -> str:
    word = _expression(name).rpartition(".")[2]
    return "".join(c for c in word if c.isalnum() or c == "_") or "noise"

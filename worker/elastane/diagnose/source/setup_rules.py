"""Rules for the rest of a script: seeds, prepare, torch.distributed, modules that keep state."""

from __future__ import annotations

import ast

from elastane.diagnose.findings import Severity
from elastane.diagnose.source.notes import Notes
from elastane.diagnose.source.reading import (
    Script,
    is_optimizer,
    is_scheduler,
    last_name,
    loads,
    name_of,
)
from elastane.script_source import carried_attributes
from elastane.script_source.names import Function
from elastane.script_source.words import SEEDS

_SEEDERS = ("torch", "torch.cuda", "random", "numpy.random", "np.random", "")
_SHARDED = (
    "fully_shard",
    "FSDP",
    "FullyShardedDataParallel",
    "init_device_mesh",
    "DeviceMesh",
    "parallelize_module",
)
_WRAPPED = ("DistributedDataParallel", "DDP")


def setup_findings(script: Script, notes: Notes) -> None:
    _seeds(script, notes)
    _distributed(script, notes)
    _module_states(script, notes)
    if script.preparation is not None:
        _prepared(script, notes)
        _lengths(script, notes)
        _loader_uses(script, notes)


# ---------------------------------------------------------------------- seeds


def _seeds(script: Script, notes: Notes) -> None:
    prepared = script.preparation
    for node in ast.walk(script.tree):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        module, _, method = script.dotted(node.func).rpartition(".")
        if method not in SEEDS or module not in _SEEDERS:
            continue
        seed = node.args[0]
        if any(script.is_job_attribute(n, "rank") for n in ast.walk(seed)):
            notes.add(
                Severity.NOTE,
                "seeds",
                node,
                "the script seeds by job.rank, which changes with the EST that runs",
                "elastane.init(seed=S) starts EST r from S + r, as stock rank r would with S + rank",
            )
        elif (
            prepared is not None
            and node.lineno > prepared.line
            and _same_function(script, node, prepared.call)
        ):
            notes.add(
                Severity.NOTE,
                "seeds",
                node,
                "the script seeds after prepare, when every EST has random states of its own",
                "seed before prepare, or by elastane.init(seed=S)",
            )
        elif isinstance(seed, ast.Constant) and isinstance(seed.value, int) and seed.value >= 2**32:
            notes.add(
                Severity.NOTE,
                "seeds",
                node,
                f"the seed {seed.value} is beyond 2^32, which NumPy does not take",
                "use one below 4294967296",
            )


def _same_function(script: Script, one: ast.AST, other: ast.AST) -> bool:
    return script.function_of(one) is script.function_of(other)


# ---------------------------------------------------------------------- torch.distributed


def _distributed(script: Script, notes: Notes) -> None:
    told: set[str] = set()
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "no_sync":
            notes.add(
                Severity.REFUSED,
                "distributed",
                node,
                f"{name_of(node.func) or 'no_sync'}(): the prepared model is no DDP wrapper",
                "job.prepare(..., accumulation_steps=k), and backward(), step() and zero_grad() in every "
                "turn",
            )
            continue
        _distributed_call(script, node, notes, told)


def _distributed_call(script: Script, node: ast.Call, notes: Notes, told: set[str]) -> None:
    dotted = script.dotted(node.func)
    last = dotted.rpartition(".")[2]
    if last in _SHARDED:
        notes.add(
            Severity.REFUSED,
            "distributed",
            node,
            f"{last}: the model or the devices are split by torch.distributed",
            "give the whole model to job.prepare",
        )
    elif last in _WRAPPED and script.uses_elastane:
        notes.add(
            Severity.NOTE if _conditional(script, node) else Severity.REFUSED,
            "distributed",
            node,
            f"{last}(...): Elastane itself stands in for DistributedDataParallel",
            "give the bare model to job.prepare",
        )
    elif (
        _is_distributed(script, dotted)
        and last not in ("is_available", "is_torchelastic_launched")
        and last not in told
    ):
        told.add(last)
        if last == "is_initialized":
            notes.add(
                Severity.DIFFERS,
                "distributed",
                node,
                "torch.distributed.is_initialized() is False under Elastane: what stands behind it is "
                "passed over",
                "use job.rank, job.num_ests and job.is_leader; what is reduced over ranks needs another form",
            )
            return
        guarded = _conditional(script, node)
        notes.add(
            Severity.NOTE if guarded else Severity.REFUSED,
            "distributed",
            node,
            f"torch.distributed.{last}: this script speaks to torch.distributed itself, and there is no "
            "process group" + (" (only reached under a condition)" if guarded else ""),
            _instead(last),
        )


def _instead(name: str) -> str:
    words = {
        "get_rank": "job.rank",
        "get_world_size": "job.num_ests",
        "barrier": "nothing: ESTs are in step anyway",
        "init_process_group": "elastane.init() alone",
        "destroy_process_group": "nothing: Elastane ends its own",
    }
    return (
        f"instead: {words[name]}"
        if name in words
        else "log values with job.log; gradients are reduced for you"
    )


def _is_distributed(script: Script, dotted: str) -> bool:
    if dotted.startswith("torch.distributed.") and dotted.count(".") == 2:
        return dotted.rpartition(".")[2].islower()
    starred = any(
        isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        for node in script.tree.body
    )
    # `from helpers import *` brings it along under its usual name.
    return starred and dotted.startswith("dist.") and dotted.count(".") == 1 and "dist" not in script.imports


def _conditional(script: Script, node: ast.AST) -> bool:
    """Whether a condition decides if it is done: an if around it, or an early return before it."""
    below = node
    for parent in script.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp) and below is not parent.test:
            return True
        if isinstance(parent, Function):
            return any(
                isinstance(one, ast.If) and any(isinstance(n, ast.Return) for n in ast.walk(one))
                for one in parent.body
                if one.lineno < node.lineno  # type: ignore[attr-defined]
            )
        below = parent
    return False


# ---------------------------------------------------------------------- prepare


def _prepared(script: Script, notes: Notes) -> None:
    prepared = script.preparation
    assert prepared is not None
    given = script.kept
    used = {
        name_of(node.func.value)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("step", "scale")
    }
    for name, value in script.assigned:
        if not isinstance(value, ast.Call) or name in given or name not in used:
            continue
        last = last_name(value.func)
        if last == "GradScaler":
            notes.add(
                Severity.REFUSED,
                "setup",
                value,
                f"{name}, a GradScaler, is not given to prepare: it would count every turn",
                f"give {name} to job.prepare",
                variable=name,
            )
        elif is_scheduler(script.dotted(value.func)):
            notes.add(
                Severity.REFUSED,
                "setup",
                value,
                f"{name}, a scheduler, is not given to prepare: it would step once a turn",
                f"give {name} to job.prepare",
                variable=name,
            )
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_param_group"
            and node.lineno > prepared.line
        ):
            notes.add(
                Severity.REFUSED,
                "setup",
                node,
                f"{name_of(node.func)} after prepare: a worker that joins builds the optimizer without the "
                "group",
                "add all groups before prepare, and freeze what is to come later with lr 0",
                variable=name_of(node.func.value),
            )


def _lengths(script: Script, notes: Notes) -> None:
    """A schedule that counts the steps of the loader as it was before prepare."""
    prepared = script.preparation
    assert prepared is not None
    built = {n for n, v in script.assigned if isinstance(v, ast.Call) and last_name(v.func) == "DataLoader"}
    lengths: set[str] = set()
    for name, value in script.assigned:
        if value.lineno < prepared.line and (_has_length(value, built) or loads(value) & lengths):
            lengths.add(name)
    for name, call in script.schedulers.items():
        if call.lineno >= prepared.line or not _same_function(script, call, prepared.call):
            continue
        arguments = [*call.args, *(word.value for word in call.keywords)]
        if any(_has_length(argument, built) or loads(argument) & lengths for argument in arguments):
            notes.add(
                Severity.NOTE,
                "setup",
                call,
                f"{name} counts len(loader) before prepare, the whole dataset's mini-batches: a rank makes "
                "one N-th "
                "of them, and the schedule goes one N-th of its way, as it would under DDP",
                "divide by job.num_ests, or build it after prepare from the new loader's length and "
                "prepare it then "
                "in one call with all else",
                variable=name,
            )


def _has_length(node: ast.expr, loaders: set[str]) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Name)
        and n.func.id == "len"
        and n.args
        and (name_of(n.args[0]) in loaders or "loader" in name_of(n.args[0]).lower())
        for n in ast.walk(node)
    )


def _loader_uses(script: Script, notes: Notes) -> None:
    prepared = script.preparation
    assert prepared is not None
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call):
            continue
        if last_name(node.func) == "set_epoch":
            notes.add(
                Severity.NOTE,
                "loop body",
                node,
                f"{name_of(node.func) or 'set_epoch'} is called by the script; Elastane calls it for every "
                "epoch of "
                "job.epochs, with the epoch's number",
                "leave it out, or call it with the epoch's number alone",
            )
        elif (
            isinstance(node.func, ast.Name)
            and node.func.id == "iter"
            and node.args
            and name_of(node.args[0]) in script.loaders
            and node.lineno > prepared.line
        ):
            notes.add(
                Severity.REFUSED,
                "loop body",
                node,
                f"iter({name_of(node.args[0])}) outside of a for loop: the loader's turns are the ESTs', "
                "and each must "
                "come to its end",
                "go through it with `for ... in loader:` inside job.epochs; look at a sample by dataset[0]",
                variable=name_of(node.args[0]),
            )


# ---------------------------------------------------------------------- modules


def _module_states(script: Script, notes: Notes) -> None:
    """Counters and means that modules and optimizers keep as plain attributes."""
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [script.dotted(base) for base in node.bases]
        module = any(base.endswith("Module") for base in bases)
        if module or any(is_optimizer(base) for base in bases):
            _attributes(node, module, notes)


def _attributes(kind: ast.ClassDef, module: bool, notes: Notes) -> None:
    methods = [method for method in kind.body if isinstance(method, Function) and method.args.args]
    if not module and any(method.name == "state_dict" for method in methods):
        return  # it decides itself what its state is
    buffers = {
        call.args[0].value
        for call in ast.walk(kind)
        if isinstance(call, ast.Call)
        and last_name(call.func) == "register_buffer"
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }
    for attribute, line in carried_attributes(kind, kind.name).items():
        if attribute in buffers:
            continue
        method = next(one for one in methods if one.lineno <= line <= (one.end_lineno or line))
        variable = f"{method.args.args[0].arg}.{attribute}"
        keeps = f"{kind.name}.{method.name} keeps {variable} from one call to the next"
        if module:
            what = f"{keeps}, and it is no buffer: the ESTs of a worker share it, and it does not travel"
            todo = (
                f'make it a buffer: self.register_buffer("{attribute}", torch.tensor(...)), changed in '
                "place; or compute it from job.step"
            )
        else:
            what = f"{keeps}, and state_dict does not hold it: a worker that joins would not have it"
            todo = "keep it in self.state[parameter] or in a param_group, which state_dict holds"
        notes.add(Severity.DIFFERS, "module state", line, what, todo, variable=variable)

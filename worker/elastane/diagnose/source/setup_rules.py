"""Rules for the rest of a script: seeds, prepare, torch.distributed, modules that keep state."""

from __future__ import annotations

import ast
from collections.abc import Sequence

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
from elastane.script_source import ClassSource, carried_attributes, with_bases
from elastane.script_source.names import Function
from elastane.script_source.words import SEEDS
from elastane_proto.launcher_variables import LAUNCHER_VARIABLES

_SEEDERS = ("torch", "torch.cuda", "random", "numpy.random", "np.random", "")
_SHARDED = (
    "fully_shard",
    "FSDP",
    "FullyShardedDataParallel",
    "init_device_mesh",
    "DeviceMesh",
    "parallelize_module",
)
_ENVIRONMENT_READS = ("os.environ.get", "os.getenv")
_WRAPPED = ("DistributedDataParallel", "DDP")


def setup_findings(script: Script, notes: Notes) -> None:
    _seeds(script, notes)
    _distributed(script, notes)
    _launcher_variables(script, notes)
    _module_states(script, notes)
    if script.preparation is not None:
        _prepared(script, notes)
        _lengths(script, notes)
        _loader_uses(script, notes)


# ---------------------------------------------------------------------- seeds


def _seeds(script: Script, notes: Notes) -> None:
    for node in ast.walk(script.tree):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        module, _, method = script.dotted(node.func).rpartition(".")
        if method not in SEEDS or module not in _SEEDERS:
            continue
        seed = node.args[0]
        if any(script.is_job_attribute(n, "rank") for n in ast.walk(seed)):
            _rank_seed(script, node, notes)
        elif (
            (module.endswith("numpy.random") or module == "np.random")
            and isinstance(seed, ast.Constant)
            and isinstance(seed.value, int)
            and seed.value >= 2**32
        ):
            notes.add(
                Severity.REFUSED,
                "seeds",
                node,
                f"NumPy takes no seed beyond 2^32, as {seed.value} is: it raises ValueError",
                f"{name_of(node.func)}({seed.value} % 2**32), which is what "
                f"elastane.init(seed={seed.value}) does",
            )


def _rank_seed(script: Script, node: ast.Call, notes: Notes) -> None:
    """Note a seed computed from job.rank, except in the loader loop and in each_rank, where it is a rank's
    own."""
    around = list(script.ancestors(node))
    if any(loop.node in around for loop in script.loader_loops) or script.in_each_rank(node):
        return
    prepared = script.preparation
    before = prepared is not None and node.lineno < prepared.line
    if before and script.seed_given and _same_function(script, node, prepared.call):  # type: ignore[union-attr]
        notes.add(
            Severity.NOTE,
            "seeds",
            node,
            "a seed computed from job.rank before prepare has no effect: EST r starts from the seed of "
            "elastane.init + r",
            "leave it out",
        )
        return
    notes.add(
        Severity.REFUSED,
        "seeds",
        node,
        "a seed is computed from job.rank where one process runs several ranks",
        "elastane.init(seed=S) gives EST r the seed S + r from prepare on; later write it under "
        "`for rank in job.each_rank():`",
    )


def _same_function(script: Script, one: ast.AST, other: ast.AST) -> bool:
    return script.function_of(one) is script.function_of(other)


# ---------------------------------------------------------------------- torch.distributed


def _distributed(script: Script, notes: Notes) -> None:
    noted: set[str] = set()
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "no_sync":
            notes.add(
                Severity.REFUSED,
                "distributed",
                node,
                f"{name_of(node.func) or 'no_sync'}(): the prepared model is not a DDP wrapper",
                "job.prepare(..., accumulation_steps=k), and backward(), step() and zero_grad() in every "
                "turn",
            )
            continue
        _distributed_call(script, node, notes, noted)


def _distributed_call(script: Script, node: ast.Call, notes: Notes, noted: set[str]) -> None:
    dotted = script.dotted(node.func)
    last = dotted.rpartition(".")[2]
    if last in _SHARDED:
        notes.add(
            Severity.REFUSED,
            "distributed",
            node,
            f"{last}: the model or the devices are split by torch.distributed",
            "pass the whole model to job.prepare",
        )
    elif last in _WRAPPED and script.uses_elastane:
        notes.add(
            Severity.NOTE if _conditional(script, node) else Severity.REFUSED,
            "distributed",
            node,
            f"{last}(...): Elastane itself replaces DistributedDataParallel",
            "pass the unwrapped model to job.prepare",
        )
    elif (
        _is_distributed(script, dotted)
        and last not in ("is_available", "is_torchelastic_launched")
        and last not in noted
    ):
        noted.add(last)
        if last == "is_initialized" and script.distributed_calls:
            notes.add(
                Severity.NOTE,
                "distributed",
                node,
                "torch.distributed.is_initialized() is False, as distributed_calls=True asks for: what "
                "depends on it is skipped",
                "make sure that the behaviour of a single process is intended",
            )
            return
        guarded = _conditional(script, node)
        notes.add(
            Severity.NOTE if guarded else Severity.REFUSED,
            "distributed",
            node,
            f"torch.distributed.{last}: this script calls torch.distributed itself, and there is no "
            "process group" + (" (only reached under a condition)" if guarded else ""),
            _instead(last),
        )


def _instead(name: str) -> str:
    words = {
        "is_initialized": "job.num_ests, job.rank and job.is_leader; or elastane.init(..., "
        "distributed_calls=True), if the answers of a single process are intended",
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


def _launcher_variables(script: Script, notes: Notes) -> None:
    """Note environment reads of RANK and similar variables that the script does not set itself."""
    reads: list[tuple[str, ast.AST]] = []
    written: set[str] = set()
    for node in ast.walk(script.tree):
        name: object = None
        if isinstance(node, ast.Subscript) and script.dotted(node.value) == "os.environ":
            name = getattr(node.slice, "value", None)
        elif isinstance(node, ast.Call) and node.args and script.dotted(node.func) in _ENVIRONMENT_READS:
            name = getattr(node.args[0], "value", None)
        elif isinstance(node, ast.Compare) and script.dotted(node.comparators[0]) == "os.environ":
            name = getattr(node.left, "value", None)
        if not isinstance(name, str) or name not in LAUNCHER_VARIABLES:
            continue
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            written.add(name)
        else:
            reads.append((name, node))
    for name, node in () if script.distributed_calls or not script.uses_elastane else reads:
        if name not in written:
            guarded = _conditional(script, node)
            notes.add(
                Severity.NOTE if guarded else Severity.REFUSED,
                "distributed",
                node,
                f"the variable {name}, which torchrun sets for each rank and Elastane does not, is read"
                + (" (only under a condition)" if guarded else ""),
                LAUNCHER_VARIABLES[name],
                variable=name,
            )


def _is_distributed(script: Script, dotted: str) -> bool:
    if dotted.startswith("torch.distributed.") and dotted.count(".") == 2:
        return dotted.rpartition(".")[2].islower()
    starred = any(
        isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        for node in script.tree.body
    )
    # `from helpers import *` imports it under its usual name.
    return starred and dotted.startswith("dist.") and dotted.count(".") == 1 and "dist" not in script.imports


def _conditional(script: Script, node: ast.AST) -> bool:
    """True if the node runs only under a condition: an if around it, or an early return before it."""
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
                f"{name}, a GradScaler, is not passed to prepare: it would update in every turn",
                f"pass {name} to job.prepare",
                variable=name,
            )
        elif is_scheduler(script.dotted(value.func)):
            notes.add(
                Severity.REFUSED,
                "setup",
                value,
                f"{name}, a scheduler, is not passed to prepare: it would step once a turn",
                f"pass {name} to job.prepare",
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
                "add all groups before prepare, with lr=0 for those that are trained later",
                variable=name_of(node.func.value),
            )


def _lengths(script: Script, notes: Notes) -> None:
    """Note a schedule that counts the steps of the loader as it was before prepare."""
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
                f"{name} counts len(loader) before prepare, the whole dataset's mini-batches: a rank runs "
                "1/N of them, so the schedule covers 1/N of its course, as it would under DDP",
                "if it counts steps: steps = job.steps_per_epoch(loader), before prepare",
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
            _set_epoch(script, node, notes)
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
                f"iter({name_of(node.args[0])}) outside of a for loop: each mini-batch is an EST's turn, "
                "and the loop must run to its end",
                "iterate over it with `for ... in loader:` inside job.epochs; inspect a sample by dataset[0]",
                variable=name_of(node.args[0]),
            )


def _set_epoch(script: Script, node: ast.Call, notes: Notes) -> None:
    """Note calls of set_epoch: the number from job.epochs changes nothing.

    With another one training stops.
    """
    name = name_of(node.func)
    if "dataset" in name.lower() or not node.args:
        return
    given = node.args[0]
    loop = next((one for one in script.ancestors(node) if one in script.epoch_loops), None)
    epoch = name_of(loop.target) if isinstance(loop, ast.For) else ""
    if isinstance(given, ast.Name) and (given.id == epoch or not epoch):
        return  # in a separate function it usually is the parameter
    off = (isinstance(given, ast.Constant) and (loop is not None or given.value != 0)) or (
        isinstance(given, ast.BinOp)
        and {epoch} == loads(given)
        and any(isinstance(part, ast.Constant) and part.value for part in (given.left, given.right))
    )
    notes.add(
        Severity.REFUSED if off and not _unshuffled(script) else Severity.NOTE,
        "loop body",
        node,
        f"{name}({ast.unparse(given)})"
        + (" is not the number of the epoch" if off else ", if that is not the number of the epoch")
        + ": stock DDP would have another order, and training is stopped",
        f"{name}({epoch or 'epoch'}) in every epoch, with the number that job.epochs gives, or leave it out",
    )


def _unshuffled(script: Script) -> bool:
    """True if a sampler is created with shuffle=False: all its epochs have the same order."""
    return any(
        word.arg == "shuffle" and isinstance(word.value, ast.Constant) and not word.value.value
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and last_name(node.func).endswith("Sampler")
        for word in node.keywords
    )


# ---------------------------------------------------------------------- modules


def _module_states(script: Script, notes: Notes) -> None:
    """Note counters and means that modules and optimizers keep as plain attributes."""
    noted: set[int] = set()
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        classes = with_bases(script.tree, node.name)
        kinds = [source.tree for source in classes if isinstance(source.tree, ast.ClassDef)]
        bases = [script.dotted(base) for kind in kinds for base in kind.bases]
        module = any(base.endswith("Module") for base in bases)
        if module or any(is_optimizer(base) for base in bases):
            _attributes(kinds, classes, module, noted, notes)


def _attributes(
    kinds: Sequence[ast.ClassDef],
    classes: Sequence[ClassSource],
    module: bool,
    noted: set[int],
    notes: Notes,
) -> None:
    """Check one class with its bases. noted: lines already noted for another class that shares them."""
    methods = [
        (kind, method)
        for kind in kinds
        for method in kind.body
        if isinstance(method, Function) and method.args.args
    ]
    if not module and any(method.name == "state_dict" for _, method in methods):
        return  # the class defines its own state
    inner = [one for kind in kinds for one in ast.walk(kind)]
    buffers = {
        call.args[0].value
        for call in inner
        if isinstance(call, ast.Call)
        and last_name(call.func) == "register_buffer"
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }
    called = {last_name(one.func) for one in inner if isinstance(one, ast.Call)}
    for attribute, place in carried_attributes(classes).items():
        line = place.line
        # A called attribute is a module, with its own state.
        if attribute in buffers or attribute in called or line in noted:
            continue
        noted.add(line)
        kind, method = next((k, m) for k, m in methods if m.lineno <= line <= (m.end_lineno or line))
        variable = f"{method.args.args[0].arg}.{attribute}"
        keeps = f"{kind.name}.{method.name} keeps {variable} from one call to the next"
        if module:
            what = (
                f"{keeps}, and it is not a buffer: the ESTs of a worker share it, and it is not handed over"
            )
            todo = (
                f'make it a buffer: self.register_buffer("{attribute}", torch.tensor(...)), changed in '
                "place; or compute it from job.step"
            )
        else:
            what = f"{keeps}, and state_dict does not hold it: a worker that joins would not have it"
            todo = "keep it in self.state[parameter] or in a param_group, which state_dict holds"
        notes.add(Severity.REFUSED, "module state", line, what, todo, variable=variable)

"""Describes a script's model to parameter servers: dense tensors and tables of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from elastane.runtime.prepared_objects import replace_method
from elastane.runtime.slots.dense import dense_tensor
from elastane.runtime.slots.errors import PsOptimizerError
from elastane.runtime.slots.groups import OptimizerGroups
from elastane.runtime.slots.remote_embedding import check_embedding, is_sparse
from elastane.tables.spec import ModelSpec, PsModelError, RowTable, Wire, weight_of
from elastane_slots.initial_rows import Distribution
from elastane_slots.placement import BLOCK_BYTES, SLOTS

_log = structlog.get_logger(__name__)

#: Function of a task's positions that returns the ids it will use, by name of the embedding.
RowsOf = Callable[[range], Mapping[str, Any]]
#: Distribution and scale of initial rows.
Initial = tuple[Distribution, float]


@dataclass(frozen=True)
class PsArguments:
    """The arguments of `job.prepare_ps`."""

    net: nn.Module
    optimizer: Optimizer | Sequence[Optimizer]
    rows: RowsOf | None = None
    initial: Initial | Mapping[str, Initial] | None = None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers. Raises PsOptimizerError."""
        given = [self.optimizer] if isinstance(self.optimizer, Optimizer) else list(self.optimizer)
        if not given or not all(isinstance(one, Optimizer) for one in given):
            raise PsOptimizerError(
                "job.prepare_ps takes the model and one optimizer, or a list of them",
                hint="such as [torch.optim.Adam(dense), elastane.RowOptimizer(embeddings)]",
            )
        return given


@dataclass(frozen=True)
class ModelParts:
    """The parts of a model. tables: embeddings with remote rows, by name, in the order of the tables."""

    spec: ModelSpec
    dense: list[nn.Parameter]
    tables: dict[str, nn.Module]
    groups: OptimizerGroups
    #: Digest of values outside of slots that training does not change; must be equal in all workers.
    local: str
    #: Keys of the model's state_dict that are in no slot.
    absent: list[str]


def model_parts(
    given: PsArguments, *, slots: int = SLOTS, seed: int = 0, wire: Wire = "float32"
) -> ModelParts:
    """Divide a model into its parts, without changing it. Raises PsModelError, PsOptimizerError."""
    if not isinstance(given.net, nn.Module):
        raise PsModelError(f"job.prepare_ps was given a {type(given.net).__name__} for a model")
    optimizers = given.optimizers
    tables = _tables(given.net)
    weights = {id(module.weight): name for name, module in tables.items()}
    parameters = dict(given.net.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    _refuse_tied(given.net, tables)
    groups = OptimizerGroups(optimizers, weights, names)
    dense = {name: p for name, p in parameters.items() if id(p) in groups.of and id(p) not in weights}
    for name, parameter in parameters.items():
        _check_parameter(name, parameter, id(parameter) in groups.of)
    spec = ModelSpec(
        tuple(
            dense_tensor(name, p, groups.rules[groups.of[id(p)]], groups.of[id(p)])
            for name, p in dense.items()
        ),
        tuple(
            _row_table(name, module, _initial_of(given.initial, name), groups)
            for name, module in tables.items()
        ),
        slots,
        seed,
        wire,
    )
    spec.check()
    unknown = set(given.initial) - set(tables) if isinstance(given.initial, Mapping) else set()
    if unknown:
        raise PsModelError(f"initial names {sorted(unknown)[0]!r}, which is no embedding with sparse=True")
    _say_large(given.net)
    used = set(map(id, dense.values())) | set(weights)
    known = {*dense, *map(weight_of, tables)}
    absent = [key for key in given.net.state_dict() if key not in known]
    local = _local_digest(given.net, used)
    return ModelParts(spec, list(dense.values()), dict(tables), groups, local, absent)


def _tables(net: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in net.named_modules():
        if is_sparse(module):
            check_embedding(name or "weight", module)
            found[name or "weight"] = module
    return found


def _refuse_tied(net: nn.Module, tables: Mapping[str, Any]) -> None:
    weights = {id(module.weight): name for name, module in tables.items()}
    if len(weights) < len(tables):
        raise PsModelError("two embeddings with sparse=True share their weight", hint="use one module twice")
    for name, parameter in net.named_parameters(remove_duplicate=False):
        table = weights.get(id(parameter))
        if table is not None and name not in (f"{table}.weight", "weight"):
            modules = dict(net.named_modules(remove_duplicate=False))
            if modules.get(name.removesuffix(".weight")) is tables[table]:
                continue  # the module itself, under a second name
            raise PsModelError(
                f"{name!r} is the weight of {table!r}, whose rows are pulled one by one",
                hint="untie them, or use sparse=False: then the weight is pulled as a whole",
                module=table,
            )


def _check_parameter(name: str, parameter: nn.Parameter, in_optimizer: bool) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise PsModelError(f"{name!r} has no shape yet", hint="call the model once before prepare_ps")
    if parameter.requires_grad and not in_optimizer:
        raise PsOptimizerError(
            f"{name!r} requires a gradient, and no optimizer has it",
            hint="give it to the optimizer, or set requires_grad to False: it stays as it is then",
            tensor=name,
        )


def _row_table(name: str, module: Any, initial: Initial, groups: OptimizerGroups) -> RowTable:
    group = groups.of.get(id(module.weight))
    if group is None:
        raise PsOptimizerError(f"the rows of {name!r} are in no optimizer", table=name)
    return RowTable(
        name,
        module.num_embeddings,
        module.embedding_dim,
        str(module.weight.dtype).removeprefix("torch."),
        module.padding_idx,
        initial[0],
        float(initial[1]),
        groups.rules[group],
        group,
    )


def _initial_of(given: Initial | Mapping[str, Initial] | None, name: str) -> Initial:
    chosen = given.get(name) if isinstance(given, Mapping) else given
    if chosen is None:
        return "normal", 1.0  # the initial distribution of nn.Embedding
    if not isinstance(chosen, tuple) or len(chosen) != 2:
        raise PsModelError(
            f"the rows of {name!r} cannot begin as {chosen!r}", hint='such as ("uniform", 0.05)', table=name
        )
    return chosen


def _say_large(net: nn.Module) -> None:
    for name, module in net.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and not is_sparse(module):
            size = module.weight.numel() * module.weight.element_size()
            if size > BLOCK_BYTES:
                _log.warning(
                    f"{name!r} is pulled as a whole for every task, {size:,} bytes; with sparse=True only"
                    " the rows that a task uses are"
                )
        elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            _log.warning(
                f"the running averages of {name!r} stay in each worker: they differ among workers, and begin"
                " anew in one that starts anew or joins"
            )


def refuse_loading(net: nn.Module) -> None:
    """From now on, refuse `load_state_dict` of the model and its parts: the next pull would undo it."""
    for module in net.modules():
        replace_method(module, "load_state_dict", _refuse_loading)


def _refuse_loading(original: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    raise PsModelError(
        "load_state_dict() of the model was called after prepare_ps: its weights are at parameter servers",
        hint="load before prepare_ps; `elastane ps rewind` takes a job back to a checkpoint",
    )


def _local_digest(net: nn.Module, used: set[int]) -> str:
    digest = hashlib.sha256()
    for name, value in [*net.named_parameters(), *net.named_buffers()]:
        if id(value) not in used:
            digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
            digest.update(_content(value))
    return digest.hexdigest()


def _content(value: Tensor) -> bytes:
    if value.is_meta or not value.numel():
        return b""
    flat = value.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes()

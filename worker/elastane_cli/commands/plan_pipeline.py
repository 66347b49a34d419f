"""`elastane plan --profile`: plans a pipeline from files, without a master."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from elastane_cli.commands.common import console, fail, print_json, size_bytes, worker_limits
from elastane_common.errors import ElastaneError
from elastane_common.exit_codes import CODE_FAILED, CODE_USAGE

if TYPE_CHECKING:
    from elastane_planner.baselines import Baseline
    from elastane_planner.cluster import Cluster
    from elastane_planner.errors import PlanError
    from elastane_planner.plan import Plan
    from elastane_planner.planner import Answer
    from elastane_planner.profile import Profile

_RATES: Final = {
    "B": 1,
    **{unit + "B": 1000**n for n, unit in enumerate("KMGT", 1)},
    **{unit + "iB": 1024**n for n, unit in enumerate("KMGT", 1)},
}
#: Planner error codes caused by options or input files.
_USAGE: Final = ("invalid_profile", "invalid_cluster", "invalid_plan", "invalid_request")


class PlanningError(ElastaneError):
    """No plan can be made. reason: the planner's code."""

    code = "ELA470"

    def __init__(self, message: str, *, reason: str, hint: str = "", **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class PipelineRequest:
    """The options of `elastane plan --profile`."""

    profile: Path
    devices: int | None
    cluster: Path | None
    bandwidth: str
    memory: str
    micro_batches: int
    stages: str
    shadows: int
    keep: Path | None
    horizon_steps: int
    units_max: int | None
    budget_seconds: float
    gantt: Path | None
    csv: Path | None
    transfers: bool
    schedule: Path | None
    baselines: bool


def plan_pipeline(request: PipelineRequest, *, as_json: bool) -> None:
    """Plan, print, and write the requested files. Exits with 2 for bad input, 1 if there is no plan."""
    from elastane_planner.errors import PlanError

    for path in (request.gantt, request.csv):
        if path is not None and not path.absolute().parent.is_dir():  # before the search
            raise typer.BadParameter(f"{path.parent} is not a folder")
    try:
        _plan(request, as_json=as_json)
    except PlanError as error:
        _refuse(error, as_json=as_json)


def _refuse(error: PlanError, *, as_json: bool) -> None:
    told = PlanningError(str(error), reason=error.code, hint=error.hint, **error.facts)
    fail(told, as_json=as_json, code=CODE_USAGE if error.code in _USAGE else CODE_FAILED)


def _plan(request: PipelineRequest, *, as_json: bool) -> None:
    from elastane_cli.views.pipelines import answer_parts, answer_to_plain
    from elastane_planner.baselines import baselines
    from elastane_planner.device_order import device_order
    from elastane_planner.migration import holdings
    from elastane_planner.planner import make_plan

    profile = _read_profile(request.profile, request.units_max)
    cluster = _cluster(request)
    low, high = worker_limits(request.stages, "--stages") if request.stages else (1, None)
    theirs = _schedule(request.schedule, profile, cluster, request.micro_batches)
    keep, notes = _kept(request.keep, cluster, len(profile.units)) if request.keep is not None else (None, ())
    answer = make_plan(
        profile,
        cluster,
        request.micro_batches,
        stages=(low, high),
        shadows=request.shadows,
        keep=keep,
        held=None if keep is None else holdings(keep),
        horizon_steps=request.horizon_steps,
        seconds=time.monotonic,
        budget_seconds=request.budget_seconds,
    )
    answer = msgspec.structs.replace(answer, notes=(*notes, *answer.notes))
    order = sorted(range(len(cluster.devices)), key=lambda device: cluster.devices[device].name)
    others = [theirs] if theirs is not None else []
    if request.baselines:
        others += baselines(profile, cluster, request.micro_batches, device_order(cluster, order))
    _write_files(request, cluster, answer)
    if as_json:
        print_json(answer_to_plain(profile, cluster, request.micro_batches, answer, others))
        return
    out = console()
    for part in answer_parts(profile, cluster, request.micro_batches, answer, others):
        out.print(part)


def _schedule(path: Path | None, profile: Profile, cluster: Cluster, micro_batches: int) -> Baseline | None:
    """Read a schedule, and simulate it."""
    from elastane_planner.baselines import scheduled
    from elastane_planner.errors import InvalidPlan
    from elastane_planner.plan_csv import read_schedule

    if path is None:
        return None
    try:
        text = _read(path, "--schedule").decode()
    except UnicodeDecodeError as error:
        raise InvalidPlan(f"{path} is not text: {error}", hint="Give a schedule as torch's CSV.") from error
    return scheduled(profile, cluster, micro_batches, path.name, read_schedule(text))


def _read_profile(path: Path, units_max: int | None) -> Profile:
    """Read a profile, or a graph of PipeDream."""
    from elastane_planner.errors import InvalidProfile
    from elastane_planner.pipedream import coalesced, looks_like_graph, read_graph
    from elastane_planner.profile import Profile

    data = _read(path, "--profile")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidProfile(f"{path} is not text: {error}", hint="Give a profile as JSON.") from error
    profile = read_graph(text) if looks_like_graph(text) else Profile.from_json(text)
    return profile if units_max is None else coalesced(profile, units_max)


def _cluster(request: PipelineRequest) -> Cluster:
    """Read the cluster, or create one of equal devices."""
    from elastane_planner.cluster import Cluster, Device

    if (request.devices is None) == (request.cluster is None):
        raise typer.BadParameter("give one of --devices N and --cluster FILE", param_hint="--devices")
    if request.cluster is not None:
        return Cluster.from_json(_read(request.cluster, "--cluster"))
    assert request.devices is not None
    memory = size_bytes(request.memory, "--memory") if request.memory else None
    width = len(str(request.devices - 1))  # so that names sort like their numbers
    return Cluster.uniform(
        [Device(f"device{index:0{width}}", memory_bytes=memory) for index in range(request.devices)],
        _rate(request.bandwidth, "--bandwidth"),
    )


def _kept(path: Path, cluster: Cluster, units: int) -> tuple[Plan, tuple[str, ...]]:
    """Read the current plan, as printed by `--json`, restricted to existing devices.

    If a stage has lost all its devices, make_plan reports that the plan cannot continue.
    """
    from elastane_planner.errors import InvalidPlan
    from elastane_planner.plan import Plan, Stage

    try:
        document = _decoder.decode(_read(path, "--keep"))
    except msgspec.DecodeError as error:
        raise InvalidPlan(
            f"{path} is no plan: {error}", hint="Give what `elastane plan --profile ... --json` printed."
        ) from error
    numbers = {device.name: index for index, device in enumerate(cluster.devices)}
    gone: list[str] = []

    def known(names: list[str]) -> tuple[int, ...]:
        gone.extend(name for name in names if name not in numbers and name not in gone)
        return tuple(numbers[name] for name in names if name in numbers)

    stages = document.plan.stages
    if not stages or stages[-1].end_unit != units:
        raise InvalidPlan(
            f"the plan in {path} has {stages[-1].end_unit if stages else 0} units, the profile has {units}",
            hint="A plan is kept for the model that it was made for, with the same --units-max.",
        )
    plan = Plan(
        tuple(Stage(s.first_unit, s.end_unit, known(s.devices), s.memory) for s in stages),
        tuple(known(stage.shadows) for stage in stages) if any(stage.shadows for stage in stages) else (),
    )
    return plan, (f"devices of the plan to keep that are gone: {', '.join(gone)}",) if gone else ()


def _write_files(request: PipelineRequest, cluster: Cluster, answer: Answer) -> None:
    from elastane_planner.gantt import draw
    from elastane_planner.plan_csv import with_transfers
    from elastane_planner.schedule import blocks, to_csv

    if request.gantt is not None:
        write_file(
            request.gantt,
            draw([device.name for device in cluster.devices], answer.plan, answer.timeline),
            "--gantt",
        )
    if request.csv is not None:
        order = blocks(answer.plan, request.micro_batches)
        text = (
            with_transfers(order, answer.plan, request.micro_batches) if request.transfers else to_csv(order)
        )
        write_file(request.csv, text, "--csv")


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint=option) from error


def write_file(path: Path, text: str, option: str) -> None:
    """Write a file that an option names. Raises BadParameter."""
    try:
        path.write_text(text)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint=option) from error


def _rate(text: str, option: str) -> float:
    """Parse bytes per second: 1500, 1.25GB, 1.25GB/s, 2GiB; as for links, GB is a power of 1000."""
    number = text.removesuffix("/s").strip()
    unit = number.lstrip("0123456789.eE+-").strip()
    try:
        value = float(number.removesuffix(unit)) * _RATES[unit] if unit else float(number)
    except (ValueError, KeyError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{text!r} is no rate such as 1.25GB (per second)", param_hint=option)
    return value


class _StageFile(msgspec.Struct):
    first_unit: int
    end_unit: int
    devices: list[str]
    memory: Any = "plain"
    shadows: list[str] = []

    def __post_init__(self) -> None:
        if self.memory not in ("plain", "checkpoint", "swap"):
            raise ValueError(f"memory is {self.memory!r}: plain, checkpoint or swap")


class _StagesFile(msgspec.Struct):
    stages: list[_StageFile]


class _PlanFile(msgspec.Struct):
    plan: _StagesFile


_decoder: Final = msgspec.json.Decoder(_PlanFile)

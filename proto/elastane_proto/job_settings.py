"""The settings of a job, each defined once: type, unit, default, bounds, help, option of `elastane run`.

The master's defaults and checks, the mapping to job.proto (by field name, see `message_codec`), the options
and variables of `elastane run`, and the defaults of workers and of the ElasticJob are made of this table.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

ESTS_MAX: Final = 65_536
"""Every step holds a task and a context of each, so a mistyped number could fill the memory."""

SECONDS_MAX: Final = 1e9
"""Thirty years: longer durations are mistakes, and many programs cannot represent them."""

STALENESS_MAX: Final = 1_000_000
"""A higher limit of staleness limits nothing."""

SLOTS_MAX: Final = 4096
"""As in `elastane_slots.placement`: every map has a place for each."""

PRICE_MICROS_MAX: Final = 10**12
"""A million an hour: what a million worker-hours cost at it still fits the 64 bits of the stored form."""

#: Which workers may train together; jobs stored before there were levels have the default.
Determinism = Literal["d0", "d1", "d2"]
#: Numbers of workers with which a job trains: any in its range, or only the maximum.
Recovery = Literal["elastic", "fixed"]
#: What happens to a job that has spent its budget.
OverBudget = Literal["cheapest", "suspend"]
#: How a deadline is met with workers that may be reclaimed.
SpotPolicy = Literal["wide", "uniform"]
#: What happens to a push to parameter servers with a NaN or an infinity.
PsNonfinite = Literal["refuse", "skip", "fail"]
#: How weights and gradients are sent between workers and parameter servers.
PsWire = Literal["float32", "bfloat16"]

Group = Literal["job", "limits"]


@dataclass(frozen=True)
class Setting:
    """Metadata of one setting beside its name, type and default.

    help: a sentence or two. option: of `elastane run`; "": it has none of its own. group: the panel of that
    option. metavar: name of the value in help texts; "": the choices. default_text: how the default is shown;
    "": the value. at_least, more_than, at_most: bounds, which the master checks.
    """

    help: str
    option: str = ""
    metavar: str = ""
    group: Group = "job"
    default_text: str = ""
    at_least: float = -math.inf
    more_than: float = -math.inf
    at_most: float = math.inf

    def out_of_bounds(self, value: float) -> str:
        """Return the bound in words that a value misses, such as "at least 1"; "" if it is within all."""
        for bound, holds, words in (
            (self.at_least, value >= self.at_least, "at least"),
            (self.more_than, value > self.more_than, "more than"),
            (self.at_most, value <= self.at_most, "at most"),
        ):
            if math.isfinite(bound) and not holds:
                return f"{words} {_plain(bound)}"
        return ""


def _limit(help: str, option: str, **more: float) -> Setting:
    """Return a time limit. It may be 0 if that is `at_least`; otherwise it must be more."""
    return Setting(
        help,
        option,
        "SECONDS",
        group="limits",
        at_least=more.get("at_least", -math.inf),
        more_than=-math.inf if "at_least" in more else 0.0,
        at_most=SECONDS_MAX,
    )


def _price(help: str, option: str) -> Setting:
    return Setting(help, option, "PRICE", default_text="unknown", at_least=0, at_most=PRICE_MICROS_MAX)


class JobSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of a job (see job.proto). `ests`, `seed`, `determinism` decide the result and never change.

    max_wait_seconds: 0: for ever. sentinel_steps: 0: never. Prices: per worker and hour, in millionths of the
    currency; 0: unknown.
    """

    ests: Annotated[
        int,
        Setting(
            "Number of logical workers (ESTs); it decides the result. Without this option, the existing "
            "job named by --job is joined with the master's settings.",
            "--ests",
            "N",
            at_least=1,
            at_most=ESTS_MAX,
        ),
    ]
    workers_min: Annotated[
        int,
        Setting(
            "Minimum number of workers; with fewer the job waits.",
            at_least=1,
            default_text="1",
        ),
    ] = 1
    workers_max: Annotated[
        int,
        Setting("Maximum number of workers; those beyond it stand by.", default_text="N"),
    ] = 0  # as many as ests
    seed: Annotated[
        int | None,
        Setting("Seed: EST r starts from S + r.", "--seed", "S", default_text="the script's RNG state"),
    ] = None
    checkpoint_url: Annotated[
        str,
        Setting("Folder for checkpoints: any fsspec URL.", "--checkpoint", "URL", default_text="none"),
    ] = ""
    checkpoint_interval_steps: Annotated[
        int,
        Setting(
            "Save a checkpoint every STEPS steps; 0: on demand.", "--checkpoint-steps", "STEPS", at_least=0
        ),
    ] = 0
    checkpoint_keep: Annotated[
        int,
        Setting(
            "Number of checkpoints to keep.",
            "--keep",
            "COUNT",
            at_least=1,
        ),
    ] = 3
    heartbeat_timeout_seconds: Annotated[
        float, _limit("Evict a worker that sends nothing for this long.", "--heartbeat-timeout")
    ] = 3.0
    lease_min_seconds: Annotated[
        float, _limit("Minimum lease of a step; a worker that takes longer counts as hung.", "--lease")
    ] = 30.0
    lease_factor: Annotated[
        float,
        Setting(
            "The lease is this many times the median step, if that is longer.",
            more_than=0,
            at_most=SECONDS_MAX,
        ),
    ] = 20.0
    join_window_seconds: Annotated[
        float,
        _limit("Time in which joins are gathered into one change of the ring.", "--join-window", at_least=0),
    ] = 0.2
    return_grace_seconds: Annotated[
        float,
        _limit(
            "Time that a restarted master waits for the members of its ring, and any master for workers whose"
            " streams broke and who alone hold units of a pipeline.",
            "--return-grace",
            at_least=0,
        ),
    ] = 10.0
    idle_max_seconds: Annotated[float, _limit("Maximum time between steps (for evaluation).", "--idle")] = (
        3600.0
    )
    torch_threads: Annotated[
        int,
        Setting(
            "Number of torch threads per worker; it decides the bits.",
            "--threads",
            "T",
            at_least=1,
        ),
    ] = 1
    audit_samples: Annotated[
        bool, Setting("Do not record the samples of each task.", "--no-audit-samples")
    ] = True
    determinism: Annotated[
        Determinism,
        Setting(
            "d0: different hardware may train together, and decides the bits; d1: different hardware is "
            "refused; d2: the instruction set that all CPUs have in common is used, and TF32 is off.",
            "--determinism",
        ),
    ] = "d1"
    max_wait_seconds: Annotated[
        float,
        Setting(
            "If too few workers join within this time, release them and pause the job until `elastane "
            "resume`; 0: wait for ever.",
            "--max-wait",
            "SECONDS",
            at_least=0,
            at_most=SECONDS_MAX,
        ),
    ] = 0.0
    recovery: Annotated[
        Recovery,
        Setting(
            "elastic: train with any number of workers from MIN to MAX; fixed: only with MAX (N at most), "
            "so the job waits for a replacement after a loss. The bits are the same.",
            "--recovery",
        ),
    ] = "elastic"
    currency: Annotated[
        str,
        Setting("Currency of the prices: three letters.", "--currency", "CODE"),
    ] = "USD"
    spot_price_micros: Annotated[
        int,
        msgspec.Meta(ge=0, le=PRICE_MICROS_MAX),
        _price(
            "Price of a spot worker per hour, for `elastane cost`; `elastane price` changes it.",
            "--spot-price",
        ),
    ] = 0
    on_demand_price_micros: Annotated[
        int,
        msgspec.Meta(ge=0, le=PRICE_MICROS_MAX),
        _price("Price of an on-demand worker per hour.", "--on-demand-price"),
    ] = 0
    #: Jobs stored before there were fingerprints compare too.
    fingerprint_steps: Annotated[
        int,
        Setting(
            "Workers compare all of their state within STEPS steps, and the job fails if it differs; 0: "
            "never.",
            "--fingerprint-steps",
            "STEPS",
            at_least=0,
        ),
    ] = 32
    sentinel_steps: Annotated[
        int,
        Setting(
            "Every K steps, run one EST's step again on another worker and compare the gradients, to find "
            "hardware that computes wrongly; 0: never.",
            "--sentinel",
            "K",
            at_least=0,
        ),
    ] = 0
    scaling: Annotated[
        str,
        Setting(
            "The master chooses the number of workers within MIN and MAX: efficiency[=THETA]; utility=Y0,X0 "
            "or utility=T1:U1,T2:U2,...; budget=MONEY; deadline=TIME, as 2026-12-04T18:00+01:00, 18:00 or "
            "+2h; off.",
            "--auto",
            "MODE",
            default_text="off",
        ),
    ] = ""
    over_budget: Annotated[
        OverBudget,
        Setting(
            "Once a budget is spent: cheapest: train with the number of workers that costs least; suspend: "
            "suspend the job.",
            "--over-budget",
        ),
    ] = "cheapest"
    on_demand_workers: Annotated[
        int,
        Setting(
            "Maximum number of on-demand workers that a deadline may ask for; 0: none.",
            "--on-demand-workers",
            "COUNT",
            at_least=0,
            at_most=ESTS_MAX,
        ),
    ] = 0
    spot_policy: Annotated[
        SpotPolicy,
        Setting(
            "How a deadline is met: wide: all useful spot workers, and on demand only when time runs out; "
            "uniform: Uniform Progress.",
            "--spot-policy",
        ),
    ] = "wide"
    cold_start_seconds: Annotated[
        float,
        _limit(
            "Time from the request for a worker until it trains, for a deadline.", "--cold-start", at_least=0
        ),
    ] = 120.0
    pipeline_stages_min: Annotated[
        int,
        Setting(
            "Minimum number of stages of a pipeline, if there are enough workers and units.",
            at_least=1,
            at_most=ESTS_MAX,
            default_text="1",
        ),
    ] = 1
    pipeline_stages_max: Annotated[
        int,
        Setting(
            "Maximum number of stages of a pipeline; 0: as many as are worthwhile.",
            at_least=0,
            at_most=ESTS_MAX,
            default_text="as many as are worthwhile",
        ),
    ] = 0
    pipeline_shadows: Annotated[
        int,
        Setting(
            "For scripts with prepare_pipeline: number of workers that hold the units of a stage with one "
            "replica as well, and make the same optimizer steps, so that its death costs only the step in "
            "flight.",
            "--shadow",
            "K",
            at_least=0,
            at_most=8,
        ),
    ] = 0
    ps_staleness: Annotated[
        int | None,
        Setting(
            "For scripts with prepare_ps: maximum of tasks applied between a task's pull and its push; "
            "0: one task after the other.",
            "--staleness",
            "S",
            at_least=0,
            at_most=STALENESS_MAX,
            default_text="any number",
        ),
    ] = None
    ps_slots: Annotated[
        int,
        Setting(
            "Number of slots in which parameter servers hold a model; it never changes.",
            "--slots",
            "V",
            at_least=1,
            at_most=SLOTS_MAX,
        ),
    ] = 64
    ps_replicas: Annotated[
        int,
        Setting(
            "Copies of each slot on other parameter servers: with 1, a death loses no completed task.",
            "--ps-replicas",
            "COUNT",
            at_least=0,
            at_most=1,
        ),
    ] = 0
    ps_snapshot_seconds: Annotated[
        float,
        _limit(
            "Time between two snapshots of a slot, in the folder for checkpoints; 0: on demand.",
            "--ps-snapshot",
            at_least=0,
        ),
    ] = 30.0
    ps_nonfinite: Annotated[
        PsNonfinite,
        Setting(
            "A gradient for parameter servers has a NaN or an infinity: refuse: the attempt fails; skip: the "
            "task counts without its gradients; fail: the job fails.",
            "--non-finite",
        ),
    ] = "refuse"
    ps_wire: Annotated[
        PsWire,
        Setting(
            "How weights and gradients are sent to and from parameter servers; bfloat16 halves the bytes.",
            "--ps-wire",
        ),
    ] = "float32"
    ps_scale_by_staleness: Annotated[
        bool,
        Setting("Divide the learning rate of a push by 1 + its staleness.", "--ps-scale-by-staleness"),
    ] = False
    ps_journal: Annotated[
        bool,
        Setting("Parameter servers log every push: task, versions pulled, rates.", "--ps-journal"),
    ] = False
    ps_return_seconds: Annotated[
        float,
        _limit(
            "Time that a parameter server has to return after its session broke, before its slots are "
            "restored.",
            "--ps-return",
            at_least=0,
        ),
    ] = 0.5

    @property
    def workers_most(self) -> int:
        """Number of workers that may train: the maximum, and at most one for each EST."""
        return min(self.workers_max or self.ests, self.ests)


def _of_struct() -> Iterator[tuple[str, type, Setting]]:
    for name, hint in typing.get_type_hints(JobSettings, include_extras=True).items():
        kind, *notes = typing.get_args(hint)
        yield name, kind, next(note for note in notes if isinstance(note, Setting))


#: By field of JobSettings, in their order.
SETTINGS: Final[Mapping[str, Setting]] = {name: setting for name, _, setting in _of_struct()}
#: Types of the fields, without what is annotated.
TYPES: Final[Mapping[str, type]] = {name: kind for name, kind, _ in _of_struct()}
#: The defaults, as the settings of a job with one EST.
DEFAULTS: Final = JobSettings(ests=1)


def out_of_bounds(settings: JobSettings) -> Iterator[tuple[str, object, str]]:
    """Yield field, value and the missed bound in words of every setting that is outside its own bounds."""
    for name, setting in SETTINGS.items():
        value = getattr(settings, name)
        if isinstance(value, int | float) and (bound := setting.out_of_bounds(value)):
            yield name, value, bound


def _plain(bound: float) -> str:
    return f"{int(bound)}" if bound < SECONDS_MAX and bound == int(bound) else f"{bound:g}"

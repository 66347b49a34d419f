"""The options of `elastane run` that set a job's settings, made of the table of settings."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from elastane_cli.commands.common import worker_limits
from elastane_cli.commands.run_options import option, run_option
from elastane_common.prices import currency_code, price_micros
from elastane_proto.job_settings import DEFAULTS, SETTINGS, TYPES, JobSettings, Setting
from elastane_scheduler.autoscaling.modes import OFF, as_sent
from elastane_scheduler.errors import InvalidSettings

if TYPE_CHECKING:
    from elastane_proto.v1 import job_pb2

_PANELS: Final = {"job": "The job", "limits": "Time limits of the job"}
#: Panels of the options that do not apply when joining a job: the master has their values.
PANELS_OF_THE_JOB: Final = frozenset(_PANELS.values())

_OFF: Final = "no_"
_WORKERS: Final = Annotated[
    str | None,
    run_option(
        "--workers",
        "MIN:MAX",
        "Minimum and maximum number of workers; those beyond N stand by.",
        _PANELS["job"],
        show_default="1:N",
    ),
]
PipelineOption = Annotated[
    str | None,
    run_option(
        "--pipeline",
        "MIN:MAX",
        "For scripts with prepare_pipeline: minimum and maximum number of stages, or one number for both. "
        "There are fewer than MIN only if there are fewer workers or units.",
        _PANELS["job"],
        show_default="as many as are worthwhile",
    ),
]


def _parsed(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a parser of option values that reports a ValueError as a usage error and passes defaults."""

    def checked(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return checked


def _scaling(text: str) -> str:
    """Return a scaling mode in the form of a request. A time without a zone is in this machine's zone."""
    try:
        return as_sent(text, time.time(), lambda moment: moment.astimezone())
    except InvalidSettings as error:
        raise ValueError(f"{error}. {error.hint}") from error


def _mode(text: str) -> str:
    return _scaling(text) or OFF if text else ""


#: The mode for a running job: "off" ends scaling, "" leaves it unchanged.
scaling_mode: Final = _parsed(_mode)


def in_bounds(name: str) -> Callable[[Any], Any]:
    """Return a callback that refuses a number beyond the bounds of the setting of that name."""
    return _checked(SETTINGS[name])


_PARSERS: Final = {
    "scaling": _parsed(_scaling),
    "currency": _parsed(lambda text: currency_code(text) if text else DEFAULTS.currency),
    "spot_price_micros": _parsed(price_micros),
    "on_demand_price_micros": _parsed(price_micros),
}


def job_parameters() -> list[inspect.Parameter]:
    """Return the parameters of a command that takes every option of a job.

    A setting's parameter has its field's name; `ests` may be left out, `workers` and `pipeline` set two
    fields each, and a flag that turns a setting off is named for that.
    """
    found: list[tuple[str, inspect.Parameter]] = []
    for name, setting in SETTINGS.items():
        if setting.option:
            found.append((setting.group, _parameter(name, setting)))
        if name == "ests":
            workers = inspect.Parameter(
                "workers", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_WORKERS
            )
            found.append(("job", workers))
    pipeline = inspect.Parameter(
        "pipeline", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=PipelineOption
    )
    found.append(("job", pipeline))
    return [parameter for group in _PANELS for of, parameter in found if of == group]


def job_settings(values: Mapping[str, Any]) -> JobSettings | None:
    """Return the settings from the values of `job_parameters`; None without ests, to join a job.

    Raises BadParameter for impossible limits of workers.
    """
    given: dict[str, Any] = {}
    for name, value in values.items():
        given[name.removeprefix(_OFF)] = not value if name.startswith(_OFF) else value
    workers, pipeline, ests = given.pop("workers"), given.pop("pipeline"), given["ests"]
    if ests is None:
        return None
    limits = worker_limits(workers) if workers is not None else (1, ests)
    if limits[0] > ests:
        raise typer.BadParameter(
            f"{workers!r}: MIN is at most {ests}, the number of ESTs (--ests): each worker hosts one",
            param_hint="--workers",
        )
    if pipeline is not None:
        given["pipeline_stages_min"], given["pipeline_stages_max"] = worker_limits(pipeline, "--pipeline")
    return JobSettings(workers_min=limits[0], workers_max=limits[1], **given)


def settings_message(settings: JobSettings) -> job_pb2.JobSettings:
    """Return the settings as a message to the master."""
    from elastane_proto import message_codec
    from elastane_proto.v1 import job_pb2

    message = job_pb2.JobSettings()
    message_codec.fill(message, settings)
    return message


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    kind: Any = TYPES[name]
    default = getattr(DEFAULTS, name)
    options: dict[str, Any] = {}
    if setting.default_text:
        options["show_default"] = setting.default_text
    if name in _PARSERS:
        options["parser"] = _PARSERS[name]
    elif kind in (int, float, int | None):
        options["callback"] = _checked(setting)
        if math.isfinite(setting.at_least):
            options["min"] = setting.at_least
    elif not setting.metavar and kind is not bool:
        options["case_sensitive"] = False
    if name == "ests":
        kind, default = int | None, None
        options["show_default"] = False
    elif kind is bool and default:
        name, default = _OFF + name, False
    panel = _PANELS[setting.group]
    option = run_option(setting.option, setting.metavar or None, setting.help, panel, **options)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _checked(setting: Setting) -> Callable[[Any], Any]:
    """Return a callback that refuses a number beyond the setting's bounds."""

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and (bound := setting.out_of_bounds(value)):
            raise typer.BadParameter(f"{value:g} is out of range: it must be {bound}")
        return value

    return check


ShadowOption = Annotated[
    int,
    option(
        "--shadow",
        "K",
        SETTINGS["pipeline_shadows"].help,
        min=0,
        callback=in_bounds("pipeline_shadows"),
    ),
]


def pipeline_arguments(pipeline: str | None, shadow: int) -> list[str]:
    """Return --pipeline and --shadow as given, for the command that repeats a rehearsal."""
    stages = ["--pipeline", pipeline] if pipeline is not None else []
    return [*stages, *(["--shadow", str(shadow)] if shadow else [])]

"""Builds the spec that `elastane submit` sends, from its options and, with --like, another run.

The options are parsed before anything is sent; every error is a BadParameter. The master checks what only it
knows (reserved names, limits, rights).
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from elastane_cli.commands.common import worker_limits
from elastane_cli.commands.submit_options import SubmitOptions
from elastane_scheduler.autoscaling.modes import as_sent
from elastane_scheduler.errors import InvalidSettings

if TYPE_CHECKING:
    from elastane_proto.v1 import training_pb2

#: Limit of runs of one command: more are probably a mistake.
SWEEP_RUNS_MAX: Final = 1000
#: A hundred years; protobuf's durations end at ten thousand.
_SECONDS_MAX: Final = 100 * 365 * 86400.0
#: Options of an elastic run's job.
_OF_THE_JOB: Final = (
    "seed", "determinism", "threads", "pipeline", "shadow", "auto", "on_demand_workers", "over_budget",
    "ps_replicas", "staleness",
)  # fmt: skip
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_KUBERNETES: Final = re.compile(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._-]+", re.ASCII)


class GitSource(NamedTuple):
    url: str
    commit: str


class Dataset(NamedTuple):
    id: str
    version_hash: str
    url: str


@dataclass(frozen=True)
class Plan:
    """A submission whose options are checked. Empty fields were not given.

    folder: to be packed and sent. script: its path below the folder, or in the git repository. arguments: of
    the script; for an image without script, the whole command. like: run to copy the spec from.
    """

    options: SubmitOptions
    like: int | None = None
    folder: Path | None = None
    script: str = ""
    arguments: tuple[str, ...] = ()
    git: GitSource | None = None
    dataset: Dataset | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    runner_labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes_code(self) -> bool:
        """True if the options name code, which then replaces that of the run given by --like."""
        return bool(self.folder or self.git or self.options.algorithm or self.options.image)


def plan(script: Sequence[str], options: SubmitOptions, like: int | None) -> Plan:
    """Check the script and the options. Raises BadParameter for the first fault."""
    if like is None and not options.model:
        raise typer.BadParameter("a name is required", param_hint="--model")
    if options.model is not None and not options.model.strip():
        raise typer.BadParameter("the name is empty", param_hint="--model")
    if options.instances and (options.instances_min or 0) > options.instances:
        raise typer.BadParameter(
            f"{options.instances_min} is more than --instances {options.instances}",
            param_hint="--instances-min",
        )
    if options.instances_min and options.framework not in (None, "elastane"):
        raise typer.BadParameter(
            "only elastic runs (--framework elastane) start with fewer", param_hint="--instances-min"
        )
    given = [option for option in _OF_THE_JOB if getattr(options, option) is not None]
    if given and options.framework not in (None, "elastane"):
        raise typer.BadParameter(
            "only elastic runs (--framework elastane) have it",
            param_hint=f"--{given[0].replace('_', '-')}",
        )
    if options.pipeline is not None:
        worker_limits(options.pipeline, "--pipeline")
    for seconds, option in ((options.max_run_time, "--max-run-time"), (options.grace, "--grace")):
        if seconds is not None and not seconds <= _SECONDS_MAX:
            raise typer.BadParameter(f"{seconds:g} is more than {_SECONDS_MAX:g} seconds", param_hint=option)
    folder, path, arguments = _code(script, options, like)
    return Plan(
        options=options,
        like=like,
        folder=folder,
        script=path,
        arguments=arguments,
        git=_git(options.git) if options.git is not None else None,
        dataset=_dataset(options.dataset) if options.dataset is not None else None,
        parameters={**_parameter_file(options.params), **_pairs(options.param, "--param", _variable_fault)},
        labels=_pairs(options.label, "--label"),
        runner_labels=_pairs(options.runner_label, "--runner-label"),
        secrets=_pairs(options.secret, "--secret", _variable_fault, _secret_fault),
    )


def spec_of(
    plan: Plan, base: training_pb2.RunSpec | None = None, archive_sha256: str = ""
) -> training_pb2.RunSpec:
    """Return the spec that is sent.

    base: from `run_like`, with --like. archive_sha256: of the packed folder.
    """
    from elastane_proto.v1 import training_pb2

    options, spec = plan.options, training_pb2.RunSpec()
    if base is not None:
        spec.CopyFrom(base)
    if plan.changes_code:
        _set_code(spec, plan, archive_sha256)
    for name, value in {
        "name": options.name,
        "output_model_name": options.model,
        "owner": options.owner,
        "instances": options.instances,
        "instances_min": options.instances_min,
        "slots_per_instance": options.slots,
        "priority": options.priority,
        "retries_max": options.retries,
        "chief": options.chief or None,
        "parameter_servers": options.parameter_servers,
    }.items():
        if value is not None:
            setattr(spec, name, value)
    if options.framework is not None:
        number = training_pb2.Framework.Value(f"FRAMEWORK_{options.framework.upper()}")
        spec.framework = number  # type: ignore[assignment]  # the stubs know names alone
    _set_job(spec, options)
    for message, seconds in ((spec.run_time_max, options.max_run_time), (spec.grace, options.grace)):
        if seconds is not None:
            message.FromNanoseconds(round(seconds * 1e9))
    if plan.dataset is not None:
        spec.dataset.CopyFrom(training_pb2.DatasetRef(**plan.dataset._asdict()))
    if options.verify_dataset:
        spec.dataset.verify_files = True
    spec.parameters.update(plan.parameters)
    spec.labels.update(plan.labels)
    spec.runner_labels.update(plan.runner_labels)
    _set_secrets(spec, plan.secrets)
    if plan.changes_code:
        _set_command(spec, plan)
    return spec


def combinations(sweeps: Sequence[str]) -> list[dict[str, str]]:
    """Return the parameters of each run of a sweep, the last option's values changing fastest.

    sweeps: as K=V,V... Raises BadParameter.
    """
    if not sweeps:
        return []
    values = {name: given.split(",") for name, given in _pairs(sweeps, "--sweep", _variable_fault).items()}
    for name, several in values.items():
        if len(set(several)) < len(several):
            raise typer.BadParameter(f"{name}: a value is there twice", param_hint="--sweep")
    count = math.prod(len(several) for several in values.values())
    if count > SWEEP_RUNS_MAX:
        raise typer.BadParameter(f"{count} runs, at most {SWEEP_RUNS_MAX}", param_hint="--sweep")
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def listed(path: Path) -> list[dict[str, str]]:
    """Return the parameters of each run from a file with one JSON object per line. Raises BadParameter."""
    found: list[dict[str, str]] = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                found.append(_parameters(json.loads(line), f"{path}, line {number}", "--sweep-file"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"{path} cannot be read as lines of JSON: {error}", param_hint="--sweep-file"
        ) from None
    if not found:
        raise typer.BadParameter(f"{path} has no line", param_hint="--sweep-file")
    return found


def _set_job(spec: training_pb2.RunSpec, options: SubmitOptions) -> None:
    """Set the options that affect the result of an elastic run, besides its number of instances."""
    from elastane_proto.v1 import job_pb2

    if options.framework not in (None, "elastane"):
        spec.ClearField("job")
    if not spec.HasField("job") and any(getattr(options, name) is not None for name in _OF_THE_JOB):
        spec.job.audit_samples = True  # like a run without job settings
    if options.seed is not None:
        spec.job.seed = options.seed
    if options.threads is not None:
        spec.job.torch_threads = options.threads
    if options.determinism is not None:
        number = job_pb2.DeterminismLevel.Value(f"DETERMINISM_LEVEL_{options.determinism.upper()}")
        spec.job.determinism = number  # type: ignore[assignment]  # the stubs know names alone
    if options.pipeline is not None:
        limits = worker_limits(options.pipeline, "--pipeline")
        spec.job.pipeline_stages_min, spec.job.pipeline_stages_max = limits
    if options.shadow is not None:
        spec.job.pipeline_shadows = options.shadow
    if options.ps_replicas is not None:
        spec.job.ps_replicas = options.ps_replicas
    if options.staleness is not None:
        spec.job.ps_staleness = options.staleness
    if options.auto is not None:
        spec.job.scaling = _scaling(options.auto)
    if options.on_demand_workers is not None:
        spec.job.on_demand_workers = options.on_demand_workers
    if options.over_budget is not None:
        number = job_pb2.OverBudget.Value(f"OVER_BUDGET_{options.over_budget.upper()}")
        spec.job.over_budget = number  # type: ignore[assignment]


def _scaling(text: str) -> str:
    """Return a scaling mode in the form of a request; a deadline without a zone is in this machine's zone."""
    try:
        return as_sent(text, time.time(), lambda moment: moment.astimezone())
    except InvalidSettings as error:
        raise typer.BadParameter(f"{error}. {error.hint}", param_hint="--auto") from error


def _set_code(spec: training_pb2.RunSpec, plan: Plan, archive_sha256: str) -> None:
    spec.ClearField("code")
    spec.ClearField("command")
    spec.ClearField("name")
    options = plan.options
    if options.image:
        spec.code.image = options.image
    if plan.folder is not None:
        spec.code.archive_sha256 = archive_sha256
    elif plan.git is not None:
        spec.code.git.url, spec.code.git.commit = plan.git
    elif options.image:
        spec.code.installed = True
    spec.algorithm = options.algorithm or PurePosixPath(plan.script).stem or _image_name(options.image or "")


def _set_command(spec: training_pb2.RunSpec, plan: Plan) -> None:
    """Set the command of an instance: the script of an elastic run, else a program."""
    from elastane_proto.v1 import training_pb2

    elastic = spec.framework in (training_pb2.FRAMEWORK_UNSPECIFIED, training_pb2.FRAMEWORK_ELASTANE)
    if plan.script:
        if elastic:
            program = [plan.script]
        elif plan.script.endswith(".py"):
            program = ["python", plan.script]
        else:
            program = [f"./{plan.script}"]
        spec.command.extend([*program, *plan.arguments])
    else:
        spec.command.extend(plan.arguments)


def _set_secrets(spec: training_pb2.RunSpec, secrets: Mapping[str, str]) -> None:
    kept = [each for each in spec.secrets if each.variable not in secrets]
    del spec.secrets[:]
    spec.secrets.extend(kept)
    for variable, source in secrets.items():
        kind, _, name = source.partition(":")
        spec.secrets.add(variable=variable, **{kind: name})


def _code(
    script: Sequence[str], options: SubmitOptions, like: int | None
) -> tuple[Path | None, str, tuple[str, ...]]:
    """Return the folder to send, the script's path in it or in the repository, and the arguments."""
    first, arguments = (script[0], tuple(script[1:])) if script else ("", ())
    if options.algorithm is not None:
        for given, name in ((first, "SCRIPT"), (options.code, "--code"), (options.git, "--git")):
            if given:
                raise typer.BadParameter(
                    f"the runners have the code of an algorithm: leave {name} out", param_hint="--algorithm"
                )
        if not options.algorithm.strip():
            raise typer.BadParameter("the name is empty", param_hint="--algorithm")
        return None, "", ()
    if options.git is not None:
        if options.code is not None:
            raise typer.BadParameter("give --git or --code, not both", param_hint="--git")
        return None, _path_in_repository(first), arguments
    if options.image is not None and options.code is None:
        return None, "", tuple(script)
    if not first:
        if like is None or options.code is not None:
            raise typer.BadParameter(
                "what is to run? Give a SCRIPT, --algorithm, --image or --like", param_hint="SCRIPT"
            )
        return None, "", ()
    return *_local_script(first, options.code), arguments


def _local_script(script: str, folder: Path | None) -> tuple[Path, str]:
    """Return the folder to send and the script's path in it. folder: given by --code."""
    path = Path(script)
    if folder is not None and not path.is_absolute() and (folder / path).is_file():
        path = folder / path
    if not path.is_file():
        raise typer.BadParameter(f"{script} is not a file", param_hint="SCRIPT")
    root = (folder or path.parent).resolve()
    here = path.parent.resolve() / path.name
    if not here.is_relative_to(root):
        raise typer.BadParameter(f"{script} is not in the folder {folder}", param_hint="--code")
    if folder is None and root in (Path.home().resolve(), Path(root.anchor)):
        raise typer.BadParameter(
            f"the script's folder {root} would be sent whole: name one with --code", param_hint="SCRIPT"
        )
    return root, here.relative_to(root).as_posix()


def _path_in_repository(script: str) -> str:
    path = PurePosixPath(script)
    if not script or path.is_absolute() or ".." in path.parts:
        raise typer.BadParameter(
            f"{script!r} is no path in the repository" if script else "which SCRIPT of the repository?",
            param_hint="SCRIPT",
        )
    return str(path)


def _git(text: str) -> GitSource:
    url, _, commit = text.rpartition("@")
    if not url or not _COMMIT.fullmatch(commit):
        raise typer.BadParameter(
            f"{text!r} is not URL@COMMIT with the 40 hexadecimal digits of the commit", param_hint="--git"
        )
    return GitSource(url, commit)


def _dataset(text: str) -> Dataset:
    name, _, url = text.partition("=")
    identifier, _, version_hash = name.rpartition("@")
    if not identifier or not version_hash or ("=" in text and not url):
        raise typer.BadParameter(f"{text!r} is not ID@HASH or ID@HASH=URL", param_hint="--dataset")
    if identifier.startswith("/") or ".." in identifier.split("/"):
        raise typer.BadParameter(f"{identifier!r} is no id of a dataset", param_hint="--dataset")
    return Dataset(identifier, version_hash, url)


def _pairs(
    given: Iterable[str] | None,
    option: str,
    key_fault: Callable[[str], str] = lambda key: "" if key else "the name is empty",
    value_fault: Callable[[str], str] = lambda value: "",
) -> dict[str, str]:
    """Parse K=V options, each name once. Raises BadParameter."""
    pairs: dict[str, str] = {}
    for text in given or ():
        key, separator, value = text.partition("=")
        fault = "it has no =" if not separator else key_fault(key) or value_fault(value)
        if key in pairs:
            fault = fault or f"{key} is given twice"
        if fault:
            # The value is not shown: it may be a secret that was meant to be a reference.
            raise typer.BadParameter(f"{key + separator}...: {fault}", param_hint=option)
        pairs[key] = value
    return pairs


def _variable_fault(name: str) -> str:
    if _VARIABLE.fullmatch(name):
        return ""
    return "a name has capital letters, digits and underscores, and no digit first"


def _secret_fault(source: str) -> str:
    kind, _, name = source.partition(":")
    path = PurePosixPath(name)
    if kind == "file" and name and not path.is_absolute() and ".." not in path.parts:
        return ""
    if kind == "kubernetes" and _KUBERNETES.fullmatch(name):
        return ""
    return "the source is file:NAME, below the runner's folder of secrets, or kubernetes:NAME/KEY"


def _parameter_file(path: Path | None) -> dict[str, str]:
    """Read parameters from a JSON or TOML file: one object of texts, numbers and booleans."""
    if path is None:
        return {}

    form = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if form == "TOML" else json.loads(text)
    except (OSError, ValueError) as error:  # ValueError: also of bytes that are not UTF-8
        raise typer.BadParameter(f"{path} cannot be read as {form}: {error}", param_hint="--params") from None
    return _parameters(values, str(path), "--params")


def _parameters(values: Any, where: str, option: str) -> dict[str, str]:
    """Return the parameters of one object of texts, numbers and booleans. Raises BadParameter."""
    if not isinstance(values, dict):
        raise typer.BadParameter(f"{where} must hold one object of names and values", param_hint=option)
    parameters: dict[str, str] = {}
    for name, value in values.items():
        text_of_value = _parameter_text(value)
        fault = _variable_fault(name)
        if not fault and text_of_value is None:
            fault = "a value is a text without NUL, a number, true or false"
        if fault or text_of_value is None:
            raise typer.BadParameter(f"{where}: {name!r}: {fault}", param_hint=option)
        parameters[name] = text_of_value
    return parameters


def _parameter_text(value: Any) -> str | None:
    """Return a parameter's value as the text of a variable; None if it cannot be one."""
    if isinstance(value, str):
        return None if "\0" in value else value
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def _image_name(image: str) -> str:
    """Return the name of an image without registry, tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]

"""The options of `elastane submit` that describe a run. None: not given, which matters with --like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from elastane_cli.commands.job_options import in_bounds
from elastane_cli.commands.run_options import option

Framework = Literal["elastane", "pytorch", "tensorflow", "horovod", "plain"]

_RUN: Final = "The run"
_CODE: Final = "Code and data"
_PROCESSES: Final = "Processes"
_QUEUE: Final = "Queue and limits"


def _option(name: str, metavar: str | None, text: str, panel: str, default: str = "", **options: Any) -> Any:
    """Declare an option. default: description of the behaviour without it."""
    return option(name, metavar, text, panel, show_default=default or False, **options)


def _positive(text: str) -> int:
    """Parse a positive whole number; unlike typer, refuse "3.0". Raises BadParameter."""
    if text.isascii() and text.isdigit() and 0 < int(text) < 2**32:
        return int(text)
    raise typer.BadParameter(f"{text!r} is not a whole number from 1 on")


@dataclass(frozen=True)
class SubmitOptions:
    """Options of a run on the command line, in the order of the help."""

    model: Annotated[
        str | None, _option("--model", "NAME", "Name under which the model is registered; required.", _RUN)
    ] = None
    name: Annotated[
        str | None, _option("--name", "NAME", "A name for people.", _RUN, "the script's or the algorithm's")
    ] = None
    label: Annotated[
        list[str] | None, _option("--label", "K=V", "A label of the run, for lists; repeatable.", _RUN)
    ] = None
    owner: Annotated[
        str | None, _option("--owner", "NAME", "User for whom it runs.", _RUN, "the token's owner")
    ] = None
    like: Annotated[
        str | None,
        _option(
            "--like",
            "RUN",
            "Settings of this run's record, for the same result; other options override them.",
            _RUN,
        ),
    ] = None
    algorithm: Annotated[
        str | None,
        _option("--algorithm", "NAME", "Code that the runners offer, instead of a SCRIPT.", _CODE),
    ] = None
    code: Annotated[
        Path | None,
        _option(
            "--code",
            "DIR",
            "Folder to send, which has the SCRIPT in it.",
            _CODE,
            "the script's folder",
            exists=True,
            file_okay=False,
        ),
    ] = None
    git: Annotated[
        str | None,
        _option(
            "--git", "URL@COMMIT", "Code at a commit (40 digits) of a git repository; SCRIPT is in it.", _CODE
        ),
    ] = None
    image: Annotated[
        str | None,
        _option(
            "--image",
            "IMAGE",
            "Image to run in; without --code or --git, SCRIPT and ARGS are a command in it.",
            _CODE,
        ),
    ] = None
    dataset: Annotated[
        str | None,
        _option("--dataset", "ID@HASH[=URL]", "Data: its id, the hash of its version, its folder.", _CODE),
    ] = None
    verify_dataset: Annotated[
        bool,
        option("--verify-dataset", None, "Check every file of the data before the run is queued.", _CODE),
    ] = False
    param: Annotated[
        list[str] | None,
        _option("--param", "K=V", "A parameter, which is a variable of every process; repeatable.", _CODE),
    ] = None
    params: Annotated[
        Path | None,
        _option(
            "--params",
            "FILE",
            "Parameters from a JSON or TOML file; --param overrides them.",
            _CODE,
            exists=True,
            dir_okay=False,
        ),
    ] = None
    secret: Annotated[
        list[str] | None,
        _option(
            "--secret",
            "VAR=SOURCE",
            "A variable whose value is a secret of the runner: file:NAME or kubernetes:NAME/KEY; repeatable.",
            _CODE,
        ),
    ] = None
    framework: Annotated[
        Framework | None,
        _option(
            "--framework",
            None,
            "Framework for which the variables of the processes are set.",
            _PROCESSES,
            "elastane",
        ),
    ] = None
    instances: Annotated[
        int | None,
        _option(
            "--instances",
            "N",
            "Processes; of an elastic run its logical workers, which decide its result.",
            _PROCESSES,
            "PARALLEL_INSTANCES, or 1",
            parser=_positive,
        ),
    ] = None
    instances_min: Annotated[
        int | None,
        _option("--instances-min", "N", "Of an elastic run: fewest workers.", _PROCESSES, "1", min=1),
    ] = None
    seed: Annotated[
        int | None,
        _option(
            "--seed",
            "S",
            "Of an elastic run: logical worker R starts from S + R.",
            _PROCESSES,
            "the script's",
        ),
    ] = None
    determinism: Annotated[
        Literal["d0", "d1", "d2"] | None,
        _option("--determinism", None, "Of an elastic run: what must repeat, and where.", _PROCESSES, "d1"),
    ] = None
    threads: Annotated[
        int | None,
        _option("--threads", "T", "For an elastic run: threads of torch per worker.", _PROCESSES, "1", min=1),
    ] = None
    pipeline: Annotated[
        str | None,
        _option(
            "--pipeline",
            "MIN:MAX",
            "For an elastic run whose script has prepare_pipeline: number of stages, as in `elastane run "
            "--pipeline`.",
            _PROCESSES,
            "as many as are worthwhile",
        ),
    ] = None
    shadow: Annotated[
        int | None,
        _option(
            "--shadow",
            "K",
            "For a pipeline: workers that hold a second copy of each stage, as in `elastane run --shadow`.",
            _PROCESSES,
            "0",
            min=0,
            callback=in_bounds("pipeline_shadows"),
        ),
    ] = None
    auto: Annotated[
        str | None,
        _option(
            "--auto",
            "MODE",
            "For an elastic run: how many processes it has, up to --instances; as in `elastane run --auto`.",
            _PROCESSES,
            "off",
        ),
    ] = None
    on_demand_workers: Annotated[
        int | None,
        _option(
            "--on-demand-workers",
            "COUNT",
            "Maximum number of processes that --auto deadline=TIME may have on runners with the label "
            "capacity=on-demand.",
            _PROCESSES,
            "0",
            min=0,
        ),
    ] = None
    over_budget: Annotated[
        Literal["cheapest", "suspend"] | None,
        _option(
            "--over-budget",
            None,
            "Once the budget of --auto is spent: go on, or suspend.",
            _PROCESSES,
            "cheapest",
        ),
    ] = None
    slots: Annotated[
        int | None, _option("--slots", "N", "Slots of a runner for each process.", _PROCESSES, "1", min=1)
    ] = None
    chief: Annotated[
        bool, _option("--chief", None, "Of a TensorFlow run: process 0 is the chief.", _PROCESSES)
    ] = False
    parameter_servers: Annotated[
        int | None,
        _option(
            "--parameter-servers",
            "N",
            "Number of processes, the last ones, that are parameter servers: of an elastic run whose script "
            "has prepare_ps, or of a TensorFlow run.",
            _PROCESSES,
            "0",
            min=0,
        ),
    ] = None
    ps_replicas: Annotated[
        int | None,
        _option(
            "--ps-replicas",
            "COUNT",
            "Of an elastic run: copies of each slot, as of `elastane run --ps-replicas`.",
            _PROCESSES,
            "0",
            callback=in_bounds("ps_replicas"),
        ),
    ] = None
    staleness: Annotated[
        int | None,
        _option(
            "--staleness",
            "S",
            "Of an elastic run with parameter servers: as of `elastane run --staleness`.",
            _PROCESSES,
            "any number",
            callback=in_bounds("ps_staleness"),
        ),
    ] = None
    runner_label: Annotated[
        list[str] | None,
        _option("--runner-label", "K=V", "Only runners with this label; repeatable.", _PROCESSES),
    ] = None
    priority: Annotated[
        int | None,
        _option(
            "--priority", "N", "From -1000 to 1000; higher goes first.", _QUEUE, "0", min=-1000, max=1000
        ),
    ] = None
    retries: Annotated[
        int | None,
        _option(
            "--retries",
            "N",
            "Attempts after one that failed for a reason that may pass; preemptions never count.",
            _QUEUE,
            "3",
            min=0,
        ),
    ] = None
    max_run_time: Annotated[
        float | None,
        _option("--max-run-time", "SECONDS", "Time limit of an attempt.", _QUEUE, "none", min=0.0),
    ] = None
    grace: Annotated[
        float | None,
        _option("--grace", "SECONDS", "Time between SIGTERM and SIGKILL.", _QUEUE, "30", min=0.0),
    ] = None

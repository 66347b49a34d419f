"""`elastane submit`: queues a run of the training service, and follows it to its end."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JsonOption,
    MasterOption,
    TimeoutOption,
    command,
    print_json,
)
from elastane_cli.commands.option_groups import group_of, with_options
from elastane_cli.commands.run_following import RunFollower
from elastane_cli.commands.run_ids import run_id
from elastane_cli.commands.run_like import spec_like
from elastane_cli.commands.run_options import SCRIPT_SETTINGS
from elastane_cli.commands.run_spec import Plan, combinations, listed, plan, spec_of
from elastane_cli.commands.submit_options import SubmitOptions
from elastane_cli.commands.training import connect_training
from elastane_common.exit_codes import CODE_DETACHED, CODE_FAILED, CODE_REFUSED, CODE_RUN_CANCELLED
from elastane_common.processes.signal_handlers import signal_handlers

if TYPE_CHECKING:
    from elastane_common.training_client import TrainingClient
    from elastane_proto.v1 import training_pb2

_CODES: Final = {"succeeded": 0, "failed": CODE_FAILED, "cancelled": CODE_RUN_CANCELLED}

#: rich keeps line ends, so a paragraph is one line of text.
HELP: Final = "\n\n".join(
    (
        "Queue a run of the training service, and follow it: its state, and the log of rank 0.",
        "The folder of the SCRIPT is sent, unless the service has it already; --code names another. Instead "
        "of a SCRIPT, --algorithm names code that the runners have; --git and --image name other places of "
        "code.",
        "Ctrl-C detaches: the run goes on, and `elastane logs -f RUN` follows it again. With "
        "--cancel-on-interrupt, Ctrl-C cancels the run.",
        "Examples:",
        "  elastane submit --model digits --instances 4 train.py --epochs 10",
        "  elastane submit --model digits --dataset mnist@3f0c --framework pytorch --instances 2 ddp.py",
        "  elastane submit --model digits --algorithm resnet --param EPOCHS=10 --detach",
        "  elastane submit --like 17 --param LR=0.1",
        "  elastane submit --model digits --sweep LR=0.1,0.01 --sweep SEED=1,2,3 train.py",
        "  elastane submit --model digits --sweep-file runs.jsonl train.py",
        "Exits with 0 if the run succeeded (with --detach: if it is queued), 1 if it failed, 12 if it was "
        "cancelled, 2 for bad usage, 3 if it was refused, 4 if the master was unreachable, 130 if Ctrl-C "
        "detached.",
    )
)


def register(app: typer.Typer) -> None:
    app.command("submit", help=HELP, rich_help_panel="Run", context_settings=dict(SCRIPT_SETTINGS))(submit)


def _submit(
    options: SubmitOptions,
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCRIPT] [ARGS]...", help="The script and its arguments.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="KEY",
            help="A key of your choice: submitted again with it, the same run is followed and none is added.",
            show_default=False,
        ),
    ] = "",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="K=V,V...",
            help="Values of a parameter: one run for each, or, repeated, for each combination of values. "
            "Returns as soon as all of them are queued.",
            show_default=False,
        ),
    ] = None,
    sweep_file: Annotated[
        Path | None,
        typer.Option(
            "--sweep-file",
            metavar="FILE",
            help="Parameters of one run on each line, as an object of JSON. Each run is queued on its own: "
            "one that is refused does not stop those after it.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return as soon as the run is queued.")
    ] = False,
    cancel_on_interrupt: Annotated[
        bool, typer.Option("--cancel-on-interrupt", help="Ctrl-C cancels the run instead of detaching.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    planned = plan(script or (), options, None if options.like is None else run_id(options.like, "--like"))
    if sweep and sweep_file is not None:
        raise typer.BadParameter("a sweep has combinations or a file", param_hint="--sweep-file")
    swept = combinations(sweep or ()) if sweep_file is None else listed(sweep_file)
    if swept and key:
        raise typer.BadParameter("a key identifies one run, --sweep submits several", param_hint="--key")
    if swept and cancel_on_interrupt:
        raise typer.BadParameter(
            "the runs of a sweep are not followed; elastane cancel ends them",
            param_hint="--cancel-on-interrupt",
        )
    with _packed(planned) as archive, connect_training(master, timeout) as training:
        spec = _spec(training, planned, archive)
        if swept:
            _queue_all(training, spec, swept, as_json, each=sweep_file is not None)
            return
        run, created = _queue(training, spec, key)
        if detach:
            _print_queued(run, created, as_json)
            return
        final = _follow(training, run, created, cancel_on_interrupt, as_json)
    code = _CODES[final] if final else CODE_DETACHED
    raise typer.Exit(code)


submit = command(with_options(_submit, options=group_of(SubmitOptions)))


@contextlib.contextmanager
def _packed(planned: Plan) -> Iterator[tuple[Path, str] | None]:
    """Yield the code archive with its digest; None if no folder is sent. Raises ArchiveError."""
    if planned.folder is None:
        yield None
        return
    from elastane_common.code_archive import pack

    with tempfile.TemporaryDirectory(prefix="elastane-code-") as folder:
        archive = Path(folder) / "code.zip"
        yield archive, pack(planned.folder, archive)


def _spec(training: TrainingClient, planned: Plan, archive: tuple[Path, str] | None) -> training_pb2.RunSpec:
    """Send the code; return the run's spec."""
    base = spec_like(training, planned.like) if planned.like is not None else None
    if archive is not None:
        from elastane_common.code_archive import store

        service = training.get_service()
        store(*archive, service.artifact_url, bytes_max=service.archive_bytes_max)
    return spec_of(planned, base, archive[1] if archive else "")


def _queue(
    training: TrainingClient, spec: training_pb2.RunSpec, client_key: str
) -> tuple[training_pb2.Run, bool]:
    """Queue the run; returns (run, created)."""
    try:
        return training.train(spec, client_key=client_key)
    except KeyboardInterrupt:
        typer.echo(
            "interrupted while the run was submitted; `elastane queue` shows if it is queued", err=True
        )
        raise


def _queue_all(
    training: TrainingClient,
    spec: training_pb2.RunSpec,
    swept: list[dict[str, str]],
    as_json: bool,
    each: bool,
) -> None:
    """Queue a run for each set of parameters, and print each with its own.

    each: queue runs independently and report refusals; otherwise the first refusal ends the command.
    """
    from elastane_cli.views.plain import to_plain
    from elastane_cli.views.runs import change_line
    from elastane_common.client_errors import RequestRefusedError
    from elastane_proto.v1 import training_pb2

    def specs() -> Iterator[training_pb2.RunSpec]:
        for parameters in swept:
            one = training_pb2.RunSpec()
            one.CopyFrom(spec)
            one.parameters.update(parameters)
            yield one

    queued: list[training_pb2.Run] = []
    refused: list[dict[str, object]] = []
    outcomes = training.train_each(specs()) if each else training.train_many(specs())
    try:
        for outcome, parameters in zip(outcomes, swept, strict=True):
            said = " ".join(f"{k}={v}" for k, v in parameters.items())
            if isinstance(outcome, RequestRefusedError):
                refused.append({"parameters": parameters, "error": str(outcome), "hint": outcome.hint})
                typer.echo(f"refused: {said}: {outcome}", err=True)
                continue
            run = outcome if isinstance(outcome, training_pb2.Run) else outcome.run
            queued.append(run)
            if not as_json:
                typer.echo(f"{change_line(run)}: {said}")
    finally:
        if as_json:
            more = {"refused": refused} if each else {}
            print_json({"runs": [to_plain(run) for run in queued], **more})
        elif len(queued) < len(swept):
            typer.echo(f"{len(queued)} of {len(swept)} runs are queued", err=True)
    if refused:
        raise typer.Exit(CODE_REFUSED)


def _print_queued(run: training_pb2.Run, created: bool, as_json: bool) -> None:
    from elastane_cli.views.plain import to_plain
    from elastane_cli.views.runs import change_line

    if as_json:
        print_json({"created": created, "run": to_plain(run)})
    else:
        typer.echo(_introduced(change_line(run), created))


def _introduced(line: str, created: bool) -> str:
    return line if created else f"{line} (submitted before under this key)"


def _follow(
    training: TrainingClient,
    run: training_pb2.Run,
    created: bool,
    cancel_on_interrupt: bool,
    as_json: bool,
) -> str:
    """Follow the run to its end; returns its final state, or "" after Ctrl-C has detached."""
    from elastane_cli.commands.log_output import LogOutput
    from elastane_cli.views.plain import to_plain
    from elastane_cli.views.runs import change_line, going_on
    from elastane_common.errors import MasterUnreachableError

    said = ""

    def show(changed: training_pb2.Run) -> None:
        nonlocal said
        if as_json:
            print_json(to_plain(changed))
            return
        line = _introduced(change_line(changed), created) if not said else change_line(changed)
        if line != said:
            typer.echo(line, err=True)
        said = line

    output = None if as_json else LogOutput(sys.stdout, clean=sys.stdout.isatty())
    follower = RunFollower(training, run.run_id, show=show, output=output)
    try:
        try:
            return _ended(follower.follow(), as_json)
        except KeyboardInterrupt:
            if not cancel_on_interrupt:
                raise
            training.cancel(run.run_id)
            typer.echo(f"run {run.run_id} is being cancelled; Ctrl-C again leaves it to that", err=True)
            return _ended(follower.follow(), as_json)
    except KeyboardInterrupt:
        # A second Ctrl-C must not cut off the message of the first.
        with signal_handlers((signal.SIGINT,), signal.SIG_IGN):
            typer.echo(going_on(run.run_id), err=True)
        return ""
    except MasterUnreachableError:
        typer.echo(going_on(run.run_id), err=True)
        raise


def _ended(run: training_pb2.Run, as_json: bool) -> str:
    from elastane_cli.views.runs import state_name

    if run.artifact_url and not as_json:
        typer.echo(f"artifacts: {run.artifact_url}", err=True)
    return state_name(run)

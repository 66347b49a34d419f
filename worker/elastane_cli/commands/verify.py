"""`elastane verify`: the user's script under stock DDP and under churn, compared bit for bit."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from elastane_cli.commands.common import console, print_error, print_json, worker_limits
from elastane_cli.commands.job_options import PipelineOption, ShadowOption, pipeline_arguments
from elastane_cli.commands.rehearsals import announced_seed, require_new, watching, working_folder
from elastane_cli.commands.run_options import (
    SCRIPT_SETTINGS,
    ModuleOption,
    ScriptArgument,
    missing_option,
    option,
    require_script,
)
from elastane_common.exit_codes import CODE_FAILED, CODE_OK, CODE_RUN_FAILED, CODE_USAGE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from elastane.diagnose.findings import Finding
    from elastane_cli.verify.ps_run import PsRunResult
    from elastane_cli.verify.run import VerifyResult
    from elastane_common.errors import ElastaneError

#: rich keeps line ends, so a paragraph is one line of text.
HELP = "\n\n".join(
    (
        "Prove on your own script that elastic training gives the bits of stock DDP.",
        "Runs the script under stock DDP(gloo) with N processes, then elastically while workers are added, "
        "drained and killed at random steps, and compares weights, optimizer, buffers and logged values. "
        "If they differ, it finds the first step, EST and tensor where the runs diverge, and the likely "
        "cause.",
        "With --reference the stock side is your own DDP script from before the conversion, unchanged and "
        "started by your own command: what it trained is recorded at its end, tensor by tensor, and N is "
        "its number of ranks. Its threads and its choice of deterministic kernels are set as in the "
        "elastic runs.",
        "Examples:",
        "  elastane verify --ests 4 train.py --epochs 1",
        '  elastane verify --reference "torchrun --nproc-per-node 4 train_ddp.py" train.py',
        '  elastane verify --ests 4 --paths "4,1,3,2" --kills 2 --steps 40 train.py',
        "  elastane verify --ps 2 --kills 2 clicks.py   (a script with prepare_ps)",
        "  elastane verify --ests 2 --runs 3 --seed 17 --json -m mypackage.train",
        "With --ps a script with prepare_ps runs alone, and then with one worker while parameter servers "
        "join, are drained and killed; every slot is compared. With several --workers a run has no fixed "
        "order: it is computed again from its journal, and that is compared.",
        "Each run starts in a new folder that replaces the current one: small files are copied there, "
        "large files and folders linked. What a run writes into a linked folder, or to an absolute path, "
        "the next run can see.",
        "Exits with 0 if all is equal, 1 if a run differs, 2 on bad usage, 3 if the script is not "
        "deterministic by itself (two runs of the reference differ), 11 if a run failed, 130 on Ctrl-C. "
        "With --reference also: 5 it failed, 6 it did not end in time, 7 it trained nothing under DDP, 8 "
        "its number of ranks is not --ests, 9 it trains another model, 10 it makes another number of steps.",
    )
)


def register(app: typer.Typer) -> None:
    app.command(
        "verify",
        help=HELP,
        rich_help_panel="Run",
        context_settings=dict(SCRIPT_SETTINGS),
    )(verify)


def verify(
    script: ScriptArgument,
    ests: Annotated[
        int | None,
        option(
            "--ests",
            "N",
            "Number of logical workers, and of stock DDP processes.",
            min=2,
            show_default="the ranks of --reference",
        ),
    ] = None,
    reference: Annotated[
        str,
        option(
            "--reference",
            "COMMAND",
            "Command that starts the unchanged DDP script to compare with, quoted.",
            show_default="the script itself under stock DDP",
        ),
    ] = "",
    ps: Annotated[
        int | None,
        option(
            "--ps",
            "COUNT",
            "For scripts with prepare_ps: number of parameter servers. Without --ests.",
            min=1,
            show_default="none",
        ),
    ] = None,
    workers: Annotated[
        int, option("--workers", "W", "With --ps: number of workers of each run.", min=1)
    ] = 1,
    module: ModuleOption = False,
    paths: Annotated[
        str,
        option(
            "--paths",
            '"4,1,3,2"',
            "Numbers of workers over the course of a run; several paths separated by semicolons.",
            show_default="random",
        ),
    ] = "",
    runs: Annotated[
        int | None,
        option("--runs", "R", "Number of elastic runs.", min=1, show_default="1, or one for each path"),
    ] = None,
    kills: Annotated[int, option(
        "--kills", "K", "Number of workers killed in each run; with --ps, of parameter servers.", min=0
    )] = 1,
    steps: Annotated[
        int | None,
        option("--steps", "S", "Stop both sides after S global steps.", min=3, show_default="all"),
    ] = None,
    seed: Annotated[
        int | None,
        option("--seed", "X", "Seed of the churn; the same seed repeats it.", show_default="random"),
    ] = None,
    determinism: Annotated[
        str,
        option(
            "--determinism",
            "LEVEL",
            "Determinism level of both sides: d0, d1 or d2.",
            envvar="ELASTANE_DETERMINISM",
        ),
    ] = "d1",
    threads: Annotated[int, option("--threads", "T", "Number of torch threads per worker; it decides the "
                                                      "bits.", min=1)] = 1,
    pipeline: PipelineOption = None,
    shadow: ShadowOption = 0,
    trace: Annotated[
        bool, option("--trace", None, "Trace every run, to find differences that do not occur in every "
                                       "run.")
    ] = False,
    timeout: Annotated[
        float, option("--timeout", "SECONDS", "Time limit of each run.", min=1.0)
    ] = 3600.0,
    keep: Annotated[
        Path | None,
        option(
            "--keep", "DIR", "Keep logs, reports and traces in this new folder.",
            show_default="a temporary folder",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", None, "Print the result as one JSON document.")] = False,
) -> None:  # fmt: skip
    from elastane.diagnose.source import examine_script
    from elastane_cli.commands.signals import sigterm_cleans_up
    from elastane_cli.verify.causes import refusal_in
    from elastane_cli.verify.elastic_run import RunFailed
    from elastane_cli.verify.plan import PlanError, parse_paths
    from elastane_cli.verify.ps_run import PsProof
    from elastane_cli.verify.reference import OriginalError, parse_reference
    from elastane_cli.verify.run import run_verify
    from elastane_common.determinism import Level
    from elastane_common.errors import ElastaneError

    of_rings = {"--ests": ests, "--reference": reference, "--paths": paths, "--steps": steps}
    of_rings |= {"--pipeline": pipeline, "--shadow": shadow, "--trace": trace}
    if ps is not None and (given := [name for name, value in of_rings.items() if value]):
        raise typer.BadParameter("cannot be combined with --ps", param_hint=given[0])
    if ps is None and workers != 1:
        raise typer.BadParameter("needs --ps; the workers of a ring are --paths", param_hint="--workers")
    if ests is None and not reference and ps is None:
        raise missing_option("--ests", "Missing option: give --ests or --reference", script)
    require_script(script, is_file=not module)
    require_new(keep)
    try:
        level = Level(determinism)
    except ValueError:
        raise typer.BadParameter(f"{determinism!r} is not d0, d1 or d2", param_hint="--determinism") from None
    try:
        chosen = parse_paths(paths, ests) if paths and ests is not None else []
    except PlanError as error:
        raise typer.BadParameter(str(error), param_hint="--paths") from None
    if paths and ests is None:
        raise typer.BadParameter("--paths needs --ests", param_hint="--paths")
    if steps and reference:
        raise typer.BadParameter(
            "cannot be combined with --reference, which runs unchanged to its end", param_hint="--steps"
        )
    original: list[str] = []
    if reference:
        try:
            original = parse_reference(reference)
        except OriginalError as error:
            raise typer.BadParameter(str(error), param_hint="--reference") from None
    if runs is None:
        runs = len(chosen) or 1
    stages = worker_limits(pipeline, "--pipeline") if pipeline is not None else (1, 0)

    number = announced_seed(seed, as_json=as_json)
    command = ["-m", *script] if module else list(script)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(working_folder("verify", keep))
        stack.enter_context(sigterm_cleans_up())
        watcher = stack.enter_context(watching(quiet=as_json, bar=True))
        try:
            if ps is not None:
                found = PsProof(
                    folder.absolute(), command, ps, workers, kills, str(number), level, threads, timeout,
                    watcher,
                ).run(runs)  # fmt: skip
                raise typer.Exit(_print_ps_runs(console(), found, number, as_json=as_json))
            result = run_verify(
                folder, command, ests=ests, original=original, runs=runs, kills=kills, paths=chosen,
                steps=steps, seed=number, determinism=level, threads=threads, trace=trace,
                timeout_seconds=timeout, watcher=watcher, stages=stages, shadows=shadow,
            )  # fmt: skip
        except ElastaneError as error:
            stack.close()
            code = CODE_USAGE if isinstance(error, PlanError) else CODE_RUN_FAILED
            if isinstance(error, OriginalError):
                code = error.exit_code
            refusal = refusal_in(str(error.args[0])) if isinstance(error, RunFailed) else None
            _fail(error, code, refusal, examine_script(command), as_json=as_json)
    if as_json:
        typer.echo(json.dumps(result.as_json()))
    else:
        again = ["elastane", "verify", "--ests", str(result.ests), "--seed", str(number), "--runs", str(runs)]
        again += ["--reference", reference] if reference else []
        again += ["--kills", str(kills), *(["--paths", paths] if paths else [])]
        again += ["--steps", str(steps)] if steps else []
        again += pipeline_arguments(pipeline, shadow)
        again += ["--determinism", level.value, "--threads", str(threads)]
        _print_result(console(), result, shlex.join([*again, *command]))
    raise typer.Exit(result.exit_code)


def _print_result(out: Console, result: VerifyResult, again: str) -> None:
    """Print the table of runs, the digests and the verdict; on a difference, its first place and cause.

    again: the command line that repeats the comparison.
    """
    out.print(_table_of_runs(result))
    _print_compared(out, result)
    if result.equal:
        out.print("[bold green]equal[/], bit for bit")
        _print_findings(out, result.findings)
        return
    out.print(f"[bold red]{result.verdict.value}[/]")
    _print_difference(out, result)
    if result.cause is not None:
        out.print(f"likely cause: {result.cause.text}", markup=False)
        out.print(f"what to do: {result.cause.hint}", markup=False)
    _print_findings(
        out, [f for f in result.findings if result.cause is None or f.what not in result.cause.text]
    )
    out.print(f"again: {again}", markup=False)


def _table_of_runs(result: VerifyResult) -> Table:
    from rich.table import Table

    table = Table(title=f"{result.ests} logical workers, {result.steps} steps, seed {result.seed}")
    for column in ("run", "workers", "killed", "seconds", "differs in"):
        table.add_column(column)
    table.add_row(
        "the reference" if result.original else "stock DDP",
        str(result.ests),
        "",
        f"{result.reference_seconds:.1f}",
        "",
    )
    for number, run in enumerate(result.runs, 1):
        differing = ", ".join(run.comparison.differing)
        table.add_row(
            f"elastic {number}",
            " -> ".join(map(str, run.plan.path)),
            ", ".join(death.worker for death in run.plan.deaths),
            f"{run.seconds:.1f}",
            f"[red]{differing}[/]" if differing else "[green]nothing[/]",
        )
    return table


def _print_compared(out: Console, result: VerifyResult) -> None:
    """Print the digests, and what was compared."""
    from elastane_cli.rehearse.results import shown

    # The fingerprint is the elastic run's. If it differs from the reference, the rows below say more.
    for name, value in result.fingerprint.items() if result.equal or not result.original else ():
        digest = shown(value)
        out.print(f"  {name:<12} {digest if digest != value else f'sha256 {value[:32]}'}", markup=False)
    if result.original:
        out.print(
            "  compared tensor by tensor with the reference, whose threads and deterministic kernels were "
            "set as in our runs; what it logs is not compared",
            markup=False,
        )
    else:
        out.print(f"  {result.values or '(no)'} logged values compared", markup=False)


def _print_difference(out: Console, result: VerifyResult) -> None:
    """Print violations of the audit, the first difference, and the tensors that differ from the original."""
    for run in result.runs:
        for violation in run.comparison.violations[:5]:
            out.print(f"  audit: {violation}", markup=False)
    if result.difference is not None or result.event is not None:
        out.print(f"first difference between {result.search}:", markup=False)
        out.print(f"  {result.where}", markup=False, style="bold")
    elif result.search:
        out.print(f"compared: {result.search}", markup=False)
    if (difference := result.difference) is not None:
        out.print(f"  {difference.reference} in the reference, {difference.found} here", markup=False)
        if difference.process:
            out.print(f"  done by {difference.process}", markup=False)
        if difference.more:
            out.print(f"  also: {', '.join(difference.more)}", markup=False)
    if result.original and result.runs:
        for row in result.runs[-1].comparison.rows:
            if not row.equal:
                out.print(f"  {row.name}: {row.reference} in the reference, {row.found} here", markup=False)


def _print_ps_runs(out: Console, runs: Sequence[PsRunResult], seed: int, *, as_json: bool) -> int:
    """Print the runs of `--ps`; return the exit code."""
    equal = not any(run.differing for run in runs)
    code = CODE_OK if equal else CODE_FAILED
    if as_json:
        from msgspec import to_builtins

        print_json({"equal": equal, "exit_code": code, "seed": seed, "runs": to_builtins(runs)})
        return code
    from rich.table import Table

    table = Table()
    for column in ("run", "after how many tasks", "seconds", "differs in"):
        table.add_column(column)
    for number, run in enumerate(runs, 1):
        slots = ", ".join(map(str, run.differing))
        differing = f"[red]slots {slots}[/]" if run.differing else "[green]nothing[/]"
        table.add_row(str(number), "\n".join(run.acts), f"{run.seconds:.1f}", differing)
    out.print(table)
    out.print("[bold green]equal[/], bit for bit" if equal else "[bold red]differs[/]")
    return code


def _print_findings(out: Console, findings: Sequence[Finding]) -> None:
    """Print findings in the source that may make a difference under other churn or in unchecked results."""
    from rich.markup import escape

    from elastane.diagnose.findings import Severity

    for finding in findings:
        if finding.severity in (Severity.REFUSED, Severity.DIFFERS):
            out.print(f"[yellow]in the source[/]: {escape(finding.where)}: {escape(finding.what)}")
            out.print(f"  {finding.todo}", markup=False)


def _fail(
    error: ElastaneError,
    code: int,
    refusal: tuple[str, str] | None,
    findings: Sequence[Finding],
    *,
    as_json: bool,
) -> NoReturn:
    """Print what failed and the known causes, and exit with `code`, which is specific to this command.

    refusal: (code, text) of the error that stopped a worker. findings: those in the script's source.
    """
    from elastane.diagnose.findings import Severity

    blamed = [f for f in findings if f.severity in (Severity.REFUSED, Severity.DIFFERS)]
    message = str(error.args[0]) if error.args else type(error).__name__
    if as_json:
        document: dict[str, Any] = {"error": type(error).__name__, "code": error.code, "message": message}
        cause = {"code": refusal[0], "text": refusal[1]} if refusal is not None else None
        source = [{"where": f.where, "what": f.what, "todo": f.todo, "code": f.code} for f in blamed]
        document |= {"hint": error.hint, "exit_code": code, "cause": cause, "findings": source}
        typer.echo(json.dumps(document))
    else:
        print_error(error, message)
        if refusal is not None:
            typer.secho(f"cause {refusal[0]}: ", fg=typer.colors.YELLOW, err=True, nl=False)
            typer.echo(refusal[1], err=True)
        for finding in blamed:
            typer.secho("in the source: ", fg=typer.colors.YELLOW, err=True, nl=False)
            typer.echo(f"{finding.where}: {finding.what}\n  {finding.todo}", err=True)
    raise typer.Exit(code)

"""`elastane chaos`: runs a script under real faults and compares it with its fixed run after each fault."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from elastane_cli.commands.agent_options import PS_MAX
from elastane_cli.commands.common import console, print_error, worker_limits
from elastane_cli.commands.job_options import PipelineOption, ShadowOption, pipeline_arguments
from elastane_cli.commands.rehearsals import announced_seed, require_new, watching
from elastane_cli.commands.run_options import SCRIPT_SETTINGS, ModuleOption, option, require_script
from elastane_common.exit_codes import CODE_RUN_FAILED, CODE_USAGE

if TYPE_CHECKING:
    from rich.console import Console

    from elastane_cli.chaos.plan import ChaosResult
    from elastane_common.errors import ElastaneError

#: rich keeps line ends, so a paragraph is one line of text.
HELP = "\n\n".join(
    (
        "Inject real faults into a training run on this machine, and check that nothing is lost.",
        "Runs the script (without one: a small built-in job) once under stock DDP, then elastically with "
        "its own master and store, and injects one real fault after the other: SIGKILL, SIGSTOP, full "
        "disks, cut networks, wrong clocks ... After every fault it compares the bits of each step with "
        "the fixed run's and audits the committed history; at the end of each run it compares the whole "
        "result.",
        "--pipeline cuts the built-in job into stages, or a script with prepare_pipeline. With --shadow 1 "
        "the death of one worker may cost no committed step; without, all goes back to the last checkpoint.",
        "--ps 3 trains with parameter servers instead. At the end of each run, and of --kills faults, every "
        "slot is read: it must have applied exactly the tasks that are DONE; of the built-in job, each once.",
        "Root can inject more faults: network namespaces, small disks, memory cgroups. Faults that the "
        "machine does not allow are left out and listed. Nothing outside the job is touched.",
        "Examples:",
        "  elastane chaos --minutes 5",
        "  elastane chaos --minutes 20 --faults kill-worker,kill-master --seed 7 train.py --epochs 3",
        "  elastane chaos --minutes 5 --pipeline 2:3 --shadow 1",
        "  elastane chaos --ps 3 --workers 8 --kills 200 --ps-replicas 1",
        "  elastane chaos --list",
        "Exits with 0 if every promise held, 1 if one did not, 2 on bad usage, 11 if a run did not finish, "
        "130 on Ctrl-C.",
    )
)


def register(app: typer.Typer) -> None:
    app.command(
        "chaos",
        help=HELP,
        rich_help_panel="Run",
        context_settings=dict(SCRIPT_SETTINGS),
    )(chaos)


def chaos(
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCRIPT [ARGS]...]", help="The script and its arguments.", show_default="a small "
                                                                                             "built-in job"
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        option(
            "--minutes", "M", "Inject faults for this long; then let the run finish.", min=0.1,
            show_default="5; without a limit with --kills",
        ),
    ] = None,
    ests: Annotated[int, option("--ests", "N", "Logical workers.", min=2)] = 4,
    workers: Annotated[int, option("--workers", "W", "Worker processes.", min=2)] = 3,
    faults: Annotated[
        str, option("--faults", "A,B", "Inject only these faults; see --list.", show_default="all that "
                                                                                              "the machine "
                                                                                              "allows")
    ] = "",
    seed: Annotated[
        int | None,
        option(
            "--seed", "X", "Seed of order and victims; the same seed repeats both.", show_default="random"
        ),
    ] = None,
    pace: Annotated[
        float | None,
        option(
            "--pace", "SECONDS", "Extra time for each mini-batch or task: a short script lasts longer.",
            min=0.0, show_default="0.1 for the built-in job; 0 for a script",
        ),
    ] = None,
    pipeline: PipelineOption = None,
    shadow: ShadowOption = 0,
    ps: Annotated[
        int, option("--ps", "N", "Parameter servers of a job with prepare_ps; 0: none.", min=0, max=PS_MAX)
    ] = 0,
    ps_replicas: Annotated[
        int, option("--ps-replicas", "N", "With --ps: copies of each slot.", min=0, max=1)
    ] = 0,
    kills: Annotated[
        int | None,
        option("--kills", "N", "With --ps: end after so many faults.", min=1, show_default="see --minutes"),
    ] = None,
    module: ModuleOption = False,
    list_faults: Annotated[bool, option("--list", None, "List all faults and exit.")] = False,
    keep: Annotated[
        Path | None,
        option(
            "--keep", "DIR", "Keep logs, reports and traces in this new folder.",
            show_default="a temporary folder, kept if a promise broke",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", None, "Print the result as one JSON document.")] = False,
) -> None:  # fmt: skip
    from elastane_cli.chaos.plan import FaultsError, choose
    from elastane_cli.chaos.ps_faults import PS_FAULTS
    from elastane_cli.chaos.ps_run import PS_SCRIPT, PsChaos
    from elastane_cli.chaos.run import BUILT_IN_SCRIPT, FAULTS, PIPELINE_SCRIPT, Chaos
    from elastane_cli.commands.signals import sigterm_cleans_up
    from elastane_common.errors import ElastaneError

    known = {name: fault.text for name, fault in (PS_FAULTS if ps else FAULTS).items()}
    if list_faults:
        if as_json:
            typer.echo(json.dumps(known))
        else:
            for name, text in known.items():
                typer.echo(f"{name:<28} {text}")
        raise typer.Exit(0)
    if script:
        require_script(script, is_file=not module)
    if module and not script:
        raise typer.BadParameter("-m needs the name of a module", param_hint="SCRIPT")
    require_new(keep)
    if ps and (pipeline is not None or shadow):
        raise typer.BadParameter("a pipeline has no parameter servers", param_hint="--ps")
    if not ps and (kills is not None or ps_replicas):
        raise typer.BadParameter("only with --ps", param_hint="--ps-replicas" if ps_replicas else "--kills")
    if not ps and workers > ests:
        raise typer.BadParameter(f"{workers} workers for {ests} logical workers", param_hint="--workers")
    stages = worker_limits(pipeline, "--pipeline") if pipeline is not None else (1, 0)
    built_in = PS_SCRIPT if ps else PIPELINE_SCRIPT if pipeline is not None or shadow else BUILT_IN_SCRIPT
    try:
        names = choose(faults, list(known))
    except FaultsError as error:
        raise typer.BadParameter(f"{error.args[0]} ({error.hint})", param_hint="--faults") from None

    number = announced_seed(seed, as_json=as_json)
    command = (["-m", *script] if module else list(script)) if script else list(built_in)
    if ps and not script and kills is not None:
        command += ["--tasks", str(min(1500, max(60, 20 * kills)))]  # a few faults need no long run
    with contextlib.ExitStack() as stack:
        if keep is None:
            folder = Path(tempfile.mkdtemp(prefix="elastane-chaos-"))
        else:
            folder = keep
            folder.mkdir(parents=True)
        stack.enter_context(sigterm_cleans_up())
        watcher = stack.enter_context(watching(quiet=as_json, bar=False))
        kept = True
        try:
            pace_seconds = pace if pace is not None else 0.0 if script else 0.1
            if minutes is None and kills is None:
                minutes = 5.0
            if ps:
                result = PsChaos(
                    folder=folder.absolute(), script=command, checks_weights=not script, faults=names, ps=ps,
                    workers=workers, replicas=ps_replicas, seed=str(number), kills=kills, minutes=minutes,
                    pace_seconds=pace_seconds, watcher=watcher,
                ).run()  # fmt: skip
            else:
                assert minutes is not None
                result = Chaos(
                    folder=folder.absolute(), script=command, faults=names, ests=ests, workers=workers,
                    minutes=minutes, seed=str(number), watcher=watcher, stages=stages, shadows=shadow,
                    pace_seconds=pace_seconds,
                ).run()  # fmt: skip
            kept = keep is not None or not result.ok
        except FaultsError as error:
            kept = False
            stack.close()
            _fail(error, CODE_USAGE, as_json=as_json)
        except ElastaneError as error:
            stack.close()
            _fail(error, CODE_RUN_FAILED, as_json=as_json, folder=folder)
        except (KeyboardInterrupt, SystemExit):
            kept = False
            raise
        finally:
            if not kept:
                shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        typer.echo(json.dumps({**result.as_json(), "folder": str(folder) if kept else None}))
    else:
        again = ["elastane", "chaos", "--seed", str(number), "--workers", str(workers)]
        again += ["--minutes", f"{minutes:g}"] if minutes is not None else []
        again += ["--kills", str(kills)] if kills is not None else []
        again += ["--ps", str(ps), "--ps-replicas", str(ps_replicas)] if ps else ["--ests", str(ests)]
        again += ["--faults", faults] if faults else []
        again += pipeline_arguments(pipeline, shadow)
        print_result(console(), result, shlex.join([*again, *(script or [])]), folder if kept else None)
    raise typer.Exit(result.exit_code)


def print_result(out: Console, result: ChaosResult, again: str, folder: Path | None) -> None:
    """Print the table of faults, the tasks lost and repeated, and whether the hashes are equal.

    again: the command line that repeats the run. folder: where everything is kept; None: it is not.
    """
    from rich.table import Table
    from rich.text import Text

    unit = "task" if result.ps else "step"
    size = f"{result.ps} parameter servers" if result.ps else f"{result.ests} logical workers"
    table = Table(title=f"{size}, {result.steps} {unit}s{'' if result.ps else ' a run'}, seed {result.seed}")
    for column in ("fault", "times", "kept up, s", f"to the next {unit}, s: median", "range", "outcome"):
        table.add_column(column)
    for one in result.by_fault():
        found = one.seconds
        table.add_row(
            one.fault,
            str(one.times),
            f"{one.kept_seconds:.1f}",
            "-" if one.median_seconds is None else f"{one.median_seconds:.2f}",
            f"{found[0]:.2f} to {found[-1]:.2f}" if found else "-",
            Text(one.problems[0], "red") if one.problems else Text("held", "green"),
        )
    out.print(table)
    for name, reason in result.left_out.items():
        out.print(f"left out: {name}: {reason}", markup=False)
    lost, repeated = sum(run.lost for run in result.runs), sum(run.repeated for run in result.runs)
    entries = sum(run.entries for run in result.runs)
    equal = sum(not run.differing for run in result.runs)
    if result.ps:
        equal = sum(run.ok for run in result.runs)
    verdict = "[green]yes[/]" if equal == len(result.runs) else "[red]NO[/]"
    what = "each applied once in every slot" if result.ps else "hashes equal to the fixed run"
    out.print(
        f"{len(result.injections)} faults in {len(result.runs)} runs, {result.seconds:.0f} s: "
        f"{entries} committed tasks, lost {lost}, repeated {repeated}; "
        f"{what} in {equal} of {len(result.runs)} runs: {verdict}"
    )
    for injected in result.injections:
        where = f"run {injected.run}, {unit} {injected.step}, {injected.fault} ({injected.detail})"
        for problem in injected.problems:
            out.print(f"{where}: {problem}", markup=False)
    for run in result.runs:
        for what in (*run.differing, *run.violations):
            out.print(f"run {run.run}: {what}", markup=False)
    if folder is not None:
        out.print(f"everything is kept in {folder}", markup=False)
    if not result.ok:
        out.print(f"again: {again}", markup=False)


def _fail(error: ElastaneError, code: int, *, as_json: bool, folder: Path | None = None) -> NoReturn:
    """Print what failed and where its logs are, and exit with `code`, which is specific to this command."""
    message = str(error.args[0]) if error.args else type(error).__name__
    if folder is not None:
        message += f"\neverything is kept in {folder}"
    if as_json:
        document = {"error": type(error).__name__, "code": error.code, "message": message}
        typer.echo(json.dumps({**document, "hint": error.hint, "exit_code": code}))
    else:
        print_error(error, message)
    raise typer.Exit(code)

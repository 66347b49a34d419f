"""`elastane drill`: rehearses reclaims of spot nodes, or the death of a parameter server, with any script."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.agent_options import PS_MAX
from elastane_cli.commands.common import worker_limits
from elastane_cli.commands.cost import checked_currency, micros_of
from elastane_cli.commands.job_options import PipelineOption, ShadowOption
from elastane_cli.commands.rehearsals import require_new, working_folder
from elastane_cli.commands.run_options import (
    SCRIPT_SETTINGS,
    ModuleOption,
    ScriptArgument,
    option,
    require_script,
)

if TYPE_CHECKING:
    from elastane_cli.drill.ps import PsDeath
    from elastane_cli.drill.run import DrillResult


#: rich keeps line ends, so a paragraph is one line of text.
HELP = "\n\n".join(
    (
        "Rehearse the reclaim of spot nodes with your own script: does it leave in time, with the same bits?",
        "Trains on two simulated spot nodes of this machine. At a random step the first node gets a "
        "notice, at a later step all remaining nodes do; then a node elsewhere continues from the checkpoint "
        "they left. Every worker must leave before the deadline, no step may be run twice, and the result "
        "must be that of stock DDP.",
        "With --ps it trains with parameter servers instead, kills one, and says what that cost: tasks done "
        "again, and seconds. First without copies of slots, then with.",
        "Examples:",
        "  elastane drill --ests 4 train.py --epochs 1",
        "  elastane drill --ests 4 --pipeline 2:3 train_pipeline.py",
        "  elastane drill --ests 2 --grace 30 --spot-price 0.31 --on-demand-price 0.98 -m mypackage.train",
        "  elastane drill --ps 2 clicks.py",
        "Exits with 0 if all of this held, 1 if something did not, 2 on bad usage, 11 if a run failed, 130 "
        "on Ctrl-C.",
    )
)


def register(app: typer.Typer) -> None:
    app.command("drill", help=HELP, rich_help_panel="Run", context_settings=dict(SCRIPT_SETTINGS))(drill)


def drill(
    script: ScriptArgument,
    ests: Annotated[
        int | None,
        option(
            "--ests",
            "N",
            "Number of logical workers, and of stock DDP processes; needed without --ps.",
            min=1,
            show_default=False,
        ),
    ] = None,
    module: ModuleOption = False,
    ps: Annotated[
        int, option("--ps", "N", "Parameter servers of a script with prepare_ps; 0: none.", min=0, max=PS_MAX)
    ] = 0,
    workers: Annotated[int, option("--workers", "W", "With --ps: worker processes.", min=1)] = 2,
    pipeline: PipelineOption = None,
    shadow: ShadowOption = 0,
    grace: Annotated[
        float,
        option("--grace", "SECONDS", "Time between notice and deadline; GKE gives a pod 15 s.", min=1.0),
    ] = 15.0,
    seed: Annotated[
        int | None,
        option("--seed", "X", "Seed of the steps and the sizes of the nodes.", show_default="random"),
    ] = None,
    spot_price: Annotated[
        str | None,
        option("--spot-price", "PRICE", "Price of a spot worker per hour.", show_default="unknown"),
    ] = None,
    on_demand_price: Annotated[
        str | None,
        option(
            "--on-demand-price", "PRICE", "Price of an on-demand worker per hour.", show_default="unknown"
        ),
    ] = None,
    currency: Annotated[str, option("--currency", "CODE", "Currency of the prices: three letters.")] = "USD",
    threads: Annotated[
        int, option("--threads", "T", "Number of torch threads per worker; it decides the bits.", min=1)
    ] = 1,
    timeout: Annotated[
        float, option("--timeout", "SECONDS", "Time limit of each run or wait.", min=1.0)
    ] = 600.0,
    keep: Annotated[
        Path | None,
        option("--keep", "DIR", "Keep logs and reports in this new folder.", show_default="a temporary one"),
    ] = None,
    as_json: Annotated[bool, option("--json", None, "Print the result as one JSON document.")] = False,
) -> None:
    if ps == 1:
        raise typer.BadParameter("somebody must take over: at least 2", param_hint="--ps")
    if ps and (ests is not None or pipeline is not None or shadow):
        raise typer.BadParameter("it goes with neither --ests nor a pipeline", param_hint="--ps")
    if not ps and ests is None:
        raise typer.BadParameter("missing, unless --ps is given", param_hint="--ests")
    prices = micros_of(spot_price, "--spot-price"), micros_of(on_demand_price, "--on-demand-price")
    require_script(script, is_file=not module)
    require_new(keep)

    import secrets

    from elastane_cli.commands.common import fail
    from elastane_cli.commands.signals import sigterm_cleans_up
    from elastane_cli.drill.ps import PsDrill
    from elastane_cli.drill.run import Drill
    from elastane_cli.rehearse.watcher import Watcher
    from elastane_common.errors import ElastaneError
    from elastane_common.exit_codes import CODE_RUN_FAILED

    class DatedEvent(Watcher):
        def stage(self, text: str, steps: int | None = None) -> None:
            typer.echo(text, err=True)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(working_folder("drill", keep)).absolute()
        stack.enter_context(sigterm_cleans_up())
        command = ["-m", *script] if module else list(script)
        drawn = str(secrets.randbelow(2**32) if seed is None else seed)
        if ps:
            deaths = PsDrill(
                folder=folder, script=command, ps=ps, workers=workers, seed=drawn, timeout_seconds=timeout,
                watcher=DatedEvent(),
            )  # fmt: skip
            try:
                found = deaths.run()
            except ElastaneError as error:
                stack.close()
                fail(error, as_json=as_json, code=CODE_RUN_FAILED)
            print_deaths(found, drawn, as_json=as_json)
            raise typer.Exit(1 if any(death.problems for death in found) else 0)
        assert ests is not None
        rehearsal = Drill(
            folder=folder,
            script=command,
            ests=ests,
            seed=drawn,
            grace_seconds=grace,
            prices=(prices[0] or 0, prices[1] or 0),
            currency=checked_currency(currency),
            threads=threads,
            timeout_seconds=timeout,
            watcher=DatedEvent(),
            stages=worker_limits(pipeline, "--pipeline") if pipeline is not None else (1, 0),
            shadows=shadow,
        )
        try:
            result = rehearsal.run()
        except ElastaneError as error:
            stack.close()
            fail(error, as_json=as_json, code=CODE_RUN_FAILED)
    if as_json:
        typer.echo(json.dumps(as_document(result)))
    else:
        _print(result)
    raise typer.Exit(result.exit_code)


def print_deaths(deaths: Sequence[PsDeath], seed: str, *, as_json: bool) -> None:
    """Print the cost of a parameter server's death without and with backups."""
    from dataclasses import asdict

    from rich.table import Table

    from elastane_cli.commands.common import console

    problems = [problem for death in deaths for problem in death.problems]
    if as_json:
        found = {"held": not problems, "problems": problems, "exit_code": int(bool(problems)), "seed": seed}
        typer.echo(json.dumps({**found, "deaths": [asdict(death) for death in deaths]}))
        return
    out = console()
    table = Table(title=f"death of a parameter server, seed {seed}")
    for column in (
        "copies",
        "DONE before",
        "done again",
        "slots served after, s",
        "next task after, s",
        "tasks",
    ):
        table.add_column(column)
    for death in deaths:
        seconds = f"{death.served_seconds:.2f}", f"{death.task_seconds:.2f}"
        table.add_row(str(death.replicas), str(death.done), str(death.reopened), *seconds, str(death.tasks))
    out.print(table)
    for problem in problems:
        out.print(problem, style="red", markup=False)
    if not problems:
        out.print("[bold green]held[/]: every DONE task is applied once in every slot")


def as_document(result: DrillResult) -> dict[str, object]:
    """Return the result as the document that --json prints."""
    from elastane_cli.views.plain import to_plain

    return {
        "held": not result.problems,
        "problems": result.problems,
        "exit_code": result.exit_code,
        "seed": result.seed,
        "ests": result.ests,
        "steps": result.steps,
        "reclaims": [
            {
                "node": one.node,
                "workers": one.workers,
                "step": one.step,
                "seconds": round(one.seconds, 2),
                "deadline_seconds": one.deadline_seconds,
            }
            for one in result.reclaims
        ],
        "saved_step": result.saved_step,
        "tasks_done_twice": result.done_twice,
        "differing": result.comparison.differing,
        "sha256": result.fingerprint,
        "cost": to_plain(result.cost),
    }


def _print(result: DrillResult) -> None:
    from rich.table import Table

    from elastane_cli.commands.common import console
    from elastane_proto.amounts import money_text

    out = console()
    table = Table(title=f"{result.ests} logical workers, {result.steps} steps, seed {result.seed}")
    for column in ("node", "workers", "left at step", "seconds", "deadline"):
        table.add_column(column)
    for one in result.reclaims:
        table.add_row(
            one.node, str(one.workers), str(one.step), f"{one.seconds:.1f}", f"{one.deadline_seconds:g}"
        )
    out.print(table)
    out.print(f"  tasks done twice: {result.done_twice}; checkpoint of the last: step {result.saved_step}")
    for name, value in result.fingerprint.items():
        out.print(f"  {name:<12} sha256 {value[:32]}", markup=False)
    cost = result.cost
    if cost.spent_micros or cost.on_demand_micros:
        spent, instead, saved = (
            money_text(micros, cost.currency)
            for micros in (cost.spent_micros, cost.on_demand_micros, cost.saved_micros)
        )
        out.print(f"  spent {spent}; on demand {instead}; saved {saved}")
    for problem in result.problems:
        out.print(problem, style="red", markup=False)
    if not result.problems:
        out.print("[bold green]held[/]: drained in time, no step lost, equal bit for bit")

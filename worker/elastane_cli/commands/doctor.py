"""`elastane doctor`: finds faults and non-determinism of this machine and of a script, before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastane_cli.commands.common import JsonOption, console, print_json
from elastane_common.exit_codes import CODE_FAILED, CODE_RUN_FAILED

if TYPE_CHECKING:
    from elastane.diagnose.examine import Cost, ScriptFailedError
    from elastane.diagnose.findings import Finding

HELP = "\n\n".join(
    (
        "Find what is wrong or not deterministic on this machine and in a script, before training.",
        "Without a script it checks this machine (torch and GPUs, packages, memory, files, ports, clock, "
        "proxies); with --master and --store it also tries those from here. With a script it runs the loop "
        "body for a few steps in a separate process, each step twice from the same state, and examines "
        "what it uses: model, loader, generators, operators. Nothing after the loop runs, and Elastane "
        "saves nothing. It also reads the source of the script and of the modules beside it, for what a "
        "few steps do not show: variables that decide across turns or epochs, breaks, weights written "
        "after the step, torch.distributed, seeds. Then it measures the cost of level D2.",
        "Examples:",
        "  elastane doctor",
        "  elastane doctor --master 10.0.0.5:50051 --store redis://10.0.0.6:6379/0",
        "  elastane doctor --ests 4 train.py --batch-size 32",
        "  elastane doctor --no-cost --json train.py",
        "Severities: refused (training would end with an error), differs (other bits than stock DDP), "
        "costs, note. Each finding has a code: `elastane errors CODE` explains it.",
        "Exits with 0 if nothing is refused and nothing differs, 1 if something is or does, 2 on bad "
        "usage, 11 if the script failed.",
    )
)


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
        help=HELP,
        rich_help_panel="Run",
        # All arguments after the script are passed to the script.
        context_settings={"allow_interspersed_args": False},
    )(doctor)


def doctor(
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCRIPT [ARGS]...]", help="The script and its arguments.", show_default=False
        ),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module name, as for python -m.")] = False,
    ests: Annotated[
        int | None,
        typer.Option("--ests", metavar="N", min=1, help="Number of logical workers.", show_default="2"),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of steps to run and repeat.")] = 2,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Number of torch threads, as in the job.")
    ] = 1,
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="Measure the cost of level D2.")] = True,
    cost_seconds: Annotated[
        float,
        typer.Option("--cost-seconds", min=0.1, help="Time for steps in each of four runs, in seconds."),
    ] = 4.0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Time limit of each run, in seconds.")
    ] = 300.0,
    master: Annotated[
        str,
        typer.Option(
            "--master",
            envvar="ELASTANE_MASTER",
            metavar="HOST:PORT",
            help="Try this master from here; several comma-separated.",
            show_default="none",
        ),
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            help="Try this Redis or Valkey from here, with a master's password and certificates "
            "(ELASTANE_MASTER_STORE_PASSWORD_FILE, _CA, _CERT, _KEY).",
            show_default="none",
        ),
    ] = "",
    connect_timeout: Annotated[
        float,
        typer.Option(
            "--connect-timeout",
            metavar="SECONDS",
            min=0.1,
            help="Time limit for connecting to --master and --store.",
        ),
    ] = 3.0,
    as_json: JsonOption = False,
) -> None:
    from elastane.diagnose.examine import Examination, ScriptFailedError, judge_cost
    from elastane.diagnose.findings import by_severity, is_fault
    from elastane.diagnose.gpus import gpu_facts, judge_gpus
    from elastane.diagnose.machine import for_data_workers, judge_machine, machine_facts
    from elastane.diagnose.remote import check_master, check_store
    from elastane.diagnose.source import examine_script, with_source
    from elastane.diagnose.surroundings import judge_surroundings, surrounding_facts
    from elastane_common.addresses import parse_addresses

    if script and not module and not Path(script[0]).is_file():
        raise typer.BadParameter(f"{script[0]} is not a file", param_hint="SCRIPT")
    if module and not script:
        raise typer.BadParameter("-m needs the name of a module", param_hint="SCRIPT")
    if master:
        try:
            parse_addresses(master)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--master") from error
    machine = machine_facts()
    facts, findings = machine.rows(), judge_machine(machine)
    if machine.torch:
        findings += judge_gpus(gpu_facts())
    findings += judge_surroundings(surrounding_facts(machine.address), master)
    if master:
        said, found = check_master(master, connect_timeout)
        facts, findings = facts | said, findings + found
    if store:
        said, found = check_store(store, connect_timeout)
        facts, findings = facts | said, findings + found
    failure: ScriptFailedError | None = None
    measured: Cost | None = None
    if script and machine.torch:
        command = ["-m", *script] if module else script
        examination = Examination(command, ests=ests, steps=steps, threads=threads, timeout_seconds=timeout)
        in_source = examine_script(command)
        try:
            report = examination.inspect()
            facts |= report.facts
            findings = for_data_workers(findings, int(report.facts.get("data workers", 1)))
            findings += with_source(report.findings, in_source)
            refused = any(finding.kind in ("prepare", "state") for finding in report.findings)
            if cost and not refused and "tasks" not in report.facts:  # steps are timed, not tasks
                measured = examination.cost(seconds=cost_seconds)
                findings += judge_cost(measured)
        except ScriptFailedError as error:
            failure = error
            if error.report is not None:
                facts |= error.report.facts
            run = error.report.findings if error.report is not None else []
            findings += [finding for finding in with_source(run, in_source) if finding not in findings]
    findings = by_severity(findings)
    code = CODE_RUN_FAILED if failure is not None else CODE_FAILED if is_fault(findings) else 0
    if as_json:
        print_json(_document(facts, findings, measured, failure, code))
    else:
        _print(facts, findings, measured, failure)
    if code:
        raise typer.Exit(code)


def _document(
    facts: dict[str, str],
    findings: list[Finding],
    cost: Cost | None,
    failure: ScriptFailedError | None,
    code: int,
) -> dict[str, Any]:
    import msgspec

    return {
        "facts": facts,
        "findings": msgspec.to_builtins(findings),
        "cost": None if cost is None else msgspec.to_builtins(cost),
        "failure": None if failure is None else str(failure),
        "exit_code": code,
    }


def _print(
    facts: dict[str, str], findings: list[Finding], cost: Cost | None, failure: ScriptFailedError | None
) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    about = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        about.add_row(f"[dim]{escape(name)}[/dim]", escape(value))
    out.print(about)
    if cost is not None:
        out.print(
            f"\nlevel D2: a step takes {cost.d2_seconds * 1e3:.2f} ms, at D1 {cost.d1_seconds * 1e3:.2f} ms; "
            f"x {cost.ratio:.2f} (range {cost.ratio_low:.2f} to {cost.ratio_high:.2f}, {cost.steps} steps)"
        )
    out.print()
    if findings:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("severity", "code", "finding", "where", "what to do"):
            table.add_column(title, overflow="fold")
        colours = {"refused": "red", "differs": "yellow", "costs": "cyan", "note": "dim"}
        for finding in findings:
            colour = colours[finding.severity]
            cells = (escape(text) for text in (finding.code, finding.what, finding.where, finding.todo))
            table.add_row(f"[{colour}]{finding.severity}[/{colour}]", *cells)
        out.print(table)
    elif failure is None:
        out.print("[green]nothing found[/green]")
    if failure is not None:
        typer.secho(f"error {failure.code}: ", fg=typer.colors.RED, err=True, nl=False)
        typer.echo(str(failure), err=True)

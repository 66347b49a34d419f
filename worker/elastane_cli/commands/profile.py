"""`elastane profile`: measures the units of a script's pipeline, for `elastane plan --profile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import JsonOption, command, console, fail, print_json
from elastane_common.exit_codes import CODE_RUN_FAILED

if TYPE_CHECKING:
    from elastane.diagnose.profile_report import ProfileReport, Sized

STEPS_MIN = 10
_SPREAD_NOTED = 0.5


def register(app: typer.Typer) -> None:
    app.command(
        "profile",
        rich_help_panel="Run",
        # All arguments after the script are passed to the script.
        context_settings={"allow_interspersed_args": False},
    )(profile)


@command
def profile(
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.", show_default=False),
    ],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module name, as for python -m.")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the profile is written.", dir_okay=False)
    ] = Path("profile.json"),
    steps: Annotated[
        int, typer.Option("--steps", min=STEPS_MIN, help="Steps whose median counts, of each unit.")
    ] = STEPS_MIN,
    sizes: Annotated[
        str,
        typer.Option(
            "--micro-batch-sizes",
            metavar="N,...",
            help="Also profile micro-batches of so many samples: profile.json becomes profile.N.json.",
            show_default="the script's own",
        ),
    ] = "",
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Number of torch threads, as in the job.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Time limit of the run, in seconds.")
    ] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Measure the units of a script's pipeline: times, bytes and memory of each, as JSON for the planner.

    The script runs as one process up to job.prepare_pipeline; nothing after it runs. Only the unit that is
    measured is held, so a model that fits no device can be profiled on one. Times are those of this machine,
    with this number of threads; the file is JSON that you may edit. It is input of `elastane plan --profile`.

    Examples: elastane profile train.py; elastane profile -o gpt.json --steps 20 train.py --layers 24;
    elastane profile --micro-batch-sizes 4,8,16 train.py

    Exits with 0 when the file is written, 2 on bad usage, 11 if the script failed or has no pipeline.
    """
    from elastane.diagnose.examine import ScriptFailedError
    from elastane.diagnose.profile_run import profile_script

    if not module and not Path(script[0]).is_file():
        raise typer.BadParameter(f"{script[0]} is not a file", param_hint="SCRIPT")
    if not output.absolute().parent.is_dir():  # before minutes of measuring
        raise typer.BadParameter(f"{output.parent} is not a folder", param_hint="--output")
    samples = _sizes(sizes)
    try:
        report = profile_script(
            ["-m", *script] if module else script,
            steps=steps,
            samples=samples,
            threads=threads,
            timeout_seconds=timeout,
            told=_tell if sys.stderr.isatty() else None,
        )
    except ScriptFailedError as error:
        fail(error, as_json=as_json, code=CODE_RUN_FAILED)
    finally:
        if sys.stderr.isatty():
            typer.echo("\r\x1b[K", nl=False, err=True)
    files = [_write(output, sized, first=place == 0) for place, sized in enumerate(report.profiles)]
    if as_json:
        print_json(_document(report, files))
        return
    _print(report, files)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise typer.BadParameter(f"{text!r} is not N,..., like 4,8,16", param_hint="--micro-batch-sizes")
    return sizes


def _tell(text: str) -> None:
    typer.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _write(output: Path, sized: Sized, *, first: bool) -> Path:
    path = output if first else output.with_name(f"{output.stem}.{sized.samples}{output.suffix}")
    try:
        path.write_bytes(sized.profile.to_json())
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error}", param_hint="--output") from error
    return path


def _document(report: ProfileReport, files: list[Path]) -> dict[str, object]:
    import msgspec

    return {
        "device": report.device,
        "threads": report.threads,
        "steps": report.steps,
        "profiles": [
            {
                "file": str(path),
                "samples": sized.samples,
                "forward_overhead_seconds": sized.profile.forward_overhead_seconds,
                "backward_overhead_seconds": sized.profile.backward_overhead_seconds,
                "units": [
                    {**msgspec.to_builtins(unit), "class": kind, "spread": spread}
                    for unit, kind, spread in zip(
                        sized.profile.units, report.classes, sized.spread, strict=True
                    )
                ],
            }
            for path, sized in zip(files, report.profiles, strict=True)
        ],
    }


def _print(report: ProfileReport, files: list[Path]) -> None:
    from elastane_cli.views.pipelines import profile_table, sizes_table
    from elastane_planner.amounts import seconds_text

    out = console()
    first = report.profiles[0]
    out.print(
        f"{len(first.profile.units)} units on {report.device}, {report.threads} threads, micro-batches of "
        f"{first.samples or 'an unknown number of'} samples, medians of {report.steps} steps"
    )
    out.print(profile_table(first, report.classes))
    forward, backward = first.profile.forward_overhead_seconds, first.profile.backward_overhead_seconds
    if forward + backward:
        out.print(
            f"a stage takes {seconds_text(forward)} beside its units for a forward, "
            f"{seconds_text(backward)} for a backward"
        )
    if len(report.profiles) > 1:
        out.print(sizes_table(report.profiles))
    if max(first.spread) > _SPREAD_NOTED:
        out.print("note: times vary much; measure again while nothing else runs on this machine")
    for path in files:
        out.print(f"written: {path}")
    out.print(f"next: elastane plan --profile {files[0]} --devices 4 --micro-batches 8")

"""`elastane-operator`: the operator's command."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

HELP = "\n\n".join(
    (
        "Run the operator of ElasticJobs (elastane.io/v1alpha1).",
        "It makes the worker pods of each ElasticJob, and a master where the job wants one of its own, asks "
        "the master how the job is, and carries out what it decides. Several may run: the holder of a lease "
        "works, the others stand by. Killed at any moment and started again it goes on where it was.",
        "Every option has a variable, ELASTANE_OPERATOR_ and its name: ELASTANE_OPERATOR_NAMESPACES. Where a "
        "job names no tokenSecret, ELASTANE_TOKEN_FILE, ELASTANE_TLS_CERT and ELASTANE_TLS_KEY are how the "
        "operator proves itself to the masters of ELASTANE_OPERATOR_OWN_MASTERS (HOST:PORT,...), and to no "
        "others; ELASTANE_TLS_CA is for any that a job names no tlsSecret for.",
        "Example:",
        "  kubectl apply -f deploy/kubernetes/crd/elasticjob.yaml",
        "  elastane-operator --namespaces training --kubeconfig ~/.kube/config",
        "Exits with 0 when it was told to stop (SIGTERM, SIGINT), 1 when it lost its lease or cannot start, "
        "2 on wrong options.",
    )
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from elastane_proto.versions import release

        typer.echo(f"elastane-operator {release()}")
        raise typer.Exit


def run(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
    namespaces: Annotated[
        str | None, typer.Option("--namespaces", metavar="A,B", help="Serve these only. [default: all]")
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="[default: KUBECONFIG, the cluster this runs in, or ~/.kube/config]",
        ),
    ] = None,
    look_seconds: Annotated[
        float | None,
        typer.Option("--look-seconds", help="Ask the master of an unfinished job so often. [default: 5]"),
    ] = None,
    master_image: Annotated[
        str | None, typer.Option("--master-image", metavar="IMAGE", help="Of a master of a job's own.")
    ] = None,
    leader_election: Annotated[
        bool | None,
        typer.Option("--leader-election/--no-leader-election", help="Agree with other operators on one."),
    ] = None,
    lease_namespace: Annotated[
        str | None,
        typer.Option("--lease-namespace", help="Where the lease is. [default: the operator's own]"),
    ] = None,
    lease_seconds: Annotated[
        float | None,
        typer.Option("--lease-seconds", help="A holder silent for so long is replaced. [default: 15]"),
    ] = None,
    health: Annotated[
        str | None, typer.Option("--health", metavar="HOST:PORT", help="Serve GET /healthz. [default: off]")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error. [default: info]")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="text or json. [default: text]")
    ] = None,
) -> None:
    from pydantic import ValidationError

    from elastane_operator.settings import OperatorSettings

    given: dict[str, Any] = {
        name: value for name, value in locals().items() if name in OperatorSettings.model_fields
    }
    try:
        settings = OperatorSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise typer.BadParameter(wrong) from None

    from elastane_operator.edge import app

    app.configure_logs(settings.log_level, settings.log_format)
    try:
        code = asyncio.run(app.serve(settings))
    except app.CannotStartError as error:
        typer.echo(f"elastane-operator: {error}", err=True)
        code = app.CODE_FAILED
    except (asyncio.CancelledError, KeyboardInterrupt):
        code = app.CODE_OK
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the command."""
    cli = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    cli.command(help=HELP)(run)
    cli(prog_name="elastane-operator" if sys.argv[0].endswith("elastane-operator") else None)

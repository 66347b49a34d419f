"""`elastane-operator`: the operator's command."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

HELP = "\n\n".join(
    (
        "Run the operator of ElasticJobs (elastane.io/v1alpha1).",
        "It creates the worker pods of each ElasticJob, and a master for jobs that have their own, watches "
        "the job at its master, and acts on what the master decides. Several operators may run: the holder "
        "of a lease works, the others stand by. An operator that is killed at any moment continues where "
        "it was when it is started again.",
        "Every option can also be set as a variable, such as ELASTANE_OPERATOR_NAMESPACES. If a job names "
        "no tokenSecret, the operator authenticates with ELASTANE_TOKEN_FILE, ELASTANE_TLS_CERT and "
        "ELASTANE_TLS_KEY, but only to the masters in ELASTANE_OPERATOR_OWN_MASTERS (HOST:PORT,...); "
        "ELASTANE_TLS_CA applies to every master for which a job names no tlsSecret.",
        "Example:",
        "  kubectl apply -k deploy/kubernetes/crd",
        "  elastane-operator --namespaces training --kubeconfig ~/.kube/config",
        "Exits with 0 after SIGTERM or SIGINT, 1 if it lost its lease or cannot start, 2 on invalid options.",
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
        str | None,
        typer.Option("--namespaces", metavar="A,B", help="Serve only these namespaces. [default: all]"),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubeconfig file. [default: KUBECONFIG, the cluster this runs in, or ~/.kube/config]",
        ),
    ] = None,
    look_seconds: Annotated[
        float | None,
        typer.Option(
            "--look-seconds", help="Interval at which the master of an unfinished job is polled. [default: 5]"
        ),
    ] = None,
    master_image: Annotated[
        str | None, typer.Option("--master-image", metavar="IMAGE", help="Default image of a per-job master.")
    ] = None,
    leader_election: Annotated[
        bool | None,
        typer.Option(
            "--leader-election/--no-leader-election", help="Elect one of several operators as the leader."
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None,
        typer.Option("--lease-namespace", help="Namespace of the lease. [default: the operator's own]"),
    ] = None,
    lease_seconds: Annotated[
        float | None,
        typer.Option(
            "--lease-seconds",
            help="Time after which a holder that does not renew the lease is replaced. [default: 15]",
        ),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(
            "--health", metavar="HOST:PORT", help="Address for probes (GET /healthz). [default: off]"
        ),
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

    from elastane_operator import app

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

"""`elastane health`: exits with 0 if a master serves; for health checks of containers."""

from __future__ import annotations

from typing import Annotated

import typer

from elastane_cli.commands.common import MASTER_DEFAULT, JsonOption, MasterOption, command, print_json
from elastane_common.exit_codes import CODE_FAILED

SECONDS = 3.0


def register(app: typer.Typer) -> None:
    app.command("health", rich_help_panel="Look")(health)


@command
def health(
    master: MasterOption = MASTER_DEFAULT,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for the answer.")
    ] = SECONDS,
    standby_too: Annotated[
        bool, typer.Option("--standby-too", help="Count a standby master that answers as healthy.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check whether a master serves; for health checks.

    Examples: elastane health; elastane health --standby-too --master 10.0.0.5:50051

    Exits with 0 if it serves, 1 if it answers but does not serve (it stands by, or its store is unavailable),
    4 if it does not answer.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from elastane_common.addresses import parse_addresses
    from elastane_common.credentials import open_channel
    from elastane_common.errors import MasterUnreachableError

    try:
        [address] = parse_addresses(master)
    except ValueError as error:
        raise typer.BadParameter(f"one address: {error}", param_hint="--master") from error
    with open_channel(address) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout
            )
        except grpc.RpcError as error:
            raise MasterUnreachableError(f"{address} does not answer: {error.details()}") from error
    serves = reply.status == health_pb2.HealthCheckResponse.SERVING
    if as_json:
        print_json({"master": address, "serving": serves})
    else:
        typer.echo("serving" if serves else "not serving")
    if not serves and not standby_too:
        raise typer.Exit(CODE_FAILED)

"""Options of a master, `python -m elastane_master`; what they start is in `master_process`.

This module imports little, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from elastane_common.help_text import CONTEXT_SETTINGS, Application


def _protection(text: str, flag: str = "") -> Any:
    return typer.Option(*([flag] if flag else []), help=text, rich_help_panel="Protection")


app = Application(add_completion=False, context_settings=CONTEXT_SETTINGS)


@app.command()
def main(
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on; port 0 takes a free one. [127.0.0.1:50051]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="redis://, rediss:// or unix:// URL of the store. [a private one in the state directory]"
        ),
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of the private store. [.elastane]")] = None,
    store_replicas: Annotated[
        int | None,
        typer.Option(
            help="Number of replicas of the --store that must have a write before it is acknowledged. [0]"
        ),
    ] = None,
    port_file: Annotated[
        Path | None, typer.Option(help="File to write HOST:PORT to, once the master serves.")
    ] = None,
    standby: Annotated[
        bool | None,
        typer.Option(
            "--standby/--no-standby",
            help="While another master leads the --store: wait to take over, or exit with code 3. [standby]",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT at which workers and clients reach this master. [the address it listens on]"
        ),
    ] = None,
    leader_lease_seconds: Annotated[
        float | None,
        typer.Option(
            help="Time after which a leader that stopped renewing its lease is replaced. [3]",
            metavar="SECONDS",
        ),
    ] = None,
    keep_finished: Annotated[
        str | None,
        typer.Option(
            help="Finished jobs to keep: those of a period (7d), the newest N, or forever. Others are "
            "deleted; checkpoints stay. [30d]",
            metavar="TIME|N",
        ),
    ] = None,
    artifact_url: Annotated[
        str | None,
        typer.Option(
            help="fsspec URL of the folder for code, models and logs of runs, as all runners reach it. "
            "[STATE_DIR/artifacts]",
            metavar="URL",
        ),
    ] = None,
    dataset_root: Annotated[
        str | None,
        typer.Option(
            help="fsspec URL of the folder of datasets, ID/HASH/manifest.json, that runs may name. [none]",
            metavar="URL",
        ),
    ] = None,
    data_service: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a data management service that is asked for datasets without a URL. [none]",
            metavar="HOST:PORT",
        ),
    ] = None,
    scheduling_policy: Annotated[
        str | None,
        typer.Option(
            help="Who decides which runs of the training service have which slots: fair-share, or a policy "
            "of `elastane simulate`, such as foresight. [fair-share]",
            metavar="NAME",
        ),
    ] = None,
    scheduling_queues: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of queues, each with a weight, guaranteed slots, and the owners of its runs, for "
            "a scheduling policy. [none]",
            metavar="FILE",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT for the dashboard, /metrics and probes, such as 0.0.0.0:8080 in a container. "
            "[none]"
        ),
    ] = None,
    http_port_file: Annotated[
        Path | None, typer.Option(help="File to write HOST:PORT to, once --http is served.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json. [console]")] = None,
    token_file: Annotated[
        Path | None,
        _protection(
            "Table of tokens and their rights; see `elastane token`. Without it, anybody may do anything."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, _protection("PEM chain of the master's certificate. Without it, there is no TLS.")
    ] = None,
    tls_key: Annotated[Path | None, _protection("PEM key of --tls-cert.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        _protection(
            "PEM of the CA that must have signed the callers' certificates. Without it, they need none."
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        _protection(
            "Allow serving other machines without TLS, or without authentication of callers.",
            flag="--insecure",
        ),
    ] = None,
    reflection: Annotated[
        bool | None,
        _protection(
            "Enable gRPC reflection, for grpcurl; on by default.",
            flag="--reflection/--no-reflection",
        ),
    ] = None,
    http_open_metrics: Annotated[
        bool | None,
        _protection("Serve /metrics to anybody, without token or certificate.", flag="--http-open-metrics"),
    ] = None,
    store_ca: Annotated[
        Path | None, _protection("PEM of the CA of a rediss:// store. Without it, the system's CAs.")
    ] = None,
    store_cert: Annotated[Path | None, _protection("PEM client certificate for a rediss:// store.")] = None,
    store_key: Annotated[Path | None, _protection("PEM key of --store-cert.")] = None,
    store_password_file: Annotated[
        Path | None, _protection("File with the password of the user in --store.")
    ] = None,
) -> None:
    """Serve the jobs of one store over gRPC; with --http also a dashboard, metrics and probes.

    Every option can also be set as a variable, such as ELASTANE_LISTEN; those of protection options have a
    longer prefix, such as ELASTANE_MASTER_TOKEN_FILE. Changed token and certificate files are reloaded.

    Several masters may be started on one --store: one leads, the others stand by and take over when it
    stops or dies. Give workers and commands all addresses (--master A:50051,B:50051, or a DNS name).

    Exits with 0 after SIGTERM or SIGINT, 2 if it cannot start, 3 if another master leads and --no-standby was
    given, 1 after a bug of its own; and with a store that is not safe for jobs: 5 if it may evict keys, 6 if
    it is read-only (a replica), 7 if it is a cluster, 8 if it is a Sentinel.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from elastane_master.master_process import run_master

    run_master(given)

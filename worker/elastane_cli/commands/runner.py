"""`elastane runner`: starts the processes of a training service's runs on this machine."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elastane_cli.commands.common import MASTER_DEFAULT, MasterOption, command
from elastane_cli.commands.option_groups import group_of, with_options
from elastane_cli.commands.runner_options import ContainerChoices, PodChoices, runner_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastane_common.outbox import Outbox
    from elastane_runner.container_plan import ContainerOptions
    from elastane_runner.engine import Engine
    from elastane_runner.launches import Unit
    from elastane_runner.pod_plan import PodOptions
    from elastane_runner.run_outcomes import AskRun
    from elastane_runner.runner import RunnerSettings

HELP = "\n\n".join(
    (
        "Start the processes of the training service's runs on this machine.",
        "The runner attends the master, says how many slots it has, and starts, watches and ends what the "
        "master assigns to it. Processes go on when the runner or the master ends; the next runner with the "
        "same --folder takes them over. The first Ctrl-C or SIGTERM ends the runner alone; with "
        "--on-stop stop its processes are ended first. The second one ends it at once.",
        "With --kind container each instance is a container of Docker or podman on this machine, with --kind "
        "kubernetes a pod.",
        "Examples:",
        "  elastane runner --master 10.0.0.5:50051 --slots 8 --folder /var/lib/elastane-runner",
        "  elastane runner --slots 2 --algorithms algorithms.toml --secrets ./secrets --label gpu=a100",
        "  elastane runner --master 10.0.0.5:50051 --kind container --image train:3 --memory 16G --cpus 4",
        "  elastane runner --master 10.0.0.5:50051 --kind kubernetes --namespace runs --image train:3",
        "Exits with 0 if it was asked to end, 2 for bad usage, 3 if the master refused it or another runner "
        "uses the folder.",
    )
)

#: Label for the billing class of a runner's machines, and its values.
CAPACITY_LABEL = "capacity"
CAPACITIES = ("spot", "on-demand")


def register(app: typer.Typer) -> None:
    app.command("runner", help=HELP, rich_help_panel="Run")(runner)


def _runner(
    containers: ContainerChoices,
    pods: PodChoices,
    master: MasterOption = MASTER_DEFAULT,
    slots: Annotated[
        int,
        runner_option("--slots", "N", "Instances of one slot that run here at a time.", min=0, max=65536),
    ] = 1,
    folder: Annotated[
        Path, runner_option("--folder", "DIR", "Folder for all files of the runner, on a local disk.")
    ] = Path("elastane-runner"),
    name: Annotated[
        str,
        runner_option("--name", "ID", "Name of the runner; keep it over restarts.", show_default="host name"),
    ] = "",
    host: Annotated[
        str,
        runner_option(
            "--host",
            "HOST",
            "Address at which processes on other runners reach processes on this one.",
            show_default="this machine's address towards the master",
        ),
    ] = "",
    kind: Annotated[
        Literal["process", "container", "kubernetes"], runner_option("--kind", None, "How instances are run.")
    ] = "process",
    label: Annotated[
        list[str] | None,
        runner_option(
            "--label",
            "KEY=VALUE",
            "Label by which runs choose runners; may be repeated. capacity=spot or capacity=on-demand says "
            "how the machines are billed.",
        ),
    ] = None,
    device_type: Annotated[
        str,
        runner_option(
            "--device-type",
            "NAME",
            "Device type of its slots, for scheduling policies; its workers report the same.",
            show_default="the model of this machine's GPUs, else of its processor; of pods cpu",
        ),
    ] = "",
    algorithms: Annotated[
        Path | None,
        runner_option("--algorithms", "FILE", "TOML file that lists the training code installed here."),
    ] = None,
    secrets: Annotated[
        Path | None, runner_option("--secrets", "DIR", "Folder of the files that runs may name as secrets.")
    ] = None,
    on_stop: Annotated[
        Literal["keep", "stop"],
        runner_option(
            "--on-stop", None, "What to do with running processes when the runner is asked to end."
        ),
    ] = "keep",
) -> None:
    from elastane_common.logs import configure_logs
    from elastane_runner.algorithms import read_algorithms
    from elastane_runner.launching import LaunchSettings
    from elastane_runner.runner import RunnerSettings

    configure_logs("info")
    options = containers.options() if kind == "container" else None
    pod_options = pods.options(containers) if kind == "kubernetes" else None
    runner_id = name or socket.gethostname()
    labels = _labels(label or [])
    if pod_options is None:
        pods.refuse_without_pods(kind)
    elif secrets is not None:
        raise typer.BadParameter("pods take secrets of Kubernetes: --run-secret", param_hint="--secrets")
    settings = RunnerSettings(
        runner_id=runner_id,
        slots=slots,
        folder=folder.absolute(),
        kind=kind,
        labels=labels,
        **_device(device_type, kind),
        launch=LaunchSettings(
            host=host or _own_address(master),
            masters=master,
            algorithms=read_algorithms(algorithms, in_images=pod_options is not None)
            if algorithms is not None
            else {},
            secrets=secrets.absolute() if secrets is not None else None,
            worker_token_file=os.environ.get("ELASTANE_WORKER_TOKEN_FILE", ""),
            environ=dict(os.environ),
            interpreter=sys.executable if kind == "process" else "python",
            has_own_network=options is not None and options.network != "host",
            gpus=_gpus() if kind == "process" else None,
            pod_host=None if pod_options is None else _pod_host(runner_id, pod_options.namespace),
            capacity=labels.get(CAPACITY_LABEL, ""),
        ),
    )

    def engine() -> Engine:
        if pod_options is not None:
            return _pod_engine(settings, pod_options, pods)
        return _engine(settings, options, containers.container_engine)

    import asyncio

    asyncio.run(_serve(settings, engine, stops=on_stop == "stop"))


runner = command(with_options(_runner, containers=group_of(ContainerChoices), pods=group_of(PodChoices)))


async def _serve(settings: RunnerSettings, make_engine: Callable[[], Engine], *, stops: bool) -> None:
    """Run until a signal asks for the end, or the master refuses the runner."""
    import asyncio

    from elastane_runner.run_outcomes import RunOutcomes
    from elastane_runner.runner import Runner

    engine = make_engine()
    registry = _registry(settings.folder)
    outcomes = RunOutcomes(engine, ask=_asking(settings.launch.masters), registry=registry)
    serving = Runner(settings, engine, outcomes)
    leaving: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def leave(number: signal.Signals) -> None:
        if leaving:  # the next runner completes uploads
            os._exit(128 + number)
        else:
            leaving.append(asyncio.create_task(serving.leave(f"ended by {number.name}", stops=stops)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave, number)
    try:
        await serving.run()
    finally:
        await outcomes.close()
        engine.close()


def _device(device_type: str, kind: str) -> dict[str, Any]:
    """Return the device type and memory of the runner's slots. Pods run on other machines than this one."""
    from elastane_common.device_types import cpu_type, device_memory_bytes, gpu_type

    if kind == "kubernetes":
        return {"device_type": device_type}
    gpu = gpu_type()
    return {
        "device_type": device_type or gpu or cpu_type(),
        "memory_bytes": device_memory_bytes(gpu=bool(gpu)),
    }


def _engine(settings: RunnerSettings, containers: ContainerOptions | None, url: str) -> Engine:
    """Return the engine of the runner's kind. Raises RefusedError."""
    from elastane_common.errors import RefusedError
    from elastane_runner.container_plan import options_of
    from elastane_runner.engine import EngineError
    from elastane_runner.process_engine import ProcessEngine

    folder = settings.folder / "engine"
    try:
        if containers is None:
            return ProcessEngine(folder, rank_environ(os.environ))
        try:
            from elastane_runner.container_engine import ContainerEngine
        except ModuleNotFoundError as error:
            raise RefusedError(
                f"there is no client of container engines: {error}", hint="pip install 'elastane[containers]'"
            ) from error
        return ContainerEngine(
            folder,
            runner=settings.runner_id,
            options=lambda plan: options_of(plan, containers),
            url=url,
        )
    except EngineError as error:
        raise RefusedError(str(error.args[0]), hint=error.hint) from error


def _pod_engine(settings: RunnerSettings, options: PodOptions, choices: PodChoices) -> Engine:
    """Return the engine of a runner whose ranks are pods. Raises RefusedError."""
    from elastane_common.errors import RefusedError
    from elastane_runner.engine import EngineError

    try:
        from elastane_runner.pod_client import PodClient
        from elastane_runner.pod_engine import PodEngine
    except ModuleNotFoundError as error:
        raise RefusedError(
            f"there is no client of Kubernetes: {error}", hint="pip install 'elastane[kubernetes]'"
        ) from error
    try:
        client = PodClient(
            settings.runner_id,
            options,
            kubeconfig=choices.kubeconfig,
            start_seconds=choices.start_timeout,
            pull_seconds=choices.pull_timeout,
        )
        client.require_credentials()
        return PodEngine(settings.folder / "engine", client)
    except EngineError as error:
        raise RefusedError(str(error.args[0]), hint=error.hint) from error


def _gpus() -> tuple[str, ...] | None:
    """Return the GPUs to assign to ranks; None if there is no choice."""
    from elastane_common.gpus import VISIBLE, visible_gpus

    found = tuple(visible_gpus(os.environ))
    return found if VISIBLE in os.environ or len(found) > 1 else None


def _pod_host(runner_id: str, namespace: str) -> Callable[[Unit, int], str]:
    from elastane_runner.pod_plan import rank_host

    return lambda unit, rank: rank_host(runner_id, namespace, unit.run, unit.attempt, rank)


def _asking(masters: str) -> AskRun:
    """Return a function that requests a run from the master, and its job's facts if permitted."""
    from elastane_common.client import MasterClient
    from elastane_common.client_errors import RequestRefusedError
    from elastane_common.record_writing import RunFacts
    from elastane_proto.v1 import metric_pb2, metric_pb2_grpc, training_pb2, training_pb2_grpc

    client = MasterClient(masters)

    def ask(run_id: int) -> RunFacts:
        request = training_pb2.TrainingServiceGetRequest(run_id=run_id)
        run = client.call(training_pb2_grpc.TrainingServiceStub, "Get", request).run
        if not run.job:
            return RunFacts(run)
        wanted = metric_pb2.GetSeriesRequest(job=run.job, points_max=1)
        try:
            job = client.get_job(run.job)
            series = client.call(metric_pb2_grpc.MetricServiceStub, "GetSeries", wanted).series
        except RequestRefusedError:
            return RunFacts(run)
        return RunFacts(run, job, {one.name: one.points[-1].last for one in series if one.points})

    return ask


def _registry(folder: Path) -> Outbox | None:
    """Start sending entries to MLflow, and return their outbox; None without MLflow."""
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        return None
    from elastane_common.model_registry import MlflowRegistry
    from elastane_common.outbox import Outbox, OutboxSender

    outbox = Outbox(folder / "mlflow")
    OutboxSender(outbox, MlflowRegistry().send).start()
    return outbox


def rank_environ(environ: Any) -> dict[str, str]:
    """Return the base environment of ranks, with this Python's folder first on the PATH."""
    own = str(Path(sys.executable).parent)
    return {**environ, "PATH": os.pathsep.join([own, environ.get("PATH", os.defpath)])}


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for one in given:
        key, separator, value = one.partition("=")
        if not key or not separator:
            raise typer.BadParameter(f"{one!r} is not KEY=VALUE", param_hint="--label")
        labels[key] = value
    if labels.get(CAPACITY_LABEL, CAPACITIES[0]) not in CAPACITIES:
        raise typer.BadParameter(
            f"{CAPACITY_LABEL} says how the runner's machines are billed: {' or '.join(CAPACITIES)}",
            param_hint="--label",
        )
    return labels


def _own_address(masters: str) -> str:
    """Return this machine's address towards the first master that can be resolved."""
    from elastane_common.addresses import parse_addresses, split_address

    try:
        addresses = [split_address(one) for one in parse_addresses(masters)]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--master") from error
    for where in addresses:
        try:
            found = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)
            with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
                probe.connect(found[0][4])
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()

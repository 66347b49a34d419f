"""Options of `elastane runner` for its containers and pods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from elastane_cli.commands.common import size_bytes

if TYPE_CHECKING:
    from elastane_runner.container_plan import ContainerOptions
    from elastane_runner.pod_plan import Mount, PodOptions

_CONTAINERS: Final = "With --kind container"
_PODS: Final = "With --kind kubernetes"
_BOTH: Final = "With --kind container or kubernetes"


def runner_option(name: str, metavar: str | None, text: str, **more: Any) -> Any:
    """Declare an option of the runner and its variable, ELASTANE_RUNNER_ and the option's name."""
    variable = "ELASTANE_RUNNER_" + name.removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, envvar=variable, metavar=metavar, help=text, **more)


def _option(name: str, metavar: str | None, text: str, **more: Any) -> Any:
    return runner_option(name, metavar, text, rich_help_panel=_CONTAINERS, **more)


def _shared_option(name: str, metavar: str | None, text: str, **more: Any) -> Any:
    return runner_option(name, metavar, text, rich_help_panel=_BOTH, **more)


def _pod_option(name: str, metavar: str | None, text: str, **more: Any) -> Any:
    return runner_option(name, metavar, text, rich_help_panel=_PODS, **more)


@dataclass(frozen=True)
class ContainerChoices:
    """Options for containers as given on the command line; `options` checks them."""

    image: Annotated[
        str | None,
        _shared_option(
            "--image",
            "IMAGE",
            "Image of runs that name none, and whose algorithm has none; required. Not pulled by containers.",
        ),
    ] = None
    container_engine: Annotated[
        str,
        _option(
            "--container-engine",
            "URL",
            "Socket of Docker or podman, as unix:///run/podman/podman.sock.",
            show_default="DOCKER_HOST, or Docker's own",
        ),
    ] = ""
    user: Annotated[str, _shared_option("--user", "UID[:GID]", "User of the ranks, not root.")] = (
        "10001:10001"
    )
    memory: Annotated[
        str, _shared_option("--memory", "SIZE", "Memory of each slot, as 8G.", show_default="no limit")
    ] = ""
    cpus: Annotated[
        float | None,
        _shared_option("--cpus", "N", "Processors of each slot; may be a fraction.", show_default="no limit"),
    ] = None
    shared_memory: Annotated[
        str, _shared_option("--shared-memory", "SIZE", "Size of /dev/shm in each rank.")
    ] = "1G"
    temporary: Annotated[
        str, _shared_option("--temporary", "SIZE", "Size of /tmp in each rank; in containers it is memory.")
    ] = "1G"
    network: Annotated[
        str,
        _option(
            "--network", "NAME", "Network of the engine; none: no network; host: see --allow-host-network."
        ),
    ] = "bridge"
    allow_host_network: Annotated[
        bool,
        _option("--allow-host-network", None, "Ranks may use this machine's network, with its loopback."),
    ] = False
    read_folder: Annotated[
        list[Path] | None,
        _option("--read-folder", "DIR", "Folder that ranks see at the same path; may be repeated."),
    ] = None
    write_folder: Annotated[
        list[Path] | None,
        _option("--write-folder", "DIR", "As --read-folder, but ranks can write to it; may be repeated."),
    ] = None

    def options(self) -> ContainerOptions:
        """Return the options of all containers. Raises BadParameter for invalid ones."""
        from elastane_runner.container_plan import ContainerOptions, check_options
        from elastane_runner.engine import EngineError

        if not self.image:
            raise typer.BadParameter("containers need an image for runs that name none", param_hint="--image")
        options = ContainerOptions(
            image=self.image,
            user=self.user,
            memory_bytes=size_bytes(self.memory, "--memory") if self.memory else None,
            cpus=self.cpus,
            shared_memory_bytes=size_bytes(self.shared_memory, "--shared-memory"),
            temporary_bytes=size_bytes(self.temporary, "--temporary"),
            network=self.network,
            allows_host_network=self.allow_host_network,
            read_folders=tuple(self.read_folder or ()),
            write_folders=tuple(self.write_folder or ()),
        )
        try:
            check_options(options)
        except EngineError as error:
            raise typer.BadParameter(
                f"{error.args[0]}: {error.hint}" if error.hint else str(error)
            ) from error
        return options

    def refuse_with_pods(self) -> None:
        """Refuse options that pods do not support. Raises BadParameter."""
        given = {
            "--container-engine": self.container_engine,
            "--network": self.network != "bridge",
            "--allow-host-network": self.allow_host_network,
            "--read-folder": self.read_folder,
            "--write-folder": self.write_folder,
        }
        for option, is_given in given.items():
            if is_given:
                raise typer.BadParameter("not available with pods", param_hint=option)


@dataclass(frozen=True)
class PodChoices:
    """Options for pods as given on the command line; `options` checks them."""

    namespace: Annotated[
        str, _pod_option("--namespace", "NAME", "Namespace in which the pods are created.")
    ] = "default"
    kubeconfig: Annotated[
        str,
        _pod_option(
            "--kubeconfig",
            "FILE",
            "Kubeconfig for the API server.",
            show_default="KUBECONFIG, this pod's service account, or ~/.kube/config",
        ),
    ] = ""
    fetch_image: Annotated[
        str,
        _pod_option(
            "--fetch-image",
            "IMAGE",
            "Image with elastane that fetches the code of runs.",
            show_default="--image",
        ),
    ] = ""
    image_pull_secret: Annotated[
        list[str] | None,
        _pod_option("--image-pull-secret", "NAME", "Secret for pulling images; may be repeated."),
    ] = None
    gpu_resource: Annotated[
        str,
        _pod_option(
            "--gpu-resource",
            "NAME",
            "Resource of which each slot gets one, as nvidia.com/gpu.",
            show_default="none",
        ),
    ] = ""
    service_account: Annotated[
        str,
        _pod_option("--service-account", "NAME", "Service account of the pods; its token is not mounted."),
    ] = ""
    environment_secret: Annotated[
        list[str] | None,
        _pod_option(
            "--environment-secret",
            "NAME",
            "Secret whose keys all become variables, as credentials of the storage; may be repeated.",
        ),
    ] = None
    worker_secret: Annotated[
        str,
        _pod_option(
            "--worker-secret", "NAME=PATH", "Secret whose files workers of elastic runs have at a path."
        ),
    ] = ""
    claim: Annotated[
        list[str] | None,
        _pod_option("--claim", "NAME=PATH", "Volume claim that ranks have at a path; may be repeated."),
    ] = None
    run_secret: Annotated[
        list[str] | None,
        _pod_option("--run-secret", "NAME", "Secret that runs may name; may be repeated."),
    ] = None
    node_selector: Annotated[
        list[str] | None,
        _pod_option("--node-selector", "LABEL=VALUE", "Label of the nodes for pods; may be repeated."),
    ] = None
    priority_class: Annotated[str, _pod_option("--priority-class", "NAME", "Priority class of the pods.")] = (
        ""
    )
    start_timeout: Annotated[
        float,
        _pod_option(
            "--start-timeout",
            "SECONDS",
            "Limit for all pods of a launch to run; after it the launch is undone.",
            min=1,
        ),
    ] = 100.0
    pull_timeout: Annotated[
        float,
        _pod_option(
            "--pull-timeout",
            "SECONDS",
            "As --start-timeout, while nodes pull the image or fetch the code.",
            min=1,
        ),
    ] = 1800.0

    def options(self, containers: ContainerChoices) -> PodOptions:
        """Return the options of all pods. Raises BadParameter for invalid ones."""
        from elastane_runner.engine import EngineError
        from elastane_runner.pod_plan import PodOptions, check_options

        containers.refuse_with_pods()
        if not containers.image:
            raise typer.BadParameter("pods need an image for runs that name none", param_hint="--image")
        options = PodOptions(
            image=containers.image,
            namespace=self.namespace,
            fetch_image=self.fetch_image,
            user=containers.user,
            memory_bytes=size_bytes(containers.memory, "--memory") if containers.memory else None,
            cpus=containers.cpus,
            gpu_resource=self.gpu_resource,
            temporary_bytes=size_bytes(containers.temporary, "--temporary"),
            shared_memory_bytes=size_bytes(containers.shared_memory, "--shared-memory"),
            pull_secrets=tuple(self.image_pull_secret or ()),
            service_account=self.service_account,
            environment_secrets=tuple(self.environment_secret or ()),
            worker_secret=_mount(self.worker_secret, "--worker-secret") if self.worker_secret else None,
            claims=tuple(_mount(one, "--claim") for one in self.claim or ()),
            run_secrets=frozenset(self.run_secret or ()),
            node_selector=dict(_pair(one, "--node-selector") for one in self.node_selector or ()),
            priority_class=self.priority_class,
        )
        try:
            check_options(options)
        except EngineError as error:
            raise typer.BadParameter(
                f"{error.args[0]}: {error.hint}" if error.hint else str(error)
            ) from error
        return options

    def refuse_without_pods(self, kind: str) -> None:
        """Refuse options for pods that another kind would ignore. Raises BadParameter."""
        for name, default in vars(PodChoices()).items():
            if getattr(self, name) != default and getattr(self, name) != []:
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"instances of the kind {kind} do not have it", param_hint=option)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return name, value


def _mount(text: str, option: str) -> Mount:
    from elastane_runner.pod_plan import Mount

    return Mount(*_pair(text, option))

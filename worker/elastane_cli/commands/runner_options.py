"""Options of `elastane runner` that say how its containers are confined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from elastane_runner.container_plan import ContainerOptions

_CONTAINERS: Final = "With --kind container"
_SIZE: Final = re.compile(r"([1-9][0-9]*)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def runner_option(name: str, metavar: str | None, text: str, **more: Any) -> Any:
    """Declare an option of the runner and its variable, ELASTANE_RUNNER_ and the option's name."""
    variable = "ELASTANE_RUNNER_" + name.removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, envvar=variable, metavar=metavar, help=text, **more)


def size_bytes(text: str, option: str) -> int:
    """Parse a size as 512M or 8GiB; the units are powers of 1024. Raises BadParameter."""
    if (found := _SIZE.fullmatch(text)) is None:
        raise typer.BadParameter(f"{text!r} is no size such as 512M or 8G", param_hint=option)
    return int(found[1]) * _UNITS[found[2].upper()]


def _option(name: str, metavar: str | None, text: str, **more: Any) -> Any:
    return runner_option(name, metavar, text, rich_help_panel=_CONTAINERS, **more)


@dataclass(frozen=True)
class ContainerChoices:
    """What the command line says of containers; `options` checks it."""

    image: Annotated[
        str | None,
        _option(
            "--image",
            "IMAGE",
            "Of runs that name none, and whose algorithm has none; required. Nothing is pulled.",
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
    user: Annotated[str, _option("--user", "UID[:GID]", "User of the ranks, not root.")] = "10001:10001"
    memory: Annotated[
        str, _option("--memory", "SIZE", "Memory of each slot, as 8G.", show_default="no limit")
    ] = ""
    cpus: Annotated[
        float | None,
        _option("--cpus", "N", "Processors of each slot, may be a fraction.", show_default="no limit"),
    ] = None
    shared_memory: Annotated[str, _option("--shared-memory", "SIZE", "Of /dev/shm in each rank.")] = "1G"
    temporary: Annotated[str, _option("--temporary", "SIZE", "Of /tmp in each rank; it is memory.")] = "1G"
    network: Annotated[
        str,
        _option(
            "--network", "NAME", "Network of the engine; none: no network; host: see --allow-host-network."
        ),
    ] = "bridge"
    allow_host_network: Annotated[
        bool,
        _option("--allow-host-network", None, "Ranks may have this machine's network, and its loopback."),
    ] = False
    read_folder: Annotated[
        list[Path] | None,
        _option("--read-folder", "DIR", "Folder that ranks see at the same path; may be repeated."),
    ] = None
    write_folder: Annotated[
        list[Path] | None,
        _option("--write-folder", "DIR", "The same, and they can write to it; may be repeated."),
    ] = None

    def options(self) -> ContainerOptions:
        """Return the options of all containers. Raises BadParameter for those that no engine takes."""
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

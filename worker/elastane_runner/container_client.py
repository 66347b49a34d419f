"""The few calls of Docker's API that the container engine makes, by Docker's SDK; podman supports them, too.

All functions block; the engine calls them in threads. Whatever goes wrong is an EngineError, of a class that
says whether it may pass.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import docker
import docker.errors
import requests
import urllib3

from elastane_runner.container_plan import image_reference
from elastane_runner.engine import EngineError, EngineUnreachableError, ImageMissingError
from elastane_runner.rank_client import ContainerMissingError, ContainerState, Found, LogStream

CALL_SECONDS_MAX: Final = 60

#: What a connection that breaks raises, in the middle of an answer too.
_BROKEN: Final = (requests.RequestException, urllib3.exceptions.HTTPError, OSError, struct.error)
_ENDED: Final = ("exited", "dead", "stopped")


class Image(NamedTuple):
    """An image on the machine. digest: of its manifest, as in NAME@DIGEST; "": the engine has none."""

    id: str
    digest: str


class ContainerClient:
    """Calls of one container engine. Thread-safe.

    url: of its socket, as `unix:///run/podman/podman.sock`; empty: DOCKER_HOST, or Docker's own. It is first
    called when it is needed, and may be away for a while.
    """

    def __init__(self, url: str = "") -> None:
        self._url = url or os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"
        self._lock = threading.Lock()
        self._connected: Any = None

    def image(self, name: str) -> Image:
        """Return an image on the machine. Raises ImageMissingError."""
        with self._translated(f"find the image {name}"):
            try:
                found = self._api().inspect_image(image_reference(name))
                return Image(str(found["Id"]), _digest(found))
            except docker.errors.ImageNotFound:
                raise ImageMissingError(
                    f"the image {name} is not on this machine",
                    hint="pull or build it there first",
                    image=name,
                ) from None

    def create(self, arguments: Mapping[str, Any]) -> str:
        """Create a container, and return its id."""
        with self._translated(f"create the container {arguments.get('name')}"):
            return str(self._client().containers.create(**arguments).id)

    def start(self, container: str) -> None:
        """Start a container."""
        with self._translated("start a container"):
            self._api().start(container)

    def kill(self, container: str, signal: str) -> None:
        """Signal a container; nothing if it has ended or is gone."""
        with contextlib.suppress(ContainerMissingError):
            try:
                with self._translated("signal a container"):
                    self._api().kill(container, signal)
            except EngineUnreachableError:
                raise
            except EngineError:
                if self.state(container).is_running:
                    raise

    def remove(self, container: str) -> None:
        """Kill and delete a container with its log; nothing if it is gone."""
        with contextlib.suppress(ContainerMissingError), self._translated("remove a container"):
            self._api().remove_container(container, force=True, v=True)

    def find(self, labels: Mapping[str, str]) -> list[Found]:
        """Return the containers that bear all these labels, ended ones too."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with self._translated("list containers"):
            found = self._api().containers(all=True, filters={"label": wanted})
        return [Found(str(one["Id"]), dict(one["Labels"] or {})) for one in found]

    def state(self, container: str) -> ContainerState:
        """Return the state of a container. Raises ContainerMissingError."""
        with self._translated("look at a container"):
            found = self._api().inspect_container(container)["State"]
        started_at = _seconds(found.get("StartedAt", ""))
        if found["Status"] not in _ENDED:
            return ContainerState(True, started_at)
        return ContainerState(
            False, started_at, _seconds(found.get("FinishedAt", "")), int(found["ExitCode"])
        )

    @contextlib.contextmanager
    def log(self, container: str, *, follows: bool) -> Iterator[LogStream]:
        """Open the log of a container from its beginning, both streams in one.

        follows: to its end. A connection that breaks is an end too. Raises ContainerMissingError.
        """
        with self._translated("read a log"):
            stream: LogStream = self._api().logs(
                container, stdout=True, stderr=True, stream=True, follow=follows
            )
        try:
            with self._translated("read a log"):
                yield stream
        finally:
            stream.close()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._connected is not None:
                self._connected.close()
            self._connected = None

    def _client(self) -> Any:
        with self._lock:
            if self._connected is None:
                self._connected = docker.DockerClient(base_url=self._url, timeout=CALL_SECONDS_MAX)
            return self._connected

    def _api(self) -> Any:
        return self._client().api

    @contextlib.contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except docker.errors.NotFound as error:
            raise ContainerMissingError(str(error.explanation)) from error
        except docker.errors.APIError as error:
            said = str(error.explanation or error)
            raise EngineError(f"the container engine cannot {action}: {said}") from error
        except (docker.errors.DockerException, *_BROKEN) as error:
            raise EngineUnreachableError(
                f"the container engine at {self._url} cannot be reached: {_cause(error)}",
                hint="does it run, and may this user open its socket?",
            ) from error


def take_back(client: ContainerClient, containers: Iterable[str]) -> None:
    """Remove containers, in reverse order: the others use the network of the first."""
    for container in reversed(list(containers)):
        client.remove(container)


def _digest(image: Mapping[str, Any]) -> str:
    known = [str(one).partition("@")[2] for one in image.get("RepoDigests") or ()]
    return known[0] if known else ""


def _seconds(time: str) -> float | None:
    """Seconds since the epoch of an engine's time; None for year 1, which stands for never."""
    if not time or time.startswith("0001-"):
        return None
    return datetime.fromisoformat(time).timestamp()


def _cause(error: BaseException) -> str:
    """Return the innermost cause, because the SDK wraps errors several times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

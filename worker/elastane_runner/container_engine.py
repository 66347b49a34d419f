"""Ranks as containers of Docker or podman, which outlive their runner and are found again by the next one.

The container engine keeps a rank alive, ends all of its processes with its first one, and keeps its exit code
and its log until the container is removed. So a rank needs no parent of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from elastane_common.run_record import RankImage
from elastane_runner.container_client import ContainerClient, take_back
from elastane_runner.container_plan import ContainerOptions, check_options, container_arguments
from elastane_runner.engine import AttemptPlan, EngineError
from elastane_runner.labelled_engine import LabelledEngine
from elastane_runner.rank_client import ContainerState, Found, LogStream
from elastane_runner.rank_labels import ATTEMPT, RUN, RUNNER, check_name, read_labels


class ContainerEngine(LabelledEngine):
    """Runs ranks as containers of one container engine.

    root, runner: see `LabelledEngine`. options: of an attempt. url: of the engine's socket, as
    `ContainerClient` has it. Raises EngineError if another engine uses the folder.
    """

    def __init__(
        self, root: Path, *, runner: str, options: Callable[[AttemptPlan], ContainerOptions], url: str = ""
    ) -> None:
        check_name(runner, "runner")
        super().__init__(root, runner=runner, client=_Containers(ContainerClient(url), runner, options))


class _Containers:
    """The containers of one runner. Implements `RankClient`."""

    def __init__(
        self, client: ContainerClient, runner: str, options: Callable[[AttemptPlan], ContainerOptions]
    ) -> None:
        self._client = client
        self._runner = runner
        self._options = options

    def prepare(self, plan: AttemptPlan) -> _Launch:
        options = self._options(plan)
        check_options(options)
        for folder in (plan.folder, *options.read_folders, *options.write_folders):
            if not folder.is_dir():
                raise EngineError(f"{folder} is not a folder", hint="unpack the code first")
        image = self._client.image(options.image)
        arguments = {
            rank.rank: container_arguments(plan, rank, options, runner=self._runner, image=image.id)
            for rank in plan.ranks
        }
        return _Launch(self._client, arguments, RankImage(options.image, image.digest))

    def find(self, labels: Mapping[str, str]) -> list[Found]:
        return self._client.find(labels)

    def state(self, container: str) -> ContainerState:
        return self._client.state(container)

    def log(self, container: str, *, follows: bool) -> AbstractContextManager[LogStream]:
        return self._client.log(container, follows=follows)

    def kill(self, container: str, signal: str, grace_seconds: float) -> None:
        self._client.kill(container, signal)

    def release(self, container: str) -> None:
        """Do nothing: a container exists until it is removed."""

    def remove(self, run: str, attempt: int) -> None:
        found = self._client.find({RUNNER: self._runner, RUN: run, ATTEMPT: str(attempt)})
        places = {one.container: read_labels(one.labels) for one in found}
        in_order = sorted(
            places,
            key=lambda container: labels.ranks.index(labels.rank) if (labels := places[container]) else -1,
        )
        take_back(self._client, in_order)

    def close(self) -> None:
        self._client.close()


class _Launch:
    """Implements `LaunchCalls`. arguments: of each rank's container."""

    def __init__(
        self, client: ContainerClient, arguments: Mapping[int, Mapping[str, Any]], image: RankImage
    ) -> None:
        self._client = client
        self._arguments = arguments
        self.image = image

    def create(self) -> dict[int, str]:
        return {rank: self._client.create(given) for rank, given in self._arguments.items()}

    def start(self, container: str) -> None:
        self._client.start(container)

    def cancel(self) -> None:
        """Do nothing: a container starts at once."""

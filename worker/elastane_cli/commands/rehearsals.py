"""Shared parts of the commands that rehearse: seed, folder, progress."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from elastane_cli.rehearse.watcher import Watcher


def require_new(keep: Path | None) -> None:
    """Raise BadParameter if the folder of --keep exists."""
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} exists already", param_hint="--keep")


def announced_seed(seed: int | None, *, as_json: bool) -> int:
    """Return the seed, drawn if it is None; prints it first, so that any run can be repeated."""
    import secrets

    number = secrets.randbelow(2**32) if seed is None else seed
    typer.echo(f"seed {number}", err=as_json)
    return number


@contextlib.contextmanager
def working_folder(command: str, keep: Path | None) -> Iterator[Path]:
    """Yield the new folder `keep`, or a temporary one that is removed at the end of the block."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix=f"elastane-{command}-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def watching(*, quiet: bool, bar: bool) -> Iterator[Watcher]:
    """Yield a watcher that prints a line for each stage and each note on stderr. quiet: none of these.

    bar: also show the steps of a stage as a bar, if stderr is a terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    from elastane_cli.rehearse.watcher import Watcher

    out = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}")
    progress = Progress(*columns, TimeElapsedColumn(), console=out, disable=not out.is_terminal)

    class Shown(Watcher):
        task: TaskID | None = None

        def stage(self, text: str, steps: int | None = None) -> None:
            if self.task is not None:
                progress.update(self.task, visible=False)
            self.task = progress.add_task(text, total=steps, said="")
            if not quiet:
                out.print(text, markup=False)

        def step(self, step: int) -> None:
            if self.task is not None:
                progress.update(self.task, completed=step, said=f"step {step}")

        def note(self, text: str) -> None:
            if not quiet:
                out.print(text, markup=False, style="dim")

    with progress if bar else contextlib.nullcontext():
        yield Shown()

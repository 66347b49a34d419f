"""Live display of the demo: workers and their ESTs, the step, events with their reasons."""

from __future__ import annotations

import threading
from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elastane_cli.rehearse.cluster import LocalCluster
from elastane_cli.rehearse.faults import Fault
from elastane_proto.v1 import job_pb2, ring_pb2

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "white")
_EVENTS_SHOWN = 9


class Picture:
    """Redrawn at each update on a terminal; otherwise a plain line for each event. Thread-safe."""

    def __init__(self, console: Console, ests: int, total_steps: int) -> None:
        self._console = console
        self._ests = ests
        self._total_steps = total_steps
        self._lock = threading.Lock()
        self._job = job_pb2.Job()
        self._lines: deque[Text] = deque(maxlen=_EVENTS_SHOWN)
        self._live = Live(console=console, refresh_per_second=12, get_renderable=self._draw, transient=False)

    def __enter__(self) -> Picture:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def job(self, job: job_pb2.Job) -> None:
        """Show the job's current state."""
        with self._lock:
            self._job = job

    def event(self, event: ring_pb2.Event) -> None:
        """Show a decision of the master, with its reason."""
        self._line(
            Text.assemble((f"step {event.step:>4}  ", "dim"), (f"{event.kind:<18}", "cyan"), event.reason)
        )

    def fault(self, fault: Fault[LocalCluster], step: int) -> None:
        """Show a fault that is about to be injected in `step`."""
        self._line(Text(f"step {step:>4}  >>> {fault.text}", style="bold red"))

    def note(self, text: str) -> None:
        """Show a message of the demo itself."""
        self._line(Text(text, style="bold"))

    def _line(self, line: Text) -> None:
        with self._lock:
            self._lines.append(line)
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)

    def _draw(self) -> RenderableType:
        with self._lock:
            job, lines = self._job, list(self._lines)
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for column in ("worker", "logical workers (ESTs)", "state"):
            table.add_column(column)
        for index, worker in enumerate(job.workers):
            colour = _COLOURS[index % len(_COLOURS)]
            cells = Text()
            for rank in range(self._ests):
                mine = worker.ests.start <= rank < worker.ests.end
                cells.append(f" {rank} " if mine else " · ", style=f"reverse {colour}" if mine else "dim")
                cells.append(" ")
            state = job_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower()
            table.add_row(Text(worker.worker_id, style=colour), cells, state)
        step = min(job.step, self._total_steps)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(self._total_steps, step, width=40),
            f"step {step}/{self._total_steps}  epoch {job.epoch}  generation {job.generation}",
        )
        return Panel(Group(bar, Text(), table, Text(), *lines), title="elastane demo", border_style="dim")

"""`elastane logs` of a job: the last lines of its workers, as the master has them from their agents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import typer

from elastane_cli.views.text import counted, harmless

if TYPE_CHECKING:
    from elastane_proto.v1 import log_pb2


class JobLog:
    """Prints lines of workers to a stream; what happened to them is told on stderr.

    prefixed: begin each line with its worker, because there are several. clean: replace control characters.
    as_json: print an object per line instead, with everything in it.
    """

    def __init__(self, stream: TextIO, *, prefixed: bool, clean: bool, as_json: bool) -> None:
        self._stream, self._prefixed, self._clean, self._as_json = stream, prefixed, clean, as_json

    def print_sorted(self, found: Iterable[log_pb2.LogServiceReadResponse]) -> None:
        """Print all that was found, lines of several workers in the order of their times."""
        pieces = list(found)
        if not self._prefixed:
            self.print(pieces)
            return
        printed: list[tuple[float, dict[str, Any]]] = []
        for piece in pieces:
            latest = 0.0
            for part in _parts(piece):
                latest = part.get("time", latest)
                printed.append((latest or _first_time(piece), part))
        for _, found_part in sorted(printed, key=lambda timed: timed[0]):
            self._print(found_part)
        self._stream.flush()

    def print(self, found: Iterable[log_pb2.LogServiceReadResponse]) -> None:
        """Print pieces as they come."""
        for piece in found:
            for part in _parts(piece):
                self._print(part)
            self._stream.flush()

    def _print(self, part: Mapping[str, Any]) -> None:
        if self._as_json:
            self._stream.write(json.dumps(part) + "\n")
        elif "line" in part:
            text = harmless(part["line"]) if self._clean else part["line"]
            cut = f" [{counted(part['cut_bytes'], 'byte')} left out]" if "cut_bytes" in part else ""
            prefix = f"[{part['worker']}] " if self._prefixed else ""
            self._stream.write(f"{prefix}{text}{cut}\n")
        elif "left_out" in part:
            self._stream.flush()
            typer.echo(f"[{counted(part['left_out'], 'line')} of {part['worker']} left out here]", err=True)
        else:
            self._stream.flush()
            why = f" ({part['out_of_memory']})" if "out_of_memory" in part else ""
            typer.echo(harmless(f"[{part['worker']}: {part['how']}{why}]"), err=True)


def _parts(piece: log_pb2.LogServiceReadResponse) -> Iterable[dict[str, Any]]:
    """Yield what is printed of a piece, as objects with the fields of the JSON form."""
    worker = piece.worker_id
    if piece.left_out:
        yield {"event": "left_out", "worker": worker, "left_out": piece.left_out}
    for line in piece.lines:
        stream = "stderr" if line.is_stderr else "stdout"
        part: dict[str, Any] = {
            "event": "output",
            "worker": worker,
            "stream": stream,
            "line": line.text,
            "time": _seconds(line),
        }
        yield part | ({"cut_bytes": line.cut_bytes} if line.cut_bytes else {})
    if piece.HasField("exit"):
        ended = piece.exit
        last: dict[str, Any] = {
            "event": "exited",
            "worker": worker,
            "returncode": ended.returncode,
            "how": ended.how,
        }
        yield last | ({"out_of_memory": ended.out_of_memory} if ended.out_of_memory else {})


def _first_time(piece: log_pb2.LogServiceReadResponse) -> float:
    return _seconds(piece.lines[0]) if piece.lines else float("inf")


def _seconds(line: log_pb2.LogLine) -> float:
    return line.time.seconds + line.time.nanos / 1e9

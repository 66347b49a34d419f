"""Progress through a dataset, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane_proto.v1 import shard_pb2


def progress_line(item: shard_pb2.Progress) -> str:
    """Format the progress of one dataset on one line."""
    parts = [
        item.dataset or "(job)",
        f"epoch {item.epoch + 1}/{item.epochs}" if item.epochs else f"epoch {item.epoch + 1}",
        f"todo {item.todo}",
        f"doing {item.doing}",
        f"done {item.done}" + (f"/{item.total}" if item.total else ""),
    ]
    if item.failed:
        parts.append(f"FAILED {item.failed}")
    parts += [
        f"re-queued {item.requeued}",
        f"{item.samples_done} samples",
        f"{item.samples_per_second:,.1f}/s",
    ]
    parts.append("complete" if item.complete else f"left {duration_text(item)}")
    return "  ".join(parts)


def duration_text(item: shard_pb2.Progress) -> str:
    """Format the estimated time left, "1:02:03" or "0:42"; "?" if the master has no estimate."""
    if not item.HasField("eta"):
        return "?"
    seconds = round(item.eta.seconds + item.eta.nanos / 1e9)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
